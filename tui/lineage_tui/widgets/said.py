"""One line that answers a key: over the keys of the footer for a moment, so that it covers nothing that is read."""

from __future__ import annotations

from functools import partial

from textual.timer import Timer
from textual.widgets import Static

from lineage_tui.widgets.bars import toned
from lineage_tui.widgets.words import plain, to_ascii


class Said(Static):
    """Shows one answer at a time, and nothing between them."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(id="said")
        self._ascii = ascii_only
        self._timer: Timer | None = None
        self.text = ""

    def say(self, text: str, tone: str = "info", seconds: float | None = 3.0) -> None:
        """Show `text` in place of what was said before, for some seconds or until more is said; nothing when empty."""
        self.text = plain(text, 400)
        self.display = bool(text)
        self.update(toned(f" {to_ascii(self.text) if self._ascii else self.text}", tone, "bold"))
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(seconds, partial(self.say, "")) if text and seconds is not None else None
