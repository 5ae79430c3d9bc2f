"""The only threads that read: one per run, one for the folder of runs.

A follower owns its `RunView`; nobody else touches it. It reads what was appended, makes a whole picture, posts it, and
waits. Other work that needs the view (explain, diff) comes as a job into the same thread. Polling, not inotify: runs
live on network file systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lineage.errors import LineageError
from lineage_tui.messages import (
    Answer,
    FolderFailed,
    FolderRead,
    Problem,
    ReadFailed,
    ReadProgress,
    Snapshot,
    SnapshotReady,
    VerifyProgress,
    Wanted,
)

if TYPE_CHECKING:
    from textual.message import Message
    from textual.worker import Worker

    from lineage.history.audit import ResumeAudit
    from lineage.view import RunView
    from lineage_schemas.events import Event
    from lineage_tui.plot.fold import Memo
    from lineage_tui.plot.model import ChartModel

RETRY_S: Final = 1.0
IDLE_S: Final = 1.0
"""A run that nobody writes may be resumed: look once a second."""
LEISURE: Final = 15
"""A picture that takes long to make is followed by so many times its time of rest."""
FOLDER_S: Final = 2.0
PROGRESS_S: Final = 0.1
MAX_COMPARED: Final = 200_000
"""More lost steps than this are not compared again; the verdict recorded while they were trained stands."""
WARM_FROM: Final = 50_000
"""Samples of a curve, or new samples of it, that are smoothed by the reading thread rather than when drawn."""
FIRST_BYTES: Final = 4 * 1024 * 1024
"""So much of a log is read before the first picture: well under a second."""
PIECE_BYTES: Final = 16 * 1024 * 1024
"""So much of a long log is read between two looks at the clock."""
DRAW_S: Final = 0.05
"""The first whole picture is drawn before anything else is worked out: both threads share one interpreter."""
READING: Final = 6
"""A picture of a log that is still being read is followed by so many times its time of reading."""


class RunFollower:
    """Reads one run until told to stop.

    Args:
        path: the run's folder.
        post: takes messages; called from the reading thread, so it must be thread-safe.
        interval_s: least time between two pictures of a run that grows.
        wanted: what the curves need from the first picture on; no names mean the default ones.
    """

    def __init__(
        self, path: Path, post: Callable[[Message], object], *, interval_s: float = 0.1, wanted: Wanted | None = None
    ) -> None:
        self.path = path
        self.key = str(path)
        self._post = post
        self._interval_s = interval_s
        self._wanted = wanted or Wanted()
        self._jobs: deque[tuple[str, Callable[[RunView], Any]]] = deque()
        self._wake = threading.Condition()
        self._stopped = False
        self._version = 0
        self._told: Problem | None = None
        self._audited: object = None
        self._resumes: Mapping[str, ResumeAudit] = {}
        self._events: tuple[tuple[int, int], tuple[Event, ...]] = ((-1, -1), ())
        self._warmed: dict[str, tuple[int, float, int]] = {}  # by series: version, smoothing, samples

    # -- from the app's thread -------------------------------------------------------------------------------------
    def want(self, wanted: Wanted) -> None:
        """Draw other metrics, or another x axis, from the next picture on."""
        with self._wake:
            self._wanted = wanted
            self._wake.notify_all()

    def ask(self, topic: str, job: Callable[[RunView], Any]) -> None:
        """Run `job` on the view in the reading thread; an `Answer` with this topic follows.

        A newer question under the same topic takes the place of one that was not begun.
        """
        with self._wake:
            kept = [item for item in self._jobs if item[0] != topic]
            self._jobs = deque([*kept, (topic, job)])
            self._wake.notify_all()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify_all()

    def is_stopped(self) -> bool:
        """Whether another thread asked for the end."""
        return self._stopped

    # -- the reading thread ----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Read until stopped. Never raises: what goes wrong is posted."""
        view: RunView | None = None
        while not self.is_stopped():
            try:
                if view is None:
                    view = self._open()
                    if view is None:
                        self._pause(RETRY_S)
                        continue
                    self._follow(view)
            except Exception as error:  # noqa: BLE001  # the thread must live on; the person sees what it was
                self._fail(error)
                view = None
                self._pause(RETRY_S)

    def _open(self) -> RunView | None:
        """The view, read to its end; a long log is shown while it is read."""
        import lineage

        try:
            view = lineage.read(self.path, max_bytes=FIRST_BYTES)
            while view.num_unread_bytes > 0 and not self.is_stopped():
                began = time.monotonic()
                with self._wake:
                    wanted = self._wanted
                self._post(SnapshotReady(self._snapshot(view, wanted)))
                # What a picture costs grows with what was read: it has to wait until it is a small part of the time.
                took = time.monotonic() - began
                if not self._read_on(view, time.monotonic() + max(READING * took, PROGRESS_S)):
                    break
        except Exception as error:  # noqa: BLE001  # shown in a panel, and tried again
            self._fail(error)
            return None
        return view

    def _read_on(self, view: RunView, until: float) -> bool:
        """Read a long log for a while, and tell how far it is; False when there is nothing more to read.

        Towards the end, with less to read than since the last picture, the next picture is that of the whole log.
        """
        began = view.num_unread_bytes
        while not self.is_stopped():
            before = view.num_unread_bytes
            view.refresh(max_bytes=PIECE_BYTES, save=False)
            if not 0 < view.num_unread_bytes < before:
                return False
            if time.monotonic() >= until and view.num_unread_bytes > began // 2:
                break
            self._post(ReadProgress(self.key, view.num_unread_bytes, view.size_bytes))
        return True

    def _fail(self, error: BaseException) -> None:
        problem = Problem.of(error, str(self.path))
        if problem != self._told and not self.is_stopped():
            self._told = problem
            self._post(ReadFailed(self.key, problem, gone=not self.path.exists()))

    def _follow(self, view: RunView) -> None:
        """Post a picture whenever the run or what is wanted of it changed."""
        shown: tuple[Wanted, str] | None = None
        changed = True
        saved = False
        while not self.is_stopped():
            with self._wake:
                wanted = self._wanted
            began = time.monotonic()
            if changed or shown != (wanted, view.state):
                shown = (wanted, view.state)
                self._told = None
                self._post(SnapshotReady(self._snapshot(view, wanted)))
            took = time.monotonic() - began
            if not saved:
                self._pause(DRAW_S, wanted)
            if self.is_stopped():
                return
            if self._audit(view):
                self._post(SnapshotReady(self._snapshot(view, wanted)))
            self._answer(view)
            if not saved:  # nobody waits for it, as for the curves
                saved = True
                view.save_cache()
                give_back()
            interval = self._interval_s if view.state in {"running", "stalled"} else IDLE_S
            self._pause(max(interval, min(took * LEISURE, IDLE_S)), wanted)
            if self.is_stopped():
                return
            if not self.path.exists():
                self._post(ReadFailed(self.key, Problem("the run's folder is gone", str(self.path)), gone=True))
                while not self.is_stopped() and not self.path.exists():
                    self._answer(view)
                    self._pause(RETRY_S)
                raise FileNotFoundError(2, "the run's folder was put back", str(self.path))
            changed = view.refresh()

    def _pause(self, seconds: float, wanted: Wanted | None = None) -> None:
        """Wait, but not when there is a job, another wish, or an end."""
        with self._wake:
            if self.is_stopped() or self._jobs or (wanted is not None and wanted != self._wanted):
                return
            self._wake.wait(seconds)

    def _answer(self, view: RunView) -> None:
        while True:
            with self._wake:
                if self.is_stopped() or not self._jobs:
                    return
                topic, job = self._jobs.popleft()
            try:
                self._post(Answer(self.key, topic, job(view)))
            except Exception as error:  # noqa: BLE001  # a job's failure is its answer
                self._post(Answer(self.key, topic, None, Problem.of(error, str(self.path))))

    def _audit(self, view: RunView) -> bool:
        """Compare the attempts again when sessions came, ended or were superseded; True when there are verdicts.

        What the hook recorded is what it saw while training ran; a careless restart recorded nothing.
        """
        from lineage.history.evidence import audit_view

        lost = sum(segment.num_superseded for segment in view.segments)
        # While a resume trains lost steps again, every few of them.
        again = min(view.last_step or 0, max((s.last_step for s in view.segments if s.num_superseded), default=0)) // 8
        stamp = (tuple(view.session_states.items()), lost, again)
        if stamp == self._audited or len(view.segments) < 2 or lost > MAX_COMPARED:
            return False
        self._audited = stamp
        try:
            self._resumes = {str(row.session): row for row in audit_view(view)}
        except (LineageError, OSError, ValueError, KeyError):
            return False  # the log is damaged there; what was recorded stands
        return bool(self._resumes)

    def _all_events(self, view: RunView) -> tuple[Event, ...]:
        """The events, the very tuple of the last picture while there are no others."""
        stamp = (view.history_version, view.num_events)
        if self._events[0] != stamp:
            self._events = (stamp, tuple(view.events()))
        return self._events[1]

    def _warm(self, version: int, models: Mapping[str, ChartModel], smoothing: float) -> Memo | None:
        """Long curves smoothed and folded here, once and for all: it takes longer than a frame may."""
        from lineage_tui.plot.fold import Memo

        memo: Memo | None = None
        series = {one.key: one for model in models.values() for one in model.series if one.y.size >= WARM_FROM}
        self._warmed = {key: done for key, done in self._warmed.items() if key in series}
        for key, one in series.items():
            seen = self._warmed.get(key)
            if seen is not None and seen[:2] == (version, smoothing) and 0 <= one.y.size - seen[2] < WARM_FROM:
                continue
            memo = memo or Memo()
            memo.pyramid(one)
            memo.smoothed(one, smoothing)
            self._warmed[key] = (version, smoothing, one.y.size)
        return memo

    def _snapshot(self, view: RunView, wanted: Wanted) -> Snapshot:
        from lineage_tui.build import default_names

        metrics = tuple(view.metrics)
        names = tuple(name for name in wanted.names if name in metrics) or tuple(default_names(metrics))
        models = build_models(view, names, wanted.x, self._resumes)
        self._version += 1
        return Snapshot(
            key=self.key,
            record=view.record,
            state=str(view.state),
            session_states={str(session): str(state) for session, state in view.session_states.items()},
            segments=tuple(view.segments),
            damage=tuple(_damage(item, view) for item in view.damage),
            metrics=metrics,
            events=self._all_events(view),
            wanted=Wanted(names, wanted.x, wanted.smoothing),
            models=models,
            warm=self._warm(view.history_version, models, wanted.smoothing),
            last_step=view.last_step,
            resumes=self._resumes,
            num_skipped=len(view.events("fp16_skip")),
            last_seen={session.id: last for session in view.sessions if (last := view.seen(session.id)[1]) > 0},
            num_bytes=view.size_bytes,
            num_unread=view.num_unread_bytes,
            torn=_torn(view),
            version=self._version,
            read_at=time.time(),
        )


