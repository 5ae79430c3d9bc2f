"""One drawn chart: grids of characters and style indices, and what lies under a cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lineage_tui.plot.model import ChartModel, View, Window
from lineage_tui.plot.text import text_of


@dataclass(frozen=True)
class Rect:
    """A part of the grid, in cells."""

    x: int
    y: int
    width: int
    height: int

    def holds(self, x: int, y: int) -> bool:
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height


@dataclass(frozen=True)
class Reading:
    """One line of a readout: whose, what, in which colour.

    Attributes:
        value: as people write it. number: as measured, nan where nothing was.
        fg: a style index (`Fg`).
        raw: of a smoothed curve, the sample itself.
    """

    label: str
    value: str
    fg: int
    number: float
    raw: float | None = None

    def __iter__(self) -> object:
        return iter((self.label, self.value))


@dataclass(frozen=True)
class HeaderFacts:
    """What a chart owes its reader about how it was drawn; empty strings where there is nothing to say."""

    smoothing: str = ""
    folding: str = ""
    clipping: str = ""
    scale: str = ""
    points_per_column: float = 0.0
    num_clipped: int = 0


@dataclass(frozen=True, eq=False)
class Frame:
    """A chart of `width` x `height` cells.

    Attributes:
        chars: code points, uint32, height x width. fg, bg: style indices, uint8, of the same shape.
        plot: where the curves are. lane: row of the event lane, None without one.
        window: the x and y shown; `window.edges` bounds the dot columns.
        dots_x: dot columns per cell.
    """

    chars: NDArray[np.uint32]
    fg: NDArray[np.uint8]
    bg: NDArray[np.uint8]
    plot: Rect
    lane: int | None
    window: Window
    dots_x: int
    facts: HeaderFacts
    model: ChartModel
    view: View
    readings: tuple[Reading, ...] = ()

    @property
    def width(self) -> int:
        return int(self.chars.shape[1])

    @property
    def height(self) -> int:
        return int(self.chars.shape[0])

    def same_as(self, other: Frame | None) -> bool:
        """Whether both would put the same cells on the screen."""
        return (
            other is not None
            and self.chars.shape == other.chars.shape
            and np.array_equal(self.chars, other.chars)
            and np.array_equal(self.fg, other.fg)
            and np.array_equal(self.bg, other.bg)
        )

    def lines(self) -> list[str]:
        """The characters, row by row, each exactly `width` long."""
        return [text_of(row) for row in self.chars]

    def text(self) -> str:
        """The characters without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.lines())

    def column_of(self, x: float) -> int | None:
        """The grid column that shows x; None outside the window."""
        edges = self.window.edges
        if edges.size < 2 or not self.window.x0 <= x <= self.window.x1:
            return None
        dot = min(int(np.searchsorted(edges, x, side="right")) - 1, edges.size - 2)
        return self.plot.x + max(dot, 0) // self.dots_x

    def x_at(self, column: int) -> float:
        """The x in the middle of a grid column; columns outside the plot give its nearest end."""
        edges = self.window.edges
        if edges.size < 2:
            return self.window.x0
        cell = min(max(column - self.plot.x, 0), self.plot.width - 1)
        left, right = float(edges[cell * self.dots_x]), float(edges[(cell + 1) * self.dots_x])
        if self.window.log_x and left > 0:
            return float(np.sqrt(left * right))
        return (left + right) / 2

    def readout(self, cursor_x: float | None = None) -> list[tuple[str, str]]:
        """Label and value of x and of every shown series at `cursor_x` (the view's cursor by default)."""
        from lineage_tui.plot.navigate import readings

        found = self.readings if cursor_x is None else readings(self.model, self.view, cursor_x)
        return [(one.label, one.value) for one in found]
