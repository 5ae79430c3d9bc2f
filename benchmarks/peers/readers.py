"""Ways to read a log into numpy arrays, each run in a process of its own: `python -m benchmarks.peers.readers NAME RUN`.

Prints one line of JSON: seconds, processor seconds, peak megabytes (both with those of helper processes), rows, and the sum
of every finite loss, which all readers must agree on. Imports are made before the clock starts. Standard library only until a reader runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.peers.child import peak_mb

Answer: TypeAlias = tuple[int, float]
"""Rows, and the sum of the finite losses."""


def read_bytes(run: Path, metrics: list[str]) -> Answer:
    """The bytes alone: what no reader can beat."""
    del metrics
    with (run / "metrics.jsonl").open("rb", buffering=0) as log:
        while log.read(1 << 20):
            pass
    return 0, 0.0


def _of_columns(columns: Any) -> Answer:
    numpy: Any = importlib.import_module("numpy")
    sessions = columns.sessions.values()
    values = [session.metrics["loss"].values for session in sessions if "loss" in session.metrics]
    return sum(map(len, sessions)), float(sum(numpy.nansum(part) for part in values))


def read_columns(run: Path, metrics: list[str]) -> Answer:
    """`Columns.open` on the log alone, without leaving a cache."""
    del metrics
    return _of_columns(importlib.import_module("lineage.log.columns").Columns.open(run, cache=False))


def read_columns_warm(run: Path, metrics: list[str]) -> Answer:
    """`Columns.open` with the cache that an earlier reader left."""
    del metrics
    return _of_columns(importlib.import_module("lineage.log.columns").Columns.open(run))


def read_view(run: Path, metrics: list[str]) -> Answer:
    """`lineage.read`, and every curve of the run, all attempts; leaves a cache where there was none."""
    numpy: Any = importlib.import_module("numpy")
    view = importlib.import_module("lineage").read(run)
    curves = {name: view.series(name, superseded=True) for name in metrics}
    return len(curves["loss"].step), float(numpy.nansum(curves["loss"].value))


def read_duckdb(run: Path, metrics: list[str]) -> Answer:
    duckdb: Any = importlib.import_module("duckdb")
    numpy: Any = importlib.import_module("numpy")
    duckdb.sql("SET enable_progress_bar = false")
    struct = ", ".join(f"{name} DOUBLE" for name in metrics)
    columns = (
        "{kind: 'VARCHAR', session: 'VARCHAR', step: 'BIGINT', ts: 'DOUBLE', duration_s: 'DOUBLE', tokens: 'BIGINT', "
        f"metrics: 'STRUCT({struct})'}}"
    )
    source = f"read_json('{run / 'metrics.jsonl'}', format='newline_delimited', columns={columns})"
    wanted = ", ".join(["session", "step", "ts", "duration_s", "tokens", *(f"metrics.{name}" for name in metrics)])
    found = duckdb.sql(f"SELECT {wanted} FROM {source} WHERE kind = 'step'").fetchnumpy()
    loss = found["loss"]
    return len(found["step"]), float(numpy.nansum(loss.filled(float("nan")) if hasattr(loss, "filled") else loss))


def read_polars(run: Path, metrics: list[str]) -> Answer:
    polars: Any = importlib.import_module("polars")
    schema = {"kind": polars.String, "session": polars.String, "step": polars.Int64, "ts": polars.Float64}
    schema |= {"duration_s": polars.Float64, "tokens": polars.Int64}
    schema |= {"metrics": polars.Struct(dict.fromkeys(metrics, polars.Float64))}
    frame = polars.scan_ndjson(run / "metrics.jsonl", schema=schema, ignore_errors=True)
    frame = frame.filter(polars.col("kind") == "step").drop("kind").unnest("metrics").collect()
    arrays = [frame[name].to_numpy() for name in ("step", "ts", "duration_s", "tokens", *metrics)]
    return len(arrays[0]), float(frame["loss"].drop_nans().sum())


def read_orjson(run: Path, metrics: list[str]) -> Answer:
    """The obvious loop: a line, a dict, an array a column."""
    loads: Callable[[bytes], Any] = importlib.import_module("orjson").loads
    numpy: Any = importlib.import_module("numpy")
    step, ts = array("q"), array("d")
    columns = {name: array("d") for name in metrics}
    with (run / "metrics.jsonl").open("rb") as log:
        for line in log:
            event = loads(line)
            if event["kind"] == "step":
                step.append(event["step"])
                ts.append(event["ts"])
                for name, value in event["metrics"].items():
                    columns[name].append(float("nan") if value is None else value)
    arrays = {name: numpy.frombuffer(column) for name, column in columns.items()}
    return len(step), float(numpy.nansum(arrays["loss"]))


READERS: dict[str, tuple[Callable[[Path, list[str]], Answer], tuple[str, ...]]] = {
    "lineage columns, cold": (read_columns, ("numpy", "lineage.log.columns")),
    "lineage columns, warm": (read_columns_warm, ("numpy", "lineage.log.columns")),
    "lineage.read and all curves, cold": (read_view, ("numpy", "lineage.view")),
    "lineage.read and all curves, warm": (read_view, ("numpy", "lineage.view")),
    "duckdb": (read_duckdb, ("numpy", "duckdb")),
    "polars": (read_polars, ("numpy", "polars")),
    "orjson, line by line": (read_orjson, ("numpy", "orjson")),
    "the bytes alone": (read_bytes, ()),
}
"""Each with the modules it needs, imported before the clock starts."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=READERS)
    parser.add_argument("run", type=Path)
    parser.add_argument("metrics", nargs="+")
    options = parser.parse_args(argv)
    read, modules = READERS[options.name]
    for module in modules:
        importlib.import_module(module)
    before = time.process_time()
    began = time.perf_counter()
    rows, total = read(options.run, options.metrics)
    took = time.perf_counter() - began
    cpu, mb = time.process_time() - before, peak_mb("self")
    helped = resource.getrusage(resource.RUSAGE_CHILDREN)
    if helped.ru_maxrss:  # of the largest child
        cpu += helped.ru_utime + helped.ru_stime
        mb += helped.ru_maxrss / 1024 * (importlib.import_module("lineage.log.parallel").num_readers() - 1)
    print(json.dumps({"s": took, "cpu_s": cpu, "mb": mb, "rows": rows, "sum": total}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
