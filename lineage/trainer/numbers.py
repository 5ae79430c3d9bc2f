"""Metric values as training code hands them in, made into plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_INT64_MAX: Final = 2**63 - 1


def plain(value: Any) -> float | int | None:
    """A plain number, or None for something that is no single number.

    Tensors and arrays of one element are read with `.item()`: for a tensor on a device this waits for the device,
    which is the price of logging it on this step; `log_every` pays it less often (docs/guide/loop.md, "Logging").
    """
    if hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError):
            return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):  # a bool counts as 0 or 1
        number = int(value)
        return number if -_INT64_MAX <= number <= _INT64_MAX else float(number)
    try:
        return float(value) if hasattr(value, "__float__") else None
    except (TypeError, ValueError, OverflowError):
        return None


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
    """Metrics given as one mapping and as keywords, together; names become strings."""
    if not first:
        return more
    for name in first:
        if type(name) is not str:
            return {str(name): value for name, value in first.items()} | more
    return {**first, **more}
