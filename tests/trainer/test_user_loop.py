"""A training loop as users write it: in a folder with modules of its own called `schemas` and `tui`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lineage

TRAIN = """
import sys

import schemas  # the user's own
import torch
import tui  # the user's own
from torch.utils.data import DataLoader, TensorDataset

import lineage

assert schemas.WHOSE == tui.WHOSE == "the user's"
config = {"max_steps": int(sys.argv[1]), "lr": 0.05, "batch_size": 8}
torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = lineage.ResumableSampler(len(data), shuffle=True, seed=1)
loader = DataLoader(data, batch_size=config["batch_size"], sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)

run = lineage.init("runs", name="mine", recipe=config)
run.track(model=model, optimizer=optimizer, scheduler=scheduler, train_loader=loader)
run.restore()
batches = run.batches(loader)
for step in run.steps(config["max_steps"]):
    inputs, targets = next(batches)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    run.log(loss=loss, samples=len(inputs))
    if step % 5 == 0:
        run.checkpoint()
    if len(sys.argv) > 2:
        exec(sys.argv[2])
run.finish()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    for name in ("schemas", "tui"):
        (tmp_path / f"{name}.py").write_text('WHOSE = "the user\'s"\n')
    return tmp_path


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def losses(folder: Path, session: int) -> dict[int, float]:
    (run_dir,) = (folder / "runs").iterdir()
    sessions = json.loads((run_dir / "run.json").read_text())["sessions"]
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]
    return {
        e["step"]: e["metrics"]["loss"]
        for e in events
        if e["kind"] == "step" and e["session"] == sessions[session - 1]["id"]
    }


def test_a_killed_loop_resumes_by_itself_and_trains_the_lost_steps_again_bit_for_bit(folder: Path) -> None:
    killed = train(folder, "30", "import os, signal; step == 13 and os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL
    resumed = train(folder, "30")
    assert resumed.returncode == 0, resumed.stderr
    (run_dir,) = (folder / "runs").iterdir()
    view = lineage.read(run_dir)
    assert [s.status for s in view.record.sessions] == ["killed", "completed"]
    assert view.record.sessions[1].start.step == 10
    before, after = losses(folder, 1), losses(folder, 2)
    assert list(after) == list(range(11, 31))
    assert [before[s] for s in (11, 12, 13)] == [after[s] for s in (11, 12, 13)]
    assert list(view.series("loss").step) == list(range(1, 31))


def test_a_third_start_after_completion_begins_a_new_run(folder: Path) -> None:
    for _ in range(2):
        assert train(folder, "5").returncode == 0
    assert len(list((folder / "runs").iterdir())) == 2


def test_another_recipe_is_refused_and_leaves_no_trace(folder: Path) -> None:
    train(folder, "30", "import os, signal; step == 7 and os.kill(os.getpid(), signal.SIGTERM)")
    (run_dir,) = (folder / "runs").iterdir()
    kept = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "run.lock"}
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text.replace('"lr": 0.05', '"lr": 0.01'))
    refused = train(folder, "30")
    assert refused.returncode != 0
    assert "lr" in refused.stderr
    assert "0.05" in refused.stderr
    assert "0.01" in refused.stderr
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "run.lock"} == kept


def test_sigterm_checkpoints_at_the_next_boundary_and_the_next_start_goes_on_from_there(folder: Path) -> None:
    preempted = train(folder, "30", "import os, signal; step == 8 and os.kill(os.getpid(), signal.SIGTERM)")
    assert preempted.returncode == 0, preempted.stderr
    resumed = train(folder, "30")
    assert resumed.returncode == 0, resumed.stderr
    (run_dir,) = (folder / "runs").iterdir()
    sessions = lineage.read(run_dir).record.sessions
    assert [(s.status, s.last_step) for s in sessions] == [("preempted", 8), ("completed", 30)]
    assert sessions[1].start.step == 8
    assert list(losses(folder, 2)) == list(range(9, 31))


@pytest.mark.parametrize(
    ("statement", "status", "reason"),
    [
        ("step == 4 and [][1]", "failed", "IndexError: list index out of range"),
        ("if step == 4: raise KeyboardInterrupt", "interrupted", "KeyboardInterrupt"),
        ("if step == 4: sys.exit(3)", "failed", None),
    ],
)
def test_how_a_process_ended_is_recorded(folder: Path, statement: str, status: str, reason: str | None) -> None:
    assert train(folder, "30", statement).returncode != 0
    (run_dir,) = (folder / "runs").iterdir()
    (session,) = lineage.read(run_dir).record.sessions
    assert session.status == status
    assert reason is None or session.reason == reason


def test_a_second_process_on_the_same_run_is_refused_with_the_owner_named(folder: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "train.py", "30", "step == 3 and __import__('time').sleep(60)"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not any(p.read_bytes().count(b'"kind":"step"') >= 3 for p in folder.glob("runs/*/metrics.jsonl")):
            assert time.monotonic() < deadline
            assert first.poll() is None
            time.sleep(0.05)
        second = train(folder, "30")
        assert second.returncode != 0
        assert f"pid {first.pid}" in second.stderr
    finally:
        first.kill()
        first.wait()


def test_only_the_writer_rank_writes(folder: Path) -> None:
    code = (
        "import lineage\n"
        "run = lineage.init('runs', name='ranks')\n"
        "for step in run.steps(3):\n"
        "    run.log(loss=1.0)\n"
        "    with run.phase('eval'): run.log_eval(loss=2.0)\n"
        "run.finish()\n"
        "print(step)\n"
    )
    for rank in ("1", "0"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
        assert (folder / "runs").exists() == (rank == "0")
