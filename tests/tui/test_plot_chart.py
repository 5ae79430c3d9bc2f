"""Whole charts: layers, labels, any size, any name; and a few frames as plain text."""

from __future__ import annotations

import dataclasses
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from lineage_tui.plot import (
    Bg,
    ChartModel,
    Fg,
    Look,
    Mark,
    Memo,
    SeriesData,
    Span,
    View,
    VLine,
    marks_near,
    render,
)
from lineage_tui.plot.layers import MARK_FG, tick_target
from lineage_tui.plot.layout import Canvas
from lineage_tui.plot.raster import GLYPHS
from lineage_tui.plot.text import text_of

GOLDENS = Path(__file__).with_name("goldens")
GLYPH_NAMES = ("braille", "blocks", "ascii")


def story(num_series: int = 2) -> ChartModel:
    """600 steps of a run that died, was resumed twice, and met everything a lane can show."""
    rng = np.random.default_rng(7)
    x = np.arange(1.0, 601)
    series = []
    for index in range(num_series):
        y = 2.0 + 0.15 * index + 6 * np.exp(-x / 70) + rng.normal(0, 0.08, x.size)
        if index == 0:
            y[300:306] = np.nan
        series.append(SeriesData(f"run{index}", f"run-{index}", x, y, hue=index))
    lost = (x >= 200) & (x <= 237)
    series.append(SeriesData("run0/s1", "s1", x[lost], 2.6 + rng.normal(0, 0.05, 38), hue=0, dimmed=True))
    return ChartModel(
        "loss",
        series,
        spans=(Span(100, 118, "eval"), Span(200, 212, "restore"), Span(400, 418, "eval"), Span(500, 500, "checkpoint")),
        lines=(
            VLine(200, "boundary", "s2 exact"),
            VLine(237, "death", "s1 killed"),
            VLine(450, "boundary", "s3 unproven"),
        ),
        marks=(
            Mark(30, "fp16_skip"),
            Mark(36, "fp16_skip"),
            Mark(200, "lr_restore", "3e-4 to 3e-4"),
            Mark(303, "nonfinite"),
            Mark(330, "alert"),
            Mark(500, "checkpoint"),
            Mark(560, "note"),
        ),
        y_unit="nats",
    )


CASES = {
    "loss-80x24": (story(), View(), 80, 24, Look()),
    "loss-80x24-smoothed": (story(), View(smoothing=0.9, cursor_x=320.0, focus=1), 80, 24, Look()),
    "loss-120x20-log": (story(), View(log_y=True, x0=150.0, x1=500.0), 120, 20, Look()),
    "loss-60x16-blocks": (story(), View(smoothing=0.9), 60, 16, Look("blocks", tints=False)),
    "loss-60x16-ascii": (story(), View(), 60, 16, Look("ascii", tints=False, letters=True)),
    "loss-80x24-letters": (story(3), View(show_superseded=False), 80, 24, Look(tints=False, letters=True)),
    "loss-30x8": (story(1), View(), 30, 8, Look()),
    "nothing-40x10": (ChartModel("lr"), View(), 40, 10, Look()),
}
STYLES = "".join(
    chr(code)
    for code in (*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1))
)


def golden(name: str) -> str:
    """Characters, foregrounds and backgrounds of a frame, one grid under the other."""
    frame = render(*CASES[name][:4], look=CASES[name][4])
    grids = [[f"{line}|" for line in frame.lines()]]
    grids += [
        ["".join("." if not index else STYLES[index] for index in row) + "|" for row in grid.tolist()]
        for grid in (frame.fg, frame.bg)
    ]
    return "\n\n".join("\n".join(grid) for grid in grids) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_a_frame_is_the_one_that_was_looked_at_and_kept(name):
    """Run with LINEAGE_WRITE_GOLDENS=1 to write them anew; look at them before keeping them."""
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("LINEAGE_WRITE_GOLDENS"):
        path.write_text(golden(name), encoding="utf-8")
    assert golden(name) == path.read_text(encoding="utf-8")


