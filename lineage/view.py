"""`lineage.read`: a run as columns and events, for notebooks, the commands and the screens. Needs no torch.

    view = lineage.read("runs/20261129-134012-tiny-gpt")
    loss = view.series("loss")            # the effective history: every step once
    loss.step, loss.value, loss.session, loss.time, loss.train_time

A view is a snapshot; `refresh` brings it up to date by reading what was appended. It never writes to the run (the
cache of columns apart) and never takes its lock. Not for several threads at once; arrays it handed out stay valid.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from lineage.errors import FormatError, NewerFormatError, NotFoundError, UsageError
from lineage.history.segments import Segment, first_trained, segments
from lineage.layout import RunDir
from lineage.log.columns import Columns
from lineage.log.layout import Floats, Ints
from lineage.log.scan import Damage
from lineage.log.session_columns import Buffer, MetricColumn, SessionColumns
from lineage.runs.lock import LockOwner, probe
from lineage.runs.state import State, run_state, session_state, stall_after_s
from lineage.runs.store import read_run
from lineage_schemas.events import CheckpointSavedEvent, EvalEvent, Event, SessionEndEvent, SessionStartEvent
from lineage_schemas.ids import RUN_ID_PATTERN, SessionId
from lineage_schemas.run import Recipe, Run, Session, SessionStatus, Source, Start

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

USUAL: Final = ("loss", "lr", "grad_norm")
"""Metrics that come first in every list."""

DERIVED: Final = {"tokens_per_s": "tokens", "samples_per_s": "samples", "step_s": "duration_s"}
"""Names that `series` computes from `duration_s` and a counter, unless a metric of that name was logged."""

_UNRECORDED: Final = "unrecorded"


@dataclass(frozen=True)
class Series:
    """One quantity over the steps at which it was logged; all arrays have one length.

    Attributes:
        step: completed steps, as logged.
        value: NaN and infinities are values; steps without a value are not in the series.
        session: ordinal of the session that trained the step, from 1.
        time: Unix seconds, UTC, of the event.
        train_time: seconds of training since the run began, along the history the step stands on: phases, restores
            and gaps are not in it. A fork counts from its own start.
    """

    step: Ints
    value: Floats
    session: Ints
    time: Floats
    train_time: Floats

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Stretch:
    """Rows of a series that one session trained: as `Series`, but nothing is copied, and `session` is one number."""

    step: Ints
    value: Floats
    session: int
    time: Floats
    _trace: _Trace
    _rows: slice | Ints

    def __len__(self) -> int:
        return len(self.step)

    @property
    def train_time(self) -> Floats:
        return self._trace.train_time(self._rows)

    def series(self) -> Series:
        session = np.full(len(self.step), self.session, dtype=np.int64)
        return Series(self.step, self.value, session, self.time, self.train_time)


_Counted: TypeAlias = tuple[SessionId, int, int, int]
"""Of a segment with effective steps: session, first step, how often it went back, last effective step."""


def _is_appended(before: Sequence[_Counted], after: Sequence[_Counted]) -> bool:
    """Whether every effective row of before is still one, in its place."""
    if not before:
        return True
    last = len(before) - 1
    if len(after) <= last or before[:last] != after[:last]:
        return False
    return before[last][:3] == after[last][:3] and after[last][3] >= before[last][3]


@dataclass(frozen=True)
class _Piece:
    """Rows of one session that belong to a history, `lo` to `hi`, or those of `rows` where they are not contiguous."""

    trace: _Trace
    lo: int
    hi: int
    rows: Ints | None = None


class _Trace:
    """A session's columns with what follows from them, kept up by appending."""

    def __init__(self, columns: SessionColumns, ordinal: int) -> None:
        self.columns = columns
        self.ordinal = ordinal
        self.increasing = True
        self.num_rewinds = 0  # how often what was appended began at or before a step that was there
        self._last_attempts: tuple[Buffer[np.int64], Buffer[np.int64]] | None = None  # steps and their rows, by step
        self.last_step: int | None = None
        self.first_steps: list[int] = []  # the first two it logged
        self.base: float = 0.0
        self._relative = Buffer(np.float64)
        self._derived: dict[str, tuple[MetricColumn, int]] = {}  # and of how many rows
        self._checked = 0

    def update(self) -> None:
        step = self.columns.step
        new = step[max(0, self._checked - 1) :]
        if len(step) == self._checked:
            return
        rewound = not bool((np.diff(new) > 0).all()) or bool(new[0] < (self.last_step or 0))
        self.num_rewinds += rewound
        self.increasing = self.increasing and not rewound
        self._keep_last_attempts(step)
        self.last_step = max(self.last_step or 0, int(new.max()))
        if self._checked < 2:
            self.first_steps = step[:2].tolist()
        duration = self.columns.duration_s
        added = np.zeros(len(step) - self._checked) if duration is None else np.nan_to_num(duration[self._checked :])
        before = float(self._relative.array[-1]) if self._checked else 0.0
        with np.errstate(over="ignore"):  # a log may claim any duration
            self._relative.append(before + np.cumsum(added))
        self._checked = len(step)

    def _keep_last_attempts(self, step: Ints) -> None:
        """Of steps that a session logged more than once the last row counts; needed only once it went back."""
        if self.increasing:
            return
        if self._last_attempts is None:
            self._last_attempts = (Buffer(np.int64), Buffer(np.int64))
            begin = 0
        else:
            begin = self._checked
        kept_steps, kept_rows = (buffer.array for buffer in self._last_attempts)
        cut = int(np.searchsorted(kept_steps, int(step[begin:].min())))
        rows = np.concatenate([kept_rows[cut:], np.arange(begin, len(step), dtype=np.int64)])[::-1]
        steps, first = np.unique(step[rows], return_index=True)
        if cut < len(kept_steps):  # what was handed out stays as it was
            self._last_attempts = (
                Buffer(np.int64, kept_steps[:cut].copy()),
                Buffer(np.int64, kept_rows[:cut].copy()),
            )
        self._last_attempts[0].append(steps.astype(np.int64))
        self._last_attempts[1].append(rows[first])

    def train_time(self, rows: Ints | slice) -> Floats:
        return self.base + self._relative.array[rows]

    def derived(self, name: str) -> MetricColumn | None:
        """A name of `DERIVED` computed for every row so far; None where the counters for it were not logged."""
        duration = self.columns.duration_s
        source = self.columns.optional(DERIVED[name]) if name in DERIVED else None
        if duration is None or source is None:
            return None
        column, done = self._derived.get(name, (MetricColumn(), 0))
        if done < len(self.columns):
            duration, source = duration[done:], source[done:]
            known = np.isfinite(source)
            values = source
            if name != "step_s":
                known &= duration > 0
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    values = source / duration
            if known.all():
                column.append(values, None, done, len(values))
            else:
                column.append(values[known], np.flatnonzero(known).astype(np.int64), done, len(values))
            self._derived[name] = (column, len(self.columns))
        return column

    def train_time_at(self, step: int) -> float:
        """Training seconds when `step` was complete; those at the session's start when it is before its first row."""
        relative = self._relative.array
        logged = self.columns.step[: len(relative)]
        if self.increasing:
            count = int(np.searchsorted(logged, step, side="right"))
        else:
            done = np.flatnonzero(logged <= step)
            count = int(done[-1]) + 1 if done.size else 0
        return self.base + (float(relative[count - 1]) if count else 0.0)

    def rows_between(self, after: int, upto: int) -> _Piece:
        """The rows of steps in `(after, upto]`, each step once: the last attempt within the session counts."""
        step = self.columns.step
        if self.increasing:
            lo, hi = np.searchsorted(step, [after, upto], side="right").tolist()
            return _Piece(self, lo, hi)
        if self._last_attempts is None:
            return _Piece(self, 0, 0, np.empty(0, dtype=np.int64))
        kept_steps, kept_rows = (buffer.array for buffer in self._last_attempts)
        lo, hi = np.searchsorted(kept_steps, [after, upto], side="right").tolist()
        return _Piece(self, 0, 0, kept_rows[lo:hi])


