"""Colours: four explicit palettes (truecolor, 256, 16, none), dark and light, for the style indices of `plot.styles`.

Ssh does not forward COLORTERM, so 256 colours is the usual remote terminal; a palette that a library derives from
another turns subtle tints into loud ones. Here each depth says its own colours, and they reach the terminal unchanged.
The six series hues were searched for over the kinds of colour blindness (least CIE difference 27 dark, 30 light).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from lineage_tui.plot.model import Glyphs, Look
from lineage_tui.plot.styles import NUM_BG, NUM_FG, NUM_HUES, Bg, Fg

if TYPE_CHECKING:
    from rich.style import Style
    from textual.theme import Theme

Depth = Literal["truecolor", "256", "16", "none"]
Rgb = tuple[int, int, int]
Ink = Rgb | int  # an RGB triple, or an index: of the xterm cube in "256", of the ANSI colours in "16"

SERIES_256: Final[dict[bool, tuple[int, ...]]] = {
    True: (87, 201, 229, 136, 72, 155),
    False: (130, 27, 17, 97, 161, 52),
}
BACKGROUND: Final[dict[bool, int]] = {True: 233, False: 231}
_CUBE: Final = (0, 95, 135, 175, 215, 255)
# The ANSI colours as xterm draws them; what a terminal really draws is its owner's choice.
_ANSI: Final[tuple[Rgb, ...]] = (
    (0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229),
    (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255),
    (255, 255, 255),
)  # fmt: skip


def xterm_rgb(index: int) -> Rgb:
    """The colour of an index of the 256-colour table, as nearly every terminal draws it."""
    if index < 16:
        return _ANSI[index]
    if index >= 232:
        level = 8 + 10 * (index - 232)
        return (level, level, level)
    red, rest = divmod(index - 16, 36)
    green, blue = divmod(rest, 6)
    return (_CUBE[red], _CUBE[green], _CUBE[blue])


def contrast(one: Rgb, other: Rgb) -> float:
    """The contrast of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Rgb) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _mix(colour: Rgb, ground: Rgb, share: float) -> Rgb:
    red, green, blue = (round(a * share + b * (1 - share)) for a, b in zip(colour, ground, strict=True))
    return (red, green, blue)


def _dimmed(colour: Rgb, ground: Rgb) -> Rgb:
    """The same hue nearer to the background, but never below a contrast of 3.7."""
    target = max(3.7, contrast(colour, ground) ** 0.6)
    for percent in range(20, 100):
        mixed = _mix(colour, ground, percent / 100)
        if contrast(mixed, ground) >= target:
            return mixed
    return colour


def _tint(colour: Rgb, ground: Rgb, target: float) -> Rgb:
    """The background with so much of a hue that it can just be told from the plain one, whatever the hue."""
    # Pure hues of little luminance, such as magenta, would need so much of themselves that they shout: mute them.
    level = round(sum(colour) / 3)
    colour = _mix(colour, (level, level, level), 0.45)
    for percent in range(2, 100):
        mixed = _mix(colour, ground, percent / 100)
        if contrast(mixed, ground) >= target:
            return mixed
    return colour


@dataclass(frozen=True)
class Paint:
    """How one style index is drawn; no ink means the terminal's own colour."""

    ink: Ink | None = None
    bold: bool = False
    dim: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class Palette:
    """The colours of every style index at one depth.

    Attributes:
        fg, bg: by `Fg` and `Bg` index. background: what the screen is painted with; None leaves the terminal's own.
    """

    depth: Depth
    dark: bool
    fg: tuple[Paint, ...]
    bg: tuple[Paint, ...]
    background: Ink | None

    @property
    def tints(self) -> bool:
        """Whether backgrounds can carry spans and bands."""
        return self.depth in {"truecolor", "256"}

    def look(self, glyphs: Glyphs) -> Look:
        """What charts may use on a terminal of this depth."""
        return Look(glyphs=glyphs, tints=self.tints, letters=self.depth == "none")

    def rgb(self, ink: Ink) -> Rgb:
        """The colour an ink has on an ordinary terminal."""
        return ink if isinstance(ink, tuple) else xterm_rgb(ink)


_BOLD: Final = frozenset({Fg.TITLE, Fg.NONFINITE, Fg.ALERT, Fg.LR_RESTORE})
# Fg and Bg are numbers that overlap, so their colours are kept apart.
_FgInks = dict[Fg, Ink]
_BgInks = dict[Bg, Ink]


