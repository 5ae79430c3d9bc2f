"""The proof of a continuation while it trains: each step compared with the earlier attempt at it.

The reference is read from the run's own log when the session begins: what earlier sessions recorded after the state
this one starts from (`lineage.history.reference.reference_for`). Outside of the overlap a step costs one comparison of
integers, and after the verdict nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from lineage import fs
from lineage.errors import LineageError
from lineage.log.reader import read_lines
from lineage.log.scan import Line
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage.history.alerts import Alert, LossJump
    from lineage.history.continuation import Comparer
    from lineage.trainer.recorder import Recorder
    from lineage.trainer.start import ContinuationPolicy
    from lineage_schemas.run import Continuation, Run, Session

MAX_STEPS: Final = 100_000
"""Steps of the earlier attempt kept for comparison; what a session trained beyond them is left to `lineage audit`."""

_MAX_TAIL_BYTES: Final = 256 * 1024 * 1024
_BYTES_BEFORE: Final = 64 * 1024
_NUM_LOSSES: Final = 1024  # of the last steps; many times what a jump is told from
_BLOCK_BYTES: Final = 1024 * 1024
_MAX_LINE_HEAD: Final = 4096  # of a line, before it names its checkpoint: kind, time, run, session and step


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
    from lineage.history.reference import Attempts, reference_for

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
                if len(losses) == 2 * _NUM_LOSSES:  # the log of a month has millions
                    losses = dict(sorted(losses.items())[_NUM_LOSSES:])
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

    Everything trained from its state stands after that line, and the losses that led to it before. Read in pieces and
    never mapped: a log that another program cuts meanwhile costs the comparison, where a map would end the training.
    """
    fd = fs.open_plain(log_path)
    try:
        size = os.fstat(fd).st_size
        begin = max(0, size - _MAX_TAIL_BYTES)
        saved_at = None if checkpoint is None else _line_of(fd, checkpoint, size)
        if saved_at is not None:
            begin = max(0, saved_at - _BYTES_BEFORE)
        return 0 if begin == 0 else _next_line(fd, begin, size)
    finally:
        os.close(fd)


def _line_of(fd: int, checkpoint: str, size: int) -> int | None:
    """Offset of the last line that says the checkpoint was saved; None when there is none."""
    needle = f'"checkpoint":"{checkpoint}"'.encode()
    end = size
    while (at := _rfind(fd, needle, end)) >= 0:
        before = os.pread(fd, min(at, _MAX_LINE_HEAD), max(0, at - _MAX_LINE_HEAD))
        head = before[before.rfind(b"\n") + 1 :]
        if b'"kind":"checkpoint_saved"' in head:
            return at - len(head)
        end = at
    return None


def _rfind(fd: int, needle: bytes, end: int) -> int:
    """Offset of the last `needle` that ends at or before `end`; -1 when there is none."""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        found = os.pread(fd, end - start, start).rfind(needle)
        if found >= 0:
            return start + found
        end = start + len(needle) - 1 if start else 0  # it may lie across the edge
    return -1


def _next_line(fd: int, offset: int, size: int) -> int:
    """Offset behind the first newline from `offset` on; `size` when there is none."""
    while offset < size:
        block = os.pread(fd, min(_BLOCK_BYTES, size - offset), offset)
        found = block.find(b"\n")
        if found >= 0:
            return offset + found + 1
        if not block:
            break
        offset += len(block)
    return size


class Proof:
    """Watches the steps of a resumed session until everything is known about its continuation.

    Attributes:
        is_done: whether no further step needs to be shown; the caller drops the proof then.
    """

    def __init__(
        self, before: Before, recorder: Recorder, policy: ContinuationPolicy, alert: Callable[..., object] | None
    ) -> None:
        """Take up what the log told.

        Args:
            before: what there is to compare with.
            recorder: writes the verdict, to the log and to run.json.
            policy: `"warn"` or `"stop"`.
            alert: `alert(code, message, severity=, details=)`, called at most once a code; None where nobody claims to
                continue anything, so that the verdict is recorded and no one is called.
        """
        from lineage.history.alerts import LossJump

        self._comparer: Comparer | None = before.comparer
        self._loss_jump: LossJump | None = LossJump(before.losses)
        self._expected_lr: Mapping[str, list[float]] | None = None
        self._check_start = False
        self._recorder = recorder
        self._policy = policy
        self._alert = alert

    def begin(self, step: int, expected_lr: Mapping[str, list[float]] | None, *, every_step: bool) -> None:
        """Give the verdict at once when nothing overlaps; the first learning rates are then checked on their own.

        Args:
            step: steps complete.
            expected_lr: rates of the next step by optimizer, where a tracked schedule sets them.
            every_step: whether every step is shown, so that the first one shown is the first one trained.
        """
        self._check_start = every_step
        if self._comparer is not None and self._comparer.last_step == 0:
            self.conclude(step)
            self._expected_lr = expected_lr

    @property
    def is_done(self) -> bool:
        return self._comparer is None and self._loss_jump is None and self._expected_lr is None

    def watch(self, event: Mapping[str, Any], taken_lr: Callable[[], Mapping[str, list[float]]] | None) -> None:
        """Look at one step event as it was written.

        Args:
            event: the step.
            taken_lr: gives the learning rates it was taken with; None when no optimizer stepped.

        Raises:
            ContinuationDivergedError: it was trained another way before, and the policy is `"stop"`.
        """
        step = event["step"]
        if self._expected_lr is not None:
            from lineage.history.alerts import unexpected_rates

            if taken_lr is not None:
                self._say(unexpected_rates(self._expected_lr, taken_lr(), step=step))
            self._expected_lr = None
        loss = event["metrics"].get("loss")
        if self._loss_jump is not None and loss is not None:
            self._say(self._loss_jump.feed(step, loss))
            if self._loss_jump.is_done:
                self._loss_jump = None
        if self._comparer is not None:
            self._compare(self._comparer, event, step)

    def conclude(self, step: int) -> Continuation | None:
        """Write the verdict as far as it is known; None when it was written before. Nothing is compared after it."""
        if self._comparer is None:
            return None
        verdict = self._comparer.verdict()
        self._comparer = None
        self._recorder.event("continuation", step=step, **verdict.to_wire(), final=True)
        self._recorder.set_continuation(verdict)
        return verdict

    def _compare(self, comparer: Comparer, event: Mapping[str, Any], step: int) -> None:
        from lineage.history.continuation import StepWitness

        difference = comparer.begin(step) if self._check_start else None
        self._check_start = False
        if difference is None:
            difference = comparer.compare(StepWitness.from_fields(event))
        if difference is None and comparer.wants(step + 1):
            return
        verdict = self.conclude(step)
        if difference is None or verdict is None:
            return
        message = f"the continuation diverged: {verdict.reason}"
        if self._alert is None:
            return
        self._alert("diverged", message, severity="error", details=difference.to_wire())
        if self._policy == "stop":
            raise ContinuationDivergedError(
                message,
                f"run {self._recorder.run_id}, session {self._recorder.session_id}",
                'lineage audit shows both attempts; continuation="warn" goes on all the same',
                verdict,
            )

    def _say(self, alert: Alert | None) -> None:
        if alert is not None and self._alert is not None:
            self._alert(alert.code, alert.message, details=alert.details)
