"""The layers of a chart, bottom to top; each function puts one of them on the scene's canvas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lineage_tui.plot import raster
from lineage_tui.plot.layout import LAST_WIDTH, Curve, Scene
from lineage_tui.plot.model import EMPTY, MarkKind, XKind
from lineage_tui.plot.numbers import NO_TICKS, format_short, format_x, x_ticks
from lineage_tui.plot.styles import Bg, Fg, hue
from lineage_tui.plot.text import plain, width

MARK_FG: Final[dict[str, Fg]] = {
    "lr_restore": Fg.LR_RESTORE,
    "fp16_skip": Fg.FP16_SKIP,
    "nonfinite": Fg.NONFINITE,
    "alert": Fg.ALERT,
    "checkpoint": Fg.CHECKPOINT,
    "note": Fg.NOTE,
}
MARK_ORDER: Final[tuple[MarkKind, ...]] = (
    "note",
    "fp16_skip",
    "checkpoint",
    "lr_restore",
    "alert",
    "nonfinite",
)  # the last one wins a cell
SPAN_BG: Final[dict[str, Bg]] = {"eval": Bg.EVAL, "checkpoint": Bg.CHECKPOINT, "restore": Bg.RESTORE}
SPAN_SHORT: Final[dict[str, str]] = {"checkpoint": "ckpt"}
LINE_ORDER: Final = ("boundary", "death", "gap")  # the first one wins a cell
LINE_FG: Final[dict[str, Fg]] = {"boundary": Fg.BOUNDARY, "death": Fg.DEATH, "gap": Fg.GAP}
VERDICT_FG: Final[dict[str, Fg]] = {
    "exact": Fg.GOOD,
    "within": Fg.GOOD,
    "diverged": Fg.BAD,
    "refused": Fg.BAD,
    "unproven": Fg.WARN,
}
LETTER_EVERY: Final = 24  # cells from letter to letter on one line
FARTHEST_LABEL: Final = 3  # rows between the end of a line and its value
MOST_TIMES: Final = 7  # ticks of a time axis, and one more where both ends have one
ROOMY: Final = 60  # cells of a chart that names its x axis at any cost
LABEL_SHARE: Final = 3  # a long name of the x axis takes no more than a third of its row
GAP: Final = "gap"  # the kind of a span in which nobody worked: its blank plot says so
CROWDED: Final = 0.5  # of the columns: phases that tint more than this say nothing, and stay out of the plot


def guides(scene: Scene) -> None:
    """A faint dotted line at each y tick."""
    plot, canvas = scene.plot, scene.canvas
    if scene.marks.guide == " " or plot.height < 4:
        return
    for row, _ in scene.tick_rows:
        canvas.chars[row, plot.x : plot.x + plot.width] = ord(scene.marks.guide)
        canvas.fg[row, plot.x : plot.x + plot.width] = Fg.GUIDE


def spans(scene: Scene) -> None:
    """Phases as backgrounds of the plot and of their own row, where their names stand."""
    canvas, plot = scene.canvas, scene.plot
    covered: dict[str, raster.Mask] = {}
    named: dict[str, dict[int, str]] = {}
    x0, x1 = scene.window.x0, scene.window.x1
    for kind, (lower, upper, labels) in scene.model.spans_by_kind.items():
        seen = np.flatnonzero((upper >= x0) & (lower <= x1))
        if not seen.size:
            continue
        firsts = scene.columns(np.maximum(lower[seen], x0))
        lasts = scene.columns(np.minimum(upper[seen], x1))
        ends = np.zeros(canvas.width + 1, dtype=np.int64)
        np.add.at(ends, firsts, 1)
        np.add.at(ends, lasts + 1, -1)
        covered[kind] = np.cumsum(ends[:-1]) > 0
        places, which = np.unique(firsts, return_index=True)
        default = SPAN_SHORT.get(kind, kind)
        pairs = zip(places.tolist(), seen[which].tolist(), strict=True)
        named[kind] = {column: labels[number] or default for column, number in pairs}
    words: list[tuple[int, str]] = []
    behind = np.zeros(canvas.width, dtype=np.int64)  # kinds that are still to be painted over each column
    for columns in covered.values():
        behind += columns
    for kind, columns in covered.items():
        behind -= columns
        areas: list[slice] = []
        if kind != GAP and columns.sum() <= plot.width * CROWDED:
            areas.append(slice(plot.y, plot.y + plot.height))
            scene.shaded.append(kind)
        if scene.layout.phases is not None:
            areas.append(slice(scene.layout.phases, scene.layout.phases + 1))
        for area in areas:
            if scene.look.tints:
                canvas.bg[area, columns] = SPAN_BG.get(kind, Bg.PHASE)
            else:
                blank = (canvas.chars[area] == ord(" ")) & columns
                canvas.chars[area][blank] = ord(shade(scene, kind))
                canvas.fg[area][blank] = Fg.SHADE
        starts = np.flatnonzero(columns & ~np.concatenate(([False], columns[:-1])))
        # A name stands where its colour does: what lies under another phase has none.
        words += [(start, plain(named[kind][start], 24)) for start in starts[behind[starts] == 0].tolist()]
    if scene.layout.phases is not None:
        _phase_words(scene, sorted(words))


def shade(scene: Scene, kind: str) -> str:
    """The character that stands for a kind of phase where backgrounds have no tint."""
    return scene.marks.shades[0 if kind == "eval" else 1]


def _phase_words(scene: Scene, words: list[tuple[int, str]]) -> None:
    """The name of a phase at its start, if it can stand there whole before the next one."""
    right = scene.plot.x + scene.plot.width
    row = scene.layout.phases
    if row is None:
        return
    free_from = 0
    for number, (start, word) in enumerate(words):
        room = words[number + 1][0] if number + 1 < len(words) else right + 1
        if start < free_from or start + width(word) > right or start + width(word) >= room:
            continue
        scene.canvas.put(row, start, word, Fg.MUTED)
        free_from = start + width(word) + 1


def marked_range(scene: Scene) -> None:
    """The stretch of x a person marked."""
    if scene.view.range is None:
        return
    stretch = scene.stretch(*scene.view.range)
    if stretch is not None:
        scene.canvas.bg[scene.region[0], stretch[0] : stretch[1] + 1] = Bg.RANGE


def band(scene: Scene, noise: Curve) -> None:
    """A tint from the smallest to the largest raw sample of each column of cells."""
    plot, marks = scene.plot, scene.marks
    top, bottom = noise.rows.top, noise.rows.bottom
    drawn = bottom >= top
    high = np.where(drawn, top, plot.height * marks.dots_y).reshape(plot.width, marks.dots_x).min(axis=1)
    low = np.where(drawn, bottom, -1).reshape(plot.width, marks.dots_x).max(axis=1)
    line = np.arange(plot.height)[:, None]
    inside = (line >= high // marks.dots_y) & (line <= low // marks.dots_y)
    scene.canvas.bg[scene.region][inside] = hue(Bg.BAND, noise.series.hue)


# Vertical lines and the words at their heads


@dataclass
class _Flag:
    """The word at the head of one line."""

    column: int
    kind: str
    label: str
    start: int | None = None
    text: str = ""


def lines(scene: Scene) -> None:
    """Boundaries, deaths and gaps down to the axis; words at their heads where they fit."""
    canvas = scene.canvas
    glyph = {"boundary": scene.marks.vline, "death": scene.marks.death, "gap": scene.marks.gap}
    flags: list[_Flag] = []
    for line in sorted(scene.model.lines, key=lambda one: -LINE_ORDER.index(one.kind)):
        column = scene.column(line.x)
        if column is not None:
            canvas.chars[scene.region[0], column] = ord(glyph[line.kind])
            canvas.fg[scene.region[0], column] = LINE_FG[line.kind]
            flags.append(_Flag(column, line.kind, plain(line.label, 40)))
    if scene.layout.flags is not None:
        _place_flags(scene, flags)
        for flag in flags:
            _put_flag(scene, scene.layout.flags, flag)


def _place_flags(scene: Scene, flags: list[_Flag]) -> None:
    """Find a place for each word, on the right of its line or on its left; the most telling words first.

    Session names go before verdicts, verdicts before the ends of sessions. A word that has room for its first part
    only keeps that; one without any is left out: the line still says what it is.
    """
    taken = np.zeros(scene.canvas.width + 2, dtype=np.bool_)
    flags.sort(key=lambda one: (LINE_ORDER.index(one.kind), one.column))
    boundaries = [flag for flag in flags if flag.kind == "boundary"]
    columns = [flag.column for flag in flags]
    for flag in boundaries:
        _try_flag(scene, flag, flag.label.partition(" ")[0], taken, columns)
    for flag in (*boundaries, *(one for one in flags if one.kind != "boundary")):
        if flag.text != flag.label:
            _try_flag(scene, flag, flag.label, taken, columns)


def _try_flag(scene: Scene, flag: _Flag, text: str, taken: raster.Mask, columns: list[int]) -> None:
    """Move a flag to the best free place for `text`; leave it as it is without one."""
    if not text:
        return
    if flag.start is not None:
        taken[flag.start : flag.start + width(flag.text)] = False
    spots = [flag.column, flag.column - width(text) + 1]
    if any(flag.column < other <= flag.column + width(text) for other in columns):
        spots.reverse()  # another line stands close on the right: leave that side to its word
    for start in spots:
        fits = start >= scene.plot.x and start + width(text) <= scene.canvas.width
        if fits and not taken[max(start - 1, 0) : start + width(text) + 1].any():
            flag.start, flag.text = start, text
            break
    if flag.start is not None:
        taken[flag.start : flag.start + width(flag.text)] = True


def _put_flag(scene: Scene, row: int, flag: _Flag) -> None:
    if flag.start is None:
        return
    scene.canvas.put(row, flag.start, flag.text, LINE_FG[flag.kind])
    head, _, rest = flag.text.partition(" ")
    verdict = rest.replace("_", " ").partition(" ")[0]
    if verdict in VERDICT_FG:
        scene.canvas.put(row, flag.start + width(head) + 1, rest, VERDICT_FG[verdict])


# Curves


def raw_dots(scene: Scene, noise: Curve) -> None:
    """The raw samples as dim dots, for terminals without tints; the smoothed curves go over them."""
    bits = raster.paint(noise.rows, scene.marks, scene.plot.width, scene.plot.height)
    wants = bits != 0
    scene.canvas.chars[scene.region][wants] = scene.marks.table[bits[wants]]
    scene.canvas.fg[scene.region][wants] = hue(Fg.RAW, noise.series.hue)
    scene.data |= wants


def curves(scene: Scene, drawn: Sequence[Curve]) -> None:
    """Every curve; a cell that several want has the dots of one of them."""
    if not drawn:
        return
    bits = [raster.paint(curve.rows, scene.marks, scene.plot.width, scene.plot.height) for curve in drawn]
    chars, fg = scene.canvas.chars[scene.region], scene.canvas.fg[scene.region]
    front = next((number for number, curve in enumerate(drawn) if curve.front), None)
    owner = raster.assign(bits, front)
    for number, curve in enumerate(drawn):
        mine = owner == number
        chars[mine] = scene.marks.table[bits[number][mine]]
        fg[mine] = curve.fg
    scene.data |= owner >= 0


def letters(scene: Scene, drawn: Sequence[Curve]) -> None:
    """The letter of each series on its line now and then, so that no colour is needed to follow it."""
    named = [curve for curve in drawn if curve.series.key in scene.letters]
    dots_x, dots_y = scene.marks.dots_x, scene.marks.dots_y
    for number, curve in enumerate(named):
        shift = 2 + number * max(LETTER_EVERY // len(named), 2)
        for cell in range(shift, scene.plot.width, LETTER_EVERY):
            top, bottom = curve.rows.top[cell * dots_x], curve.rows.bottom[cell * dots_x]
            if bottom >= top:
                row = int(top + bottom) // 2 // dots_y
                scene.canvas.put(scene.plot.y + row, scene.plot.x + cell, scene.letters[curve.series.key], curve.fg)


def clipped(scene: Scene, drawn: Sequence[Curve]) -> int:
    """Arrows where a curve leaves the window; returns how many columns of cells have one."""
    plot, canvas = scene.plot, scene.canvas
    above = np.zeros(plot.width, dtype=np.bool_)
    below = np.zeros(plot.width, dtype=np.bool_)
    for curve in drawn:
        above |= curve.rows.above.reshape(plot.width, scene.marks.dots_x).any(axis=1)
        below |= curve.rows.below.reshape(plot.width, scene.marks.dots_x).any(axis=1)
    if plot.height >= 3:
        ends = ((above, plot.y, scene.marks.above), (below, plot.y + plot.height - 1, scene.marks.below))
        for columns, row, glyph in ends:
            where = np.flatnonzero(columns) + plot.x
            canvas.chars[row, where] = ord(glyph)
            canvas.fg[row, where] = Fg.WARN
    return int((above | below).sum())


# What stands around the plot


def axes(scene: Scene) -> None:
    """Both axes with their ticks, and the names of the rows below the plot."""
    plot, canvas, layout, marks = scene.plot, scene.canvas, scene.layout, scene.marks
    edge = layout.gutter - 1
    if layout.gutter:
        canvas.chars[scene.region[0], edge] = ord(marks.axis_v)
        canvas.fg[scene.region[0], edge] = Fg.AXIS
        for row, label in scene.tick_rows:
            canvas.put(row, edge, marks.tick_y, Fg.AXIS)
            canvas.put(row, edge - 1 - len(label), label, Fg.MUTED)
        for name, at in (("events", layout.lane), ("phases", layout.phases)):
            if at is not None:
                canvas.put(at, edge, marks.axis_v, Fg.AXIS)
                canvas.put(at, edge - 1 - len(name), name, Fg.MUTED)
    if layout.axis is not None:
        canvas.chars[layout.axis, plot.x : plot.x + plot.width] = ord(marks.axis_h)
        canvas.fg[layout.axis, plot.x : plot.x + plot.width] = Fg.AXIS
        if layout.gutter:
            canvas.put(layout.axis, edge, marks.corner, Fg.AXIS)
    if layout.labels is not None:
        _x_labels(scene, layout.labels)


def tick_target(width: int, kind: XKind) -> int:
    """How many ticks an x axis of that many cells has room for; of times no more than a person reads."""
    target = max(width // (14 if kind == "seconds" else 10), min(width // 8, 3), 1)
    return target if kind == "count" else min(target, MOST_TIMES)


def _x_labels(scene: Scene, row: int) -> None:
    """Tick labels centred under their ticks; none is cut, none touches another or the cursor's tag."""
    canvas, model, window = scene.canvas, scene.model, scene.window
    taken = np.zeros(canvas.width + 2, dtype=np.bool_)
    cursor = None if scene.view.cursor_x is None else scene.column(scene.view.cursor_x)
    if cursor is not None and scene.view.cursor_x is not None:
        text = f" {format_x(scene.view.cursor_x, model.x_kind, model.utc_offset_s)} "
        if len(text) <= canvas.width:
            start = min(max(cursor - len(text) // 2, 0), canvas.width - len(text))
            canvas.put(row, start, text, Fg.CURSOR, Bg.TAG)
            taken[max(start - 1, 0) : start + len(text) + 1] = True
    name = plain(model.x_label, 24)
    start = scene.layout.gutter - 2 - width(name)
    if start < 0 and canvas.width >= ROOMY and width(name) * LABEL_SHARE <= canvas.width:
        start = canvas.width - width(name)  # too long for its place: the ticks there give way
    if start >= 0 and not taken[start : start + width(name) + 1].any():
        canvas.put(row, start, name, Fg.MUTED)
        taken[start : start + width(name) + 1] = True
    ticks = x_ticks(
        (window.x0, window.x1),
        tick_target(scene.plot.width, model.x_kind),
        model.x_kind,
        log=window.log_x,
        utc_offset_s=model.utc_offset_s,
        room=scene.plot.width,
    )
    if not scene.has_x:
        ticks = NO_TICKS
    for value, label in zip(ticks.at, ticks.labels, strict=True):
        column = scene.column(value)
        if column is None:
            continue
        if scene.layout.axis is not None:
            canvas.put(scene.layout.axis, column, scene.marks.tick_x, Fg.AXIS)
        start = min(max(column - (len(label) - 1) // 2, 0), canvas.width - len(label))
        if start >= 0 and not taken[max(start - 1, 0) : start + len(label) + 1].any():
            canvas.put(row, start, label, Fg.MUTED)
            taken[start : start + len(label)] = True


def nonfinite(scene: Scene, drawn: Sequence[Curve]) -> None:
    """A cross on the axis under every column with a non-finite sample."""
    found = [curve.folded.bad for curve in drawn if curve.folded.bad.size]
    if not found:
        return
    columns = np.unique(np.concatenate(found) // scene.marks.dots_x)
    row = scene.layout.axis
    if row is None:
        row = scene.plot.y + scene.plot.height - 1
        columns = columns[~scene.data[-1, columns]]
    scene.canvas.chars[row, scene.plot.x + columns] = ord(scene.marks.bad)
    scene.canvas.fg[row, scene.plot.x + columns] = Fg.NONFINITE


def lane(scene: Scene) -> None:
    """What happened, directly under the curves; of several events in a column the gravest."""
    row = scene.layout.lane
    if row is None:
        return
    for kind in MARK_ORDER:
        at = scene.model.marks_by_kind.get(kind, EMPTY)
        at = at[(at >= scene.window.x0) & (at <= scene.window.x1)]
        if at.size:
            columns = scene.columns(at)
            scene.canvas.chars[row, columns] = ord(scene.marks.marks[kind])
            scene.canvas.fg[row, columns] = MARK_FG[kind]


def last_values(scene: Scene, drawn: Sequence[Curve]) -> None:
    """The last visible value of each bright series beside its end, in its colour; larger ones above smaller ones.

    The focused one stands where its line ends; others that would cover it, or each other, move away by up to three
    rows, and are left out where that is not enough.
    """
    if not scene.layout.last:
        return
    plot = scene.plot
    ends = [
        (value, curve)
        for curve in drawn
        if not curve.series.dimmed
        and (value := _last_value(curve)) is not None
        and (value > 0 or not scene.window.log_y)
    ]
    ends.sort(key=lambda one: -one[0])
    middle = next((number for number, (_, curve) in enumerate(ends) if curve.front), 0)
    wanted = [scene.row(value) for value, _ in ends]
    for (value, curve), row, near in zip(
        ends, _spread(wanted, middle, plot.y, plot.y + plot.height), wanted, strict=True
    ):
        text = format_short(value)
        letter = scene.letters.get(curve.series.key, "")
        if letter and len(text) + 2 < LAST_WIDTH:
            text = f"{letter} {text}"
        if len(text) < LAST_WIDTH and plot.y <= row < plot.y + plot.height and abs(row - near) <= FARTHEST_LABEL:
            scene.canvas.put(row, plot.x + plot.width + 1, text, curve.fg)


def _spread(wanted: Sequence[int], middle: int, top: int, stop: int) -> list[int]:
    """Rows in ascending order, each its own, as near to the ascending wanted ones as may be; `middle` moves last."""
    rows = list(wanted)
    for number in range(middle + 1, len(rows)):
        rows[number] = max(rows[number], rows[number - 1] + 1)
    for number in range(middle - 1, -1, -1):
        rows[number] = min(rows[number], rows[number + 1] - 1)
    for number in range(len(rows)):
        rows[number] = max(rows[number], top + number)
    for number in range(len(rows) - 1, -1, -1):
        rows[number] = min(rows[number], stop - len(rows) + number)
    return rows


def _last_value(curve: Curve) -> float | None:
    """The last finite value inside the window."""
    first, stop = int(curve.folded.index[0]), int(curve.folded.index[-1])
    part = curve.y[max(first, stop - 4096) : stop]
    finite = np.flatnonzero(np.isfinite(part))
    return float(part[finite[-1]]) if finite.size else None


def cursor(scene: Scene) -> None:
    """The cursor from top to axis, behind the curves."""
    column = None if scene.view.cursor_x is None else scene.column(scene.view.cursor_x)
    if column is None:
        return
    plot, canvas, axis = scene.plot, scene.canvas, scene.layout.axis
    free = np.flatnonzero(~scene.data[:, column - plot.x]) + plot.y
    canvas.chars[free, column] = ord(scene.marks.cursor)
    canvas.fg[free, column] = Fg.CURSOR
    if axis is not None and canvas.fg[axis, column] != Fg.NONFINITE:
        canvas.put(axis, column, scene.marks.tick_x, Fg.CURSOR)
