"""Tagged JSON: Python values that JSON lacks, without pickle and without loss.

Tuples, bytes, ints over 64 bits, non-finite floats and dicts whose keys are not strings are written as an object
with one key that begins with `$`. Everything else is plain JSON. The format is closed: an unknown tag is an error,
since a value that changes its type on the way back is a silent corruption of training state.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any, Final

from lineage_schemas.errors import FormatError

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
MAX_DEPTH: Final = 200
"""Levels of nesting read or written; far above any real state, far below Python's own limit."""


def encode(value: Any, *, where: str = "$") -> Any:
    """Turn a Python value into JSON-ready values.

    Accepts None, bool, int, float, str, bytes, list, tuple, dict. `where` is the path named in an error.

    Raises:
        TypeError: a value of another type, with the path to it.
    """
    return _encode(value, where, 0)


def _encode(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if _INT64_MIN <= value <= _INT64_MAX else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if kind is list:
        return [_encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [_encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]}
    if isinstance(value, dict):
        if all(type(k) is str for k in value) and not any(k.startswith("$") for k in value):
            return {k: _encode(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
        pairs = [
            [_encode(k, f"{where}.<key>", depth + 1), _encode(v, f"{where}[{k!r}]", depth + 1)]
            for k, v in value.items()
        ]
        return {"$dict": pairs}
    raise TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which tagged JSON cannot hold")


def decode(value: Any, *, where: str = "$") -> Any:
    """Turn what `encode` made back into the Python value.

    Raises:
        FormatError: an unknown or malformed tag, or nesting beyond `MAX_DEPTH`, with the path to it.
    """
    return _decode(value, where, 0)


def _decode(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise FormatError(f"tagged JSON nested more than {MAX_DEPTH} levels deep", where)
    if isinstance(value, list):
        return [_decode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    tags = [key for key in value if key.startswith("$")]
    if not tags:
        return {k: _decode(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if len(value) != 1:
        raise FormatError(f"tag {tags[0]!r} stands beside other keys", where)
    return _decode_tag(tags[0], value[tags[0]], where, depth)


def _decode_tag(tag: str, body: Any, where: str, depth: int) -> Any:
    try:
        match tag, body:
            case "$tuple", list():
                return tuple(_decode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(body))
            case "$bytes", str():
                return base64.b64decode(body, validate=True)
            case "$int", str() if len(body) <= 4300:  # Python's own limit on digits
                return int(body)
            case "$float", "nan" | "inf" | "-inf":
                return float(body)
            case "$dict", list():
                return {
                    _decode(k, f"{where}.<key>", depth + 1): _decode(v, f"{where}[{k!r}]", depth + 1) for k, v in body
                }
            case _:
                pass
    except (ValueError, TypeError, binascii.Error) as error:
        raise FormatError(f"malformed {tag!r} in tagged JSON: {error}", where) from error
    raise FormatError(f"unknown or malformed tag {tag!r} in tagged JSON", where)
