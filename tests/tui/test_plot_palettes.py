"""Palettes: readable at every depth, and on the terminal exactly as they were meant."""

from __future__ import annotations

import pytest
from rich.color import Color, ColorSystem

from lineage_tui.plot.styles import NUM_BG, NUM_FG, NUM_HUES, Bg, Fg
from lineage_tui.theme import (
    BACKGROUND,
    SERIES_256,
    contrast,
    depth_of,
    hex_of,
    palette,
    rich_style,
    sgr,
    textual_theme,
    xterm_rgb,
)

DEPTHS = ("truecolor", "256", "16", "none")
READ = [*range(Fg.TEXT, Fg.SHADE), *range(Fg.SERIES, Fg.SERIES + NUM_HUES), *range(Fg.DIM, Fg.DIM + NUM_HUES)]
READ = [index for index in READ if index not in {Fg.AXIS, Fg.GUIDE}]
SPANS = (Bg.EVAL, Bg.CHECKPOINT, Bg.RESTORE, Bg.PHASE)


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("depth", ["truecolor", "256", "16"])
def test_every_line_and_text_stands_out_from_the_background(depth, dark):
    colours = palette(depth, dark=dark)
    ground = colours.rgb(colours.background)
    for index in READ:
        ink = colours.fg[index].ink
        assert ink is not None
        assert contrast(colours.rgb(ink), ground) >= 3.6, (index, ink)


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("depth", ["truecolor", "256"])
def test_series_and_words_stand_out_from_every_tint_they_can_lie_on(depth, dark):
    colours = palette(depth, dark=dark)
    for hue in range(NUM_HUES):
        line = colours.rgb(colours.fg[Fg.SERIES + hue].ink)
        for tint in (*SPANS, Bg.RANGE, *range(Bg.BAND, Bg.BAND + NUM_HUES)):
            least = 3.6 if tint in SPANS else 3.4
            assert contrast(line, colours.rgb(colours.bg[tint].ink)) >= least, (hue, tint)
    for tint in SPANS:
        assert contrast(colours.rgb(colours.fg[Fg.MUTED].ink), colours.rgb(colours.bg[tint].ink)) >= 3.6
    tag = colours.rgb(colours.bg[Bg.TAG].ink)
    assert contrast(colours.rgb(colours.fg[Fg.CURSOR].ink), tag) >= 4.5


@pytest.mark.parametrize("dark", [True, False])
def test_the_series_are_the_colours_that_were_searched_for(dark):
    assert [paint.ink for paint in palette("256", dark=dark).fg[Fg.SERIES : Fg.SERIES + NUM_HUES]] == list(
        SERIES_256[dark]
    )
    assert [paint.ink for paint in palette("truecolor", dark=dark).fg[Fg.SERIES : Fg.SERIES + NUM_HUES]] == [
        xterm_rgb(index) for index in SERIES_256[dark]
    ]


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize(("depth", "system"), [("256", ColorSystem.EIGHT_BIT), ("16", ColorSystem.STANDARD)])
def test_indexed_colours_arrive_at_the_terminal_as_that_very_index(depth, system, dark):
    colours = palette(depth, dark=dark)
    for index in range(NUM_FG):
        arrived = rich_style(colours, index, 0).color
        if colours.fg[index].ink is not None:
            assert arrived.downgrade(system).number == colours.fg[index].ink
    for index in range(NUM_BG):
        arrived = rich_style(colours, 0, index).bgcolor
        if colours.bg[index].ink is not None:
            assert arrived.downgrade(system).number == colours.bg[index].ink


@pytest.mark.parametrize("dark", [True, False])
def test_the_theme_of_the_app_arrives_in_256_colours_unchanged(dark):
    theme = textual_theme("256", dark=dark)
    assert theme.dark is dark
    background = Color.parse(theme.background)
    assert background.downgrade(ColorSystem.EIGHT_BIT).number == BACKGROUND[dark]
    for name in ("primary", "accent", "warning", "error", "success", "foreground", "surface", "panel"):
        colour = Color.parse(getattr(theme, name))
        number = colour.downgrade(ColorSystem.EIGHT_BIT).number
        assert hex_of(number, "256") == getattr(theme, name)


@pytest.mark.parametrize("dark", [True, False])
def test_without_colours_there_is_not_one_colour_code(dark):
    colours = palette("none", dark=dark)
    for fg in range(NUM_FG):
        for bg in range(NUM_BG):
            style = rich_style(colours, fg, bg)
            assert style.color is None
            assert style.bgcolor is None
            codes = sgr(colours, fg, bg).removeprefix("\x1b[").removesuffix("m").split(";")
            assert set(codes) <= {"", "1", "2", "7"}


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("depth", DEPTHS)
def test_every_style_index_has_a_paint(depth, dark):
    colours = palette(depth, dark=dark)
    assert len(colours.fg) == NUM_FG
    assert len(colours.bg) == NUM_BG
    assert colours.tints == (depth in {"truecolor", "256"})


def test_spans_differ_from_the_ground_where_tints_are_used():
    for depth in ("truecolor", "256"):
        for dark in (True, False):
            colours = palette(depth, dark=dark)
            tints = {colours.rgb(colours.bg[index].ink) for index in (*SPANS, Bg.RANGE, Bg.TAG)}
            assert colours.rgb(colours.background) not in tints


def test_depths_follow_what_the_console_says():
    assert [depth_of(system) for system in ("truecolor", "256", "standard", "windows", None, "odd")] == [
        "truecolor",
        "256",
        "16",
        "16",
        "none",
        "none",
    ]
