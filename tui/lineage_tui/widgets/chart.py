"""The chart widget: puts a `Frame` on the screen, and tells its parent what the mouse asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from lineage_tui.plot import ChartModel, Frame, Look, Memo, View, render
from lineage_tui.plot.layout import edges_of
from lineage_tui.plot.model import Glyphs
from lineage_tui.plot.navigate import panned, x_window, zoomed
from lineage_tui.plot.styles import NUM_BG
from lineage_tui.plot.text import FILLER, cells_of
from lineage_tui.theme import Palette, depth_of, palette, rich_style

ZOOM_STEP: Final = 0.8


class Chart(Widget, can_focus=True):
    """One chart; no child widgets. Whoever owns it gives it models and views, and decides how often.

    A frame that equals the one on the screen is not painted; of one that differs only the changed rows are.

    Attributes:
        glyphs: characters for the curves; set before mounting or through `set_look`.
        memo: pyramids and smoothed values, kept between frames.
        pointer_x: where the mouse points, in x; the cursor is drawn there instead of where the view has it.
    """

    ALLOW_SELECT = False  # a drag marks a range

    DEFAULT_CSS = """
    Chart { width: 1fr; height: 1fr; background: $background; }
    """

    class Pointed(Message):
        """The mouse moved to a column of the plot, or (None) away; the chart itself stays as it is until `show`."""

        def __init__(self, chart: Chart, column: int | None) -> None:
            super().__init__()
            self.chart = chart
            self.column = column

        @property
        def control(self) -> Chart:
            return self.chart

    class ViewChanged(Message):
        """The mouse asked for another view; the chart itself stays as it is until `set_view`."""

        def __init__(self, chart: Chart, view: View) -> None:
            super().__init__()
            self.chart = chart
            self.view = view

        @property
        def control(self) -> Chart:
            return self.chart

    def __init__(
        self,
        model: ChartModel | None = None,
        view: View | None = None,
        *,
        glyphs: Glyphs = "braille",
        colours: Palette | None = None,
        memo: Memo | None = None,
        name: str | None = None,
        id: str | None = None,  # noqa: A002 - Textual's name for it
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.model = model or ChartModel("")
        self.view = view or View()
        self.glyphs: Glyphs = glyphs
        self.memo = memo or Memo()
        self.pointer_x: float | None = None
        self.num_paints = 0
        self._drag_from: int | None = None
        self._is_dragged = False
        self._colours = colours
        self._frame: Frame | None = None
        self._strips: list[Strip | None] = []
        self._styles: dict[int, Style] = {}
        self._styled_for: tuple[Palette, Style] | None = None

    @property
    def frame(self) -> Frame | None:
        """What is on the screen; None before the first layout."""
        return self._frame

    @property
    def colours(self) -> Palette:
        """The palette: the one given, else the terminal's depth and the theme's darkness."""
        if self._colours is not None:
            return self._colours
        depth = "none" if self.app.no_color else depth_of(self.app.console.color_system)
        return palette(depth, dark=self.app.current_theme.dark)

    def set_model(self, model: ChartModel) -> None:
        """Show other data in the same view."""
        self.show(model=model)

    def set_view(self, view: View) -> None:
        """Show the same data in another view."""
        self.show(view=view)

    def show(self, model: ChartModel | None = None, view: View | None = None, pointer_x: float | None = None) -> None:
        """Show other data, another view, or both in one frame; the cursor at `pointer_x` if the mouse points there."""
        self.model = model if model is not None else self.model
        self.view = view if view is not None else self.view
        self.pointer_x = pointer_x
        self._draw()

    def x_under(self, column: int, model: ChartModel, view: View) -> float | None:
        """The x that another model or view will have under a column, the plot being where it is now."""
        frame = self._frame
        if frame is None:
            return None
        x0, x1, log = x_window(model, view)
        edges = edges_of(x0, x1, frame.plot.width * frame.dots_x, log=log)
        window = replace(frame.window, x0=x0, x1=x1, log_x=log, edges=edges)
        return replace(frame, window=window).x_at(column)

    def set_look(self, *, glyphs: Glyphs | None = None, colours: Palette | None = None) -> None:
        """Other characters or colours; None keeps what there is."""
        self.glyphs = glyphs or self.glyphs
        self._colours = colours or self._colours
        self._draw(force=True)

    def restyle(self) -> None:
        """Paint anew after the theme changed."""
        self._draw(force=True)

    def _look(self) -> Look:
        return self.colours.look(self.glyphs)

    def _draw(self, *, force: bool = False) -> None:
        """Build the frame, and refresh the rows in which it differs from the one on the screen."""
        width, height = self.size
        if not self.is_mounted or width < 1 or height < 1:
            return
        view = self.view if self.pointer_x is None else self.view.but(cursor_x=self.pointer_x)
        frame = render(self.model, view, width, height, look=self._look(), memo=self.memo)
        old, self._frame = self._frame, frame
        if force:
            self._styled_for = None
        if force or old is None or old.chars.shape != frame.chars.shape:
            self._strips = [None] * height
            self.num_paints += 1
            self.refresh()
            return
        changed = (old.chars != frame.chars) | (old.fg != frame.fg) | (old.bg != frame.bg)
        rows = np.flatnonzero(changed.any(axis=1)).tolist()
        if not rows:
            return
        for row in rows:
            self._strips[row] = None
        self.num_paints += 1
        self.refresh(*(Region(0, row, width, 1) for row in rows))

    def on_resize(self, event: events.Resize) -> None:
        del event
        self._draw()

    def notify_style_update(self) -> None:
        """Textual calls this when the theme or a style changed."""
        super().notify_style_update()
        self._styled_for = None
        if self._frame is not None:
            self._draw(force=True)

    def render_line(self, y: int) -> Strip:
        """One row of the frame, as runs of equal style."""
        frame = self._frame
        if frame is None or not 0 <= y < frame.height:
            return Strip.blank(self.size.width, self.rich_style)
        self._check_styles()
        strip = self._strips[y]
        if strip is None:
            strip = self._strips[y] = self._strip(frame, y)
        return strip

    def _check_styles(self) -> None:
        """Forget the styles and strips made for other colours."""
        if self._styled_for is None:  # asking for them costs more than a row
            self._styled_for = (self.colours, self.rich_style)
            self._styles.clear()
            self._strips = [None] * len(self._strips)

    def _strip(self, frame: Frame, y: int) -> Strip:
        keys = frame.fg[y].astype(np.int64) * NUM_BG + frame.bg[y]
        stops = np.flatnonzero(np.diff(keys)) + 1
        text = cells_of(frame.chars[y])
        segments: list[Segment] = []
        start = 0
        for stop in (*stops.tolist(), len(text)):
            segments.append(Segment(text[start:stop].replace(FILLER, ""), self._style(int(keys[start]))))
            start = stop
        return Strip(segments, frame.width)

    def _style(self, key: int) -> Style:
        style = self._styles.get(key)
        if style is None:
            fg, bg = divmod(key, NUM_BG)
            base = self._styled_for[1] if self._styled_for is not None else self.rich_style
            style = self._styles[key] = base + rich_style(self.colours, fg, bg)
        return style

    # The mouse

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, ZOOM_STEP)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1 / ZOOM_STEP)

    def _wheel(self, event: events.MouseEvent, factor: float) -> None:
        frame = self._frame
        if frame is None:
            return
        event.stop()
        if event.shift:
            self._ask(panned(self.model, self.view, -0.2 if factor < 1 else 0.2))
        else:
            self._ask(zoomed(self.model, self.view, factor, frame.x_at(event.x)))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._is_dragged = False
        if event.button == 1 and self._holds(event.x):
            self._drag_from = event.x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        frame, start = self._frame, self._drag_from
        if frame is None:
            return
        if start is not None and (self._is_dragged or event.x != start):
            self._is_dragged = True
            x = frame.x_at(event.x)
            self._ask(self.view.but(cursor_x=x, range=(frame.x_at(start), x)))
        self.post_message(self.Pointed(self, event.x if self._holds(event.x) else None))

    def on_mouse_up(self) -> None:
        if self._drag_from is not None:
            self._drag_from = None
            self.release_mouse()

    def on_leave(self) -> None:
        self.post_message(self.Pointed(self, None))

    def on_click(self, event: events.Click) -> None:
        frame = self._frame
        if frame is not None and not self._is_dragged and self._holds(event.x):
            self._ask(self.view.but(cursor_x=frame.x_at(event.x)))

    def _holds(self, column: int) -> bool:
        """Whether a column is one of the plot's."""
        frame = self._frame
        return frame is not None and frame.plot.x <= column < frame.plot.x + frame.plot.width

    def _ask(self, view: View) -> None:
        if view != self.view:
            self.post_message(self.ViewChanged(self, view))
