"""Numbers as people write them, and the places where axes put them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from lineage_tui.plot.model import XKind

_MINUTE: Final = 60
_FIRST_YEAR: Final = -62_135_596_800  # 0001-01-01, before which there is no date
_LAST_LABELLED: Final = 1e11  # the year 5138
_HOUR: Final = 3600
_DAY: Final = 86400
LEAST_TICKS: Final = 3
_SUFFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_CLOCK_STEPS: Final = tuple(
    value
    for unit, counts in (
        (1, (1, 2, 5, 10, 15, 30)),
        (_MINUTE, (1, 2, 5, 10, 15, 30)),
        (_HOUR, (1, 2, 3, 6, 12)),
        (_DAY, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
    )
    for value in (unit * count for count in counts)
)


def format_value(value: float, digits: int = 5) -> str:
    """A measured value for a readout: 52,000, 2.4274, 2.4e-4, nan."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e15 or size < 1e-3:
        return _exponent(value, digits - 1)
    if value == int(value):
        return f"{int(value):,}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_short(value: float) -> str:
    """A value in seven characters where that is possible, for the margin of a chart: 2.427, 39.8k, 2.4e-4."""
    size = abs(value)
    if not math.isfinite(value) or size == 0:
        return format_value(value)
    if size >= 9999.5:
        for factor, suffix in _SUFFIXES:
            if size >= factor * 0.9995:
                return f"{value / factor:.3g}{suffix}" if size < factor * 999.5 else _short_exponent(value)
    if size >= 1e-2:
        return format_value(value, 4 if value > 0 else 3)
    return _short_exponent(value)


def _short_exponent(value: float) -> str:
    return next((text for digits in (2, 1) if len(text := _exponent(value, digits)) <= 7), _exponent(value, 0))


def _exponent(value: float, digits: int) -> str:
    """Scientific, without padding: 2.4e-4, 1e-5."""
    mantissa, _, power = f"{value:.{max(digits, 0)}e}".partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(power)}"


def format_duration(seconds: float) -> str:
    """A length of time in its two largest units: 1.5 s, 45 s, 3 h 12 m, 2 d 4 h."""
    if not math.isfinite(seconds):
        return format_value(seconds)
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size < 9.95:
        return f"{sign}{size:.1f} s" if size != int(size) else f"{sign}{int(size)} s"
    total = round(size)
    for unit, name, smaller, small_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "m"),
        (_MINUTE, "m", 1, "s"),
    ):
        if total >= unit:
            rest = (total % unit) // smaller
            return f"{sign}{total // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{sign}{total} s"


def format_clock(ts: float, utc_offset_s: float = 0.0, *, date: bool = True, seconds: bool = True) -> str:
    """Unix seconds as a date and time of day: 2026-11-29 14:05:12."""
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(seconds=ts + utc_offset_s)
    except (OverflowError, ValueError):
        return format_value(ts)
    pattern = ("%Y-%m-%d " if date else "") + ("%H:%M:%S" if seconds else "%H:%M")
    return moment.strftime(pattern)


def format_x(value: float, kind: XKind, utc_offset_s: float = 0.0) -> str:
    """A position on the x axis, in full."""
    if kind == "seconds":
        return format_duration(value)
    if kind == "clock":
        return format_clock(value, utc_offset_s)
    if 1 <= abs(value) < 1e15:
        return f"{round(value):,}"  # steps and tokens are whole; between two of them there is nothing to name
    return format_value(value, 3)


@dataclass(frozen=True)
class Ticks:
    """Where an axis is marked, and what stands there."""

    at: list[float]
    labels: list[str]


NO_TICKS: Final = Ticks([], [])


