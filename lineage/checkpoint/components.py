"""The components of a registry: how each kind of state is described, captured, checked and put back.

`describe` gives what must be equal in a resumed process: constants of the objects as they stood when they were tracked
(a scheduler's T_max, an optimizer's betas), because what has moved since then is state, and what differs then is
another recipe. `check` compares saved state with the live objects and changes nothing. `restore` is called only when
every check of every component and every hash was right.
"""

from __future__ import annotations

import hashlib
import math
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable

import torch

from lineage.checkpoint import names, tree
from lineage.checkpoint.errors import SaveRefusedError, UndeclaredStateError, UnsupportedStateError
from lineage.checkpoint.tensors import copy_into
from lineage_schemas import tagged
from lineage_schemas.checkpoint import OptimizerGroup, OptimizerLayout
from lineage_schemas.errors import FormatError

FAMILIES: Final = ("model", "optimizer", "scheduler", "scaler", "loader", "rng", "counters")
"""Each is present or declared absent in every training checkpoint."""


@dataclass(frozen=True)
class Problem:
    """One reason why saved state does not fit the live object; becomes a finding that refuses.

    Attributes:
        loadable: the state can be loaded all the same: a fork may, and a person may take responsibility.
    """

    path: str
    saved: Any
    live: Any
    rule: str
    loadable: bool = False


@dataclass
class Captured:
    """What a component holds at a step boundary; tensors are live memory, not copies.

    Attributes:
        wire: plain state, ready for state.rNNNNN.json; None when all of it is in tensors.
        own: tensors of the component's own file (modules), by canonical name.
        optim: tensors of optim.rNNNNN.safetensors.
        extra: tensors of extra.rNNNNN.safetensors.
    """

    wire: Any = None
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    optim: dict[str, torch.Tensor] = field(default_factory=dict)
    extra: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Saved:
    """What a generation holds for one component. `tensor` gives a staged tensor, which becomes the caller's.

    During `check` nothing is staged yet, and `tensor` gives an empty stand-in of the saved shape and type.
    """

    wire: Any
    own: Mapping[str, torch.Tensor]
    tensor: Callable[[str], torch.Tensor]
    keep_live: frozenset[str] = frozenset()
    """Paths of constants that differ and were allowed to: the live value stays."""


@runtime_checkable
class Stateful(Protocol):
    """What a user's own object needs to be tracked.

    It may also have `check_state_dict(state) -> Iterable[str]`, which says what does not fit without changing
    anything, and `lineage_version: int`, which must be equal on both sides.
    """

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Component(ABC):
    """One registered piece of state."""

    family: str
    scope: Literal["global", "rank"] = "global"
    version: int = 1

    def __init__(self, name: str, obj: Any) -> None:
        self.name = name
        self.obj = obj

    def owned(self) -> Iterator[object]:
        """Objects this component speaks for, so that the audit does not ask about them again."""
        yield self.obj

    def describe(self) -> dict[str, Any]:
        """Constants that must be equal on both sides, ready for JSON."""
        return {"type": _type_name(self.obj)}

    @abstractmethod
    def capture(self) -> Captured: ...

    def check(self, saved: Saved) -> list[Problem]:  # noqa: ARG002  # the default has nothing to look at
        """What does not fit, all of it; changes nothing."""
        return []

    @abstractmethod
    def restore(self, saved: Saved) -> None: ...


def _type_name(obj: object) -> str:
    """The class without its module: `__main__` and `train` are one script, and torch moves its own classes about."""
    return type(obj).__qualname__


# ---- modules ---------------------------------------------------------------------------------------------------------


