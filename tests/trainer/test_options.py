"""What `lineage.init` is handed by mistake is refused before anything is made, all of it at once."""

import numpy as np
import pytest

import lineage
from lineage.errors import UsageError


@pytest.mark.parametrize(
    "options",
    [
        {"name": 3},
        {"notes": None},
        {"tags": ["a", 3]},
        {"allow": [None]},
        {"keep": 0},
        {"keep": "3"},
        {"keep_every": -1},
        {"accumulation": 0},
        {"log_every": 0},
        {"log_every": 2.5},
        {"witness_steps": -1},
        {"log_every": True},
        {"witness_steps": None},
        {"sync_interval_s": 0},
        {"sync_interval_s": -1},
        {"sync_interval_s": float("inf")},
        {"sync_interval_s": float("nan")},
        {"sync_interval_s": None},
        {"data": ["train"]},
        {"data": {3: "wikitext"}},
        {"tolerance": -1},
        {"tolerance": float("nan")},
        {"tolerance": "small"},
        {"writer_rank": 1},
        {"writer_rank": -1},
    ],
    ids=str,
)
def test_an_option_that_means_nothing_is_refused_by_name_and_makes_no_folder(tmp_path, options) -> None:
    (name,) = options
    with pytest.raises(UsageError, match=rf"{name}\b"):
        lineage.init(tmp_path / "runs", **{"name": "a", "recipe": {}, "resume": "never", **options})
    assert not (tmp_path / "runs").exists()


def test_all_that_is_wrong_is_told_at_once(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"notes=3 .*keep=0 .*sync_interval_s=0 "):
        lineage.init(tmp_path / "runs", notes=3, keep=0, sync_interval_s=0)


def test_one_word_may_stand_alone_and_counts_may_be_of_numpy(tmp_path) -> None:
    options = {"tags": "baseline", "allow": "recipe.lr", "keep": np.int64(2), "log_every": np.int64(2), "tolerance": 0}
    with lineage.init(tmp_path, name="a", recipe={}, resume="never", **options) as run:
        for _ in run.steps(4):
            run.log(loss=1.0)
    view = lineage.read(run.path)
    assert view.record.tags == ["baseline"]
    assert view.series("loss").step.tolist() == [2, 4]