# Any size, any model

numbers = st.one_of(
    st.floats(-1e9, 1e9),
    st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e308, -1e308, 5e-324, 1e-300]),
)
places = st.one_of(st.floats(-1e7, 1e7), st.sampled_from([0.0, 1e300, -1e300, 1e-300]))
words = st.text(max_size=30)


@st.composite
def models(draw):
    series = []
    for number in range(draw(st.integers(0, 4))):
        y = np.array(draw(st.lists(numbers, max_size=30)), dtype=np.float64)
        x = np.sort(np.array(draw(st.lists(places, min_size=y.size, max_size=y.size)), dtype=np.float64))
        breaks = np.array(sorted(set(draw(st.lists(st.integers(0, 30), max_size=3)))), dtype=np.int64)
        series.append(
            SeriesData(
                f"k{number}", draw(words), x, y, hue=draw(st.integers(0, 9)), dimmed=draw(st.booleans()), breaks=breaks
            )
        )
    return ChartModel(
        draw(words),
        series,
        spans=[
            Span(
                draw(places),
                draw(places),
                draw(st.sampled_from(["eval", "checkpoint", "restore", "gap", "ü\n"])),
                draw(words),
            )
            for _ in range(draw(st.integers(0, 4)))
        ],
        lines=[
            VLine(draw(places), draw(st.sampled_from(["boundary", "death", "gap"])), draw(words))
            for _ in range(draw(st.integers(0, 5)))
        ],
        marks=[
            Mark(draw(places), draw(st.sampled_from(list(MARK_FG))), draw(words))
            for _ in range(draw(st.integers(0, 5)))
        ],
        x_label=draw(words),
        x_kind=draw(st.sampled_from(["count", "seconds", "clock"])),
        y_unit=draw(words),
    )


@st.composite
def views(draw):
    place = st.one_of(st.none(), places)
    return View(
        x0=draw(place),
        x1=draw(place),
        log_y=draw(st.booleans()),
        log_x=draw(st.booleans()),
        smoothing=draw(st.sampled_from([0.0, 0.6, 0.999])),
        clip=draw(st.booleans()),
        cursor_x=draw(place),
        focus=draw(st.integers(0, 5)),
        show_superseded=draw(st.booleans()),
        range=draw(st.one_of(st.none(), st.tuples(places, places))),
    )


looks = st.builds(Look, st.sampled_from(GLYPH_NAMES), tints=st.booleans(), letters=st.booleans())
sizes = st.tuples(st.integers(1, 120), st.integers(1, 40))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(models(), views(), sizes, looks)
def test_no_size_model_or_view_is_too_odd_to_draw(model, view, size, look):
    width, height = size
    frame = render(model, view, width, height, look=look)
    assert frame.chars.shape == frame.fg.shape == frame.bg.shape == (height, width)
    for line in frame.lines():
        assert line.isprintable()
        assert sum(map(get_character_cell_size, line)) == width
        assert not any(map(unicodedata.combining, line))
    assert (frame.fg[frame.chars == ord(" ")] == Fg.BLANK).all()
    assert frame.plot.width >= 1
    assert frame.plot.height >= 1
    assert frame.plot.x + frame.plot.width <= width
    assert frame.plot.y + frame.plot.height <= height


@pytest.mark.parametrize("glyphs", GLYPH_NAMES)
def test_every_size_from_one_cell_up_can_be_drawn(glyphs):
    model = story()
    memo = Memo()
    for width in (1, 2, 3, 5, 8, 13, 23, 24, 25, 40, 59, 60, 61):
        for height in range(1, 24):
            frame = render(model, View(smoothing=0.5, cursor_x=222.0), width, height, look=Look(glyphs), memo=memo)
            assert frame.chars.shape == (height, width)


def test_ascii_charts_hold_nothing_but_ascii():
    frame = render(story(), View(smoothing=0.9, cursor_x=100.0, log_y=True), 100, 30, look=Look("ascii", tints=False))
    assert frame.text().isascii()