class ModuleComponent(Component):
    """A module: parameters and buffers under canonical names in a tensor file of its own.

    Also saved, beside it: buffers registered as non-persistent (a module's `state_dict` drops them, and some change),
    what `get_extra_state` gives, and which gradients were zero tensors instead of None (an optimizer steps on the
    one and skips the other).
    """

    obj: torch.nn.Module

    def __init__(self, name: str, obj: torch.nn.Module, family: str = "model") -> None:
        super().__init__(name, obj)
        self.family = family

    def owned(self) -> Iterator[object]:
        yield from self.obj.modules()

    @property
    def prefix(self) -> str:
        """What stands before this module's names where names of several modules meet."""
        return "" if self.name == "model" else f"{self.name}/"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by canonical name; a tied tensor once, under its first name."""
        return self._split()[0]

    def aliases(self) -> dict[str, str]:
        """Further names of tied tensors, to the name they are saved under."""
        return self._split()[1]

    def _split(self) -> tuple[dict[str, torch.Tensor], dict[str, str], dict[str, torch.Tensor]]:
        found: dict[str, torch.Tensor] = {}
        aliases: dict[str, str] = {}
        passing: dict[str, torch.Tensor] = {}
        first: dict[int, str] = {}
        for name, tensor, persistent in self._all():
            if not persistent:
                passing[name] = tensor
            elif id(tensor) in first:
                aliases[name] = first[id(tensor)]
            else:
                first[id(tensor)] = name
                found[name] = tensor
        return found, aliases, passing

    def _all(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        for name, parameter in names.named_parameters(self.obj):
            yield name, parameter, True
        yield from names.named_buffers(self.obj)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by canonical name, each once."""
        found: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for name, parameter in names.named_parameters(self.obj):
            found.setdefault(id(parameter), (name, parameter))
        return dict(found.values())

    def describe(self) -> dict[str, Any]:
        inner = names.unwrap(self.obj)
        frozen = sorted(n for n, p in self.parameters().items() if not p.requires_grad)
        return {"type": _type_name(inner), "frozen": frozen}

    def gradients(self) -> Literal["cleared", "zeroed", "left over"]:
        """Whether gradients are None, zero tensors, or what the last step left (which no checkpoint keeps)."""
        state: Literal["cleared", "zeroed"] = "cleared"
        for parameter in self.parameters().values():
            if parameter.grad is not None:
                if bool(parameter.grad.any()):
                    return "left over"
                state = "zeroed"
        return state

    def capture(self) -> Captured:
        tensors, _, passing = self._split()
        value: dict[str, Any] = {}
        if passing:
            value["nonpersistent"] = passing
        extra_states = {name: owner.get_extra_state() for name, owner in self._with_extra_state()}
        if extra_states:
            value["extra_state"] = extra_states
        if self.gradients() == "zeroed":
            value["zero_grads"] = [n for n, p in self.parameters().items() if p.grad is not None]
        flat = tree.flatten(value, self.name, self.name)
        return Captured(wire=flat.wire, own=tensors, extra=flat.tensors)

    def _with_extra_state(self) -> Iterator[tuple[str, Any]]:
        for name, owner in names.unwrap(self.obj).named_modules():
            if type(owner).get_extra_state is not torch.nn.Module.get_extra_state:
                yield names.canonical(name), owner

    def check(self, saved: Saved) -> list[Problem]:
        value = tree.unflatten(saved.wire, saved.tensor, self.name)
        problems: list[Problem] = []
        live_passing = self._split()[2]
        for kind, live_names in (
            ("nonpersistent", set(live_passing)),
            ("extra_state", {name for name, _ in self._with_extra_state()}),
        ):
            saved_names = set(value.get(kind, ()))
            for name in sorted(saved_names ^ live_names):
                sides = ("present" if name in saved_names else None, "present" if name in live_names else None)
                path = f"component.{self.name}.{kind}.{name}"
                problems.append(Problem(path, *sides, "the model is built differently"))
        unknown = set(value.get("zero_grads", ())) - set(self.parameters())
        problems.extend(
            Problem(f"component.{self.name}.zero_grads.{n}", "present", None, "no such parameter")
            for n in sorted(unknown)
        )
        return problems

    def restore(self, saved: Saved) -> None:
        value = tree.unflatten(saved.wire, saved.tensor, self.name)
        for name, live in self.tensors().items():
            copy_into(live, saved.own[name])
        passing = value.get("nonpersistent", {})
        for prefix, owner in names.unwrap(self.obj).named_modules(remove_duplicate=False):
            for short in list(owner._buffers):
                tensor = passing.get(names.canonical(f"{prefix}.{short}" if prefix else short))
                live_buffer = owner._buffers[short]
                if tensor is None or live_buffer is None or short not in owner._non_persistent_buffers_set:
                    continue
                if live_buffer.shape == tensor.shape and live_buffer.dtype == tensor.dtype:
                    copy_into(live_buffer, tensor)
                else:  # a cache that grows with use
                    owner._buffers[short] = tensor.to(live_buffer.device)
        states = value.get("extra_state", {})
        for name, owner in self._with_extra_state():
            owner.set_extra_state(states[name])
        zeroed = set(value.get("zero_grads", ()))
        for name, parameter in self.parameters().items():
            parameter.grad = torch.zeros_like(parameter) if name in zeroed else None


