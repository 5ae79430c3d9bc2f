"""What explain says where it found nothing: whether there is nothing, or nothing to tell it from."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lineage.history.changes import Curve
from lineage_tui.accounts import calm_words, looked_words


def curve(steps: range, bad: frozenset[int] = frozenset()) -> Curve:
    values = [math.nan if step in bad else 2.0 + 1 / step for step in steps]
    return Curve(np.array(steps, dtype=np.int64), np.array(values))


@pytest.mark.parametrize(
    ("found", "step", "words", "said"),
    [
        (None, 60, "never logged", "no loss was logged"),
        (curve(range(1, 101), frozenset(range(1, 101))), 60, "never logged", "no loss was logged"),
        (curve(range(50, 1_001, 50)), 120, "not logged near it", "the nearest value is that of step 100"),
        (curve(range(1, 21)), 10, "too few to tell", "20 values of loss: a jump is told from 24 or more"),
        (curve(range(1, 101)), 4, "too near the beginning", "there are 3 before it"),
        (curve(range(1, 101)), 98, "too near the end to tell", "there are 3 from it"),
        (curve(range(1, 101)), 50, "no jump", "loss is 2.02 here, and does not jump within 10 steps"),
        (curve(range(5, 501, 5)), 52, "no jump", "loss was not logged at this step"),
    ],
)
def test_no_jump_is_told_from_nothing_to_see_one_in(found: Curve | None, step: int, words: str, said: str) -> None:
    short, whole = calm_words(found, "loss", step)
    assert short == words
    assert said in whole
    assert len(short) <= 24  # the column has no more


def test_a_run_without_changes_says_in_what_none_was_found() -> None:
    assert looked_words({"loss": curve(range(1, 101)), "tokens_per_s": curve(range(1, 100))}) == (
        "no abrupt change in 100 values of loss and 99 values of tokens_per_s"
    )
    assert looked_words({"loss": curve(range(1, 101)), "steps_per_s": None}) == (
        "no abrupt change in 100 values of loss; 0 values of steps_per_s: a jump is told from 24 or more"
    )


@pytest.mark.parametrize(
    ("logged_every", "said"), [(1, "no jump"), (1_000, "never logged"), (100, "not logged near it")]
)
def test_the_screen_says_of_a_calm_step_what_it_knows(
    drive, run_dir, runs_dir, *, wait, text_of, logged_every, said
) -> None:
    lines = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "step" and event["step"] % logged_every:
            event["metrics"].pop("loss")
        lines.append(json.dumps(event))
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    async def script(app, pilot):
        app.open_explain(250)
        await wait(app, pilot, lambda: any(said in line for line in text_of(app)))
        assert not any("no jump to be seen" in line for line in text_of(app))

    drive(script, run_dir, runs_dir, (80, 24))
