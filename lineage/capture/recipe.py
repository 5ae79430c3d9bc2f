"""The effective configuration of a training program, whatever it is held in, as plain values with a fingerprint."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import json
import os
import sys
import types
import uuid
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeGuard

from lineage.capture.argv import printable
from lineage.capture.redact import mask_value, redact_tree
from lineage.errors import UsageError
from lineage_schemas import tagged
from lineage_schemas.run import Recipe

MAX_VALUES: Final = 1_000_000
MAX_DEPTH: Final = 100
_SMALL_ARRAY: Final = 64


def capture_recipe(config: object) -> Recipe:
    """The recipe in any usual holder: its plain values in tagged JSON, secrets masked, and their fingerprint.

    Holders, at any depth: mappings, dataclasses, Pydantic models, argparse Namespaces, OmegaConf (interpolations
    resolved), attrs, and plain objects by their public attributes. None is the empty recipe. Leaves:

    - paths, datetimes, UUIDs, decimals, torch dtypes and devices: their text
    - enum members: their value; NumPy scalars: the Python number; small arrays and tensors: lists
    - classes and functions: `module.qualname`; a partial: that with its arguments; sets: sorted lists
    - larger arrays and tensors: dtype, shape and SHA-256
    - any other object: `<module.qualname>`, without the address that would differ in each process

    Dicts whose keys are not all strings are sorted, so that order of insertion makes no other recipe.

    Raises:
        UsageError: it holds a million values or is nested a hundred deep: that is data, and no recipe.
    """
    # An argparse Namespace and the like may hold anything; what cannot be read of it is said in its place.
    plain = {} if config is None else _Plain().convert(config, 0)
    redacted = redact_tree(plain)
    value = tagged.encode(redacted.value, where="recipe")
    return Recipe(value=value, fingerprint=recipe_fingerprint(value), masked=redacted.masked)


def recipe_fingerprint(value: Any) -> str:
    """SHA-256 over the canonical text of a recipe's tagged JSON.

    Canonical: JSON in UTF-8, keys sorted by code point, no white space, nothing escaped but what JSON must escape,
    integers without a point, floats in Python's shortest form, always with a point or an exponent: the integer 1 and
    the float 1.0 are different recipes, and so are true and 1.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def qualified_name(thing: Any) -> str:
    """`module.qualname` of a class, function or method."""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", type(thing).__qualname__)
    module = getattr(thing, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


class _Plain:
    """One conversion: counts its values and knows the objects it stands in."""

    def __init__(self) -> None:
        self.num_values = 0
        self.open: set[int] = set()

    def convert(self, value: object, depth: int) -> Any:
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise UsageError(
                f"the recipe holds more than {MAX_VALUES} values", hint="hand in the configuration, not the data"
            )
        if depth > MAX_DEPTH:
            raise UsageError(f"the recipe is nested more than {MAX_DEPTH} deep", hint="hand in plain settings")
        leaf = self._leaf(value)
        if leaf is not _NO_LEAF:
            return leaf
        if id(value) in self.open:
            return f"<the {qualified_name(type(value))} that holds this>"
        self.open.add(id(value))
        try:
            return self._holder(value, depth + 1)
        finally:
            self.open.discard(id(value))

    def _leaf(self, value: object) -> Any:
        """`value` as one plain value, or `_NO_LEAF`; subclasses of the plain types become those types."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, enum.Enum):
            inner = self._leaf(value.value)
            return value.name if inner is _NO_LEAF else inner
        if isinstance(value, str):
            return printable(str.__str__(value))
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, os.PathLike):
            path = os.fspath(value)
            return printable(os.fsdecode(path))
        if isinstance(value, dt.date | dt.time):
            return value.isoformat()
        if isinstance(value, dt.timedelta | decimal.Decimal | fractions.Fraction | uuid.UUID | complex | range):
            return str(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
            return qualified_name(value)
        return _leaf_of_library(value)

    def _holder(self, value: object, depth: int) -> Any:
        if isinstance(value, functools.partial):
            call = {"partial": value.func, "args": value.args, "kwargs": value.keywords}
            return self._dict(call, depth)
        fields = _fields_of(value)
        if fields is not None:
            return self._dict(fields, depth)
        if isinstance(value, tuple):
            return tuple(self.convert(item, depth) for item in value)
        if isinstance(value, AbstractSet):
            return sorted((self.convert(item, depth) for item in value), key=_order)
        if _is_listlike(value):
            return [self.convert(item, depth) for item in value]
        attributes = _public_attributes(value)
        if attributes:
            return self._dict(attributes, depth)
        return f"<{qualified_name(type(value))}>"

    def _dict(self, fields: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key, value in fields.items():
            name = self._leaf(key)
            if name is _NO_LEAF:
                name = self.convert(key, depth)
                name = name if isinstance(name, tuple) else str(name)
            out[name] = self.convert(value, depth)
        if all(type(key) is str and not key.startswith("$") for key in out):
            return out
        return dict(sorted(out.items(), key=lambda entry: _order(entry[0])))


class _NoLeaf(enum.Enum):
    NO_LEAF = enum.auto()


_NO_LEAF: Final = _NoLeaf.NO_LEAF


def _order(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _loaded(module: str, *names: str) -> tuple[type, ...]:
    """Classes of a library, where this process has loaded it: what is not loaded has made no value."""
    found = (getattr(sys.modules.get(module), name, None) for name in names)
    return tuple(one for one in found if isinstance(one, type))


def _leaf_of_library(value: object) -> Any:
    if isinstance(value, _loaded("pydantic", "SecretStr", "SecretBytes")):
        secret = value.get_secret_value()  # type: ignore[attr-defined]  # both classes have it
        # Masked here and now, whatever the field is called: its type says that it is a secret.
        return mask_value(secret if isinstance(secret, str) else secret.decode("latin-1"))
    if isinstance(value, _loaded("numpy", "generic")):
        item = value.item()  # type: ignore[attr-defined]  # numpy.generic has it
        return item if isinstance(item, bool | int | float | str | bytes) else str(item)
    if isinstance(value, (*_loaded("numpy", "dtype"), *_loaded("torch", "dtype", "device", "layout"))):
        return str(value)
    if isinstance(value, _loaded("numpy", "ndarray")):
        return _array(value, value)
    if isinstance(value, _loaded("torch", "Tensor")):
        return _tensor(value)
    return _NO_LEAF


def _array(array: Any, named: Any) -> Any:
    if array.size <= _SMALL_ARRAY and array.dtype.kind in "biuf":
        return array.tolist()
    digest = f" sha256 {hashlib.sha256(array.tobytes()).hexdigest()}" if array.dtype.kind != "O" else ""
    return f"<{qualified_name(type(named))} {array.dtype} {list(array.shape)}{digest}>"


def _tensor(tensor: Any) -> Any:
    try:
        return _array(tensor.detach().cpu().numpy(), tensor)
    except Exception:  # noqa: BLE001  # bfloat16, sparse, meta, or a subclass: its kind must do
        return f"<{qualified_name(type(tensor))} {tensor.dtype} {list(tensor.shape)}>"


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    """What a holder that names its fields holds; None when it is no such holder."""
    if isinstance(value, _loaded("omegaconf", "DictConfig", "ListConfig")):
        return None if _is_listlike(value) else _omegaconf(value)
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value):
        return _attributes(value, [field.name for field in dataclasses.fields(value)])
    cls: Any = type(value)
    if isinstance(value, _loaded("pydantic", "BaseModel")):
        extra: Any = value
        return _attributes(value, [*cls.model_fields, *cls.model_computed_fields, *(extra.model_extra or {})])
    if hasattr(cls, "__attrs_attrs__"):
        return _attributes(value, [attribute.name for attribute in cls.__attrs_attrs__])
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return dict(zip(cls._fields, value, strict=False))
    if hasattr(cls, "keys") and hasattr(cls, "__getitem__"):  # ml_collections and its like
        return {key: value[key] for key in value.keys()}  # noqa: SIM118  # it may iterate over anything
    return None


def _omegaconf(value: Any) -> Mapping[Any, Any]:
    """A DictConfig with its interpolations resolved, as far as they can be; `???` stays for what is missing."""
    omegaconf: Any = sys.modules["omegaconf"].OmegaConf
    try:
        plain = omegaconf.to_container(value, resolve=True, throw_on_missing=False)
    except Exception:  # noqa: BLE001  # an interpolation into nowhere: the text of it is the truth then
        plain = omegaconf.to_container(value, resolve=False)
    return plain if isinstance(plain, Mapping) else {}


def _is_listlike(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, (list, *_loaded("omegaconf", "ListConfig"), *_loaded("collections", "deque", "UserList")))


def _public_attributes(value: object) -> dict[str, Any]:
    names = list(getattr(value, "__dict__", ()))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return _attributes(value, [name for name in dict.fromkeys(names) if not name.startswith("_")])


def _attributes(value: object, names: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in names:
        try:
            fields[name] = getattr(value, name)
        except AttributeError:
            continue
        except Exception as error:  # noqa: BLE001  # a property of the user's may do anything
            fields[name] = f"<unreadable: {type(error).__name__}>"
    return fields
