"""The terminal UI: time to draw one chart, and with `--full` a run of ten million points opened and used."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import read
from benchmarks.peers import ROOT
from benchmarks.report import Figure, Report
from benchmarks.synthetic import METRICS, write_run
from lineage.layout import RunDir
from lineage_tui.plot import ChartModel, Mark, Memo, SeriesData, Span, View, VLine, render

SIZE = (200, 50)
GOALS = {1: 7.0, 8: 18.0}


def curve(key: str, n: int, hue: int, seed: int = 0) -> SeriesData:
    rng = np.random.default_rng(seed + hue)
    x = np.arange(1, n + 1, dtype=np.float64)
    y = 2.3 + 0.1 * hue + 7 * np.exp(-x / (n / 10)) + rng.normal(0, 0.12, n)
    y[:: max(n // 50, 1)] += 2.0
    return SeriesData(key, key, x, y, hue=hue)


def chart(num_points: int, num_series: int) -> ChartModel:
    n = float(num_points)
    return ChartModel(
        "loss",
        tuple(curve(f"s{index}", num_points, index) for index in range(num_series)),
        spans=tuple(Span(n * share, n * (share + 0.02), "eval") for share in (0.2, 0.4, 0.6)),
        lines=(VLine(n * 0.33, "boundary", "s2 exact"), VLine(n * 0.36, "death", "s1 killed")),
        marks=tuple(Mark(n * share, "fp16_skip") for share in np.linspace(0.01, 0.99, 40)),
    )


def cpu_ms(draw: Callable[[int], object], least: int = 15, budget_s: float = 1.0) -> tuple[float, float]:
    """Median and 99th percentile of CPU milliseconds of one call, after one that warms up."""
    draw(0)
    taken: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(taken) < least or (time.perf_counter() < stop and len(taken) < 200):
        began = time.process_time()
        draw(len(taken) + 1)
        taken.append((time.process_time() - began) * 1e3)
    return float(np.median(taken)), float(np.percentile(taken, 99))


def measure(points: list[int], budget_s: float) -> list[dict[str, Figure]]:
    rows: list[dict[str, Figure]] = []
    for num_points in points:
        for num_series in (1, 8) if num_points <= 1_000_000 else (1,):
            model = chart(num_points, num_series)
            for name, view in (("raw", View()), ("smoothed", View(smoothing=0.99))):
                memo = Memo()
                began = time.process_time()
                render(model, view, *SIZE, memo=memo)
                first = (time.process_time() - began) * 1e3

                def draw(turn: int, model: ChartModel = model, view: View = view, memo: Memo = memo) -> object:
                    last = float(model.series[0].x[-1])
                    x0 = last * 0.001 * (turn % 50)  # a pan: nothing of the last frame can be used again
                    return render(model, view.but(x0=x0, x1=x0 + last * 0.9, cursor_x=last / 2), *SIZE, memo=memo)

                median, p99 = cpu_ms(draw, budget_s=budget_s)
                rows.append(
                    {
                        "points a series": f"{num_points:,}",
                        "series": num_series,
                        "view": name,
                        "median ms": round(median, 2),
                        "p99 ms": round(p99, 2),
                        "first ms": round(first, 1),
                    }
                )
    return rows


def in_a_process(mode: str, folder: Path, *words: str) -> Any:
    """The figures of `benchmarks.tui_app` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tui_app", mode, str(folder), *words]
    read.hand_out_memory()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def screens(steps: int = 2_000_000, rounds: int = 3) -> Report:
    """A run opened cold and warm, in turns with DuckDB's reading of the same file."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": [], "duckdb": []}
    with tempfile.TemporaryDirectory(prefix="bench-tui-") as scratch:
        made = write_run(
            Path(scratch),
            steps=steps,
            sessions=4,
            metrics=len(METRICS),
            overlap=500,
            skip_every=5003,
            checkpoint_every=max(1000, steps // 100),
            eval_every=max(1000, steps // 200),
        )
        small = in_a_process(
            "open", write_run(Path(scratch), steps=600, sessions=4, metrics=len(METRICS), name="small")
        )
        num_points = steps * len(METRICS)
        log_mb = RunDir(made).log.stat().st_size / 1e6
        has_duckdb = read.python_for("duckdb") is not None
        for _ in range(rounds):
            shutil.rmtree(RunDir(made).cache_dir, ignore_errors=True)
            found["cold"].append(in_a_process("open", made))
            found["warm"].append(in_a_process("open", made))
            if has_duckdb:
                found["duckdb"].append(read.measure("duckdb", made))

    def median(kind: str, name: str) -> float:
        return statistics.median(one[name] for one in found[kind])

    columns_mb = steps * (len(METRICS) + 4) * 8 / 1e6  # and step, time, duration and tokens
    rows: list[dict[str, Figure]] = [
        {
            "opened": kind,
            "first frame s": round(median(kind, "first_s"), 2),
            "complete s": round(median(kind, "complete_s"), 2),
            "complete CPU s": round(median(kind, "complete_cpu_s"), 2),
            "MB more than for 600 steps": round(median(kind, "mb") - small["mb"]),
            "a key, CPU ms": round(median(kind, "key_ms"), 1),
            "p99": round(median(kind, "key_p99_ms"), 1),
        }
        for kind in ("cold", "warm")
    ]
    report = Report(f"tui: {num_points:,} points ({log_mb:,.0f} MB) at 200x50, four charts", rows)
    goals = report.goals
    for kind in ("cold", "warm"):
        first, key, p99 = median(kind, "first_s"), median(kind, "key_ms"), median(kind, "key_p99_ms")
        goals[f"{kind}: first frame within 1 s ({first:.2f})"] = first < 1
        goals[f"{kind}: a key takes under 50 ms ({key:.0f}), and under 100 at the 99th percentile ({p99:.0f})"] = (
            key < 50 and p99 < 100
        )
        factor = (median(kind, "mb") - small["mb"]) / columns_mb
        goals[f"{kind}: memory at most 3x the columns of {columns_mb:,.0f} MB ({factor:.1f}x)"] = factor <= 3
    warm_s = median("warm", "complete_s")
    goals[f"warm: complete within 0.5 s ({warm_s:.2f})"] = warm_s < 0.5
    if has_duckdb:
        wall = median("cold", "complete_s") / median("duckdb", "s")
        cpu = median("cold", "complete_cpu_s") / median("duckdb", "cpu_s")
        goals[f"cold: complete within 3x of DuckDB's reading ({wall:.1f}x; processor time {cpu:.1f}x)"] = wall <= 3
    report.notes += [
        f"medians of {rounds} rounds, from the start of the app (Textual is imported)",
        f"{median('warm', 'num_series'):.0f} series in the four charts; keys: zoom, pan, cursor, jumps to events and sessions",
    ]
    return report


def overlay(steps: int = 250_000, runs: int = 8) -> Report:
    """Long runs laid over each other, zoomed and panned."""
    with tempfile.TemporaryDirectory(prefix="bench-tui-") as scratch:
        for number in range(runs):
            write_run(
                Path(scratch),
                steps=steps,
                sessions=3,
                metrics=len(METRICS),
                overlap=500,
                seed=number,
                name=f"r{number}",
            )
        found = in_a_process("overlay", Path(scratch))
    row: dict[str, Figure] = {
        "runs": runs,
        "series": int(found["num_series"]),
        "complete s": round(found["complete_s"], 2),
        "complete CPU s": round(found["complete_cpu_s"], 2),
        "a key, CPU ms": round(found["key_ms"], 1),
        "p99": round(found["key_p99_ms"], 1),
    }
    report = Report(f"tui: {runs} runs of {steps:,} steps laid over each other at 200x50, four charts, cold", [row])
    key, p99 = found["key_ms"], found["key_p99_ms"]
    report.goals[f"a key takes under 50 ms ({key:.0f}), and under 100 at the 99th percentile ({p99:.0f})"] = (
        key < 50 and p99 < 100
    )
    return report


def run(*, quick: bool = False, full: bool = False) -> Report:
    rows = measure([400, 40_000] if quick else [400, 4_000, 40_000, 1_000_000, 10_000_000], 0.2 if quick else 1.0)
    report = Report("tui: one 200x50 braille chart with phases, boundaries and events, CPU milliseconds a frame", rows)
    for num_series, limit in GOALS.items():
        worst = max(float(row["median ms"] or 0) for row in rows if row["series"] == num_series)
        report.goals[f"a pan with {num_series} series of any length takes at most {limit} ms ({worst})"] = (
            worst <= limit
        )
    if full:
        report.more.append(screens(100_000, 1) if quick else screens())
        report.more.append(overlay(10_000) if quick else overlay())
    report.notes.append("first: with nothing kept from an earlier frame; for long series that is the pyramid, once")
    return report
