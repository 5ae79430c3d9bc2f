"""The three lines every screen has: what is looked at, which screens there are, and which keys help here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from lineage_tui import keys
from lineage_tui.widgets.words import to_ascii

TONE_STYLES = {
    "": "",
    "strong": "bold",
    "dim": "$tone-dim",
    "good": "$tone-good",
    "warn": "$tone-warn",
    "bad": "$tone-bad",
    "info": "$tone-info",
    "accent": "$tone-accent",
}
"""How a tone looks inside a `Content`; the variables come from `LineageApp.get_theme_variable_defaults`."""


@dataclass(frozen=True)
class Fact:
    """One piece of a header; pieces with a high `drop` go first when the line is too short."""

    text: str
    tone: str = ""
    drop: int = 0


def toned(text: str, tone: str = "", *extra: str) -> Content:
    """Text in a tone; nothing in `text` is taken for markup."""
    style = " ".join(part for part in (*extra, TONE_STYLES.get(tone, "")) if part)
    return Content.styled(text, style) if style else Content(text)


def joined(parts: Sequence[Content]) -> Content:
    return Content("").join(parts)


class Header(Static):
    """Facts from the left, one or two from the right; whole facts are left out rather than cut."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(id="header")
        self._ascii = ascii_only
        self._left: tuple[Fact, ...] = ()
        self._right: tuple[Fact, ...] = ()

    def set_facts(self, left: Sequence[Fact], right: Sequence[Fact] = ()) -> None:
        before = (self._left, self._right)
        self._left, self._right = tuple(left), tuple(right)
        if before != (self._left, self._right):
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.size.width
        facts = [*((fact, False) for fact in self._left), *((fact, True) for fact in self._right)]
        facts = [(f, r) for f, r in facts if f.text]

        def cells() -> int:
            return sum(cell_len(fact.text) + 2 for fact, _ in facts) + 1

        for fact, _ in sorted(facts, key=lambda item: -item[0].drop):
            if cells() <= width or not fact.drop:
                break
            facts = [item for item in facts if item[0] is not fact]
        left = [part for f, right in facts if not right for part in (Content("  "), toned(self._text(f), f.tone))]
        ends = [part for f, right in facts if right for part in (toned(self._text(f), f.tone), Content("  "))]
        line_left = joined(left[1:]) if left else Content("")
        line_right = joined(ends[:-1]) if ends else Content("")
        gap = max(width - 2 - line_left.cell_length - line_right.cell_length, 1)
        self.update(joined([Content(" "), line_left, Content(" " * gap), line_right]))

    def _text(self, fact: Fact) -> str:
        return to_ascii(fact.text) if self._ascii else fact.text


class Tabs(Static):
    """The screens by number, the present one marked; hidden on low terminals by the style sheet."""

    def __init__(self, screen: str, offered: Sequence[str]) -> None:
        super().__init__(id="tabs")
        self._at = screen
        self._offered = tuple(offered)

    def on_mount(self) -> None:
        parts: list[Content] = [Content(" ")]
        for key, name, label in keys.SCREENS:
            if name not in self._offered:
                continue
            here = name == self._at
            click = f"@click=app.show('{name}')"
            if here:
                # Without colours only swapping front and back shows where one is.
                style = "bold reverse" if self.app.current_theme.ansi else "bold on $row"
                text = style if self.app.current_theme.ansi else f"$foreground {style}"
                parts += [Content.styled(f" {key}", f"$tone-accent {style}"), Content.styled(f" {label} ", text)]
            else:
                parts += [Content.styled(f" {key}", f"$tone-accent {click}"), Content.styled(f" {label} ", click)]
        self.update(joined(parts))


class Footer(Static):
    """The keys that help most here, as many as fit; `?` and `q` always."""

    def __init__(self, screen: str, *, ascii_only: bool = False) -> None:
        super().__init__(id="footer")
        self._screen = screen
        self._ascii = ascii_only
        self._hidden: frozenset[str] = frozenset()
        self._note: tuple[str, str] | None = None

    def set_hidden(self, labels: frozenset[str]) -> None:
        """Leave out what means nothing now."""
        if labels != self._hidden:
            self._hidden = labels
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.size.width
        chosen = keys.footer(self._screen, width, self._hidden, ascii_only=self._ascii)
        fixed = [entry for entry in chosen if (entry.footer or 0) < 0]
        parts = [self._entry(entry) for entry in chosen if (entry.footer or 0) >= 0]
        left = joined(parts) if parts else Content("")
        right = joined([self._entry(entry) for entry in fixed]) if fixed else Content("")
        gap = max(width - left.cell_length - right.cell_length, 0)
        self.update(joined([left, Content(" " * gap), right]))

    def _entry(self, entry: keys.Entry) -> Content:
        shown = keys.shown_keys(entry, ascii_only=self._ascii)
        shown = to_ascii(shown) if self._ascii else shown
        return joined(
            [Content(" "), Content.styled(shown, "bold $tone-accent"), Content(" "), Content(entry.label), Content(" ")]
        )


def refresh_bars(root: Widget) -> None:
    """Draw the bars again (the theme changed)."""
    for bar in root.query(Static):
        bar.refresh()
