"""The screens on a real run, headless, in a process of their own: `python -m benchmarks.tui_app MODE RUN`.

`open` draws the curves at 200x50 until the whole log is in them, then presses keys; `overlay` does so with all runs of a
folder; `follow` watches a log that another
process appends to a hundred times a second, in `windows` of equal length. Prints one line of JSON: seconds (wall and
processor), and the megabytes of the process, mapped files included.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"COLORTERM": "truecolor", "TERM": "xterm-256color", "TEXTUAL_ANIMATIONS": "none"}
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does

import numpy as np
from textual.pilot import Pilot

import lineage
from lineage.log.writer import LogWriter
from lineage.runs.lock import RunLock
from lineage_tui.app import LineageApp, Options
from lineage_tui.command import quiet_collector
from lineage_tui.messages import Snapshot
from lineage_tui.screens.run import RunScreen

SIZE = (200, 50)
KEYS = (
    *("plus", "plus", "L", "L", "H", "right", "right", "left", "minus", "plus", "right", "comma"),
    *("right_curly_bracket", "n", "right", "L", "minus", "minus", "0", "right"),
)
NUM_KEYS = 240
LINES_HZ = 100
WARM_UP_S = 10.0


def _memory_mb() -> float:
    """Memory that is this process's own, and the pages of the cached columns that it has mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:"))) / 1024


def _helpers_s() -> float:
    """Processor time of the processes that helped to read."""
    helped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return helped.ru_utime + helped.ru_stime


def _is_drawn(app: LineageApp) -> bool:
    screen = app.screen
    return isinstance(screen, RunScreen) and bool(screen.charts and screen.charts[0].model.series)


def _is_complete(app: LineageApp) -> bool:
    screen, snapshot = app.screen, app.snapshot
    if not isinstance(screen, RunScreen) or snapshot is None or snapshot.num_unread or not _is_drawn(app):
        return False
    newest = snapshot.models[screen.names[0]].series[0]
    return screen.charts[0].model.series[0].y.size == newest.y.size


async def _until(done: Callable[[], bool], poll_s: float = 0.005) -> None:
    while not done():  # noqa: ASYNC110  # the app has no such event, and is not to get one for this
        await asyncio.sleep(poll_s)


async def measure_open(run: Path) -> dict[str, float]:
    """Time to the first and to the complete picture, memory, and processor time of each key."""
    app = LineageApp(run, run.parent, Options())
    began, began_cpu = time.perf_counter(), time.process_time()
    async with app.run_test(size=SIZE) as pilot:
        await _until(lambda: _is_drawn(app))
        first_s = time.perf_counter() - began
        await _until(lambda: _is_complete(app))
        found = {
            "first_s": first_s,
            "complete_s": time.perf_counter() - began,
            "complete_cpu_s": time.process_time() - began_cpu + _helpers_s(),
        }
        await asyncio.sleep(1.0)  # the audit
        found |= await _press_keys(app, pilot)
    return found


async def _press_keys(app: LineageApp, pilot: Pilot[int]) -> dict[str, float]:
    """Processor time of each key until its rows are painted; memory, and how many series the charts hold."""
    frames: list[float] = []
    screen = app.screen
    if not isinstance(screen, RunScreen):
        raise TypeError(f"the app shows {screen!r}")
    for number in range(NUM_KEYS):
        drawn_at, cpu, wall = screen._drawn_at, time.process_time(), time.perf_counter()
        await pilot.press(KEYS[number % len(KEYS)])
        await _until(lambda: screen._drawn_at != drawn_at or time.perf_counter() - wall > 0.3)  # noqa: B023
        await asyncio.sleep(0.01)  # the compositor's turn
        frames.append((time.process_time() - cpu) * 1e3)
    return {
        "key_ms": float(np.median(frames)),
        "key_p99_ms": float(np.percentile(frames, 99)),
        "mb": _memory_mb(),
        "num_series": float(sum(len(chart.model.series) for chart in screen.charts)),
    }


