"""What logging a step costs: the hook and its log beside a bare `orjson.dumps` + `os.write`, and the peers.

First table: all three in one process, the same six metrics, the same clock calls around them, files in the same
folder, taking turns at going first. So a slow disk or a busy neighbour slows all of them, and the ratio is what to
read. Second table: every peer in a process and an environment of its own, in shuffled rounds.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

import lineage
from benchmarks import peers as the_peers
from benchmarks.peers.base import metrics_of
from benchmarks.peers.driver import PeerError, workplace
from benchmarks.peers.driver import run as run_peer
from benchmarks.report import Figure, Report, percentile
from lineage.log.writer import LogWriter, encode_event

RUN = "20261129-134012-tiny-gpt"
SESSION = "s01-0a1b2c3d"

TITLES = {"bare": "bare", "log": "lineage, the log alone", "hook": "lineage, the hook"}

Append = Callable[[dict[str, Any]], object]


def step_event(step: int) -> dict[str, Any]:
    """A step as the hook hands it over; every float with all its digits, as in training."""
    return {
        "kind": "step",
        "ts": time.time(),
        "run": RUN,
        "session": SESSION,
        "step": step,
        "metrics": metrics_of(step),
        "duration_s": 0.1 + step % 997 / 11,
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


def hook_append(run: lineage.Run) -> Append:
    """As a training loop calls it, with names as keywords."""
    log = run.log

    def append(fields: dict[str, Any]) -> None:
        log(step=fields["step"], tokens=8192, **fields["metrics"])

    return append


def _compared(blocks: list[dict[str, list[int]]], name: str, q: float) -> tuple[float, float]:
    """The quantile as a ratio to the bare write's of the same block, and in microseconds; medians over the blocks."""
    ours, bare = ([percentile(block[who], q) for block in blocks] for who in (name, "bare"))
    return statistics.median(a / b for a, b in zip(ours, bare, strict=True)), statistics.median(ours) / 1000


def in_one_process(*, quick: bool) -> Report:
    """Bare write, log alone, hook: medians and tails as ratios, and the goals."""
    report = Report("log: one step of six metrics, in one process, in turns")
    blocks, num_flat, num_paced = (2, 3_000, 60) if quick else (5, 20_000, 300)
    with tempfile.TemporaryDirectory(prefix="bench-log-", dir=Path.cwd()) as folder:
        fd = os.open(Path(folder, "bare.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with (
            LogWriter(Path(folder, "lineage.jsonl"), run=RUN, session=SESSION) as writer,
            lineage.init(Path(folder, "runs"), name="bench", recipe={"lr": 3e-4}, resume="never") as hook,
        ):
            appends: dict[str, Append] = {"bare": bare_append(fd), "log": writer.append, "hook": hook_append(hook)}
            _time_in_turns(appends, 2_000, 0.0)
            for mode, num_steps, period_s in (("flat out", num_flat, 0.0), ("100 steps/s", num_paced, 0.01)):
                taken = [_time_in_turns(appends, num_steps, period_s) for _ in range(blocks)]
                for name in appends:
                    median_x, median_us = _compared(taken, name, 0.5)
                    p99_x, p99_us = _compared(taken, name, 0.99)
                    report.rows.append(
                        {
                            "what": f"{TITLES[name]}, {mode}",
                            "median x": median_x,
                            "p99 x": p99_x,
                            "median us": median_us,
                            "p99 us": p99_us,
                            "steps": num_steps * blocks,
                        }
                    )
                    if name != "bare":
                        title = f"{TITLES[name]}, {mode}"
                        report.goals[f"median at most 3x the bare write: {title} ({median_x:.2f}x)"] = median_x <= 3
                        report.goals[f"p99 at most 5x the bare write: {title} ({p99_x:.2f}x)"] = p99_x <= 5
            cpu = _cpu_in_turns(appends, 10 if quick else 100, 500)
            num_bytes = {
                "bare": len(orjson.dumps(step_event(1))) + 1,
                "log": len(encode_event(step_event(1))),
                "hook": len((hook.path / "metrics.jsonl").read_bytes().splitlines()[-2]) + 1,
            }
        os.close(fd)
    for row, name in zip(report.rows, appends, strict=False):
        row |= {"CPU x": cpu[name] / cpu["bare"], "CPU us": cpu[name], "bytes": num_bytes[name]}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.notes += [
        f"medians over {blocks} blocks of the block's ratio, so that one stall of the machine is not the tail",
        f"this process peaked at {peak:.0f} MiB; the clock around each call is in every figure",
        "the bare write syncs nothing; Lineage's fdatasync runs on its own thread while this is measured",
        "the hook's first 64 steps after a start or a checkpoint carry a witness and cost more; they are the warm-up",
    ]
    return report


def beside_peers(peers: str | None, *, quick: bool) -> Report:
    """Every peer in a process of its own, the order shuffled in each round; medians over the rounds."""
    report = Report("log: the same six metrics through each tracker, a process each")
    chosen = the_peers.chosen(peers)
    rounds, words = (1, ["--paced=50", "--flat=1000", "--budget=1"]) if quick else (3, ["--paced=200", "--budget=3"])
    found: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in chosen}
    order = random.Random(1)
    with workplace() as folder:
        for turn in range(rounds):
            for peer in order.sample(chosen, len(chosen)):
                try:
                    found[peer.name].append(run_peer(peer, "cost", folder / f"{peer.name}-{turn}", *words))
                except PeerError as error:
                    report.notes.append(str(error))
    medians = {name: _medians(rows) for name, rows in found.items() if rows}
    base = medians.get("bare")
    for name, one in sorted(medians.items(), key=lambda item: float(item[1]["flat median us"])):
        flat, paced = one["flat median us"], one["paced median us"]
        row: dict[str, Figure] = {"tracker": the_peers.PEERS[name].title}
        if base:
            row |= {"median x": flat / base["flat median us"], "paced x": paced / base["paced median us"]}
        report.rows.append(row | one | {"rounds": len(found[name])})
    if the_peers.OURS in medians:
        ours = medians[the_peers.OURS]
        report.goals["no helper process"] = ours["helpers"] == 0
        for name in ("trackio", "wandb", "dvclive", "aim", "mlflow"):
            if name in medians:
                title = the_peers.PEERS[name].title
                report.goals[f"median below {title}"] = ours["flat median us"] < medians[name]["flat median us"]
    if absent := the_peers.missing(peers):
        report.notes.append(f"not installed: {', '.join(absent)} (python -m benchmarks.peers.install)")
    report.notes += [
        "CPU is of the training process a step, closing included; helper CPU is of other processes while it logged",
        "paced at 100 steps/s, where every call finds cold caches; flat out otherwise; without a network",
    ]
    return report


def _medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def of(name: str, part: int | None = None) -> float:
        return float(statistics.median(row[name] if part is None else row[name][part] for row in rows))

    return {
        "flat median us": of("flat_us", 0),
        "flat p99 us": of("flat_us", 1),
        "paced median us": of("paced_us", 0),
        "paced p99 us": of("paced_us", 1),
        "CPU us": of("cpu_us"),
        "helper CPU us": of("helper_cpu_us"),
        "helpers": int(of("helpers")),
        "bytes": of("bytes"),
        "import s": of("import_s"),
        "open s": of("open_s"),
        "RSS MB": of("rss_mb"),
        "helper MB": of("helper_rss_mb"),
    }


def run(*, quick: bool = False, peers: str | None = None) -> Report:
    report = in_one_process(quick=quick)
    report.more.append(beside_peers(peers, quick=quick))
    return report
