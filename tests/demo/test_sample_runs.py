"""What newcomers open first is real, small, whole, and names no machine."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import orjson
import pytest

import lineage
from lineage_schemas.checkpoint import parse_commit

SAMPLES = Path(__file__).parents[2] / "sample_runs"
RUNS = sorted(path.parent for path in SAMPLES.glob("*/run.json"))


def schema(name: str) -> jsonschema.Draft202012Validator:
    document = orjson.loads((files("lineage_schemas") / "published" / f"{name}.schema.json").read_bytes())
    return jsonschema.Draft202012Validator(document)


def sample(name: str) -> Path:
    (found,) = (run for run in RUNS if lineage.read(run, cache=False).record.name == name)
    return found


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_file_fits_its_published_schema(run: Path) -> None:
    schema("run").validate(orjson.loads((run / "run.json").read_bytes()))
    event = schema("event")
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        event.validate(orjson.loads(line))
    for path in run.glob("checkpoints/*/manifest.json"):
        schema("manifest").validate(orjson.loads(path.read_bytes()))
    for path in run.glob("checkpoints/ledger.jsonl"):
        for line in path.read_bytes().splitlines():
            schema("ledger").validate(orjson.loads(line))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_commit_marker_names_its_manifest(run: Path) -> None:
    for marker in run.glob("checkpoints/*/COMMIT"):
        manifest = marker.with_name("manifest.json").read_bytes()
        assert parse_commit(marker.read_bytes(), str(marker)) == hashlib.sha256(manifest).hexdigest()


def test_no_file_names_the_machine_it_was_recorded_on() -> None:
    for path in SAMPLES.rglob("*"):
        if path.is_file():
            text = path.read_text()
            paths = set(re.findall(r'"(/[a-z][^"]*)"', text)) - {"/tmp/torchinductor"}
            assert not paths, path
            assert set(re.findall(r'"host":"([^"]*)"', text)) <= {"spot-worker"}, path
            assert set(re.findall(r'"platform":\s*"([^"]*)"', text)) <= {"Linux-x86_64"}, path


def test_the_samples_are_small_and_without_tensors_locks_and_caches() -> None:
    kept = [path for path in SAMPLES.rglob("*") if path.is_file() and ".cache" not in path.parts]
    assert sum(path.stat().st_size for path in kept) < 1_500_000
    assert {path.name for path in kept} <= {
        "README.md", "run.json", "metrics.jsonl", "COMMIT", "manifest.json", "ledger.jsonl", "ACTIVE"
    }  # fmt: skip


def test_the_demo_sample_is_the_story_of_the_demo() -> None:
    view = lineage.read(sample("tiny-gpt"), cache=False)
    assert list(view.session_states.values()) == ["killed", "preempted", "completed"]
    assert [s.continuation and s.continuation.verdict for s in view.sessions] == [None, "exact", "unproven"]
    assert len(view.series("loss", superseded=True).step) - len(view.series("loss").step) >= 10
    assert view.events(kind="log_recovered")


def test_the_careless_sample_went_unnoticed_and_looks_reasonable() -> None:
    view = lineage.read(sample("tiny-gpt-careless"), cache=False)
    assert list(view.session_states.values()) == ["killed", "completed"]
    assert not view.events(kind="continuation")
    assert not view.events(kind="alert")
    assert not view.events(kind="checkpoint_restored")
    start = view.sessions[1].start.step
    first = view.series("loss", session=2).value
    before = view.series("loss", session=1).value
    assert abs(first[0] - before[-1]) < 0.3
    rates = dict(zip(*(view.series("lr").step.tolist(), view.series("lr").value.tolist()), strict=True))
    assert max(rates[step] for step in rates if step > start) > 3 * rates[start]


def test_the_careless_run_ends_worse_than_the_other() -> None:
    losses = [lineage.read(sample(name), cache=False).evals().value[-1] for name in ("tiny-gpt", "tiny-gpt-careless")]
    assert losses[0] < losses[1]
