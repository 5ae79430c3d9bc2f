"""The help: the key table of this screen, and what the marks on the curves mean."""

from __future__ import annotations

import textwrap
from typing import Final

from textual.content import Content
from textual.events import Resize

from lineage_tui import keys
from lineage_tui.screens.checkpoints import MEANINGS, STATES
from lineage_tui.screens.pages import Page
from lineage_tui.widgets.bars import joined, toned
from lineage_tui.widgets.words import to_ascii

MARKS: Final = (
    ("│ s2", "strong", "a session began here; beside it how it continued: exact, diverged, unproven"),
    ("┆", "bad", "a session died or was stopped here"),
    ("▼", "warn", "a restore put the learning rate back"),
    ("╵", "bad", "a skipped FP16 step: complete, but no update"),
    ("✕", "bad", "a value that is no number (NaN, infinity)"),
    ("!", "bad", "an alert"),
    ("◆", "info", "a checkpoint was committed"),
    ("•", "info", "a note"),
    ("▲▼", "dim", "at the rim of a chart: a value beyond the clipped range (c shows all)"),
    ("shade", "dim", "phases: eval, checkpoint, restore; they are not training time"),
    ("dim", "dim", "superseded steps: trained again by a later session (u hides them)"),
)
EVENT_MARKS: Final = (
    ("│ ┤", "strong", "a session began, ended"),
    ("◇", "info", "an evaluation"),
    ("◆ ◈", "info", "a checkpoint was committed, restored"),
    ("▼ ╵", "warn", "learning rate restored; FP16 step skipped"),
    ("≡", "strong", "the verdict on a continuation, as the session recorded it"),
    ("┌ └", "dim", "a phase began, ended"),
    ("! • ·", "info", "an alert, a note, a measurement of the system"),
    ("✂", "warn", "a torn last line was cut when the log was opened"),
)
"""The marks before the lines of events, under the curves and on the events screen."""
VERDICTS: Final = (
    ("=", "good", "exact: what was trained twice is equal to the last bit"),
    ("≈", "good", "within tolerance: as equal as was declared before the run"),
    ("≠", "bad", "diverged: another experiment from that step on; not restored: went on later, from no checkpoint"),
    ("?", "warn", "unproven: no step was trained twice, so nothing tells; not compared: nothing was recorded of it"),
)
"""How a session carried on what the one before it had trained; of a run, the worst of its sessions."""


class HelpPage(Page):
    """The keys that hold on the screen below."""

    def __init__(self, place: str, *, ascii_only: bool = False) -> None:
        super().__init__("keys", Content(""), ascii_only=ascii_only)
        self._place = place

    def on_resize(self, event: Resize) -> None:
        """Wrap anew: what a key does stands in a column of its own."""
        width = min(int(event.size.width * 0.9), 92) - 8
        self.show(help_content(self._place, width, ascii_only=self._ascii))


def help_content(place: str, width: int, *, ascii_only: bool = False) -> Content:
    """Every entry of the table that holds here, under its title, in lines of `width` cells."""

    def text(raw: str) -> str:
        return to_ascii(raw) if ascii_only else raw

    def line(shown: str, tone: str, what: str, style: str = "") -> Content:
        first, *more = textwrap.wrap(text(what), max(width - 11, 16)) or [""]
        head = joined([toned(f"  {text(shown):<8} ", tone, style), Content(first)])
        return Content("\n").join([head, *(Content(f"{'':11}{rest}") for rest in more)])

    lines: list[Content] = []
    for title, found in keys.scoped(place):
        lines.append(toned(title, "strong"))
        lines += [line(entry.shown, "accent", entry.help, "bold") for entry in found]
        lines.append(Content(""))
    if place == "run":
        lines.append(toned("Marks", "strong"))
        lines += [line(mark, tone, what) for mark, tone, what in MARKS]
    if place in ("run", "events"):
        lines += [Content("")] * (place == "run")
        lines.append(toned("Marks of events in lists", "strong"))
        lines += [line(mark, tone, what) for mark, tone, what in EVENT_MARKS]
    if place in ("runs", "sessions", "tree"):
        lines.append(toned("How it was continued", "strong"))
        lines += [line(mark, tone, what) for mark, tone, what in VERDICTS]
    if place in ("checkpoints", "tree"):
        lines += [Content("")] * (place == "tree")
        lines.append(toned("States of checkpoints", "strong"))
        lines += [
            line(flat if ascii_only else glyph, tone, f"{state}: {MEANINGS[state]}")
            for state, (glyph, flat, tone) in STATES.items()
        ]
    return Content("\n").join(lines)
