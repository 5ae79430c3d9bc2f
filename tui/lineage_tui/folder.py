"""A folder of runs as rows, cheap enough to be asked every two seconds over a thousand runs.

What did not change on disk is not read again; the loss curve in a table cell comes from a few places of the log, not
from all of it.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from lineage.errors import LineageError, NewerFormatError
from lineage.log.reader import open_log
from lineage_tui.messages import Folder, Problem

if TYPE_CHECKING:
    from lineage.glance import Standing
    from lineage.runs.index import RunEntry
    from lineage_schemas.run import Session

SPARK_POINTS: Final = 48
_PROBE_BYTES: Final = 4096
_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class RunSummary:
    """A run as one line of a table.

    Attributes:
        key: path of its folder.
        last_event_at: Unix seconds of its newest event, else of its creation.
        spark: losses from the start to the end of the log, a sample of them.
        problem: why run.json cannot be read; then most of the rest is empty.
        has_log: of such a run: its log is there, and tells more.
        standing: the worst of what its sessions recorded of their continuations (`lineage.glance.standing`).
    """

    key: str
    id: str
    name: str
    state: str
    num_sessions: int
    last_step: int | None
    last_loss: float | None
    created_at: float
    last_event_at: float
    tags: tuple[str, ...] = ()
    spark: tuple[float, ...] = ()
    parent: str | None = None
    notes: str = ""
    sessions: tuple[Session, ...] = ()
    problem: Problem | None = None
    has_log: bool = True
    standing: Standing | None = None


class FolderReader:
    """Reads one folder again and again, remembering what did not change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[tuple[_Stamp, _Stamp], RunSummary]] = {}

    def read(self) -> Folder:
        """The runs of the folder, newest first.

        Raises:
            NotFoundError: there is no such folder.
        """
        from lineage.runs.index import list_runs

        rows: list[RunSummary] = []
        for entry in list_runs(self.path):
            key = str(entry.dir.path)
            stamps = (_stamp(entry.dir.run_json), _stamp(entry.dir.log))
            known = self._known.get(key)
            if known is None or known[0] != stamps or known[1].state in {"running", "stalled"}:
                spark = known[1].spark if known is not None and known[0] == stamps else None
                row = summarise(entry, spark=spark)
                self._known[key] = (stamps, row)
            else:
                row = known[1]
            rows.append(row)
        for gone in set(self._known) - {row.key for row in rows}:
            del self._known[gone]
        return Folder(self.path, tuple(rows), tuple(row.problem for row in rows if row.problem is not None))


def summarise(entry: RunEntry, *, spark: tuple[float, ...] | None = None) -> RunSummary:
    """One run's row; `spark` is not read again when given."""
    from lineage.glance import standing
    from lineage.runs.lock import probe
    from lineage.runs.state import run_state
    from lineage.runs.store import read_tail

    path = entry.dir.path
    record = entry.record
    if record is None:
        problem = (
            Problem.of(entry.problem, str(path)) if entry.problem else Problem("run.json cannot be read", str(path))
        )
        has_log = entry.dir.log.is_file() and not isinstance(entry.problem, NewerFormatError)
        return RunSummary(
            *(str(path), path.name, path.name, "unreadable", 0, None, None, 0.0, 0.0), problem=problem, has_log=has_log
        )
    last = record.sessions[-1] if record.sessions else None
    tail = read_tail(entry.dir, last.id) if last else None
    losses = sample_losses(entry.dir.log) if spark is None else spark
    created = record.created_at.timestamp()
    ended = last.ended_at.timestamp() if last and last.ended_at else None
    state = run_state(
        record,
        owner=probe(entry.dir),
        last_event_at=tail.last_event_at if tail else None,
        now=time.time(),
        logged_end=tail.end[0] if tail and tail.end else None,
    )
    steps = [s.last_step for s in record.sessions if s.last_step is not None]
    worst = standing(record)
    last_step = tail.last_step if tail and tail.last_step is not None else max(steps, default=None)
    return RunSummary(
        key=str(path),
        id=record.id,
        name=record.name,
        state=state,
        num_sessions=len(record.sessions),
        last_step=last_step,
        last_loss=losses[-1] if losses else None,
        created_at=created,
        last_event_at=(tail.last_event_at if tail and tail.last_event_at else None) or ended or created,
        tags=tuple(record.tags),
        spark=losses,
        parent=record.parent.run if record.parent else None,
        notes=record.notes,
        sessions=tuple(sorted(record.sessions, key=lambda session: session.ordinal)),
        standing=worst[0] if worst else None,
    )


def sample_losses(log: Path, points: int = SPARK_POINTS) -> tuple[float, ...]:
    """The loss at `points` places spread over the file, the last one included; empty when there is none.

    Non-finite losses come as NaN: the most important ones must not be left out.
    """
    try:
        fd = open_log(log)
    except LineageError:
        return ()
    try:
        length = os.fstat(fd).st_size
        found: list[float] = []
        seen: set[int] = set()
        for index in range(points):
            at = max(length - _PROBE_BYTES, 0) * index // max(points - 1, 1)
            if at in seen:
                continue
            seen.add(at)
            loss = _loss_near(os.pread(fd, _PROBE_BYTES, at), whole=at == 0, last=index == points - 1)
            if loss is not None:
                found.append(loss)
        if len(seen) == 1 and length:
            found = _all_losses(os.pread(fd, _PROBE_BYTES, 0))
        return tuple(found)
    except OSError:
        return ()
    finally:
        os.close(fd)


def _loss_near(data: bytes, *, whole: bool, last: bool) -> float | None:
    """The first loss in a piece of a log, or the last one."""
    losses = _all_losses(data if whole else data[data.find(b"\n") + 1 :])
    if not losses:
        return None
    return losses[-1] if last else losses[0]


def _all_losses(data: bytes) -> list[float]:
    losses: list[float] = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        if b'"step"' not in line or b'"loss"' not in line:
            continue
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(fields, dict) or fields.get("kind") != "step" or not isinstance(fields.get("metrics"), dict):
            continue
        loss = fields["metrics"].get("loss", ...)
        if loss is None:
            losses.append(math.nan)
        elif isinstance(loss, int | float) and not isinstance(loss, bool):
            losses.append(float(loss))
    return losses


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)