@dataclass(frozen=True)
class _Hues:
    """The colours that come in six."""

    series: Sequence[Ink]
    dim: Sequence[Ink]
    raw: Sequence[Ink]
    band: Sequence[Ink] = ()


def _foregrounds(inks: _FgInks, hues: _Hues) -> tuple[Paint, ...]:
    paints = [Paint()] * NUM_FG
    for index, ink in inks.items():
        paints[index] = Paint(ink, bold=index in _BOLD)
    for base, colours in ((Fg.SERIES, hues.series), (Fg.DIM, hues.dim), (Fg.RAW, hues.raw)):
        paints[base : base + NUM_HUES] = [Paint(colour) for colour in colours]
    return tuple(paints)


def _backgrounds(inks: _BgInks, hues: _Hues) -> tuple[Paint, ...]:
    paints = [Paint()] * NUM_BG
    for index, ink in inks.items():
        paints[index] = Paint(ink)
    paints[Bg.BAND : Bg.BAND + len(hues.band)] = [Paint(colour) for colour in hues.band]
    return tuple(paints)


_XTERM_FG: Final[dict[bool, _FgInks]] = {
    True: {
        Fg.TEXT: 252, Fg.TITLE: 255, Fg.MUTED: 246, Fg.AXIS: 243, Fg.GUIDE: 237, Fg.BOUNDARY: 250, Fg.DEATH: 203,
        Fg.GAP: 246, Fg.CURSOR: 231, Fg.GOOD: 78, Fg.WARN: 214, Fg.BAD: 203, Fg.LR_RESTORE: 214, Fg.FP16_SKIP: 203,
        Fg.NONFINITE: 203, Fg.ALERT: 214, Fg.CHECKPOINT: 110, Fg.NOTE: 252, Fg.SHADE: 240,
    },
    False: {
        Fg.TEXT: 235, Fg.TITLE: 16, Fg.MUTED: 241, Fg.AXIS: 244, Fg.GUIDE: 253, Fg.BOUNDARY: 238, Fg.DEATH: 160,
        Fg.GAP: 241, Fg.CURSOR: 16, Fg.GOOD: 22, Fg.WARN: 94, Fg.BAD: 160, Fg.LR_RESTORE: 94, Fg.FP16_SKIP: 160,
        Fg.NONFINITE: 160, Fg.ALERT: 94, Fg.CHECKPOINT: 25, Fg.NOTE: 235, Fg.SHADE: 248,
    },
}  # fmt: skip
_XTERM_BG: Final[dict[bool, _BgInks]] = {
    True: {Bg.EVAL: 235, Bg.CHECKPOINT: 234, Bg.RESTORE: 236, Bg.PHASE: 234, Bg.RANGE: 237, Bg.TAG: 239},
    False: {Bg.EVAL: 255, Bg.CHECKPOINT: 255, Bg.RESTORE: 254, Bg.PHASE: 255, Bg.RANGE: 254, Bg.TAG: 252},
}
_XTERM_DIM: Final = {True: (30, 133, 101, 130, 29, 64), False: (166, 67, 61, 134, 132, 131)}
_XTERM_BAND: Final = {True: (236, 236, 237, 236, 236, 237), False: (254,) * NUM_HUES}
_TRUE_BG: Final[dict[bool, _BgInks]] = {
    True: {
        Bg.EVAL: (22, 36, 50), Bg.CHECKPOINT: (42, 36, 18), Bg.RESTORE: (42, 26, 46), Bg.PHASE: (32, 34, 38),
        Bg.RANGE: (40, 42, 56), Bg.TAG: (68, 72, 84),
    },
    False: {
        Bg.EVAL: (224, 238, 251), Bg.CHECKPOINT: (251, 242, 216), Bg.RESTORE: (245, 231, 248),
        Bg.PHASE: (238, 238, 238), Bg.RANGE: (228, 230, 240), Bg.TAG: (208, 212, 222),
    },
}  # fmt: skip


def _truecolor(*, dark: bool) -> Palette:
    ground = xterm_rgb(BACKGROUND[dark])
    series = [xterm_rgb(index) for index in SERIES_256[dark]]
    dim = [_dimmed(colour, ground) for colour in series]
    hues = _Hues(series, dim, dim, [_tint(colour, ground, 1.3 if dark else 1.14) for colour in series])
    inks: _FgInks = {index: xterm_rgb(ink) for index, ink in _XTERM_FG[dark].items() if isinstance(ink, int)}
    return Palette("truecolor", dark, _foregrounds(inks, hues), _backgrounds(_TRUE_BG[dark], hues), ground)


