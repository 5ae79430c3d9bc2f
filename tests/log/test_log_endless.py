"""A line that never ends, as a hostile or broken writer makes one while others look on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lineage.layout import RunDir
from lineage.log.columns import Columns
from lineage.log.reader import follow
from lineage.log.scan import MAX_LINE_BYTES, Damage, Line
from lineage.log.wire import encode_event

Event = Callable[..., dict[str, Any]]
ROUNDS = 20
PIECE = MAX_LINE_BYTES // 4


@pytest.fixture
def log(tmp_path: Path, step_event: Event) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_event(step_event(1)))
    return path


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes were read so far."""
    read: list[int] = []
    real = os.pread

    def counted(fd: int, count: int, offset: int) -> bytes:
        data = real(fd, count, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    return lambda: sum(read)


def grow(path: Path) -> None:
    """NUL bytes at the end, which take no room on disk."""
    os.truncate(path, path.stat().st_size + PIECE)


def growing(path: Path, step_event: Event) -> Iterator[bool]:
    """Whether to stop: not before the line has grown twenty times and ended, and a whole one stands after it."""
    yield False
    for _ in range(ROUNDS):
        grow(path)
        yield False
    with path.open("ab") as out:
        out.write(b"\n" + encode_event(step_event(2)))
    yield False
    yield True


def test_an_endless_line_is_followed_without_reading_it_again_and_again(
    log: Path, step_event: Event, num_read: Callable[[], int]
) -> None:
    first = log.stat().st_size
    answers = growing(log, step_event)
    found = [item for batch in follow(log, stop=lambda: next(answers), poll_s=0.0) for item in batch]
    before, damage, after = found
    assert isinstance(before, Line)
    assert isinstance(damage, Damage)
    assert isinstance(after, Line)
    assert (damage.offset, damage.size_bytes) == (first, ROUNDS * PIECE + 1)
    assert after.offset == damage.end
    assert num_read() < 3 * log.stat().st_size


def test_columns_do_not_read_an_endless_line_again_and_again(
    log: Path, step_event: Event, num_read: Callable[[], int]
) -> None:
    columns = Columns.open(RunDir(log.parent), cache=False)
    for _ in growing(log, step_event):
        columns.refresh()
    (steps,) = columns.sessions.values()
    assert steps.step.tolist() == [1, 2]
    (damage,) = columns.damage
    assert damage.size_bytes == ROUNDS * PIECE + 1
    assert num_read() < 3 * log.stat().st_size


def test_a_line_cut_off_and_written_over_between_two_looks_hides_no_line_after_it(
    log: Path, step_event: Event, event: Event
) -> None:
    """A session that opens the log cuts the endless line off; so much is then written that the file is longer."""
    columns = Columns.open(RunDir(log.parent), cache=False)
    size = log.stat().st_size
    seen: list[int] = []

    def scenes() -> Iterator[bool]:
        for _ in range(5):
            grow(log)
            yield False
        os.truncate(log, size)
        with log.open("ab") as out:
            out.write(encode_event(event("log_recovered", discarded_bytes=5 * PIECE, offset=size)))  # always the first
            for step in range(2, 30):
                out.write(encode_event(step_event(step) | {"filler": "x" * (1 << 20)}))
        assert log.stat().st_size > size + 5 * PIECE
        yield False
        yield True

    answers = scenes()

    def stop() -> bool:
        answer = next(answers)
        columns.refresh()
        return answer

    for batch in follow(log, stop=stop, poll_s=0.0):
        seen += [item.offset for item in batch if isinstance(item, Line)]
        assert all(isinstance(item, Line) for item in batch)
    assert len(seen) == 30
    (steps,) = columns.sessions.values()
    assert steps.step.tolist() == list(range(1, 30))
    assert not columns.damage
