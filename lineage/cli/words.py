"""Numbers, durations and states as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

NEVER: Final = datetime.fromtimestamp(0, UTC)
"""Stands in a record that was put together from a log for a time that the log does not tell."""

_STYLES: Final = {
    "running": "green",
    "stalled": "yellow",
    "killed": "red",
    "failed": "red",
    "interrupted": "yellow",
    "preempted": "cyan",
    "completed": "",
}


def state_cell(state: str) -> tuple[str, str]:
    """A state and the style of its cell; the word alone says it, too."""
    return state, _STYLES.get(state, "")


def number(value: float) -> str:
    """Five significant digits: 2.3142, 3e-05, nan."""
    return f"{value:.5g}"


def age(seconds: float) -> str:
    """How long ago, in its two largest units: `12 s`, `3 h 12 m`, `5 d 2 h`."""
    seconds = max(0, int(seconds))
    for size, unit, smaller, sub in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size:,} {unit}" + (f" {rest} {sub}" if rest and seconds < 100 * size else "")
    return f"{seconds} s"


def size(num_bytes: int) -> str:
    """Bytes in the decimal unit that leaves one to three digits: `512 B`, `1.2 MB`."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError(num_bytes)


def moment(at: datetime | float) -> str:
    """A time in UTC: `2026-11-29 13:40:12Z`; `unknown` for `NEVER`, the number for one beyond the calendar."""
    try:
        at = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return str(at)
    if at == NEVER:
        return "unknown"
    return at.replace(tzinfo=None).isoformat(" ", "seconds") + "Z"  # strftime writes the year 1 as `1`