def give_back() -> None:
    """Let the C library return what reading has freed to the system; it keeps arrays of many megabytes otherwise."""
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def build_models(
    view: RunView, names: tuple[str, ...], x: str, verdicts: Mapping[str, ResumeAudit]
) -> Mapping[str, ChartModel]:
    """A chart for each name, in this order."""
    from lineage_tui.build import chart_models

    return dict(zip(names, chart_models(view, names, x, verdicts=verdicts), strict=True)) if names else {}


def _damage(item: Any, view: RunView) -> Problem:
    """What is wrong with a line of the log, or with a whole file, and where."""
    if not item.num_lines:
        return Problem(
            str(item.reason), str(view.dir.path), "put the file back from a copy; lineage repair mends lines only"
        )
    where = f"{view.dir.log}, byte {item.offset:,}"
    return Problem(str(item.reason), where, "lineage repair keeps the file aside and takes the bad lines out")


def _torn(view: RunView) -> Problem | None:
    """The tail of a log that nobody writes; None when its last line is whole."""
    torn = view.num_torn_bytes
    if not torn:
        return None
    return Problem(
        f"the last line was not finished: a torn tail of {torn:,} bytes",
        f"{view.dir.log}, byte {view.size_bytes - torn:,}",
        "all before it is read; the next session cuts it off, and so does lineage repair",
    )


