"""What logging a step costs: `LogWriter.append` beside a bare `orjson.dumps` + `os.write`, interleaved.

Both write the same six metrics, with the same clock calls around them, to files in the same folder, in the same
process, taking turns at going first. So a slow disk or a busy neighbour slows both, and the ratio is what to read.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks.report import Report, percentile
from lineage.log.writer import LogWriter, encode_event

RUN = "20261129-134012-tiny-gpt"
SESSION = "s01-0a1b2c3d"

Append = Callable[[dict[str, Any]], object]


def step_event(step: int) -> dict[str, Any]:
    """A step as the hook hands it over; every float with all its digits, as in training."""
    noise = (step * 2654435761 % 1000003) / 1000003
    return {
        "kind": "step",
        "ts": time.time(),
        "run": RUN,
        "session": SESSION,
        "step": step,
        "metrics": {
            "loss": 2.3 + noise,
            "lr": 3e-4 * (1 - noise / 7),
            "grad_norm": 1.1 + noise / 3,
            "accuracy": noise / 1.7,
            "perplexity": 10.4 + noise * 3,
            "memory_gib": 11.3 + noise / 9,
        },
        "duration_s": 0.1 + noise / 11,
        "tokens": 8192,
    }


def bare_append(fd: int) -> Append:
    dumps, write, newline = orjson.dumps, os.write, orjson.OPT_APPEND_NEWLINE

    def append(fields: dict[str, Any]) -> None:
        write(fd, dumps(fields, option=newline))

    return append


def _time_in_turns(appends: dict[str, Append], num_steps: int, period_s: float) -> dict[str, list[int]]:
    """Nanoseconds of `num_steps` calls of each, by name.

    Flat out they follow each other, in an order that rotates. Paced, each tick has one call: after the sleep the
    caches are cold, and whoever came second in a tick would find them warmed by the first.
    """
    names = list(appends)
    taken: dict[str, list[int]] = {name: [] for name in names}
    clock = time.perf_counter_ns
    next_at = time.perf_counter()
    for turn in range(num_steps * len(names)):
        if period_s:
            next_at += period_s
            time.sleep(max(0.0, next_at - time.perf_counter()))
        name = names[(turn + turn // len(names)) % len(names)]
        append, fields = appends[name], step_event(turn + 1)
        began = clock()
        append(fields)
        taken[name].append(clock() - began)
    return taken


def _cpu_in_turns(appends: dict[str, Append], num_blocks: int, block: int) -> dict[str, float]:
    """CPU microseconds per call, all threads of the process, by name; blocks of calls take turns."""
    spent = dict.fromkeys(appends, 0)
    events = [step_event(step) for step in range(1, block + 1)]
    for _ in range(num_blocks):
        for name, append in appends.items():
            began = time.process_time_ns()
            for fields in events:
                append(fields)
            spent[name] += time.process_time_ns() - began
    return {name: ns / (num_blocks * block) / 1000 for name, ns in spent.items()}


def _start_cost(repeat: int) -> dict[str, tuple[float, float]]:
    """Median start of an interpreter that imports this (ms), and its peak memory (MiB), in turns."""
    programs = {"bare": "import os, orjson", "lineage": "import lineage.log.writer"}
    # Not ru_maxrss: a child begins with its parent's.
    tail = "; print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    taken: dict[str, list[tuple[int, int]]] = {name: [] for name in programs}
    for _ in range(repeat):
        for name, program in programs.items():
            began = time.perf_counter_ns()
            out = subprocess.run([sys.executable, "-c", program + tail], capture_output=True, text=True, check=True)
            taken[name].append((time.perf_counter_ns() - began, int(out.stdout)))
    return {
        name: (percentile([t for t, _ in runs], 0.5) / 1e6, percentile([m for _, m in runs], 0.5) / 1024)
        for name, runs in taken.items()
    }


def run(*, quick: bool = False) -> Report:
    report = Report("log: one step of six metrics, against a bare orjson.dumps + os.write in the same process")
    num_flat, num_paced = (5_000, 100) if quick else (60_000, 800)
    starts = _start_cost(3 if quick else 9)
    medians: dict[str, float] = {}
    p99s: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-log-", dir=Path.cwd()) as folder:
        fd = os.open(Path(folder, "bare.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with LogWriter(Path(folder, "lineage.jsonl"), run=RUN, session=SESSION) as writer:
            appends: dict[str, Append] = {"bare": bare_append(fd), "lineage": writer.append}
            _time_in_turns(appends, 2_000, 0.0)
            for mode, num_steps, period_s in (("flat out", num_flat, 0.0), ("100 steps/s", num_paced, 0.01)):
                taken = _time_in_turns(appends, num_steps, period_s)
                base = {q: percentile(taken["bare"], q) for q in (0.5, 0.99)}
                for name, values in taken.items():
                    median, p99 = percentile(values, 0.5), percentile(values, 0.99)
                    if name == "lineage":
                        medians[mode], p99s[mode] = median / base[0.5], p99 / base[0.99]
                    report.rows.append(
                        {
                            "what": f"{name}, {mode}",
                            "median x": median / base[0.5],
                            "p99 x": p99 / base[0.99],
                            "median us": median / 1000,
                            "p99 us": p99 / 1000,
                            "steps": num_steps,
                        }
                    )
            cpu = _cpu_in_turns(appends, 10 if quick else 100, 500)
        os.close(fd)
    num_bytes = {"bare": len(orjson.dumps(step_event(1))) + 1, "lineage": len(encode_event(step_event(1)))}
    for row in report.rows[:2]:
        name = str(row["what"]).split(",")[0]
        row |= {
            "cpu x": cpu[name] / cpu["bare"],
            "cpu us": cpu[name],
            "bytes": num_bytes[name],
            "start ms": starts[name][0],
            "rss MiB": starts[name][1],
        }
    for mode, ratio in medians.items():
        report.goals[f"median at most 2.5x the bare write, {mode} ({ratio:.2f}x)"] = ratio <= 2.5
    for mode, ratio in p99s.items():
        report.goals[f"p99 at most 5x the bare write, {mode} ({ratio:.2f}x)"] = ratio <= 5
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.notes.append(f"this process peaked at {peak:.0f} MiB; the clock around each call is in both figures")
    report.notes.append(
        "the bare write syncs nothing; Lineage's fdatasync runs on its own thread while this is measured"
    )
    return report
