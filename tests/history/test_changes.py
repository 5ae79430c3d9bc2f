"""Abrupt changes of curves: the planted one is found, and in plain noise none is invented."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest

from lineage.history.changes import SLOW_WINDOWS, Curve, Shift, find_shifts

Floats = npt.NDArray[np.float64]
Z0 = np.float64


def loss_curve(rows: int, seed: int, noise: str = "white", level: float = 0.03) -> Floats:
    """A loss as it falls in training, with one of several kinds of noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    smooth = 1.5 + 8.0 * np.exp(-t / (rows / 60)) + 2.0 * np.exp(-t / (rows / 4))
    white = rng.normal(size=rows)
    if noise == "correlated":
        for i in range(1, rows):
            white[i] = 0.7 * white[i - 1] + 0.71 * white[i]
    elif noise == "heavy":
        white = rng.standard_t(6, size=rows) / np.sqrt(1.5)
    elif noise == "growing":
        white *= 0.2 + 3 * t / rows
    elif noise == "uneven":
        white *= np.where((t // 500) % 2, 2.0, 0.5)
    return smooth * (1 + level * white)


NOISES = ("white", "correlated", "heavy", "growing", "uneven")


def shifts(value: Floats, **options: object) -> list[Shift]:
    return find_shifts(Curve(np.arange(1, len(value) + 1), value), **options)  # type: ignore[arg-type]  # test options


PLANTED = [
    # seed, rows, where, factor, how long (0: for good), noise
    (0, 2_000, 1_000, 1.35, 0, "white"),
    (1, 2_000, 400, 1.5, 60, "white"),
    (2, 600, 300, 1.3, 0, "white"),
    (3, 600, 420, 1.6, 25, "correlated"),
    (4, 20_000, 15_000, 1.25, 0, "correlated"),
    (5, 20_000, 3_000, 0.75, 0, "white"),
    (6, 5_000, 2_500, 1.4, 0, "heavy"),
    (7, 5_000, 4_000, 2.0, 12, "growing"),
    (8, 10_000, 9_900, 1.4, 0, "white"),
    (9, 10_000, 5_000, 3.0, 1, "heavy"),
]


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_planted_jump_is_found_where_it_is_and_nothing_else(planted: tuple[int, int, int, float, int, str]) -> None:
    seed, rows, where, factor, lasts, noise = planted
    value = loss_curve(rows, seed, noise)
    value[where : where + lasts if lasts else None] *= factor
    found = shifts(value)
    onsets = [s for s in found if abs(s.step - (where + 1)) <= 3]
    assert len(onsets) == 1
    assert onsets[0].kind == ("spike" if lasts == 1 else "jump" if factor > 1 else "drop")
    ends = [s for s in found if lasts > 1 and abs(s.step - (where + 1 + lasts)) <= 3]  # a jump that ends abruptly
    assert len(found) == len(onsets) + len(ends)
    assert onsets[0].after / onsets[0].before == pytest.approx(factor, rel=0.25)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("noise", NOISES)
def test_none_is_invented_in_clean_noise(seed: int, noise: str) -> None:
    rows = (300, 1_000, 5_000, 20_000)[seed % 4]
    assert shifts(loss_curve(rows, 100 + seed, noise)) == []


@pytest.mark.parametrize("seed", range(10))
def test_none_is_invented_where_a_session_began_without_a_jump(seed: int) -> None:
    assert shifts(loss_curve(2_000, 200 + seed, NOISES[seed % 5]), known=[401, 901, 1401]) == []


@pytest.mark.parametrize("seed", range(10))
def test_at_a_known_step_a_smaller_jump_is_believed(seed: int) -> None:
    value = loss_curve(2_000, 300 + seed)
    value[1_000:] *= 1.08
    assert [s.step for s in shifts(value, known=[501, 1001])] == [1001]


@pytest.mark.parametrize("seed", range(10))
def test_throughput_falls_are_found_and_jitter_is_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate = 5e4 * np.exp(0.05 * rng.standard_t(5, size=3_000))
    rate[rng.integers(0, 3_000, size=60)] *= rng.uniform(0.05, 0.7, size=60)  # slow steps, here and there
    options = {"min_ratio": 0.25, "spikes": False, "windows": SLOW_WINDOWS}
    assert shifts(rate, **options) == []
    rate[1_500:] *= 0.6
    (found,) = shifts(rate, **options)
    assert found.kind == "drop"
    assert abs(found.step - 1_501) <= 3


def test_a_curve_without_noise_has_no_jumps_but_real_ones() -> None:
    smooth = 1.0 + 3.0 * np.exp(-np.arange(2_000) / 300)
    assert shifts(smooth) == []
    kinked = np.concatenate((np.linspace(3, 2, 500), np.linspace(2, 1.9, 500)))
    assert shifts(kinked) == []
    smooth[1_000:] += 0.3
    assert [s.step for s in shifts(smooth)] == [1_001]
    assert shifts(np.full(500, 2.0)) == []


def test_values_that_are_no_numbers_are_a_change_each_stretch_once() -> None:
    value = loss_curve(1_000, 1)
    value[500:520] = np.nan
    value[525] = np.inf
    value[800] = -np.inf
    found = shifts(value)
    assert [(s.step, s.kind, s.num_rows) for s in found] == [(501, "non_finite", 21), (801, "non_finite", 1)]


def test_losses_below_zero_and_single_values_are_ordinary() -> None:
    rng = np.random.default_rng(5)
    value = np.linspace(1, -3, 2_000) + rng.normal(size=2_000) * 0.05
    assert shifts(value) == []
    value[1_000:] += 0.6
    assert [abs(s.step - 1_001) <= 2 for s in shifts(value)] == [True]
    for rows in (0, 1, 2, 23, 24, 30):
        assert shifts(np.ones(rows)) == []


def test_steps_logged_at_intervals_keep_their_numbers() -> None:
    value = loss_curve(1_000, 3)
    value[500:] *= 1.5
    found = find_shifts(Curve(np.arange(10, 10_001, 10), value))
    assert [abs(s.step - 5_010) <= 20 for s in found] == [True]


def test_a_million_rows_take_less_than_three_seconds() -> None:
    value = loss_curve(1_000_000, 11, "white")
    value[700_000:] *= 1.3
    started = time.process_time()
    found = shifts(value)
    took = time.process_time() - started
    assert [abs(s.step - 700_001) <= 3 for s in found] == [True]
    assert took < 3.0
