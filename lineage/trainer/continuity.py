"""The proof of a continuation while it trains: each step compared with the earlier attempt at it.

The reference is read from the run's own log when the session begins: what earlier sessions recorded after the state
this one starts from (`lineage.history.audit.reference_for`). Outside of the overlap a step costs one comparison of
integers, and after the verdict nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from lineage.errors import LineageError
from lineage.log.reader import read_lines
from lineage.log.scan import Line
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage.history.continuation import Comparer
    from lineage_schemas.run import Continuation, FirstDifference, Run, Session

MAX_STEPS: Final = 100_000
"""Steps of the earlier attempt kept for comparison; what a session trained beyond them is left to `lineage audit`."""

_MAX_TAIL_BYTES: Final = 256 * 1024 * 1024
_BYTES_BEFORE: Final = 64 * 1024


class ContinuationDivergedError(LineageError):
    """A resumed session trained a step another way than it was trained before, and was told to stop there.

    Attributes:
        verdict: the whole finding.
    """

    def __init__(self, what: str, where: str = "", hint: str = "", verdict: Continuation | None = None) -> None:
        super().__init__(what, where, hint)
        self.verdict = verdict

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.hint, self.verdict))


@dataclass(frozen=True)
class Before:
    """What the log tells a session about the sessions before it.

    Attributes:
        comparer: for the steps that were trained before.
        losses: of the last steps up to the one this session starts from, in order.
    """

    comparer: Comparer
    losses: list[float]


def look_back(log_path: Path, run: Run, session: Session, proven: list[str]) -> Before | None:
    """What to compare a session with that is about to train; None when the run has no session before it.

    Reads the log from a little before the checkpoint's own line on, or its last 256 MiB where no checkpoint is known.
    Damaged lines are passed over here: `lineage log` and the screens report them.
    """
    if session.ordinal == 1:
        return None
    from lineage.history.audit import Attempts, reference_for

    from_step = session.start.step
    attempts = Attempts()
    losses: dict[int, float] = {}
    for event in _steps_from(log_path, _begin_of_reference(log_path, session.start.checkpoint)):
        step = event["step"]
        if step > from_step + MAX_STEPS or event.get("session") == session.id:
            continue
        if step <= from_step:
            loss = event.get("metrics", {}).get("loss")
            if isinstance(loss, int | float):
                losses[step] = float(loss)
        attempts.add(event, after=from_step)
    last_steps = {
        SessionId(other.id): other.last_step
        for other in run.sessions
        if other.id != session.id and other.last_step is not None
    } | attempts.last_steps
    reference = reference_for(run, session.id, attempts, last_steps, to_step=from_step + MAX_STEPS)
    return Before(reference.comparer(session.tolerance, proven=proven), [losses[step] for step in sorted(losses)])


def _steps_from(log_path: Path, begin: int) -> Iterator[Mapping[str, Any]]:
    for line in read_lines(log_path, begin, check=False):
        if isinstance(line, Line) and b'"kind":"step"' in line.data:
            try:
                event = orjson.loads(line.data)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict) and isinstance(event.get("step"), int):
                yield event


def _begin_of_reference(log_path: Path, checkpoint: str | None) -> int:
    """Offset of a line a little before the one that says the checkpoint was saved.

    Everything trained from its state stands after that line, and the losses that led to it before.
    """
    size = log_path.stat().st_size
    if size == 0:
        return 0
    floor = max(0, size - _MAX_TAIL_BYTES)
    with log_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if checkpoint is not None:
            needle = f'"checkpoint":"{checkpoint}"'.encode()
            at = data.rfind(needle)
            while at >= 0:
                start = data.rfind(b"\n", 0, at) + 1
                if b'"kind":"checkpoint_saved"' in data[start:at]:
                    return 0 if start <= _BYTES_BEFORE else data.find(b"\n", start - _BYTES_BEFORE) + 1
                at = data.rfind(needle, 0, start)
        return 0 if floor == 0 else data.find(b"\n", floor) + 1


class Continuity:
    """Feeds a comparer and says when there is something to say.

    Attributes:
        verdict: the last one that was concluded; None before.
    """

    def __init__(self, comparer: Comparer) -> None:
        self._comparer = comparer
        self.verdict: Continuation | None = None

    @property
    def is_hopeless(self) -> bool:
        """Whether there is nothing to compare with, so that the verdict stands before the first step."""
        return self._comparer.last_step == 0

    def feed(self, event: Mapping[str, Any]) -> FirstDifference | None:
        """Compare one step event as it was written; the first difference, at the step that shows it."""
        from lineage.history.continuation import StepWitness

        return self._comparer.compare(StepWitness.from_fields(event))

    def is_over(self, step: int) -> bool:
        """Whether no later step can change the verdict."""
        return not self._comparer.wants(step + 1)

    def conclude(self) -> Continuation:
        self.verdict = self._comparer.verdict()
        return self.verdict
