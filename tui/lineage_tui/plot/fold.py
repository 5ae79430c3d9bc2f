"""From samples to columns: the extremes of a polyline over each dot column, flat in the number of samples.

The line from sample to sample is continuous, so over one column it covers one closed interval of y: from the lowest to
the highest of the samples in the column and of the line's values at the column's two edges. Nothing else is needed to
draw it, and a spike of a single sample is always among the extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import numpy as np

from lineage_tui.plot.model import NO_INDEX, ChartModel, Floats, Ints, SeriesData
from lineage_tui.plot.pyramid import Pyramid
from lineage_tui.plot.smooth import EmaState, ema

Made = TypeVar("Made")

PYRAMID_FROM: Final = 65_536


@dataclass(frozen=True)
class Fold:
    """One series over the columns between `edges`, in data units.

    Attributes:
        lo, hi: extremes of the finite samples of each column, NaN without one.
        left, right: indices of the samples before and after each edge; -1 where no line crosses it.
        index: `index[c]` is the first sample at or right of edge c.
        bad: columns that hold a non-finite sample.
    """

    lo: Floats
    hi: Floats
    left: Ints
    right: Ints
    index: Ints
    bad: Ints

    @property
    def num_samples(self) -> int:
        return int(self.index[-1] - self.index[0])


def fold(x: Floats, y: Floats, edges: Floats, breaks: Ints | None = None, pyramid: Pyramid | None = None) -> Fold:
    """Fold a polyline into the columns between ascending `edges`; a sample on the last edge is in the last column."""
    index = np.searchsorted(x, edges)
    index[-1] = np.searchsorted(x, edges[-1], side="right")
    starts, stops = index[:-1], index[1:]
    first, last = int(index[0]), int(index[-1])
    bad_columns = NO_INDEX
    if last <= first:
        lo = np.full(starts.size, np.nan)
        hi = lo
    elif pyramid is not None and last - first > PYRAMID_FROM:
        lo, hi = pyramid.extremes(y, starts, stops)
        bad = pyramid.bad
        inside = bad[np.searchsorted(bad, first) : np.searchsorted(bad, last)]
        if inside.size:
            bad_columns = np.unique(np.searchsorted(index, inside, side="right") - 1)
    else:
        lo, hi, bad_columns = _fold_raw(y, index, first, last)
    left, right = index - 1, index.copy()
    crossed = (left >= 0) & (right < x.size)
    if breaks is not None and breaks.size:
        crossed &= ~np.isin(right, breaks)
    left[~crossed] = -1
    right[~crossed] = -1
    return Fold(lo, hi, left, right, index, bad_columns)


def _fold_raw(y: Floats, index: Ints, first: int, last: int) -> tuple[Floats, Floats, Ints]:
    """Extremes per column from the samples themselves."""
    # One NaN more at the end keeps reduceat's last stretches apart when trailing columns are empty.
    part = np.empty(last - first + 1)
    part[:-1] = y[first:last]
    part[-1] = np.nan
    bad = np.flatnonzero(~np.isfinite(part[:-1]))
    if bad.size:
        part[bad] = np.nan
    starts = index[:-1] - first
    lo = np.fmin.reduceat(part, starts)
    hi = np.fmax.reduceat(part, starts)
    empty = index[1:] <= index[:-1]
    lo[empty] = np.nan
    hi[empty] = np.nan
    columns = np.unique(np.searchsorted(index, bad + first, side="right") - 1) if bad.size else NO_INDEX
    return lo, hi, columns


def interval(
    folded: Fold, x: Floats, y: Floats, edges: Floats, *, log_x: bool = False, log_y: bool = False
) -> tuple[Floats, Floats]:
    """The interval of plot units (logarithms where asked) each column of the line covers; NaN for none.

    Samples a logarithm cannot take are -inf; no line leads to them.
    """
    lo, hi = to_plot(folded.lo, log=log_y), to_plot(folded.hi, log=log_y)
    ok = folded.left >= 0
    at = np.full(edges.size, np.nan)
    if ok.any():
        left, right = folded.left[ok], folded.right[ok]
        xa, xb = to_plot(x[left], log=log_x), to_plot(x[right], log=log_x)
        ya, yb = to_plot(y[left], log=log_y), to_plot(y[right], log=log_y)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            width = xb - xa
            share = np.where(width > 0, (to_plot(edges[ok], log=log_x) - xa) / width, 1.0)
            share = np.clip(share, 0.0, 1.0)
            value = ya * (1.0 - share) + yb * share
        value[~(np.isfinite(ya) & np.isfinite(yb))] = np.nan
        at[ok] = value
    lo = np.fmin(lo, np.fmin(at[:-1], at[1:]))
    hi = np.fmax(hi, np.fmax(at[:-1], at[1:]))
    return lo, hi


def to_plot(values: Floats, *, log: bool) -> Floats:
    """Data units to plot units: themselves, or the decimal logarithm (-inf for what has none)."""
    if not log:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.log10(values)
    result[values <= 0] = -np.inf
    return result


class Memo:
    """What is worth keeping between frames: pyramids and smoothed values, by series key; folded curves, by chart.

    A series that grew at its end is only taken in from there. One that changed otherwise is noticed by its samples at
    a few places (all of the last block among them) and taken in anew. Never shared by threads: one that prepares long
    series fills a memo of its own, and gives it away (`take`).
    """

    def __init__(self, limit: int = 64) -> None:
        self._raw: dict[str, _Kept] = {}
        self._smooth: dict[str, _Kept] = {}
        self._limit = limit
        self._still: dict[str, tuple[ChartModel, Hashable, object]] = {}

    def pyramid(self, series: SeriesData) -> Pyramid | None:
        """The pyramid of the raw samples; None while the series is short."""
        if series.y.size < PYRAMID_FROM:
            return None
        return self._keep(self._raw, series.key, series.y).grown(series.y)

    def smoothed(self, series: SeriesData, weight: float) -> tuple[Floats, Pyramid | None]:
        """The smoothed samples and their pyramid."""
        if weight <= 0 or series.y.size == 0 or not series.smooth:
            return series.y, self.pyramid(series)
        kept = self._keep(self._smooth, series.key, series.y)
        return kept.smooth(series.y, weight, series.lead)

    def still(self, model: ChartModel, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gave the last time, if the chart of this title was of the very same model and key."""
        kept = self._still.get(model.title)
        if kept is not None and kept[0] is model and kept[1] == key:
            return cast("Made", kept[2])
        made = make()
        self._still[model.title] = (model, key, made)
        return made

    def take(self, other: Memo, prefix: str = "") -> None:
        """Have what another thread prepared in a memo of its own and gave away; `prefix` goes before its keys."""
        for mine, theirs in ((self._raw, other._raw), (self._smooth, other._smooth)):
            for key, kept in theirs.items():
                mine.pop(prefix + key, None)
                mine[prefix + key] = kept
            theirs.clear()
            self._shrink(mine)

    def clear(self) -> None:
        """Forget everything."""
        self._raw.clear()
        self._smooth.clear()
        self._still.clear()

    def _shrink(self, table: dict[str, _Kept]) -> None:
        while len(table) > self._limit:
            del table[next(iter(table))]

    def _keep(self, table: dict[str, _Kept], key: str, y: Floats) -> _Kept:
        kept = table.pop(key, None)
        if kept is None or not kept.is_prefix_of(y):
            kept = _Kept()
        table[key] = kept  # last used last
        self._shrink(table)
        return kept


