"""In which state a run is: derived from what it recorded, its lock and its log; never believed from one file alone.

Pure. The state of a run is the state of its last session.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from lineage.runs.lock import LockOwner
from lineage_schemas.run import Run, Session, SessionStatus

State = Literal["running", "stalled", "killed", "completed", "failed", "interrupted", "preempted"]
STATES: Final[tuple[State, ...]] = get_args(State)

MIN_STALL_S: Final = 120.0
STALL_STEPS: Final = 20.0

_Lock = Literal["ours", "free"]
_Log = Literal["fresh", "silent"]

# A session that recorded its own end is believed. One that says `running` is running only while it holds the lock:
# the kernel frees the lock of a killed process at once, so no timeout is needed to see a death. A lock held by a later
# session, or by one still opening the run to resume it, is no sign of life for this one.
_RUNNING: Final[dict[tuple[_Lock, _Log], State]] = {
    ("ours", "fresh"): "running",
    ("ours", "silent"): "stalled",
    ("free", "fresh"): "killed",
    ("free", "silent"): "killed",
}

_UNREADABLE: Final = LockOwner()
"""An owner whose file says nothing: the lock is held, that much is certain, so the last session gets the benefit."""


def stall_after_s(median_step_s: float | None = None) -> float:
    """Seconds without an event after which a live session counts as stalled: twenty median steps, at least 120 s."""
    return max(MIN_STALL_S, STALL_STEPS * median_step_s) if median_step_s is not None else MIN_STALL_S


def session_state(
    session: Session,
    *,
    is_last: bool,
    owner: LockOwner | None,
    last_event_at: float | None,
    now: float,
    stall_s: float = MIN_STALL_S,
    logged_end: SessionStatus | None = None,
) -> State:
    """The state of one session.

    Args:
        session: as recorded in run.json.
        is_last: whether no later session is recorded.
        owner: who holds the run's lock (`lock.probe`), None when it is free.
        last_event_at: Unix seconds of the session's last event; None when it has none, then its start counts.
        now: Unix seconds.
        stall_s: see `stall_after_s`.
        logged_end: status of the session's `session_end` event, where the log has one: a process may die between
            writing that line and run.json.
    """
    if session.status != "running":
        return session.status
    if logged_end is not None and logged_end != "running":
        return logged_end
    is_ours = is_last and owner is not None and (owner.session == session.id or owner == _UNREADABLE)
    quiet_s = now - max(last_event_at or 0.0, session.started_at.timestamp())
    return _RUNNING["ours" if is_ours else "free", "silent" if quiet_s > stall_s else "fresh"]


def run_state(
    run: Run,
    *,
    owner: LockOwner | None,
    last_event_at: float | None = None,
    now: float,
    stall_s: float = MIN_STALL_S,
    logged_end: SessionStatus | None = None,
) -> State:
    """The state of a run: that of its last session. The arguments are those of `session_state`, for that session.

    A run without a session is `running` while somebody holds it, and `killed` (before its first session) after.
    A run whose lock is held by a process that has not begun its session yet is `running` as well.
    """
    last = run.sessions[-1] if run.sessions else None
    if owner is not None and (last is None or (owner.session != last.id and owner != _UNREADABLE)):
        return "running"
    if last is None:
        return "killed"
    return session_state(
        last,
        is_last=True,
        owner=owner,
        last_event_at=last_event_at,
        now=now,
        stall_s=stall_s,
        logged_end=logged_end,
    )
