"""Text on a grid of cells: what a stranger's name may put on the screen, and how many cells it takes.

A wide character takes two cells: its own code point, then `FILLER`.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.cells import get_character_cell_size

from lineage.cli.output import clean

FILLER: Final = "\0"
"""Stands in the second cell of a wide character; no text that went through `plain` has one."""


@lru_cache(maxsize=4096)
def plain(text: str, limit: int = 200) -> str:
    """`text` on one line and in at most `limit` cells: longer ones end in `…`.

    What a terminal would obey or hide is written out (`lineage.cli.output.clean`), as everywhere; marks that combine
    with no single character are left out, since they have no cell.
    """
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    shown = unicodedata.normalize("NFC", clean(text, limit=4 * limit))
    shown = "".join(character for character in shown if get_character_cell_size(character))
    return shown if width(shown) <= limit else cut(shown, limit - 1) + "…"


def width(text: str) -> int:
    """Cells of a text that went through `plain`."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def cut(text: str, limit: int) -> str:
    """As much of a text that went through `plain` as `limit` cells hold."""
    ends = accumulate(map(get_character_cell_size, text))
    return text[: sum(end <= limit for end in ends)]


@lru_cache(maxsize=4096)
def codes(text: str) -> NDArray[np.uint32]:
    """The code points of `text`, one a cell; do not write into it."""
    if not text.isascii():
        text = "".join(one + FILLER if get_character_cell_size(one) == 2 else one for one in text)
    return np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)


def cells_of(row: NDArray[np.uint32]) -> str:
    """A row of code points as a string of one character a cell, fillers among them."""
    return row.tobytes().decode("utf-32-le")


def text_of(row: NDArray[np.uint32]) -> str:
    """A row of code points as a string."""
    return cells_of(row).replace(FILLER, "")
