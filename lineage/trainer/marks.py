"""Marks found without the user's help: learning rates, loss scales, skipped FP16 steps.

Torch objects are only looked at, never imported: whoever hands one in has loaded torch already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lineage.trainer.numbers import plain


def learning_rates(optimizer: Any) -> list[float]:
    """The learning rate of each parameter group, as plain floats (a tensor learning rate is read from its device).

    Empty where any group has none, or None: an optimizer that finds its own rates has nothing to compare.
    """
    rates = [plain(group.get("lr")) for group in optimizer.param_groups]
    return [float(rate) for rate in rates if rate is not None] if None not in rates else []


def scale_of(scaler: Any) -> float | None:
    """The loss scale, or None for a disabled scaler.

    On a device this waits for it: `get_scale` reads one number back. Before the first `scale()` it is the initial
    scale.
    """
    if not scaler.is_enabled():
        return None
    return float(scaler.get_scale())


@dataclass
class OptimizerWatch:
    """Notes when a tracked optimizer steps and with which learning rates.

    The hooks also fire on a skipped step of a fused optimizer (its kernel decides on the device), so they say that a
    step was attempted; whether it was an update is told from the scale (`ScalerWatch`).
    """

    on_step: Callable[[], None]
    optimizers: dict[str, Any] = field(default_factory=dict)
    used_lr: dict[str, list[float]] = field(default_factory=dict)
    wanted: bool = False
    before_wanted_step: Callable[[], None] | None = None
    _first_lr: Any = None
    _handles: list[Any] = field(default_factory=list)

    def add(self, name: str, optimizer: Any) -> None:
        is_first = not self.optimizers
        self.optimizers[name] = optimizer

        def before(opt: Any, *_: Any) -> None:
            if is_first:
                self._first_lr = opt.param_groups[0].get("lr")
            if self.wanted:
                self.used_lr[name] = learning_rates(opt)
                if self.before_wanted_step is not None:
                    self.before_wanted_step()

        def after(*_: Any) -> None:
            self.on_step()

        self._handles.append(optimizer.register_step_pre_hook(before))
        self._handles.append(optimizer.register_step_post_hook(after))

    @property
    def first_lr(self) -> float | None:
        """Learning rate the first tracked optimizer last stepped with, of its first group; None before a step."""
        return None if (rate := plain(self._first_lr)) is None else float(rate)

    def current(self) -> dict[str, list[float]]:
        """Learning rates now, of the optimizers that have any."""
        return {name: rates for name, optimizer in self.optimizers.items() if (rates := learning_rates(optimizer))}

    def taken_with(self) -> dict[str, list[float]]:
        """Learning rates the step was taken with; of an optimizer that was not stepped, those it has now."""
        return self.current() | {name: rates for name, rates in self.used_lr.items() if rates}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


@dataclass(frozen=True)
class Skip:
    """A scaler backed off: the step's gradients were not finite and its optimizers changed nothing."""

    scaler: str
    before: float
    after: float


@dataclass
class ScalerWatch:
    """Tells skipped steps from the scale before and after `update()`, the same for fused and plain optimizers."""

    scalers: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    _used: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, scaler: Any) -> None:
        self.scalers[name] = scaler
        self.refresh()

    def refresh(self) -> None:
        """Take the scales as they are, as after a restore, without calling a change a skip."""
        self.scale = self._read()

    def note_used(self) -> None:
        """Look at the scales while a step is being taken: one set anew since the last look is then no skip."""
        self._used = self._read()

    def _read(self) -> dict[str, float]:
        return {name: scale for name, scaler in self.scalers.items() if (scale := scale_of(scaler)) is not None}

    def observe(self) -> tuple[list[Skip], Mapping[str, float]]:
        """Skips since the last look, and the scales the step was taken with."""
        skips: list[Skip] = []
        before = {**self.scale, **self._used}
        self._used = {}
        self.refresh()
        for name, after in self.scale.items():
            old = before.get(name, after)
            if after < old:
                skips.append(Skip(name, old, after))
        return skips, before
