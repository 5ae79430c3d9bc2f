"""A chart as a grid of characters: `render` lays it out and paints its layers, bottom to top.

Guides, spans (background), noise band (background), vertical lines, curves, cursor. Data always wins a cell over
what is only there to be read against; nothing ever merges the dots of two series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lineage_tui.plot import layers, raster
from lineage_tui.plot.fold import Memo, fold
from lineage_tui.plot.frame import Frame, Reading
from lineage_tui.plot.header import facts_of, header
from lineage_tui.plot.layout import Canvas, Curve, Layout, Scene, YWindow, edges_of, lay_out, y_window
from lineage_tui.plot.model import ChartModel, Glyphs, Look, Mark, SeriesData, View, Window
from lineage_tui.plot.navigate import bright_series, focused, readings, x_window
from lineage_tui.plot.numbers import Ticks
from lineage_tui.plot.styles import NUM_HUES, Fg
from lineage_tui.plot.text import FILLER, plain
from lineage_tui.plot.text import width as text_width

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


def render(
    model: ChartModel,
    view: View,
    width: int,
    height: int,
    glyphs: Glyphs = "braille",
    *,
    look: Look | None = None,
    memo: Memo | None = None,
) -> Frame:
    """Draw `model` as seen through `view` on a grid of width x height cells (each at least 1).

    `look` says what the terminal can show, and wins over `glyphs`. A `memo` kept between calls makes long and smoothed
    series cheap to draw again.
    """
    width, height = max(int(width), 1), max(int(height), 1)
    look = look or Look(glyphs=glyphs)
    memo = memo if memo is not None else Memo()
    bright = bright_series(model)
    shown = model.shown(view)
    # A cursor that moves changes neither the window nor the curves.
    still = (view.but(cursor_x=None), width, height, look)
    seen = memo.still(model, still, lambda: _see(model, view, Canvas(width, height), look, memo))
    y, drawn, noise = seen.y, seen.drawn, seen.noise
    scene = Scene(Canvas(width, height), seen.layout, seen.window, model=model, view=view, look=look)
    scene.has_x = y.has_samples or bool(model.lines or model.marks or model.spans)
    scene.letters = _letters(bright, look)
    scene.place_ticks(seen.y_ticks)
    everything = drawn if noise is None else [*drawn, noise]

    layers.guides(scene)
    layers.spans(scene)
    layers.marked_range(scene)
    if noise is not None and look.tints:
        layers.band(scene, noise)
    layers.lines(scene)
    if noise is not None and not look.tints:
        layers.raw_dots(scene, noise)
    layers.curves(scene, drawn)
    if scene.letters:
        layers.letters(scene, drawn)
    num_clipped = layers.clipped(scene, everything)
    layers.axes(scene)
    layers.nonfinite(scene, everything)
    layers.lane(scene)
    layers.last_values(scene, drawn)
    layers.cursor(scene)
    facts = facts_of(scene, drawn, num_clipped)
    header(scene, shown, facts)
    canvas, plot = scene.canvas, scene.plot
    if not y.has_samples:
        text = plain(model.message)
        canvas.put(plot.y + plot.height // 2, plot.x + (plot.width - text_width(text)) // 2, text, Fg.MUTED)
    if look.glyphs == "ascii":
        canvas.chars[canvas.chars == ord("…")] = ord("~")
        canvas.chars[(canvas.chars > ord("~")) | (canvas.chars == ord(FILLER))] = ord("?")
    canvas.fg[canvas.chars == ord(" ")] = Fg.BLANK
    return Frame(
        chars=canvas.chars,
        fg=canvas.fg,
        bg=canvas.bg,
        plot=plot,
        lane=seen.layout.lane,
        window=seen.window,
        dots_x=scene.marks.dots_x,
        facts=facts,
        model=model,
        view=view,
        readings=_readings(model, view, memo),
    )


@dataclass(frozen=True)
class _Seen:
    """What does not change while only the cursor moves."""

    y: YWindow
    layout: Layout
    y_ticks: Ticks
    window: Window
    drawn: Sequence[Curve]
    noise: Curve | None


def _see(model: ChartModel, view: View, canvas: Canvas, look: Look, memo: Memo) -> _Seen:
    front, shown = focused(model, view), model.shown(view)
    x0, x1, log_x = x_window(model, view)
    y = y_window(model, front, view, memo, (x0, x1))
    layout, y_ticks = lay_out(model, shown, canvas.width, canvas.height, y)
    num_columns = layout.plot.width * raster.GLYPHS[look.glyphs].dots_x
    window = Window(x0, x1, y.y0, y.y1, log_x, y.log, edges_of(x0, x1, num_columns, log=log_x))
    scene = Scene(canvas, layout, window, model=model, view=view, look=look)
    drawn = [_curve(scene, series, memo, front=series is front) for series in shown]
    noise: Curve | None = None
    if front is not None and front.smooth and view.smoothing > 0:
        noise = _raw_curve(scene, front, memo)
    return _Seen(y, layout, y_ticks, window, drawn, noise)


def _letters(bright: Sequence[SeriesData], look: Look) -> dict[str, str]:
    """The letter of each series, by key; empty where colours are enough."""
    if len(bright) < 2 or not (look.letters or len(bright) > NUM_HUES):
        return {}
    return {series.key: LETTERS[index % len(LETTERS)] for index, series in enumerate(bright)}


def _curve(scene: Scene, series: SeriesData, memo: Memo, *, front: bool) -> Curve:
    """A series as it is drawn: smoothed where the view asks for it."""
    y, pyramid = memo.smoothed(series, scene.view.smoothing)
    folded = fold(series.x, y, scene.window.edges, series.breaks, pyramid)
    rows = scene.cover(folded, series.x, y)
    return Curve(series, y, folded, raster.dotted(rows) if series.dimmed else rows, front)


def _raw_curve(scene: Scene, series: SeriesData, memo: Memo) -> Curve:
    """The samples themselves, behind a smoothed line."""
    folded = fold(series.x, series.y, scene.window.edges, series.breaks, memo.pyramid(series))
    return Curve(series, series.y, folded, scene.cover(folded, series.x, series.y), front=False)


def _readings(model: ChartModel, view: View, memo: Memo) -> tuple[Reading, ...]:
    if view.cursor_x is None or not math.isfinite(view.cursor_x):
        return ()
    return readings(model, view, view.cursor_x, memo)


def marks_near(model: ChartModel, frame: Frame, x: float) -> list[Mark]:
    """The events in the same column as x, most important first: what a readout says under the cursor."""
    column = frame.column_of(x)
    if column is None:
        return []
    found = [mark for mark in model.marks if frame.column_of(mark.x) == column]
    return sorted(found, key=lambda mark: -layers.MARK_ORDER.index(mark.kind))