class FolderFollower:
    """Reads a folder of runs again and again until told to stop."""

    def __init__(self, path: Path, post: Callable[[Message], object], *, interval_s: float = FOLDER_S) -> None:
        self.path = path
        self._post = post
        self._interval_s = interval_s
        self._wake = threading.Condition()
        self._stopped = False

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify_all()

    def run(self) -> None:
        """Post a picture whenever it differs from the last; never raises."""
        from lineage_tui.folder import FolderReader

        reader = FolderReader(self.path)
        last: object = None
        while not self._stopped:
            try:
                folder = reader.read()
                if folder != last:
                    last = folder
                    self._post(FolderRead(folder))
            except Exception as error:  # noqa: BLE001  # shown in a panel, and tried again
                problem = Problem.of(error, str(self.path))
                if problem != last:
                    last = problem
                    self._post(FolderFailed(problem))
            with self._wake:
                if not self._stopped:
                    self._wake.wait(self._interval_s)


class _Cancelled(Exception):  # noqa: N818  # no error: the person left
    """Nobody waits for the verification any more."""


def verify(run_dir: Path, post: Callable[[Message], object], worker: Worker[None]) -> None:
    """Verify every checkpoint of a run, telling how far it is ten times a second; never raises."""
    from lineage.checkpoint.verify import verify_run

    key = str(run_dir)
    hashed = 0
    told_at = 0.0

    def progress(_path: str, done: int, total: int) -> None:
        nonlocal hashed, told_at
        if worker.is_cancelled:
            raise _Cancelled
        hashed += done
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            post(VerifyProgress(key, hashed, total))

    try:
        post(Answer(key, "verify", verify_run(run_dir, progress=progress)))
    except _Cancelled:
        return
    except Exception as error:  # noqa: BLE001  # shown to the person
        post(Answer(key, "verify", None, Problem.of(error, key)))