class _Kept:
    """One series of a memo."""

    def __init__(self) -> None:
        self._pyramid: Pyramid | None = None
        self._places: Ints = NO_INDEX
        self._values: Floats = np.empty(0)
        self._num_seen = 0
        self._weight = 0.0
        self._smoothed = np.empty(0)
        self._state = EmaState()

    def is_prefix_of(self, y: Floats) -> bool:
        if y.size < self._num_seen:
            return False
        return bool(np.array_equal(y[self._places], self._values, equal_nan=True))

    def _seen(self, y: Floats) -> None:
        if y.size == self._num_seen:
            return
        self._num_seen = y.size
        spread = np.linspace(0, y.size - 1, 64).astype(np.int64)
        self._places = np.concatenate((spread, np.arange(max(0, y.size - 64), y.size, dtype=np.int64)))
        self._values = y[self._places].copy()

    def grown(self, y: Floats) -> Pyramid:
        if self._pyramid is None:
            self._pyramid = Pyramid()
        self._pyramid.extend(y)
        self._seen(y)
        return self._pyramid

    def smooth(self, y: Floats, weight: float, lead: Floats | None) -> tuple[Floats, Pyramid | None]:
        done = self._num_seen
        if weight != self._weight:
            done, self._state, self._pyramid, self._weight = 0, EmaState(), None, weight
        if done == 0 and lead is not None:
            self._state = ema(lead, weight)[1]
        if done < y.size:
            if self._smoothed.size < y.size or done == 0:
                buffer = np.empty(y.size if done == 0 else y.size + y.size // 4)
                buffer[:done] = self._smoothed[:done]
                self._smoothed = buffer
            room = self._smoothed[done : y.size]
            new, self._state = ema(y[done:], weight, self._state, room)
            if new is not room:
                room[:] = new
        self._seen(y)
        result = self._smoothed[: y.size]
        if y.size < PYRAMID_FROM:
            return result, None
        if self._pyramid is None:
            self._pyramid = Pyramid()
        self._pyramid.extend(result)
        return result, self._pyramid