# Layers


def _data_cells(frame):
    """Which cells of the plot hold dots of curves, and what they hold."""
    area = np.s_[frame.plot.y : frame.plot.y + frame.plot.height, frame.plot.x : frame.plot.x + frame.plot.width]
    fg = frame.fg[area]
    return fg >= Fg.SERIES, frame.chars[area], fg


@pytest.mark.parametrize("glyphs", GLYPH_NAMES)
@pytest.mark.parametrize("smoothing", [0.0, 0.9])
def test_lines_spans_guides_and_cursor_never_wipe_data(glyphs, smoothing):
    full = dataclasses.replace(story(), lines=[*story().lines, *(VLine(float(x), "death") for x in range(0, 600, 5))])
    view = View(smoothing=smoothing)
    busy = render(full, view.but(cursor_x=260.0, range=(50.0, 300.0)), 100, 30, look=Look(glyphs))
    bare = render(
        dataclasses.replace(full, lines=full.lines[:1], spans=full.spans[:1]), view, 100, 30, look=Look(glyphs)
    )
    assert busy.plot == bare.plot
    is_data, chars, fg = _data_cells(bare)
    busy_data, busy_chars, busy_fg = _data_cells(busy)
    assert (busy_data == is_data).all()
    assert (busy_chars[is_data] == chars[is_data]).all()
    assert (busy_fg[is_data] == fg[is_data]).all()


def test_a_cell_of_two_series_holds_the_dots_of_one_of_them():
    model = dataclasses.replace(story(), lines=(), spans=(), marks=())
    both = render(model, View(), 100, 30)
    alone = []
    for index in range(len(model.series)):
        one = dataclasses.replace(
            model,
            series=[dataclasses.replace(s, y=s.y if n == index else s.y * np.nan) for n, s in enumerate(model.series)],
        )
        frame = render(one, View(clip=False), 100, 30)
        alone.append(frame)
    assert both.plot.height == alone[0].plot.height
    is_data, chars, fg = _data_cells(both)
    hues = {Fg.SERIES + 0, Fg.SERIES + 1, Fg.DIM + 0}
    assert set(fg[is_data].tolist()) == hues
    assert set(chars[is_data].tolist()) <= set(GLYPHS["braille"].table.tolist())


def test_superseded_steps_are_in_the_hue_of_their_run_and_can_be_left_out():
    frame = render(story(), View(), 100, 30)
    assert (frame.fg == Fg.DIM).any()
    assert "superseded" in frame.lines()[0]
    without = render(story(), View(show_superseded=False), 100, 30)
    assert not (without.fg == Fg.DIM).any()
    assert "superseded" not in without.lines()[0]


def test_a_nonfinite_sample_is_a_gap_and_a_cross_on_the_axis():
    frame = render(story(), View(x0=280.0, x1=330.0), 100, 30)
    axis = frame.height - 2
    crosses = np.flatnonzero(frame.chars[axis] == ord("✕"))
    assert frame.column_of(303.0) in crosses.tolist()
    assert (frame.fg[axis, crosses] == Fg.NONFINITE).all()


def test_every_kind_of_event_has_its_own_sign_in_the_lane_at_its_place():
    model = story()
    frame = render(model, View(), 160, 30)
    for mark in model.marks:
        sign = GLYPHS["braille"].marks[mark.kind]
        assert chr(frame.chars[frame.lane, frame.column_of(mark.x)]) == sign
        assert frame.fg[frame.lane, frame.column_of(mark.x)] == MARK_FG[mark.kind]
    assert len(set(GLYPHS["braille"].marks.values())) == len(MARK_FG)
    assert len(set(GLYPHS["ascii"].marks.values())) == len(MARK_FG)


