"""What a trainer should say at once: the loss jumped after a resume, the learning rate is not where it should be.

Few and precise: each is said once, and only where it can be told from noise. Pure and cheap: a list of floats, a
median now and then; no numpy, since training code may not have it loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from lineage.history.continuation import plain_value, same

BEFORE: Final = 32
"""Losses before the resume that are looked at."""

CHECK_AT: Final = (4, 8, 16, 32)
"""After so many losses the levels are compared; after the last, never again."""

Z: Final = 6.0
MIN_RATIO: Final = 1.05
_TOO_FEW: Final = 8


@dataclass(frozen=True)
class Alert:
    """The fields of an `alert` event."""

    code: str
    message: str
    details: dict[str, object] = field(default_factory=dict)


class LossJump:
    """Tells whether the loss is higher after a resume than before it.

    The level before is the median of the last 32 finite losses, the noise `1.4826 / sqrt 2` times the median change
    from one to the next, both of log losses (of the losses themselves where one is not positive). After 4, 8, 16 and
    32 losses their median is compared with it; it is a jump when it is higher by six deviations of the difference of
    two medians, and by 5 per cent. A level that goes down is no alert.

    Attributes:
        is_done: whether nothing more can be found; the caller may drop the detector.
    """

    def __init__(self, before: Sequence[float]) -> None:
        """Begin with the losses before the resume, in order; of more than 32 the last count."""
        finite = [value for value in before if math.isfinite(value)][-BEFORE:]
        self._log = bool(finite) and min(finite) > 0
        scale = [math.log(value) for value in finite] if self._log else finite
        changes = [abs(b - a) for a, b in pairwise(scale)]
        self._level = median(scale) if scale else 0.0
        self._noise = 1.4826 / math.sqrt(2) * median(changes) if changes else 0.0
        self._num_before = len(scale)
        self._after: list[float] = []
        self.is_done = len(scale) < _TOO_FEW

    def feed(self, step: int, loss: float) -> Alert | None:
        """Take the loss of one step after the resume; the alert, at the step that shows it."""
        if self.is_done or not math.isfinite(loss) or (self._log and loss <= 0):
            return None  # a loss that is no number has an alert of its own
        self._after.append(math.log(loss) if self._log else loss)
        count = len(self._after)
        if count not in CHECK_AT:
            return None
        self.is_done = count == CHECK_AT[-1]
        rise = median(self._after) - self._level
        deviation = math.sqrt(math.pi / 2) * self._noise * math.sqrt(1 / count + 1 / self._num_before)
        smallest = math.log(MIN_RATIO) if self._log else (MIN_RATIO - 1) * max(abs(self._level), 1e-12)
        if rise <= max(Z * deviation, smallest):
            return None
        self.is_done = True
        before, after = (math.exp(v) if self._log else v for v in (self._level, self._level + rise))
        return Alert(
            "loss_jump",
            f"the loss is {after:.5g} after the resume and was {before:.5g} before it (step {step}, {count} steps)",
            {"step": step, "before": before, "after": after, "num_steps": count},
        )


def unexpected_rates(
    expected: Mapping[str, Sequence[float]], taken: Mapping[str, Sequence[float]], *, step: int
) -> Alert | None:
    """An alert when a step was not taken with the learning rates expected for it.

    Args:
        expected: rates per group by optimizer, from the checkpoint's manifest.
        taken: rates the step was taken with.
        step: the step after the checkpoint.

    Not to be asked where the loop sets its rates at the top of each step: a checkpoint then expects those of the step
    before. Whether it does shows at the run's first checkpoint (`follows_expectation`).
    """
    wrong = [
        (f"{name}[{group}]", before, after)
        for name, rates in expected.items()
        for group, (before, after) in enumerate(zip(rates, taken.get(name, ()), strict=False))
        if not same(before, after)
    ]
    if not wrong:
        return None
    part, before, after = wrong[0]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Alert(
        "lr_unexpected",
        f"step {step} was taken with learning rate {plain_value(after)} in {part}, "
        f"the checkpoint expects {plain_value(before)}{more}",
        {"step": step, "groups": [{"group": p, "expected": b, "taken": a} for p, b, a in wrong]},
    )


def follows_expectation(expected: Mapping[str, Sequence[float]], taken: Mapping[str, Sequence[float]]) -> bool | None:
    """Whether the step after a checkpoint, in the session that wrote it, had the rates it expects; None: not known."""
    shared = [name for name in expected if name in taken]
    if not shared:
        return None
    return all(same(x, y) for name in shared for x, y in zip(expected[name], taken[name], strict=False))
