"""Reading a long log into columns, beside DuckDB, polars and plain orjson on the same file.

Every reader runs in a process of its own, in turns, and ends with numpy arrays of step, time and every metric. What
they read must be the same: the same rows, and the same sum of the losses.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peers import ROOT, environment_dir, environment_python
from benchmarks.peers.readers import READERS
from benchmarks.report import Figure, Report
from benchmarks.synthetic import METRICS, write_run
from lineage.layout import RunDir

GOAL_RATIO = 2.0
GOAL_WARM_S = 0.3
_TOUCHED_BYTES = 1_500_000_000

BYTES = "the bytes alone"
COLD, WARM = "lineage columns, cold", "lineage columns, warm"
VIEW_COLD, VIEW_WARM = "lineage.read and all curves, cold", "lineage.read and all curves, warm"
BASELINES = ("duckdb", "polars")


def python_for(reader: str) -> Path | None:
    """The interpreter that has what the reader needs; None where none has."""
    if reader not in BASELINES or importlib.util.find_spec(reader) is not None:
        return Path(sys.executable)
    return environment_python("readers") if (environment_dir("readers") / ".made").exists() else None


def hand_out_memory() -> None:
    """Have a process touch more memory than any reader needs, and end.

    A virtual machine gets a page from its host when it is first touched, and gives free ones back: up to 4 ms a MB
    here against 0.07 for a page that is there. Who came first would pay for who comes next.
    """
    subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({_TOUCHED_BYTES // 8})"], check=True)


def measure(reader: str, run: Path) -> dict[str, float]:
    """One reading in a process of its own."""
    if reader == VIEW_COLD:
        shutil.rmtree(RunDir(run).cache_dir, ignore_errors=True)
    command = [str(python_for(reader)), "-m", "benchmarks.peers.readers", reader, str(run), *METRICS]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(ROOT)
    hand_out_memory()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_log(steps: int, rounds: int) -> Report:
    """One log of `steps` lines: medians of interleaved rounds, as ratios to DuckDB, else to the bytes alone."""
    readers = [reader for reader in READERS if python_for(reader) is not None]
    folder = Path(tempfile.mkdtemp(prefix="bench-read-", dir=Path.cwd()))
    try:
        made = write_run(
            folder,
            steps=steps,
            sessions=4,
            metrics=len(METRICS),
            overlap=500,
            skip_every=5003,
            checkpoint_every=max(1000, steps // 100),
            eval_every=max(1000, steps // 200),
        )
        size_mb = (made / "metrics.jsonl").stat().st_size / 1e6
        measure(VIEW_COLD, made)  # leaves the cache, and the log in memory
        found: dict[str, list[dict[str, float]]] = {reader: [] for reader in readers}
        for _ in range(rounds):
            for reader in readers:
                found[reader].append(measure(reader, made))
                time.sleep(0.1)
    finally:
        shutil.rmtree(folder)
    _check_agreement(found)
    base = "duckdb" if "duckdb" in found else BYTES
    medians = {
        reader: {name: statistics.median(one[name] for one in turns) for name in ("s", "cpu_s", "mb")}
        for reader, turns in found.items()
    }
    rows: list[dict[str, Figure]] = [
        {
            "reader": reader,
            f"x {base}": one["s"] / medians[base]["s"],
            f"memory x {base}": one["mb"] / medians[base]["mb"],
            "s": one["s"],
            "CPU s": one["cpu_s"],
            "MB at most": one["mb"],
        }
        for reader, one in medians.items()
    ]
    points = f"{steps * len(METRICS):,}"
    report = Report(f"read: {points} points into columns ({steps:,} lines, {size_mb:,.0f} MB)", rows)
    report.goals[f"{points} points: warm in at most {GOAL_WARM_S} s ({medians[WARM]['s']:.2f} s)"] = (
        medians[WARM]["s"] <= GOAL_WARM_S
    )
    if base == "duckdb":
        ratio = medians[COLD]["s"] / medians["duckdb"]["s"]
        title = f"{points} points: cold in at most {GOAL_RATIO:.0f}x DuckDB's time ({ratio:.2f}x)"
        report.goals[title] = ratio <= GOAL_RATIO
        share = medians[COLD]["mb"] / medians["duckdb"]["mb"]
        report.goals[f"{points} points: cold with less memory than DuckDB ({share:.2f}x)"] = share < 1
    else:
        report.notes.append("duckdb is not installed, so nothing is said about the cold reading")
    report.notes += [
        f"medians of {rounds} interleaved rounds; the log is in the page cache; imports are not in the time",
        "DuckDB and polars use every core, Lineage a process a core, whose start, processor time and memory are counted",
        "before each reading a process touches 1.5 GB and ends, so that none has to wait for pages of a virtual machine",
        "lineage.read, cold: parses, keeps the columns in .cache, and hands out every curve",
    ]
    return report


def _check_agreement(found: dict[str, list[dict[str, float]]]) -> None:
    """All readers saw the same rows and losses, or one of them is wrong and its time means nothing.

    Raises:
        RuntimeError: they differ.
    """
    answers = {reader: (turns[0]["rows"], turns[0]["sum"]) for reader, turns in found.items() if reader != BYTES}
    rows, total = answers[COLD]
    for reader, (other_rows, other_total) in answers.items():
        if other_rows != rows or not math.isclose(other_total, total, rel_tol=1e-9):
            raise RuntimeError(f"{reader} read {other_rows} rows, sum {other_total}; expected {rows}, {total}")


def run(*, quick: bool = False) -> Report:
    """One million points and, unless `quick`, ten million."""
    report = read_log(200_000, 2 if quick else 3)
    if quick:
        return report
    long = read_log(2_000_000, 3)
    report.goals.clear()  # the goals are about the long log
    long.more.append(report)
    return long
