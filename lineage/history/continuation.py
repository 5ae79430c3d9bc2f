"""Did a resume carry on the same experiment? Two attempts at the same steps, compared.

A session that died had already trained and logged the steps after its last checkpoint; the session that resumed from
there trains them again. Each step recorded a *witness*. Two witnesses of a step are compared in causal order, so that
the verdict names the first cause and not the last symptom:

    start step   which step came first
    batch        what went into the step
    rng          every random stream after the step
    lr           what the optimizer was told, per group
    scale        what the loss was multiplied with, per scaler
    loss         what came out
    grad_norm    what came out of the backward pass

A field that only one side recorded is no difference; it weakens the claim, and the reason says so. Rules of equality,
of the reference and of the tolerance: docs/continuation.md and docs/decisions/040, 041.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from lineage_schemas.run import Continuation, FirstDifference, Tolerance

if TYPE_CHECKING:
    from lineage_schemas.events import StepEvent
    from lineage_schemas.run import Verdict

LOSS_NAMES: Final = ("loss", "train_loss", "train/loss", "loss/train")
GRAD_NORM_NAMES: Final = ("grad_norm", "train/grad_norm", "grad/norm", "gradient_norm")
LR_NAMES: Final = ("lr", "learning_rate", "train/lr", "train/learning_rate")
LOGGED: Final = "logged"
"""The name under which a learning rate that the loop logged itself stands beside those of the optimizers."""

FIELDS: Final = ("start_step", "batch", "rng", "lr", "scale", "loss", "grad_norm")
"""Causal order."""

EVIDENCE: Final = frozenset({"batch", "rng", "loss"})
"""Fields of which at least one must have been compared before anything is called exact."""

LR_RTOL: Final = 1e-12
"""Where a tolerance was declared, learning rates of another libm may differ by a few last bits, and no more."""

WORDS: Final[Mapping[str, str]] = {
    "start_step": "start step",
    "batch": "batch",
    "rng": "rng",
    "lr": "learning rate",
    "scale": "loss scale",
    "loss": "loss",
    "grad_norm": "gradient norm",
}


@dataclass(frozen=True, slots=True)
class StepWitness:
    """What one attempt at a step recorded; None or empty where it recorded nothing.

    Attributes:
        lr: learning rate per group the step was taken with, by optimizer; what the loop logged stands under `logged`.
        scale: loss scale by scaler.
        other: the remaining metrics; compared only where a name is asked for beforehand.
    """

    step: int
    batch: str | None = None
    rng: str | None = None
    lr: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    grad_norm: float | None = None
    other: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_event(cls, event: StepEvent) -> StepWitness:
        """The witness of a parsed line of the log."""
        seen = event.witness
        lr: dict[str, Sequence[float]] = dict(seen.lr) if seen is not None and seen.lr else {}
        return cls._of(
            event.step,
            event.metrics,
            batch=seen.batch if seen else None,
            rng=seen.rng if seen else None,
            lr=lr,
            scale=(seen.scale if seen else None) or {},
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> StepWitness:
        """The witness of a `step` event as a plain dict, in memory or as it stands on disk.

        Values of another type than the format promises are taken as not recorded.
        """
        step = fields.get("step")
        seen = _mapping(fields.get("witness"))
        metrics = {name: _number(value) for name, value in _mapping(fields.get("metrics")).items()}
        for name, which in _mapping(fields.get("nonfinite")).items():
            metrics[name] = _number(which)
        lr = {
            name: tuple(number for value in values if (number := _number(value)) is not None)
            for name, values in _mapping(seen.get("lr")).items()
            if isinstance(values, list | tuple)
        }
        scale = {name: number for name, v in _mapping(seen.get("scale")).items() if (number := _number(v)) is not None}
        batch, rng = seen.get("batch"), seen.get("rng")
        return cls._of(
            step if isinstance(step, int) else 0,
            {name: value for name, value in metrics.items() if value is not None},
            batch=batch if isinstance(batch, str) else None,
            rng=rng if isinstance(rng, str) else None,
            lr=lr,
            scale=scale,
        )

    @classmethod
    def _of(
        cls,
        step: int,
        metrics: Mapping[str, float],
        *,
        batch: str | None,
        rng: str | None,
        lr: Mapping[str, Sequence[float]],
        scale: Mapping[str, float],
    ) -> StepWitness:
        rest = dict(metrics)
        loss, grad_norm, logged = (_pop(rest, names) for names in (LOSS_NAMES, GRAD_NORM_NAMES, LR_NAMES))
        if logged is not None:
            lr = {**lr, LOGGED: (logged,)}
        return cls(step, batch, rng, lr, scale, loss, grad_norm, rest)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") else None


def _pop(metrics: dict[str, float], names: Sequence[str]) -> float | None:
    for name in names:
        if name in metrics:
            return metrics.pop(name)
    return None


def same(before: float, after: float) -> bool:
    """Equal to the bit, where every NaN is equal to every other (the log keeps no payload)."""
    if before == after:
        return before != 0.0 or math.copysign(1.0, before) == math.copysign(1.0, after)
    return before != before and after != after  # noqa: PLR0124  NaN, without a call on the fast path


def close(before: float, after: float, tolerance: Tolerance) -> bool:
    """|after - before| <= atol + rtol * |before|; never true when one side alone is not finite."""
    if not (math.isfinite(before) and math.isfinite(after)):
        return same(before, after)
    return abs(after - before) <= tolerance.atol + tolerance.rtol * abs(before)


Began = Literal["restored", "went_on", "started_over"]
"""From a checkpoint; at a later step without one; from the beginning."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """`relative` is the size of one that the tolerance covers, None for one that it does not."""

    field: str
    part: str | None
    before: float | str
    after: float | str
    relative: float | None = None


class Comparer:
    """Compares the steps of a resumed session with the attempts before it, one by one as they are trained.

    Outside of the reference a step costs one comparison of integers. After the first divergence nothing more is
    compared: what follows is its consequence.

    Attributes:
        last_step: the last step there is anything to compare with; 0 when nothing.
        first_difference: the divergence, once there is one.
        num_compared: steps of which at least one field was recorded on both sides.
    """

    def __init__(
        self,
        reference: Mapping[int, StepWitness],
        tolerance: Tolerance | None = None,
        *,
        start_step: int | None = None,
        proven: Sequence[str] = (),
        also: Collection[str] = (),
        against: Callable[[int], str | None] | None = None,
        began: Began = "restored",
    ) -> None:
        """Set out to compare.

        Args:
            reference: step to the witness of the earlier attempt.
            tolerance: declared before the session trained; None is exact. It applies to loss, gradient norm and the
                metrics in `also`; learning rates may then differ by `LR_RTOL`; nothing else may differ.
            start_step: step the session began after, that of its checkpoint; None to let any step come first.
            proven: what the checkpoint's expectations proved at the restore.
            also: names of further metrics to compare, after the gradient norm.
            against: the session whose attempt at a step is in `reference`.
            began: how the session began; only the words depend on it.
        """
        self._reference = reference
        self._tolerance = tolerance if tolerance is not None and (tolerance.rtol or tolerance.atol) else None
        self._start_step = start_step
        self._proven = tuple(proven)
        self._also = tuple(also)
        self._against = against
        self._began = began
        self._against_session: str | None = None
        self._counts: dict[str, int] = {}  # field to steps on which both sides had it
        self._alone: dict[str, set[str]] = {}  # field to the sides that had it alone
        self._num_common = 0
        self._largest: tuple[float, int, _Difference] | None = None
        self._beside: tuple[str, ...] = ()  # further fields that differ at the first difference
        self._same_there: tuple[str, ...] = ()  # fields that are equal there
        self._after_first = False
        self.num_compared = 0
        self.first_difference: FirstDifference | None = None
        self.last_step = max(reference, default=0)

    def wants(self, step: int) -> bool:
        """Whether comparing `step` can still change the verdict; cheap enough to ask at every step."""
        return step <= self.last_step and self.first_difference is None

    def begin(self, first_step: int) -> FirstDifference | None:
        """Check that the first step trained is the one after the checkpoint."""
        if self._start_step is None or first_step == self._start_step + 1 or self.first_difference is not None:
            return None
        expected = self._start_step + 1
        self.first_difference = FirstDifference(
            step=min(first_step, expected), field="start_step", before=float(expected), after=float(first_step)
        )
        return self.first_difference

    def compare(self, step: StepWitness) -> FirstDifference | None:
        """Compare one attempt with the earlier one; a difference is returned once, at the step that shows it."""
        if step.step > self.last_step or self.first_difference is not None:
            return None
        before = self._reference.get(step.step)
        if before is None:
            return None
        self._num_common += 1
        any_field = False
        first: _Difference | None = None
        beside: list[str] = []
        equal: list[str] = []
        for difference, name in self._fields(before, step):
            any_field = True
            if difference is None:
                equal.append(name)
                continue
            if difference.relative is not None:
                if self._largest is None or difference.relative > self._largest[0]:
                    self._largest = (difference.relative, step.step, difference)
            elif first is None:
                first = difference
            elif name not in beside and name != first.field:
                beside.append(name)
        if not any_field:
            return None
        if self.num_compared == 0 and self._against is not None:
            self._against_session = self._against(step.step)
        self._after_first = self.num_compared > 0
        self.num_compared += 1
        if first is None:
            return None
        self._beside = tuple(beside)
        self._same_there = tuple(name for name in equal if name != first.field and name not in beside)
        self.first_difference = FirstDifference(
            step=step.step, field=first.field, part=first.part, before=first.before, after=first.after
        )
        return self.first_difference

    def verdict(self) -> Continuation:
        """What is known so far, with its reason."""
        verdict, reason = self._judge()
        from_step = self._start_step
        if from_step is None:
            from_step = max(0, min(self._reference, default=1) - 1)
        return Continuation(
            verdict=verdict,
            from_step=from_step,
            compared_steps=self.num_compared,
            against=self._against_session,
            first_difference=self.first_difference,
            proven=list(self._proven),
            reason=reason,
        )

    # -- one step --------------------------------------------------------------------------------------------------

    def _fields(self, before: StepWitness, after: StepWitness) -> Iterator[tuple[_Difference | None, str]]:
        """Every field both sides have, in causal order, with its difference or None."""
        for name, b, a in (("batch", before.batch, after.batch), ("rng", before.rng, after.rng)):
            # Digests of another length were made by another method: they say nothing about each other.
            if self._both(name, b, a) and b is not None and a is not None and len(b) == len(a):
                self._count(name)
                yield (None if b == a else _Difference(name, None, b, a)), name
        yield from self._rates(before.lr, after.lr)
        yield from self._scales(before.scale, after.scale)
        pairs = [("loss", before.loss, after.loss), ("grad_norm", before.grad_norm, after.grad_norm)]
        pairs += [(name, before.other.get(name), after.other.get(name)) for name in self._also]
        for name, x, y in pairs:
            if self._both(name, x, y) and x is not None and y is not None:
                self._count(name)
                yield self._numbers(name, None, x, y, self._tolerance), name

    def _rates(
        self, before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]
    ) -> Iterator[tuple[_Difference | None, str]]:
        common = [name for name in before if name in after]
        if not self._both("lr", before or None, after or None) or not common:
            return
        self._count("lr")
        tolerance = Tolerance(rtol=LR_RTOL) if self._tolerance else None
        for name in common:
            old, new = before[name], after[name]
            if len(old) != len(new):
                part = f"{name}, number of groups"
                yield _Difference("lr", part, float(len(old)), float(len(new))), "lr"
                continue
            for group, (x, y) in enumerate(zip(old, new, strict=True)):
                part = name if name == LOGGED else f"{name}[{group}]"
                yield self._numbers("lr", part, x, y, tolerance), "lr"

    def _scales(
        self, before: Mapping[str, float], after: Mapping[str, float]
    ) -> Iterator[tuple[_Difference | None, str]]:
        common = [name for name in before if name in after]
        if not self._both("scale", before or None, after or None) or not common:
            return
        self._count("scale")
        for name in common:
            yield self._numbers("scale", name, before[name], after[name], None), "scale"

    def _numbers(
        self, name: str, part: str | None, before: float, after: float, tolerance: Tolerance | None
    ) -> _Difference | None:
        if same(before, after):
            return None
        tolerated = tolerance is not None and close(before, after, tolerance)
        relative = abs(after - before) / max(abs(before), 1e-300) if tolerated else None
        return _Difference(name, part, before, after, relative)

    def _both(self, name: str, before: object | None, after: object | None) -> bool:
        if (before is None) is (after is None):
            return before is not None
        self._alone.setdefault(name, set()).add("before" if after is None else "after")
        return False

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    # -- the verdict in words --------------------------------------------------------------------------------------

    def _judge(self) -> tuple[Verdict, str]:
        if self.first_difference is not None:
            return "diverged", self._why_diverged(self.first_difference)
        if self.num_compared == 0:
            return "unproven", self._why_nothing()
        if not EVIDENCE & self._counts.keys():
            had = _join(WORDS.get(name, name) for name in self._counts)
            return "unproven", f"only {had} could be compared{self._what_is_missing()}"
        what = f"{_count(self.num_compared, 'step')} trained twice; {self._what_was_compared()}"
        if self._largest is None:
            return "exact", f"{what} equal to the last bit{self._what_is_missing()}{self._one_step()}"
        size, step, largest = self._largest
        where = f"{_name(largest.field, largest.part)} at step {step}"
        reason = f"{what} within the declared tolerance; largest relative difference {size:.3g}, {where}"
        return "within_tolerance", f"{reason}{self._what_is_missing()}{self._one_step()}"

    def _why_nothing(self) -> str:
        if not self._reference:
            if self._began != "restored":
                return f"no overlap, and nothing was restored that could be checked{self._proven_words()}"
            if self._proven:
                return f"no overlap; unproven beyond the restored state (proven: {', '.join(self._proven)})"
            return "no overlap; unproven beyond the restored state (its expectations were not recorded as checked)"
        if self._num_common == 0:
            steps = _count(len(self._reference), "step")
            return f"no overlap: of the {steps} logged before, none was logged again{self._proven_words()}"
        if self._alone:
            sides = "; ".join(
                f"{WORDS.get(name, name)} only {' or '.join(sorted(side))}" for name, side in self._alone.items()
            )
            return f"other witness settings: no field was recorded by both attempts ({sides}){self._proven_words()}"
        return f"metrics not logged: neither attempt recorded a loss or a witness{self._proven_words()}"

    def _proven_words(self) -> str:
        return f"; proven at the restore: {', '.join(self._proven)}" if self._proven else ""

    def _what_was_compared(self) -> str:
        told = []
        for name in (*FIELDS, *self._also):
            count = self._counts.get(name)
            if count:
                word = WORDS.get(name, name)
                told.append(word if count == self.num_compared else f"{word} (on {count})")
        return ", ".join(told)

    def _what_is_missing(self) -> str:
        missing = [WORDS[name] for name in FIELDS[1:] if name not in self._counts]
        return f"; not compared: {', '.join(missing)}" if missing else ""

    def _one_step(self) -> str:
        if self.num_compared > 1:
            return ""
        return "; one step alone cannot show a lost optimizer state, whose effect begins with the second"

    def _why_diverged(self, first: FirstDifference) -> str:
        name = _name(first.field, first.part)
        if first.field == "start_step":
            begin = "checkpoint" if self._began == "restored" else "session's start"
            return (
                f"training went on with step {plain_value(first.after)}, "
                f"but the step after the {begin} is {plain_value(first.before)}"
            )
        said = f"step {first.step}: {name} was {plain_value(first.before)} before and is {plain_value(first.after)}"
        if self._beside:
            said += f" (also different there: {', '.join(WORDS.get(n, n) for n in self._beside)})"
        return f"{said}; {self._hint(first.field)}"

    def _hint(self, name: str) -> str:
        if name in _HINTS:
            return _HINTS_BY_START.get((name, self._began), _HINTS[name])
        inputs = [WORDS[n] for n in ("batch", "rng", "lr", "scale") if n in self._same_there]
        given = f"with the same {_join(inputs)}, " if inputs else ""
        if name == "grad_norm" and "loss" in self._same_there:
            return f"{given}the loss is the same: the backward pass, accumulation or clipping differs"
        if self._after_first:
            return (
                f"{given}earlier steps agree: an update in between was another one, "
                "so look at the optimizer's state, then at weights and nondeterministic kernels"
            )
        return f"{given}the first step already differs: weights or buffers, or nondeterministic kernels"


_HINTS: Final[Mapping[str, str]] = {
    "batch": "the data position was not continued, or the data are others",
    "rng": "the random streams were not put back as the checkpoint left them, or were drawn from in between",
    "lr": "the learning-rate schedule was not continued",
    "scale": "the gradient scaler was not continued",
}
_HINTS_BY_START: Final[Mapping[tuple[str, Began], str]] = {
    ("rng", "went_on"): "the random streams are not those of the earlier attempt at this step: nothing put them back",
    ("batch", "started_over"): "the data come in another order, or are others",
    ("rng", "started_over"): "the random streams were seeded otherwise, or drawn from before the first step",
    ("lr", "started_over"): "the learning-rate schedule is another",
    ("scale", "started_over"): "the gradient scaler began with another scale",
}
"""Of sessions that restored nothing: they continued nothing either, and there is no checkpoint to speak of."""


def _name(name: str, part: str | None) -> str:
    word = WORDS.get(name, name)
    return f"{word} {part}" if part else word


def plain_value(value: float | str | None) -> str:
    """For people: a number as short as it reads back, a digest as far as a person compares it."""
    if isinstance(value, str):
        return value[:12]
    if value is not None and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _join(words: Iterable[str]) -> str:
    listed = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}" if listed else "nothing"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
