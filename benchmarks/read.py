"""Reading a long log into columns, beside DuckDB, polars and plain orjson on the same file.

Every reader runs in a process of its own, in turns, and ends with numpy arrays of step, time and every metric.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Figure, Report
from benchmarks.synthetic import METRICS, Plan, write_run

TITLE = "Reading a log into columns"
STEPS = 2_000_000
QUICK_STEPS = 100_000
GOAL_RATIO = 2.0
GOAL_WARM_S = 0.3


def read_bytes(run: Path) -> int:
    """The bytes alone: what no reader can beat."""
    size = 0
    with (run / "metrics.jsonl").open("rb", buffering=0) as log:
        while piece := log.read(1 << 20):
            size += len(piece)
    return size


def read_lineage_cold(run: Path) -> int:
    from lineage.log.columns import Columns

    return sum(map(len, Columns.open(run, cache=False).sessions.values()))


def read_lineage_warm(run: Path) -> int:
    from lineage.log.columns import Columns

    return sum(map(len, Columns.open(run).sessions.values()))


def read_duckdb(run: Path) -> int:
    import duckdb  # type: ignore[import-not-found,unused-ignore]  # a peer, installed where somebody compares

    metrics = ", ".join(f"{name} DOUBLE" for name in METRICS)
    columns = f"{{kind: 'VARCHAR', session: 'VARCHAR', step: 'BIGINT', ts: 'DOUBLE', duration_s: 'DOUBLE', tokens: 'BIGINT', metrics: 'STRUCT({metrics})'}}"
    wanted = ", ".join(
        ["session", "step", "ts", "duration_s", "tokens", *(f"metrics.{name} AS {name}" for name in METRICS)]
    )
    source = f"read_json('{run / 'metrics.jsonl'}', format='newline_delimited', columns={columns})"
    found = duckdb.sql(f"SELECT {wanted} FROM {source} WHERE kind = 'step'").fetchnumpy()
    return len(found["step"])


def read_polars(run: Path) -> int:
    import polars as pl

    schema = {"kind": pl.String, "session": pl.String, "step": pl.Int64, "ts": pl.Float64, "duration_s": pl.Float64}
    schema |= {"tokens": pl.Int64, "metrics": pl.Struct(dict.fromkeys(METRICS, pl.Float64))}
    frame = pl.scan_ndjson(run / "metrics.jsonl", schema=schema, ignore_errors=True)
    frame = frame.filter(pl.col("kind") == "step").drop("kind").unnest("metrics").collect()
    return len({name: frame[name].to_numpy() for name in METRICS}["loss"])


def read_orjson_lines(run: Path) -> int:
    from array import array

    import numpy as np
    import orjson

    step, ts = array("q"), array("d")
    columns = {name: array("d") for name in METRICS}
    with (run / "metrics.jsonl").open("rb") as log:
        for line in log:
            event = orjson.loads(line)
            if event["kind"] == "step":
                step.append(event["step"])
                ts.append(event["ts"])
                for name, value in event["metrics"].items():
                    columns[name].append(float("nan") if value is None else value)
    return len({name: np.frombuffer(column) for name, column in columns.items()}["loss"])


READERS: dict[str, Callable[[Path], int]] = {
    "lineage, cold": read_lineage_cold,
    "lineage, warm": read_lineage_warm,
    "duckdb": read_duckdb,
    "polars": read_polars,
    "orjson, line by line": read_orjson_lines,
    "the bytes alone": read_bytes,
}


def measure(name: str, run: Path) -> tuple[float, float, float]:
    """Seconds on the wall, of the processor, and MB at most, of one reading in a process of its own; imports apart."""
    script = (
        "import json, resource, sys, time, pathlib\n"
        "import numpy, orjson, lineage.log.columns\n"
        "from benchmarks import read\n"
        "name, run = sys.argv[1], pathlib.Path(sys.argv[2])\n"
        "name in ('duckdb', 'polars') and __import__(name)\n"
        "before = time.process_time()\n"
        "began = time.perf_counter()\n"
        "count = read.READERS[name](run)\n"
        "took = time.perf_counter() - began\n"
        "cpu = time.process_time() - before\n"
        "print(json.dumps([took, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, count]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, name, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    took, cpu, megabytes, _ = json.loads(done.stdout)
    return took, cpu, megabytes


def run(*, quick: bool = False) -> Report:
    """Medians of interleaved rounds, as ratios to DuckDB where it is installed, else to the bytes alone."""
    steps, rounds = (QUICK_STEPS, 2) if quick else (STEPS, 3)
    names = [name for name in READERS if name not in {"duckdb", "polars"} or importlib.util.find_spec(name) is not None]
    folder = Path(tempfile.mkdtemp(prefix="lineage-read-"))
    try:
        plan = Plan(steps=steps, sessions=4, metrics=len(METRICS), overlap=500, skip_every=5003)
        plan.checkpoint_every, plan.eval_every = max(1000, steps // 100), max(1000, steps // 200)
        made = write_run(folder, plan)
        size_mb = (made / "metrics.jsonl").stat().st_size / 1e6
        measure("lineage, warm", made)  # leaves the cache
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                found[name].append(measure(name, made))
                time.sleep(0.1)
    finally:
        shutil.rmtree(folder)
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    base = "duckdb" if "duckdb" in medians else "the bytes alone"
    rows: list[dict[str, Figure]] = [
        {"reader": name, f"x {base}": took / medians[base][0], "s": took, "CPU s": cpu, "MB at most": megabytes}
        for name, (took, cpu, megabytes) in medians.items()
    ]
    goals = {f"warm in at most {GOAL_WARM_S} s": medians["lineage, warm"][0] <= GOAL_WARM_S}
    notes = [f"{steps * len(METRICS):,} points, {steps:,} lines, {size_mb:,.0f} MB, page cache warm, {rounds} rounds"]
    if base == "duckdb":
        ratio = medians["lineage, cold"][0] / medians["duckdb"][0]
        goals[f"cold in at most {GOAL_RATIO:.0f} times DuckDB's time"] = ratio <= GOAL_RATIO
        goals["with less memory than DuckDB"] = medians["lineage, cold"][2] < medians["duckdb"][2]
        notes.append("DuckDB uses every core; Lineage parses on one and reads ahead on another")
    else:
        notes.append("duckdb is not installed, so nothing is said about the cold reading")
    return Report(TITLE, rows, goals, notes)
