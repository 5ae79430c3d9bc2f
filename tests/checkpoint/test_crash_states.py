"""Publication under a crash at any moment: the chain of hashes gives safety, the fsyncs give durability."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lineage.checkpoint import store as store_module
from lineage.checkpoint.discover import discover
from lineage.checkpoint.store import CheckpointStore
from lineage.checkpoint.verify import verify_generation
from lineage_schemas.checkpoint import Position

LIMIT = 200


@pytest.fixture
def save_ops(
    tiny: Any, tmp_path: Path, crash_model: ModuleType, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[Any], int, str, dict[str, str]]:
    """The calls of a run's first save: root, calls, how many until it was committed, its name, true file hashes."""
    root = tmp_path / "run"
    root.mkdir()
    tiny.step()
    committed: list[int] = []
    announce = store_module._announce

    def mark(*args: Any) -> None:
        committed.append(len(ops))
        announce(*args)

    monkeypatch.setattr(store_module, "_announce", mark)
    with crash_model.recorded(root) as ops:
        saved = CheckpointStore(root, tiny.registry).save(Position(step=1, num_updates=1), contexts[0]())
    truth = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in saved.path.iterdir()}
    return root, ops, committed[0], saved.name, truth


def _accepted(root: Path) -> list[Path]:
    """Generations a restore would load: found, and every hash right."""
    return [c.path for c in discover(root).candidates if verify_generation(c.path).ok]


def _states(crash_model: ModuleType, base: Path, scratch: Path, ops: Sequence[Any], *, seed: int = 0) -> Any:
    disk = crash_model.Disk()
    for op in ops:
        disk.apply(op)
    for folders, files in disk.outcomes(LIMIT, seed):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        crash_model.materialise(scratch, str(base), folders, files)
        yield scratch


def test_no_crash_makes_a_wrong_generation_look_right(save_ops: Any, tmp_path: Path, crash_model: ModuleType) -> None:
    """After every call, every state the disk may be in: what is accepted is what was saved, byte for byte."""
    root, ops, _, name, truth = save_ops
    num_states = 0
    for count in range(len(ops) + 1):
        for state in _states(crash_model, root, tmp_path / "state", ops[:count], seed=count):
            num_states += 1
            for folder in _accepted(state):
                assert folder.name == name
                found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
                assert found == truth
    assert num_states > 1000, "the enumeration is meant to be large"


def test_a_save_that_returned_survives_every_crash(save_ops: Any, tmp_path: Path, crash_model: ModuleType) -> None:
    root, ops, committed, name, _ = save_ops
    states = 0
    for state in _states(crash_model, root, tmp_path / "state", ops[:committed]):
        states += 1
        assert [folder.name for folder in _accepted(state)] == [name]
    assert states == 1, "nothing about a committed generation is left open"


def test_every_single_fsync_is_needed_for_durability(save_ops: Any, tmp_path: Path, crash_model: ModuleType) -> None:
    """The mutation: without any one of them, some crash loses the generation although `save` has returned."""
    root, ops, committed, name, _ = save_ops
    protocol = ops[:committed]
    syncs = [index for index, op in enumerate(protocol) if op.is_sync]
    assert len(syncs) >= 8, [op.path for op in protocol if op.is_sync]
    for dropped in syncs:
        mutated = [op for index, op in enumerate(protocol) if index != dropped]
        lost = any(
            [folder.name for folder in _accepted(state)] != [name]
            for state in _states(crash_model, root, tmp_path / "state", mutated)
        )
        assert lost, f"dropping {protocol[dropped].kind} of {protocol[dropped].path} loses nothing"


def test_without_any_fsync_nothing_wrong_is_accepted(save_ops: Any, tmp_path: Path, crash_model: ModuleType) -> None:
    """Safety does not hang on the fsyncs: a disk that lies about them loses generations, and never mixes them."""
    root, ops, committed, name, truth = save_ops
    lying = [op for op in ops[:committed] if not op.is_sync]
    for seed in range(4):
        for state in _states(crash_model, root, tmp_path / "state", lying, seed=seed):
            for folder in _accepted(state):
                assert folder.name == name
                assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()} == truth


def test_a_crashed_save_leaves_the_generation_before_it(
    run_dir: Path, tiny: Any, tmp_path: Path, crash_model: ModuleType, contexts: Any
) -> None:
    """The older generation is durable; whatever the newer one left, the older is still found and whole."""
    before = [c.name for c in discover(run_dir).candidates]
    kept = tmp_path / "kept"
    shutil.copytree(run_dir, kept)
    tiny.step()
    with crash_model.recorded(run_dir) as ops:
        saved = CheckpointStore(run_dir, tiny.registry).save(Position(step=3, num_updates=3), contexts[0]())
    for count in range(0, len(ops) + 1, 3):
        disk = crash_model.Disk()
        for op in ops[:count]:
            disk.apply(op)
        for folders, files in disk.outcomes(20, count):
            state = tmp_path / "state"
            shutil.rmtree(state, ignore_errors=True)
            shutil.copytree(kept, state)
            crash_model.materialise(state, str(run_dir), folders, files)
            names = [folder.name for folder in _accepted(state)]
            assert names in (before, [saved.name, *before])


def test_a_deletion_cut_anywhere_leaves_a_whole_generation_or_none(
    run_dir: Path, tmp_path: Path, crash_model: ModuleType
) -> None:
    """COMMIT goes first, and durably: a half-deleted generation is never taken for whole."""
    from lineage.checkpoint.retention import delete_generation
    from lineage.layout import RunDir

    oldest = discover(run_dir).candidates[-1]
    others = [c.name for c in discover(run_dir).candidates[:-1]]
    whole = tmp_path / "whole"
    shutil.copytree(run_dir, whole)
    with crash_model.recorded(run_dir) as ops:
        delete_generation(RunDir(run_dir), oldest.name)
    unlinks = [op for op in ops if op.kind == "unlink"]
    first_sync = next(index for index, op in enumerate(ops) if op.kind == "fsync_dir")
    assert unlinks[0].path.endswith("COMMIT")
    assert sum(op.kind == "unlink" for op in ops[:first_sync]) == 1, "COMMIT's going is durable before the rest goes"
    for count in range(len(unlinks) + 1):
        state = tmp_path / "state"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(whole, state)
        for op in unlinks[:count]:
            (state / Path(op.path).relative_to(run_dir)).unlink()
        expected = others if count else [*others, oldest.name]
        assert [folder.name for folder in _accepted(state)] == expected
