"""Pages over a screen: text that scrolls, and goes with esc."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from lineage_tui import keys
from lineage_tui.widgets.bars import Footer


class Page(ModalScreen[None]):
    """A titled text in a box, as large as it needs and at most as large as the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings("page"))
    AUTO_FOCUS = ""

    def __init__(self, title: str, body: Content, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._title = title
        self._body = body
        self._ascii = ascii_only

    def compose(self) -> ComposeResult:
        box = VerticalScroll(Static(self._body, id="page-text"), id="page-box", can_focus=False)
        box.border_title = self._title
        yield box
        yield Footer("page", ascii_only=self._ascii)

    def show(self, body: Content) -> None:
        """Another text."""
        self._body = body
        self.query_one("#page-text", Static).update(body)

    @property
    def box(self) -> VerticalScroll:
        return self.query_one("#page-box", VerticalScroll)

    def action_scroll(self, by: int) -> None:
        self.box.scroll_relative(y=by, animate=False)

    def action_scroll_page(self, by: int) -> None:
        self.box.scroll_relative(y=by * max(self.box.size.height - 1, 1), animate=False)

    def action_scroll_edge(self, to: int) -> None:
        if to < 0:
            self.box.scroll_home(animate=False)
        else:
            self.box.scroll_end(animate=False)
