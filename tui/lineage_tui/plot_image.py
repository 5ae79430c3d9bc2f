"""The same charts as pictures, for papers and pull requests; needs matplotlib (the extra `plot`).

A picture follows the rules of the terminal's charts: the same windows, robust ranges, smoothing and overlays, the same
colours, and the fold that keeps every spike, so that ten million points make a file of a few hundred kilobytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lineage.errors import UsageError
from lineage_tui.plot.fold import Memo, fold
from lineage_tui.plot.layers import GAP, LINE_FG, MARK_FG, SPAN_BG, VERDICT_FG
from lineage_tui.plot.layout import edges_of, y_window
from lineage_tui.plot.model import ChartModel, Floats, SeriesData, View
from lineage_tui.plot.navigate import bright_series, x_window
from lineage_tui.plot.numbers import format_x, x_ticks
from lineage_tui.plot.styles import Bg, Fg, hue
from lineage_tui.plot.text import plain, width
from lineage_tui.theme import Palette, palette

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png", ".pdf")
COLUMNS: Final = 2000  # of the fold: more than a printed page resolves
WIDTH_IN: Final = 8.0
HEIGHT_IN: Final = 2.5
DPI: Final = 160
TITLE_PAD: Final = 13.0  # points from the plot to its title, the words of the session boundaries between them
FLAG_PT: Final = 6.5
EM: Final = 0.62  # of the size of a font, the width of a character as far as it matters here
PLOT_SHARE: Final = 0.9  # of the picture's width
GAP_SHARE: Final = 0.008  # of the plot's width, between two words
MOST_CLIPPED: Final = 200  # marks at an edge of the plot
_MARKERS: Final = {
    "lr_restore": ("v", "learning rate restored"),
    "fp16_skip": ("|", "FP16 step skipped"),
    "nonfinite": ("x", "non-finite value"),
    "alert": ("^", "alert"),
    "checkpoint": ("D", "checkpoint"),
    "note": (".", "note"),
}
_LINES: Final = {"boundary": ("-", "session boundary"), "death": ("--", "session died"), "gap": (":", "gap in time")}
_LANES: Final = {"lr_restore": 0, "nonfinite": 0, "alert": 0, "fp16_skip": 1, "checkpoint": 2, "note": 2}


def save(models: Sequence[ChartModel], view: View, path: Path, *, dark: bool = False) -> None:
    """Draw the charts under one another into a file whose suffix says what it becomes (`SUFFIXES`).

    Two runs of the same data give the same bytes: no dates, no random names inside.

    Raises:
        UsageError: matplotlib is not installed, or the suffix is none of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path.name} is no picture this can make", hint=f"end it with {', '.join(SUFFIXES)}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as MplFigure
    except ImportError as error:
        raise UsageError("pictures need matplotlib", hint="pip install 'lineage-tracker[plot]'") from error
    colours = palette("truecolor", dark=dark)
    style: dict[Any, Any] = {  # matplotlib lists every name it knows as the type of a key
        "svg.hashsalt": "lineage",
        "font.size": 8.0,
        "axes.edgecolor": _ink(colours, Fg.AXIS),
        "axes.labelcolor": _ink(colours, Fg.MUTED),
        "xtick.color": _ink(colours, Fg.MUTED),
        "ytick.color": _ink(colours, Fg.MUTED),
        "text.color": _ink(colours, Fg.TEXT),
        "text.parse_math": False,
        "axes.formatter.use_mathtext": False,
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a stranger's name in a rare script
        ground = colours.background
        figure = MplFigure(
            figsize=(WIDTH_IN, HEIGHT_IN * max(len(models), 1) + 0.5),
            facecolor="white" if ground is None else _hex(colours, ground),
            layout="constrained",
        )
        legend = _draw_all(figure, models, view, colours)
        if legend:
            # An underscore at the beginning would make matplotlib leave the entry out.
            names = [f" {name}" if name.startswith("_") else name for name in legend]
            figure.legend(
                list(legend.values()), names, loc="outside lower center", ncols=min(len(legend), 5), frameon=False
            )
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
        figure.savefig(path, dpi=DPI, metadata=dated)


def _draw_all(figure: Figure, models: Sequence[ChartModel], view: View, colours: Palette) -> dict[str, Artist]:
    """All charts; returns what the legend has to explain, each thing once."""
    legend: dict[str, Artist] = {}
    heights = [part for _ in models for part in (HEIGHT_IN, 0.28)]
    if not models:
        return legend
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0.0)
    memo = Memo()
    for number, model in enumerate(models):
        axes = figure.add_subplot(grid[2 * number])
        lane = figure.add_subplot(grid[2 * number + 1], sharex=axes)
        _draw(axes, lane, model, view, colours, legend=legend, memo=memo, is_last=number + 1 == len(models))
    return legend


