"""Text for single cells: what a stranger's name may put on the screen."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=4096)
def plain(text: str, limit: int = 200) -> str:
    """`text` as characters of one cell each: no control, escape, bidi, combining or wide characters.

    What cannot be shown becomes `?`, white space becomes a space, and what is longer than `limit` ends in `…`.
    """
    cut = text[: limit + 1]
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(_cell(character) for character in cut)
    return cut[: limit - 1] + "…" if len(cut) > limit else cut


def _cell(character: str) -> str:
    if character.isspace():
        return " "
    if not character.isprintable() or unicodedata.combining(character):
        return "?"
    category = unicodedata.category(character)
    if category in {"Cf", "Cc", "Cs", "Co", "Cn", "Mn", "Me", "Mc"} or unicodedata.east_asian_width(character) in "WF":
        return "?"
    return character


@lru_cache(maxsize=4096)
def codes(text: str) -> NDArray[np.uint32]:
    """The code points of `text`; do not write into it."""
    return np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)


def text_of(row: NDArray[np.uint32]) -> str:
    """A row of code points as a string."""
    return row.tobytes().decode("utf-32-le")
