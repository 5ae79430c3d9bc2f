"""The chart widget: what is on the screen is the frame, and nothing is painted twice for nothing."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from textual.app import App, ComposeResult
from textual.strip import Strip

from lineage_tui.plot import Bg, ChartModel, Fg, Mark, SeriesData, Span, View, VLine, render
from lineage_tui.theme import palette, rich_style, textual_theme
from lineage_tui.widgets.chart import Chart


def model(last: int = 100) -> ChartModel:
    x = np.arange(1.0, last + 1)
    return ChartModel(
        "loss",
        [SeriesData("loss", "loss", x, 1 + 5 / x)],
        spans=[Span(20, 25, "eval")],
        lines=[VLine(50, "boundary", "s2 exact")],
        marks=[Mark(30, "fp16_skip")],
    )


class OneChart(App[None]):
    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.chart = chart
        self.asked: list[View] = []

    def compose(self) -> ComposeResult:
        yield self.chart

    def on_chart_view_changed(self, message: Chart.ViewChanged) -> None:
        assert message.control is self.chart
        self.asked.append(message.view)


def drive(chart, story, size=(80, 24)):
    async def go():
        app = OneChart(chart)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await story(app, pilot)

    asyncio.run(go())


def text_of(strip: Strip) -> str:
    return "".join(segment.text for segment in strip)


def test_every_row_on_the_screen_is_the_row_of_the_frame_in_its_styles():
    colours = palette("truecolor", dark=True)

    async def story(app, pilot):
        chart = app.chart
        frame = render(chart.model, chart.view, 80, 24, look=colours.look("braille"))
        assert chart.frame.same_as(frame)
        for y in range(24):
            strip = chart.render_line(y)
            assert strip.cell_length == 80
            assert text_of(strip) == frame.lines()[y]
            x = 0
            for segment in strip:
                wanted = rich_style(colours, int(frame.fg[y, x]), int(frame.bg[y, x]))
                for name in ("color", "bgcolor", "bold"):
                    if getattr(wanted, name) is not None:
                        assert getattr(segment.style, name) == getattr(wanted, name)
                x += len(segment.text)
        assert {Fg.SERIES, Fg.BOUNDARY} <= set(frame.fg.ravel().tolist())
        assert Bg.EVAL in frame.bg

    drive(Chart(model(), colours=colours), story)


def test_an_equal_frame_is_not_painted_again():
    async def story(app, pilot):
        chart = app.chart
        before = chart.num_paints
        chart.set_model(model())
        chart.set_view(View())
        assert chart.num_paints == before
        chart.set_view(View(cursor_x=40.0))
        assert chart.num_paints == before + 1

    drive(Chart(model(), View()), story)


def test_only_rows_that_changed_are_painted_again():
    async def story(app, pilot):
        chart = app.chart
        kept = [chart.render_line(y) for y in range(24)]
        changed = dataclasses.replace(model(), marks=[*model().marks, Mark(70, "note")])
        chart.set_model(changed)
        lane = chart.frame.lane
        for y in range(24):
            assert (chart.render_line(y) is kept[y]) == (y != lane)

    drive(Chart(model()), story)


def test_both_at_once_are_one_paint():
    async def story(app, pilot):
        before = app.chart.num_paints
        app.chart.show(model(300), View(smoothing=0.9))
        assert app.chart.num_paints == before + 1
        assert app.chart.frame.facts.smoothing == "ema 0.9"

    drive(Chart(model()), story)


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 9), (7, 3), (200, 50)])
def test_any_size_of_terminal_and_back(size):
    async def story(app, pilot):
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert app.chart.frame.chars.shape == (size[1], size[0])
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert app.chart.frame.same_as(
            render(app.chart.model, app.chart.view, 80, 24, look=app.chart.colours.look("braille"))
        )

    drive(Chart(model()), story)


def test_the_wheel_zooms_at_the_pointer_and_asks_rather_than_acts():
    async def story(app, pilot):
        chart = app.chart
        x = chart.frame.plot.x + 20
        under = chart.frame.x_at(x)
        await pilot._post_mouse_events([_wheel_event()], widget=chart, offset=(x, 10))
        await pilot.pause()
        assert chart.view == View()
        (asked,) = app.asked
        assert asked.x1 - asked.x0 < 99
        chart.set_view(asked)
        assert abs(chart.frame.column_of(under) - x) <= 1

    def _wheel_event():
        from textual.events import MouseScrollUp

        return MouseScrollUp

    drive(Chart(model()), story)


def test_a_click_asks_for_the_cursor_there():
    async def story(app, pilot):
        column = app.chart.frame.plot.x + 30
        await pilot.click(app.chart, offset=(column, 8))
        await pilot.pause()
        assert app.asked
        assert app.chart.frame.column_of(app.asked[-1].cursor_x) == column
        await pilot.click(app.chart, offset=(1, 8))
        await pilot.pause()
        assert len(app.asked) == 1

    drive(Chart(model()), story)


def test_another_theme_paints_in_its_own_colours():
    async def story(app, pilot):
        for dark in (True, False):
            theme = textual_theme("truecolor", dark=dark)
            app.register_theme(theme)
        app.theme = "lineage-dark"
        await pilot.pause()
        dark_style = next(segment.style for segment in app.chart.render_line(0) if "loss" in segment.text)
        app.theme = "lineage-light"
        await pilot.pause()
        light_style = next(segment.style for segment in app.chart.render_line(0) if "loss" in segment.text)
        assert dark_style.color != light_style.color
        assert dark_style.bgcolor != light_style.bgcolor

    drive(Chart(model()), story)


def test_a_chart_without_a_model_says_so():
    async def story(app, pilot):
        assert any("no samples yet" in text_of(app.chart.render_line(y)) for y in range(24))
        assert text_of(app.chart.render_line(99)).strip() == ""

    drive(Chart(), story)


def test_a_new_look_is_painted_at_once():
    async def story(app, pilot):
        app.chart.set_look(glyphs="ascii", colours=palette("none"))
        text = "\n".join(text_of(app.chart.render_line(y)) for y in range(24))
        assert text.isascii()

    drive(Chart(model()), story)