def _xterm(*, dark: bool) -> Palette:
    hues = _Hues(SERIES_256[dark], _XTERM_DIM[dark], _XTERM_DIM[dark], _XTERM_BAND[dark])
    fg, bg = _foregrounds(_XTERM_FG[dark], hues), _backgrounds(_XTERM_BG[dark], hues)
    return Palette("256", dark, fg, bg, BACKGROUND[dark])


def _ansi(*, dark: bool) -> Palette:
    """Indices of the ANSI colours: black, red, green, yellow, blue, magenta, cyan, white; from 8 on, bright."""
    text, bright, muted, faint = (15, 15, 7, 8) if dark else (0, 0, 8, 7)
    error, good, warn = (9, 10, 11) if dark else (1, 4, 5)
    inks: _FgInks = {
        Fg.TEXT: text, Fg.TITLE: bright, Fg.MUTED: muted, Fg.AXIS: 8, Fg.GUIDE: faint, Fg.BOUNDARY: text,
        Fg.DEATH: error, Fg.GAP: muted, Fg.CURSOR: bright, Fg.GOOD: good, Fg.WARN: warn, Fg.BAD: error,
        Fg.LR_RESTORE: warn, Fg.FP16_SKIP: error, Fg.NONFINITE: error, Fg.ALERT: warn,
        Fg.CHECKPOINT: 12 if dark else 4, Fg.NOTE: text, Fg.SHADE: faint,
    }  # fmt: skip
    series = (14, 13, 11, 3, 2, 10) if dark else (1, 4, 0, 5, 12, 8)
    dim = (6, 5, 3, 3, 2, 2) if dark else (1, 4, 8, 5, 12, 8)
    hues = _Hues(series, dim, (8,) * NUM_HUES)
    return Palette("16", dark, _foregrounds(inks, hues), _swapped_tags(), 0 if dark else 15)


def _none(*, dark: bool) -> Palette:
    fg = [Paint(bold=index in _BOLD) for index in range(NUM_FG)]
    for index in (Fg.MUTED, Fg.GUIDE, Fg.SHADE, *range(Fg.DIM, Fg.DIM + NUM_HUES), *range(Fg.RAW, Fg.RAW + NUM_HUES)):
        fg[index] = Paint(dim=True)
    fg[Fg.CURSOR] = Paint(bold=True)
    return Palette("none", dark, tuple(fg), _swapped_tags(), None)


def _swapped_tags() -> tuple[Paint, ...]:
    """Without tints, the cursor's tag and a marked range stand out by swapping front and back."""
    paints = [Paint()] * NUM_BG
    paints[Bg.TAG] = paints[Bg.RANGE] = Paint(reverse=True)
    return tuple(paints)


@cache
def palette(depth: Depth, *, dark: bool = True) -> Palette:
    """The palette of a colour depth."""
    make = {"truecolor": _truecolor, "256": _xterm, "16": _ansi, "none": _none}[depth]
    return make(dark=dark)


def depth_of(color_system: str | None) -> Depth:
    """The depth of a rich console's `color_system`."""
    return {"truecolor": "truecolor", "256": "256", "standard": "16", "windows": "16"}.get(color_system or "", "none")  # type: ignore[return-value]  # the values are all depths


# For Textual: rich styles that arrive as they were meant


def _arriving(ink: Ink, depth: Depth) -> Rgb:
    """The RGB that rich turns into exactly this ink.

    Textual makes every colour RGB before rich brings it down to the terminal's depth; rich puts greys on its own scale
    (25 steps of lightness) and compares ANSI colours with its own table, so indices are given as the RGB that maps on
    them.
    """
    if isinstance(ink, tuple):
        return ink
    if depth == "16":
        from rich._palettes import STANDARD_PALETTE
        from rich.palette import Palette as RichPalette

        table: RichPalette = STANDARD_PALETTE
        triplet = table[ink]
        return (triplet.red, triplet.green, triplet.blue)
    if ink >= 232:
        level = round((ink - 231) / 25 * 255)
        return (level, level, level)
    return xterm_rgb(ink)


