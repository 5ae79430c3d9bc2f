"""Numbers, times and other people's text, as a person reads them in a terminal cell."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size

from lineage.cli.output import clean
from lineage_tui.plot.numbers import format_value
from lineage_tui.terminal import Glyphs

DASH: Final = "\N{EN DASH}"
"""Stands where there is no value."""

STATE_GLYPHS: Final[dict[str, str]] = {
    "running": "●",
    "stalled": "◌",
    "completed": "✓",
    "killed": "✕",
    "failed": "✗",
    "interrupted": "■",
    "preempted": "◐",
}
STATE_ASCII: Final[dict[str, str]] = {
    "running": "*",
    "stalled": "o",
    "completed": "+",
    "killed": "x",
    "failed": "!",
    "interrupted": "#",
    "preempted": "~",
}
STATE_TONES: Final[dict[str, str]] = {
    "running": "good",
    "stalled": "warn",
    "completed": "good",
    "killed": "bad",
    "failed": "bad",
    "interrupted": "warn",
    "preempted": "warn",
}
VERDICT_TONES: Final[dict[str, str]] = {
    "exact": "good",
    "within_tolerance": "good",
    "diverged": "bad",
    "unproven": "warn",
    "not_compared": "dim",
    "nothing_restored": "bad",
}
VERDICT_GLYPHS: Final[dict[str, str]] = {
    "exact": "=",
    "within_tolerance": "≈",
    "diverged": "≠",
    "unproven": "?",
    "not_compared": "?",
    "nothing_restored": "≠",
}
KIND_GLYPHS: Final[dict[str, tuple[str, str, str]]] = {
    # kind: (glyph, ASCII, tone)
    "session_start": ("│", "|", "strong"),
    "session_end": ("┤", "]", "strong"),
    "eval": ("◇", "E", "info"),
    "phase_start": ("┌", "[", "dim"),
    "phase_end": ("└", "]", "dim"),
    "fp16_skip": ("╵", "'", "bad"),
    "lr_restore": ("▼", "v", "warn"),
    "checkpoint_saved": ("◆", "#", "info"),
    "checkpoint_restored": ("◈", "R", "info"),
    "continuation": ("≡", "=", "strong"),
    "alert": ("!", "!", "bad"),
    "note": ("•", "-", "info"),
    "system": ("·", ".", "dim"),
    "log_recovered": ("✂", "%", "warn"),
}

_ASCII_FOR: Final = str.maketrans(
    {
        "…": "~", "·": ".", DASH: "-", "—": "-", "→": ">", "←": "<", "↑": "^", "↓": "v", "≈": "~", "≠": "!", "≡": "=",
        "│": "|", "┤": "]", "├": "|", "─": "-", "┌": "[", "└": "`", "◆": "#", "◈": "R", "◇": "E", "▼": "v", "▲": "^",
        "╵": "'", "•": "-", "●": "*", "◌": "o", "✓": "+", "✕": "x", "✗": "!", "■": "#", "◐": "~", "✂": "%", "⏎": "/",
        "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "█": "#", "━": "=", "∞": "i",
    }
)  # fmt: skip


def plain(text: object, limit: int = 240) -> str:
    """Other people's text on one line, at most `limit` characters of it; a line break shows as `⏎`.

    Nothing in it moves the cursor, hides, or turns the direction of writing round (`lineage.cli.output.clean`).
    """
    raw = text if isinstance(text, str) else str(text)
    return clean(raw[: 4 * limit].replace("\r\n", "⏎").replace("\n", "⏎").replace("\t", " "), limit=limit)


def shortened(text: str, cells: int, cut: Literal["end", "middle"] = "middle") -> str:
    """The text in at most `cells` cells; an ellipsis stands for its end, or its middle, where it is longer."""
    if cell_len(text) <= cells:
        return text
    tail = (cells - 1) // 2 if cut == "middle" else 0
    head = set_cell_size(text, max(cells - 1 - tail, 0))
    # A wide character that lies across the cut leaves a blank; the end is taken from the reversed text for it.
    return f"{head}…{set_cell_size(text[::-1], tail)[::-1]}"


def to_ascii(text: str) -> str:
    """The same text with our own marks replaced by ASCII ones, and anything else beyond ASCII by `?`."""
    return text if text.isascii() else text.translate(_ASCII_FOR).encode("ascii", "replace").decode("ascii")


def state_glyph(state: str, glyphs: Glyphs) -> str:
    return (STATE_ASCII if glyphs == "ascii" else STATE_GLYPHS).get(state, "?")


def kind_glyph(kind: str, glyphs: Glyphs) -> tuple[str, str]:
    """Mark and tone of a kind of event; unknown kinds have a mark too."""
    glyph, flat, tone = KIND_GLYPHS.get(kind, ("?", "?", "dim"))
    return (flat if glyphs == "ascii" else glyph), tone


def count(number: int | None) -> str:
    """52,000; a dash for None."""
    return DASH if number is None else f"{number:,}"


def number(value: float | None, digits: int = 5) -> str:
    """A measured value as the charts write it (2.4274, 40,120, 2.4e-4); a dash for None."""
    return DASH if value is None else format_value(float(value), digits)


def size(num_bytes: int | None) -> str:
    """12.4 MB; a dash for None."""
    if num_bytes is None:
        return DASH
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return ""


def duration(seconds: float | None) -> str:
    """3 h 12 m, 4 m 05 s, 12.3 s, 45 ms; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def age(seconds: float | None) -> str:
    """now, 40 s, 12 m, 3 h, 5 d; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 5:
        return "now"
    for limit, unit, divisor in ((60, "s", 1), (3600, "m", 60), (86400, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds // divisor)} {unit}"
    return f"{int(seconds // 86400):,} d"


def ago(seconds: float) -> str:
    """How long ago: 12 m ago, just now."""
    found = age(seconds)
    return "just now" if found == "now" else f"{found} ago"


def clock(moment: datetime | float | None) -> str:
    """Local date and time to the second."""
    if moment is None:
        return DASH
    try:
        local = moment.astimezone() if isinstance(moment, datetime) else datetime.fromtimestamp(moment).astimezone()
    except (OverflowError, OSError, ValueError):
        return "?"
    return local.strftime("%Y-%m-%d %H:%M:%S")


def plural(amount: int, word: str) -> str:
    """1 session, 3 sessions, 1,204 steps."""
    return f"{amount:,} {word}" if amount == 1 else f"{amount:,} {word}s"