def test_of_several_events_in_a_column_the_gravest_is_shown_and_all_are_told():
    model = ChartModel(
        "loss",
        [SeriesData("a", "a", np.arange(1000.0), np.ones(1000))],
        marks=[Mark(500.0, "note"), Mark(501.0, "nonfinite"), Mark(502.0, "fp16_skip")],
    )
    frame = render(model, View(), 80, 24)
    assert chr(frame.chars[frame.lane, frame.column_of(501.0)]) == "✕"
    assert [mark.kind for mark in marks_near(model, frame, 501.0)] == ["nonfinite", "fp16_skip", "note"]


def test_the_band_covers_the_raw_samples_and_only_where_tints_are_possible():
    frame = render(story(1), View(smoothing=0.95), 100, 30)
    band = (frame.bg >= Bg.BAND).any(axis=0)
    assert band[frame.plot.x : frame.plot.x + 40].all()
    dots = render(story(1), View(smoothing=0.95), 100, 30, look=Look(tints=False))
    assert not dots.bg.any()
    assert (dots.fg == Fg.RAW).any()


def test_the_header_says_what_was_smoothed_folded_clipped_and_scaled():
    frame = render(story(), View(smoothing=0.9, log_y=True), 120, 24)
    assert frame.facts.smoothing == "ema 0.9"
    assert frame.facts.points_per_column == pytest.approx(600 / frame.plot.width)
    head = frame.lines()[0]
    for word in ("loss", "nats", "run-0", "run-1", "superseded", "ema 0.9", "log y", "per column"):
        assert word in head


# Words


def test_boundaries_carry_the_session_and_its_verdict_in_its_colour():
    frame = render(story(), View(), 120, 30)
    flags = frame.lines()[1]
    for word, fg in (("s2 exact", Fg.GOOD), ("s3 unproven", Fg.WARN), ("s1 killed", Fg.DEATH)):
        at = flags.index(word) + 3
        assert frame.fg[1, at] == fg


@given(
    st.lists(
        st.tuples(
            st.floats(0, 600),
            st.sampled_from(["boundary", "death", "gap"]),
            st.sampled_from(["s2 exact", "s11 diverged @401", "gap 3 h 12 m", "s1 killed"]),
        ),
        max_size=12,
    ),
    st.integers(24, 200),
)
@settings(max_examples=80, deadline=None)
def test_words_at_the_heads_of_lines_are_whole_and_apart(found, width):
    model = dataclasses.replace(story(1), lines=[VLine(*one) for one in found], marks=())
    frame = render(model, View(), width, 24)
    if not found:
        return
    whole = {one[2] for one in found} | {one[2].split(" ")[0] for one in found}
    rest = frame.lines()[1].strip()
    # Words stand two or more blanks apart, or touch nothing: cutting all whole ones out leaves blanks.
    for word in sorted(whole, key=len, reverse=True):
        rest = rest.replace(word, " " * len(word))
    assert not rest.strip()


@given(
    st.floats(0, 1e7),
    st.floats(1e-3, 1e7),
    st.integers(10, 200),
    st.sampled_from(["count", "seconds", "clock"]),
    st.one_of(st.none(), st.floats(0, 1)),
)
@settings(max_examples=150, deadline=None)
def test_labels_of_the_x_axis_are_whole_and_apart(x0, span, width, kind, cursor):
    from lineage_tui.plot.numbers import format_x, x_ticks

    x = np.linspace(x0, x0 + span, 50)
    model = ChartModel("m", [SeriesData("a", "a", x, x * 0 + 1)], x_kind=kind)
    at = None if cursor is None else x0 + span * cursor
    frame = render(model, View(cursor_x=at), width, 12)
    row = frame.lines()[-1]
    ticks = x_ticks((x[0], x[-1]), tick_target(frame.plot.width, kind), kind, room=frame.plot.width)
    allowed = {*ticks.labels, "step"} | ({format_x(at, kind)} if at is not None else set())
    rest = row
    for label in sorted(allowed, key=len, reverse=True):
        rest = rest.replace(label, " " * len(label))
    assert not rest.strip(), (row, allowed)


