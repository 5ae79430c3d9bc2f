"""Moving about in a chart: windows, cursors, events. Pure: a model and a view in, a view or an x out."""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from lineage_tui.plot.fold import Memo
from lineage_tui.plot.frame import Reading
from lineage_tui.plot.model import ChartModel, Mark, SeriesData, View, VLine
from lineage_tui.plot.numbers import format_value, format_x
from lineage_tui.plot.styles import Fg, hue
from lineage_tui.plot.text import plain

Direction = Literal[-1, 1]

NEAR: Final = 0.02
"""Of the width: so far before the first sample a boundary is still shown."""


def x_extent(model: ChartModel, view: View) -> tuple[float, float]:
    """First and last x of all the chart shows, never empty: (0, 1) without a sample, event or span.

    A session that began again from nothing has its boundary just before the first sample; it is part of the picture.
    """
    ends: list[float] = []
    for series in model.shown(view):
        if series.x.size:
            first = 0
            if view.log_x:
                first = min(int(np.searchsorted(series.x, 0.0, side="right")), series.x.size - 1)
            ends += (float(series.x[first]), float(series.x[-1]))
    if not ends:
        ends += [line.x for line in model.lines] + [mark.x for mark in model.marks]
        ends += [end for span in model.spans for end in (span.x0, span.x1)]
    ends = [end for end in ends if math.isfinite(end)]
    if not ends:
        return 0.0, 1.0
    low, high = min(ends), max(ends)
    reach = max((high - low) * NEAR, 1.0)
    near = [line.x for line in model.lines if line.kind == "boundary" and low - reach <= line.x < low]
    if near and (not view.log_x or min(near) > 0):
        low = min(near)
    return _apart(low, high)


def _apart(x0: float, x1: float) -> tuple[float, float]:
    """Two ends with room between them that doubles can tell apart."""
    least = max(abs(x0), abs(x1), 1e-300) * 1e-12
    if x1 - x0 > least:
        return x0, x1
    middle = (x0 + x1) / 2
    half = max(0.5 if abs(middle) < 1e12 else 0.0, abs(middle) * 1e-9)
    return middle - half, middle + half


def x_window(model: ChartModel, view: View) -> tuple[float, float, bool]:
    """The x window of a view, and whether it can be logarithmic."""
    x0, x1 = x_extent(model, view)
    if view.x0 is not None and math.isfinite(view.x0):
        x0 = view.x0
    if view.x1 is not None and math.isfinite(view.x1):
        x1 = view.x1
    if x0 > x1:
        x0, x1 = x1, x0
    x0, x1 = _apart(x0, x1)
    return x0, x1, view.log_x and model.x_kind != "clock" and x0 > 0


def zoomed(model: ChartModel, view: View, factor: float, at: float | None = None) -> View:
    """The window `factor` times as wide (below 1 is in), keeping `at` (or the cursor, or the middle) in its place."""
    x0, x1, log = x_window(model, view)
    full0, full1 = x_extent(model, view)
    a, b = _forward(x0, log=log), _forward(x1, log=log)
    if at is None:
        at = view.cursor_x if view.cursor_x is not None and x0 <= view.cursor_x <= x1 else None
    centre = (a + b) / 2 if at is None else _forward(min(max(at, x0), x1), log=log)
    new0, new1 = centre - (centre - a) * factor, centre + (b - centre) * factor
    if new1 - new0 < max(abs(new0), abs(new1), 1e-12) * 1e-9:
        return view
    y0, y1 = max(_back(new0, log=log), full0), min(_back(new1, log=log), full1)
    if y0 <= full0 and y1 >= full1:
        return view.but(x0=None, x1=None)
    return view.but(x0=y0, x1=y1) if y1 > y0 else view


def panned(model: ChartModel, view: View, share: float) -> View:
    """The window moved by a share of its own width (positive is right), kept within the data."""
    x0, x1, log = x_window(model, view)
    full0, full1 = x_extent(model, view)
    a, b = _forward(x0, log=log), _forward(x1, log=log)
    low, high = _forward(full0, log=log), _forward(full1, log=log)
    move = (b - a) * share
    move = max(min(move, high - b), low - a) if b - a < high - low else 0.0
    if move == 0:
        return view
    return view.but(x0=_back(a + move, log=log), x1=_back(b + move, log=log))


