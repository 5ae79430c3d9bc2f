"""The line a list is filtered by: what was typed after a slash, and how much of the list is left."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Static

from lineage_tui.widgets.bars import toned


class FilterLine(Horizontal):
    """Hidden until somebody filters; `input` has the words."""

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="filter-line")
        self.input = Input(placeholder=placeholder, id="filter", compact=True)
        self.input.cursor_blink = False
        self._count = Static(id="filter-count")
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static(toned("/", "accent", "bold"), id="filter-prompt")
        yield self.input
        yield self._count

    def show_count(self, num_shown: int, num_all: int, what: str) -> None:
        """`11 of 40 runs`, at the right end."""
        self._count.update(toned(f"{num_shown:,} of {num_all:,} {what}", "dim" if num_shown else "warn"))