def test_the_last_values_stand_beside_the_ends_of_their_lines_and_apart():
    x = np.arange(100.0)
    series = [SeriesData(str(k), str(k), x, np.full(100, 1.0 + k * 1e-3), hue=k) for k in range(3)]
    series.append(SeriesData("far", "far", x, np.full(100, 9.0), hue=3))
    frame = render(ChartModel("m", series), View(focus=1), 80, 30)
    right = [
        line[frame.plot.x + frame.plot.width :].strip()
        for line in frame.lines()[frame.plot.y : frame.plot.y + frame.plot.height]
    ]
    assert sorted(word for word in right if word) == ["1", "1.001", "1.002", "9"]
    rows = {word: number for number, word in enumerate(right) if word}
    assert abs(rows["1.001"] - rows["1"]) in {1, 2}
    assert rows["9"] < rows["1"] - 10


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[31mred",
        "a\u202eb",
        "zero\u200bwidth",
        "日本語",
        "e\u0301e\u0301",
        "x" * 10_000,
        "\ud800",
        "tab\there\nand line",
        "[bold]markup[/]",
    ],
)
def test_names_of_strangers_stay_in_their_cells(hostile):
    x = np.arange(50.0)
    model = ChartModel(
        hostile,
        [SeriesData("a", hostile, x, x), SeriesData("b", "b" + hostile, x, -x, hue=1)],
        spans=[Span(5, 20, hostile)],
        lines=[VLine(10, "boundary", hostile)],
        x_label=hostile,
        y_unit=hostile,
        message=hostile,
    )
    for glyphs in GLYPH_NAMES:
        frame = render(model, View(cursor_x=3.0), 100, 24, glyphs=glyphs)
        for line in frame.lines():
            assert cell_len(line) == 100
            assert "\x1b" not in line
            assert line.isprintable()
            assert glyphs != "ascii" or line.isascii()
        assert all("\x1b" not in label for label, _ in frame.readout())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("日本語のラン名前", "日本語のラン名前"),
        ("\x1b[2Jred", "\\x1b[2Jred"),
        ("e\u0301te\u0301", "été"),
        ("日" * 30, "日" * 19 + "…"),
    ],
)
def test_a_name_in_the_legend_is_written_as_in_the_header_of_the_screen(name, shown):
    """Wide characters take two cells, what a terminal would obey is spelled out."""
    x = np.arange(50.0)
    model = ChartModel("loss", [SeriesData("a", name, x, x), SeriesData("b", "other", x, -x, hue=1)])
    frame = render(model, View(), 100, 24)
    head = frame.lines()[0]
    assert f" {shown}  " in head
    assert cell_len(head) == 100
    at = cell_len(head[: head.index("other")])
    assert "".join(map(chr, frame.chars[0, at : at + 5].tolist())) == "other"
    assert dict(frame.readout(3.0))[shown if len(name) < 30 else name] == "3"


def test_half_a_wide_character_is_never_left_on_the_grid():
    canvas = Canvas(8, 1)
    canvas.put(0, 0, "日本語x", Fg.TEXT)
    canvas.put(0, 1, "a", Fg.TEXT)
    canvas.put(0, 4, "b", Fg.TEXT)
    assert text_of(canvas.chars[0]) == " a本b x "


# Reading back


def test_columns_and_x_agree_with_each_other():
    frame = render(story(), View(x0=100.0, x1=400.0), 120, 30)
    for column in range(frame.plot.x, frame.plot.x + frame.plot.width):
        assert frame.column_of(frame.x_at(column)) == column
    assert frame.column_of(99.0) is None
    assert frame.column_of(400.0) == frame.plot.x + frame.plot.width - 1


