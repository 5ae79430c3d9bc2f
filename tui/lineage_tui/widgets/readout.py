"""What the cursor stands on: a value for each chart, what happened there, or what a marked range holds.

A widget of its own, so that moving the cursor does not send whole rows of the charts again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from textual.content import Content
from textual.widgets import Static

from lineage_schemas.events import Event, PhaseEndEvent
from lineage_tui.messages import Snapshot
from lineage_tui.plot.frame import Reading
from lineage_tui.plot.model import ChartModel, SeriesData
from lineage_tui.widgets.bars import joined, toned
from lineage_tui.widgets.event_words import event_text, kind_words
from lineage_tui.widgets.words import count, kind_glyph, number, plain, to_ascii

MAX_EVENTS = 40
QUIET = frozenset({"phase_start", "system", "step"})
"""Kinds that say nothing of their own beside what is shown anyway."""


def is_told(event: Event) -> bool:
    """Whether an event is worth a line beside the curves: what a phase did has a line of its own."""
    return event.kind not in QUIET and not (
        isinstance(event, PhaseEndEvent) and event.ok and event.phase in SHOWN_PHASES
    )


class _Told:
    """The events worth a line, with their steps and times; made once for a tuple of events, of which there is one."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.of = events
        self.events = [event for event in events if is_told(event)]
        self.steps = np.array([math.nan if e.step is None else e.step for e in self.events], dtype=np.float64)
        self.times = np.array([event.ts for event in self.events], dtype=np.float64)

    def near(self, cursor: float, reach: float, axis: str) -> list[int]:
        """Indices of those that may be within reach: all where only a look at each can tell."""
        if axis not in {"step", "wall"}:
            return list(range(len(self.events)))
        away = np.abs((self.steps if axis == "step" else self.times) - cursor)
        return np.flatnonzero((away <= reach) | np.isnan(away)).tolist()


_last_told = _Told(())


def _told(events: Sequence[Event]) -> _Told:
    global _last_told  # noqa: PLW0603  # of the drawing thread alone
    if _last_told.of is not events:
        _last_told = _Told(events)
    return _last_told


SHOWN_PHASES = frozenset({"eval", "checkpoint", "restore"})


@dataclass(frozen=True)
class ReadoutLine:
    """The readings of one chart at the cursor."""

    name: str
    x: tuple[str, str]
    step: str
    values: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, name: str, readings: Sequence[Reading]) -> ReadoutLine:
        """From what the plot read: x first, the step where x is something else, then a value per series."""
        if not readings:
            return cls(name, ("", ""), "", ())
        rest = list(readings[1:])
        step = readings[0].value
        if rest and rest[0].label == "step":
            step = rest.pop(0).value
        values = tuple((one.label, one.value + ("" if one.raw is None else f" ({number(one.raw)})")) for one in rest)
        return cls(name, (readings[0].label, readings[0].value), step, values)


@dataclass(frozen=True)
class Statistics:
    """What a marked range of the series on top holds; `label` is its metric, and its run where several are drawn."""

    label: str
    first: int | None
    last: int | None
    num: int
    num_bad: int
    mean: float
    least: float
    most: float
    slope: float
    marking: bool


def statistics(series: SeriesData, span: tuple[float, float], *, marking: bool, label: str) -> Statistics:
    """Mean, extremes and least-squares slope (per step) of the samples inside a range; NaN without a sample."""
    low, high = min(span), max(span)
    first, last = (int(at) for at in np.searchsorted(series.x, (low, np.nextafter(high, math.inf))))
    y = series.y[first:last]
    steps = (series.step if series.step is not None else series.x)[first:last].astype(np.float64)
    good = np.isfinite(y)
    values, at = y[good], steps[good]
    slope = math.nan
    if values.size > 1 and at[-1] > at[0]:
        centred = at - at.mean()
        slope = float((centred * (values - values.mean())).sum() / (centred**2).sum())
    return Statistics(
        label=label,
        first=int(steps[0]) if steps.size else None,
        last=int(steps[-1]) if steps.size else None,
        num=int(values.size),
        num_bad=int(y.size - values.size),
        mean=float(values.mean()) if values.size else math.nan,
        least=float(values.min()) if values.size else math.nan,
        most=float(values.max()) if values.size else math.nan,
        slope=slope,
        marking=marking,
    )


