"""Optimizers as components: by parameter name, where torch's own loading goes by position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from lineage.checkpoint import tree
from lineage.checkpoint.components import Captured, Component, Problem, Saved, function_name, type_name
from lineage.checkpoint.errors import UndeclaredStateError, UnsupportedStateError
from lineage_schemas import tagged
from lineage_schemas.checkpoint import OptimizerGroup, OptimizerLayout

_SHAPED_SLOTS: Final = frozenset(
    [
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "max_exp_avg_sqs",
        "momentum_buffer",
        "square_avg",
        "acc_delta",
        "sum",
        "exp_inf",
        "ax",
        "prev",
        "step_size",
        "grad_avg",
    ]
)
"""Slots of torch's own optimizers that have the shape of their parameter."""
_SCALAR_SLOTS: Final = frozenset({"step", "mu_product", "eta", "mu"})


class OptimizerComponent(Component):
    """Any `torch.optim` optimizer: its state by canonical parameter name, its groups by parameter names.

    torch's own `load_state_dict` matches by position, and accepts swapped parameters, moments of another shape and
    changed hyper-parameters in silence; this one matches by name and refuses.
    """

    family = "optimizer"
    obj: torch.optim.Optimizer

    def __init__(self, name: str, obj: torch.optim.Optimizer) -> None:
        super().__init__(name, obj)
        self._declared = [_hyper(group) for group in obj.param_groups]
        self._names: dict[int, str] = {}

    def bind(self, parameter_names: Mapping[int, str]) -> None:
        """Give the names of all tracked parameters, by id; called by the registry when it is sealed.

        Raises:
            UndeclaredStateError: a parameter of this optimizer belongs to no tracked module.
        """
        missing = [
            f"{self.name}.param_groups[{g}].params[{i}]"
            for g, group in enumerate(self.obj.param_groups)
            for i, parameter in enumerate(group["params"])
            if id(parameter) not in parameter_names
        ]
        if missing:
            raise UndeclaredStateError(
                f"optimizer {self.name!r} steps {len(missing)} parameters of no tracked module, {missing[0]} first",
                hint="track the module that owns them too: run.track(model=...)",
                paths=missing,
            )
        self._names = dict(parameter_names)

    def describe(self) -> dict[str, Any]:
        return {}  # compared by name and group in `layout`

    def layout(self) -> OptimizerLayout:
        """Type, and per group the parameter names, the values now, and the values when it was tracked."""
        groups = []
        for index, group in enumerate(self.obj.param_groups):
            declared = self._declared[index] if index < len(self._declared) else _hyper(group)
            groups.append(
                OptimizerGroup(
                    params=[self._names[id(p)] for p in group["params"]], hyper=_hyper(group), declared=declared
                )
            )
        return OptimizerLayout(name=self.name, type=type_name(self.obj), groups=groups)

    def learning_rates(self) -> list[float]:
        """The rate of each group; NaN where it has none that is a number, as in one that finds its own."""
        return [_rate(group.get("lr")) for group in self.obj.param_groups]

    def _by_name(self) -> dict[str, torch.nn.Parameter]:
        return {self._names[id(p)]: p for group in self.obj.param_groups for p in group["params"]}

    def capture(self) -> Captured:
        state = {name: dict(self.obj.state[p]) for name, p in self._by_name().items() if self.obj.state.get(p)}
        flat = tree.flatten(state, self.name, self.name)
        return Captured(wire=flat.wire, optim=flat.tensors)

    def check(self, saved: Saved) -> list[Problem]:
        problems: list[Problem] = []
        live = self._by_name()
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        for name, slots in state.items():
            path = f"optimizer.{self.name}.state.{name}"
            if name not in live:
                problems.append(Problem(path, "present", None, "no such parameter"))
                continue
            for slot, value in slots.items():
                shape = list(value.shape) if isinstance(value, torch.Tensor) else None
                if slot in _SHAPED_SLOTS and shape is not None and shape not in ([], list(live[name].shape)):
                    problems.append(
                        Problem(f"{path}.{slot}", shape, list(live[name].shape), "a slot has its parameter's shape")
                    )
                if slot in _SCALAR_SLOTS and shape is not None and math.prod(shape) != 1:
                    problems.append(Problem(f"{path}.{slot}", shape, [], "this slot is one number"))
        return problems

    def restore(self, saved: Saved) -> None:
        raise NotImplementedError("call restore_layout, which needs the saved groups too")

    def restore_layout(self, saved: Saved, layout: OptimizerLayout) -> None:
        """Put slots and hyper-parameters back; groups and names are equal, as the plan has checked."""
        live = self._by_name()
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        for index, (group, kept) in enumerate(zip(self.obj.param_groups, layout.groups, strict=True)):
            for key, value in kept.hyper.items():
                if f"optimizer.{self.name}.groups[{index}].hyper.{key}" not in saved.keep_live:
                    _put_hyper(group, key, value)
            on_device = bool(group.get("capturable") or group.get("fused"))
            for parameter in group["params"]:
                slots = state.get(self._names[id(parameter)])
                if slots is None:
                    self.obj.state.pop(parameter, None)
                    continue
                self.obj.state[parameter] = {
                    slot: _placed(value, parameter, stays=slot == "step" and not on_device)
                    for slot, value in slots.items()
                }
        del live


def _rate(lr: Any) -> float:
    try:
        return float(lr)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


def _placed(value: Any, parameter: torch.Tensor, *, stays: bool) -> Any:
    """Move a slot's tensors to its parameter; a step counter stays on the CPU unless the kernel wants it there."""
    if isinstance(value, torch.Tensor):
        return value if stays else value.to(parameter.device)
    if isinstance(value, list):
        return [_placed(v, parameter, stays=stays) for v in value]
    return value


def _hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _hyper_value(key, value) for key, value in group.items() if key not in ("params", "param_names")}


def _hyper_value(key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": tagged.encode(value.tolist()), "dtype": str(value.dtype)}
    if callable(value):
        return {"function": function_name(value)}
    try:
        return tagged.encode(value, where=key)
    except TypeError as error:
        raise UnsupportedStateError(f"hyper-parameter {key} of an optimizer cannot be saved: {error}") from error


def _put_hyper(group: dict[str, Any], key: str, value: Any) -> None:
    live = group.get(key)
    if isinstance(value, dict) and "function" in value:
        return
    if isinstance(value, dict) and "tensor" in value:
        plain = tagged.decode(value["tensor"])
        if isinstance(live, torch.Tensor):
            live.detach().copy_(torch.tensor(plain, dtype=live.dtype))
        else:
            group[key] = plain
        return
    plain = tagged.decode(value)
    if isinstance(live, torch.Tensor):
        live.detach().fill_(plain)
    else:
        group[key] = plain