def _draw(
    axes: Axes,
    lane: Axes,
    model: ChartModel,
    view: View,
    colours: Palette,
    *,
    legend: dict[str, Artist],
    memo: Memo,
    is_last: bool,
) -> None:
    x0, x1, log_x = x_window(model, view)
    bright = bright_series(model)
    front = bright[view.focus % len(bright)] if bright else None
    y = y_window(model, front, view, memo, (x0, x1))
    edges = edges_of(x0, x1, COLUMNS, log=log_x)
    for one in (axes, lane):
        one.set_facecolor("none")
        one.set_xlim(x0, x1)
        if log_x:
            one.set_xscale("log")
        for side in ("top", "right", "left" if one is lane else "top"):
            one.spines[side].set_visible(False)
    if y.log:
        axes.set_yscale("log")
    axes.set_ylim(y.y0, y.y1)
    y_ticks = y.ticks(5)
    axes.set_yticks(y_ticks.at, y_ticks.labels)
    axes.minorticks_off()
    axes.grid(visible=True, axis="y", color=_ink(colours, Fg.GUIDE), linewidth=0.5)
    axes.set_axisbelow(True)
    pad = TITLE_PAD if any(line.kind == "boundary" for line in model.lines) else None
    axes.set_title(
        plain(model.title), loc="left", fontsize=9, fontweight="bold", color=_ink(colours, Fg.TITLE), pad=pad
    )
    notes = [f"ema {view.smoothing:.5g}"] if view.smoothing > 0 and any(one.smooth for one in bright) else []
    axes.set_title(" · ".join(notes), loc="right", fontsize=7, color=_ink(colours, Fg.MUTED), pad=pad)
    axes.set_ylabel(plain(model.y_unit))
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    _spans(axes, model, colours, legend)
    _lines(axes, model, colours, legend)
    for series in model.shown(view):
        _curve(axes, series, view, edges, colours, legend=legend, memo=memo, is_front=series is front)
    _clipped(axes, model, view, edges, colours, legend=legend, memo=memo)
    _lane(lane, model, colours, legend)
    ticks = x_ticks((x0, x1), 8, model.x_kind, log=log_x, utc_offset_s=model.utc_offset_s)
    lane.set_xticks(ticks.at, ticks.labels)
    lane.minorticks_off()
    if is_last:
        lane.set_xlabel(plain(model.x_label) if not ticks.at else _x_words(model, ticks.at[-1]))


def _x_words(model: ChartModel, last: float) -> str:
    """The name of the x axis; of a clock, also the day."""
    name = plain(model.x_label)
    return f"{name}, {format_x(last, 'clock', model.utc_offset_s)[:10]}" if model.x_kind == "clock" else name


def _curve(
    axes: Axes,
    series: SeriesData,
    view: View,
    edges: Floats,
    colours: Palette,
    *,
    legend: dict[str, Artist],
    memo: Memo,
    is_front: bool,
) -> None:
    """A curve, its raw samples as a band behind it where it is smoothed."""
    colour = _ink(colours, hue(Fg.DIM if series.dimmed else Fg.SERIES, series.hue))
    smooth = view.smoothing > 0 and series.smooth
    y, _ = memo.smoothed(series, view.smoothing)
    xs, ys = _polyline(series, y, edges)
    lines = axes.plot(
        xs,
        ys,
        color=colour,
        linewidth=0.9 if series.dimmed else 1.1,
        linestyle=(0, (1, 1.2)) if series.dimmed else "-",
        zorder=3.0 + is_front - series.dimmed,
    )
    legend.setdefault("superseded steps" if series.dimmed else plain(series.label, 40), lines[0])
    if smooth and is_front:
        _noise(axes, series, edges, colours, legend=legend, memo=memo)


def _noise(
    axes: Axes, series: SeriesData, edges: Floats, colours: Palette, *, legend: dict[str, Artist], memo: Memo
) -> None:
    """The raw samples behind a smoothed line: from the least to the greatest, or where they are few, their line."""
    raw = fold(series.x, series.y, edges, series.breaks, memo.pyramid(series))
    colour = _hex(colours, colours.bg[hue(Bg.BAND, series.hue)].ink or 0)
    if raw.num_samples <= 2 * COLUMNS:
        xs, ys = _polyline(series, series.y, edges)
        ink = _ink(colours, hue(Fg.SERIES, series.hue))
        (line,) = axes.plot(xs, ys, color=ink, alpha=0.3, linewidth=0.8, zorder=1.5)
        legend.setdefault(f"{plain(series.label, 40)}, raw", line)
        return
    middles = (edges[:-1] + edges[1:]) / 2
    area = axes.fill_between(middles, raw.lo, raw.hi, color=colour, linewidth=0.4, zorder=1.5)
    legend.setdefault(f"{plain(series.label, 40)}, least to greatest", area)