_BY_WEIGHT: Final = (
    "session_start",
    "checkpoint_restored",
    "lr_restore",
    "continuation",
    "alert",
    "log_recovered",
    "session_end",
    "fp16_skip",
    "note",
    "checkpoint_saved",
    "eval",
)
RANKS: Final[dict[str, int]] = {kind: rank for rank, kind in enumerate(_BY_WEIGHT)}


def happened(snapshot: Snapshot, model: ChartModel, cursor: float | None, reach: float, axis: str) -> list[Event]:
    """The events within `reach` of the cursor; without a cursor the newest ones, newest first.

    Those exactly under it come first, and of several what matters most: sessions and restores before evaluations.
    """
    known = _told(snapshot.events)
    told = known.events
    if cursor is None:
        return told[: -MAX_EVENTS - 1 : -1]
    starts = {str(segment.session): segment.start_step for segment in snapshot.segments}
    found: list[tuple[bool, int, float, int, Event]] = []
    for index in known.near(cursor, reach, axis):
        event = told[index]
        x = event_x(event, model, axis, starts)
        if x is not None and abs(x - cursor) <= reach:
            rank = RANKS.get(event.kind, len(RANKS))
            found.append((x != cursor, rank, abs(x - cursor), index, event))
    return [event for *_, event in sorted(found, key=lambda item: item[:4])][:MAX_EVENTS]


def event_x(event: Event, model: ChartModel, axis: str, starts: Mapping[str, int]) -> float | None:
    """Where an event is on the x axis of a chart; None when it has no place there."""
    if axis == "wall":
        return event.ts
    if event.step is None:
        return float(starts[event.session]) if axis == "step" and event.session in starts else None
    if axis == "step":
        return float(event.step)
    if axis == "session":
        return float(event.step - starts[event.session]) if event.session in starts else None
    for series in model.series:
        if series.step is not None and series.x.size and not series.dimmed:
            return float(series.x[min(int(series.step.searchsorted(event.step)), series.x.size - 1)])
    return None


