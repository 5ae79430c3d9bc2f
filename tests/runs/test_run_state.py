"""The state of a run is derived from its record, its lock and its log, and right at once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from lineage.runs.lock import LockOwner, probe
from lineage.runs.state import STATES, run_state, session_state, stall_after_s
from lineage.runs.store import read_run
from lineage_schemas.run import Run, Session, SessionStatus

AT = datetime(2026, 11, 29, tzinfo=UTC)
T0 = AT.timestamp()
ID, LATER = "s01-00000001", "s02-00000002"


@pytest.fixture
def session(facts: dict[str, Any]) -> Session:
    return Session(
        id=ID, ordinal=1, started_at=AT, pid=1, host="h", **{k: v for k, v in facts.items() if k != "environment"},
        environment="0" * 64,
    )  # fmt: skip


OURS, LATER_OWNER, OPENING, UNREADABLE = (
    LockOwner(7, "h", ID), LockOwner(7, "h", LATER), LockOwner(7, "h", None), LockOwner(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "is_last", "quiet_s", "state"),
    [
        (OURS, True, 0, "running"),
        (OURS, True, 121, "stalled"),
        (UNREADABLE, True, 0, "running"),
        (UNREADABLE, True, 121, "stalled"),
        (UNREADABLE, False, 0, "killed"),
        (OURS, False, 0, "killed"),
        (LATER_OWNER, True, 0, "killed"),
        (LATER_OWNER, False, 0, "killed"),
        (OPENING, True, 0, "killed"),
        (None, True, 0, "killed"),
        (None, True, 9999, "killed"),
    ],
)
def test_a_session_without_an_end_is_alive_only_while_it_holds_the_lock(
    session: Session, owner: LockOwner | None, is_last: bool, quiet_s: float, state: str
) -> None:
    found = session_state(session, is_last=is_last, owner=owner, last_event_at=T0 + 5, now=T0 + 5 + quiet_s)
    assert found == state


@pytest.mark.parametrize("status", [status for status in get_args(SessionStatus) if status != "running"])
def test_a_recorded_end_is_believed_whatever_the_lock_says(session: Session, status: SessionStatus) -> None:
    ended = session.model_copy(update={"status": status})
    for owner, is_last, logged in itertools.product(
        (None, OURS, LATER_OWNER, UNREADABLE), (True, False), (None, "failed")
    ):
        found = session_state(ended, is_last=is_last, owner=owner, last_event_at=None, now=T0, logged_end=logged)
        assert found == status
    assert status in STATES


def test_an_end_that_only_the_log_has_is_believed(session: Session) -> None:
    found = session_state(session, is_last=True, owner=None, last_event_at=T0, now=T0, logged_end="completed")
    assert found == "completed"


def test_a_session_that_has_not_logged_yet_stalls_from_its_start(session: Session) -> None:
    for quiet_s, state in ((119, "running"), (121, "stalled")):
        assert session_state(session, is_last=True, owner=OURS, last_event_at=None, now=T0 + quiet_s) == state


def test_slow_steps_are_no_stall() -> None:
    assert stall_after_s() == stall_after_s(0.1) == stall_after_s(6) == 120
    assert stall_after_s(60) == 1200


def test_a_run_has_the_state_of_its_last_session(session: Session) -> None:
    def state(*sessions: Session, owner: LockOwner | None) -> str:
        return run_state(Run(id="r", name="r", created_at=AT, sessions=list(sessions)), owner=owner, now=T0)

    dead = session.model_copy(update={"status": "killed"})
    later = session.model_copy(update={"id": LATER, "ordinal": 2})
    done = later.model_copy(update={"status": "completed"})
    assert state(dead, later, owner=LATER_OWNER) == "running"
    assert state(dead, later, owner=None) == "killed"
    assert state(dead, done, owner=None) == "completed"
    assert state(dead, done, owner=LATER_OWNER) == "completed"
    # Somebody holds the run to go on with it, and has not begun a session yet.
    assert state(dead, done, owner=OPENING) == "running"
    assert state(session, owner=LATER_OWNER) == "running"
    assert state(owner=OPENING) == "running"
    assert state(owner=None) == "killed"


TRAIN = """
import sys
from lineage.runs.store import create_run
from lineage_schemas.run import Environment, Recipe, Source, Start
store = create_run(sys.argv[1], "x")
store.begin_session(
    recipe=Recipe(value={}, fingerprint="0" * 64), source=Source(), start=Start(kind="fresh"),
    environment=Environment(python="3", implementation="c", platform="l", machine="m"),
)
print(store.dir.path, flush=True)
sys.stdin.readline()
if sys.argv[2] == "end":
    store.end_session("completed")
    store.close()
"""


@pytest.mark.parametrize("how", ["kill", "exit", "end"])
def test_a_real_run_changes_its_state_at_the_instant_its_writer_leaves(tmp_path: Path, start_child, how: str) -> None:
    child = start_child(TRAIN, tmp_path, how)
    path = Path(child.stdout.readline().strip())

    def state() -> str:
        return run_state(read_run(path), owner=probe(path), now=read_run(path).sessions[0].started_at.timestamp() + 1)

    assert state() == "running"
    if how == "kill":
        child.kill()
    else:
        child.stdin.write("\n")
        child.stdin.flush()
    child.wait()
    assert state() == ("completed" if how == "end" else "killed")
