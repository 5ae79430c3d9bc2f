"""From a run on disk to what the pure parts of `lineage.history` ask for. With `whence` the only part that opens files.

The columns of a view hold no witnesses, and an audit needs few: they are read from the log where attempts overlap,
found by the offsets of the lines around them (a checkpoint's line stands right after its step).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson

from lineage import fs
from lineage.history.audit import ResumeAudit, audit
from lineage.history.changes import Curve
from lineage.history.continuation import LOSS_NAMES, LR_NAMES, StepWitness
from lineage.history.explain import EXPLAINING, Account
from lineage.history.segments import first_trained, gaps
from lineage.history.tree import RunLeaves
from lineage.log.reader import open_log, read_lines
from lineage.log.scan import Damage, Line
from lineage_schemas.checkpoint import ExpectedNext, Manifest
from lineage_schemas.events import ContinuationEvent
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from lineage.layout import RunDir
    from lineage.view import RunView
    from lineage_schemas.run import Run

_MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
_BISECT_FROM_BYTES: Final = 1 << 20
_PROBE_BYTES: Final = 1 << 16
_WINDOWS_BYTES: Final = (1 << 15, 1 << 18)

__all__ = ["LogAttempts", "account_of", "audit_view", "leaves_of", "read_family"]


class LogAttempts:
    """Witnesses read from a run's log on demand: `lookup` for `audit` and `reference_for`.

    Attributes:
        last_steps: last step each session logged.
        first_steps: first step each session trained, as far as the log tells.
    """

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._offsets = view.offsets()
        self._starts = sorted(found[0][1] for found in self._offsets.values())
        self._kept: dict[tuple[SessionId, int, int], Mapping[int, StepWitness]] = {}
        self.last_steps: dict[SessionId, int] = {}
        self.first_steps: dict[SessionId, int] = {}
        for session in view.sessions:
            id_ = SessionId(session.id)
            steps = view.logged_steps(id_)
            first = first_trained(steps[:2].tolist(), session.start.step)
            if first is not None:
                self.first_steps[id_] = first
                self.last_steps[id_] = int(steps.max())

    def __call__(self, session: SessionId, after: int, to: int) -> Mapping[int, StepWitness]:
        """The session's witnesses of steps in (after, to]; of a step logged twice the last."""
        key = (session, after, to)
        if key not in self._kept:
            self._kept[key] = self._read(session, after, to)
        return self._kept[key]

    def _read(self, session: SessionId, after: int, to: int) -> dict[int, StepWitness]:
        steps = self._view.logged_steps(session)
        wanted = int(((steps > after) & (steps <= to)).sum())
        if not wanted:
            return {}
        anchors = self._offsets.get(session, [])
        begin = min((offset for _, offset in anchors), default=0)
        close = max((offset for step, offset in anchors if step is not None and step <= after), default=begin)
        if bool((np.diff(steps) > 0).all()):
            close = self._bisect(session, after, close)
        found, count = self._scan(session, after, to, close, wanted)
        if count < wanted and close > 0:
            # Steps that go back within a session, or a log put together by hand: look everywhere.
            found, _ = self._scan(session, after, to, 0, wanted)
        return found

    def _scan(
        self, session: SessionId, after: int, to: int, start: int, wanted: int
    ) -> tuple[dict[int, StepWitness], int]:
        found: dict[int, StepWitness] = {}
        count = 0
        for fields in _steps_of(self._view.dir.log, session, start):
            step = fields["step"]
            if isinstance(step, int) and after < step <= to:
                found[step] = StepWitness.from_fields(fields)
                count += 1
                if count == wanted:
                    break
        return found, count

    def _bisect(self, session: SessionId, after: int, low: int) -> int:
        """The offset of a line before the first step beyond `after`, at most a mebibyte too early."""
        path = self._view.dir.log
        after_low = bisect_right(self._starts, low)
        high = self._starts[after_low] if after_low < len(self._starts) else path.stat().st_size
        with os.fdopen(open_log(path), "rb") as file:
            while high - low > _BISECT_FROM_BYTES:
                middle = (low + high) // 2
                file.seek(middle)
                lines = file.read(_PROBE_BYTES).split(b"\n")
                offset = middle + len(lines[0]) + 1
                at: tuple[int, int] | None = None
                for line in lines[1:-1]:
                    step = _step_of(line, session)
                    if step is not None:
                        at = (offset, step)
                        break
                    offset += len(line) + 1
                if at is None:
                    break  # no step within reach: what is left is read line by line
                if at[1] <= after:
                    low = at[0]
                else:
                    high = middle
        return low


def _steps_of(path: Path, session: SessionId, start: int) -> Iterator[dict[str, object]]:
    needle = session.encode()
    for line in _lines_from(path, start):
        if isinstance(line, Line) and needle in line.data and b'"step"' in line.data:
            fields = _fields(line.data)
            if fields.get("kind") == "step" and fields.get("session") == session:
                yield fields


def _lines_from(path: Path, start: int) -> Iterator[Line | Damage]:
    """The lines from an offset on, a little at first: most of what is asked for stands right there."""
    for window in _WINDOWS_BYTES:
        for line in read_lines(path, start, start + window, check=False):
            start = line.end
            yield line
    yield from read_lines(path, start, check=False)


def _step_of(line: bytes, session: SessionId) -> int | None:
    fields = _fields(line)
    step = fields.get("step") if fields.get("kind") == "step" and fields.get("session") == session else None
    return step if isinstance(step, int) else None


