"""Style indices of the grids a frame is made of; `lineage_tui.theme` gives each a colour per palette."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NUM_HUES: Final = 6


class Fg(IntEnum):
    """What a character is; index into a palette's foregrounds."""

    BLANK = 0
    TEXT = 1
    TITLE = 2
    MUTED = 3
    AXIS = 4
    GUIDE = 5
    BOUNDARY = 6
    DEATH = 7
    GAP = 8
    CURSOR = 9
    GOOD = 10
    WARN = 11
    BAD = 12
    LR_RESTORE = 13
    FP16_SKIP = 14
    NONFINITE = 15
    ALERT = 16
    CHECKPOINT = 17
    NOTE = 18
    SHADE = 19
    SERIES = 20  # 20..25, one for each hue
    DIM = 26  # 26..31, superseded steps, in the hue of their run
    RAW = 32  # 32..37, raw samples behind a smoothed line, where tints are poor


class Bg(IntEnum):
    """What a cell stands on; index into a palette's backgrounds."""

    PLAIN = 0
    EVAL = 1
    CHECKPOINT = 2
    RESTORE = 3
    PHASE = 4
    RANGE = 5
    TAG = 6
    BAND = 8  # 8..13, min to max of the raw samples behind a smoothed line


NUM_FG: Final = 38
NUM_BG: Final = 14


def hue(base: Fg | Bg, index: int) -> int:
    """The index of one hue of SERIES, DIM, RAW or BAND; hues wrap."""
    return int(base) + index % NUM_HUES
