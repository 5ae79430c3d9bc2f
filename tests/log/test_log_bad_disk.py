"""A disk that refuses never stops the training, and what was lost is counted."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.log.reader import read_events
from lineage.log.scan import fault_of, scan
from lineage.log.writer import Disk, LogWriter, encode_event
from lineage_schemas.events import AlertEvent, StepEvent

RUN = "20261129-134012-tiny-gpt"
SESSION = "s01-0a1b2c3d"
Event = Callable[..., dict[str, Any]]
Open = Callable[..., LogWriter]


def steps_in(path: Path) -> list[int]:
    return [event.step for event in read_events(path) if isinstance(event, StepEvent)]


def flush(writer: LogWriter) -> bool:
    """Wait until the backlog is home; a sync retries without waiting for the back-off."""
    return writer.sync(10)


@pytest.mark.filterwarnings("default")  # the size-limited file makes other writers of this process fail too
def test_a_full_filesystem_costs_nothing_once_there_is_room_again(
    full_disk: Any, open_writer: Open, step_event: Event
) -> None:
    path = full_disk.folder / "metrics.jsonl"
    told: list[str] = []
    writer = open_writer(path, warn=told.append)
    step = 0
    while writer.num_backlog < 500:
        step += 1
        writer.append(step_event(step))
        assert step < 20_000
    assert len(told) == 1
    assert os.strerror(full_disk.errno) in told[0]
    assert not writer.sync(10)
    on_disk = path.read_bytes()
    assert len(on_disk) <= 2 * full_disk.size_bytes
    assert on_disk.endswith(b"\n")
    assert steps_in(path) == list(range(1, step - writer.num_backlog + 1))

    full_disk.free()
    step += 1
    writer.append(step_event(step))
    assert flush(writer)
    assert steps_in(path) == list(range(1, step + 1))
    assert (writer.num_lost, writer.num_backlog) == (0, 0)
    assert len(told) == 2
    assert "can be written again" in told[1]


@pytest.mark.filterwarnings("default")
def test_what_a_full_filesystem_cost_is_counted_in_an_alert(
    full_disk: Any, open_writer: Open, step_event: Event
) -> None:
    path = full_disk.folder / "metrics.jsonl"
    writer = open_writer(path, backlog=50)
    step = 0
    while writer.num_lost < 200:
        step += 1
        writer.append(step_event(step))
        assert step < 20_000
    full_disk.free()
    assert flush(writer)
    found = steps_in(path)
    (alert,) = [event for event in read_events(path) if isinstance(event, AlertEvent)]
    assert alert.code == "events_lost"
    assert alert.details == {"num_lost": writer.num_lost}
    assert len(found) + writer.num_lost == step
    # The oldest that waited are the ones that went.
    num_before = len(found) - 50
    assert found == [*range(1, num_before + 1), *range(step - 49, step + 1)]


@pytest.mark.parametrize("fault", [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_a_refusing_disk_is_told_once_and_loses_nothing_within_the_backlog(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any, fault: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    writer = open_writer(path, disk=faulty.calls, warn=told.append)
    writer.append(step_event(1))
    faulty.fault = fault
    for step in range(2, 200):
        writer.append(step_event(step))
    assert len(told) == 1
    assert steps_in(path) == [1]
    faulty.fault = None
    assert flush(writer)
    assert steps_in(path) == list(range(1, 200))
    assert len(told) == 2


def test_the_training_thread_brings_the_backlog_home_by_itself(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = open_writer(path, disk=faulty.calls, sync_interval_s=60)
    faulty.fault = errno.EIO
    writer.append(step_event(1))
    faulty.fault = None
    time.sleep(0.15)
    writer.append(step_event(2))
    assert steps_in(path) == [1, 2]


def test_an_idle_training_does_not_leave_its_last_events_in_memory(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = open_writer(path, disk=faulty.calls, sync_interval_s=0.05)
    faulty.fault = errno.EIO
    writer.append(step_event(1))
    faulty.fault = None
    deadline = time.monotonic() + 10
    while writer.num_backlog and time.monotonic() < deadline:
        time.sleep(0.01)
    assert steps_in(path) == [1]


def test_a_failing_disk_is_not_asked_at_every_step(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls)
    faulty.fault = errno.EIO
    step = 0
    until = time.monotonic() + 0.5  # longer than the first waits of 0.1, 0.2 s
    while time.monotonic() < until:
        step += 1
        writer.append(step_event(step))
    assert step > 100
    assert faulty.num_writes < 10


@pytest.mark.parametrize("after", [None, errno.ENOSPC])
@pytest.mark.parametrize("can_cut", [True, False])
def test_a_write_cut_short_at_any_byte_leaves_no_half_line_in_the_middle(
    tmp_path: Path, step_event: Event, faulty: Any, after: int | None, can_cut: bool
) -> None:
    line = encode_event(step_event(2))
    for taken in range(len(line)):
        path = tmp_path / f"metrics-{taken}.jsonl"
        faulty.fault = faulty.cut_fault = faulty.sync_fault = None
        with LogWriter(path, run=RUN, session=SESSION, disk=faulty.calls, sync_interval_s=60) as writer:
            writer.append(step_event(1))
            faulty.shorts, faulty.fault_after_shorts = [taken], after
            faulty.cut_fault = None if can_cut else errno.EIO
            writer.append(step_event(2))
            writer.append(step_event(3))
            if after is not None and can_cut:
                assert path.read_bytes() == encode_event(step_event(1))
            faulty.fault = faulty.cut_fault = None
            assert flush(writer)
            assert steps_in(path) == [1, 2, 3]
            assert writer.num_lost == 0


def test_a_write_that_takes_nothing_without_an_error_does_not_spin(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls)
    faulty.shorts = [10, 0, 0, 0, 0, 0]
    writer.append(step_event(1))
    assert writer.num_backlog == 1
    faulty.shorts = []
    assert flush(writer)
    assert steps_in(tmp_path / "metrics.jsonl") == [1]


def test_what_the_disk_still_refuses_at_close_is_counted_and_told(
    tmp_path: Path, open_writer: Open, step_event: Event, faulty: Any
) -> None:
    told: list[str] = []
    writer = open_writer(tmp_path / "metrics.jsonl", disk=faulty.calls, warn=told.append)
    faulty.fault = errno.EROFS
    for step in range(1, 8):
        writer.append(step_event(step))
    writer.close()
    assert writer.num_lost == 7
    assert "7 events could not be written" in told[-1]


def test_a_log_cannot_be_opened_where_nothing_may_be_written_and_says_so(tmp_path: Path) -> None:
    from lineage.errors import LineageError

    def refuse(path: Path, flags: int, mode: int) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.raises(LineageError, match="Read-only"):
        LogWriter(tmp_path / "metrics.jsonl", run=RUN, session=SESSION, disk=Disk(open=refuse))


faults = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("refuse"), st.sampled_from([errno.EIO, errno.ENOSPC])),
    st.tuples(st.just("short"), st.lists(st.integers(0, 400), min_size=1, max_size=4)),
    st.tuples(st.just("no cut"), st.just(errno.EIO)),
    st.tuples(st.just("well"), st.none()),
    st.tuples(st.just("sync"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(story=st.lists(faults, max_size=25), backlog=st.sampled_from([1, 3, 1000]))
def test_whatever_the_disk_does_every_event_is_in_the_file_once_or_counted(
    make_faulty: Callable[[], Any], step_event: Event, story: list[tuple[str, Any]], backlog: int
) -> None:
    folder = Path(tempfile.mkdtemp())
    path = folder / "metrics.jsonl"
    disk = make_faulty()
    step = 0
    try:
        writer = LogWriter(path, run=RUN, session=SESSION, disk=disk.calls, backlog=backlog, sync_interval_s=60)
        for what, how in story:
            if what == "append":
                for _ in range(how):
                    step += 1
                    writer.append(step_event(step))
            elif what == "refuse":
                disk.fault = how
            elif what == "short":
                disk.shorts = list(how)
            elif what == "no cut":
                disk.cut_fault = how
            elif what == "sync":
                writer.sync(10)
            else:
                disk.fault = disk.cut_fault = None
        disk.fault, disk.cut_fault, disk.shorts = None, None, []
        assert writer.sync(10)
        num_lost = writer.num_lost
        writer.close()
        found = scan(path.read_bytes())
        assert found.torn == b""
        assert [fault_of(line.data) for line in found.lines if fault_of(line.data)] == []
        events = [orjson.loads(line.data) for line in found.lines]
        steps = [event["step"] for event in events if event["kind"] == "step"]
        assert steps == sorted(set(steps))
        assert len(steps) + num_lost == step
        assert sum(event["details"]["num_lost"] for event in events if event["kind"] == "alert") == num_lost
    finally:
        shutil.rmtree(folder)
