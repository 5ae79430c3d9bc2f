"""The rasteriser on arrays: nothing that was measured goes missing, and nothing is drawn that was not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lineage_tui.plot import ChartModel, SeriesData, View, render
from lineage_tui.plot.fold import PYRAMID_FROM, Memo, fold, interval
from lineage_tui.plot.pyramid import BLOCK, Pyramid
from lineage_tui.plot.raster import GLYPHS, assign, dotted, paint, row_of, rows
from lineage_tui.plot.smooth import CHUNK, EmaState, ema

finite = st.floats(-1e6, 1e6, allow_nan=False, width=32)
sample = st.one_of(finite, st.sampled_from([np.nan, np.inf, -np.inf]))


@st.composite
def lines(draw, values=sample, least=1):
    y = np.array(draw(st.lists(values, min_size=least, max_size=60)), dtype=np.float64)
    steps = draw(st.lists(st.integers(0, 5), min_size=y.size, max_size=y.size))
    return np.cumsum(steps).astype(np.float64), y


def covered(x, y, num_columns, num_rows, *, y0=-1e6, y1=1e6, breaks=None):
    edges = np.linspace(x[0], max(x[-1], x[0] + 1), num_columns + 1)
    folded = fold(x, y, edges, breaks)
    lo, hi = interval(folded, x, y, edges)
    return folded, edges, rows(lo, hi, y0, y1, num_rows)


def column_of(edges, x):
    return np.minimum(np.searchsorted(edges, x, side="right") - 1, edges.size - 2)


def dots_of(chars, glyphs):
    """The dots of a grid of braille characters, as booleans: dot rows x dot columns."""
    bits = {int(code): number for number, code in enumerate(glyphs.table.tolist())}
    grid = np.zeros((chars.shape[0] * glyphs.dots_y, chars.shape[1] * glyphs.dots_x), dtype=bool)
    for row in range(chars.shape[0]):
        for column in range(chars.shape[1]):
            code = bits.get(int(chars[row, column]), 0)
            for dot_column, table in enumerate(glyphs.runs):
                for dot_row in range(glyphs.dots_y):
                    if code & int(table[dot_row, dot_row + 1]):
                        grid[row * glyphs.dots_y + dot_row, column * glyphs.dots_x + dot_column] = True
    return grid


@given(lines(), st.integers(1, 40), st.integers(1, 30))
def test_the_dot_of_every_finite_sample_is_set(line, num_columns, num_rows):
    x, y = line
    _, edges, found = covered(x, y, num_columns, num_rows)
    good = np.isfinite(y)
    columns = column_of(edges, x[good])
    at = row_of(y[good], -1e6, 1e6, num_rows)
    assert (found.top[columns] <= at).all()
    assert (found.bottom[columns] >= at).all()


@given(lines(values=finite, least=2), st.integers(1, 40), st.integers(1, 30))
def test_a_line_without_gaps_covers_touching_rows_from_column_to_column(line, num_columns, num_rows):
    x, y = line
    _, edges, found = covered(x, y, num_columns, num_rows)
    last = int(column_of(edges, x[-1:])[0])
    drawn = found.bottom >= found.top
    assert drawn[: last + 1].all()
    assert not drawn[last + 1 :].any()
    top, bottom = found.top[: last + 1], found.bottom[: last + 1]
    assert (top[1:] <= bottom[:-1] + 1).all()
    assert (bottom[1:] >= top[:-1] - 1).all()


@given(lines(values=finite, least=2), st.integers(1, 40))
def test_a_column_covers_nothing_the_line_does_not_reach(line, num_columns):
    x, y = line
    folded, edges, _ = covered(x, y, num_columns, 10)
    lo, hi = interval(folded, x, y, edges)
    for column in range(num_columns):
        left, right = edges[column], edges[column + 1]
        inside = y[(x >= left) & ((x < right) | ((column == num_columns - 1) & (x <= right)))]
        # A line through samples of one x is vertical there; np.interp would take either end of it.
        ends = [np.interp(edge, x, y) for edge in (left, right) if x[0] < edge <= x[-1] and not np.isin(edge, x)]
        touching = y[np.isin(x, (left, right))]
        values = np.concatenate((inside, ends, touching))
        if np.isnan(lo[column]):
            assert not inside.size
            continue
        slack = 1e-6 * max(np.abs(y).max(), 1.0)
        assert lo[column] >= values.min() - slack
        assert hi[column] <= values.max() + slack


@given(lines(values=finite, least=2), lines(values=finite, least=2), st.integers(8, 40))
def test_no_dot_lies_between_both_sides_of_a_nonfinite_sample(left, right, num_columns):
    xa, ya = left
    xb, yb = right
    gap = xa[-1] + 50
    x = np.concatenate((xa, [gap], xb + gap + 50))
    y = np.concatenate((ya, [np.nan], yb))
    folded, edges, found = covered(x, y, num_columns, 20)
    drawn = found.bottom >= found.top
    first, last = column_of(edges, np.array([xa[-1], xb[0] + gap + 50]))
    assert not drawn[first + 1 : last].any()
    assert folded.bad.tolist() == [int(column_of(edges, np.array([gap]))[0])]


def test_a_break_parts_the_line_without_a_mark():
    x, y = np.array([0.0, 1.0, 9.0, 10.0]), np.ones(4)
    folded, _, found = covered(x, y, 20, 10, y0=0.0, y1=2.0, breaks=np.array([2]))
    drawn = found.bottom >= found.top
    assert drawn[:3].all()
    assert not drawn[4:17].any()
    assert drawn[18:].all()
    assert not folded.bad.size


@given(
    st.lists(sample, min_size=1, max_size=700).map(np.array),
    st.lists(st.integers(0, 700), max_size=6),
    st.lists(st.integers(0, 700), min_size=2, max_size=20),
)
def test_the_pyramid_knows_the_extremes_of_every_stretch_however_it_grew(y, growth, ends):
    pyramid = Pyramid()
    for size in sorted(min(size, y.size) for size in growth):
        pyramid.extend(y[:size])
    pyramid.extend(y)
    index = np.array(sorted(min(end, y.size) for end in ends))
    lo, hi = pyramid.extremes(y, index[:-1], index[1:])
    for start, stop, low, high in zip(index[:-1], index[1:], lo, hi, strict=True):
        part = y[start:stop][np.isfinite(y[start:stop])]
        expected = [part.min(), part.max()] if part.size else [np.nan] * 2
        assert np.array_equal([low, high], expected, equal_nan=True)
        assert np.array_equal(pyramid.extreme(y, int(start), int(stop)), expected, equal_nan=True)
    assert pyramid.bad.tolist() == np.flatnonzero(~np.isfinite(y)).tolist()


def test_a_pyramid_takes_less_than_a_tenth_of_the_data():
    y = np.random.default_rng(0).normal(size=1_000_000)
    pyramid = Pyramid()
    pyramid.extend(y)
    assert pyramid.nbytes < 0.09 * y.nbytes
    assert len(pyramid._levels) > 5
    assert pyramid._levels[0][0].size == y.size // BLOCK


def test_folding_with_and_without_a_pyramid_gives_the_same_columns():
    rng = np.random.default_rng(3)
    n = PYRAMID_FROM * 3
    x = np.cumsum(rng.uniform(0, 2, n))
    y = rng.normal(size=n)
    y[rng.integers(0, n, 40)] = np.nan
    pyramid = Pyramid()
    pyramid.extend(y)
    for low, high in ((x[0], x[-1]), (x[n // 7], x[n // 2 + 9]), (x[5], x[PYRAMID_FROM + 70])):
        edges = np.linspace(low, high, 333)
        plain, fast = fold(x, y, edges), fold(x, y, edges, pyramid=pyramid)
        assert np.array_equal(plain.lo, fast.lo, equal_nan=True)
        assert np.array_equal(plain.hi, fast.hi, equal_nan=True)
        assert np.array_equal(plain.bad, fast.bad)


@given(
    st.lists(sample, max_size=120).map(lambda values: np.array(values, dtype=np.float64)),
    st.floats(0.01, 0.999),
    st.integers(0, 120),
)
@example(np.ones(50), 0.9, 20)
def test_the_smoothed_values_are_the_debiased_mean_however_they_arrive(y, weight, cut):
    expected, biased, count = [], 0.0, 0
    for value in y.tolist():
        if np.isfinite(value):
            count += 1
            biased = weight * biased + (1 - weight) * value
            expected.append(biased / (1 - weight**count))
        else:
            expected.append(value)
    first, state = ema(y[:cut], weight)
    second, state = ema(y[cut:], weight, state)
    found = np.concatenate((first, second))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert state.count == count


def test_a_constant_stays_what_it_is_from_the_first_sample_on():
    smoothed, _ = ema(np.full(1000, 3.5), 0.99)
    np.testing.assert_allclose(smoothed, 3.5, rtol=1e-12)


def test_long_series_are_smoothed_in_pieces_without_seams():
    y = np.random.default_rng(1).normal(size=CHUNK + 1000)
    whole, _ = ema(y, 0.99)
    state = EmaState()
    parts = []
    for start in range(0, y.size, 100_003):
        part, state = ema(y[start : start + 100_003], 0.99, state)
        parts.append(part)
    np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-9)


@pytest.mark.parametrize("glyphs", ["braille", "blocks", "ascii"])
@given(st.data())
@settings(max_examples=40)
def test_painted_cells_hold_exactly_the_dots_of_the_intervals(glyphs, data):
    shape = GLYPHS[glyphs]
    width, height = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    num_rows = height * shape.dots_y
    ends = st.tuples(st.integers(0, num_rows - 1), st.integers(-1, num_rows - 1))
    pairs = data.draw(st.lists(ends, min_size=width * shape.dots_x, max_size=width * shape.dots_x))
    top = np.array([pair[0] for pair in pairs])
    bottom = np.array([pair[1] for pair in pairs])
    none = np.zeros(top.size, dtype=bool)
    bits = paint(_rows(top, bottom, none), shape, width, height)
    for column in range(top.size):
        for row in range(num_rows):
            table = shape.runs[column % shape.dots_x]
            bit = int(table[row % shape.dots_y, row % shape.dots_y + 1])
            on = bool(bits[row // shape.dots_y, column // shape.dots_x] & bit)
            assert on == (top[column] <= row <= bottom[column])


def _rows(top, bottom, none):
    from lineage_tui.plot.raster import Rows

    return Rows(top, bottom, none, none)


def test_blank_cells_are_spaces_and_not_empty_braille():
    frame = render(ChartModel("loss", [SeriesData("a", "a", np.arange(3.0), np.ones(3))]), View(), 40, 12)
    assert chr(0x2800) not in frame.text()


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.integers(2, 5), st.integers(0, 1))
def test_a_cell_is_never_shared_and_always_goes_to_one_who_wants_it(wants, num_layers, with_front):
    rng = np.random.default_rng(len(wants) * 7 + num_layers)
    layers = [rng.integers(0, 2, (3, len(wants))).astype(np.uint8) * (1 + k) for k in range(num_layers)]
    owner = assign(layers, 0 if with_front else None)
    stacked = np.stack([layer != 0 for layer in layers])
    anyone = stacked.any(axis=0)
    assert ((owner >= 0) == anyone).all()
    rows_, columns = np.nonzero(anyone)
    assert stacked[owner[rows_, columns], rows_, columns].all()


@pytest.mark.parametrize("front", [None, 1])
def test_lines_on_top_of_each_other_alternate_in_dashes_of_two_cells(front):
    layers = [np.ones((1, 24), dtype=np.uint8) for _ in range(3)]
    owner = assign(layers, front)[0]
    assert {0, 1, 2} == set(owner.tolist())
    changes = np.flatnonzero(np.diff(owner)) + 1
    assert (changes % 2 == 0).all()
    if front is not None:
        assert (owner == front).sum() == 12


@given(st.integers(0, 199), st.integers(0, 63), st.integers(2, 64))
def test_a_dotted_line_still_shows_a_spike_in_any_column(column, top, height):
    top_rows = np.full(200, 63)
    top_rows[column] = min(top, 61)
    bottom_rows = np.full(200, 63)
    none = np.zeros(200, dtype=bool)
    found = dotted(_rows(top_rows, bottom_rows, none))
    assert found.bottom[column] >= found.top[column]
    assert (found.bottom[0::2] >= found.top[0::2]).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.99])
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("n", [50, 3_000, PYRAMID_FROM * 2])
def test_a_spike_of_one_step_is_visible_at_every_zoom(n, clip, smoothing):
    rng = np.random.default_rng(n)
    x = np.arange(1.0, n + 1)
    y = 1 + 0.01 * rng.normal(size=n)
    spike = n * 2 // 3
    y[spike] = 50.0
    model = ChartModel("loss", [SeriesData("loss", "loss", x, y)])
    memo = Memo()
    half = n / 2
    while half > 2:
        view = View(max(x[0], x[spike] - half), min(x[-1], x[spike] + half), clip=clip, smoothing=smoothing)
        frame = render(model, view, 80, 24, memo=memo)
        column = frame.column_of(x[spike])
        top = frame.plot.y
        upper = slice(top, top + frame.plot.height // 2)
        if smoothing:
            assert frame.bg[upper, column].any() or (frame.chars[top, column] == ord("▲"))
        else:
            drawn = dots_of(frame.chars[upper, column : column + 1], GLYPHS["braille"])
            assert drawn.any() or frame.chars[top, column] == ord("▲")
        half /= 3


def test_what_is_clipped_is_marked_where_it_is_and_unclipping_shows_it():
    x = np.arange(1.0, 2001)
    y = np.sin(x / 50)
    y[700], y[1400] = 900.0, -900.0
    model = ChartModel("loss", [SeriesData("loss", "loss", x, y)])
    frame = render(model, View(), 100, 30)
    assert frame.chars[frame.plot.y, frame.column_of(701.0)] == ord("▲")
    assert frame.chars[frame.plot.y + frame.plot.height - 1, frame.column_of(1401.0)] == ord("▼")
    assert frame.window.y1 < 10
    assert frame.facts.num_clipped == 2
    assert "clipped" in frame.lines()[0]
    full = render(model, View(clip=False), 100, 30)
    assert full.window.y1 > 900
    assert full.facts.num_clipped == 0


def test_the_plot_package_loads_neither_a_terminal_library_nor_torch():
    code = "import sys, lineage_tui.plot\nsys.exit(bool({'textual', 'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