def linear_ticks(lo: float, hi: float, target: int) -> Ticks:
    """Multiples of 1, 2 or 5 times a power of ten in [lo, hi], about `target` of them, labelled alike."""
    step = nice_step(hi - lo, target)
    if step <= max(abs(lo), abs(hi)) * 1e-14:
        return NO_TICKS  # a window so narrow that doubles can hardly tell its ends apart
    first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
    slack = step * 1e-6
    values = [value for index in range(first, last + 1) if lo - slack <= (value := index * step) <= hi + slack]
    return Ticks(values, _alike(values, step))


def nice_step(span: float, target: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts `span` into at most `target` pieces; 0 if none."""
    if not (math.isfinite(span) and span > 0):
        return 0.0
    rough = span / max(target, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if factor * power >= rough * (1 - 1e-9):
            return factor * power
    return 10.0 * power


def _alike(values: list[float], step: float) -> list[str]:
    """Labels with the same suffix or exponent and the same number of decimals."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest == 0:
        return ["0"] * len(values)
    if largest >= 1e4:
        for factor, suffix in _SUFFIXES:
            if largest >= factor and largest < factor * 1e4:
                decimals = max(0, -math.floor(math.log10(step / factor) + 1e-9))
                if decimals <= 3:
                    return ["0" if value == 0 else f"{value / factor:.{decimals}f}{suffix}" for value in values]
        if largest < 1e12:
            decimals = max(0, -math.floor(math.log10(step) + 1e-9))
            return [f"{value:,.{decimals}f}" for value in values]
        digits = min(math.ceil(math.log10(largest) - math.log10(step)), 16)
        return [_exponent(value, digits) if value else "0" for value in values]
    if largest < 1e-3:
        power = math.floor(math.log10(largest) + 1e-9)
        decimals = max(0, power - math.floor(math.log10(step) + 1e-9))
        return ["0" if value == 0 else f"{value / 10.0**power:.{decimals}f}e{power}" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{0.0 if abs(value) < step / 2 else value:,.{decimals}f}" for value in values]


def log_ticks(lo: float, hi: float, target: int) -> Ticks:
    """Decades in [lo, hi]; with fewer than two of them also 2 and 5, or linear ticks in a very narrow window."""
    if not (0 < lo < hi and math.isfinite(hi)):
        return NO_TICKS
    first, last = math.ceil(math.log10(lo) - 1e-9), math.floor(math.log10(hi) + 1e-9)
    decades = list(range(first, last + 1))
    if len(decades) >= 2:
        every = math.ceil(len(decades) / max(target, 1))
        values = [10.0**power for power in decades if power % every == 0]
        return Ticks(values, [_decade(value) for value in values])
    for factors in ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)):
        values = [
            factor * 10.0**power
            for power in range(first - 1, last + 1)
            for factor in factors
            if lo * (1 - 1e-9) <= factor * 10.0**power <= hi * (1 + 1e-9)
        ]
        if 2 <= len(values) <= max(target, 2) + 2:
            return Ticks(values, [_decade(value) for value in values])
    return linear_ticks(lo, hi, target)


def _decade(value: float) -> str:
    """A tick of a logarithmic axis: 1, 0.01, 1e-5, 1,000, 10k."""
    if value >= 1e15 or value < 1e-3:
        return _exponent(value, 1)
    if value >= 1e4:
        return format_short(value)
    return f"{value:,.10f}".rstrip("0").rstrip(".")


def x_ticks(
    ends: tuple[float, float],
    target: int,
    kind: XKind,
    *,
    log: bool = False,
    utc_offset_s: float = 0.0,
    room: int | None = None,
) -> Ticks:
    """Ticks of an x axis of that kind, at most about `target` of them.

    The next larger round step may leave one or two. With `room`, the cells of the axis, there are `LEAST_TICKS` then,
    in finer steps, if their labels do not touch.
    """
    ticks = _x_ticks(ends, target, kind, log=log, utc_offset_s=utc_offset_s)
    if room is None or len(ticks.at) >= LEAST_TICKS:
        return ticks
    for finer in range(target + 1, 3 * LEAST_TICKS):
        found = _x_ticks(ends, finer, kind, log=log, utc_offset_s=utc_offset_s)
        if len(found.at) >= LEAST_TICKS:
            return found if _stand_apart(found, ends, room, log=log and kind != "clock") else ticks
    return ticks


