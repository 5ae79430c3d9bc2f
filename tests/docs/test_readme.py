"""Every command and code block of the README does what it says."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lineage

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_readme_has_no_command_that_no_test_here_runs() -> None:
    assert commands() == ["make demo", "make test", ".venv/bin/lineage tui sample_runs"]
    assert len(blocks("python")) == 1


@pytest.mark.parametrize(("target", "expected"), [("demo", "lineage demo runs"), ("test", "pytest")])
def test_both_make_commands_set_up_and_then_do_the_job(target: str, expected: str, tmp_path: Path) -> None:
    """Where there is no environment yet, make plans to install one first; here it only says what it would do."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    told = subprocess.run(
        ["make", "-n", "--no-print-directory", target],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
    )
    planned = told.stdout
    assert planned.index("venv") < planned.index("pip install") < planned.index(expected)
    assert planned.count("pip install") == 1


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_training_loop_of_the_readme_trains_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    added = [line for line in code.splitlines() if "run" in line or "lineage" in line]
    assert len(added) <= 10, "about ten lines are what a user adds"
    for steps in (15, 30):
        exec(code, namespace(steps))
    (run_dir,) = (tmp_path / "runs").iterdir() if steps == 15 else sorted((tmp_path / "runs").iterdir())[:1]
    view = lineage.read(run_dir)
    assert view.state == "completed"
    assert list(view.series("loss").step) == list(range(1, 16))


def namespace(max_steps: int) -> dict[str, object]:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train_step(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss, norm

    return {
        "config": {"max_steps": max_steps, "batch_size": 8},
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "loader": DataLoader(data, batch_size=8, sampler=lineage.ResumableSampler(64, shuffle=True, seed=3)),
        "train_step": train_step,
    }


def test_the_viewer_opens_the_sample_runs_in_a_terminal() -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", TEXTUAL_ANIMATIONS="none", LINES="30", COLUMNS="100")
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "lineage", "tui", "sample_runs"])
    painted = b""
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and b"not restored" not in painted:
            if select.select([fd], [], [], 0.2)[0]:
                painted += os.read(fd, 65536)
        assert b"not restored" in painted  # of the careless one; a narrow list cuts its name
        os.write(fd, b"q")
        while time.monotonic() < deadline:
            with_output = select.select([fd], [], [], 0.1)[0]
            try:
                if with_output:
                    os.read(fd, 65536)
            except OSError:
                pass
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 0
                return
        pytest.fail("q did not quit")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.close(fd)


def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).stat().st_size > 10_000
