"""How long people wait before a command answers, and a training script for its import, beside a bare interpreter."""

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

TITLE = "Starting"
RUNS = 1000


def measure(words: list[str], cwd: Path) -> tuple[float, float]:
    """Milliseconds on the wall and of the processor of one process."""
    began = time.perf_counter()
    with Path(os.devnull).open("wb") as null:
        child = subprocess.Popen([sys.executable, *words], cwd=cwd, stdout=null, stderr=null)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{words} ended with {child.returncode}")
    return (time.perf_counter() - began) * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def run(*, quick: bool = False) -> Report:
    """Medians of interleaved starts."""
    rounds, num_runs = (5, 100) if quick else (15, RUNS)
    folder = Path(tempfile.mkdtemp(prefix="lineage-start-"))
    try:
        made = write_run(folder / "one", steps=300, sessions=3)
        for number in range(num_runs):
            copy = folder / "runs" / f"20260101-000000-run-{number}"
            copy.mkdir(parents=True)
            for name in ("run.json", "metrics.jsonl"):
                (copy / name).hardlink_to(made / name)
        commands = {
            "python -c pass": ["-c", "pass"],
            "import lineage": ["-c", "import lineage"],
            "lineage --help": ["-m", "lineage", "--help"],
            "lineage show RUN": ["-m", "lineage", "show", str(made)],
            f"lineage ls, {num_runs:,} runs": ["-m", "lineage", "ls", "runs"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, words in commands.items():
                found[name].append(measure(words, folder))
    finally:
        shutil.rmtree(folder)
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    bare = medians["python -c pass"]
    rows: list[dict[str, Figure]] = [
        {"what": name, "ms over bare": wall - bare[0], "ms": wall, "CPU ms": cpu}
        for name, (wall, cpu) in medians.items()
    ]
    over = {name: wall - bare[0] for name, (wall, _) in medians.items()}
    goals = {
        "import lineage in at most 100 ms over a bare interpreter": over["import lineage"] <= 100,
        "lineage --help in at most 150 ms over a bare interpreter": over["lineage --help"] <= 150,
        f"lineage ls over {num_runs:,} runs in under 1 s": medians[f"lineage ls, {num_runs:,} runs"][0] < 1000,
    }
    notes = [f"{rounds} rounds, files in the page cache; CPU is what a busy machine leaves comparable"]
    return Report(TITLE, rows, goals, notes)
