"""Numbers for people, and where axes put them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineage_tui.plot.layers import tick_target
from lineage_tui.plot.numbers import (
    format_clock,
    format_duration,
    format_short,
    format_value,
    linear_ticks,
    log_ticks,
    x_ticks,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (52000.0, "52,000"),
        (2.42741, "2.4274"),
        (2.4e-4, "2.4e-4"),
        (0.0, "0"),
        (-0.001234567, "-0.0012346"),
        (1e-12, "1e-12"),
        (123456.789, "123,457"),
        (1e18, "1e18"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_values_read_as_people_write_them(value, text):
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.4274, "2.427"),
        (39_812.0, "39.8k"),
        (1e6, "1M"),
        (999_960.0, "1M"),
        (2.4e-4, "2.4e-4"),
        (1e15, "1e15"),
        (-0.0078125, "-7.8e-3"),
        (0.01444, "0.01444"),
        (-9.87e-123, "-1e-122"),
    ],
)
def test_margin_values_are_short(value, text):
    assert format_short(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_margin_values_take_seven_cells_at_most(value):
    assert len(format_short(value)) <= 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.5, "1.5 s"),
        (59.6, "1 m"),
        (45.0, "45 s"),
        (3 * 3600 + 12 * 60.0, "3 h 12 m"),
        (7200.0, "2 h"),
        (100_000.0, "1 d 3 h"),
        (-90.0, "-1 m 30 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert format_duration(seconds) == text


def test_clock_times_outside_of_every_calendar_do_not_fail():
    assert format_clock(1e300) == "1e300"
    assert format_clock(1_764_423_612.0) == "2025-11-29 13:40:12"
    assert format_clock(1_764_423_612.0, 3600.0, date=False) == "14:40:12"


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(1, 20))
def test_linear_ticks_are_inside_evenly_spaced_and_told_apart(low, span, target):
    ticks = linear_ticks(low, low + span, target)
    assert len(ticks.at) <= target + 2
    assert all(low - span * 1e-6 <= value <= low + span * (1 + 1e-6) for value in ticks.at)
    assert len(set(ticks.at)) == len(ticks.at)
    if span > abs(low) * 1e-9:
        assert len(set(ticks.labels)) == len(ticks.labels)


def test_ticks_are_one_two_and_five_times_powers_of_ten():
    assert linear_ticks(0, 10, 5).labels == ["0", "2", "4", "6", "8", "10"]
    assert linear_ticks(0, 100_000, 5).labels == ["0", "20k", "40k", "60k", "80k", "100k"]
    assert linear_ticks(0, 3.2e-4, 4).labels == ["0", "1e-4", "2e-4", "3e-4"]
    assert linear_ticks(2.0, 2.5, 5).labels == ["2.0", "2.1", "2.2", "2.3", "2.4", "2.5"]
    assert linear_ticks(-1, 1, 4).labels == ["-1.0", "-0.5", "0.0", "0.5", "1.0"]


def test_log_ticks_are_decades_where_there_are_some():
    assert log_ticks(0.3, 500, 5).labels == ["1", "10", "100"]
    assert log_ticks(1e-6, 1, 8).labels == ["1e-6", "1e-5", "1e-4", "0.001", "0.01", "0.1", "1"]
    assert log_ticks(1e-9, 1, 3).at == [1e-8, 1e-4, 1.0]


def test_log_ticks_in_less_than_two_decades_are_still_round():
    assert log_ticks(1.9, 9.8, 5).labels == ["2", "5"]
    assert log_ticks(2.1, 2.4, 5).labels


@given(st.floats(1e-30, 1e30), st.floats(1.0001, 1e20), st.integers(1, 12))
def test_log_ticks_stay_inside(low, factor, target):
    ticks = log_ticks(low, low * factor, target)
    assert all(low * (1 - 1e-6) <= value <= low * factor * (1 + 1e-6) for value in ticks.at)


def test_training_time_is_marked_in_minutes_and_hours():
    assert x_ticks((0, 3600), 4, "seconds").labels == ["0 s", "15 m", "30 m", "45 m", "1 h"]
    assert x_ticks((0, 86400 * 3), 4, "seconds").labels == ["0 s", "1 d", "2 d", "3 d"]


@pytest.mark.parametrize("room", [46, 52, 66, 104, 150])
@pytest.mark.parametrize("span_s", [7, 47, 100, 390, 599, 3_500, 7_300, 40_000, 90_000, 400_000, 9e6])
@pytest.mark.parametrize("kind", ["seconds", "clock"])
def test_a_time_axis_has_three_to_eight_ticks_from_46_cells_on(kind, span_s, room):
    start = 0.0 if kind == "seconds" else 1_764_423_612.0
    found = x_ticks((start, start + span_s), tick_target(room, kind), kind, room=room)
    assert 3 <= len(found.at) <= 8
    cells = [(value - start) / span_s * room for value in found.at]
    assert min(right - left for left, right in pairwise(cells)) > max(map(len, found.labels)) * 0.9


def test_a_logarithmic_axis_writes_thousands_as_a_linear_one_does():
    assert log_ticks(1, 2e4, 8).labels == ["1", "10", "100", "1,000", "10k"]
    assert linear_ticks(0, 3_000, 3).labels == ["0", "1,000", "2,000", "3,000"]


def test_wall_time_is_marked_by_the_clock_and_by_the_date_at_midnight():
    start = 1_764_423_612.0  # 13:40:12 UTC
    assert x_ticks((start, start + 4 * 3600), 5, "clock").labels == ["14:00", "15:00", "16:00", "17:00"]
    assert "30 Nov" in x_ticks((start, start + 86400), 5, "clock").labels
    assert x_ticks((start, start + 4 * 3600), 5, "clock", utc_offset_s=1800).labels[0] == "15:00"


@example(low=-62135596801.0, span=1.0, kind="clock", log=False)  # a second before the first date there is
@example(low=-62135596801.0, span=1e3, kind="clock", log=False)
@given(st.floats(-1e15, 1e15), st.floats(1e-6, 1e15), st.sampled_from(["count", "seconds", "clock"]), st.booleans())
def test_no_window_of_x_is_too_odd_for_ticks(low, span, kind, log):
    ticks = x_ticks((low, low + span), 6, kind, log=log)
    if not log and abs(low) < 1e8 and 1e-3 < span < 1e8:
        assert len(set(ticks.labels)) == len(ticks.labels)


def test_a_close_look_at_a_late_time_tells_its_ticks_apart():
    assert x_ticks((11_540, 11_580), 4, "seconds").labels == ["3:12:20", "3:12:30", "3:12:40", "3:12:50", "3:13:00"]
    assert x_ticks((600.0, 601.0), 5, "seconds").labels[:2] == ["10:00.0", "10:00.2"]
    assert x_ticks((0.0, 1.0), 5, "clock").labels[:2] == ["00:00:00.0", "00:00:00.2"]