def _fields(line: bytes) -> dict[str, object]:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}  # damage is located by the view
    return fields if isinstance(fields, dict) else {}


class _Expectations(Mapping[str, ExpectedNext]):
    """What the manifests on disk expect next, read when asked for; a generation without one is not in it."""

    def __init__(self, run_dir: RunDir, names: Collection[str]) -> None:
        self._dir = run_dir
        self._names = tuple(names)
        self._read: dict[str, ExpectedNext | None] = {}

    def __getitem__(self, name: str) -> ExpectedNext:
        if name not in self._read:
            manifest = _read_manifest(self._dir, name) if name in self._names else None
            self._read[name] = manifest.expected if manifest else None
        found = self._read[name]
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _read_manifest(run_dir: RunDir, name: str) -> Manifest | None:
    folder = run_dir.generation(name)
    if not (fs.is_own_folder(run_dir.checkpoints_dir) and fs.is_own_folder(folder)):
        return None
    try:
        return Manifest.model_validate_json(fs.read_plain(folder / "manifest.json", _MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return None  # gone, or damaged: `lineage verify` says which


def audit_view(view: RunView, *, also: Collection[str] = ()) -> list[ResumeAudit]:
    """The continuation verdict of each resume of a run on disk (`lineage.history.audit`)."""
    run = view.record
    attempts = LogAttempts(view)
    proven: dict[str, list[str]] = {}
    for event in view.events("continuation"):
        if isinstance(event, ContinuationEvent):
            words = proven.setdefault(event.session, [])
            words += [word for word in event.proven if word not in words]
    names = {name for s in run.sessions for name in (*s.checkpoints, s.start.checkpoint) if name is not None}
    return audit(
        run,
        attempts,
        attempts.last_steps,
        first_steps=attempts.first_steps,
        expectations=_Expectations(view.dir, names),
        proven=proven,
        also=also,
    )


def account_of(view: RunView) -> Account:
    """Everything that may explain a change in a run on disk."""
    seen = {SessionId(s.id): view.seen(s.id) for s in view.sessions}
    events = [event for kind in EXPLAINING for event in view.events(kind)]
    loss_name = next((name for name in LOSS_NAMES if name in view.metrics), None)
    lr_name = next((name for name in LR_NAMES if name in view.metrics), None)
    speed = next((name for name in ("tokens_per_s", "samples_per_s", "step_s") if name in view.metrics), None)
    throughput = _curve(view, speed) if speed else None
    if speed == "step_s" and throughput is not None:
        with np.errstate(divide="ignore", over="ignore"):
            throughput = Curve(throughput.step, 1.0 / throughput.value)
    return Account(
        view.record,
        view.segments,
        events,
        loss=_curve(view, loss_name) if loss_name else None,
        throughput=throughput,
        lr=_curve(view, lr_name) if lr_name else None,
        loss_name=loss_name or "loss",
        throughput_name="steps_per_s" if speed in (None, "step_s") else speed,
        resumes=audit_view(view),
        gaps=gaps(view.record, first_seen=_known(seen, 0), last_seen=_known(seen, 1)),
    )


def _known(seen: Mapping[SessionId, tuple[float, float]], which: int) -> dict[SessionId, float]:
    return {id_: times[which] for id_, times in seen.items() if np.isfinite(times[which])}


def _curve(view: RunView, name: str) -> Curve:
    series = view.series(name)
    return Curve(series.step, series.value)


def read_family(runs_dir: Path) -> tuple[dict[str, Run], dict[str, RunLeaves]]:
    """The readable runs of a folder and what stands beside their records, for `render_tree`."""
    from lineage.runs.index import list_runs

    runs: dict[str, Run] = {}
    leaves: dict[str, RunLeaves] = {}
    for entry in list_runs(runs_dir):
        if entry.record is not None:
            runs[entry.record.id] = entry.record
            leaves[entry.record.id] = leaves_of(entry.dir, entry.record)
    return runs, leaves


def _present(run_dir: RunDir, run: Run, unread: dict[str, str]) -> frozenset[str] | None:
    """The generations still on disk; None for a run that was copied without its checkpoints."""
    if not fs.is_own_folder(run_dir.checkpoints_dir):
        return None
    present: set[str] = set()
    for session in run.sessions:
        for name in session.checkpoints:
            try:
                if (run_dir.generation(name) / "COMMIT").is_file():
                    present.add(name)
            except OSError as error:
                unread[name] = error.strerror or str(error)
    return frozenset(present)


def _exports(run_dir: RunDir, unread: dict[str, str]) -> list[str]:
    if not fs.is_own_folder(run_dir.exports_dir):
        return []
    try:
        return sorted(path.name for path in run_dir.exports_dir.iterdir())
    except OSError as error:
        unread["exports"] = error.strerror or str(error)
        return []


def leaves_of(run_dir: RunDir, run: Run) -> RunLeaves:
    """Exports, generations still there, states and last steps of one run; `unread` says what may not be entered."""
    from lineage.glance import glance, session_glances

    seen = session_glances(run_dir, run)
    unread: dict[str, str] = {}
    return RunLeaves(
        state=glance(run_dir, run).state,
        session_states={id_: state for id_, (state, _) in seen.items()},
        last_steps={id_: last for id_, (_, last) in seen.items() if last is not None},
        exports=_exports(run_dir, unread),
        present=_present(run_dir, run, unread),
        unread=unread,
    )
