"""The proof of a continuation while it trains: each step compared with the earlier attempt at it.

The reference is read from the run's own log when the session begins: what earlier sessions recorded after the state
this one starts from (`lineage.history.audit.reference_for`). Outside of the overlap a step costs one comparison of
integers, and after the verdict nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from lineage.errors import LineageError
from lineage.log.reader import read_lines
from lineage.log.scan import Line
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage.history.audit import Attempts
    from lineage.history.continuation import Comparer
    from lineage_schemas.run import Continuation, FirstDifference, Run, Session

MAX_STEPS: Final = 100_000
"""Steps of the earlier attempt kept for comparison; what a session trained beyond them is left to `lineage audit`."""

_MAX_TAIL_BYTES: Final = 256 * 1024 * 1024


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


def begin_comparison(log_path: Path, run: Run, session: Session, proven: list[str]) -> Comparer | None:
    """A comparer for the session that is about to train; None when the run has no session before it.

    Reads the log from the checkpoint's own line on, or its last 256 MiB where no checkpoint is known. Damaged lines
    are passed over here: `lineage log` and the screens report them.
    """
    if session.ordinal == 1:
        return None
    from lineage.history.audit import reference_for

    from_step = session.start.step
    begin = _begin_of_reference(log_path, session.start.checkpoint)
    attempts = _read_attempts(log_path, begin, from_step)
    last_steps = {
        SessionId(other.id): other.last_step
        for other in run.sessions
        if other.id != session.id and other.last_step is not None
    } | attempts.last_steps
    reference = reference_for(run, session.id, attempts, last_steps, to_step=from_step + MAX_STEPS)
    return reference.comparer(session.tolerance, proven=proven)


def _read_attempts(log_path: Path, begin: int, from_step: int) -> Attempts:
    from lineage.history.audit import Attempts

    return Attempts.of(_steps_of(log_path, begin, from_step + MAX_STEPS), after=from_step)


def _steps_of(log_path: Path, begin: int, to_step: int) -> Iterator[Mapping[str, Any]]:
    for line in read_lines(log_path, begin, check=False):
        if isinstance(line, Line) and b'"kind":"step"' in line.data:
            try:
                event = orjson.loads(line.data)
            except orjson.JSONDecodeError:
                continue
            step = event.get("step")
            if isinstance(step, int) and step <= to_step:
                yield event


def _begin_of_reference(log_path: Path, checkpoint: str | None) -> int:
    """Offset of the line that says the checkpoint was saved; everything trained from its state stands after it."""
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
                    return start
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
