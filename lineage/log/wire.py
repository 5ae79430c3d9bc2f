"""One event as one line of metrics.jsonl (docs/format.md, "Numbers"); pure, and the hot half of an append."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Final

import orjson

_NEWLINE: Final = orjson.OPT_APPEND_NEWLINE
_dumps = orjson.dumps

_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1
_MAX_DEPTH: Final = 100


def encode_event(fields: Mapping[str, Any]) -> bytes:
    """The line of one event, newline included; floats in the shortest form that reads back as the same float.

    In `metrics`, NaN and infinities become `null` plus an entry of `nonfinite`; elsewhere they become the strings
    `nan`, `inf`, `-inf`. Numbers of numpy and one-element tensors become plain numbers (a tensor on a device costs
    a sync), a bool in `metrics` becomes 1.0 or 0.0. A field whose value is None is left out. Strings that are not
    valid Unicode are written with the bad part as a visible backslash escape, other objects as `<their type>`.

    Raises:
        TypeError: a value in `metrics` is not a number, with its name.
    """
    metrics = fields.get("metrics")
    if metrics is not None:
        for value in metrics.values():
            kind = value.__class__
            if kind is not float and kind is not int:
                return _encode_slowly(fields)
    try:
        line = _dumps(fields, _scalar, _NEWLINE)
    except TypeError:  # an int over 64 bits, a lone surrogate, a key that is no string, a cycle
        return _encode_slowly(fields)
    # orjson writes a non-finite float as null without a word. rfind: a third of the time of `in` on such lines.
    if line.rfind(b"null") < 0:
        return line
    return _encode_slowly(fields)


def _encode_slowly(fields: Mapping[str, Any]) -> bytes:
    plain: dict[str, Any] = {}
    given = fields.get("nonfinite")
    for name, value in fields.items():
        if value is None:
            continue
        if name == "metrics" and isinstance(value, Mapping):
            plain["metrics"], names = _split_metrics(value, given if isinstance(given, Mapping) else {})
            if names:
                plain["nonfinite"] = names
        elif name != "nonfinite":
            plain[text(name)] = _plain(value, ())
    return _dumps(plain, _scalar, _NEWLINE)


def _split_metrics(metrics: Mapping[Any, Any], given: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    finite: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in metrics.items():
        name = text(key)
        if value is None:
            # A wire form that was split before keeps its null; a None of the caller's is no measurement.
            if key in given:
                finite[name], names[name] = None, given[key]
            continue
        number = _metric(name, value)
        if isinstance(number, float) and not math.isfinite(number):
            finite[name], names[name] = None, _nonfinite(number)
        else:
            finite[name] = number
    return finite, names


def _metric(name: str, value: object) -> int | float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int):
        if _INT64_MIN <= value <= _UINT64_MAX:
            return int(value)
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return float(value)
    item = getattr(value, "item", None)
    if callable(item):
        try:
            inner = item()
        except (ValueError, RuntimeError) as error:  # more than one element
            raise TypeError(f"metric {name!r} is not one number: {error}") from error
        if isinstance(inner, (bool, int, float)):
            return _metric(name, inner)
    raise TypeError(f"metric {name!r} is a {_type_name(value)}, not a number")


def _plain(value: object, inside: tuple[int, ...]) -> object:
    """JSON values only; `inside` holds the ids of the containers around, against cycles and bottomless nesting."""
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if _INT64_MIN <= value <= _UINT64_MAX else _digits(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _nonfinite(value)
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        if id(value) in inside:
            return "<circular>"
        if len(inside) >= _MAX_DEPTH:
            return "<nested too deep>"
        inside = (*inside, id(value))
        if isinstance(value, Mapping):
            return {text(k): _plain(v, inside) for k, v in value.items()}
        return [_plain(v, inside) for v in value]
    scalar = _scalar(value)
    return text(scalar) if isinstance(scalar, str) else _plain(scalar, inside) if scalar is not value else None


def _scalar(value: object) -> object:
    """What orjson cannot write: a number of numpy or torch, a path, a date, or anything else by its type's name."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            inner = item()
        except (ValueError, TypeError, RuntimeError):
            return f"<{_type_name(value)}>"
        if isinstance(inner, (bool, int, float, str)):
            return inner
    elif isinstance(value, os.PathLike):
        return text(os.fsdecode(value))
    elif callable(iso := getattr(value, "isoformat", None)):
        return str(iso())
    return f"<{_type_name(value)}>"


def text(value: object) -> str:
    """The string with every lone surrogate as a visible backslash escape."""
    given = value if isinstance(value, str) else str(value)
    return given.encode("utf-8", "backslashreplace").decode("utf-8")


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print more than 4300 digits
        return hex(value)


def _nonfinite(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
