"""A table that draws only the rows in sight.

Rows come from a sequence that may make them on demand, so ten thousand cost what thirty do. A cell has a text and a
tone; tones are component classes, so that themes, 16 colours and none are the style sheet's business.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Generic, Literal, TypeVar, overload

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from lineage_tui.widgets.words import shortened, to_ascii

Tone = Literal["", "strong", "dim", "good", "warn", "bad", "info", "accent"]
TONES: Final = ("strong", "dim", "good", "warn", "bad", "info", "accent")


@dataclass(frozen=True)
class Cell:
    """A text with its tone; `text` must be clean (`words.plain`)."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Row:
    """One line; `key` says which thing it is, so that the cursor stays on it when rows move."""

    key: str
    cells: tuple[Cell, ...]
    marked: bool = False


@dataclass(frozen=True)
class Column:
    """A column: at least `width` cells; spare ones go to columns with `grow`; high `drop` goes first when narrow.

    What is too long is cut at its end, or in the middle where both ends tell things apart: names, paths. A column with
    `most` is as wide as its cells need, up to that: a part of a number would be another number.
    """

    title: str
    width: int
    align: Literal["left", "right"] = "left"
    grow: int = 0
    drop: int = 0
    cut: Literal["end", "middle"] = "end"
    most: int = 0


ItemT = TypeVar("ItemT")


class LazyRows(Sequence[Row], Generic[ItemT]):
    """Rows made from items when they come into sight; `key` gives the key of an item's row without making it."""

    def __init__(self, items: Sequence[ItemT], make: Callable[[ItemT], Row], key: Callable[[ItemT], str]) -> None:
        self._items = items
        self._make = make
        self._key = key
        self._made: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self._made.get(index)
        if row is None:
            if len(self._made) > 2_000:
                self._made.clear()
            row = self._made[index] = self._make(self._items[index])
        return row

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def place_of(self, key: str) -> int | None:
        """Where the row with this key is; None when it is not here."""
        return next((at for at, item in enumerate(self._items) if self._key(item) == key), None)


_LOOKED_AT: Final = 30
"""Rows at each end of a list whose cells say how wide a column is: the largest numbers are at an end."""


