"""The benchmarks run and say what they promise; their figures are judged by people, on quiet machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["log", "kill"])
def test_a_benchmark_prints_its_table_and_writes_its_json(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode in {0, 1}, found.stderr
    report = json.loads((tmp_path / f"{name}.json").read_text())
    assert report["benchmark"] == name
    assert report["rows"]
    assert report["goals"]
    assert (found.returncode == 0) == all(report["goals"].values())
    assert "lineage" in found.stdout


def test_an_unknown_benchmark_is_a_usage_error_that_names_the_known_ones() -> None:
    found = subprocess.run([sys.executable, "-m", "benchmarks", "nope"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 2
    assert "log, kill" in found.stderr
