"""The components of a registry: how each kind of state is described, captured, checked and put back.

`describe` gives what must be equal in a resumed process: constants of the objects as they stood when they were tracked
(a scheduler's T_max, an optimizer's betas), because what has moved since then is state, and what differs then is
another recipe. `check` compares saved state with the live objects and changes nothing. `restore` is called only when
every check of every component and every hash was right. Modules, optimizers, schedulers and scalers, loaders: see
the modules of those names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

import torch

from lineage.checkpoint import tree
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
        return {"type": type_name(self.obj)}

    @abstractmethod
    def capture(self) -> Captured: ...

    def check(self, saved: Saved) -> list[Problem]:  # noqa: ARG002  # the default has nothing to look at
        """What does not fit, all of it; changes nothing."""
        return []

    @abstractmethod
    def restore(self, saved: Saved) -> None: ...


def type_name(obj: object) -> str:
    """The class without its module: `__main__` and `train` are one script, and torch moves its own classes about."""
    return type(obj).__qualname__


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


def same_keys(path: str, saved: Any, live: Any) -> list[Problem]:
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
                problems += same_keys(where, saved[key], live[key])
        return problems
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        left, right = _tensor_facts(saved), _tensor_facts(live)
        return [] if left == right else [Problem(path, left, right, "tensors of another shape or type")]
    return []


def _tensor_facts(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def function_name(function: Any) -> str:
    """Without its module, as `type_name`: `python train.py` and `python -m pkg.train` are one training."""
    return str(getattr(function, "__qualname__", "?"))
