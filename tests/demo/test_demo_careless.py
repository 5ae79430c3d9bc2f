"""The careless restart is careless, and the log knows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orjson
import pytest
import torch

import lineage
from lineage.demo import careless
from lineage.demo.record import export
from lineage.demo.train import Config
from lineage_schemas.events import StepEvent, parse_event

CONFIG = Config(
    max_steps=26, n_layer=1, n_head=2, n_embd=32, batch_size=2, eval_every=20, eval_blocks=4, checkpoint_every=10, threads=1
)  # fmt: skip


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained to step 26, six steps after its last weights; then trained on from those weights."""
    runs = tmp_path_factory.mktemp("careless")
    threads = torch.get_num_threads()
    careless.train(CONFIG, runs=str(runs), name="careless", resume="never")
    (path,) = runs.iterdir()
    careless.train(dataclasses.replace(CONFIG, max_steps=36), runs=str(runs), name="careless", resume=path.name)
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)
    return path


def steps_of(run_path: Path, ordinal: int) -> dict[int, StepEvent]:
    session = orjson.loads((run_path / "run.json").read_bytes())["sessions"][ordinal - 1]["id"]
    events = map(parse_event, (run_path / "metrics.jsonl").read_bytes().splitlines())
    return {e.step: e for e in events if isinstance(e, StepEvent) and e.session == session}


def test_it_goes_on_counting_and_claims_no_checkpoint(run_path: Path) -> None:
    record = orjson.loads((run_path / "run.json").read_bytes())
    start = record["sessions"][1]["start"]
    assert (start["kind"], start["step"], start.get("checkpoint")) == ("fresh", 20, None)
    assert sorted(steps_of(run_path, 2)) == list(range(21, 37))


def test_everything_but_the_weights_began_again(run_path: Path) -> None:
    first, second = steps_of(run_path, 1), steps_of(run_path, 2)
    before, after, beginning = first[21].witness, second[21].witness, first[1].witness
    assert before
    assert after
    assert beginning
    assert after.batch == beginning.batch != before.batch
    assert after.lr == beginning.lr != before.lr
    assert after.scale == beginning.scale != before.scale


def test_the_loss_looks_reasonable_since_the_weights_are_there(run_path: Path) -> None:
    first, second = steps_of(run_path, 1), steps_of(run_path, 2)
    fresh, last = first[1].metrics["loss"], first[26].metrics["loss"]
    assert abs(second[21].metrics["loss"] - last) < abs(second[21].metrics["loss"] - fresh)


def test_nobody_was_warned(run_path: Path) -> None:
    kinds = [parse_event(line).kind for line in (run_path / "metrics.jsonl").read_bytes().splitlines()]
    assert "continuation" not in kinds
    assert "checkpoint_restored" not in kinds


def test_the_curve_has_each_step_once_and_keeps_what_was_superseded(run_path: Path) -> None:
    view = lineage.read(run_path)
    assert view.series("loss").step.tolist() == list(range(1, 37))
    assert len(view.series("loss", superseded=True).step) == 36 + 6


def test_a_sample_keeps_records_and_manifests_and_no_tensor(run_path: Path, tmp_path: Path) -> None:
    generation = run_path / "checkpoints" / "step-00000010-s01-00000000"
    generation.mkdir(parents=True)
    for name in ("COMMIT", "manifest.json", "model.r00000.safetensors", "state.r00000.json"):
        (generation / name).write_text(name)
    export(run_path, tmp_path / "sample")
    sample = tmp_path / "sample"
    files = sorted(str(p.relative_to(sample)) for p in sample.rglob("*") if p.is_file())
    kept = [name for name in files if not name.startswith("source/")]  # there when the tree is dirty
    base = "checkpoints/step-00000010-s01-00000000"
    assert kept == [f"{base}/COMMIT", f"{base}/manifest.json", "metrics.jsonl", "run.json"]
    assert (run_path / "latest.pt").exists()
