"""Alerts in training: said once, when it is so, and not in noise."""

from __future__ import annotations

import math
import random

import pytest

from lineage.history.alerts import CHECK_AT, Alert, LossJump, follows_expectation, unexpected_rates


def noisy(level: float, count: int, seed: int, noise: float = 0.03) -> list[float]:
    rng = random.Random(seed)
    return [level * (1 + noise * rng.gauss(0, 1)) for _ in range(count)]


def feed(detector: LossJump, losses: list[float], first: int = 401) -> list[Alert]:
    found = [detector.feed(first + i, loss) for i, loss in enumerate(losses)]
    return [alert for alert in found if alert is not None]


@pytest.mark.parametrize("seed", range(20))
def test_a_jump_is_said_once_with_both_levels(seed: int) -> None:
    (alert,) = feed(LossJump(noisy(2.0, 40, seed)), noisy(2.6, 50, seed + 1))
    assert alert.code == "loss_jump"
    assert alert.details["step"] in {400 + n for n in CHECK_AT}
    assert alert.details["before"] == pytest.approx(2.0, rel=0.05)
    assert alert.details["after"] == pytest.approx(2.6, rel=0.05)


def test_no_jump_is_said_in_a_thousand_clean_resumes() -> None:
    alerts = [a for seed in range(1_000) for a in feed(LossJump(noisy(2.0, 40, seed)), noisy(2.0, 40, seed + 10_000))]
    assert alerts == []


def test_a_loss_that_falls_further_is_no_alert() -> None:
    assert feed(LossJump(noisy(2.0, 40, 1)), noisy(1.2, 40, 2)) == []


def test_with_too_little_before_nothing_is_claimed() -> None:
    detector = LossJump(noisy(2.0, 7, 1))
    assert detector.is_done
    assert feed(detector, noisy(20.0, 40, 2)) == []
    assert LossJump([]).is_done


def test_after_the_last_look_the_detector_is_done() -> None:
    detector = LossJump(noisy(2.0, 40, 1))
    feed(detector, noisy(2.0, CHECK_AT[-1], 2))
    assert detector.is_done


def test_losses_below_zero_and_nonfinite_ones_are_taken_as_they_are() -> None:
    before = [-1.0 + 0.01 * math.sin(i) for i in range(40)]
    (alert,) = feed(LossJump(before), [math.nan, *([-0.5] * 8)])
    assert alert.details["after"] == pytest.approx(-0.5)
    assert feed(LossJump([*noisy(2.0, 40, 1), math.nan]), [math.inf] * 8) == []


def test_rates_as_expected_are_no_alert_and_others_name_group_and_both_values() -> None:
    expected = {"adamw": [1e-3, 1e-4]}
    assert unexpected_rates(expected, {"adamw": [1e-3, 1e-4], "muon": [3.0]}, step=401) is None
    alert = unexpected_rates(expected, {"adamw": [1e-3, 5e-4]}, step=401)
    assert alert is not None
    assert alert.code == "lr_unexpected"
    assert alert.details["groups"] == [{"group": "adamw[1]", "expected": 1e-4, "taken": 5e-4}]
    assert "0.0005" in alert.message


def test_whether_expectations_hold_is_not_known_without_a_common_optimizer() -> None:
    assert follows_expectation({"a": [1.0]}, {"a": [1.0]}) is True
    assert follows_expectation({"a": [1.0]}, {"a": [2.0]}) is False
    assert follows_expectation({"a": [1.0]}, {"b": [1.0]}) is None
