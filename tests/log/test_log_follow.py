from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from lineage.errors import LineageError
from lineage.log.reader import follow
from lineage.log.scan import Damage, Line
from lineage.log.writer import LogWriter, encode_event

Event = Callable[..., dict[str, Any]]
Open = Callable[..., LogWriter]
Item = Line | Damage


class Follower:
    """Follows on a thread, as a viewer does, and keeps what it was given."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.items: list[Item] = []
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(path, start))
        self._thread.start()

    def _run(self, path: Path, start: int) -> None:
        try:
            for batch in follow(path, start=start, stop=self._stop.is_set, poll_s=0.005):
                assert batch
                self.items += batch
        except LineageError as error:
            self.error = error

    @property
    def steps(self) -> list[int | str]:
        """Steps in the order they came, with `restart` where it was told that the file began again."""
        return [
            "restart" if isinstance(item, Damage) and item.restart
            else "damage" if isinstance(item, Damage)
            else orjson.loads(item.data).get("step", "other")
            for item in self.items
        ]  # fmt: skip

    def wait_for(self, steps: list[int | str], timeout_s: float = 10.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.steps != steps:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def end(self) -> list[int | str]:
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def start_following(path: Path) -> Iterator[Callable[..., Follower]]:
    followers: list[Follower] = []

    def start(offset: int = 0) -> Follower:
        followers.append(Follower(path, offset))
        return followers[-1]

    yield start
    for follower in followers:
        follower.end()


def test_what_is_appended_arrives_once_and_in_order(
    path: Path, start_following: Callable[..., Follower], open_writer: Open, step_event: Event
) -> None:
    follower = start_following()
    writer = open_writer(path)
    for step in range(1, 2_001):
        writer.append(step_event(step))
    assert follower.end() == list(range(1, 2_001))


def test_a_log_that_is_not_there_yet_is_waited_for(
    path: Path, start_following: Callable[..., Follower], step_event: Event
) -> None:
    follower = start_following()
    time.sleep(0.03)
    path.write_bytes(encode_event(step_event(1)))
    assert follower.wait_for([1])


def test_following_begins_where_the_caller_left_off(
    path: Path, start_following: Callable[..., Follower], step_event: Event
) -> None:
    first = encode_event(step_event(1))
    path.write_bytes(first + encode_event(step_event(2)))
    follower = start_following(len(first))
    assert follower.wait_for([2])
    assert follower.items[0].offset == len(first)


def test_a_line_arrives_only_when_it_is_whole(
    path: Path, start_following: Callable[..., Follower], step_event: Event
) -> None:
    follower = start_following()
    line = encode_event(step_event(1))
    with path.open("ab", buffering=0) as out:
        for i in range(len(line) - 1):
            out.write(line[i : i + 1])
            if i % 40 == 0:
                time.sleep(0.01)
        time.sleep(0.03)
        assert follower.items == []
        out.write(b"\n")
    assert follower.wait_for([1])


def test_a_torn_tail_that_a_new_session_cuts_is_never_seen(
    path: Path, start_following: Callable[..., Follower], open_writer: Open, step_event: Event
) -> None:
    path.write_bytes(encode_event(step_event(1)) + b'{"kind":"step","step":99')
    follower = start_following()
    assert follower.wait_for([1])
    open_writer(path).append(step_event(2))
    assert follower.wait_for([1, "other", 2])


@pytest.mark.parametrize("rest", [b"", b'{"kind":'])
def test_a_torn_tail_replaced_by_a_line_up_to_the_very_same_size_is_seen_without_a_further_append(
    path: Path, start_following: Callable[..., Follower], step_event: Event, rest: bytes
) -> None:
    first, second = encode_event(step_event(1)), encode_event(step_event(2))
    path.write_bytes(first + b"x" * len(second + rest))
    follower = start_following()
    assert follower.wait_for([1])
    time.sleep(0.03)
    with path.open("r+b", buffering=0) as out:
        out.seek(len(first))
        out.write(second + rest)
    assert follower.wait_for([1, 2])


def test_a_replaced_log_is_read_again_from_its_beginning_and_says_so(
    path: Path, start_following: Callable[..., Follower], tmp_path: Path, step_event: Event
) -> None:
    path.write_bytes(encode_event(step_event(1)) + encode_event(step_event(2)))
    follower = start_following()
    assert follower.wait_for([1, 2])
    other = tmp_path / "other"
    other.write_bytes(b"".join(encode_event(step_event(step)) for step in (1, 3, 4, 5)))
    other.replace(path)
    assert follower.wait_for([1, 2, "restart", 1, 3, 4, 5])
    with path.open("ab") as out:
        out.write(encode_event(step_event(6)))
    assert follower.wait_for([1, 2, "restart", 1, 3, 4, 5, 6])


def test_a_log_cut_below_what_was_read_is_read_again_and_says_so(
    path: Path, start_following: Callable[..., Follower], step_event: Event
) -> None:
    path.write_bytes(encode_event(step_event(1)) + encode_event(step_event(2)))
    follower = start_following()
    assert follower.wait_for([1, 2])
    os.truncate(path, len(encode_event(step_event(1))))
    assert follower.wait_for([1, 2, "restart", 1])


def test_a_deleted_log_is_survived_and_a_new_one_is_found(
    path: Path, start_following: Callable[..., Follower], step_event: Event
) -> None:
    path.write_bytes(encode_event(step_event(1)))
    follower = start_following()
    assert follower.wait_for([1])
    shutil.move(path, path.with_name("gone"))
    time.sleep(0.03)
    path.write_bytes(encode_event(step_event(7)))
    assert follower.wait_for([1, "restart", 7])


def test_damage_arrives_in_its_place(path: Path, start_following: Callable[..., Follower], step_event: Event) -> None:
    path.write_bytes(encode_event(step_event(1)) + b"bad\n" + encode_event(step_event(2)))
    assert start_following().wait_for([1, "damage", 2])


def test_what_was_there_before_the_end_is_still_delivered(path: Path, step_event: Event) -> None:
    path.write_bytes(encode_event(step_event(1)))
    assert sum(len(batch) for batch in follow(path, stop=lambda: True)) == 1


def test_a_log_that_never_comes_ends_with_the_caller(path: Path) -> None:
    assert list(follow(path, stop=lambda: True)) == []


def test_a_link_in_the_place_of_the_log_is_refused(path: Path) -> None:
    path.symlink_to("/etc/hostname")
    with pytest.raises(LineageError, match="symbolic link"):
        list(follow(path, stop=lambda: True))
