"""A tiny training state, and the tools that break what it wrote."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest
import torch

from lineage.checkpoint.registry import Registry
from lineage.checkpoint.restore import RestoreContext
from lineage.checkpoint.store import CheckpointStore, SaveContext, SavedGeneration
from lineage_schemas import checkpoint as schema
from lineage_schemas.checkpoint import Position, RecipePoint


def _by_path(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def crash_model() -> ModuleType:
    return _by_path("crash_model")


class Tiny:
    """A model, an optimizer and a random generator: something for every file of a generation."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
        self.model[0].register_buffer("cache", torch.rand(2), persistent=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.registry = Registry()
        self.registry.track("model", self.model)
        self.registry.track("optimizer", self.optimizer)
        self.registry.absent("loader", "made of noise")
        self.registry.absent("scaler", "float32")
        self.registry.absent("scheduler", "constant")

    def step(self) -> None:
        self.model(torch.rand(5, 4)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def digest(self) -> str:
        """Over every bit of model and optimizer, and the next random number's state."""
        found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for tensor in [*self.model.state_dict().values(), self.model[0].cache]:
            found.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        for parameter in self.model.parameters():
            for slot in self.optimizer.state[parameter].values():
                found.update(slot.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


RECIPE = RecipePoint(fingerprint="0" * 64, value={"lr": 0.01, "max_steps": 10})


def save_context(session: int = 1, **more: Any) -> SaveContext:
    return SaveContext(run="tiny", session=f"s{session:02d}-00000000", ordinal=session, recipe=RECIPE, **more)


def restore_context(**more: Any) -> RestoreContext:
    return RestoreContext(**{"run": "tiny", "recipe": RECIPE, **more})


@pytest.fixture
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture
def make_tiny() -> type[Tiny]:
    return Tiny


@pytest.fixture
def contexts() -> tuple[Callable[..., SaveContext], Callable[..., RestoreContext]]:
    return save_context, restore_context


@pytest.fixture
def save() -> Callable[..., SavedGeneration]:
    """`save(tiny, run_dir, step)`: train one step, save it."""

    def save_one(tiny: Tiny, run_dir: Path, step: int, session: int = 1, **more: Any) -> SavedGeneration:
        tiny.step()
        store = CheckpointStore(run_dir, tiny.registry, **more)
        return store.save(Position(step=step, num_updates=step), save_context(session))

    return save_one


@pytest.fixture
def run_dir(tiny: Tiny, save: Callable[..., SavedGeneration], tmp_path: Path) -> Path:
    """A run with two generations, after steps 1 and 2."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for step in (1, 2):
        save(tiny, folder, step)
    return folder


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a manifest and its marker so that their hashes are right: what an attacker can do, and rot cannot."""
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    change(manifest)
    data = orjson.dumps(manifest)
    (folder / "manifest.json").write_bytes(data)
    (folder / "COMMIT").write_bytes(schema.format_commit(hashlib.sha256(data).hexdigest()))


@pytest.fixture(name="forge")
def forge_fixture() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    return forge
