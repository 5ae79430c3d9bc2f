"""The first row of a chart: what it shows, whose lines are which, and how it was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lineage_tui.plot.frame import HeaderFacts
from lineage_tui.plot.layers import SPAN_BG, shade
from lineage_tui.plot.layout import Curve, Scene
from lineage_tui.plot.model import SeriesData
from lineage_tui.plot.numbers import format_short, format_value
from lineage_tui.plot.styles import Bg, Fg, hue
from lineage_tui.plot.text import cut, plain, width

LACKING: Final = {"train": "duration"}
"""What samples do not have that are not on an axis, where that is not the axis's own word."""


def facts_of(scene: Scene, drawn: Sequence[Curve], num_clipped: int) -> HeaderFacts:
    """What the reader of this frame should know."""
    view, window, marks = scene.view, scene.window, scene.marks
    scale: list[str] = []
    if view.log_y:
        scale.append("log y" if window.log_y else "log y: nothing above 0")
    if view.log_x:
        scale.append("log x" if window.log_x else "log x: not from 0")
    front = next((curve for curve in drawn if curve.front), drawn[0] if drawn else None)
    per_column = 0.0 if front is None else front.folded.num_samples / scene.plot.width
    return HeaderFacts(
        smoothing=f"ema {view.smoothing:.5g}" if view.smoothing > 0 and any(c.series.smooth for c in drawn) else "",
        folding=f"{marks.approx}{format_short(float(round(per_column)))} per column" if per_column >= 1.5 else "",
        clipping=f"{marks.above}{marks.below} clipped" if num_clipped else "",
        scale=" ".join(scale),
        points_per_column=per_column,
        num_clipped=num_clipped,
    )


def header(scene: Scene, shown: Sequence[SeriesData], facts: HeaderFacts) -> None:
    """Title and legend from the left, how it was drawn from the right; what does not fit whole is left out.

    Call it after the spans are drawn: the legend names the shades they left.
    """
    row, canvas, model = scene.layout.header, scene.canvas, scene.model
    if row is None:
        return
    title = plain(model.title)
    if width(title) > canvas.width:
        title = plain(title, canvas.width) if scene.marks.name != "ascii" else cut(title, canvas.width)
    canvas.put(row, 0, title, Fg.TITLE)
    at = width(title)
    unit = plain(model.y_unit, 24)
    if unit and at + 1 + width(unit) <= canvas.width:
        canvas.put(row, at + 1, unit, Fg.MUTED)
        at += 1 + width(unit)
    entries = _legend(scene, shown)
    legend = sum(len(swatch) + width(label) + 3 for swatch, label, _ in entries)
    room = canvas.width - at - 2
    notes = _notes(scene, shown, facts)
    separator = f" {scene.marks.dot} "
    # What was done to the data stays even where the legend is cut for it; the rest gives way to the legend.
    while notes and notes[0] in {facts.folding, facts.clipping} and width(separator.join(notes)) + legend > room:
        notes.pop(0)
    while notes and width(separator.join(notes)) > room:
        notes.pop(0)
    right = canvas.width
    text = separator.join(notes)
    if text and width(text) <= room:
        right -= width(text)
        canvas.put(row, right, text, Fg.MUTED)
        right -= 2
    at += 2
    for number, (swatch, label, fg) in enumerate(entries):
        more = f"+{len(entries) - number}"
        needed = len(swatch) + 1 + width(label)
        reserve = 2 + len(more) if number + 1 < len(entries) else 0
        if at + needed + reserve > right:
            if at + len(more) <= right:
                canvas.put(row, at, more, Fg.MUTED)
            break
        canvas.put(row, at, swatch, fg)
        canvas.put(row, at + len(swatch) + 1, label, Fg.TEXT)
        at += needed + 2
    else:
        _shades(scene, row, at, right)


def _shades(scene: Scene, row: int, at: int, right: int) -> None:
    """What each shade behind the curves is, where the phases have no row of their own: its name on its colour."""
    if scene.layout.phases is not None:
        return
    for kind in scene.shaded:
        name = plain(kind, 24)
        text = f" {name} " if scene.look.tints else f"{shade(scene, kind)} {name}"
        if at + width(text) > right:
            continue
        scene.canvas.put(row, at, text, Fg.MUTED, SPAN_BG.get(kind, Bg.PHASE) if scene.look.tints else None)
        at += width(text) + 1


def _legend(scene: Scene, shown: Sequence[SeriesData]) -> list[tuple[str, str, int]]:
    """Swatch, label and colour of each entry; none for a single line, which the title names."""
    bright = [series for series in shown if not series.dimmed]
    superseded = [series for series in shown if series.dimmed and series.x.size]
    if len(bright) < 2 and not superseded:
        return []
    marks = scene.marks
    entries = [
        (scene.letters.get(series.key, "") + marks.swatch, plain(series.label, 40), hue(Fg.SERIES, series.hue))
        for series in bright
    ]
    if superseded:
        entries.append((marks.swatch_dim, "superseded", hue(Fg.DIM, superseded[0].hue)))
    return entries


def _notes(scene: Scene, shown: Sequence[SeriesData], facts: HeaderFacts) -> list[str]:
    """How it was drawn, the least important first."""
    dropped = sum(series.num_dropped for series in shown)
    label = scene.model.x_label
    left_out = f"{format_value(float(dropped))} without {LACKING.get(label, plain(label))}" if dropped else ""
    return [note for note in (facts.folding, facts.clipping, left_out, facts.smoothing, facts.scale) if note]
