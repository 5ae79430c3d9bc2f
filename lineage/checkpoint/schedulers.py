"""Learning-rate schedulers and gradient scalers as components: position is state, everything else is a constant."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import torch

from lineage.checkpoint import tree
from lineage.checkpoint.components import Captured, Component, Problem, Saved, function_name, same_keys, type_name
from lineage.checkpoint.errors import SaveRefusedError
from lineage_schemas import tagged

_MOVING: Final = frozenset(
    [
        "last_epoch",
        "_step_count",
        "_last_lr",
        "_get_lr_called_within_step",
        "_is_initial",
        "_opt_called",
        "T_cur",
        "T_i",
        "best",
        "num_bad_epochs",
        "cooldown_counter",
        "verbose",
    ]
)
"""What a scheduler changes as it runs; everything else in its state is a constant of the schedule."""


class SchedulerComponent(Component):
    """Any `torch.optim.lr_scheduler`: position from the checkpoint, constants compared.

    torch loads `T_max`, `milestones` or `base_lrs` of the old schedule over those of a new recipe in silence, and
    saves no function of a LambdaLR. Here constants that differ refuse, and functions are compared by the digest of
    their code and by the plain values they close over.
    """

    family = "scheduler"

    def __init__(self, name: str, obj: Any) -> None:
        super().__init__(name, obj)
        self._declared = self._constants()

    def owned(self) -> Iterator[object]:
        yield self.obj
        yield from _children(self.obj)

    def describe(self) -> dict[str, Any]:
        return {"type": type_name(self.obj), "constants": self._declared}

    def _constants(self) -> dict[str, Any]:
        state = _plain_state(self.obj)
        functions = _functions(self.obj)
        constants = _without_moving(state)
        if functions:
            constants["functions"] = functions
        encoded = _describe_value(constants)
        return encoded if isinstance(encoded, dict) else {}

    def capture(self) -> Captured:
        flat = tree.flatten(_plain_state(self.obj), self.name, self.name)
        return Captured(wire=flat.wire, extra=flat.tensors)

    def check(self, saved: Saved) -> list[Problem]:
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        live = _plain_state(self.obj)
        return same_keys(f"component.{self.name}.state", state, live)

    def restore(self, saved: Saved) -> None:
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        live = _plain_state(self.obj)
        prefix = f"component.{self.name}.constants."
        kept = {path.removeprefix(prefix) for path in saved.keep_live if path.startswith(prefix)}
        _keep(state, live, kept)
        # Functions were left out: `load_state_dict` updates attributes, and absent ones stay as they are.
        self.obj.load_state_dict(state)


def _children(scheduler: Any) -> Iterator[Any]:
    for child in getattr(scheduler, "_schedulers", ()):
        yield child
        yield from _children(child)


def _plain_state(scheduler: Any) -> dict[str, Any]:
    """`state_dict()` without functions, which belong to the code and not to a checkpoint."""

    def strip(state: Any) -> Any:
        if isinstance(state, dict) and type(state) is dict:
            return {k: strip(v) for k, v in state.items() if not _is_function(v)}
        if isinstance(state, list):
            return [strip(v) for v in state]
        return state

    state = strip(scheduler.state_dict())
    return state if isinstance(state, dict) else {}


def _is_function(value: object) -> bool:
    return isinstance(
        value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | types.BuiltinMethodType
    )


def _without_moving(state: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in state.items():
        if key in _MOVING:
            continue
        if key == "_schedulers":
            kept[key] = [_without_moving(child) for child in value]
        else:
            kept[key] = value
    return kept


def _functions(scheduler: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in vars(scheduler).items():
        if key in ("optimizer", "step"):
            continue
        items = value if isinstance(value, list | tuple) else [value]
        for index, item in enumerate(items):
            if _is_function(item):
                label = f"{prefix}{key}[{index}]" if items is value else f"{prefix}{key}"
                found[label] = _function_facts(item)
    for index, child in enumerate(getattr(scheduler, "_schedulers", ())):
        found |= _functions(child, f"{prefix}_schedulers[{index}].")
    return found


def _function_facts(function: Any) -> dict[str, Any]:
    """Name, digest of the code, and the plain values a function closes over: what decides what it returns."""
    facts: dict[str, Any] = {"name": function_name(function)}
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if isinstance(code, types.CodeType):
        facts["code"] = f"{sys.version_info[0]}.{sys.version_info[1]}:{_code_digest(code)}"
        cells = inner.__closure__ or ()
        for variable, cell in zip(code.co_freevars, cells, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            if type(value) in (bool, int, float, str):
                facts.setdefault("closure", {})[variable] = value
        defaults = [v for v in inner.__defaults__ or () if type(v) in (bool, int, float, str)]
        if defaults:
            facts["defaults"] = defaults
    return facts


def _code_digest(code: types.CodeType) -> str:
    digest = hashlib.sha256(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        text = _code_digest(constant) if isinstance(constant, types.CodeType) else repr(constant)
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def _describe_value(value: Any) -> Any:
    """Constants as JSON: tensors by value when small, other objects by class name."""
    if isinstance(value, torch.Tensor):
        return {"tensor": tagged.encode(value.tolist())} if value.numel() <= 64 else {"tensor": list(value.shape)}
    if isinstance(value, dict):
        return {str(k): _describe_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_describe_value(v) for v in value]
    try:
        return tagged.encode(value)
    except TypeError:
        return {"object": type_name(value)}


def _keep(saved: Any, live: Any, kept: set[str]) -> None:
    """Put the live value of every constant in `kept` over the saved one."""
    for path in kept:
        node_saved, node_live = saved, live
        *parents, last = path.replace("[", ".[").split(".")
        try:
            for part in parents:
                key: Any = int(part[1:-1]) if part.startswith("[") else part
                node_saved, node_live = node_saved[key], node_live[key]
            final: Any = int(last[1:-1]) if last.startswith("[") else last
            node_saved[final] = node_live[final]
        except (KeyError, IndexError, TypeError):
            continue  # a constant that is no part of the state, a function's closure for one


# ---- gradient scaler -------------------------------------------------------------------------------------------------


class ScalerComponent(Component):
    """A GradScaler, before and after its first `scale()`, enabled or not.

    A disabled scaler saves `{}` and ignores a real state in silence; so whether it is enabled is compared.
    """

    family = "scaler"
    obj: torch.amp.GradScaler

    _CONSTANTS: ClassVar = {"growth_factor": "_growth_factor", "backoff_factor": "_backoff_factor"}

    def __init__(self, name: str, obj: torch.amp.GradScaler) -> None:
        super().__init__(name, obj)
        self._declared = self._constants()

    def _constants(self) -> dict[str, Any]:
        enabled = bool(self.obj.is_enabled())
        constants: dict[str, Any] = {"enabled": enabled, "device": str(self.obj._device)}
        if enabled:
            constants |= {
                "growth_factor": float(self.obj.get_growth_factor()),
                "backoff_factor": float(self.obj.get_backoff_factor()),
                "growth_interval": int(self.obj.get_growth_interval()),
                "init_scale": float(self.obj._init_scale),
            }
        return constants

    def describe(self) -> dict[str, Any]:
        return {"type": "GradScaler", "constants": self._declared}

    def pending(self) -> bool:
        """Whether `step` or `unscale_` was called without the `update` that completes it."""
        if not self.obj.is_enabled():
            return False
        return any(state["stage"].name != "READY" for state in self.obj._per_optimizer_states.values())

    def capture(self) -> Captured:
        if self.pending():
            raise SaveRefusedError(
                f"scaler {self.name!r} has stepped or unscaled without update()",
                hint="save after scaler.update(), when the step is complete",
            )
        state = dict(self.obj.state_dict())
        return Captured(wire=tree.flatten(state, self.name, self.name).wire)

    def check(self, saved: Saved) -> list[Problem]:
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        return same_keys(f"component.{self.name}.state", state, dict(self.obj.state_dict()))

    def restore(self, saved: Saved) -> None:
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        for key, attribute in {**self._CONSTANTS, "growth_interval": "_growth_interval"}.items():
            if f"component.{self.name}.constants.{key}" in saved.keep_live:
                state[key] = getattr(self.obj, attribute)
        if state:
            self.obj.load_state_dict(state)