def _polyline(series: SeriesData, y: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """The samples of the window, or of many the extremes of each column; NaN where the line parts."""
    folded = fold(series.x, y, edges, series.breaks)
    first, last = max(int(folded.index[0]) - 1, 0), min(int(folded.index[-1]) + 1, series.x.size)
    if last - first <= 2 * COLUMNS:
        x, part = series.x[first:last], np.where(np.isfinite(y[first:last]), y[first:last], np.nan)
        if series.breaks is not None and series.breaks.size:
            at = series.breaks[(series.breaks > first) & (series.breaks < last)] - first
            x, part = np.insert(x, at, x[at]), np.insert(part, at, np.nan)
        return x, part
    middles = (edges[:-1] + edges[1:]) / 2
    xs = np.repeat(middles, 2)
    ys = np.column_stack((folded.lo, folded.hi)).ravel()
    parted = np.zeros(edges.size - 1, dtype=np.bool_)
    parted[folded.bad] = True
    keep = ~np.isnan(ys) | np.repeat(parted | (folded.left[:-1] < 0), 2)
    return xs[keep], ys[keep]


def _spans(axes: Axes, model: ChartModel, colours: Palette, legend: dict[str, Artist]) -> None:
    for span in model.spans:
        tint = _hex(colours, colours.bg[SPAN_BG.get(span.kind, Bg.PHASE)].ink or 0)
        drawn = axes.axvspan(span.x0, span.x1, color=tint, linewidth=1.0, zorder=0.5)
        legend.setdefault("gap" if span.kind == GAP else f"{plain(span.kind, 24)} phase", drawn)


def _lines(axes: Axes, model: ChartModel, colours: Palette, legend: dict[str, Artist]) -> None:
    low, high = axes.get_xlim()
    for line in model.lines:
        if not low <= line.x <= high:
            continue
        pattern, name = _LINES[line.kind]
        colour = _ink(colours, LINE_FG[line.kind])
        drawn = axes.axvline(line.x, color=colour, linestyle=pattern, linewidth=0.9, zorder=2.0)
        legend.setdefault(name, drawn)
    _flags(axes, model, colours)


def _flags(axes: Axes, model: ChartModel, colours: Palette) -> None:
    """The words of the session boundaries over the plot, where no line and no curve is; the first word if crowded."""
    low, high = axes.get_xlim()
    place = axes.transData + axes.transAxes.inverted()
    inside = [line for line in model.lines if line.kind == "boundary" and low <= line.x <= high]
    free_from = 0.0
    for line in sorted(inside, key=lambda one: one.x):
        at = float(place.transform((line.x, 0.0))[0])
        label = plain(line.label, 40)
        for text in (label, label.partition(" ")[0]):
            length = width(text) * FLAG_PT * EM / 72 / (WIDTH_IN * PLOT_SHARE)
            start = min(at, 1.0 - length)
            if start >= free_from:
                free_from = start + length + GAP_SHARE
                verdict = line.label.partition(" ")[2].replace("_", " ").partition(" ")[0]
                axes.annotate(
                    text,
                    (start, 1.0),
                    xycoords="axes fraction",
                    xytext=(0, 2),
                    textcoords="offset points",
                    va="bottom",
                    fontsize=FLAG_PT,
                    color=_ink(colours, VERDICT_FG.get(verdict, Fg.BOUNDARY)),
                    zorder=6.0,
                )
                break


def _clipped(
    axes: Axes,
    model: ChartModel,
    view: View,
    edges: Floats,
    colours: Palette,
    *,
    legend: dict[str, Artist],
    memo: Memo,
) -> None:
    """A mark at the edge wherever samples lie beyond the y axis."""
    low, high = axes.get_ylim()
    every = COLUMNS // MOST_CLIPPED
    middles = ((edges[:-1] + edges[1:]) / 2)[every // 2 :: every]
    above = np.zeros(middles.size, dtype=np.bool_)
    below = np.zeros(middles.size, dtype=np.bool_)
    for series in model.shown(view):
        folded = fold(series.x, series.y, edges, series.breaks, memo.pyramid(series))
        above |= (folded.hi > high).reshape(middles.size, every).any(axis=1)
        below |= (folded.lo < low).reshape(middles.size, every).any(axis=1)
    for found, at, marker in ((above, 1.0, "^"), (below, 0.0, "v")):
        if found.any():
            (drawn,) = axes.plot(
                middles[found],
                np.full(int(found.sum()), at),
                transform=axes.get_xaxis_transform(),
                linestyle="none",
                marker=marker,
                markersize=3.5,
                color=_ink(colours, Fg.WARN),
                clip_on=False,
                zorder=5.0,
            )
            legend.setdefault("beyond the axis", drawn)


def _lane(lane: Axes, model: ChartModel, colours: Palette, legend: dict[str, Artist]) -> None:
    """Events under the curves, the grave ones on top."""
    lane.set_ylim(2.7, -0.7)
    lane.set_yticks([])
    low, high = lane.get_xlim()
    for kind, (marker, name) in _MARKERS.items():
        at = [mark.x for mark in model.marks if mark.kind == kind and low <= mark.x <= high]
        if at:
            (drawn,) = lane.plot(
                at,
                [_LANES[kind]] * len(at),
                linestyle="none",
                marker=marker,
                markersize=4.0,
                color=_ink(colours, MARK_FG[kind]),
                clip_on=False,
                zorder=4.0,
            )
            legend.setdefault(name, drawn)


def _ink(colours: Palette, index: int) -> str:
    ink = colours.fg[index].ink
    return "black" if ink is None else _hex(colours, ink)


def _hex(colours: Palette, ink: int | tuple[int, int, int]) -> str:
    red, green, blue = colours.rgb(ink)
    return f"#{red:02x}{green:02x}{blue:02x}"