class Readout(Static):
    """Under the charts: three lines at most, each cut to the width."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(id="readout")
        self._ascii = ascii_only
        self._again: Callable[[], None] | None = None

    def on_resize(self) -> None:
        """More or fewer lines: say it again."""
        if self._again is not None:
            self._again()

    def show(
        self,
        *,
        lines: Sequence[ReadoutLine],
        events: Sequence[Event],
        stats: Statistics | None,
        session: int | None,
        names: Sequence[str],
        focused: str | None,
        page: Sequence[str],
        overlaid: bool = False,
        first: str | None = None,
        note: str = "",
    ) -> None:
        """Say it; what does not fit the lines there are is left out from the end.

        `first` is the chart whose value comes first: the one under the mouse, else the focused one. A `note` is the
        answer to a key that could do nothing; it stands at the end of the first line, whatever else gives way.
        """
        self._again = partial(
            self.show,
            lines=lines,
            events=events,
            stats=stats,
            session=session,
            names=names,
            focused=focused,
            page=page,
            overlaid=overlaid,
            first=first,
            note=note,
        )
        width = max(self.size.width - 2, 1)
        strip = self._strip(names, focused) if len(page) < len(names) else Content("")
        said = self._values(lines, session, first or focused, overlaid=overlaid) if lines else self._hint()
        if note:
            end = _cut(toned(note, "warn"), width)
            said = _cut(said, max(width - end.cell_length - 2, 0))
            rows = [_at_ends(said, end, width)]
        elif strip.cell_length and said.cell_length + strip.cell_length + 3 <= width:
            rows = [_at_ends(said, strip, width)]
        else:
            rows = [_cut(said if lines or not strip.cell_length else strip, width)]
        if stats is not None:
            rows.append(_cut(self._statistics(stats), width))
        rows += self._events(events, width, at_cursor=bool(lines))
        height = max(self.size.height, 1)
        self.update(Content("\n").join([joined([Content(" "), row]) for row in rows[:height]]))

    def _values(
        self,
        lines: Sequence[ReadoutLine],
        session: int | None,
        first_name: str | None,
        *,
        overlaid: bool,
    ) -> Content:
        first = lines[0]
        label, value = first.x
        parts = [toned(f"{label} ", "dim"), toned(value, "strong")]
        if label != "step" and first.step:
            parts += [toned("  step ", "dim"), Content(first.step)]
        if session is not None:
            parts += [toned("  session ", "dim"), Content(str(session))]
        for line in sorted(lines, key=lambda one: one.name != first_name):
            for index, (series, reading) in enumerate(line.values):
                # The first curve is the run's own: its chart says whose. The others need their names.
                name = line.name if index == 0 else series
                if index == 0 and overlaid:
                    name = f"{line.name} {series}"
                parts += [
                    toned(f"  {plain(name, 40)} ", "dim"),
                    toned(reading, "strong" if line.name == first_name else ""),
                ]
        return joined(parts)

    def _hint(self) -> Content:
        keys = "<- ->" if self._ascii else "← →"
        return toned(f"{keys} puts a cursor on the curves, n on the next event; ? has all keys", "dim")

    def _strip(self, names: Sequence[str], focused: str | None) -> Content:
        """Which chart of how many."""
        parts: list[Content] = []
        for name in names[:8]:
            shown = plain(name, 20)
            parts.append(toned(f"[{shown}]", "accent", "bold") if name == focused else toned(f" {shown} ", "dim"))
        return joined(parts)

    def _statistics(self, stats: Statistics) -> Content:
        if not stats.num:
            return toned(f"no sample of {plain(stats.label, 24)} in the range", "warn")
        facts = [
            ("range", f"{count(stats.first)} to {count(stats.last)}"),
            ("n", f"{stats.num:,}"),
            ("mean", number(stats.mean)),
            ("min", number(stats.least)),
            ("max", number(stats.most)),
            ("slope", f"{number(stats.slope, 3)} a step"),
        ]
        if stats.num_bad:
            facts.insert(2, ("not finite", f"{stats.num_bad:,}"))
        parts = [toned(plain(stats.label, 24), "strong"), Content("  ")]
        for name, value in facts:
            parts += [toned(f"{name} ", "dim"), toned(value, "strong"), Content("  ")]
        if stats.marking:
            parts.append(toned("v ends the range", "accent"))
        return joined(parts)

    def _events(self, events: Sequence[Event], width: int, *, at_cursor: bool) -> list[Content]:
        if not events:
            return [toned("nothing recorded here", "dim")] if at_cursor else []
        return [_cut(event_line(event, ascii_only=self._ascii), width) for event in events[:MAX_EVENTS]]


class Story(Static):
    """Beside the charts: what happened around the cursor, or last; the events at the cursor stand out."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(id="story")
        self._ascii = ascii_only
        self._again: Callable[[], None] | None = None
        self._shown: tuple[object, ...] = ()

    def on_resize(self) -> None:
        """More or fewer lines: list them again."""
        if self._again is not None:
            self._again()

    def show(self, events: Sequence[Event], at_cursor: Sequence[Event], step: int | None) -> None:
        """List as many events as there are lines, those nearest to `step` in the middle."""
        self._again = partial(self.show, events, at_cursor, step)
        width, height = max(self.size.width - 1, 1), self.size.height
        told = _told(events).events
        if step is None:
            first = max(len(told) - height + 1, 0)
        else:
            middle = next((i for i, event in enumerate(told) if at_cursor and event is at_cursor[0]), None)
            if middle is None:
                middle = next(
                    (i for i, event in enumerate(told) if event.step is not None and event.step >= step), len(told)
                )
            first = max(min(middle - height // 2, len(told) - height + 1), 0)
        window = told[first : first + max(height - 1, 0)]
        shown = (width, height, tuple(map(id, window)), tuple(map(id, at_cursor)))
        if shown == self._shown:
            return
        self._shown = shown
        here = {id(event) for event in at_cursor}
        title = "events, the newest last" if step is None else f"events around step {step:,}"
        rows = [toned(title, "dim", "bold")]
        for event in window:
            line = _cut(event_line(event, ascii_only=self._ascii), width)
            rows.append(
                line.stylize("bold reverse" if self.app.no_color else "bold on $row") if id(event) in here else line
            )
        self.update(Content("\n").join(rows))


def event_line(event: Event, *, ascii_only: bool = False) -> Content:
    """Mark, step, kind and text of an event."""
    glyph, tone = kind_glyph(event.kind, "ascii" if ascii_only else "braille")
    text = event_text(event, 300)
    step = f"@{event.step:,} " if event.step is not None else ""
    return joined(
        [
            toned(f"{glyph} ", tone),
            toned(step, "dim"),
            toned(f"{kind_words(event.kind)}  ", tone),
            Content(to_ascii(text) if ascii_only else text),
        ]
    )


def _at_ends(left: Content, right: Content, width: int) -> Content:
    """One line with both; they fit."""
    return joined([left, Content(" " * max(width - left.cell_length - right.cell_length, 0)), right])


def _cut(content: Content, width: int) -> Content:
    return content if content.cell_length <= width else content.truncate(width, ellipsis=True)
