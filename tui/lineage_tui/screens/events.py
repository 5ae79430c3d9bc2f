"""Everything that happened, line by line; from a line to the curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from lineage_schemas.events import Event
from lineage_tui.messages import Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, joined, toned
from lineage_tui.widgets.event_words import event_text, kind_words
from lineage_tui.widgets.table import Cell, Column, LazyRows, Row, Table
from lineage_tui.widgets.words import clock, count, kind_glyph, plural, to_ascii

COLUMNS: Final = (
    Column("step", 9, align="right", most=14),
    Column("ses", 3, align="right", drop=2),
    Column("", 1),
    Column("kind", 14),
    Column("what", 30, grow=1),
    Column("when", 19, align="right", drop=1),
)
TALL_FROM: Final = 16
"""From this height on the event under the cursor is told in full below the list."""


class EventsScreen(ListScreen):
    """The events but `step` lines, in the order of the log."""

    place: ClassVar[str] = "events"
    what: ClassVar[str] = "events"
    newest_last: ClassVar[bool] = True
    filtered_by: ClassVar[str] = "kind, what happened, step"

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._kind: str | None = None
        self._shown: list[tuple[int, Event]] = []
        self._texts: dict[int, str] = {}
        self._texts_of: str | None = None
        self._ordinals: Mapping[str, int] = {}

    def compose_body(self) -> Iterable[Widget]:
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only, empty="no event yet")
        yield self.filter_line
        yield Static(id="remark", classes="event")

    def on_table_highlighted(self) -> None:
        self._show_event()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self._show_event()

    def _show_event(self) -> None:
        """The event under the cursor in full, with what the narrow list has no room for; its place never moves."""
        shown = self.query_one("#remark", Static)
        shown.display = bool(self._shown) and self.size.height >= TALL_FROM
        event = self._event()
        if event is None or not shown.display:
            return
        glyph, tone = kind_glyph(event.kind, self.glyphs)
        where = [f"step {event.step:,}"] if event.step is not None else []
        if (ordinal := self._ordinals.get(event.session)) is not None:
            where.append(f"session {ordinal}")
        where.append(clock(event.ts))
        said = self._text(self._shown[self.table.cursor][0], event)
        head = joined(
            [
                toned(f"{glyph} ", tone),
                toned(kind_words(event.kind), tone, "bold"),
                toned(f"  {'  '.join(where)}", "dim"),
            ]
        )
        shown.update(Content("\n").join([head, Content(to_ascii(said) if self.ascii_only else said)]))

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        super().snapshot_changed(snapshot)
        self._list()

    def filter_changed(self) -> None:
        self._list()

    def _list(self) -> None:
        snapshot = self.lineage.snapshot
        if snapshot is None:
            return
        if snapshot.key != self._texts_of:
            self._texts.clear()
            self._texts_of = snapshot.key
        ordinals = self._ordinals = {session.id: session.ordinal for session in snapshot.record.sessions}
        at_end = not self._shown or self.table.cursor == len(self._shown) - 1
        keep = self.table.row.key if self.table.row else None
        words = self.filter.value
        self._shown = [
            (index, event)
            for index, event in enumerate(snapshot.events)
            if (self._kind is None or event.kind == self._kind)
            and (
                not words
                or matches(words, kind_words(event.kind), event.kind, self._text(index, event), str(event.step))
            )
        ]
        self.table.empty = "no event fits the filter" if words or self._kind else "no event yet"
        self.table.set_rows(
            LazyRows(
                self._shown, lambda item: self._row(*item, ordinals.get(item[1].session)), lambda item: str(item[0])
            ),
            keep=None if at_end else keep,
        )
        if at_end:
            self.table.move_edge(1)
        self.show_count(len(self._shown), len(snapshot.events))
        self._show_event()
        self.show_header()

    def _text(self, index: int, event: Event) -> str:
        text = self._texts.get(index)
        if text is None:
            text = self._texts[index] = event_text(event)
        return text

    def _row(self, index: int, event: Event, ordinal: int | None) -> Row:
        glyph, tone = kind_glyph(event.kind, self.glyphs)
        return Row(
            str(index),
            (
                Cell(count(event.step), "strong" if event.step is not None else "dim"),
                Cell("" if ordinal is None else str(ordinal), "dim"),
                Cell(glyph, tone),
                Cell(kind_words(event.kind), tone),
                Cell(self._text(index, event)),
                Cell(clock(event.ts), "dim"),
            ),
        )

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        snapshot = self.lineage.snapshot
        if snapshot is not None:
            shown = f"{len(self._shown):,} of " if len(self._shown) != len(snapshot.events) else ""
            right = [*right, Fact(f"{shown}{plural(len(snapshot.events), 'event')}", "dim", 4)]
            if self._kind is not None:
                right.append(Fact(f"only {kind_words(self._kind)}", "info", 2))
        return left, right

    def runs_changed(self) -> None:
        self._shown = []
        self._kind = None

    def select_event(self, index: int) -> None:
        """Put the cursor on the event with this place in the log's list."""
        for row, (found, _) in enumerate(self._shown):
            if found == index:
                self.table.select(row)

    def session_here(self) -> str | None:
        event = self._event()
        return event.session if event is not None else None

    # -- actions ---------------------------------------------------------------------------------------------------
    def _event(self) -> Event | None:
        return self._shown[self.table.cursor][1] if self._shown and self.table.row else None

    def action_open(self) -> None:
        event = self._event()
        if event is not None and event.step is not None:
            self.lineage.go_to_step(event.step, session=event.session)
        else:
            self.say("this event has no step" if event is not None else "there is no event")

    def on_table_chosen(self) -> None:
        self.action_open()

    def action_explain(self) -> None:
        event = self._event()
        if event is not None and event.step is not None:
            self.lineage.open_explain(event.step)
        else:
            self.say("this event has no step" if event is not None else "there is no event")

    def action_kind(self) -> None:
        snapshot = self.lineage.snapshot
        if snapshot is None:
            return
        kinds = list(dict.fromkeys(event.kind for event in snapshot.events))
        order = [None, *kinds]
        self._kind = order[(order.index(self._kind) + 1) % len(order)] if self._kind in order else None
        self._list()
        num = f"{len(self._shown):,} of {plural(len(snapshot.events), 'event')}"
        self.say(f"only {kind_words(self._kind)}: {num} (esc: all)" if self._kind is not None else f"all kinds: {num}")

    def step_back(self) -> bool:
        if super().step_back():
            return True
        if self._kind is not None:
            self._kind = None
            self._list()
            return True
        return False
