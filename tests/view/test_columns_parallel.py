"""Columns parsed by several processes are those of one, whatever becomes of the helpers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineage.errors import NewerFormatError
from lineage.log import columns, parallel
from lineage.log.columns import Columns
from tests.view.test_columns import BETWEEN, OTHER, SESSION, check, step

THIRD = "s03-00000003"


def log_bytes(num_lines: int = 6000) -> bytes:
    """Sessions one after another, some without a first event, names that come and go, and all that is no step."""
    out = []
    for number in range(1, num_lines + 1):
        session = (SESSION, OTHER, THIRD)[number * 3 // (num_lines + 1)]
        metrics = {"loss": 2.0 / number, "lr": 1e-4}
        if number % 7:
            metrics["grad_norm"] = number / 3
        if number > num_lines // 2:
            metrics["late"] = float("nan") if number % 5 == 0 else 0.1 * number
        counted = {"tokens": 512, "duration_s": 0.5} if session != SESSION else {}
        out.append(step(number, metrics, session, **counted))
        if number % 100 == 0:
            out.append(BETWEEN[number // 100 % len(BETWEEN)])
    return b"".join(out)


@pytest.fixture
def small(monkeypatch):
    """Helpers already for a log of kilobytes, in stretches of a few."""
    monkeypatch.setattr(columns, "_TOGETHER_FROM_BYTES", 1)
    monkeypatch.setattr(columns, "_LEARN_AFTER", 2)
    monkeypatch.setattr(parallel, "STRETCH_BYTES", 9000)
    monkeypatch.setattr(parallel, "_EDGE_BYTES", 2000)
    monkeypatch.setattr(parallel, "num_readers", lambda: 3)


@pytest.fixture
def fetched(monkeypatch):
    """What the helpers delivered; every team waits until they are up, and gives them time to be first."""
    found: list[int] = []

    class Patient(parallel.Team):
        def __init__(self, *args):
            super().__init__(*args)
            while self._helpers and not all(helper.is_up for helper in self._helpers):
                self._listen(10.0)

        def _work(self, fd, first):
            if first.helper is None or not self._listen(10.0):
                super()._work(fd, first)

    fetch = parallel._fetch

    def counted(helper, slot, num_bytes):
        found.append(num_bytes)
        return fetch(helper, slot, num_bytes)

    monkeypatch.setattr(parallel, "Team", Patient)
    monkeypatch.setattr(parallel, "_fetch", counted)
    return found


def write(folder: Path, data: bytes) -> Path:
    (folder / "metrics.jsonl").write_bytes(data)
    return folder


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("stretch_bytes", [700, 9000, 60_000])
@pytest.mark.parametrize("max_bytes", [None, 5000, 100_000])
def test_columns_read_by_three_processes_are_what_the_lines_say(
    tmp_path, fetched, monkeypatch, stretch_bytes, max_bytes
):
    monkeypatch.setattr(parallel, "STRETCH_BYTES", stretch_bytes)
    data = log_bytes()
    found = Columns.open(write(tmp_path, data), cache=False, max_bytes=max_bytes)
    while found.num_unread_bytes:
        assert found.refresh(max_bytes=max_bytes)
    check(found, data)
    assert len(fetched) > 3


def test_without_waiting_for_the_helpers_the_columns_are_the_same(tmp_path, small):
    data = log_bytes()
    check(Columns.open(write(tmp_path, data), cache=False), data)


def test_lines_appended_while_helpers_read_are_read_too(tmp_path, small, fetched):
    data = log_bytes()
    half = data.index(b"\n", len(data) // 2) + 1
    found = Columns.open(write(tmp_path, data[: half + 17]), cache=False, max_bytes=20_000)
    with (tmp_path / "metrics.jsonl").open("ab") as log:
        log.write(data[half + 17 :])
    found.refresh()
    check(found, data)
    assert fetched


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_dies_or_stops_costs_time_and_nothing_else(tmp_path, small, fetched, monkeypatch, how):
    fetch = parallel._fetch

    def strike(helper, slot, num_bytes):
        os.kill(helper.process.pid, how)
        monkeypatch.setattr(parallel.Team, "_listen", listen)
        return fetch(helper, slot, num_bytes)

    real = parallel.Team._listen

    def listen(team, seconds):
        return real(team, min(seconds, 0.05))

    monkeypatch.setattr(parallel, "_fetch", strike)
    data = log_bytes()
    check(Columns.open(write(tmp_path, data), cache=False), data)
    assert fetched


def test_a_helper_that_says_something_else_is_dismissed(tmp_path, small, monkeypatch):
    monkeypatch.setattr(parallel, "_BOOT", "print('hello from a start-up file', flush=True); input()")
    data = log_bytes(1500)
    check(Columns.open(write(tmp_path, data), cache=False), data)


def test_where_no_process_can_be_started_the_reader_reads_alone(tmp_path, small, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    data = log_bytes(500)
    check(Columns.open(write(tmp_path, data), cache=False), data)
    monkeypatch.setattr(sys, "executable", "")
    check(Columns.open(tmp_path, cache=False), data)


def test_no_helper_outlives_the_reading_or_its_reader(tmp_path, small, monkeypatch):
    started = []
    popen = subprocess.Popen

    def note(*args, **kwargs):
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", note)
    write(tmp_path, log_bytes())
    found = Columns.open(tmp_path, cache=False)
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)
    found = Columns.open(tmp_path, cache=False, max_bytes=5000)
    assert [process.returncode for process in started[2:]] == [None, None]
    del found  # nobody goes on with it
    assert all(process.returncode is not None for process in started)


def test_whoever_reads_many_logs_at_once_has_no_more_helpers_than_for_one(tmp_path, small):
    data = log_bytes()
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        write(folder, data)
    opened = [Columns.open(folder, cache=False, max_bytes=5000) for folder in folders]
    assert len(parallel._at_work) == 2
    for found in opened:
        found.refresh()
        check(found, data)
    assert parallel._at_work == []
    assert Columns.open(folders[0], cache=False, max_bytes=5000)._team is not None  # there are helpers again


def test_helpers_end_when_their_reader_is_killed(tmp_path):
    write(tmp_path, log_bytes())
    code = (
        "import sys, time; from lineage.log import columns, parallel; from pathlib import Path\n"
        "columns._TOGETHER_FROM_BYTES = 1; parallel.STRETCH_BYTES = 9000; parallel.num_readers = lambda: 2\n"
        "found = columns.Columns.open(Path(sys.argv[1]), cache=False, max_bytes=5000)\n"
        "print(found._team._helpers[0].process.pid, flush=True); time.sleep(60)\n"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    helper = int(reader.stdout.readline())
    reader.kill()
    reader.wait()
    reader.stdout.close()
    deadline = time.monotonic() + 20
    while _runs(helper):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether the process is there and no zombie that some init has not reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_newer_major_version_is_refused_at_its_line_and_what_stands_before_it_is_kept(tmp_path, small, fetched):
    good = log_bytes(3000)
    newer = b'{"kind":"session_start","ts":1.0,"run":"r","session":"s09-00000009","format":{"name":"lineage-log",'
    newer += b'"version":"2.0"}}\n'
    write(tmp_path, good + newer + log_bytes(1000))
    found = Columns(tmp_path, cache=False)
    for _ in range(3):
        with pytest.raises(NewerFormatError) as caught:
            found.refresh()
        assert f"byte {len(good)}" in caught.value.where
        assert found.offset <= len(good)
        assert len(found.rare) < good.count(b'"eval"') + good.count(b"new_kind") + 1
    assert fetched


def test_a_line_too_long_for_a_stretch_is_left_to_the_reader(tmp_path, small, fetched):
    data = log_bytes(1500) + b"x" * 30_000 + b"\n" + log_bytes(1500)
    check(Columns.open(write(tmp_path, data), cache=False), data)
    assert fetched


def test_a_log_cut_while_helpers_read_it_is_read_as_it_is_then(tmp_path, small, fetched):
    data = log_bytes()
    found = Columns.open(write(tmp_path, data), cache=False, max_bytes=20_000)
    shorter = data[: data.index(b"\n", 60_000) + 1]
    write(tmp_path, shorter)
    found.refresh()
    check(found, shorter)
    write(tmp_path, b"")
    found.refresh()
    assert found.offset == 0


def test_more_sessions_than_are_kept_apart_are_damage_whoever_reads_them(tmp_path, small, fetched, monkeypatch):
    monkeypatch.setattr(columns, "MAX_SESSIONS", 40)
    data = b"".join(step(number, {"loss": 1.0}, f"s{number // 25 + 1:02d}-0000000a") for number in range(1, 2400))
    found = Columns.open(write(tmp_path, data), cache=False)
    alone = Columns(tmp_path, cache=False)
    alone._is_alone = True
    alone.refresh()
    assert list(found.sessions) == list(alone.sessions)
    assert len(found.sessions) == 40
    assert found.damage == alone.damage


def test_readers_are_no_more_than_cores_and_as_few_as_asked(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert parallel.num_readers() == parallel.MAX_READERS
    for asked, expected in (("1", 1), ("2", 2), ("0", 1), ("99", 4), ("", 4), ("many", 4), ("9" * 5000, 4)):
        monkeypatch.setenv("LINEAGE_READERS", asked)
        assert parallel.num_readers() == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert parallel.num_readers() == 1
