"""What is stateful and reachable from the tracked objects, but that nobody declared.

The audit walks attributes and containers from every tracked object, and asks the garbage collector for the few things
that belong to a training and are often held by nobody: schedulers of a tracked optimizer, optimizers of tracked
parameters, enabled scalers and data loaders when no such family was declared. It cannot see state in closures,
module globals, C extensions, plain numbers (an EMA's step count), or files (docs/checkpoints.md).
"""

from __future__ import annotations

import functools
import gc
import random
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

_MAX_OBJECTS: Final = 50_000
_MAX_ITEMS: Final = 1_000
_MAX_DEPTH: Final = 12
_OPAQUE_MODULES: Final = (
    "builtins",
    "threading",
    "_thread",
    "multiprocessing",
    "concurrent",
    "asyncio",
    "logging",
    "queue",
    "weakref",
    "collections.abc",
    "types",
    "typing",
    "functools",
    "pathlib",
    "socket",
    "numpy.dtypes",
    "torch._C",
    "torch.utils.data._utils",
    "torch.utils.hooks",
    "torch._dynamo",
    "torch._inductor",
    "lineage.",
    "pydantic",
)


@dataclass(frozen=True)
class Undeclared:
    """One stateful object that nobody speaks for."""

    path: str
    kind: str


def walk(roots: Mapping[str, Any], owned: set[int], excused: set[str]) -> list[Undeclared]:
    """Everything stateful that is reachable from `roots`, is not in `owned` (ids), and was not excused by path."""
    found: list[Undeclared] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = [(path, obj, 0) for path, obj in reversed(list(roots.items()))]
    while stack and len(seen) < _MAX_OBJECTS:
        path, obj, depth = stack.pop()
        if id(obj) in seen or depth > _MAX_DEPTH or path in excused:
            continue
        seen.add(id(obj))
        kind = stateful_kind(obj)
        if kind is not None and id(obj) not in owned:
            found.append(Undeclared(path, kind))
            continue  # what hangs below it is its own business once it is declared
        if isinstance(obj, torch.nn.Module):
            found.extend(
                Undeclared(f"{path}.{name}", "tensor attribute, in no state_dict")
                for name, value in vars(obj).items()
                if isinstance(value, torch.Tensor) and f"{path}.{name}" not in excused and id(value) not in owned
            )
        stack.extend((child_path, child, depth + 1) for child_path, child in reversed(list(_children(path, obj))))
    return found