def _stand_apart(ticks: Ticks, ends: tuple[float, float], room: int, *, log: bool) -> bool:
    """Whether there is a blank between any two labels, each centred under its tick or moved inside the axis."""
    lo, hi, *at = [math.log10(value) for value in (*ends, *ticks.at)] if log else [*ends, *ticks.at]
    widths = [len(label) for label in ticks.labels]
    cells = [
        min(max((value - lo) / (hi - lo) * room, width / 2), room - width / 2)
        for value, width in zip(at, widths, strict=True)
    ]
    pairs = zip(pairwise(cells), pairwise(widths), strict=True)
    return all(right - left >= (one + other) / 2 + 1 for (left, right), (one, other) in pairs)


def _x_ticks(ends: tuple[float, float], target: int, kind: XKind, *, log: bool, utc_offset_s: float) -> Ticks:
    lo, hi = ends
    if log and kind != "clock":
        ticks = log_ticks(lo, hi, target)
        if kind == "seconds":
            return Ticks(ticks.at, [format_duration(value) for value in ticks.at])
        return ticks
    if kind == "count":
        return linear_ticks(lo, hi, target)
    if kind == "clock":
        return _time_ticks((lo + utc_offset_s, hi + utc_offset_s), target, utc_offset_s, _clock_label)
    return _time_ticks((lo, hi), target, 0.0, _duration_label)


def _time_ticks(ends: tuple[float, float], target: int, offset: float, label: Callable[[float, float], str]) -> Ticks:
    """Round amounts of seconds, minutes, hours or days."""
    lo, hi = ends
    span = hi - lo
    if not (math.isfinite(span) and span > 0):
        return NO_TICKS
    step = next((float(value) for value in _CLOCK_STEPS if value >= span / max(target, 1)), 0.0)
    if span / max(target, 1) < 1:
        step = nice_step(span, target)
    if step == 0:
        step = nice_step(span / _DAY, target) * _DAY
    first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
    if last - first > 1000:
        return NO_TICKS
    values = [index * step for index in range(first, last + 1)]
    return Ticks([value - offset for value in values], [label(value, step) for value in values])


def _clock_label(local: float, step: float) -> str:
    """A time of day as exact as the step needs it, or the date at midnight."""
    if not _FIRST_YEAR <= local <= _LAST_LABELLED:
        return format_short(local)
    moment = datetime.fromtimestamp(0, UTC) + timedelta(seconds=round(local) if step >= 1 else math.floor(local))
    if step < 1:
        return moment.strftime("%H:%M:%S") + _fraction(local, step)
    if step >= _MINUTE and round(local) % _DAY == 0:
        return moment.strftime("%d %b")
    return moment.strftime("%H:%M" if step >= _MINUTE else "%H:%M:%S")


def _duration_label(seconds: float, step: float) -> str:
    """A length of time; past a minute in steps of seconds as on a stopwatch: 12:30, 3:12:40."""
    if step >= _MINUTE or abs(seconds) < _MINUTE:
        decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
        return f"{seconds:.{decimals}f} s" if decimals > 1 else format_duration(seconds)
    if abs(seconds) > 1e11:
        return format_short(seconds)
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    total = math.floor(size) if step < 1 else round(size)
    hours, rest = divmod(total, _HOUR)
    head = f"{hours}:{rest // _MINUTE:02d}" if hours else f"{rest // _MINUTE}"
    return f"{sign}{head}:{rest % _MINUTE:02d}" + (_fraction(size, step) if step < 1 else "")


def _fraction(value: float, step: float) -> str:
    """The decimals of a second that tell steps this small apart."""
    decimals = min(max(1, -math.floor(math.log10(step) + 1e-9)), 9)
    return f"{value - math.floor(value):.{decimals}f}"[1:]
