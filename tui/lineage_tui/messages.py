"""What the reading thread says to the app: whole, unchanging pictures of a run, and why one could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from lineage_tui.settings import DEFAULT_SMOOTHING

if TYPE_CHECKING:
    from lineage.history.audit import ResumeAudit
    from lineage.history.segments import Segment
    from lineage_schemas.events import Event
    from lineage_schemas.run import Run, Session
    from lineage_tui.folder import RunSummary
    from lineage_tui.plot.fold import Memo
    from lineage_tui.plot.model import ChartModel


@dataclass(frozen=True)
class Problem:
    """Something a person should see in a panel: what, where, what next."""

    what: str
    where: str = ""
    hint: str = ""

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> Problem:
        """A deliberate error in its own words; anything else by its class and first line, never a traceback."""
        from lineage.errors import LineageError

        if isinstance(error, LineageError):
            return cls(error.what, error.where or where, error.hint)
        if isinstance(error, OSError):
            return cls(f"{error.strerror or type(error).__name__}", str(error.filename or where))
        first = str(error).strip().splitlines()
        return cls(
            f"{type(error).__name__}: {first[0] if first else 'no message'}", where, "lineage show reads the same run"
        )


@dataclass(frozen=True)
class Wanted:
    """What the curves need: names of metrics, what x is, and how long curves are to be smoothed ahead."""

    names: tuple[str, ...] = ()
    x: str = "step"
    smoothing: float = DEFAULT_SMOOTHING


@dataclass(frozen=True)
class Snapshot:
    """A run as it was at one moment; made by the reading thread, never changed.

    Attributes:
        key: path of the run's folder.
        events: everything but `step` lines, in the order of the log.
        models: a chart for each wanted metric; empty while `loading`.
        version: counts up with each snapshot of this run.
        resumes: the verdict on each session that carried on, compared anew from the log.
        num_skipped: optimizer steps that FP16 scaling skipped.
        last_seen: Unix seconds of the last line of each session.
        num_bytes, num_unread: size of the log, and how much of it this picture does not know yet.
        torn: the line that a crash left half written, of a run that nobody writes.
        warm: long curves of the models, smoothed as wanted; whoever draws takes it and nobody else may touch it.
        live: a process holds the run's lock.
    """

    key: str
    record: Run
    state: str
    session_states: Mapping[str, str]
    segments: tuple[Segment, ...]
    damage: tuple[Problem, ...]
    metrics: tuple[str, ...]
    events: tuple[Event, ...]
    wanted: Wanted
    models: Mapping[str, ChartModel]
    last_step: int | None
    resumes: Mapping[str, ResumeAudit] = field(default_factory=dict)
    num_bytes: int = 0
    num_unread: int = 0
    torn: Problem | None = None
    num_skipped: int = 0
    last_seen: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    read_at: float = 0.0
    warm: Memo | None = field(default=None, compare=False)

    @property
    def live(self) -> bool:
        return self.state in {"running", "stalled"}

    def segment(self, session: str) -> Segment | None:
        return next((segment for segment in self.segments if segment.session == session), None)

    def session_at(self, step: float) -> Session | None:
        """The session whose effective steps hold `step`; else the last one that reached it."""
        from math import ceil

        at = ceil(step)
        by_id = {session.id: session for session in self.record.sessions}
        reached: Session | None = None
        for segment in self.segments:
            if segment.start_step < at <= segment.effective_to:
                return by_id.get(segment.session)
            if segment.start_step <= at <= (segment.last_step or segment.start_step):
                reached = by_id.get(segment.session)
        return reached or (self.record.sessions[-1] if self.record.sessions and at > 0 else None)


class SnapshotReady(Message):
    """A newer picture of a run."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class ReadProgress(Message):
    """How far a long log was read since the last picture, in bytes."""

    def __init__(self, key: str, num_unread: int, num_bytes: int) -> None:
        super().__init__()
        self.key = key
        self.num_unread = num_unread
        self.num_bytes = num_bytes


class ReadFailed(Message):
    """A run could not be read, now; the follower goes on trying."""

    def __init__(self, key: str, problem: Problem, *, gone: bool = False) -> None:
        super().__init__()
        self.key = key
        self.problem = problem
        self.gone = gone


class Answer(Message):
    """What a job in the reading thread came to."""

    def __init__(self, key: str, topic: str, value: Any, problem: Problem | None = None) -> None:
        super().__init__()
        self.key = key
        self.topic = topic
        self.value = value
        self.problem = problem


class VerifyProgress(Message):
    """How far a verification has come, in bytes hashed."""

    def __init__(self, key: str, done: int, total: int) -> None:
        super().__init__()
        self.key = key
        self.done = done
        self.total = total


@dataclass(frozen=True)
class Folder:
    """The runs of a folder, and those of its entries that are none."""

    path: Path
    runs: tuple[RunSummary, ...]
    problems: tuple[Problem, ...] = ()


class FolderRead(Message):
    """A newer picture of a folder of runs."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.folder = folder


class FolderFailed(Message):
    """The folder of runs could not be read, now."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
