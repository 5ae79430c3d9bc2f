"""A refused restore leaves everything bit for bit as it was; one that fails midway poisons what it touched."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lineage.checkpoint.discover import discover
from lineage.checkpoint.errors import ArtifactError, NoUsableCheckpointError, PoisonedError, ResumeRefusedError
from lineage.checkpoint.restore import apply_restore, plan_restore, restore_newest
from lineage.checkpoint.store import CheckpointStore
from lineage_schemas.checkpoint import Position

pytestmark = pytest.mark.usefixtures("exact")


@pytest.fixture
def run_dir(small: ModuleType, tmp_path: Path) -> Path:
    original = small.build(seed=1)
    batches = original.registry.loader().iterate()
    for _ in range(5):
        small.train_step(original, batches)
    CheckpointStore(tmp_path, original.registry).save(Position(step=5, num_updates=5), small.contexts()[0])
    return tmp_path


def everything(small: ModuleType, experiment: Any) -> dict[str, Any]:
    """Every tensor, counter, cursor and generator, and every group's values."""
    groups = [
        [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        for optimizer in (experiment.adamw, experiment.muon)
    ]
    cursor = experiment.registry.loader().cursor()
    return small.digests(experiment) | {"groups": repr(groups), "cursor": cursor}


def _flip(run_dir: Path, name: str) -> None:
    path = next(run_dir.glob(f"checkpoints/*/{name}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(run_dir: Path, name: str) -> None:
    path = next(run_dir.glob(f"checkpoints/*/{name}"))
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit of the model": lambda d: _flip(d, "model.r00000.safetensors"),
    "a bit of the optimizers": lambda d: _flip(d, "optim.r00000.safetensors"),
    "a bit of the state": lambda d: _flip(d, "state.r00000.json"),
    "a bit of the rest": lambda d: _flip(d, "extra.r00000.safetensors"),
    "the end of the optimizers": lambda d: _cut(d, "optim.r00000.safetensors"),
    "a bit of the manifest": lambda d: _flip(d, "manifest.json"),
    "a bit of the marker": lambda d: _flip(d, "COMMIT"),
}

RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another learning rate": ({"lr": 0.02}, {}, "optimizer.adamw.groups[0].hyper.lr"),
    "another schedule": ({"t_max": 30}, {}, "component.warmup.constants._schedulers[1].T_max"),
    "another batch size": ({"batch_size": 12}, {}, "loader.train_loader.batch_size"),
    "more data": ({"length": 104}, {}, "loader.train_loader.length"),
    "another recipe": ({}, {"optimizer": {"betas": [0.9, 0.95]}}, "recipe.optimizer.betas"),
    "an unknown new field": ({}, {"clip": 1.0}, "recipe.clip"),
    "fewer steps": ({}, {"max_steps": 11}, "recipe.max_steps"),
}


def _moved(small: ModuleType, **changes: Any) -> Any:
    """A live experiment in the middle of its own training, so that nothing is at its initial value."""
    experiment = small.build(seed=2, **changes)
    batches = experiment.registry.loader().iterate()
    for _ in range(2):
        small.train_step(experiment, batches)
    return experiment


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_changes_nothing(damage: str, small: ModuleType, run_dir: Path) -> None:
    experiment = _moved(small)
    before = everything(small, experiment)
    DAMAGE[damage](run_dir)
    with pytest.raises(NoUsableCheckpointError) as refused:
        restore_newest(discover(run_dir), experiment.registry, small.contexts()[1])
    assert "step-00000005" in str(refused.value)
    assert everything(small, experiment) == before
    assert experiment.registry.poisoned is None


@pytest.mark.parametrize("case", RECIPES)
def test_another_experiment_is_refused_by_name_and_changes_nothing(case: str, small: ModuleType, run_dir: Path) -> None:
    changes, recipe, path = RECIPES[case]
    experiment = _moved(small, **changes)
    before = everything(small, experiment)
    with pytest.raises(ResumeRefusedError) as refused:
        restore_newest(discover(run_dir), experiment.registry, small.contexts(recipe=recipe)[1])
    assert path in [finding.path for finding in refused.value.findings if finding.verdict == "refuse"]
    assert path in str(refused.value)
    assert everything(small, experiment) == before
    assert experiment.registry.poisoned is None


def test_all_findings_come_at_once(small: ModuleType, run_dir: Path) -> None:
    experiment = small.build(seed=2, lr=0.02, batch_size=12)
    recipe = {"max_steps": 20, "optimizer": {"betas": [0.9, 0.95]}, "log_every": 5}
    with pytest.raises(ResumeRefusedError) as refused:
        restore_newest(discover(run_dir), experiment.registry, small.contexts(recipe=recipe)[1])
    verdicts = {finding.path: finding.verdict for finding in refused.value.findings}
    assert verdicts["recipe.max_steps"] == "allowed"
    assert verdicts["recipe.log_every"] == "noted"
    for path in ("recipe.optimizer.betas", "optimizer.adamw.groups[0].hyper.lr", "loader.train_loader.batch_size"):
        assert verdicts[path] == "refuse"


def test_more_total_steps_continue_the_same_experiment(small: ModuleType, run_dir: Path) -> None:
    experiment = small.build(seed=2)
    restored = restore_newest(discover(run_dir), experiment.registry, small.contexts(recipe={"max_steps": 50})[1])
    assert restored is not None
    assert [(f.path, f.verdict) for f in restored.findings] == [("recipe.max_steps", "allowed")]
    assert not restored.forced


def test_what_a_person_allows_is_recorded_and_keeps_the_live_value(small: ModuleType, run_dir: Path) -> None:
    experiment = small.build(seed=2, lr=0.02)
    allow = ["optimizer.adamw.groups[0].hyper.*", "component.warmup.constants.*"]
    restored = restore_newest(discover(run_dir), experiment.registry, small.contexts(allow=allow)[1])
    assert restored is not None
    experiment.registry.loader().iterate()
    assert "rng" in restored.finish()
    assert restored.forced
    assert experiment.adamw.param_groups[0]["initial_lr"] == 0.02
    assert experiment.warmup._schedulers[1].base_lrs == [0.02]


def test_swapped_parameters_are_refused(small: ModuleType, run_dir: Path) -> None:
    """torch's own load matches by position and would swap the moments in silence."""
    experiment = small.build(seed=2)
    group = experiment.adamw.param_groups[0]
    group["params"] = list(reversed(group["params"]))
    with pytest.raises(ResumeRefusedError) as refused:
        restore_newest(discover(run_dir), experiment.registry, small.contexts()[1])
    assert refused.value.findings[0].path == "optimizer.adamw.groups[0].params"


def test_the_generation_before_a_damaged_one_is_taken_and_the_reason_kept(small: ModuleType, run_dir: Path) -> None:
    later = small.build(seed=3)
    batches = later.registry.loader().iterate()
    for _ in range(6):
        small.train_step(later, batches)
    saved = CheckpointStore(run_dir, later.registry).save(Position(step=6, num_updates=6), small.contexts()[0])
    path = saved.path / "model.r00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x80
    path.write_bytes(data)
    experiment = small.build(seed=2)
    restored = restore_newest(discover(run_dir), experiment.registry, small.contexts()[1])
    assert restored is not None
    assert restored.position.step == 5
    assert [r.name for r in restored.rejected] == [saved.name]
    assert "SHA-256" in restored.rejected[0].reason


def test_a_restore_that_fails_midway_poisons(small: ModuleType, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small.build(seed=2)

    def fail(_: Any) -> None:
        raise RuntimeError("the device went away")

    monkeypatch.setattr(experiment.registry.components["scaler"], "restore", fail)
    candidate = discover(run_dir).newest()
    assert candidate is not None
    plan = plan_restore(candidate, experiment.registry, small.contexts()[1])
    with pytest.raises(PoisonedError, match="the device went away"):
        apply_restore(plan)
    for attempt in (
        lambda: CheckpointStore(run_dir, experiment.registry).save(
            Position(step=6, num_updates=6), small.contexts()[0]
        ),
        lambda: plan_restore(candidate, experiment.registry, small.contexts()[1]),
        experiment.registry.require_usable,
    ):
        with pytest.raises(PoisonedError):
            attempt()


def test_a_file_that_changes_between_plan_and_load_is_still_refused(small: ModuleType, run_dir: Path) -> None:
    """The bytes that are loaded are the bytes that are hashed."""
    experiment = _moved(small)
    candidate = discover(run_dir).newest()
    assert candidate is not None
    plan = plan_restore(candidate, experiment.registry, small.contexts()[1])
    before = everything(small, experiment)
    _flip(run_dir, "optim.r00000.safetensors")
    with pytest.raises(ArtifactError):
        apply_restore(plan)
    assert everything(small, experiment) == before


def test_random_state_restored_before_the_iterator_exists_is_shifted(small: ModuleType, run_dir: Path) -> None:
    """Why `finish` comes after `iterate`: building the iterator draws from the global generator."""
    experiment = small.build(seed=2)
    restored = restore_newest(discover(run_dir), experiment.registry, small.contexts()[1])
    assert restored is not None
    restored.finish()
    before = torch.get_rng_state()
    experiment.registry.loader().iterate()
    assert not torch.equal(torch.get_rng_state(), before)


def test_global_streams_are_left_alone_by_planning(small: ModuleType, run_dir: Path) -> None:
    experiment = small.build(seed=2)
    candidate = discover(run_dir).newest()
    assert candidate is not None
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    plan_restore(candidate, experiment.registry, small.contexts()[1])
    with contextlib.suppress(ResumeRefusedError):
        plan_restore(candidate, experiment.registry, small.contexts(recipe={"lr": 9.0})[1])
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
