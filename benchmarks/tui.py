"""Time to draw one chart of the terminal UI, from 400 to ten million points a series."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Figure, Report
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


def run(*, quick: bool = False) -> Report:
    rows = measure([400, 40_000] if quick else [400, 4_000, 40_000, 1_000_000, 10_000_000], 0.2 if quick else 1.0)
    report = Report("tui: one 200x50 braille chart with phases, boundaries and events, CPU milliseconds a frame", rows)
    for num_series, limit in GOALS.items():
        worst = max(float(row["median ms"] or 0) for row in rows if row["series"] == num_series)
        report.goals[f"a pan with {num_series} series of any length takes at most {limit} ms ({worst})"] = (
            worst <= limit
        )
    report.notes.append("first: with nothing kept from an earlier frame; for long series that is the pyramid, once")
    return report
