"""Values of options: what is typed becomes a number, and what cannot is answered with what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

_ENDLESS: Final = 1 << 62
"""What a number without an upper bound is cut to: no machine counts so far, and sums of two still fit 64 bits."""
_SHOWN: Final = 60


def whole(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """The `type` of an option that takes a whole number from `least` to `most`; None is no end."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a whole number{_bounds(least, most)}")
        return min(value, _ENDLESS)

    return parse


def real(least: float, most: float) -> Callable[[str], float]:
    """The `type` of an option that takes a number from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:  # nan is in no range
            raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a number{_bounds(least, most)}")
        return value

    return parse


def _bounds(least: float, most: float | None) -> str:
    return f", {least} or more" if most is None else f" from {least} to {most}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
