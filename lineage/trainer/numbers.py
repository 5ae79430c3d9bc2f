"""Metric values as training code hands them in, made into plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from lineage.errors import UsageError
from lineage_schemas.ids import MAX_STEP

_INT64_MAX: Final = 2**63 - 1


def plain(value: Any) -> float | int | None:
    """A plain number, or None for something that is no single number.

    Tensors and arrays of one element are read with `.item()`: for a tensor on a device this waits for the device,
    which is the price of logging it on this step; `log_every` pays it less often (docs/guide/loop.md, "Logging").
    """
    if hasattr(value, "item"):
        try:
            value = value.item()
        except Exception:  # noqa: BLE001  # anybody's object: a metric never ends a training
            return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):  # a bool counts as 0 or 1
        number = int(value)
        if -_INT64_MAX <= number <= _INT64_MAX:
            return number
        try:
            return float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf
    try:
        return float(value) if hasattr(value, "__float__") else None
    except Exception:  # noqa: BLE001  # as above
        return None


def count(value: Any) -> int | None:
    """A whole number from 0 to 2^53, however it is given (an int, 3.0, a NumPy or tensor scalar); None for another."""
    if isinstance(value, bool | str):
        return None
    number = plain(value)
    if number is None or not 0 <= number <= MAX_STEP or number != int(number):
        return None
    return int(number)


def plain_metrics(metrics: dict[str, Any]) -> list[str]:
    """Make every value of `metrics` plain, in place; names of those that were no numbers and were left out."""
    bad: list[str] = []
    for name, value in metrics.items():
        if type(value) is not float:
            number = plain(value)
            if number is None:
                bad.append(name)
            else:
                metrics[name] = number
    for name in bad:
        del metrics[name]
    return bad


def merged(first: Mapping[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Metrics given as one mapping and as keywords, together; names become strings.

    Raises:
        UsageError: `first` is no mapping.
    """
    if not isinstance(first, Mapping):
        if first is None:
            return more
        raise UsageError(
            f"metrics are a mapping of names to numbers, and not a {type(first).__name__}", hint="log(loss=loss)"
        )
    for name in first:
        if type(name) is not str:
            return {str(name): value for name, value in first.items()} | more
    return {**first, **more}
