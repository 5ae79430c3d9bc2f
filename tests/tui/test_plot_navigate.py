"""Moving about in a chart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_tui.plot import ChartModel, Mark, SeriesData, View, VLine
from lineage_tui.plot.navigate import (
    focused,
    nearest_sample,
    next_line,
    next_mark,
    next_sample,
    panned,
    shown_around,
    x_extent,
    x_window,
    zoomed,
)

X = np.array([1.0, 2.0, 4.0, 8.0, 100.0])
MODEL = ChartModel(
    "loss",
    [SeriesData("a", "a", X, X), SeriesData("b", "b", X + 1, X), SeriesData("d", "d", X[:2], X[:2], dimmed=True)],
    lines=[VLine(10, "boundary", "s2"), VLine(60, "death", "s2")],
    marks=[Mark(20, "note"), Mark(20, "alert"), Mark(70, "note")],
)


def test_the_window_follows_the_data_until_it_is_set():
    assert x_window(MODEL, View()) == (1.0, 101.0, False)
    assert x_window(MODEL, View(x0=5.0)) == (5.0, 101.0, False)
    assert x_window(MODEL, View(x0=50.0, x1=5.0))[:2] == (5.0, 50.0)
    assert x_window(MODEL, View(log_x=True))[2]


def test_a_restart_from_nothing_has_its_boundary_in_the_picture_and_no_boundary_stretches_it():
    def ends(x, view=View(), kind="boundary"):  # noqa: B008
        model = ChartModel("loss", MODEL.series, lines=[VLine(x, kind, "s2 diverged @1")])
        return x_extent(model, view)

    assert ends(0.0) == (0.0, 101.0)
    assert ends(-50.0) == (1.0, 101.0)
    assert ends(0.0, View(log_x=True)) == (1.0, 101.0)
    assert ends(0.0, kind="death") == (1.0, 101.0)


@given(st.floats(0.05, 20), st.floats(1, 101))
def test_zooming_keeps_the_place_under_the_pointer(factor, at):
    start = View(x0=20.0, x1=80.0)
    view = zoomed(MODEL, start, factor, at)
    x0, x1, _ = x_window(MODEL, view)
    full0, full1 = x_extent(MODEL, view)
    assert full0 <= x0 < x1 <= full1
    at = min(max(at, 20.0), 80.0)
    if x0 > full0 and x1 < full1:
        assert (at - x0) / (x1 - x0) == pytest.approx((at - 20) / 60, abs=1e-6)


def test_zooming_out_all_the_way_follows_the_data_again():
    assert zoomed(MODEL, View(x0=20.0, x1=80.0), 1000.0) == View()


def test_zooming_in_without_end_stops_before_doubles_do():
    view = View()
    for _ in range(500):
        view = zoomed(MODEL, view, 0.5, 50.0)
    x0, x1, _ = x_window(MODEL, view)
    assert x0 < x1


@given(st.floats(-3, 3))
def test_panning_keeps_the_width_and_stays_with_the_data(share):
    view = panned(MODEL, View(x0=40.0, x1=60.0), share)
    x0, x1, _ = x_window(MODEL, view)
    assert x1 - x0 == pytest.approx(20)
    assert x0 >= 1 - 1e-9
    assert x1 <= 101 + 1e-9


def test_panning_a_whole_view_does_nothing():
    assert panned(MODEL, View(), 0.5) == View()


def test_zoom_and_pan_are_even_in_logarithms_on_a_logarithmic_axis():
    view = zoomed(MODEL, View(log_x=True), 0.5, 10.0)
    x0, x1, _ = x_window(MODEL, view)
    assert x1 / 10 == pytest.approx((101 / 10) ** 0.5)
    assert 10 / x0 == pytest.approx((10 / 1) ** 0.5)


def test_samples_events_and_sessions_are_walked_in_both_directions():
    assert next_sample(MODEL, View(), 3.0, 1) == 4.0
    assert next_sample(MODEL, View(), 4.0, 1) == 8.0
    assert next_sample(MODEL, View(), 4.0, -1) == 2.0
    assert next_sample(MODEL, View(), 100.0, 1) == 100.0
    assert next_mark(MODEL, 0.0, 1).x == 20
    assert next_mark(MODEL, 20.0, 1).x == 70
    assert next_mark(MODEL, 20.0, -1) is None
    assert next_line(MODEL, 30.0, 1).kind == "death"
    assert next_line(MODEL, 30.0, -1).kind == "boundary"


def test_the_focus_goes_round_the_bright_series():
    assert [focused(MODEL, View(focus=number)).key for number in range(4)] == ["a", "b", "a", "b"]
    assert focused(ChartModel("m"), View()) is None


@given(st.floats(-10, 200))
def test_the_nearest_sample_is_the_nearest(x):
    index = nearest_sample(MODEL.series[0], x)
    assert abs(X[index] - x) == np.abs(X - x).min()


def test_a_place_outside_is_brought_into_view_at_the_same_zoom():
    view = shown_around(MODEL, View(x0=10.0, x1=20.0), 70.0)
    x0, x1, _ = x_window(MODEL, view)
    assert x0 <= 70 <= x1
    assert x1 - x0 == pytest.approx(10)
    assert shown_around(MODEL, View(x0=10.0, x1=20.0), 15.0) == View(x0=10.0, x1=20.0)