# ---- optimizers ------------------------------------------------------------------------------------------------------

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
        return OptimizerLayout(name=self.name, type=_type_name(self.obj), groups=groups)

    def learning_rates(self) -> list[float]:
        return [float(group["lr"]) if "lr" in group else math.nan for group in self.obj.param_groups]

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
        return {"function": _function_name(value)}
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


# ---- schedulers ------------------------------------------------------------------------------------------------------

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
        return {"type": _type_name(self.obj), "constants": self._declared}

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
        return _same_keys(f"component.{self.name}.state", state, live)

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


def _function_name(function: Any) -> str:
    """Without its module, as `_type_name`: `python train.py` and `python -m pkg.train` are one training."""
    return str(getattr(function, "__qualname__", "?"))


def _function_facts(function: Any) -> dict[str, Any]:
    """Name, digest of the code, and the plain values a function closes over: what decides what it returns."""
    facts: dict[str, Any] = {"name": _function_name(function)}
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
        return {"object": _type_name(value)}


def _same_keys(path: str, saved: Any, live: Any) -> list[Problem]:
    """Differences in structure where both sides are dicts or hold tensors of another shape or type."""
    if isinstance(saved, dict) and isinstance(live, dict):
        problems = []
        for key in [*saved, *(k for k in live if k not in saved)]:
            where = f"{path}.{key}"
            if key not in saved or key not in live:
                problems.append(
                    Problem(
                        where,
                        "present" if key in saved else None,
                        "present" if key in live else None,
                        "the two states have other keys",
                    )
                )
            else:
                problems += _same_keys(where, saved[key], live[key])
        return problems
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        left, right = _tensor_facts(saved), _tensor_facts(live)
        return [] if left == right else [Problem(path, left, right, "tensors of another shape or type")]
    return []


def _tensor_facts(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


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
        return _same_keys(f"component.{self.name}.state", state, dict(self.obj.state_dict()))

    def restore(self, saved: Saved) -> None:
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        for key, attribute in {**self._CONSTANTS, "growth_interval": "_growth_interval"}.items():
            if f"component.{self.name}.constants.{key}" in saved.keep_live:
                state[key] = getattr(self.obj, attribute)
        if state:
            self.obj.load_state_dict(state)


# ---- everything else -------------------------------------------------------------------------------------------------


class ObjectComponent(Component):
    """Any object with `state_dict` and `load_state_dict`."""

    obj: Stateful

    def __init__(self, name: str, obj: Stateful, family: str) -> None:
        super().__init__(name, obj)
        self.family = family
        self.version = int(getattr(obj, "lineage_version", 1))

    def capture(self) -> Captured:
        flat = tree.flatten(self.obj.state_dict(), self.name, self.name)
        return Captured(wire=flat.wire, extra=flat.tensors)

    def check(self, saved: Saved) -> list[Problem]:
        own_check = getattr(self.obj, "check_state_dict", None)
        if not callable(own_check):
            return []
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        return [
            Problem(f"component.{self.name}", str(text), None, "its own check_state_dict says so")
            for text in own_check(state)
        ]

    def restore(self, saved: Saved) -> None:
        self.obj.load_state_dict(tree.unflatten(saved.wire, saved.tensor, self.name))


class GeneratorComponent(Component):
    """A random generator handed in; captured with the other streams, first, and restored with them, last."""

    family = "rng"
    scope = "rank"

    def capture(self) -> Captured:
        return Captured()

    def restore(self, saved: Saved) -> None:
        """Nothing here: `rng.restore_streams` does it, last."""


def require_wire(states: Mapping[str, Any], name: str, where: str) -> Any:
    """The entry of one component in state.rNNNNN.json."""
    if name not in states:
        raise FormatError(f"there is no state of component {name!r}", where)
    return states[name]
