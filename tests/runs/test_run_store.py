"""run.json: made exclusively, rewritten whole, believed only as far as its format goes."""

from __future__ import annotations

import errno
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lineage import fs
from lineage.errors import FormatError, LockedError, NewerFormatError, NotFoundError, UsageError
from lineage.runs.lock import probe
from lineage.runs.store import create_run, open_run, read_run, read_tail, render_run
from lineage_schemas.run import Parent

AT = datetime(2026, 11, 29, 13, 40, 12, tzinfo=UTC)


def test_a_new_run_is_locked_and_readable(tmp_path: Path) -> None:
    with create_run(tmp_path / "deep" / "runs", "Tiny GPT", tags=["a"], notes="why", created_at=AT) as store:
        assert store.record.id == "20261129-134012-tiny-gpt"
        assert store.dir.path == tmp_path / "deep" / "runs" / store.record.id
        assert read_run(store.dir.path) == store.record
        assert probe(store.dir) is not None
    assert probe(store.dir) is None


def test_runs_of_one_name_in_one_second_get_numbers(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        with create_run(tmp_path, "x", created_at=AT) as store:
            ids.append(store.record.id)
    assert ids == ["20261129-134012-x", "20261129-134012-x-2", "20261129-134012-x-3"]
    assert [read_run(tmp_path / name).id for name in ids] == ids


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x1b[31m", "\u202egpj"])
def test_a_name_that_no_terminal_can_show_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        create_run(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_sessions_are_numbered_and_share_one_environment(tmp_path: Path, facts: dict[str, Any]) -> None:
    with create_run(tmp_path, "x") as store:
        first = store.begin_session(**facts, argv=["train.py"], world=2)
        assert store.lock.owner.session == first.id == store.session.id
        store.update_session(last_step=40)
        store.add_checkpoint("step-00000040-s01-00000000", last_step=40)
        store.end_session("completed")
    with open_run(store.dir.path) as again:
        reserved = again.reserve_session()
        assert probe(again.dir).session is None
        second = again.begin_session(**facts)
        assert second.id == reserved == probe(again.dir).session
        other = facts["environment"].model_copy(update={"python": "3.12.0"})
    with open_run(store.dir.path) as third:
        third.begin_session(**facts | {"environment": other})
    record = read_run(store.dir.path)
    assert [session.ordinal for session in record.sessions] == [1, 2, 3]
    assert [session.id[:4] for session in record.sessions] == ["s01-", "s02-", "s03-"]
    assert len(record.environments) == 2
    assert {session.environment for session in record.sessions} == set(record.environments)
    assert record.sessions[0].checkpoints == ["step-00000040-s01-00000000"]
    assert record.sessions[0].last_step == 40
    assert record.sessions[0].ended_at is not None
    assert record.sessions[0].recipe.value == {"lr": 0.1, "seed": None}


def test_a_session_is_changed_only_by_fields_and_values_it_can_have(tmp_path: Path, facts: dict[str, Any]) -> None:
    with create_run(tmp_path, "x") as store:
        with pytest.raises(ValueError, match="no session"):
            store.update_session(last_step=1)
        store.begin_session(**facts)
        before = store.dir.run_json.read_bytes()
        with pytest.raises(TypeError, match="lasst_step"):
            store.update_session(lasst_step=1)
        with pytest.raises(TypeError):
            store.update_session(id="s09-00000000")
        with pytest.raises(ValidationError):
            store.update_session(last_step="many")
        with pytest.raises(ValueError, match="running"):
            store.end_session("running")
        with pytest.raises(ValueError, match="already"):
            store.begin_session(**facts)
        assert store.dir.run_json.read_bytes() == before
        store.update_run(notes="new", tags=["t"])
        with pytest.raises(TypeError):
            store.update_run(sessions=[])
    assert read_run(store.dir.path).notes == "new"


def test_a_fork_names_its_parent(tmp_path: Path) -> None:
    parent = Parent(run="r1", session="s01-00000000", checkpoint="step-00000040-s01-00000000", step=40)
    with create_run(tmp_path, "x", parent=parent) as store:
        assert read_run(store.dir.path).parent == parent


def event(kind: str, session: str, ts: float, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, "ts": ts, "run": "r", "session": session, **fields}).encode() + b"\n"


def died(tmp_path: Path, facts: dict[str, Any], log: Any = None) -> tuple[Path, str]:
    """A run whose session stopped without a word."""
    with create_run(tmp_path, "x") as store:
        session = store.begin_session(**facts)
        if log is not None:
            store.dir.log.write_bytes(log(session.id))
    return store.dir.path, session.id


def test_a_dead_session_is_marked_killed_with_the_time_of_its_last_event(tmp_path: Path, facts: dict[str, Any]) -> None:
    ts = AT.timestamp()
    path, _ = died(
        tmp_path,
        facts,
        lambda s: (
            event("step", s, ts - 9, step=436) + event("step", s, ts - 5, step=437) + event("note", s, ts) + b'{"torn'
        ),
    )
    assert read_run(path).sessions[0].status == "running"
    open_run(path).close()
    (session,) = read_run(path).sessions
    assert session.status == "killed"
    assert session.reason == "no end recorded; last event at 2026-11-29T13:40:12Z"
    assert session.ended_at == AT
    assert session.last_step == 437


def test_the_end_of_a_dead_session_is_told_by_lines_that_can_be_true(tmp_path: Path, facts: dict[str, Any]) -> None:
    """A time beyond the calendar, or a step beyond every counter, is damage and must not keep a run from going on."""
    ts = AT.timestamp()
    path, _ = died(
        tmp_path,
        facts,
        lambda s: (
            event("step", s, ts, step=437)
            + event("step", s, 1e308, step=2**63)
            + event("note", s, -1e308)
            + event("note", s, 253402300800.0)
        ),
    )
    open_run(path).close()
    (session,) = read_run(path).sessions
    assert (session.status, session.last_step, session.ended_at) == ("killed", 437, AT)


def test_a_dead_session_without_a_log_is_killed_at_its_start(tmp_path: Path, facts: dict[str, Any]) -> None:
    path, _ = died(tmp_path, facts)
    open_run(path).close()
    (session,) = read_run(path).sessions
    assert (session.status, session.reason) == ("killed", "no end recorded; no event")
    assert session.ended_at == session.started_at


def test_a_session_that_died_between_its_last_line_and_run_json_ended_as_its_line_says(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    ts = AT.timestamp()
    path, _ = died(
        tmp_path,
        facts,
        lambda s: event("step", s, ts, step=7) + event("session_end", s, ts, status="failed", reason="OOM"),
    )
    open_run(path).close()
    (session,) = read_run(path).sessions
    assert (session.status, session.reason, session.last_step) == ("failed", "OOM", 7)


def test_the_tail_is_found_behind_much_that_is_no_step(tmp_path: Path, facts: dict[str, Any]) -> None:
    def log(session: str) -> bytes:
        noise = b"".join(event("note", session, 2000.0 + n, text="x" * 900) for n in range(1500))
        return event("step", "s09-00000009", 1.0, step=999) + event("step", session, 1000.0, step=5) + noise

    path, session = died(tmp_path, facts, log)
    with open_run(path) as store:
        tail = read_tail(store.dir, session)
    assert (tail.last_step, tail.last_event_at, tail.end) == (5, 3499.0, None)


@pytest.mark.parametrize("log", [b"", b"\0" * 100_000, b"\n" * 1000, b"[1]\nnull\n", b"no newline"])
def test_a_log_that_says_nothing_is_no_obstacle(tmp_path: Path, facts: dict[str, Any], log: bytes) -> None:
    path, _ = died(tmp_path, facts, lambda s: log)
    open_run(path).close()
    assert read_run(path).sessions[0].status == "killed"


TRAIN = """
import sys, time
from pathlib import Path
from lineage.runs.store import create_run
from lineage_schemas.run import Environment, Recipe, Source, Start
store = create_run(Path(sys.argv[1]), "x")
store.begin_session(
    recipe=Recipe(value={}, fingerprint="0" * 64), source=Source(), start=Start(kind="fresh"),
    environment=Environment(python="3", implementation="c", platform="l", machine="m"),
)
print(store.dir.path, flush=True)
n = 0
while True:
    n += 1
    store.update_session(last_step=n)
"""


def test_a_run_whose_writer_is_sigkilled_while_it_writes_is_whole_and_free(tmp_path: Path, start_child) -> None:
    for number in range(12):
        child = start_child(TRAIN, tmp_path)
        path = Path(child.stdout.readline().strip())
        with pytest.raises(LockedError, match=str(child.pid)):
            open_run(path) if number == 0 else open_run_now(path)
        while (read_run(path).sessions[0].last_step or 0) < number:
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with open_run(path) as store:
            assert [session.status for session in store.record.sessions] == ["killed"]
        assert sorted(entry.name for entry in path.iterdir()) == ["run.json", "run.lock"]


def open_run_now(path: Path) -> None:
    from lineage.runs.lock import RunLock

    RunLock.acquire(path, retry_s=0)


class Crash:
    """Ends the process before the n-th operation on files, as a power button would; half of a write gets through."""

    NAMES = ("open", "write", "fsync", "close", "replace")

    def __init__(self, at: int) -> None:
        self.at = at
        self.done: list[str] = []
        for name in self.NAMES:
            self.wrap(name, getattr(os, name))

    def wrap(self, name: str, real: Any) -> None:
        def operation(*args: Any, **kwargs: Any) -> Any:
            if len(self.done) == self.at:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                os._exit(77)
            self.done.append(name)
            return real(*args, **kwargs)

        setattr(os, name, operation)


def test_a_crash_before_any_operation_of_a_rewrite_leaves_the_old_run_or_the_new(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    seen = []
    for at in range(100):
        with create_run(tmp_path / str(at), "x") as store:
            store.begin_session(**facts)
            old = store.dir.run_json.read_bytes()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    store.lock._pid = os.getpid()  # the child stands for the writer here; its death frees nothing
                    store.lock._fd = 10_000
                    crash = Crash(at)
                    store.update_session(last_step=41)
                    code = (
                        0
                        if crash.done == ["open", "write", "fsync", "close", "replace", "open", "fsync", "close"]
                        else 2
                    )
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            now = store.dir.run_json.read_bytes()
            assert now == old or read_run(store.dir.path).sessions[0].last_step == 41
            seen.append("old" if now == old else "new")
        with open_run(store.dir.path) as again:
            assert again.record.sessions[0].status == "killed"
        assert not list(store.dir.path.glob("*.tmp")) + list(store.dir.path.glob(".*.tmp")), "leftovers are removed"
        if code != 77:
            break
    assert code == 0
    # Four operations and the rename leave the old file; from the rename on the new one is there.
    assert seen == ["old"] * 5 + ["new"] * 4


def test_a_crash_anywhere_in_making_a_run_leaves_no_half_run(tmp_path: Path) -> None:
    for at in range(100):
        runs = tmp_path / str(at)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                Crash(at)
                create_run(runs, "x", created_at=AT)
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for folder in runs.iterdir():
            try:
                assert read_run(folder).name == "x"
            except NotFoundError:
                assert code == 77
        with create_run(runs, "x", created_at=AT) as store:
            assert read_run(store.dir.path).id == store.record.id
        if code == 0:
            return
    pytest.fail("never came to the end")


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_disk_is_the_callers_to_handle_and_costs_nothing_recorded(
    tmp_path: Path, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, operation: str, code: int
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with create_run(tmp_path, "x") as store:
        store.begin_session(**facts)
        before = store.dir.run_json.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, operation, fail)
            with pytest.raises(OSError) as failed:
                store.update_session(last_step=41)
            assert failed.value.errno == code
        assert store.is_unsaved
        assert store.session.last_step == 41
        assert store.dir.run_json.read_bytes() == before
        assert sorted(path.name for path in store.dir.path.iterdir()) == ["run.json", "run.lock"]
        store.update_session(reason="later")
        assert not store.is_unsaved
    (session,) = read_run(store.dir.path).sessions
    assert (session.last_step, session.reason) == (41, "later")


def test_what_a_refused_write_left_is_written_by_flush_or_close(
    tmp_path: Path, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_run(tmp_path, "x") as store:
        with monkeypatch.context() as patch:
            patch.setattr(fs.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(OSError):
                store.begin_session(**facts)
            with pytest.raises(OSError):
                store.flush()
        store.flush()
        assert len(read_run(store.dir.path).sessions) == 1


def test_fields_of_a_newer_minor_version_survive_every_rewrite(tmp_path: Path, facts: dict[str, Any]) -> None:
    path, _ = died(tmp_path, facts)
    wire = json.loads((path / "run.json").read_text("utf-8"))
    wire["format"]["version"] = "1.9"
    wire["format"]["codename"] = "later"
    wire["mood"] = {"deep": [1, None, 2.5, 2**70]}
    wire["sessions"][0]["weather"] = "rain"
    wire["sessions"][0]["source"]["forge"] = {"a": "b"}
    next(iter(wire["environments"].values()))["fans"] = 4
    (path / "run.json").write_text(json.dumps(wire), "utf-8")
    with open_run(path) as store:
        store.begin_session(**facts)
        store.update_session(last_step=3)
        store.end_session("completed")
        store.update_run(notes="n")
    after = json.loads((path / "run.json").read_text("utf-8"))
    assert after["format"] == wire["format"]
    assert after["mood"] == wire["mood"]
    assert after["sessions"][0]["weather"] == "rain"
    assert after["sessions"][0]["source"]["forge"] == {"a": "b"}
    assert next(iter(after["environments"].values()))["fans"] == 4


def test_a_newer_major_version_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    text = b'{"format": {"name": "lineage-run", "version": "2.0"}, "all": "new"}'
    (tmp_path / "run.json").write_bytes(text)
    for read in (read_run, open_run):
        with pytest.raises(NewerFormatError, match=r"lineage-run version 2\.0"):
            read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "damaged"),
        (b"\0" * 4096, "damaged"),
        (b"[]", "format"),
        (b"null", "format"),
        (b'{"format": 3}', "format"),
        (b'{"format": {"name": "other", "version": "1.0"}}', "'other'"),
        (b'{"format": {"name": "lineage-run", "version": "1.0"}}', "id: Field required; name: .*created_at: "),
        (b"[" * 1_000_000, "damaged"),
        (b'{"format": {"name": "lineage-run", "version": "1.0"}, "x": ' + b"[" * 900 + b"]" * 900 + b"}", "damaged"),
    ],
)
def test_a_damaged_run_json_is_located_and_left_alone(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(FormatError, match=says) as refused:
        open_run(tmp_path)
    assert str(tmp_path / "run.json") in refused.value.where
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_every_cut_of_a_run_json_is_refused(tmp_path: Path, facts: dict[str, Any]) -> None:
    path, _ = died(tmp_path, facts)
    data = (path / "run.json").read_bytes().rstrip()
    for cut in range(0, len(data), 7):
        (path / "run.json").write_bytes(data[:cut])
        with pytest.raises(FormatError):
            read_run(path)


def test_a_folder_without_run_json_is_no_run_and_gets_no_lock_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "missing" / "run.json"):
        with pytest.raises(NotFoundError):
            read_run(path)
        with pytest.raises(NotFoundError):
            open_run(path)
    assert list(tmp_path.iterdir()) == []


def test_a_fifo_in_the_place_of_run_json_does_not_hang_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(FormatError, match="plain file"):
        read_run(tmp_path)


def test_a_forked_child_cannot_write_its_parents_run(tmp_path: Path, facts: dict[str, Any]) -> None:
    with create_run(tmp_path, "x") as store:
        store.begin_session(**facts)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                store.update_session(last_step=666)
            except LockedError as refused:
                code = 0 if refused.pid == os.getppid() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert store.session.last_step is None
    with pytest.raises(LockedError, match="no longer holds"):
        store.update_session(last_step=1)


def test_two_openings_in_one_process_are_refused_as_such(tmp_path: Path) -> None:
    from lineage.runs.lock import RunLock

    with create_run(tmp_path, "x") as store, pytest.raises(LockedError, match=r"this process .* has the run open"):
        RunLock.acquire(store.dir, retry_s=0)


def test_the_written_bytes_are_read_back_as_the_same_record(tmp_path: Path, facts: dict[str, Any]) -> None:
    path, _ = died(tmp_path, facts)
    record = read_run(path)
    assert render_run(record) == (path / "run.json").read_bytes()
    assert (path / "run.json").read_bytes().endswith(b"}\n")