@cache
def rich_style(palette: Palette, fg: int, bg: int) -> Style:
    """The rich style of a cell with these indices."""
    from rich.color import Color
    from rich.style import Style as RichStyle

    front, back = palette.fg[fg], palette.bg[bg]
    return RichStyle(
        color=None if front.ink is None else Color.from_rgb(*_arriving(front.ink, palette.depth)),
        bgcolor=None if back.ink is None else Color.from_rgb(*_arriving(back.ink, palette.depth)),
        bold=front.bold or None,
        dim=front.dim or None,
        reverse=back.reverse or None,
    )


def hex_of(ink: Ink, depth: Depth) -> str:
    """An ink as `#rrggbb` for Textual."""
    red, green, blue = _arriving(ink, depth)
    return f"#{red:02x}{green:02x}{blue:02x}"


def textual_theme(depth: Depth, *, dark: bool = True) -> Theme:
    """The Textual theme that goes with a palette, named `lineage-dark` or `lineage-light`.

    Its colours are few and arrive unchanged in 256 colours. For "none" use Textual's own `ansi-dark`.
    """
    from textual.theme import Theme as TextualTheme

    def grey(index: int) -> str:
        return hex_of(index, "256")

    surface, panel, text = (234, 236, 252) if dark else (255, 254, 235)
    del depth
    accent, error, warn, good, link = (214, 203, 214, 78, 110) if dark else (94, 160, 94, 22, 25)
    return TextualTheme(
        name="lineage-dark" if dark else "lineage-light",
        dark=dark,
        primary=grey(link),
        secondary=grey(link),
        accent=grey(accent),
        warning=grey(warn),
        error=grey(error),
        success=grey(good),
        foreground=grey(text),
        background=grey(BACKGROUND[dark]),
        surface=grey(surface),
        panel=grey(panel),
        variables={"footer-key-foreground": grey(accent)},
    )


_TONES: Final[dict[str, dict[str, int]]] = {
    # Words stand out from the ground, bars and rows by 4.5:1 at least, edges (scroll bars too) by 3.6:1.
    "dark": {
        "tone-dim": 246, "tone-good": 78, "tone-warn": 214, "tone-bad": 203, "tone-info": 110, "tone-accent": 214,
        "bar": 235, "bar-text": 252, "row": 235, "edge": 243, "raised": 234,
    },
    "light": {
        "tone-dim": 241, "tone-good": 22, "tone-warn": 94, "tone-bad": 124, "tone-info": 25, "tone-accent": 94,
        "bar": 254, "bar-text": 235, "row": 254, "edge": 243, "raised": 255,
    },
}  # fmt: skip
_ANSI_TONES: Final = {
    "tone-good": "ansi_green", "tone-warn": "ansi_yellow", "tone-bad": "ansi_red", "tone-info": "ansi_cyan",
}  # fmt: skip


def tones(kind: Literal["dark", "light", "ansi"]) -> dict[str, str]:
    """Colours of words and bars, beside those of the Textual theme, as variables of the style sheet.

    Each arrives in 256 colours as the very index it was chosen as; sixteen colours go by their names.
    """
    if kind == "ansi":
        return {name: _ANSI_TONES.get(name, "ansi_default") for name in _TONES["dark"]}
    return {name: hex_of(index, "256") for name, index in _TONES[kind].items()}


# For plain streams: escape sequences


@cache
def sgr(palette: Palette, fg: int, bg: int) -> str:
    """The escape sequence that starts a cell with these indices; empty where nothing is to be said."""
    front, back = palette.fg[fg], palette.bg[bg]
    parts: list[str] = []
    if front.bold:
        parts.append("1")
    if front.dim:
        parts.append("2")
    if back.reverse:
        parts.append("7")
    if front.ink is not None:
        parts.append(_sgr_ink(front.ink, palette.depth, base=30))
    if back.ink is not None:
        parts.append(_sgr_ink(back.ink, palette.depth, base=40))
    return f"\x1b[{';'.join(parts)}m" if parts else ""


def _sgr_ink(ink: Ink, depth: Depth, *, base: int) -> str:
    if isinstance(ink, tuple):
        return f"{base + 8};2;{ink[0]};{ink[1]};{ink[2]}"
    if depth == "16":
        return str(base + ink if ink < 8 else base + 60 + ink - 8)
    return f"{base + 8};5;{ink}"