def read(path: str | Path, *, cache: bool = True, max_bytes: int | None = None) -> RunView:
    """The run in a folder (or whose run.json or metrics.jsonl this is) as columns and events.

    Args:
        path: a run's folder; from the command line a REF does more (`lineage.runs.index`).
        cache: use and keep parsed columns under the run's `.cache/`.
        max_bytes: read at most about so much of the log now; `RunView.refresh` goes on.

    A missing or damaged run.json is told in `RunView.damage`, and the sessions are then told from the log alone.

    Raises:
        NotFoundError: there is neither a run.json nor a log.
        NewerFormatError: a newer major version wrote one of them.
        LineageError: the log is a link, not a regular file, or may not be read.
    """
    return RunView(path, cache=cache, max_bytes=max_bytes)


class RunView:
    """What a run's files say, read without its lock.

    Attributes:
        dir: paths of the run.
        record: run.json; sessions that only the log knows are added to it.
        segments: which steps each session trained, and which count.
        state: of the run: running, stalled, killed, completed, failed, interrupted or preempted.
        session_states: the same for each session.
        owner: who holds the run's lock, None when it is free.
        history_version: changes when effective rows were replaced; while it stays, they were only appended to.
    """

    def __init__(self, path: str | Path, *, cache: bool = True, max_bytes: int | None = None) -> None:
        folder = Path(path)
        if folder.name in {"run.json", "metrics.jsonl"} and not folder.is_dir():
            folder = folder.parent
        self.dir = RunDir(folder)
        self.owner: LockOwner | None = None
        self.segments: tuple[Segment, ...] = ()
        self.state: State = "killed"
        self.session_states: dict[SessionId, State] = {}
        self.history_version = 0
        self._columns = Columns(self.dir, cache=cache)
        self._stored: Run | None = None
        self._stored_key: tuple[int, ...] | None = None
        self._notes: list[Damage] = []
        self._ids: dict[int | str, SessionId] = {}  # of a session, by id and by ordinal
        self._traces: dict[SessionId, _Trace] = {}
        self._events: list[Event] = []
        self._events_by_kind: dict[str, list[Event]] = {}
        self._ends: dict[str, SessionStatus] = {}
        self._num_looked_for_ends = 0  # lines of the log, steps apart
        self._history: list[_Piece] = []
        self._counted: list[_Counted] = []
        self._rebuilds = 0
        self.record = Run.model_construct(id="", name="", created_at=datetime.fromtimestamp(0, UTC))
        if not folder.is_dir():
            raise NotFoundError("there is no run here", str(folder), "lineage ls shows the runs of a folder")
        self.refresh(max_bytes=max_bytes)
        if not self.dir.log.exists() and not self.dir.run_json.exists():
            raise NotFoundError(
                "there is no run here: neither run.json nor metrics.jsonl",
                str(folder),
                "lineage ls shows the runs of a folder",
            )

    def __repr__(self) -> str:
        return f"<RunView {self.record.id!r} {self.state}, {len(self.sessions)} sessions>"

    # -- reading -----------------------------------------------------------------------------------------------------

    def refresh(self, *, max_bytes: int | None = None, save: bool = True) -> bool:
        """Read what was appended since, and look at the lock; True when anything a caller can see has changed.

        Args:
            max_bytes: stop after about so many bytes of the log; `num_unread_bytes` tells what is left.
            save: keep a long log's parsed columns under `.cache/` for the next reader; else `save_cache` does.

        Raises:
            NewerFormatError, LineageError: as `read`.
        """
        changed = self._columns.refresh(max_bytes=max_bytes, save=save)
        # The record after the log: a session is recorded before its first line is written.
        recorded = self._read_record()
        if self._columns.num_rebuilds != self._rebuilds or len(self._columns.rare) < self._num_looked_for_ends:
            self._rebuilds = self._columns.num_rebuilds
            self._events = []
            self._events_by_kind = {}
            self._ends = {}
            self._num_looked_for_ends = 0
            self._traces = {}
            self.history_version += 1
        if changed or recorded:
            self._derive()
        try:
            owner = probe(self.dir)
        except OSError:
            owner = None
        states = self._find_states(owner)
        moved = (owner, *states) != (self.owner, self.state, self.session_states)
        self.owner = owner
        self.state, self.session_states = states
        return changed or recorded or moved

    def save_cache(self) -> None:
        """Keep the parsed columns for the next reader, after a `refresh` that was told not to.

        Raises:
            LineageError: the log is no longer a file that may be read.
        """
        self._columns.save_cache()

    def _read_record(self) -> bool:
        path = self.dir.run_json
        try:
            status = path.stat()
            key: tuple[int, ...] = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            key = ()
        if key == self._stored_key:
            return False
        self._stored_key = key
        self._notes = []
        try:
            self._stored = read_run(path)
        except NewerFormatError:
            raise
        except (FormatError, NotFoundError, OSError) as error:
            self._stored = None
            self._notes = [Damage(0, 0, f"{_unread(error)}; sessions are told from the log alone", num_lines=0)]
        return True

    def _derive(self) -> None:
        self.record = self._complete(self._stored)
        self._ids = {key: SessionId(s.id) for s in self.record.sessions for key in (s.id, s.ordinal)}
        ordinals = {SessionId(session.id): session.ordinal for session in self.record.sessions}
        for id_, columns in self._columns.sessions.items():
            trace = self._traces.get(id_)
            if trace is None or trace.columns is not columns or trace.ordinal != ordinals[id_]:
                trace = self._traces[id_] = _Trace(columns, ordinals[id_])
            trace.update()
        trained = {id_: t for id_, t in self._traces.items() if t.last_step is not None}
        before = self._counted
        self.segments = segments(
            self.record,
            {id_: trace.last_step for id_, trace in trained.items() if trace.last_step is not None},
            first_steps=self._first_steps(trained),
        )
        self._counted = [
            (
                s.session,
                s.start_step,
                self._traces[s.session].num_rewinds if s.session in self._traces else 0,
                s.effective_to,
            )
            for s in self.segments
            if s.num_effective
        ]
        if not _is_appended(before, self._counted):
            self.history_version += 1
        for segment in self.segments:  # by ordinal: a parent comes before its children
            found = self._traces.get(segment.session)
            parent = self._traces.get(segment.parent) if segment.parent else None
            if found is not None:
                found.base = parent.train_time_at(segment.start_step) if parent is not None else 0.0
        self._history = [
            self._traces[segment.session].rows_between(segment.start_step, segment.effective_to)
            for segment in self.segments
            if segment.num_effective and segment.session in self._traces
        ]

    def _first_steps(self, trained: Mapping[SessionId, _Trace]) -> dict[SessionId, int]:
        begun = {session.id: session.start.step for session in self.record.sessions}
        found = {id_: first_trained(trace.first_steps, begun.get(id_, 0)) for id_, trace in trained.items()}
        return {id_: first for id_, first in found.items() if first is not None}

    def _complete(self, stored: Run | None) -> Run:
        """The record with the sessions that only the log knows."""
        known = {session.id for session in stored.sessions} if stored else set()
        missing = [id_ for id_ in self._columns.sessions if id_ not in known]
        if stored is not None and not missing:
            return stored
        taken = {session.ordinal for session in stored.sessions} if stored else set()
        added = []
        for id_ in missing:
            session = self._imply(id_, taken)
            taken.add(session.ordinal)
            added.append(session)
        if stored is not None:
            sessions = sorted((*stored.sessions, *added), key=lambda session: session.ordinal)
            return stored.model_copy(update={"sessions": sessions})
        return self._imply_run(sorted(added, key=lambda session: session.ordinal))

    def _imply(self, id_: SessionId, taken: set[int]) -> Session:
        """A session as far as its lines tell."""
        columns = self._columns.sessions[id_]
        events = [event for event in self.events() if event.session == id_]
        started = next((event for event in events if isinstance(event, SessionStartEvent)), None)
        ended = next((event for event in reversed(events) if isinstance(event, SessionEndEvent)), None)
        ordinal = started.ordinal if started else int(id_[1 : id_.index("-")])
        if ordinal in taken or ordinal < 1:
            ordinal = max(taken, default=0) + 1
        steps = columns.step
        nothing = hashlib.sha256(b"null").hexdigest()
        return Session(
            id=id_,
            ordinal=ordinal,
            started_at=_moment(columns.first_ts),
            ended_at=_moment(ended.ts) if ended else None,
            status=ended.status if ended else "running",
            reason=ended.reason if ended else None,
            pid=(started.pid if started else None) or 0,
            host=(started.host if started else None) or _UNRECORDED,
            recipe=Recipe(value=None, fingerprint=nothing),
            source=Source(problem=_UNRECORDED),
            environment="0" * 64,
            start=started.start if started else Start(kind="fresh"),
            checkpoints=[event.checkpoint for event in events if isinstance(event, CheckpointSavedEvent)],
            last_step=int(steps.max()) if len(steps) else None,
        )

    def _imply_run(self, sessions: Sequence[Session]) -> Run:
        import re

        folder = self.dir.path.resolve().name
        id_ = self._columns.run or (folder if re.match(RUN_ID_PATTERN, folder) else _UNRECORDED)
        created_at = min((session.started_at for session in sessions), default=_moment(0.0))
        return Run(id=id_, name=id_, created_at=created_at, sessions=list(sessions))

    def _find_states(self, owner: LockOwner | None) -> tuple[State, dict[SessionId, State]]:
        sessions = self.record.sessions
        if not sessions:
            return run_state(self.record, owner=owner, now=time.time()), {}
        now = time.time()
        for line in self._columns.rare[self._num_looked_for_ends :]:
            event = line.event() if line.kind == "session_end" else None
            if isinstance(event, SessionEndEvent):
                self._ends[event.session] = event.status
        self._num_looked_for_ends = len(self._columns.rare)
        ends = self._ends
        states: dict[SessionId, State] = {}
        for session in sessions:
            id_ = SessionId(session.id)
            columns = self._columns.sessions.get(id_)
            states[id_] = session_state(
                session,
                is_last=session is sessions[-1],
                owner=owner,
                last_event_at=columns.last_ts if columns else None,
                now=now,
                stall_s=stall_after_s(_median_step_s(columns)),
                logged_end=ends.get(id_),
            )
        last = SessionId(sessions[-1].id)
        columns = self._columns.sessions.get(last)
        state = run_state(
            self.record,
            owner=owner,
            last_event_at=columns.last_ts if columns else None,
            now=now,
            stall_s=stall_after_s(_median_step_s(columns)),
            logged_end=ends.get(last),
        )
        return state, states

    # -- what is there -----------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> list[Session]:
        """The sessions of the record, by ordinal."""
        return self.record.sessions

    @property
    def damage(self) -> list[Damage]:
        """What of the files could not be read: first what is wrong with a whole file (no lines), then the bad lines."""
        return [*self._notes, *self._lost_log(), *self._columns.damage]

    def _lost_log(self) -> list[Damage]:
        """One note when the record tells of steps and the log of nothing at all: it was deleted, emptied or cut."""
        columns = self._columns
        if columns.sessions or columns.damage or columns.num_unread_bytes > columns.num_torn_bytes:
            return []
        last_step = max((s.last_step for s in self.record.sessions if s.last_step is not None), default=0)
        if not last_step:
            return []
        what = "has no whole line" if columns.size_bytes else "is empty" if self.dir.log.exists() else "is missing"
        return [Damage(0, 0, f"metrics.jsonl {what}, though run.json tells of {last_step:,} steps", num_lines=0)]

    @property
    def num_torn_bytes(self) -> int:
        """Bytes after the last newline of a log nobody writes: a write that a crash cut short.

        0 while a session lives, whose next write may be half there, and while a part of the log is still unread.
        """
        return 0 if self.owner is not None else self._columns.num_torn_bytes

    @property
    def num_unread_bytes(self) -> int:
        """Bytes of the log that `max_bytes` left out; what stands after the last newline is not among them."""
        return self._columns.num_unread_bytes - self._columns.num_torn_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the log when it was last looked at."""
        return self._columns.size_bytes

    @property
    def last_step(self) -> int | None:
        """Last completed step of the effective history; None when no step was logged."""
        return max((s.effective_to for s in self.segments if s.num_effective), default=None)

    @property
    def metrics(self) -> list[str]:
        """Every name that `series` takes: the usual ones, the others as they first came, then derived ones."""
        names = dict.fromkeys(name for columns in self._columns.sessions.values() for name in columns.metrics)
        usual = [name for name in USUAL if name in names]
        derived = [name for name in DERIVED if name not in names and self._is_derivable(name)]
        return [*usual, *(name for name in names if name not in usual), *derived]

    def _is_derivable(self, name: str) -> bool:
        return any(
            columns.duration_s is not None and columns.optional(DERIVED[name]) is not None
            for columns in self._columns.sessions.values()
        )

    @property
    def num_events(self) -> int:
        """How many `events()` there are, without making them; while `history_version` stays, they only get more."""
        return len(self._columns.rare)

    def events(self, kind: str | None = None, session: int | str | None = None) -> list[Event]:
        """Every event but the steps, in order of the log; of one kind, or one session (id or ordinal)."""
        rare = self._columns.rare
        if kind is not None and len(self._events) < len(rare):
            # Of a long log most lines are of other kinds; they are parsed when somebody asks for all.
            wanted = self._id_of(session) if session is not None else None
            return [line.event() for line in rare if line.kind == kind and wanted in (None, line.session)]
        new = [line.event() for line in rare[len(self._events) :]]
        self._events += new
        for event in new:
            self._events_by_kind.setdefault(event.kind, []).append(event)
        chosen = self._id_of(session) if session is not None else None
        if kind is None and chosen is None:
            return list(self._events)
        among = self._events if kind is None else self._events_by_kind.get(kind, [])
        return list(among) if chosen is None else [event for event in among if event.session == chosen]

    def _id_of(self, session: int | str) -> SessionId:
        if session in self._ids:
            return self._ids[session]
        raise NotFoundError(f"this run has no session {session!r}", self.record.id)

    def logged_steps(self, session: SessionId | int | str) -> Ints:
        """Every step a session logged, in order of the log."""
        columns = self._columns.sessions.get(self._id_of(session))
        return columns.step if columns is not None else np.empty(0, np.int64)

    def offsets(self) -> dict[SessionId, list[tuple[int | None, int]]]:
        """Step and byte offset of the lines that are no step, by session, in order of the log."""
        found: dict[SessionId, list[tuple[int | None, int]]] = {}
        for line in self._columns.rare:
            found.setdefault(line.session, []).append((orjson.loads(line.data).get("step"), line.offset))
        return found

    def seen(self, session: SessionId | int | str) -> tuple[float, float]:
        """Unix seconds of a session's first and latest event; NaN for one that logged nothing."""
        columns = self._columns.sessions.get(self._id_of(session))
        return (columns.first_ts, columns.last_ts) if columns is not None else (float("nan"), float("nan"))

    # -- curves ------------------------------------------------------------------------------------------------------

    def series(
        self,
        name: str,
        superseded: bool = False,
        session: int | str | None = None,
        *,
        start: int = 0,
    ) -> Series:
        """A metric, or a derived one, over the effective history: every step once, in order.

        Args:
            name: one of `metrics`.
            superseded: every attempt at every step instead, in order of the log.
            session: only what this session (id or ordinal) trained; all of it, superseded or not.
            start: leave out so many rows at the beginning. While `history_version` stays the same, rows once there
                stay, and a follower that has n of them needs only `start=n`.

        Raises:
            NotFoundError: nothing of this name was logged, or there is no such session.
        """
        return _concatenate(list(self.stretches(name, superseded=superseded, session=session, start=start)))

    def stretches(
        self,
        name: str,
        superseded: bool = False,
        session: int | str | None = None,
        *,
        start: int = 0,
    ) -> Iterator[Stretch]:
        """What `series` gives, session by session and without a copy: for runs of many millions of points.

        Raises:
            NotFoundError: nothing of this name was logged, or there is no such session.
        """
        if name not in self.metrics:
            hint = f"logged are {', '.join(self.metrics) or 'none yet'}"
            raise NotFoundError(f"no metric is called {name!r}", self.record.id, hint)
        for piece in self._pieces(superseded=superseded, session=session):
            part = _cut(piece, name, start)
            if isinstance(part, int):
                start -= part
            else:
                start = 0
                yield part

    def counted(self, name: str, session: int | str | None = None, *, start: int = 0) -> Iterator[tuple[Ints, Floats]]:
        """Steps, and `duration_s`, `tokens` or `samples` of each, NaN where its line had none; session by session.

        These are all rows of the history (or session) that `stretches` goes through: who adds up along a run has to
        know of those that did not count.
        """
        for piece in self._pieces(superseded=False, session=session):
            columns = piece.trace.columns
            rows = slice(piece.lo, min(piece.hi, len(columns))) if piece.rows is None else piece.rows
            step, values = columns.step[rows], columns.optional(name)
            if len(step) <= start:
                start -= len(step)
                continue
            yield step[start:], np.full(len(step) - start, np.nan) if values is None else values[rows][start:]
            start = 0

    def evals(self, name: str = "eval", metric: str = "loss", superseded: bool = False) -> Series:
        """A metric of the evaluations called `name` over the effective history; empty when there are none."""
        events = [
            event
            for event in self.events("eval")
            if isinstance(event, EvalEvent) and event.name == name and metric in event.metrics
        ]
        by_id = {segment.session: segment for segment in self.segments}
        rows = []
        for event in events:
            id_ = SessionId(event.session)
            segment = by_id[id_]
            step = event.step or 0
            first = segment.start_step + 1 if segment.parent is not None else segment.start_step
            if not superseded and not (segment.num_effective and first <= step <= segment.effective_to):
                continue
            trace = self._traces[id_]
            rows.append((step, event.metrics[metric], trace.ordinal, event.ts, trace.train_time_at(step)))
        if not superseded:
            rows.sort(key=lambda row: row[0])
        columns = list(zip(*rows, strict=True)) or [(), (), (), (), ()]
        steps, values, ordinals, times, train_times = columns
        return Series(
            np.array(steps, dtype=np.int64),
            np.array(values, dtype=np.float64),
            np.array(ordinals, dtype=np.int64),
            np.array(times, dtype=np.float64),
            np.array(train_times, dtype=np.float64),
        )

    def _pieces(self, *, superseded: bool, session: int | str | None) -> Iterator[_Piece]:
        if session is not None:
            trace = self._traces.get(self._id_of(session))
            if trace is not None:
                yield _Piece(trace, 0, len(trace.columns))
        elif superseded:
            for trace in self._traces.values():
                yield _Piece(trace, 0, len(trace.columns))
        else:
            yield from self._history

    # -- frames ------------------------------------------------------------------------------------------------------

    def to_polars(
        self,
        superseded: bool = False,
        *,
        session: int | str | None = None,
        metrics: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """A row for each step: step, session, time, train_time, and a column for each of `metrics`.

        Null stands where a step has no value, NaN where NaN was logged.

        Raises:
            UsageError: polars is not installed.
        """
        polars = _optional_module("polars")
        frame: dict[str, Any] = {}
        for name, (values, missing) in self.table(superseded, session=session, metrics=metrics).items():
            column = polars.Series(name, values)
            frame[name] = (
                column if missing is None else column.zip_with(polars.Series(~missing), column.clear(len(column)))
            )
        found: pl.DataFrame = polars.DataFrame(frame)
        return found

    def to_pandas(
        self,
        superseded: bool = False,
        *,
        session: int | str | None = None,
        metrics: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """As `to_polars`; where a step has no value stands NaN, as is pandas' custom.

        Raises:
            UsageError: pandas is not installed.
        """
        pandas = _optional_module("pandas")
        table = self.table(superseded, session=session, metrics=metrics)
        found: pd.DataFrame = pandas.DataFrame({name: values for name, (values, _) in table.items()})
        return found

    def table(
        self,
        superseded: bool = False,
        *,
        session: int | str | None = None,
        metrics: Sequence[str] | None = None,
    ) -> dict[str, tuple[Ints | Floats, npt.NDArray[np.bool_] | None]]:
        """A row for each step: columns of equal length, each with a mask of the rows without a value (None: no such).

        Args:
            superseded: a row for every attempt at a step, in order of the log.
            session: only what this session (id or ordinal) trained; all of it.
            metrics: these, in this order; None: all of `RunView.metrics`.

        The first columns are step, session, time and train_time; a metric that is called like one of them, or like a
        metric before it, has `metric.` before its name.

        Raises:
            NotFoundError: there is no such session or metric.
        """
        chosen = list(dict.fromkeys(self.metrics if metrics is None else metrics))
        for name in chosen:
            if name not in self.metrics:
                raise NotFoundError(f"no metric is called {name!r}", self.record.id)
        pieces = [
            piece if piece.rows is not None else _Piece(piece.trace, piece.lo, piece.hi, np.arange(piece.lo, piece.hi))
            for piece in self._pieces(superseded=superseded, session=session)
        ]

        def joined(parts: list[Any], dtype: type) -> Any:
            return np.concatenate(parts) if parts else np.empty(0, dtype)

        table: dict[str, tuple[Any, npt.NDArray[np.bool_] | None]] = {
            "step": (joined([p.trace.columns.step[p.rows] for p in pieces], np.int64), None),
            "session": (
                joined([np.full(len(p.rows), p.trace.ordinal) for p in pieces if p.rows is not None], np.int64),
                None,
            ),
            "time": (joined([p.trace.columns.ts[p.rows] for p in pieces], np.float64), None),
            "train_time": (
                joined([p.trace.train_time(p.rows) for p in pieces if p.rows is not None], np.float64),
                None,
            ),
        }
        for name in chosen:
            values, missing = [], []
            for piece in pieces:
                found, rows = _values(piece.trace, name)
                full = np.full(len(piece.trace.columns), np.nan)
                absent = np.ones(len(full), dtype=np.bool_)
                where = slice(None) if rows is None else rows
                full[where], absent[where] = found, False
                values.append(full[piece.rows])
                missing.append(absent[piece.rows])
            mask = joined(missing, np.bool_)
            while name in table:
                name = f"metric.{name}"  # noqa: PLW2901  # the column's, from here on
            table[name] = (joined(values, np.float64), mask if mask.any() else None)
        return table


def _unread(error: FormatError | NotFoundError | OSError) -> str:
    """Why there is no record, with the name of its file once."""
    if isinstance(error, NotFoundError):
        return "run.json is missing"
    if isinstance(error, OSError):
        return f"run.json cannot be read: {error.strerror or error}"
    return error.what if error.what.startswith("run.json") else f"run.json: {error.what}"


def _moment(ts: float) -> datetime:
    """A time of a log as UTC; one that no calendar has becomes the epoch."""
    try:
        return datetime.fromtimestamp(ts, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _median_step_s(columns: SessionColumns | None) -> float | None:
    duration = columns.duration_s if columns else None
    if duration is None or not len(duration):
        return None
    recent = duration[-101:]
    recent = recent[np.isfinite(recent)]
    return float(np.median(recent)) if recent.size else None


def _values(trace: _Trace, name: str) -> tuple[Floats, Ints | None]:
    """Values of a metric in one session and the rows they belong to; None: every row."""
    column = trace.columns.metrics.get(name) or trace.derived(name)
    if column is None:
        return np.empty(0), np.empty(0, np.int64)
    return column.values, column.rows  # noqa: PD011  # no pandas here


def _cut(piece: _Piece, name: str, start: int) -> Stretch | int:
    """The values of one piece, from its `start`-th on; when it has no more than that, how many it has."""
    columns = piece.trace.columns
    values, rows = _values(piece.trace, name)
    if piece.rows is None:
        lo, hi = piece.lo, min(piece.hi, len(columns))
        if rows is not None:
            lo, hi = np.searchsorted(rows, [lo, hi]).tolist()
        count = hi - lo
        at: slice | Ints = slice(lo + start, hi)
    else:
        at = piece.rows if rows is None else np.searchsorted(rows, piece.rows[np.isin(piece.rows, rows)])
        count = len(at)
        at = at[start:]
    if count <= start:
        return count
    from_rows: slice | Ints = at if rows is None else rows[at]
    return Stretch(
        columns.step[from_rows], values[at], piece.trace.ordinal, columns.ts[from_rows], piece.trace, from_rows
    )


def _concatenate(parts: list[Stretch]) -> Series:
    if len(parts) == 1:
        return parts[0].series()
    if not parts:
        return Series(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.empty(0), np.empty(0))
    return Series(
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.repeat(np.array([part.session for part in parts], dtype=np.int64), [len(part) for part in parts]),
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.train_time for part in parts]),
    )


def _optional_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed", hint=f"pip install {name}, or use view.series") from error
