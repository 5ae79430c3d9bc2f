"""From row intervals to characters: dots of a cell as bits, bits as glyphs, and who gets a cell several want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lineage_tui.plot.model import Floats, Glyphs, Ints

Bits = NDArray[np.uint8]
Mask = NDArray[np.bool_]

# Braille: bits of the left and right column of a cell, top to bottom (Unicode, U+2800 block).
_BRAILLE_LEFT: Final = (0x01, 0x02, 0x04, 0x40)
_BRAILLE_RIGHT: Final = (0x08, 0x10, 0x20, 0x80)
_ASCII_TABLE: Final = " '-|.:||"  # index: 1 top, 2 middle, 4 bottom


@dataclass(frozen=True, eq=False)
class GlyphSet:
    """The characters one kind of terminal can show.

    Attributes:
        dots_x, dots_y: dots per cell.
        table: character of every combination of dots.
        runs: `runs[column][a, b]` are the bits of rows a to b-1 of a cell's column.
    """

    name: Glyphs
    dots_x: int
    dots_y: int
    table: NDArray[np.uint32]
    runs: tuple[Bits, ...]
    vline: str
    death: str
    gap: str
    cursor: str
    guide: str
    axis_v: str
    axis_h: str
    corner: str
    tick_x: str
    tick_y: str
    swatch: str
    swatch_dim: str
    above: str
    below: str
    bad: str
    dot: str
    approx: str
    shades: str
    marks: dict[str, str]


def _runs(bits: Sequence[int]) -> Bits:
    """Bits of rows a..b-1 by [a, b]; zero where b <= a."""
    size = len(bits) + 1
    table = np.zeros((size, size), dtype=np.uint8)
    for a in range(size):
        for b in range(a + 1, size):
            table[a, b] = sum(bits[a:b])
    return table


def _codes(text: str) -> NDArray[np.uint32]:
    return np.array([ord(character) for character in text], dtype=np.uint32)


_BRAILLE_TABLE = np.arange(0x2800, 0x2900, dtype=np.uint32)
_BRAILLE_TABLE[0] = ord(" ")  # blank cells are spaces: some fonts draw the empty pattern as hollow dots

GLYPHS: Final[dict[Glyphs, GlyphSet]] = {
    "braille": GlyphSet(
        name="braille",
        dots_x=2,
        dots_y=4,
        table=_BRAILLE_TABLE,
        runs=(_runs(_BRAILLE_LEFT), _runs(_BRAILLE_RIGHT)),
        vline="│",
        death="╎",
        gap="┊",
        cursor="┃",
        guide="┈",
        axis_v="│",
        axis_h="─",
        corner="└",
        tick_x="┬",
        tick_y="┤",
        swatch="━━",
        swatch_dim="┅┅",
        above="▲",
        below="▼",
        bad="✕",
        dot="·",
        approx="≈",
        shades="░▒",
        marks={
            "lr_restore": "▼",
            "fp16_skip": "╵",
            "nonfinite": "✕",
            "alert": "!",
            "checkpoint": "◆",
            "note": "•",
        },
    ),
    # Only what the 512 glyphs of a Linux console usually hold (code page 437).
    "blocks": GlyphSet(
        name="blocks",
        dots_x=1,
        dots_y=2,
        table=_codes(" ▀▄█"),
        runs=(_runs((1, 2)),),
        vline="│",
        death=":",
        gap=":",
        cursor="║",
        guide="·",
        axis_v="│",
        axis_h="─",
        corner="└",
        tick_x="┬",
        tick_y="┤",
        swatch="──",
        swatch_dim="··",
        above="▲",
        below="▼",
        bad="x",
        dot="·",
        approx="~",
        shades="░▒",
        marks={
            "lr_restore": "▼",
            "fp16_skip": "'",
            "nonfinite": "x",
            "alert": "!",
            "checkpoint": "♦",
            "note": "•",
        },
    ),
    "ascii": GlyphSet(
        name="ascii",
        dots_x=1,
        dots_y=3,
        table=_codes(_ASCII_TABLE),
        runs=(_runs((1, 2, 4)),),
        vline="|",
        death=":",
        gap=":",
        cursor="I",
        guide=" ",
        axis_v="|",
        axis_h="-",
        corner="+",
        tick_x="+",
        tick_y="+",
        swatch="--",
        swatch_dim="..",
        above="^",
        below="v",
        bad="x",
        dot="-",
        approx="~",
        shades=":%",
        marks={
            "lr_restore": "v",
            "fp16_skip": "'",
            "nonfinite": "x",
            "alert": "!",
            "checkpoint": "#",
            "note": "*",
        },
    ),
}


@dataclass(frozen=True)
class Rows:
    """Which dot rows (0 on top) each dot column covers; `top > bottom` for none.

    Attributes:
        above, below: dot columns where the line goes on beyond the window's upper and lower end.
    """

    top: Ints
    bottom: Ints
    above: Mask
    below: Mask


def rows(lo: Floats, hi: Floats, y0: float, y1: float, num_rows: int) -> Rows:
    """Intervals in plot units to dot rows; what lies outside [y0, y1] is cut there and told."""
    drawn = ~np.isnan(lo)
    with np.errstate(invalid="ignore", over="ignore"):
        above, below = drawn & (hi > y1), drawn & (lo < y0)
        outside = ~drawn | (lo > y1) | (hi < y0)
        top = row_of(np.where(drawn, hi, y0), y0, y1, num_rows)
        bottom = row_of(np.where(drawn, lo, y0), y0, y1, num_rows)
    top[outside] = 1
    bottom[outside] = 0
    return Rows(top, bottom, above, below)


def row_of(values: Floats, y0: float, y1: float, num_rows: int) -> Ints:
    """The dot row of each value; values outside the window land on its first or last row."""
    share = (y1 - np.clip(values, y0, y1)) / (y1 - y0)
    result: Ints = np.clip((share * num_rows).astype(np.int64), 0, num_rows - 1)
    return result


def paint(covered: Rows, glyphs: GlyphSet, width: int, height: int) -> Bits:
    """Row intervals of `width * dots_x` columns to the bits of height x width cells."""
    base = (np.arange(height) * glyphs.dots_y)[:, None]
    bits = np.zeros((height, width), dtype=np.uint8)
    for column, table in enumerate(glyphs.runs):
        top = covered.top[column :: glyphs.dots_x]
        stop = covered.bottom[column :: glyphs.dots_x] + 1
        a = np.clip(top - base, 0, glyphs.dots_y)
        b = np.clip(stop - base, 0, glyphs.dots_y)
        bits |= table[a, b]
    return bits


def dotted(covered: Rows) -> Rows:
    """Every second column of a line, and every steep one: what superseded steps look like without colour."""
    off = (np.arange(covered.top.size) % 2 == 1) & (covered.bottom - covered.top < 2)
    top, bottom = covered.top.copy(), covered.bottom.copy()
    top[off], bottom[off] = 1, 0
    return Rows(top, bottom, covered.above, covered.below)


def assign(layers: Sequence[Bits], front: int | None) -> NDArray[np.int16]:
    """Which layer each cell belongs to, -1 for none: never two in one cell.

    Where several want a cell they alternate in dashes of two cells along x. The layer `front` has every second dash,
    the others share the rest.
    """
    owner = np.full(layers[0].shape, -1, dtype=np.int16)
    count = np.zeros(layers[0].shape, dtype=np.int16)
    for number, bits in enumerate(layers):
        wants = bits != 0
        owner[wants] = number
        count += wants
    contested = np.nonzero(count > 1)
    if not contested[0].size:
        return owner
    wants = np.stack([bits[contested] != 0 for bits in layers])
    dash = contested[1] // 2
    turn = dash.copy()
    others = wants
    has_front = np.zeros(dash.size, dtype=np.bool_)
    if front is not None:
        has_front = wants[front]
        others = wants.copy()
        others[front] = False
        turn = np.where(has_front, dash // 2, dash)
    rank = np.cumsum(others, axis=0) - 1
    chosen = others & (rank == turn % np.maximum(others.sum(axis=0), 1))
    result = chosen.argmax(axis=0).astype(np.int16)
    if front is not None:
        result[has_front & (dash % 2 == 0)] = front
    owner[contested] = result
    return owner
