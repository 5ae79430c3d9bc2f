"""Nested Python state to tagged JSON plus named tensors, and back, types included.

JSON holds the plain values; every tensor, numpy array or numpy scalar leaves a hole, and `refs` says which named
tensor fills it. `types` names the few other classes that optimizers and schedulers keep (Counter, OrderedDict, deque,
...). The table is closed: a value of another class is an error with its path, since a value that comes back as
something else is a silent corruption of training state.
"""

from __future__ import annotations

import collections
import datetime as dt
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from lineage.checkpoint.errors import UnsupportedStateError
from lineage.checkpoint.tensors import check_supported
from lineage_schemas import tagged
from lineage_schemas.errors import FormatError

_MAX_DEPTH: Final = 100

Path = tuple[Any, ...]


@dataclass
class Flat:
    """State taken apart: `wire` is ready for JSON, `tensors` go into a tensor file under their names."""

    wire: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def flatten(value: Any, prefix: str, where: str) -> Flat:
    """Take `value` apart; tensors are named `<prefix>/<key>/<key>...` and are not copied.

    Raises:
        UnsupportedStateError: a value of a class outside the table, with the path to it from `where`.
    """
    tensors: dict[str, torch.Tensor] = {}
    refs: list[list[Any]] = []
    types: list[list[Any]] = []

    def name_for(path: Path) -> str:
        name = base = "/".join([prefix, *(str(key) for key in path)])
        number = 1
        while name in tensors:
            number += 1
            name = f"{base}~{number}"
        return name

    def hole(path: Path, tensor: torch.Tensor, kind: str) -> None:
        name = name_for(path)
        check_supported(_show(where, path), tensor)
        tensors[name] = tensor
        refs.append([tagged.encode(list(path)), name, kind])

    def walk(item: Any, path: Path) -> Any:
        if len(path) > _MAX_DEPTH:
            raise UnsupportedStateError(f"{_show(where, path)[:200]} is nested too deep to be saved")
        match item:
            case torch.Tensor():
                hole(path, item, "parameter" if isinstance(item, torch.nn.Parameter) else "tensor")
                return None
            case np.ndarray() | np.generic():
                hole(path, _from_numpy(item, _show(where, path)), "array" if isinstance(item, np.ndarray) else "number")
                return None
            case bool() | int() | float() | str() | bytes() | None if type(item) in _PLAIN:
                return item
        kind = type(item)
        nested = item
        if kind in (list, tuple):
            return kind(walk(v, (*path, i)) for i, v in enumerate(nested))
        if kind is dict:
            return {_key(k, where, path): walk(v, (*path, k)) for k, v in nested.items()}
        packed = _pack(item)
        if packed is None:
            raise UnsupportedStateError(
                f"{_show(where, path)} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold",
                hint="give plain numbers, strings, containers and tensors in state_dict",
            )
        name, body = packed
        types.append([tagged.encode(list(path)), name])
        return walk(body, path)

    skeleton = walk(value, ())
    wire: dict[str, Any] = {"value": tagged.encode(skeleton, where=where)}
    if refs:
        wire["refs"] = refs
    if types:
        wire["types"] = types
    return Flat(wire, tensors)


def unflatten(wire: Any, get: Callable[[str], torch.Tensor], where: str) -> Any:
    """Put state back together; `get` gives the tensor of a name, which becomes the caller's.

    Raises:
        FormatError: malformed, or a name or type that `flatten` never writes.
    """
    if not isinstance(wire, dict) or "value" not in wire:
        raise FormatError("a component's state has no value", where)
    value = tagged.decode(wire["value"], where=where)
    holes: dict[Path, tuple[str, str]] = {}
    types: dict[Path, list[str]] = collections.defaultdict(list)
    try:
        for path, name, kind in wire.get("refs", []):
            if not isinstance(name, str) or kind not in _KINDS:
                raise FormatError(f"a reference of kind {kind!r} is unknown", where)
            holes[tuple(tagged.decode(path, where=where))] = (name, kind)
        for path, name in wire.get("types", []):
            types[tuple(tagged.decode(path, where=where))].append(name)
    except (TypeError, ValueError) as error:
        raise FormatError(f"malformed references in a component's state: {error}", where) from error

    def build(item: Any, path: Path) -> Any:
        if path in holes:
            name, kind = holes[path]
            return _KINDS[kind](get(name))
        if isinstance(item, list | tuple):
            built: Any = type(item)(build(v, (*path, i)) for i, v in enumerate(item))
        elif isinstance(item, dict):
            built = {k: build(v, (*path, k)) for k, v in item.items()}
        else:
            built = item
        # Packed from the outside in, so unpacked from the inside out.
        for name in reversed(types.get(path, ())):
            built = _unpack(name, built, where)
        return built

    return build(value, ())


_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def _show(where: str, path: Path) -> str:
    return where + "".join(f".{k}" if isinstance(k, str) else f"[{k!r}]" for k in path)


def _key(key: Any, where: str, path: Path) -> Any:
    if type(key) in _PLAIN or (type(key) is tuple and all(type(k) in _PLAIN for k in key)):
        return key
    raise UnsupportedStateError(
        f"{_show(where, path)} has a key of type {type(key).__qualname__}, which a checkpoint cannot hold"
    )


def _from_numpy(item: np.ndarray[Any, Any] | np.generic, where: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(item, copy=True))
    except TypeError as error:
        raise UnsupportedStateError(
            f"{where} is a numpy value of dtype {item.dtype}, which has no tensor type"
        ) from error


def _to_number(tensor: torch.Tensor) -> Any:
    return tensor.numpy()[()]


_KINDS: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    "tensor": lambda tensor: tensor,
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point()),
    "array": lambda tensor: tensor.numpy(),
    "number": _to_number,
}


def _pack(item: Any) -> tuple[str, Any] | None:
    """`(type name, plain body)` of a value of the closed table, else None."""
    kind: Any = type(item)
    if kind is collections.Counter:
        return "collections.Counter", dict(item)
    if kind is collections.OrderedDict:
        return "collections.OrderedDict", dict(item)
    if kind is collections.deque:
        return "collections.deque", [list(item), item.maxlen]
    if kind in (set, frozenset):
        # Sorted where that is possible, so that equal sets give equal bytes.
        return kind.__name__, sorted(item, key=lambda v: (type(v).__name__, repr(v)))
    if kind is torch.Size:
        return "torch.Size", list(item)
    if kind is torch.dtype:
        return "torch.dtype", str(item).removeprefix("torch.")
    if kind is torch.device:
        return "torch.device", str(item)
    if isinstance(item, pathlib.PurePath):
        return "pathlib.Path", str(item)
    if kind is dt.datetime:
        return "datetime.datetime", item.isoformat()
    return None


def _unpack(name: str, body: Any, where: str) -> Any:
    try:
        match name:
            case "collections.Counter":
                return collections.Counter(body)
            case "collections.OrderedDict":
                return collections.OrderedDict(body)
            case "collections.deque":
                return collections.deque(body[0], body[1])
            case "set":
                return set(body)
            case "frozenset":
                return frozenset(body)
            case "torch.Size":
                return torch.Size(body)
            case "torch.dtype" if isinstance(dtype := getattr(torch, body, None), torch.dtype):
                return dtype
            case "torch.device":
                return torch.device(body)
            case "pathlib.Path":
                return pathlib.Path(body)
            case "datetime.datetime":
                return dt.datetime.fromisoformat(body)
            case _:
                pass
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise FormatError(f"malformed {name!r} in a component's state: {error}", where) from error
    raise FormatError(f"unknown type {name!r} in a component's state", where)
