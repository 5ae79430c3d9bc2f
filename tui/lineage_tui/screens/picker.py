"""Which metrics are drawn: type to search, space to choose, enter to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from lineage_tui.widgets.bars import toned
from lineage_tui.widgets.table import Cell, Column, Row, Table
from lineage_tui.widgets.words import plain

COLUMNS: Final = (Column("", 3), Column("metric", 20, grow=1))


class Search(Input):
    """A line to type in that leaves the space bar to the screen."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return character != " " and super().check_consume_key(key, character)


class MetricPicker(ModalScreen[tuple[str, ...] | None]):
    """All metrics of a run; the chosen ones in the order they were chosen. None when it was left with esc.

    One that is left out and chosen again is back in its place.
    """

    # Letters go into the search line, so that choosing needs keys that are none.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("enter", "take", show=False, priority=True),
        Binding("space", "choose", show=False, priority=True),
        Binding("tab", "choose", show=False, priority=True),
        Binding("up", "row(-1)", show=False, priority=True),
        Binding("down", "row(1)", show=False, priority=True),
    ]

    def __init__(self, metrics: Sequence[str], chosen: Sequence[str], *, ascii_only: bool = False) -> None:
        super().__init__()
        self._metrics = tuple(metrics)
        self._order = list(chosen)
        self._out: set[str] = set()
        self._ascii = ascii_only
        self._search = Search(placeholder="search", id="picker-search", compact=True)
        self._search.cursor_blink = False
        self._table = Table(COLUMNS, id="picker-list", ascii_only=ascii_only, empty="no metric fits")

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(name for name in self._order if name not in self._out)

    def compose(self) -> ComposeResult:
        box = Vertical(
            self._search,
            self._table,
            Static(toned("space chooses, enter draws, esc leaves", "dim"), id="picker-hint"),
            id="picker-box",
        )
        box.border_title = "metrics"
        yield box

    def on_mount(self) -> None:
        self._search.focus()
        self._list()

    def on_input_changed(self) -> None:
        self._list()
        self._table.select(0)

    def _list(self) -> None:
        found = list(self._metrics)
        if words := self._search.value.strip():
            matcher = Matcher(words)
            scores = {name: matcher.match(name) for name in found}
            found = sorted((name for name in found if scores[name] > 0), key=lambda name: -scores[name])
        rows = []
        places = {name: place for place, name in enumerate(self.chosen, 1)}
        for name in found:
            place = places.get(name)
            mark = Cell(f"[{place}]" if place else "[ ]", "accent" if place else "dim")
            rows.append(Row(name, (mark, Cell(plain(name, 100), "strong" if place else ""))))
        keep = self._table.row.key if self._table.row else None
        self._table.set_rows(rows, keep=keep)

    def action_row(self, by: int) -> None:
        self._table.move(by)

    def action_choose(self) -> None:
        row = self._table.row
        if row is None:
            return
        if row.key in self._order:
            self._out ^= {row.key}
        else:
            self._order.append(row.key)
        self._list()

    def action_take(self) -> None:
        row = self._table.row
        # Enter on a search that found one thing means that thing.
        if row is not None and self._search.value.strip() and row.key not in self.chosen:
            self.action_choose()
        self.dismiss(self.chosen or None)

    def action_leave(self) -> None:
        self.dismiss(None)
