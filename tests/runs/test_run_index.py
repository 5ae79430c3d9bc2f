"""What a person types finds one run, or says what it could have meant."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lineage.errors import FormatError, LockedError, NewerFormatError, NotFoundError, RefError
from lineage.runs.index import list_runs, newest_unfinished, resolve
from lineage.runs.store import create_run, open_run, read_run

AT = datetime(2026, 11, 29, 13, 40, 12, tzinfo=UTC)


@pytest.fixture
def make(tmp_path: Path, facts: dict[str, Any]) -> Any:
    """A run of a name, made `age` minutes after the first, with one session for each status."""

    def make(name: str, *statuses: str, age: int = 0) -> str:
        with create_run(tmp_path / "runs", name, created_at=AT + timedelta(minutes=age)) as store:
            path = store.dir.path
        for status in statuses:
            with open_run(path) as store:
                store.begin_session(**facts)
                if status != "running":
                    store.end_session(status)
        return path.name

    return make


def test_a_run_is_found_by_path_id_name_and_ends_of_its_id(tmp_path: Path, make: Any, monkeypatch: Any) -> None:
    runs = tmp_path / "runs"
    one, two = make("Tiny GPT", "completed"), make("other", "completed", age=1)
    monkeypatch.chdir(tmp_path)
    for text in (
        one,
        "Tiny GPT",
        "20261129-134012",
        "tiny-gpt",
        "-gpt",
        f"runs/{one}",
        f"{runs}/{one}/",
        f"runs/{one}/run.json",
    ):
        found = resolve(text, runs)
        assert found.run_dir.path.resolve() == runs / one
        assert found.record == read_run(runs / one)
        assert found.session is None
    assert resolve("other", runs).run_dir.path.name == two
    monkeypatch.chdir(runs / one)
    assert resolve(".").record.id == one


def test_an_ambiguous_text_lists_what_it_could_mean(tmp_path: Path, make: Any) -> None:
    one, two = make("x", "completed"), make("x", "completed", age=1)
    for text in ("x", "2026"):
        with pytest.raises(RefError, match="fits 2 runs") as refused:
            resolve(text, tmp_path / "runs")
        assert one in refused.value.hint
        assert two in refused.value.hint
    # The exact id of one is the beginning of another.
    three = make("x")
    assert three == f"{one}-2"
    assert resolve(one, tmp_path / "runs").record.id == one


def test_what_is_not_there_is_said_with_what_comes_close(tmp_path: Path, make: Any) -> None:
    one = make("tiny-gpt", "completed")
    for text, hint in (("tny-gtp", "tiny-gpt"), (one[:-1] + "d", one), ("zzz", one)):
        with pytest.raises(NotFoundError, match=text) as missing:
            resolve(text, tmp_path / "runs")
        assert hint in missing.value.hint
    with pytest.raises(NotFoundError, match="zzz"):
        resolve("zzz", tmp_path / "missing")


def test_a_session_is_found_by_ordinal_last_and_id(tmp_path: Path, make: Any) -> None:
    runs = tmp_path / "runs"
    one = make("x", "running", "preempted", "completed")
    sessions = read_run(runs / one).sessions
    assert [session.status for session in sessions] == ["killed", "preempted", "completed"]
    for text, ordinal in ((f"{one}@1", 1), ("x@2", 2), ("x@last", 3), (f"x@{sessions[1].id}", 2), (sessions[2].id, 3)):
        found = resolve(text, runs)
        assert (found.record.id, found.session.ordinal) == (one, ordinal)
    with pytest.raises(NotFoundError) as missing:
        resolve("x@9", runs)
    assert "@1, @2, @3" in missing.value.hint
    with pytest.raises(NotFoundError):
        resolve("x@s01-00000000", runs)
    with pytest.raises(NotFoundError):
        resolve("s01-00000000", runs)
    two = make("empty", age=1)
    with pytest.raises(NotFoundError, match="last"):
        resolve(f"{two}@last", runs)


def test_a_session_id_that_stands_in_two_runs_is_ambiguous(tmp_path: Path, make: Any) -> None:
    runs = tmp_path / "runs"
    one = make("x", "completed")
    (runs / "copy").mkdir()
    (runs / "copy" / "run.json").write_bytes((runs / one / "run.json").read_bytes())
    session = read_run(runs / one).sessions[0].id
    with pytest.raises(RefError, match="2 runs"):
        resolve(session, runs)
    assert resolve(f"copy@{session}", runs).run_dir.path.name == "copy"


def test_a_folder_lists_its_runs_newest_first_and_broken_ones_last(tmp_path: Path, make: Any) -> None:
    runs = tmp_path / "runs"
    ids = [make("a", "completed"), make("b", age=2), make("c", "running", age=1)]
    (runs / "notes").mkdir()
    (runs / "file").write_text("x")
    (runs / ".hidden").mkdir()
    for name, text in {"bad": b"{", "new": b'{"format": {"name": "lineage-run", "version": "9.0"}}'}.items():
        (runs / name).mkdir()
        (runs / name / "run.json").write_bytes(text)
    (runs / "odd").mkdir()
    os.mkfifo(runs / "odd" / "run.json")
    (runs / "loop").symlink_to("loop")
    before = sorted(str(path) for path in runs.rglob("*"))
    entries = list_runs(runs)
    assert [entry.dir.path.name for entry in entries] == [ids[1], ids[2], ids[0], "odd", "new", "bad"]
    assert [entry.record.name for entry in entries[:3]] == ["b", "c", "a"]
    assert [type(entry.problem) for entry in entries[3:]] == [FormatError, NewerFormatError, FormatError]
    assert before == sorted(str(path) for path in runs.rglob("*"))
    with pytest.raises(NotFoundError):
        list_runs(tmp_path / "missing")
    with pytest.raises(NewerFormatError):
        resolve("new", runs)


def test_the_newest_unfinished_run_of_a_name_is_the_one_to_go_on_with(tmp_path: Path, make: Any) -> None:
    runs = tmp_path / "runs"
    assert newest_unfinished(runs, "x") is None
    make("x", "failed")
    older = make("x", "running", "preempted", age=1)
    make("x", "running", "completed", age=2)
    make("y", "running", age=3)
    assert newest_unfinished(runs, "x").dir.path.name == older
    assert newest_unfinished(runs, "nobody") is None
    newest = make("x", "interrupted", "running", age=4)
    assert newest_unfinished(runs, "x").dir.path.name == newest


def test_a_run_whose_end_only_its_log_has_is_finished(tmp_path: Path, make: Any) -> None:
    runs = tmp_path / "runs"
    one = make("x", "running")
    session = read_run(runs / one).sessions[0].id
    end = {"kind": "session_end", "ts": 1.0, "run": one, "session": session, "status": "completed"}
    (runs / one / "metrics.jsonl").write_text(json.dumps(end) + "\n")
    assert newest_unfinished(runs, "x") is None


def test_a_live_run_is_found_and_refuses_to_be_opened(tmp_path: Path, facts: dict[str, Any]) -> None:
    with create_run(tmp_path, "x") as store:
        store.begin_session(**facts)
        found = newest_unfinished(tmp_path, "x")
        assert found.record.id == store.record.id
        with pytest.raises(LockedError):
            open_run(found.dir.path)


def test_a_newer_run_that_cannot_be_read_is_not_quietly_abandoned(tmp_path: Path, make: Any) -> None:
    runs = tmp_path / "runs"
    make("x", "running")
    broken, unfinished = make("x", "running", age=1), make("other-x-files", "running", age=5)
    (runs / broken / "run.json").write_bytes(b"{")
    (runs / unfinished / "run.json").write_bytes(b"{")
    with pytest.raises(FormatError, match="damaged"):
        newest_unfinished(runs, "x")
    assert newest_unfinished(runs, "elsewhere") is None
    newer = make("x", "running", age=2)
    assert newest_unfinished(runs, "x").dir.path.name == newer