def test_the_readout_names_x_and_the_nearest_sample_of_every_series():
    model = story()
    frame = render(model, View(cursor_x=220.4), 120, 30)
    assert [label for label, _ in frame.readout()] == ["step", "run-0", "run-1", "s1"]
    values = {one.label: one.number for one in frame.readings}
    assert values["run-0"] == model.series[0].y[219]
    assert values["s1"] == model.series[2].y[20]
    assert frame.readout()[0] == ("step", "220")
    far = render(model, View(cursor_x=500.0), 120, 30)
    assert [label for label, _ in far.readout()] == ["step", "run-0", "run-1"]


def test_the_readout_of_a_smoothed_chart_gives_both_values():
    model = story(1)
    frame = render(model, View(cursor_x=400.0, smoothing=0.9), 120, 30)
    reading = frame.readings[1]
    assert reading.raw == model.series[0].y[399]
    assert reading.number != reading.raw
    assert abs(reading.number - 2.0) < 0.1


def test_equal_frames_are_found_equal_and_others_not():
    one, same = render(story(), View(), 80, 24), render(story(), View(), 80, 24)
    assert one.same_as(same)
    assert not one.same_as(None)
    assert not one.same_as(render(story(), View(), 81, 24))
    assert not one.same_as(render(story(), View(cursor_x=5.0), 80, 24))


def test_the_name_of_a_phase_stands_where_its_colour_does():
    x = np.arange(1.0, 601)
    spans = [Span(start, start + 12, kind) for kind, start in (("eval", 100.0), ("eval", 300.0), ("checkpoint", 300.0))]
    frame = render(ChartModel("loss", [SeriesData("a", "a", x, x)], spans=spans), View(), 90, 24)
    row = next(line for line in frame.lines() if line.lstrip().startswith("phases"))
    at = [frame.column_of(start) for start in (100.0, 300.0)]
    assert row[at[0] :].startswith("eval")
    assert row[at[1] :].startswith("ckpt")
    assert row.count("eval") == 1


def test_a_cursor_that_moves_folds_no_curve_anew_and_whatever_else_changes_does(monkeypatch):
    from lineage_tui.plot import chart

    folded: list[str] = []
    curve = chart._curve
    monkeypatch.setattr(
        chart, "_curve", lambda scene, series, *a, **k: folded.append(series.key) or curve(scene, series, *a, **k)
    )
    model, view, memo = story(), View(smoothing=0.9), Memo()
    each = len(model.shown(view))
    for cursor_x in (None, 1.0, 250.0, 599.0):
        seen = view.but(cursor_x=cursor_x)
        frame, fresh = render(model, seen, 90, 24, memo=memo), render(model, seen, 90, 24)
        assert (frame.chars == fresh.chars).all()
        assert (frame.fg == fresh.fg).all()
    assert len(folded) == each * (1 + 4)  # once, and each time without a memo
    folded.clear()
    for other in (
        view.but(x1=300.0),
        view.but(log_y=True),
        view.but(focus=1),
        view.but(smoothing=0.5),
        view.but(clip=False),
    ):
        render(model, other, 90, 24, memo=memo)
    render(model, view, 91, 24, memo=memo)
    render(dataclasses.replace(model), view, 91, 24, memo=memo)
    assert len(folded) == each * 7


@given(st.integers(1, 3), st.floats(0, 0.99))
@settings(max_examples=20, deadline=None)
def test_a_memo_changes_the_speed_and_not_the_picture(num_series, smoothing):
    model = story(num_series)
    memo = Memo()
    for last in (200, 201, 420, 600):
        grown = dataclasses.replace(
            model, series=[dataclasses.replace(s, x=s.x[:last], y=s.y[:last]) for s in model.series]
        )
        view = View(smoothing=smoothing, cursor_x=150.0)
        assert render(grown, view, 90, 25, memo=memo).same_as(render(grown, view, 90, 25))
    changed = dataclasses.replace(model, series=[dataclasses.replace(s, y=s.y[::-1].copy()) for s in model.series])
    assert render(changed, View(smoothing=smoothing), 90, 25, memo=memo).same_as(
        render(changed, View(smoothing=smoothing), 90, 25)
    )
