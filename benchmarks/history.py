"""Proving, comparing and explaining a long run from the command line, and what the proof costs while training.

The verbs run in processes of their own on one synthetic run, whose columns are cached (warm). The cost while training
is that of `Comparer.wants` and `Comparer.compare` for one step, outside and inside the steps trained twice.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Figure, Report
from benchmarks.synthetic import write_run
from lineage.history.continuation import Comparer, StepWitness

TITLE = "Audit, diff and explain of a long run"
STEPS = 1_000_000
QUICK_STEPS = 100_000
OVERLAP = 2_000
GOAL_S = 3.0


def measure(words: list[str], cwd: Path) -> tuple[float, float]:
    """Seconds on the wall and of the processor of one command."""
    began = time.perf_counter()
    with Path(os.devnull).open("wb") as null:
        child = subprocess.Popen([sys.executable, "-m", "lineage", *words], cwd=cwd, stdout=null, stderr=null)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise RuntimeError(f"lineage {words} ended with {child.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def compare_us(count: int) -> tuple[float, float]:
    """Microseconds of a step outside and inside the overlap."""
    reference = {s: _witness(s) for s in range(1, count + 1)}
    steps = [_witness(s) for s in range(1, count + 1)]
    comparer = Comparer(reference)
    began = time.perf_counter_ns()
    for witness in steps:
        comparer.compare(witness)
    inside = (time.perf_counter_ns() - began) / count / 1e3
    wants = comparer.wants
    began = time.perf_counter_ns()
    for step in range(count + 1, 2 * count + 1):
        wants(step)
    return (time.perf_counter_ns() - began) / count / 1e3, inside


def _witness(step: int) -> StepWitness:
    rates = {"adamw": (1e-3, 1e-4), "muon": (2e-2,)}
    return StepWitness(step, f"{step:032x}", f"{step:032x}", rates, {"scaler": 65536.0}, 2.5, 0.7)


def run(*, quick: bool = False) -> Report:
    """Medians of interleaved commands."""
    rounds, steps = (3, QUICK_STEPS) if quick else (5, STEPS)
    folder = Path(tempfile.mkdtemp(prefix="lineage-history-"))
    try:
        made = write_run(folder / "runs", steps=steps, sessions=4, overlap=OVERLAP, checkpoint_every=5_000)
        commands = {
            "audit": ["audit", str(made)],
            "diff": ["diff", f"{made}@1", f"{made}@4"],
            "explain": ["explain", str(made)],
            "explain --step": ["explain", str(made), "--step", str(steps // 2)],
        }
        measure(commands["explain"], folder)  # fills the cache of columns
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, words in commands.items():
                found[name].append(measure(words, folder))
    finally:
        shutil.rmtree(folder)
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    rows: list[dict[str, Figure]] = [
        {"command": f"lineage {name}", "s": wall, "CPU s": cpu} for name, (wall, cpu) in medians.items()
    ]
    outside, inside = compare_us(2_000 if quick else 20_000)
    notes = [
        f"{steps:,} steps, 4 sessions, {OVERLAP:,} steps trained twice; {rounds} rounds, columns cached, process start included",
        f"while training, a step costs {outside:.2f} us outside of the steps trained twice and {inside:.1f} us inside",
    ]
    goals = {f"{name} of {steps:,} steps in under {GOAL_S:.0f} s": wall < GOAL_S for name, (wall, _) in medians.items()}
    goals["a step outside of the overlap costs less than 1 us"] = outside < 1.0
    return Report(TITLE, rows, goals, notes)
