"""A run at a glance: its state, last step and last loss, from run.json, the lock and the end of the log.

Cheap enough for a thousand runs: no columns, no numpy, and of the log only its last lines.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import orjson

from lineage.errors import LineageError
from lineage.layout import RunDir
from lineage.log.reader import open_log
from lineage.runs.lock import LockOwner, probe
from lineage.runs.state import State, run_state, session_state, stall_after_s
from lineage.runs.store import read_tail
from lineage_schemas.ids import MAX_STEP, SessionId
from lineage_schemas.run import Run, Session, SessionStatus

_FIRST_LOOK: Final = 16 << 10
_LAST_LOOK: Final = 4 << 20
_NONFINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
Standing = Literal["nothing_restored", "diverged", "unproven", "not_compared", "within_tolerance", "exact"]
_WORST_FIRST: Final[tuple[Standing, ...]] = get_args(Standing)
_ENDS: Final[dict[str, SessionStatus]] = {
    "completed": "completed",
    "failed": "failed",
    "interrupted": "interrupted",
    "preempted": "preempted",
}


@dataclass(frozen=True)
class LogEnd:
    """What the last lines of a log say, whoever wrote them.

    Attributes:
        last_step: of its last `step` line, None when the part read has none.
        last_loss: the last `loss` logged, NaN and infinities included.
        last_event_at: Unix seconds of its last event.
        session: who wrote that.
        ended: status of the `session_end` that is the last event, None when it is another.
        step_s: median training time of the steps in the part read.
    """

    last_step: int | None = None
    last_loss: float | None = None
    last_event_at: float | None = None
    session: str | None = None
    ended: SessionStatus | None = None
    step_s: float | None = None


@dataclass(frozen=True)
class Glance:
    """A run as one line of a list."""

    state: State
    num_sessions: int
    last_step: int | None
    last_loss: float | None
    last_event_at: float


def glance(run_dir: RunDir, record: Run, *, now: float | None = None) -> Glance:
    """What a list of runs shows; an unreadable log or lock tells nothing and is no error."""
    end = read_end(run_dir)
    now = time.time() if now is None else now
    last = record.sessions[-1] if record.sessions else None
    is_last = last is not None and end.session == last.id
    state = run_state(
        record,
        owner=owner_of(run_dir),
        last_event_at=end.last_event_at if is_last else None,
        now=now,
        stall_s=stall_after_s(end.step_s),
        logged_end=end.ended if is_last else None,
    )
    recorded = [session.last_step for session in record.sessions if session.last_step is not None]
    ended_at = last.ended_at or last.started_at if last else record.created_at
    return Glance(
        state=state,
        num_sessions=len(record.sessions),
        last_step=end.last_step if end.last_step is not None else (recorded[-1] if recorded else None),
        last_loss=end.last_loss,
        last_event_at=end.last_event_at or ended_at.timestamp(),
    )


def session_glances(run_dir: RunDir, record: Run) -> dict[SessionId, tuple[State, int | None]]:
    """State and last completed step of every session.

    Of a session that recorded its end its own words count; of one that says it runs, the end of the log.
    """
    owner = owner_of(run_dir)
    now = time.time()
    found: dict[SessionId, tuple[State, int | None]] = {}
    for session in record.sessions:
        last_step = session.last_step
        last_event_at, ended = None, None
        if session.status == "running":
            tail = read_tail(run_dir, session.id)
            last_step = last_step if tail.last_step is None else tail.last_step
            last_event_at, ended = tail.last_event_at, tail.end[0] if tail.end else None
        state = session_state(
            session,
            is_last=session is record.sessions[-1],
            owner=owner,
            last_event_at=last_event_at,
            now=now,
            logged_end=ended,
        )
        found[SessionId(session.id)] = (state, last_step)
    return found


def owner_of(run_dir: RunDir) -> LockOwner | None:
    """Who writes the run; None also when the lock cannot be looked at."""
    try:
        return probe(run_dir)
    except OSError:
        return None


def standing(record: Run) -> tuple[Standing, Session] | None:
    """The worst of what the sessions of a run recorded of their continuations, and the session it is of.

    Worst first: a session that went on at a later step without any checkpoint, `diverged`, `unproven`, one that was
    resumed and not compared (yet), `within_tolerance`, `exact`. None where no session went on from another. Of two
    alike the later. Read from run.json alone; `lineage audit` compares the steps themselves.
    """
    found: list[tuple[Standing, Session]] = []
    for number, session in enumerate(sorted(record.sessions, key=lambda one: one.ordinal)):
        if session.continuation is not None:
            found.append((session.continuation.verdict, session))
        elif session.start.kind != "fresh":
            found.append(("not_compared", session))
        elif number and session.start.step:
            found.append(("nothing_restored", session))
    return min(reversed(found), key=lambda one: _WORST_FIRST.index(one[0]), default=None)


def read_end(run_dir: RunDir) -> LogEnd:
    """What the last lines of metrics.jsonl say.

    Reads backwards, at most 4 MiB, until a step with a loss was found. Torn and damaged lines are passed over: they
    are the log reader's to report.
    """
    try:
        fd = open_log(run_dir.log)
    except LineageError:
        return LogEnd()
    try:
        size = os.fstat(fd).st_size
        look = _FIRST_LOOK
        while True:
            start = max(0, size - look)
            data = os.pread(fd, size - start, start)
            end = _scan_end(data if start == 0 else data[data.find(b"\n") + 1 :])
            if (end.last_step is not None and end.last_loss is not None) or start == 0 or look >= _LAST_LOOK:
                return end
            look *= 16
    except OSError:
        return LogEnd()
    finally:
        os.close(fd)


def _scan_end(data: bytes) -> LogEnd:
    last_step: int | None = None
    last_event_at: float | None = None
    session: str | None = None
    ended: SessionStatus | None = None
    durations: list[float] = []
    for line in reversed(data[: data.rfind(b"\n") + 1].split(b"\n")):
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(fields, dict):
            continue
        ts, kind = fields.get("ts"), fields.get("kind")
        if last_event_at is None and isinstance(ts, int | float):
            last_event_at = float(ts)
            session = fields.get("session") if isinstance(fields.get("session"), str) else None
            ended = _ENDS.get(str(fields.get("status"))) if kind == "session_end" else None
        if kind != "step":
            continue
        if last_step is None and type(step := fields.get("step")) is int and 0 < step <= MAX_STEP:
            last_step = step  # beyond it the line is damage
        if isinstance(fields.get("duration_s"), int | float) and len(durations) < 100:
            durations.append(float(fields["duration_s"]))
        loss = _loss_of(fields)
        if loss is not None and last_step is not None:
            return LogEnd(last_step, loss, last_event_at, session, ended, _median(durations))
    return LogEnd(last_step, None, last_event_at, session, ended, _median(durations))


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _loss_of(fields: dict[str, Any]) -> float | None:
    metrics, names = fields.get("metrics"), fields.get("nonfinite")
    if not isinstance(metrics, dict) or "loss" not in metrics:
        return None
    loss = metrics["loss"]
    if loss is None:
        which = names.get("loss") if isinstance(names, dict) else None
        return _NONFINITE.get(which, math.nan) if isinstance(which, str) else math.nan
    return float(loss) if type(loss) in {int, float} else None
