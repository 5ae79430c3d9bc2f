"""Interrupted equals uninterrupted, to the last bit, each session in a fresh process (CHECKPOINTS section 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SETUPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two-workers": {"workers": 2},
    "stateful-loader": {"loader": "stateful"},
    "stateful-loader-two-workers": {"loader": "stateful", "workers": 2},
    "own-loader": {"loader": "own"},
    "fixed-batch": {"fixed": True},
}

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory, sessions: Any) -> dict[str, Results]:
    """The uninterrupted control, and three sessions: stop after 7 (saved at 5), after 10 (saved at 9), end at 12."""
    root: Path = tmp_path_factory.mktemp("equivalence")

    def configs(**common: Any) -> list[dict[str, Any]]:
        return [
            {"run_dir": str(root / ("control" if "control" in common else "broken") / name), **common, **setup}
            for name, setup in SETUPS.items()
        ]

    control = sessions(configs(control=True, until=12))
    first = sessions(configs(until=7, save_at=[5])).results()
    second = sessions(configs(until=10, save_at=[9], session=2, resume=True)).results()
    third = sessions(configs(until=12, session=3, resume=True)).results()
    return {
        name: dict(zip(SETUPS, found, strict=True))
        for name, found in (
            ("control", control.results()),
            ("first", first),
            ("second", second),
            ("third", third),
        )
    }


@pytest.mark.parametrize("setup", SETUPS)
def test_a_run_stopped_twice_ends_as_the_uninterrupted_one(setup: str, stories: dict[str, Results]) -> None:
    """Stop two steps after a checkpoint, resume in a new process, stop again, resume the resume."""
    control, first, second, third = (stories[name][setup] for name in ("control", "first", "second", "third"))
    assert control["finite"]
    assert first["trace"] == {k: v for k, v in control["trace"].items() if int(k) <= 7}
    assert second["trace"] == {k: v for k, v in control["trace"].items() if 5 < int(k) <= 10}
    assert third["trace"] == {k: v for k, v in control["trace"].items() if int(k) > 9}
    for key in ("state", "counters", "next_draws", "next_batches"):
        assert third[key] == control[key], key


@pytest.mark.parametrize("setup", SETUPS)
def test_a_restore_proves_what_comes_next(setup: str, stories: dict[str, Results]) -> None:
    for session in ("second", "third"):
        assert stories[session][setup]["proven"] == ["learning rate", "loader", "rng"]


@pytest.mark.parametrize("setup", SETUPS)
def test_the_scaler_really_skips_before_and_after_the_checkpoint(setup: str, stories: dict[str, Results]) -> None:
    """Otherwise the equivalence would say nothing about skipped steps."""
    skipped = [int(step) for step, did in stories["control"][setup]["trace"].items() if did["skipped"]]
    assert any(step <= 5 for step in skipped), skipped
    assert any(step > 5 for step in skipped), skipped


def test_saving_does_not_move_the_training(tmp_path: Path, sessions: Any) -> None:
    """A loader whose `state_dict` builds an iterator draws from the global generator; no step may feel it."""
    kinds: tuple[dict[str, Any], ...] = ({"loader": "stateful"}, {"workers": 2}, {"loader": "own"})
    plain = sessions([{"run_dir": str(tmp_path / f"a{i}"), "until": 4, **kind} for i, kind in enumerate(kinds)])
    saving = sessions(
        [
            {"run_dir": str(tmp_path / f"b{i}"), "until": 4, "save_at": [1, 2, 3, 4], **kind}
            for i, kind in enumerate(kinds)
        ]
    )
    assert saving.results() == plain.results()
