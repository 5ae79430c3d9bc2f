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

RUNS = 1000
BARE = "python -c pass"
_TRAIN = (
    "import lineage; run = lineage.init('fresh', name='x', recipe={'lr': 3e-4}, resume='never'); "
    "run.log(loss=1.0); run.finish()"
)


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
    """Interleaved starts: the fastest on the wall, since everything else on the machine only adds; medians of CPU."""
    rounds, num_runs = (5, 100) if quick else (15, RUNS)
    folder = Path(tempfile.mkdtemp(prefix="bench-start-", dir=Path.cwd()))
    listing = f"lineage ls, {num_runs:,} runs"
    try:
        made = write_run(folder / "one", steps=300, sessions=3)
        for number in range(num_runs):
            copy = folder / "runs" / f"20260101-000000-run-{number}"
            copy.mkdir(parents=True)
            for name in ("run.json", "metrics.jsonl"):
                (copy / name).hardlink_to(made / name)
        commands = {
            BARE: ["-c", "pass"],
            "import lineage": ["-c", "import lineage"],
            "import lineage; lineage.init": ["-c", "import lineage; lineage.init"],
            "init, one log, finish": ["-c", _TRAIN],
            "import lineage; lineage.read": ["-c", "import lineage; lineage.read"],
            "lineage --help": ["-m", "lineage", "--help"],
            "lineage show RUN": ["-m", "lineage", "show", str(made)],
            listing: ["-m", "lineage", "ls", "runs"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, words in commands.items():
                found[name].append(measure(words, folder))
    finally:
        shutil.rmtree(folder)
    wall = {name: min(taken for taken, _ in turns) for name, turns in found.items()}
    cpu = {name: statistics.median(spent for _, spent in turns) for name, turns in found.items()}
    rows: list[dict[str, Figure]] = [
        {
            "what": name,
            "ms over bare": wall[name] - wall[BARE],
            "CPU ms over bare": cpu[name] - cpu[BARE],
            "ms": wall[name],
            "CPU ms": cpu[name],
        }
        for name in commands
    ]
    imported, helped = (wall[name] - wall[BARE] for name in ("import lineage", "lineage --help"))
    report = Report("start: what a process costs before it does anything", rows)
    report.goals[f"import lineage in at most 100 ms over a bare interpreter ({imported:.0f} ms)"] = imported <= 100
    report.goals[f"lineage --help in at most 150 ms over a bare interpreter ({helped:.0f} ms)"] = helped <= 150
    report.goals[f"lineage ls over {num_runs:,} runs in under 1 s ({wall[listing] / 1000:.2f} s)"] = (
        wall[listing] < 1000
    )
    report.notes += [
        f"the fastest of {rounds} interleaved rounds on the wall, the median of processor time; files in the page cache",
        "lineage.init is loaded when it is first used: the schemas and pydantic come with it, torch does not",
    ]
    return report