def widened(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns, those with `most` as wide as their cells need."""
    if not any(column.most for column in columns):
        return tuple(columns)
    near = range(min(len(rows), _LOOKED_AT))
    far = range(max(len(rows) - _LOOKED_AT, len(near)), len(rows))
    looked = [rows[at].cells for at in (*near, *far)]
    needed = [max((cell_len(cells[at].text) for cells in looked), default=0) for at in range(len(columns))]
    return tuple(
        replace(column, width=max(column.width, min(column.most, need))) if column.most else column
        for column, need in zip(columns, needed, strict=True)
    )


_LEAST: Final = 6
"""Cells that a column of words keeps on the narrowest terminal."""


def fit_columns(columns: Sequence[Column], width: int) -> list[int]:
    """The width each column gets; 0 for one that was dropped. Two blanks stand between two columns."""
    kept = [True] * len(columns)

    def needed() -> int:
        widths = [c.width for c, keep in zip(columns, kept, strict=True) if keep]
        return sum(widths) + max(len(widths) - 1, 0) * 2

    for index in sorted(range(len(columns)), key=lambda i: -columns[i].drop):
        if needed() <= width or not columns[index].drop:
            break
        kept[index] = False
    widths = [c.width if keep else 0 for c, keep in zip(columns, kept, strict=True)]
    spare = width - needed()
    while spare < 0:  # words give way before numbers, the longest first
        at = max((i for i, c in enumerate(columns) if c.align == "left"), key=lambda i: widths[i], default=None)
        if at is None or widths[at] <= _LEAST:
            break
        widths[at] -= 1
        spare += 1
    shares = sum(c.grow for c, keep in zip(columns, kept, strict=True) if keep)
    if spare > 0 and shares:
        growing = [i for i, c in enumerate(columns) if kept[i] and c.grow]
        for index in growing:
            widths[index] += spare * columns[index].grow // shares
        widths[growing[-1]] += width - sum(widths) - max(sum(kept) - 1, 0) * 2
    return widths


class Table(ScrollView, can_focus=False, inherit_bindings=False):
    """Rows under a line of titles, with one row under the cursor.

    It takes no focus and binds no key: the screen's part of the key table moves it (`move`, `move_page`,
    `move_edge`); keys of its own would scroll away from the row that the screen's keys are about.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--head", "table--cursor", "table--marked", *(f"tone--{tone}" for tone in TONES)
    }  # fmt: skip

    DEFAULT_CSS = """
    Table { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """

    class Highlighted(Message):
        """The cursor came to another row."""

        def __init__(self, table: Table, index: int, key: str) -> None:
            super().__init__()
            self.table = table
            self.index = index
            self.key = key

        @property
        def control(self) -> Table:
            return self.table

    class Chosen(Highlighted):
        """The row under the cursor was clicked twice."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        empty: str = "nothing here",
        ascii_only: bool = False,
        id: str | None = None,  # noqa: A002  # Textual's word
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.columns = tuple(columns)
        self.empty = empty
        self.cursor = 0
        self.show_cursor = True
        self._ascii = ascii_only
        self._rows: Sequence[Row] = ()
        self._widths: list[int] = []
        self._sorted: tuple[int, bool] | None = None
        self._strips: LRUCache[tuple[int, int, bool], Strip] = LRUCache(512)
        self._styles: dict[str, Style] = {}

    # -- what it shows ---------------------------------------------------------------------------------------------
    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    @property
    def row(self) -> Row | None:
        """The row under the cursor."""
        return self._rows[self.cursor] if 0 <= self.cursor < len(self._rows) else None

    def set_rows(self, rows: Sequence[Row], *, keep: str | None = None) -> None:
        """Show other rows; the cursor stays on the row with key `keep`, or on its place."""
        self._rows = rows
        if keep is not None:
            if isinstance(rows, LazyRows):
                at = rows.place_of(keep)
            else:
                at = next((i for i, row in enumerate(rows) if row.key == keep), None)
            self.cursor = self.cursor if at is None else at
        self.cursor = max(min(self.cursor, len(rows) - 1), 0)
        self._changed()
        self._scroll_to_cursor()

    def set_columns(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._changed()

    def set_sorted(self, column: int, *, descending: bool) -> None:
        """Mark the column that the rows are ordered by."""
        self._sorted = (column, descending)
        self._changed()

    def select(self, index: int) -> None:
        """Put the cursor on a row."""
        at = max(min(index, len(self._rows) - 1), 0)
        if at != self.cursor:
            self.cursor = at
            self.refresh()
        self._scroll_to_cursor()
        if (row := self.row) is not None:
            self.post_message(self.Highlighted(self, at, row.key))

    def move(self, by: int) -> None:
        self.select(self.cursor + by)

    def move_page(self, by: int) -> None:
        self.select(self.cursor + by * max(self.size.height - 2, 1))

    def move_edge(self, to: int) -> None:
        self.select(0 if to < 0 else len(self._rows) - 1)

    # -- drawing ---------------------------------------------------------------------------------------------------
    def _changed(self) -> None:
        self._strips.clear()
        self._styles.clear()
        self._widths = fit_columns(widened(self.columns, self._rows), max(self.scrollable_content_region.width - 2, 0))
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows) + 1)
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()
        self._styles.clear()

    def on_resize(self) -> None:
        self._changed()
        self._scroll_to_cursor()

    def _scroll_to_cursor(self) -> None:
        # The line of titles covers the first line of the region, so the row needs one line above it.
        self.scroll_to_region(Region(0, self.cursor, 1, 2), animate=False, force=True, x_axis=False)

    def _style(self, *names: str) -> Style:
        key = " ".join(names)
        style = self._styles.get(key)
        if style is None:
            style = self.rich_style
            for name in names:
                style += self.get_component_rich_style(name, partial=True)
            self._styles[key] = style
        return style

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self._render_head(width)
        if not self._rows:
            lines = ["", *textwrap.wrap(self.empty, max(width - 2, 8))]
            text = f" {lines[y - 1]}" if y <= len(lines) else ""
            return Strip([Segment(set_cell_size(text, width), self._style("tone--dim"))], width)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        here = self.show_cursor and index == self.cursor
        key = (index, width, here)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._render_row(self._rows[index], width, cursor=here)
            self._strips[key] = strip
        return strip

    def _render_head(self, width: int) -> Strip:
        texts = []
        for index, (column, cells) in enumerate(zip(self.columns, self._widths, strict=False)):
            title = column.title
            if self._sorted is not None and self._sorted[0] == index:
                arrow = ("↓" if self._sorted[1] else "↑") if not self._ascii else ("v" if self._sorted[1] else "^")
                title = f"{title}{arrow}" if column.align == "left" else f"{arrow}{title}"
            if cells:
                texts.append(_align(title, cells, column.align))
        return Strip([Segment(set_cell_size(" " + "  ".join(texts), width), self._style("table--head"))], width)

    def _render_row(self, row: Row, width: int, *, cursor: bool) -> Strip:
        extra = (["table--marked"] if row.marked else []) + (["table--cursor"] if cursor else [])
        base = self._style(*extra)
        mark = ("▌" if not self._ascii else ">") if cursor else ("+" if row.marked else " ")
        segments = [Segment(mark, self._style(*extra, "tone--accent"))]
        used = 1
        first = True
        for column, cells, cell in zip(self.columns, self._widths, row.cells, strict=False):
            if not cells:
                continue
            if not first:
                segments.append(Segment("  ", base))
                used += 2
            first = False
            text = _align(cell.text, cells, column.align, column.cut)
            style = self._style(*extra, f"tone--{cell.tone}") if cell.tone else base
            segments.append(Segment(to_ascii(text) if self._ascii else text, style))
            used += cells
        if used < width:
            segments.append(Segment(" " * (width - used), base))
        return Strip(segments, max(used, width)).adjust_cell_length(width)

    # -- the mouse -------------------------------------------------------------------------------------------------
    def on_click(self, event: events.Click) -> None:
        index = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and 0 <= index < len(self._rows):
            again = index == self.cursor
            self.select(index)
            if (again or event.chain > 1) and (row := self.row) is not None:
                self.post_message(self.Chosen(self, index, row.key))


def _align(text: str, cells: int, align: Literal["left", "right"], cut: Literal["end", "middle"] = "end") -> str:
    """The text in exactly `cells` cells; an ellipsis stands for what does not fit."""
    have = cell_len(text)
    if have > cells:
        return shortened(text, cells, cut)
    blanks = " " * (cells - have)
    return blanks + text if align == "right" else text + blanks