def stateful_kind(obj: object) -> str | None:
    """What kind of state an object is, or None when it is none that a checkpoint has to hold."""
    if isinstance(obj, type | types.ModuleType | types.FunctionType | types.MethodType):
        return None
    if isinstance(obj, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(obj, torch.optim.lr_scheduler.LRScheduler):
        return "learning-rate scheduler"
    if isinstance(obj, torch.amp.GradScaler):
        return "gradient scaler"
    if isinstance(obj, DataLoader):
        return "data loader"
    if isinstance(obj, Sampler):
        return "sampler"
    if isinstance(obj, random.SystemRandom):
        return None
    if isinstance(obj, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return "random generator"
    if isinstance(obj, torch.nn.Module):
        # A loss or an activation holds nothing.
        return "module" if any(True for _ in obj.parameters()) or any(True for _ in obj.buffers()) else None
    if not isinstance(obj, type) and hasattr(type(obj), "state_dict") and hasattr(type(obj), "load_state_dict"):
        return "object with state_dict"
    return None


def _children(path: str, obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, torch.Tensor | np.ndarray | str | bytes | bytearray | int | float | complex):
        return
    if isinstance(obj, dict):  # no other mapping: reading a lazy one may open files or load gigabytes
        for index, (key, value) in enumerate(list(dict.items(obj))):
            if index >= _MAX_ITEMS:
                break
            yield f"{path}[{key!r}]" if not isinstance(key, torch.Tensor) else f"{path}[...]", value
        return
    if isinstance(obj, list | tuple | set | frozenset):
        for index, value in enumerate(obj):
            if index >= _MAX_ITEMS:
                break
            yield f"{path}[{index}]", value
        return
    if isinstance(obj, torch.nn.Module):
        for name, child in obj._modules.items():
            if child is not None:
                yield f"{path}.{name}", child
        skipped = {"_parameters", "_buffers", "_modules"}
        for name, value in vars(obj).items():
            if name not in skipped and not name.endswith("_hooks") and not name.startswith("_backward"):
                yield f"{path}.{name}", value
        return
    if isinstance(obj, functools.partial):
        yield from ((f"{path}.func", obj.func), (f"{path}.args", obj.args), (f"{path}.keywords", obj.keywords))
        return
    if isinstance(obj, types.MethodType):
        yield f"{path}.__self__", obj.__self__
        return
    if isinstance(obj, DataLoader):
        # Its iterator is made anew by a restore; what decides the batches hangs here.
        for name in ("dataset", "sampler", "batch_sampler", "generator", "collate_fn", "worker_init_fn"):
            yield f"{path}.{name}", getattr(obj, name, None)
        return
    if isinstance(obj, torch.optim.Optimizer):
        skipped = {"state", "param_groups", "defaults"}
        for name, value in vars(obj).items():
            if name not in skipped and "hook" not in name:
                yield f"{path}.{name}", value
        return
    module = type(obj).__module__
    if isinstance(obj, type | types.ModuleType | types.FunctionType | types.MethodType) or any(
        module == opaque.rstrip(".") or module.startswith(opaque.rstrip(".") + ".") for opaque in _OPAQUE_MODULES
    ):
        return
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        yield f"{path}.{name}", value
    for name in _slots(type(obj)):
        value = getattr(obj, name, None)
        if value is not None:
            yield f"{path}.{name}", value


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                yield name


_STATEFUL: Final = (
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.Optimizer,
    torch.amp.GradScaler,
    DataLoader,
)


def in_memory(optimizers: list[Any], parameter_ids: set[int], owned: set[int], declared: set[str]) -> list[Undeclared]:
    """Untracked objects anywhere in the process that this training must be using.

    Families in `declared` (tracked or declared absent) are not looked for. What looks undeclared is looked at again
    after a collection, since garbage is nobody's state.
    """
    found = _scan(optimizers, parameter_ids, owned, declared)
    if found:
        del found
        gc.collect()
        found = _scan(optimizers, parameter_ids, owned, declared)
    return found


def _scan(optimizers: list[Any], parameter_ids: set[int], owned: set[int], declared: set[str]) -> list[Undeclared]:
    tracked = {id(optimizer) for optimizer in optimizers}
    found: list[Undeclared] = []
    children: set[int] = set()
    schedulers: list[Any] = []
    looked_for: dict[type, bool] = {}
    for obj in gc.get_objects():
        kind = type(obj)
        # By class alone, each class asked once: half a million objects are of a few thousand classes, and `isinstance`
        # asks some for attributes they compute.
        wanted = looked_for.get(kind)
        if wanted is None:
            wanted = looked_for[kind] = issubclass(kind, _STATEFUL)
        if not wanted:
            continue
        if issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
            if id(obj) not in owned and id(getattr(obj, "optimizer", None)) in tracked:
                schedulers.append(obj)
                children.update(id(child) for child in getattr(obj, "_schedulers", ()))
        elif issubclass(kind, torch.optim.Optimizer):
            if id(obj) not in owned and any(id(p) in parameter_ids for g in obj.param_groups for p in g["params"]):
                found.append(Undeclared(f"<in memory>.{kind.__qualname__}", "optimizer of tracked parameters"))
        elif issubclass(kind, torch.amp.GradScaler):
            if "scaler" not in declared and id(obj) not in owned and obj.is_enabled():
                found.append(Undeclared(f"<in memory>.{kind.__qualname__}", "enabled gradient scaler"))
        elif issubclass(kind, DataLoader) and "loader" not in declared and id(obj) not in owned:
            found.append(Undeclared(f"<in memory>.{kind.__qualname__}", "data loader, and no loader was declared"))
    if "scheduler" not in declared or schedulers:
        found.extend(
            Undeclared(f"<in memory>.{type(s).__qualname__}", "learning-rate scheduler of a tracked optimizer")
            for s in schedulers
            if id(s) not in children
        )
    return found
