"""Curves as text: numpy arrays and marks in, a grid of characters and style indices out. No terminal, no Textual."""

from lineage_tui.plot.chart import marks_near, render
from lineage_tui.plot.fold import Memo
from lineage_tui.plot.frame import Frame, HeaderFacts, Reading, Rect
from lineage_tui.plot.model import ChartModel, Glyphs, Look, Mark, SeriesData, Span, View, VLine, Window
from lineage_tui.plot.styles import Bg, Fg

__all__ = [
    "Bg",
    "ChartModel",
    "Fg",
    "Frame",
    "Glyphs",
    "HeaderFacts",
    "Look",
    "Mark",
    "Memo",
    "Reading",
    "Rect",
    "SeriesData",
    "Span",
    "VLine",
    "View",
    "Window",
    "marks_near",
    "render",
]