async def measure_overlay(folder: Path) -> dict[str, float]:
    """All runs of a folder laid over each other: time until every one is drawn, and processor time of each key."""
    runs = sorted(folder.iterdir())  # noqa: ASYNC240  # before anything is measured
    app = LineageApp(runs[0], folder, Options())
    began, began_cpu = time.perf_counter(), time.process_time()
    async with app.run_test(size=SIZE) as pilot:
        app.open_runs(runs)
        await _until(
            lambda: len(app.snapshots) == len(runs) and not any(one.num_unread for one in app.snapshots.values())
        )
        await _until(lambda: _is_drawn(app) and len(app.screen.charts[0].model.series) >= len(runs))  # type: ignore[attr-defined]
        cpu = time.process_time() - began_cpu + _helpers_s()
        found = {"complete_s": time.perf_counter() - began, "complete_cpu_s": cpu}
        await asyncio.sleep(2.0)  # the audits
        return found | await _press_keys(app, pilot)


async def measure_follow(run: Path, seconds: float, windows: int) -> list[dict[str, float]]:
    """Of each of the windows: share of a core, pictures, steps and memory, while a writer appends `LINES_HZ` steps/s."""
    command = [sys.executable, "-m", "benchmarks.tui_app", "write", str(run), str(seconds + 60)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220  # before anything is measured
    found: list[dict[str, float]] = []
    try:
        if writer.stdout is None or not writer.stdout.readline():
            raise RuntimeError("the writer did not start")
        app = LineageApp(run, run.parent, Options())
        async with app.run_test(size=SIZE):
            await _until(lambda: _is_complete(app), 0.05)
            await asyncio.sleep(WARM_UP_S)
            for _ in range(windows):
                first, mb = _shown(app), _memory_mb()
                wall, cpu = time.perf_counter(), time.process_time()
                await asyncio.sleep(seconds / windows)
                cpu, wall, last = time.process_time() - cpu, time.perf_counter() - wall, _shown(app)
                found.append(
                    {
                        "share": cpu / wall,
                        "pictures_hz": (last.version - first.version) / wall,
                        "steps_hz": ((last.last_step or 0) - (first.last_step or 0)) / wall,
                        "mb": _memory_mb(),
                        "grown_mb": _memory_mb() - mb,
                    }
                )
            return found
    finally:
        writer.kill()
        writer.wait()


def _shown(app: LineageApp) -> Snapshot:
    if app.snapshot is None:
        raise RuntimeError("the app shows no run")
    return app.snapshot


def write(run: Path, seconds: float) -> None:
    """Go on with the last session of a run, holding its lock."""
    view = lineage.read(run)
    session, step = view.sessions[-1].id, view.last_step or 0
    lock = RunLock.acquire(run, session)
    log = LogWriter(run / "metrics.jsonl", run=view.record.id, session=session)
    print("ready", flush=True)
    noise = np.random.default_rng(0)
    began = time.monotonic()
    for number in range(int(seconds * LINES_HZ)):
        step += 1
        metrics = {"loss": 2 + noise.normal() / 10, "lr": 1e-4, "grad_norm": 1 + noise.normal() / 5, "aux_loss": 0.01}
        log.append(
            {"kind": "step", "ts": time.time(), "run": view.record.id, "session": session, "step": step}
            | {"metrics": {**metrics, "z_loss": 1e-4}, "duration_s": 1 / LINES_HZ, "tokens": 8192}
        )
        time.sleep(max(0.0, began + number / LINES_HZ - time.monotonic()))
    log.close()
    lock.close()


def main(argv: list[str]) -> int:
    mode, run = argv[0], Path(argv[1])
    if mode == "write":
        write(run, float(argv[2]))
        return 0
    quiet_collector()
    found: object
    if mode == "open":
        found = asyncio.run(measure_open(run))
    elif mode == "overlay":
        found = asyncio.run(measure_overlay(run))
    else:
        found = asyncio.run(measure_follow(run, float(argv[2]), int(argv[3])))
    sys.__stdout__.write(json.dumps(found) + "\n")  # type: ignore[union-attr]  # Textual redirects sys.stdout
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
