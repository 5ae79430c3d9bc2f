"""SIGKILL at every write, fsync and mkdir of a save: the newest committed generation always restores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = Path(__file__).parent / "kill_sweep.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path_factory.mktemp("sweep") / "runs")],
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_child_was_really_killed(sweep: dict[str, Any]) -> None:
    assert {"mkdir", "open", "write", "fsync", "replace"} <= set(sweep["calls"])
    assert all(kill["killed"] for kill in sweep["kills"])
    assert len(sweep["kills"]) > 40


def test_the_newest_committed_generation_restores_bit_for_bit_after_every_kill(sweep: dict[str, Any]) -> None:
    wrong = [kill for kill in sweep["kills"] if not kill["right"]]
    assert wrong == []


def test_a_kill_before_the_marker_goes_back_and_one_after_it_does_not(sweep: dict[str, Any]) -> None:
    steps = [kill["step"] for kill in sweep["kills"]]
    assert steps == sorted(steps), "once committed, always found"
    assert {1, 2} == set(steps)
