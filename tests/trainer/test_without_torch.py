"""A process without PyTorch logs as any other; what needs it says what to install, and which words are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NO_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails as where it is not installed
import lineage
run = lineage.init("runs", name="bare", recipe={"lr": 0.1})
try:
    {line}
except lineage.LineageError as error:
    print(error.what, "|", error.hint)
for step in run.steps(3):
    run.log(loss=1.0 / step)
run.finish()
print(run.ended, run.step)
"""


def in_a_process(line: str, folder: Path) -> list[str]:
    script = NO_TORCH.replace("{line}", line)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("run.track(model=object())", "tracking and checkpointing"),
        ("run.track_as('loader', stream=object())", "tracking and checkpointing"),
        ("run.checkpoint()", "tracking and checkpointing"),
        ("run.export('final')", "tracking and checkpointing"),
        ("next(run.batches([1, 2]))", "tracking and checkpointing"),
        ("lineage.ResumableSampler", "lineage.ResumableSampler"),
    ],
)
def test_what_needs_torch_names_the_extra_and_the_run_goes_on(tmp_path: Path, line: str, what: str) -> None:
    said, ended = in_a_process(line, tmp_path)
    assert said.startswith(f"{what} needs PyTorch, which is not installed | pip install ")
    assert '"lineage-tracker[torch]"' in said
    assert ended == "completed 3"


def test_another_module_that_is_missing_is_not_taken_for_torch(tmp_path: Path) -> None:
    line = "sys.modules['safetensors'] = sys.modules['lineage.checkpoint.registry'] = None; run.track(model=object())"
    script = NO_TORCH.replace("{line}", line).replace('sys.modules["torch"] = None', "pass")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: import of lineage.checkpoint.registry halted" in done.stderr
