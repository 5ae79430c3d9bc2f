"""Where things go on a chart's grid, which y it shows, and how x and y become cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lineage_tui.plot import raster
from lineage_tui.plot.fold import Fold, Memo, interval, to_plot
from lineage_tui.plot.frame import Rect
from lineage_tui.plot.model import ChartModel, Floats, Ints, Look, SeriesData, View, Window
from lineage_tui.plot.numbers import NO_TICKS, Ticks, linear_ticks, log_ticks
from lineage_tui.plot.raster import GlyphSet, Rows
from lineage_tui.plot.styles import Fg, hue
from lineage_tui.plot.text import FILLER, codes

_FILLER: Final = ord(FILLER)
POOL: Final = 2048  # samples of each series that decide the robust range of y
MARGIN: Final = 0.04  # of the height, free above and below the curves
REACH: Final = 0.35  # how far beyond the 1st to 99th percentile a value still counts as one of them
LAST_WIDTH: Final = 8  # column of last values at the right edge
FARTHEST: Final = 1e280  # ends of the y axis; beyond it there is no room for arithmetic, and values are clipped


class Canvas:
    """The three grids and the few ways they are written."""

    def __init__(self, width: int, height: int) -> None:
        self.chars: NDArray[np.uint32] = np.full((height, width), ord(" "), dtype=np.uint32)
        self.fg: NDArray[np.uint8] = np.zeros((height, width), dtype=np.uint8)
        self.bg: NDArray[np.uint8] = np.zeros((height, width), dtype=np.uint8)
        self.width = width
        self.height = height

    def put(self, row: int, column: int, text: str, fg: int, bg: int | None = None) -> None:
        """Text that fits whole; nothing where it would leave the grid. Half a wide character is left of none."""
        written = codes(text)
        stop = column + written.size
        if not (0 <= row < self.height and column >= 0 and stop <= self.width):
            return
        chars = self.chars[row]
        if column and chars[column] == _FILLER:
            chars[column - 1] = ord(" ")
        if stop < self.width and chars[stop] == _FILLER:
            chars[stop] = ord(" ")
        chars[column:stop] = written
        self.fg[row, column:stop] = fg
        if bg is not None:
            self.bg[row, column:stop] = bg


@dataclass(frozen=True)
class Layout:
    """Which row and column holds what; None for what there is no room for.

    Attributes:
        gutter: columns left of the plot, its axis among them; 0 without y axis. last: columns right of it.
    """

    header: int | None
    flags: int | None
    plot: Rect
    lane: int | None
    phases: int | None
    axis: int | None
    labels: int | None
    gutter: int
    last: int


@dataclass(frozen=True)
class Curve:
    """A series on its way to the grid."""

    series: SeriesData
    y: Floats
    folded: Fold
    rows: Rows
    front: bool

    @property
    def fg(self) -> int:
        return hue(Fg.DIM if self.series.dimmed else Fg.SERIES, self.series.hue)


@dataclass(frozen=True)
class YWindow:
    """The y range of what is visible, in data units; whether it is logarithmic; whether there is any sample."""

    y0: float
    y1: float
    log: bool
    has_samples: bool

    @property
    def plot_units(self) -> tuple[float, float]:
        """Both ends as they are drawn: logarithms on a logarithmic axis."""
        low, high = to_plot(np.array([self.y0, self.y1]), log=self.log).tolist()
        return low, high

    def ticks(self, target: int) -> Ticks:
        if not self.has_samples:
            return NO_TICKS
        return log_ticks(self.y0, self.y1, target) if self.log else linear_ticks(self.y0, self.y1, target)


class Scene:
    """All that the layers of one frame share.

    Attributes:
        data: cells of the plot that hold dots of a curve; nothing but a cursor's neighbour may take them.
        letters: the letter of each bright series by key; empty where colours are enough.
        has_x: whether anything in the model has a place on the x axis.
        shaded: the kinds of phase whose shade is behind the curves.
        low, high: the ends of the y axis in plot units.
    """

    def __init__(
        self, canvas: Canvas, layout: Layout, window: Window, *, model: ChartModel, view: View, look: Look
    ) -> None:
        self.canvas = canvas
        self.layout = layout
        self.plot = layout.plot
        self.window = window
        self.model = model
        self.view = view
        self.look = look
        self.marks: GlyphSet = raster.GLYPHS[look.glyphs]
        self.letters: dict[str, str] = {}
        self.tick_rows: list[tuple[int, str]] = []
        self.has_x = True
        self.shaded: list[str] = []
        self.data = np.zeros((self.plot.height, self.plot.width), dtype=np.bool_)
        self.low, self.high = to_plot(np.array([window.y0, window.y1]), log=window.log_y).tolist()
        self._inner = window.edges[1:-1]

    @property
    def region(self) -> tuple[slice, slice]:
        """The plot within the grids."""
        plot = self.plot
        return np.s_[plot.y : plot.y + plot.height, plot.x : plot.x + plot.width]

    def columns(self, x: Floats) -> Ints:
        """Grid columns of values inside the window."""
        result: Ints = self.plot.x + np.searchsorted(self._inner, x, side="right") // self.marks.dots_x
        return result

    def column(self, x: float) -> int | None:
        """Grid column of x, None outside the window."""
        if not self.window.x0 <= x <= self.window.x1:
            return None
        return int(self.columns(np.array([x]))[0])

    def stretch(self, x0: float, x1: float) -> tuple[int, int] | None:
        """First and last grid column of a stretch, None outside the window."""
        low, high = max(min(x0, x1), self.window.x0), min(max(x0, x1), self.window.x1)
        if not low <= high:
            return None
        first, last = self.columns(np.array([low, high])).tolist()
        return first, last

    def row(self, value: float) -> int:
        """Grid row of a value of y, the nearest one if it lies outside the window."""
        at = to_plot(np.array([value], dtype=np.float64), log=self.window.log_y)
        return self.plot.y + int(raster.row_of(at, self.low, self.high, self.plot.height)[0])

    def cover(self, folded: Fold, x: Floats, y: Floats) -> Rows:
        """The dot rows a folded line takes."""
        window = self.window
        lo, hi = interval(folded, x, y, window.edges, log_x=window.log_x, log_y=window.log_y)
        return raster.rows(lo, hi, self.low, self.high, self.plot.height * self.marks.dots_y)

    def place_ticks(self, ticks: Ticks) -> None:
        """Give each y tick its row; of two in one row the first stays."""
        found: dict[int, str] = {}
        for value, label in zip(ticks.at, ticks.labels, strict=True):
            if self.window.y0 <= value <= self.window.y1:
                found.setdefault(self.row(value), label)
        self.tick_rows = sorted(found.items())


def edges_of(x0: float, x1: float, num_columns: int, *, log: bool) -> Floats:
    """The bounds of the dot columns, ascending."""
    if log:
        edges: Floats = 10.0 ** np.linspace(math.log10(x0), math.log10(x1), num_columns + 1)
    else:
        edges = np.linspace(x0, x1, num_columns + 1)
    edges[0], edges[-1] = x0, x1
    np.maximum.accumulate(edges, out=edges)
    return edges


@dataclass(frozen=True)
class _Visible:
    """One series inside the window: some of its finite values, and the least and greatest of all of them."""

    pool: Floats
    least: float
    most: float


def _visible(y: Floats, first: int, last: int, extremes: tuple[float, float] | None) -> _Visible:
    part = y[first:last]
    pool = part[:: max(part.size // POOL, 1)]
    if extremes is None:
        finite = part[np.isfinite(part)]
        extremes = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
    return _Visible(pool[np.isfinite(pool)], *extremes)


def y_window(model: ChartModel, front: SeriesData | None, view: View, memo: Memo, xs: tuple[float, float]) -> YWindow:
    """The y range of what is visible between both `xs`.

    It is that of all values, but no further beyond each series' 1st to 99th percentile than `REACH` of their
    distance: what lies beyond that is clipped and marked, unless the person asked for all of it.
    """
    found: list[_Visible] = []
    has_samples = False
    for series in model.shown(view):
        first = max(int(np.searchsorted(series.x, xs[0])) - 1, 0)
        last = min(int(np.searchsorted(series.x, xs[1], side="right")) + 1, series.x.size)
        has_samples = has_samples or last > first
        kinds = [memo.smoothed(series, view.smoothing)]
        if view.smoothing > 0 and series.smooth and series is front:
            kinds.append((series.y, memo.pyramid(series)))
        for y, pyramid in kinds:
            extremes = None
            if pyramid is not None and last - first > POOL:
                extremes = pyramid.extreme(y, first, last)
            found.append(_visible(y, first, last, extremes))
    log = view.log_y and any(one.most > 0 for one in found)
    low, high = math.inf, -math.inf
    for one in found:
        bounds = _robust(one, log=log, clip=view.clip)
        if bounds is not None:
            low, high = min(low, bounds[0]), max(high, bounds[1])
    if low > high:
        return YWindow(0.0, 1.0, log=False, has_samples=has_samples)
    farthest = math.log10(FARTHEST) if log else FARTHEST
    low, high = max(min(low, farthest), -farthest), max(min(high, farthest), -farthest)
    size = max(abs(low), abs(high))
    if high - low <= max(size * 1e-9, 0 if log else 1 / FARTHEST):
        half = 0.5 if log or size < 1 / FARTHEST else size * 0.05
        low, high = low - half, high + half
    margin = high * MARGIN - low * MARGIN
    low, high = low - margin, high + margin
    if log:
        return YWindow(10.0**low, 10.0**high, log=True, has_samples=has_samples)
    return YWindow(low, high, log=False, has_samples=has_samples)


def _robust(one: _Visible, *, log: bool, clip: bool) -> tuple[float, float] | None:
    """The range one series asks for, in plot units; None if it has nothing to show."""
    pool = one.pool[one.pool > 0] if log else one.pool
    least, most = one.least, one.most
    if log and least <= 0:
        if not pool.size:
            return None
        least = float(pool.min())
    if not most >= least:
        return None
    low, high = to_plot(np.array([least, most]), log=log).tolist()
    if clip and pool.size:
        p1, p99 = np.percentile(to_plot(pool, log=log) / 2, (1, 99)).tolist()  # halves: a difference cannot overflow
        reach = (p99 - p1) * REACH
        if reach > 0:
            low, high = max(low, 2 * (p1 - reach)), min(high, 2 * (p99 + reach))
    return low, high


def lay_out(
    model: ChartModel, shown: Sequence[SeriesData], width: int, height: int, y: YWindow
) -> tuple[Layout, Ticks]:
    """Rows and columns by how much there is of them; the curves come first, then what explains them."""
    header = 0 if height >= 2 else None
    flags = 1 if height >= 10 and model.lines else None
    top = (0 if header is None else 1) + (0 if flags is None else 1)
    bottom = height
    labels = axis = lane = phases = None
    if height >= 5:
        labels = bottom = bottom - 1
    if height >= 8:
        axis = bottom = bottom - 1
    if height >= 20 and model.spans:
        phases = bottom = bottom - 1
    if height >= 7 and model.has_lane:
        lane = bottom = bottom - 1  # directly under the curves
    plot_height = max(bottom - top, 1)
    ticks = NO_TICKS
    gutter = 0
    if width >= 24 and height >= 3:
        ticks = y.ticks(min(max(plot_height // 3, 1), 10))
        if len(ticks.at) < 3 <= plot_height // 2:
            ticks = y.ticks(plot_height // 2)
        longest = max((len(label) for label in ticks.labels), default=0)
        gutter = min(max(longest + 2, 8 if width >= 60 else 5), width // 2)
        if longest + 2 > gutter:
            ticks, gutter = NO_TICKS, 5
    has_bright = any(not series.dimmed for series in shown)
    last = LAST_WIDTH if width >= 60 and height >= 5 and y.has_samples and has_bright else 0
    plot = Rect(gutter, top, max(width - gutter - last, 1), plot_height)
    return Layout(header, flags, plot, lane, phases, axis, labels, gutter, last), ticks
