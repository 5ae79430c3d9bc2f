from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from lineage.errors import LineageError
from lineage.log.reader import read_events, read_lines
from lineage.log.scan import MAX_LINE_BYTES, Line, scan
from lineage.log.writer import Disk, LogRecovered, LogWriter, encode_event
from lineage_schemas.events import LogRecoveredEvent, StepEvent

RUN = "20261129-134012-tiny-gpt"
SESSION = "s01-0a1b2c3d"
Event = Callable[..., dict[str, Any]]
Open = Callable[..., LogWriter]


def steps_in(path: Path) -> list[int]:
    return [event.step for event in read_events(path) if isinstance(event, StepEvent)]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def test_an_event_is_in_the_file_when_append_returns(tmp_path: Path, open_writer: Open, step_event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = open_writer(path)
    for step in range(1, 6):
        writer.append(step_event(step))
        assert path.read_bytes().endswith(encode_event(step_event(step)))


def test_one_event_is_one_write(tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any) -> None:
    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls)
    for step in range(1, 11):
        writer.append(step_event(step))
    assert faulty.num_writes == 10


def test_opening_a_log_that_ends_well_changes_nothing(tmp_path: Path, open_writer: Open, real_log: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(real_log)
    writer = open_writer(path)
    assert writer.recovered is None
    assert path.read_bytes() == real_log


def test_opening_cuts_a_torn_tail_and_says_so(tmp_path: Path, open_writer: Open, real_log: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(real_log + b'{"kind":"st')
    writer = open_writer(path)
    assert writer.recovered == LogRecovered(discarded_bytes=11, offset=len(real_log))
    *before, last = read_events(path)
    assert isinstance(last, LogRecoveredEvent)
    assert (last.discarded_bytes, last.offset) == (11, len(real_log))
    assert path.read_bytes().startswith(real_log)
    assert len(before) == real_log.count(b"\n")


def test_damage_before_the_tail_is_kept_and_appended_after(
    tmp_path: Path, open_writer: Open, step_event: Event
) -> None:
    path = tmp_path / "metrics.jsonl"
    damaged = b'{"kind":"note"\n\0\0\0\n\xff\xfe\n'
    path.write_bytes(damaged)
    open_writer(path).append(step_event(1))
    assert path.read_bytes() == damaged + encode_event(step_event(1))


@pytest.mark.parametrize("torn", [b"x", b"\0" * 200_000, b"{" * 65_536, b"y" * 65_537])
def test_a_file_without_any_newline_is_all_torn_tail(tmp_path: Path, open_writer: Open, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(torn)
    assert open_writer(path).recovered == LogRecovered(len(torn), 0)
    (line,) = scan(path.read_bytes()).lines
    assert orjson.loads(line.data)["kind"] == "log_recovered"


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_only_a_regular_file_of_the_folder_itself_is_opened(tmp_path: Path, kind: str) -> None:
    path, outside = tmp_path / "metrics.jsonl", tmp_path / "outside"
    if kind == "link":
        outside.write_bytes(b"precious, without a newline")
        path.symlink_to(outside)
    elif kind == "dangling link":
        path.symlink_to(outside)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(LineageError, match=str(path)):
        LogWriter(path, run=RUN, session=SESSION)
    assert not outside.exists() or outside.read_bytes() == b"precious, without a newline"


def test_a_missing_folder_is_an_error_of_the_family(tmp_path: Path) -> None:
    with pytest.raises(LineageError):
        LogWriter(tmp_path / "missing" / "metrics.jsonl", run=RUN, session=SESSION)


def test_threads_never_mix_their_lines(tmp_path: Path, open_writer: Open, step_event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = open_writer(path)

    def log(first: int) -> None:
        for step in range(first, first + 300):
            writer.append(step_event(step))

    threads = [threading.Thread(target=log, args=(1 + 300 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = steps_in(path)
    assert sorted(found) == list(range(1, 2401))
    for i in range(8):
        own = [step for step in found if 300 * i < step <= 300 * (i + 1)]
        assert own == sorted(own)


def test_a_line_longer_than_a_line_may_be_is_replaced_by_an_alert(
    tmp_path: Path, open_writer: Open, event: Event
) -> None:
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    writer = open_writer(path, warn=told.append)
    writer.append(event("note", text="x" * MAX_LINE_BYTES))
    (found,) = read_events(path)
    fields = found.to_wire()
    assert (fields["kind"], fields["code"], fields["details"]["kind"]) == ("alert", "event_too_long", "note")
    assert fields["details"]["size_bytes"] > MAX_LINE_BYTES
    assert writer.num_lost == 1
    assert len(told) == 1


def test_the_longest_line_that_may_be_is_written_and_read(tmp_path: Path, open_writer: Open, event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    room = MAX_LINE_BYTES - len(encode_event(event("note", text="")))
    open_writer(path).append(event("note", text="x" * room))
    (line,) = read_lines(path)
    assert isinstance(line, Line)
    assert len(line.data) == MAX_LINE_BYTES - 1


# --- durability


def test_syncing_is_never_done_on_the_thread_that_logs(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls, sync_interval_s=0.01)
    for step in range(1, 50):
        writer.append(step_event(step))
        writer.request_sync()
    assert writer.sync(10)
    writer.close()
    assert faulty.syncs
    assert threading.get_ident() not in faulty.syncs


def test_a_log_with_new_bytes_is_synced_by_itself_and_an_idle_one_is_left_alone(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls, sync_interval_s=0.02)
    writer.append(step_event(1))
    assert wait_until(lambda: len(faulty.syncs) >= 1)
    time.sleep(0.15)
    num_before = len(faulty.syncs)
    time.sleep(0.15)
    assert len(faulty.syncs) == num_before
    writer.append(step_event(2))
    assert wait_until(lambda: len(faulty.syncs) == num_before + 1)


def test_sync_waits_for_everything_appended_before_it(tmp_path: Path, open_writer: Open, step_event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    synced: list[int] = []

    def fdatasync(fd: int) -> None:
        size = os.fstat(fd).st_size
        time.sleep(0.02)
        synced.append(size)

    writer = open_writer(path, disk=Disk(fdatasync=fdatasync), sync_interval_s=0.001)
    for step in range(1, 6):
        writer.append(step_event(step))
        size = path.stat().st_size
        assert writer.sync(10)
        assert max(synced) >= size


def test_sync_says_no_when_the_disk_hangs_and_logging_goes_on(
    tmp_path: Path, open_writer: Open, step_event: Event
) -> None:
    path = tmp_path / "metrics.jsonl"
    release = threading.Event()
    writer = open_writer(path, disk=Disk(fdatasync=lambda fd: release.wait(30) and None))
    writer.append(step_event(1))
    assert not writer.sync(0.05)
    writer.append(step_event(2))
    assert steps_in(path) == [1, 2]
    release.set()
    assert writer.sync(10)


def test_close_gives_up_on_a_disk_that_hangs(tmp_path: Path, open_writer: Open, step_event: Event) -> None:
    release = threading.Event()
    told: list[str] = []
    disk = Disk(fdatasync=lambda fd: release.wait(30) and None)
    writer = open_writer(tmp_path / "metrics.jsonl", disk=disk, warn=told.append)
    writer.append(step_event(1))
    began = time.monotonic()
    writer.close(timeout_s=0.05)
    assert time.monotonic() - began < 5
    assert "did not finish syncing" in told[-1]
    release.set()


def test_a_failed_sync_is_told_once_and_leaves_an_alert_with_the_bytes_in_doubt(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    writer = open_writer(path, disk=faulty.calls, warn=told.append, sync_interval_s=60)
    writer.append(step_event(1))
    assert writer.sync(10)
    safe = path.stat().st_size
    faulty.sync_fault = errno.EIO
    writer.append(step_event(2))
    assert not writer.sync(10)
    assert not writer.sync(10)
    in_doubt = path.stat().st_size
    faulty.sync_fault = None
    assert writer.sync(10)
    assert len(told) == 1
    (alert,) = [e.to_wire() for e in read_events(path, kinds=["alert"])]
    assert alert["code"] == "sync_failed"
    assert alert["details"] == {"offset": safe, "end_offset": in_doubt}


def test_a_log_that_was_deleted_under_the_writer_is_told(tmp_path: Path, open_writer: Open, step_event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    writer = open_writer(path, warn=told.append, sync_interval_s=0.01)
    path.unlink()
    writer.append(step_event(1))
    assert wait_until(lambda: bool(told))
    writer.append(step_event(2))
    writer.sync(10)
    assert len(told) == 1
    assert "deleted" in told[0]


def test_closing_twice_is_once_and_events_after_it_are_counted(
    tmp_path: Path, open_writer: Open, step_event: Event
) -> None:
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    writer = open_writer(path, warn=told.append)
    writer.append(step_event(1))
    writer.close()
    writer.close()
    writer.append(step_event(2))
    writer.append(step_event(3))
    assert not writer.sync(1)
    assert (steps_in(path), writer.num_lost, len(told)) == ([1], 2, 1)


# --- forks, signals, finalizers


def test_a_forked_child_neither_writes_nor_syncs_nor_closes(
    tmp_path: Path, open_writer: Open, step_event: Event
) -> None:
    path = tmp_path / "metrics.jsonl"
    syncs = tmp_path / "syncs"

    def fdatasync(fd: int) -> None:
        with syncs.open("a") as out:
            out.write(f"{os.getpid()}\n")

    writer = open_writer(path, disk=Disk(fdatasync=fdatasync), sync_interval_s=0.01)
    writer.append(step_event(1))
    holding, release = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with writer._lock, writer._wake:
            holding.set()
            release.wait(10)

    thread = threading.Thread(target=hold_the_lock)
    thread.start()
    assert holding.wait(10)
    # The lock is held by a thread that the child does not have: the child must not wait for it.
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.append(step_event(2))
            writer.request_sync()
            status = 0 if writer.sync(5) is False and writer.num_lost == 0 else 2
            writer.close()
        finally:
            os._exit(status)
    release.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    writer.append(step_event(3))
    assert writer.sync(10)
    assert steps_in(path) == [1, 3]
    assert set(syncs.read_text().split()) == {str(os.getpid())}


@pytest.mark.parametrize("taken", [0, 1, 40, -1, None])
def test_ctrl_c_inside_a_write_never_leaves_half_a_line_before_a_good_one(
    tmp_path: Path, open_writer: Open, step_event: Event, taken: int | None
) -> None:
    path = tmp_path / "metrics.jsonl"
    interrupt = False

    def write(fd: int, data: bytes) -> int:
        if interrupt:
            os.write(fd, data[:taken])
            raise KeyboardInterrupt
        return os.write(fd, data)

    writer = open_writer(path, disk=Disk(write=write, fdatasync=lambda fd: None))
    writer.append(step_event(1))
    interrupt = True
    with pytest.raises(KeyboardInterrupt):
        writer.append(step_event(2))
    interrupt = False
    writer.append(step_event(3))
    # Step 2 was never acknowledged: it may be there, whole, when all of it had reached the file.
    assert steps_in(path) == ([1, 2, 3] if taken is None else [1, 3])


def test_logging_from_within_an_append_does_not_hang(tmp_path: Path, open_writer: Open, step_event: Event) -> None:
    """A signal handler or a finalizer may run in the middle of a write."""
    path = tmp_path / "metrics.jsonl"
    inside = False

    def write(fd: int, data: bytes) -> int:
        nonlocal inside
        if not inside:
            inside = True
            writer.append(step_event(7))
        return os.write(fd, data)

    writer = open_writer(path, disk=Disk(write=write, fdatasync=lambda fd: None))
    writer.append(step_event(1))
    assert steps_in(path) == [7, 1]


def test_a_warning_that_raises_does_not_reach_the_training(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    def warn(message: str) -> None:
        raise RuntimeError(message)

    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls, warn=warn)
    faulty.fault = errno.ENOSPC
    writer.append(step_event(1))
    assert writer.num_backlog == 1


def test_the_writer_loads_neither_pydantic_nor_numpy() -> None:
    code = (
        "import sys, lineage.log.writer; print([m for m in ('pydantic', 'numpy', 'torch', 'rich') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
