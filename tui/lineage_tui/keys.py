"""The one table of keys: bindings, footer, help screen and command palette are all made from it.

An entry is what a person learns as one thing ("← → cursor"), and may bind several keys to several actions. Rules the
table keeps, and a test checks: no chord that tmux or a shell eats, nothing that only ctrl or alt reaches, no key with
two meanings on one screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.binding import Binding

Scope = Literal["app", "curves", "list", "runs", "sessions", "diff", "checkpoints", "tree", "events", "explain", "page"]

SCREENS: Final[tuple[tuple[str, str, str], ...]] = (
    ("1", "runs", "runs"),
    ("2", "run", "curves"),
    ("3", "sessions", "sessions"),
    ("4", "diff", "diff"),
    ("5", "checkpoints", "checkpoints"),
    ("6", "tree", "lineage"),
    ("7", "events", "events"),
    ("8", "explain", "explain"),
)
"""Key, name and label of each screen, in the order of the tab line."""

SCOPES: Final[dict[str, tuple[Scope, ...]]] = {
    "runs": ("runs", "list", "app"),
    "run": ("curves", "app"),
    "sessions": ("sessions", "list", "app"),
    "diff": ("diff", "list", "app"),
    "checkpoints": ("checkpoints", "list", "app"),
    "tree": ("tree", "list", "app"),
    "events": ("events", "list", "app"),
    "explain": ("explain", "list", "app"),
    "page": ("page", "app"),
}
"""Which parts of the table hold on which screen, the nearest first."""

SCOPE_TITLES: Final[dict[Scope, str]] = {
    "curves": "Curves",
    "list": "Lists",
    "runs": "Runs",
    "sessions": "Sessions",
    "diff": "Diff",
    "checkpoints": "Checkpoints",
    "tree": "Lineage",
    "events": "Events",
    "explain": "Explain",
    "page": "This page",
    "app": "Everywhere",
}


@dataclass(frozen=True)
class Bound:
    """One key and the Textual action it runs; `command` is its line in the palette (None: not offered there)."""

    key: str
    action: str
    command: str | None = None


@dataclass(frozen=True)
class Entry:
    """One line of the help.

    Attributes:
        shown: the keys as a person reads them.
        label: one or two words, for the footer.
        help: what happens, one sentence without a full stop.
        footer: place in the footer, the lowest first; None keeps it out.
    """

    scope: Scope
    shown: str
    label: str
    help: str
    bound: tuple[Bound, ...]
    footer: int | None = None


def _entry(scope: Scope, shown: str, label: str, text: str, *bound: Bound, footer: int | None = None) -> Entry:
    return Entry(scope, shown, label, text, bound, footer)


TABLE: Final[tuple[Entry, ...]] = (
    # -- curves ----------------------------------------------------------------------------------------------------
    _entry(
        "curves", "← →", "cursor", "move the cursor one column (, and . one sample)",
        Bound("left", "cursor(-1)"),
        Bound("right", "cursor(1)"),
        Bound("comma", "sample(-1)", "Cursor one sample back"),
        Bound("full_stop", "sample(1)", "Cursor one sample on"),
        footer=1,
    ),
    _entry(
        "curves", "+ -", "zoom", "zoom in and out at the cursor (also = and the wheel)",
        Bound("plus", "zoom(1)", "Zoom in"),
        Bound("equals_sign", "zoom(1)"),
        Bound("minus", "zoom(-1)", "Zoom out"),
        footer=2,
    ),
    _entry(
        "curves", "H L", "pan", "pan by a quarter of the window (also shift+← shift+→)",
        Bound("H", "pan(-1)", "Pan left"),
        Bound("L", "pan(1)", "Pan right"),
        Bound("shift+left", "pan(-1)"),
        Bound("shift+right", "pan(1)"),
        footer=9,
    ),
    _entry(
        "curves", "0", "all", "show everything again: zoom, cursor and range reset",
        Bound("0", "reset", "Reset the view"),
        footer=6,
    ),
    _entry(
        "curves", "tab", "chart", "next and previous chart (also h j k l, ↑ ↓ and shift+tab)",
        Bound("tab", "pane(1)", "Next chart"),
        Bound("shift+tab", "pane(-1)", "Previous chart"),
        Bound("h", "move('left')"),
        Bound("j", "move('down')"),
        Bound("k", "move('up')"),
        Bound("l", "move('right')"),
        Bound("up", "move('up')"),
        Bound("down", "move('down')"),
        footer=4,
    ),
    _entry(
        "curves", "enter", "maximise", "this chart alone, and back to the grid",
        Bound("enter", "maximise", "Maximise the chart"),
        footer=12,
    ),
    _entry(
        "curves", "n N", "event", "cursor to the next or previous event: restores, skips, alerts, checkpoints, ends",
        Bound("n", "event(1)", "Next event"),
        Bound("N", "event(-1)", "Previous event"),
        footer=3,
    ),
    _entry(
        "curves", "{ }", "session", "cursor to the previous or next session",
        Bound("left_curly_bracket", "session(-1)", "Previous session"),
        Bound("right_curly_bracket", "session(1)", "Next session"),
        footer=10,
    ),
    _entry(
        "curves", "e", "explain", "explain what happened at the cursor",
        Bound("e", "explain", "Explain at the cursor"),
        footer=7,
    ),
    _entry(
        "curves", "d", "diff", "compare the session at the cursor with the one it came from",
        Bound("d", "diff", "Diff of the session at the cursor"),
        footer=13,
    ),
    _entry(
        "curves", "f", "follow", "follow the live end, or hold the view",
        Bound("f", "follow", "Follow the live end"),
        footer=8,
    ),
    _entry(
        "curves", "x X", "x axis", "x is step, training time, wall time, tokens, session step; X: log x",
        Bound("x", "axis", "Next x axis"),
        Bound("X", "log_x", "Log x"),
        footer=11,
    ),
    _entry("curves", "y", "log y", "logarithmic y", Bound("y", "log_y", "Log y"), footer=14),
    _entry(
        "curves", "[ ]", "smooth", "less or more smoothing; the raw values stay visible",
        Bound("left_square_bracket", "smooth(-1)", "Smooth less"),
        Bound("right_square_bracket", "smooth(1)", "Smooth more"),
        footer=15,
    ),
    _entry("curves", "c", "clip", "clip y to the bulk of the values, or show all", Bound("c", "clip", "Clip outliers")),
    _entry(
        "curves", "u", "superseded", "superseded steps: shown dimmed, or not at all",
        Bound("u", "superseded", "Superseded steps on or off"),
        footer=16,
    ),
    _entry(
        "curves", "o", "on top", "which series is on top",
        Bound("o", "on_top", "Next series on top"),
        footer=18,
    ),
    _entry(
        "curves", "v", "range", "mark a range from here, then its end: mean, min, max, slope",
        Bound("v", "range", "Mark a range"),
        footer=17,
    ),
    _entry(
        "curves", "a", "attempts", "both attempts of the superseded stretch at the cursor, and their difference",
        Bound("a", "attempts", "Compare both attempts of superseded steps"),
    ),
    _entry("curves", "m", "metrics", "pick the metrics to draw", Bound("m", "metrics", "Pick metrics"), footer=8),
    # -- lists -----------------------------------------------------------------------------------------------------
    _entry(
        "list", "↑ ↓", "move", "move (also j k, page up and down, g and G for the ends)",
        Bound("up", "row(-1)"),
        Bound("down", "row(1)"),
        Bound("k", "row(-1)"),
        Bound("j", "row(1)"),
        Bound("pageup", "page(-1)"),
        Bound("pagedown", "page(1)"),
        Bound("home", "edge(-1)"),
        Bound("end", "edge(1)"),
        Bound("g", "edge(-1)", "First row"),
        Bound("G", "edge(1)", "Last row"),
        footer=1,
    ),
    _entry("list", "/", "filter", "type to filter; enter keeps it, esc clears it",
           Bound("slash", "filter", "Filter the list"), footer=4),
    _entry(
        "list", "tab", "pane", "between the list and what stands beside it (also h l ← →)",
        Bound("tab", "side", "Next pane"),
        Bound("shift+tab", "side"),
        Bound("h", "scroll_side(-1)"),
        Bound("l", "scroll_side(1)"),
        Bound("left", "scroll_side(-1)"),
        Bound("right", "scroll_side(1)"),
    ),
    _entry("runs", "enter", "open", "open the run, or overlay all that are selected", Bound("enter", "open", "Open"),
           footer=2),
    _entry("runs", "space", "select", "select several runs to overlay", Bound("space", "select", "Select the run"),
           footer=3),
    _entry(
        "runs", "s S", "sort", "sort by the next column; S turns the order round",
        Bound("s", "sort", "Sort by the next column"),
        Bound("S", "turn", "Turn the order round"),
        footer=5,
    ),
    _entry("sessions", "enter", "curves", "the curves where this session began",
           Bound("enter", "open", "Curves at this session"), footer=2),
    _entry("sessions", "d", "diff", "compare this session with the one it came from",
           Bound("d", "diff", "Diff of this session"), footer=3),
    _entry("sessions", "e", "explain", "explain the steps after its start",
           Bound("e", "explain", "Explain this session's start"), footer=5),
    _entry("diff", "n N", "next", "next and previous difference that matters, passing over the harmless ones",
           Bound("n", "jump(1)", "Next difference that matters"),
           Bound("N", "jump(-1)", "Previous difference that matters"), footer=2),
    _entry("diff", "{ }", "session", "compare an earlier or later session",
           Bound("left_curly_bracket", "session(-1)", "Earlier session"),
           Bound("right_curly_bracket", "session(1)", "Later session"), footer=3),
    _entry("diff", "b", "against", "which session it is compared with",
           Bound("b", "against", "Compare with another session"), footer=5),
    _entry("diff", "enter", "whole value", "both values in full", Bound("enter", "open", "Both values in full"),
           footer=6),
    _entry("checkpoints", "enter", "curves", "the curves at this checkpoint's step",
           Bound("enter", "open", "Curves at this checkpoint"), footer=2),
    _entry("checkpoints", "v", "verify", "verify every generation against its manifest, in the background",
           Bound("v", "verify", "Verify all checkpoints"), footer=3),
    _entry("checkpoints", "w", "whence", "the chain of sessions and checkpoints that led to it",
           Bound("w", "whence", "Whence came this checkpoint"), footer=5),
    _entry("checkpoints", "p", "pin", "pin it, so that retention never deletes it; again to unpin",
           Bound("p", "pin", "Pin or unpin the checkpoint"), footer=6),
    _entry("tree", "enter", "open", "open the run, session or checkpoint", Bound("enter", "open", "Open"), footer=2),
    _entry("events", "enter", "curves", "the curves with the cursor on this event",
           Bound("enter", "open", "Curves at this event"), footer=2),
    _entry("events", "e", "explain", "explain the steps around this event",
           Bound("e", "explain", "Explain at this event"), footer=3),
    _entry("events", "s", "kinds", "show one kind of event after the other",
           Bound("s", "kind", "Next kind of event"), footer=5),
    _entry("explain", "enter", "curves", "the curves with the cursor on this change",
           Bound("enter", "open", "Curves at this change"), footer=2),
    _entry("explain", "d", "diff", "compare the session at this step with the one it came from",
           Bound("d", "diff", "Diff at this change"), footer=3),
    # -- pages that scroll -----------------------------------------------------------------------------------------
    _entry(
        "page", "↑ ↓", "scroll", "scroll (also j k, page up and down, g and G)",
        Bound("up", "scroll(-1)"),
        Bound("down", "scroll(1)"),
        Bound("k", "scroll(-1)"),
        Bound("j", "scroll(1)"),
        Bound("pageup", "scroll_page(-1)"),
        Bound("pagedown", "scroll_page(1)"),
        Bound("home", "scroll_edge(-1)"),
        Bound("end", "scroll_edge(1)"),
        Bound("g", "scroll_edge(-1)"),
        Bound("G", "scroll_edge(1)"),
        footer=1,
    ),
    # -- everywhere ------------------------------------------------------------------------------------------------
    _entry(
        "app", "1-8", "screens", "runs, curves, sessions, diff, checkpoints, lineage, events, explain",
        *(Bound(key, f"app.show('{name}')", f"Screen: {label}") for key, name, label in SCREENS),
        footer=5,
    ),
    _entry("app", "esc", "back", "one layer back", Bound("escape", "app.back", "Back"), footer=30),
    _entry("app", "!", "problems", "what is damaged or missing, with the place",
           Bound("exclamation_mark", "app.problems", "Problems")),
    _entry("app", "t", "theme", "dark or light", Bound("t", "app.light", "Dark or light theme")),
    _entry("app", ":", "palette", "every action by name (also ctrl+p)",
           Bound("colon", "app.command_palette"), Bound("ctrl+p", "app.command_palette"), footer=31),
    _entry("app", "?", "help", "the keys of the screen, and what the marks mean",
           Bound("question_mark", "app.help", "Help"), footer=-2),
    _entry("app", "q", "quit", "leave", Bound("q", "app.quit", "Quit"), footer=-1),
)  # fmt: skip


def entries(screen: str) -> Iterator[Entry]:
    """The entries that hold on a screen, the nearest scope first."""
    for scope in SCOPES[screen]:
        yield from (entry for entry in TABLE if entry.scope == scope)


def scoped(screen: str) -> list[tuple[str, list[Entry]]]:
    """The entries of a screen under the titles of the help."""
    return [(SCOPE_TITLES[scope], [entry for entry in TABLE if entry.scope == scope]) for scope in SCOPES[screen]]


_KEY_SIGNS: Final[dict[str, str]] = {
    "left": "←", "right": "→", "up": "↑", "down": "↓", "comma": ",", "full_stop": ".", "plus": "+", "minus": "-",
    "equals_sign": "=", "question_mark": "?", "exclamation_mark": "!", "colon": ":", "slash": "/", "escape": "esc",
    "left_square_bracket": "[", "right_square_bracket": "]", "left_curly_bracket": "{", "right_curly_bracket": "}",
}  # fmt: skip


def key_sign(key: str) -> str:
    """One key as a person reads it: `comma` is `,`."""
    return _KEY_SIGNS.get(key, key)


def offered(screen: str) -> Iterator[tuple[str, Bound, Entry]]:
    """Every action a palette can run: (screen, key, entry), those of this screen first, each action once."""
    seen: set[tuple[str, str]] = set()
    for place in (screen, *(name for name in SCOPES if name not in (screen, "page"))):
        for scope in SCOPES[place]:
            if scope == "list" and place != screen:
                continue  # moving about in a list that is not seen
            for entry in (entry for entry in TABLE if entry.scope == scope):
                for bound in entry.bound:
                    here = "" if scope == "app" else place
                    if bound.command is None or (here, bound.action) in seen:
                        continue
                    seen.add((here, bound.action))
                    yield place, bound, entry


def bindings(screen: str) -> list[Binding]:
    """The Textual bindings of a screen; nearer scopes win over farther ones."""
    from textual.binding import Binding

    found: dict[str, Binding] = {}
    for entry in entries(screen):
        for bound in entry.bound:
            if bound.key not in found:
                found[bound.key] = Binding(bound.key, bound.action, entry.label, show=False, key_display=entry.shown)
    return list(found.values())


def footer(screen: str, width: int, hidden: frozenset[str] = frozenset(), *, ascii_only: bool = False) -> list[Entry]:
    """What fits a footer `width` cells wide, most useful first; `?` and `q` always, at the right end.

    Args:
        screen: name of the screen.
        width: cells there are.
        hidden: actions that mean nothing now (labels of entries).
        ascii_only: keys are written in ASCII, where an arrow takes two cells.
    """
    offered = [e for e in entries(screen) if e.footer is not None and e.label not in hidden]
    fixed = sorted((e for e in offered if (e.footer or 0) < 0), key=lambda e: e.footer or 0)
    used = sum(entry_width(entry, ascii_only=ascii_only) for entry in fixed)
    chosen: list[Entry] = []
    for entry in sorted((e for e in offered if (e.footer or 0) >= 0), key=lambda e: e.footer or 0):
        needed = entry_width(entry, ascii_only=ascii_only)
        if used + needed <= width:
            chosen.append(entry)
            used += needed
    return [*chosen, *fixed]


def entry_width(entry: Entry, *, ascii_only: bool = False) -> int:
    """Cells of an entry in the footer: blank, keys, blank, label, blank."""
    return len(shown_keys(entry, ascii_only=ascii_only)) + len(entry.label) + 3


def shown_keys(entry: Entry, *, ascii_only: bool = False) -> str:
    """The keys of an entry as the footer writes them."""
    return entry.shown.replace("←", "<-").replace("→", "->") if ascii_only else entry.shown
