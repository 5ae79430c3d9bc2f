"""Leave out one family at a time: every one of them is missed, and by what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lineage.checkpoint import rng
from lineage.checkpoint.discover import discover
from lineage.checkpoint.errors import RestoreCheckError
from lineage.checkpoint.restore import apply_restore, plan_restore
from lineage.checkpoint.store import CheckpointStore
from lineage_schemas.checkpoint import Position

pytestmark = pytest.mark.usefixtures("exact")

Forget = Callable[[pytest.MonkeyPatch, Any], None]


def _forget(name: str) -> Forget:
    def forget(patch: pytest.MonkeyPatch, experiment: Any) -> None:
        component = experiment.registry.components[name]
        method = "restore_layout" if hasattr(component, "restore_layout") else "restore"
        patch.setattr(component, method, lambda *_: None)

    return forget


def _forget_stream(name: str) -> Forget:
    def forget(patch: pytest.MonkeyPatch, experiment: Any) -> None:
        whole = rng.restore_streams
        patch.setattr(rng, "restore_streams", lambda s, e: whole({k: v for k, v in s.items() if k != name}, e))

    return forget


FAMILIES: dict[str, Forget] = {
    "model": _forget("model"),
    "adamw": _forget("adamw"),
    "muon": _forget("muon"),
    "warmup": _forget("warmup"),
    "decay": _forget("decay"),
    "scaler": _forget("scaler"),
    "loader": _forget("train_loader"),
    "python": _forget_stream("python"),
    "numpy": _forget_stream("numpy"),
    "torch": _forget_stream("torch"),
}


def interrupted(small: ModuleType, run_dir: Path, steps: int = 7) -> tuple[Any, list[dict[str, Any]]]:
    """Save after `steps`, and train three more: what a right restore must do again."""
    original = small.build(seed=1)
    batches = original.registry.loader().iterate()
    skipped = sum(small.train_step(original, batches)["skipped"] for _ in range(steps))
    position = Position(step=steps, num_updates=steps - skipped, num_skipped=skipped)
    saved = CheckpointStore(run_dir, original.registry).save(position, small.contexts()[0])
    return saved, [small.train_step(original, batches) | small.digests(original) for _ in range(3)]


def resumed(small: ModuleType, experiment: Any, run_dir: Path) -> list[dict[str, Any]]:
    candidate = discover(run_dir).newest()
    assert candidate is not None
    restored = apply_restore(plan_restore(candidate, experiment.registry, small.contexts()[1]))
    batches = experiment.registry.loader().iterate()
    restored.finish()
    return [small.train_step(experiment, batches) | small.digests(experiment) for _ in range(3)]


def test_with_every_family_the_continuation_is_exact(small: ModuleType, tmp_path: Path) -> None:
    """The control of the ablation: without it, the rows below could fail for any reason."""
    _, expected = interrupted(small, tmp_path)
    assert resumed(small, small.build(seed=2), tmp_path) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restore_without_one_family_is_caught(
    family: str, small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = interrupted(small, tmp_path)
    experiment = small.build(seed=2)
    FAMILIES[family](monkeypatch, experiment)
    try:
        found = resumed(small, experiment, tmp_path)
    except RestoreCheckError:
        assert experiment.registry.poisoned
        return
    assert found != expected


@pytest.mark.parametrize("family", ["adamw", "muon", "warmup", "decay", "scaler"])
def test_the_first_resumed_loss_hides_the_loss_of_the_update_state(
    family: str, small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a one-step smoke test proves nothing: the loss is computed before the update that goes wrong.

    A lost scheduler shows even later: the optimizer still has the rate of the step that comes next.
    """
    _, expected = interrupted(small, tmp_path)
    experiment = small.build(seed=2)
    FAMILIES[family](monkeypatch, experiment)
    monkeypatch.setattr("lineage.checkpoint.restore.Restored._check_next", lambda _: ())
    found = resumed(small, experiment, tmp_path)
    assert found[0]["loss"] == expected[0]["loss"]
    assert [did["model"] for did in found] != [did["model"] for did in expected]


@pytest.mark.parametrize("family", ["warmup", "decay", "loader", "python", "numpy", "torch"])
def test_the_check_of_what_comes_next_catches_it_before_a_step(
    family: str, small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning rate, cursor and draws are compared with the manifest, so no step is trained on a wrong one."""
    interrupted(small, tmp_path)
    experiment = small.build(seed=2)
    if family in ("warmup", "decay"):
        optimizer = experiment.adamw if family == "warmup" else experiment.muon
        component = experiment.registry.components[family]
        whole = component.restore

        def wrong(saved: Any) -> None:
            whole(saved)
            for group in optimizer.param_groups:
                group["lr"] *= 0.5

        monkeypatch.setattr(component, "restore", wrong)
    else:
        FAMILIES[family](monkeypatch, experiment)
    with pytest.raises(RestoreCheckError):
        resumed(small, experiment, tmp_path)