def _forward(value: float, *, log: bool) -> float:
    return math.log10(value) if log and value > 0 else value


def _back(value: float, *, log: bool) -> float:
    return float(10.0**value) if log else value


def bright_series(model: ChartModel) -> list[SeriesData]:
    """The series a focus can be on, in legend order."""
    return [one for one in model.series if not one.dimmed]


def focused(model: ChartModel, view: View) -> SeriesData | None:
    """The series on top; None in a chart without one."""
    bright = bright_series(model)
    return bright[view.focus % len(bright)] if bright else None


def nearest_sample(series: SeriesData, x: float) -> int | None:
    """Index of the sample closest to x; None in an empty series."""
    if not series.x.size:
        return None
    right = int(np.searchsorted(series.x, x))
    if right == 0:
        return 0
    if right == series.x.size:
        return right - 1
    return right if series.x[right] - x < x - series.x[right - 1] else right - 1


def next_sample(model: ChartModel, view: View, x: float, direction: Direction) -> float:
    """The x of the next sample of the focused series; x itself where there is none."""
    series = focused(model, view)
    if series is None or not series.x.size:
        return x
    at = int(np.searchsorted(series.x, x, side="right")) if direction > 0 else int(np.searchsorted(series.x, x)) - 1
    return float(series.x[at]) if 0 <= at < series.x.size else x


def next_mark(model: ChartModel, x: float, direction: Direction) -> Mark | None:
    """The next event to the right or left of x."""
    ahead = [mark for mark in model.marks if (mark.x - x) * direction > 0]
    return min(ahead, key=lambda mark: abs(mark.x - x), default=None)


def next_line(model: ChartModel, x: float, direction: Direction) -> VLine | None:
    """The next session boundary, death or gap to the right or left of x."""
    ahead = [line for line in model.lines if (line.x - x) * direction > 0]
    return min(ahead, key=lambda line: abs(line.x - x), default=None)


def shown_around(model: ChartModel, view: View, x: float) -> View:
    """The same zoom, moved so that x is inside."""
    x0, x1, _ = x_window(model, view)
    if x0 <= x <= x1:
        return view
    return panned(model, view, ((x - (x0 + x1) / 2) / (x1 - x0)))


def readings(model: ChartModel, view: View, x: float, memo: Memo | None = None) -> tuple[Reading, ...]:
    """X and the nearest sample of each shown series to it; a series that is not there has no line.

    A smoothed chart reads the smoothed value, the sample itself beside it.
    """
    memo = memo or Memo()
    result = [Reading(plain(model.x_label), format_x(x, model.x_kind, model.utc_offset_s), int(Fg.CURSOR), x)]
    step_of: int | None = None
    for series in model.shown(view):
        index = nearest_sample(series, x)
        if index is None or not _within(series, index, x) or _is_joint(series, index):
            continue
        if step_of is None and series.step is not None and not series.dimmed:
            step_of = int(series.step[index])
        raw = float(series.y[index])
        base = Fg.DIM if series.dimmed else Fg.SERIES
        label = plain(series.label)
        if view.smoothing > 0 and series.smooth:
            value = float(memo.smoothed(series, view.smoothing)[0][index])
            text = format_value(value) if math.isfinite(raw) else format_value(raw)
            result.append(Reading(label, text, hue(base, series.hue), value, raw))
        else:
            result.append(Reading(label, format_value(raw), hue(base, series.hue), raw))
    if step_of is not None:
        result.insert(1, Reading("step", format_value(float(step_of)), int(Fg.MUTED), float(step_of)))
    return tuple(result)


def _is_joint(series: SeriesData, index: int) -> bool:
    """Whether it is the sample at which a superseded branch leaves the curve: that one has read it already."""
    return series.dimmed and index == 0 and series.lead is not None and series.lead.size > 0


def _within(series: SeriesData, index: int, x: float) -> bool:
    """Whether x lies in the stretch a series covers, give or take one sample."""
    first, last = float(series.x[0]), float(series.x[-1])
    if first <= x <= last:
        return True
    pace = (last - first) / max(series.x.size - 1, 1)
    return abs(float(series.x[index]) - x) <= pace
