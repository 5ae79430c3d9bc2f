"""A folder whose `runs/` has the run that every example of the help speaks of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.synthetic import write_run
from lineage.cli import main
from lineage.runs.store import read_run


@pytest.fixture(scope="session")
def example_run(tmp_path_factory) -> Path:
    """Invented steps, and two real generations of a real (very small) model."""
    import torch

    from lineage.checkpoint.registry import Registry
    from lineage.checkpoint.store import CheckpointStore, SaveContext
    from lineage_schemas.checkpoint import Position, RecipePoint

    runs_dir = tmp_path_factory.mktemp("cli") / "runs"
    folder = write_run(runs_dir, name="tiny-gpt", steps=300, sessions=3, checkpoint_every=50)
    record = read_run(folder)
    registry = Registry()
    registry.track("model", torch.nn.Linear(3, 2))
    for family in ("optimizer", "loader", "scaler", "scheduler"):
        registry.absent(family, "only a model here")
    for session, step in ((record.sessions[0], 50), (record.sessions[2], 300)):
        recipe = RecipePoint(fingerprint=session.recipe.fingerprint, value=session.recipe.value)
        context = SaveContext(run=record.id, session=session.id, ordinal=session.ordinal, recipe=recipe)
        CheckpointStore(folder, registry).save(Position(step=step, num_updates=step), context)
    return folder


@pytest.fixture
def place(example_run, tmp_path, monkeypatch) -> Path:
    """The working directory, with a copy of the example run in `runs/`."""
    import shutil

    shutil.copytree(example_run.parent, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINEAGE_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def lineage(capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def process():
    """Run a command as people do: a process of its own."""

    def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "lineage", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            **options,
        )

    return run


@pytest.fixture
def cpu_of():
    """Processor seconds of a process and how it ended: on a busy machine the clock on the wall says nothing."""

    def measure(*words: str, cwd: Path | None = None) -> float:
        with Path(os.devnull).open("wb") as null:
            child = subprocess.Popen([sys.executable, *words], stdout=null, stderr=null, cwd=cwd)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime + usage.ru_stime

    return measure
