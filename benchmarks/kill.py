"""Acknowledged steps lost when the process that logs is killed with SIGKILL at a random moment.

A child opens the log, appends steps as fast as it can, and after each append that returned writes the step's number
to memory shared with its parent. The parent kills it after a few random milliseconds, and the next child goes on
with the same log. In the end every step that was acknowledged must be read back from the file.

The second table does the same through the hook and through each peer, every kill on a fresh run, and counts with the
peer's own reader.

`python -m benchmarks.kill DIR --kills N` leaves the logs and `acknowledged.json` in DIR, for a count of your own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks import peers as the_peers
from benchmarks.peers import Peer
from benchmarks.peers.driver import PeerError, workplace
from benchmarks.peers.driver import run as run_peer
from benchmarks.report import Figure, Report
from lineage.log.reader import read_lines
from lineage.log.scan import Damage
from lineage.log.writer import LogWriter

RUN = "20261129-134012-kill"
KILLS_PER_LOG = 20


@dataclass
class Killed:
    """One killed session: its log, its id, and how many of its steps had been acknowledged."""

    log: str
    session: str
    num_acknowledged: int


def _train(log: Path, session: str, acknowledged: ctypes.c_uint64) -> None:
    """Log until killed."""
    writer = LogWriter(log, run=RUN, session=session, sync_interval_s=0.005)
    step = 0
    while True:
        step += 1
        writer.append(
            {
                "kind": "step",
                "ts": time.time(),
                "run": RUN,
                "session": session,
                "step": step,
                "metrics": {"loss": 1 / step, "lr": 3e-4, "grad_norm": 1.0 + step, "a": 0.1, "b": 0.2, "c": 0.3},
                "duration_s": 0.1,
                "tokens": 8192,
            }
        )
        acknowledged.value = step


def kill_many(folder: Path, num_kills: int, seed: int) -> list[Killed]:
    """Kill `num_kills` writers, 20 to a log, each between 0 and 10 ms after its first acknowledged step."""
    moments = random.Random(seed)
    # One aligned store of the machine: struct.pack_into clears the bytes first, and a kill in between reads as 0.
    acknowledged = ctypes.c_uint64.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
    killed = []
    for number in range(num_kills):
        log = folder / f"metrics-{number // KILLS_PER_LOG:03d}.jsonl"
        session = f"s{number % KILLS_PER_LOG + 1:02d}-{number:08x}"
        acknowledged.value = 0
        child = os.fork()
        if child == 0:
            try:
                _train(log, session, acknowledged)
            except BaseException:  # noqa: BLE001 - whatever it is, this child may not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(1)
        deadline = time.monotonic() + 30
        while acknowledged.value == 0 and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(moments.random() * 0.010)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError("the writer ended by itself; its traceback is above")
        killed.append(Killed(log.name, session, acknowledged.value))
    return killed


def count_lost(folder: Path, killed: list[Killed]) -> tuple[int, int, int]:
    """`(lost, damaged, torn)`: acknowledged steps not in the logs, bad lines, logs that ended in half a line."""
    found: Counter[str] = Counter()
    num_damaged = num_torn = 0
    for log in sorted({k.log for k in killed}):
        num_torn += not (folder / log).read_bytes().endswith(b"\n")
        for item in read_lines(folder / log):
            if isinstance(item, Damage):
                num_damaged += 1
                continue
            fields = orjson.loads(item.data)
            num_torn += fields["kind"] == "log_recovered"
            if fields["kind"] == "step" and fields["step"] == found[fields["session"]] + 1:
                found[fields["session"]] += 1
    return sum(max(0, k.num_acknowledged - found[k.session]) for k in killed), num_damaged, num_torn


def of_the_log(num_kills: int) -> Report:
    """Kills of a process that has the log alone, in the middle of writing, 20 sessions to a log."""
    with tempfile.TemporaryDirectory(prefix="bench-kill-", dir=Path.cwd()) as name:
        folder = Path(name)
        killed = kill_many(folder, num_kills, seed=1)
        lost, damaged, torn = count_lost(folder, killed)
    acknowledged = sum(k.num_acknowledged for k in killed)
    row: dict[str, Figure] = {
        "what": "lineage, the log alone",
        "lost / acknowledged": lost / acknowledged,
        "lost": lost,
        "acknowledged": acknowledged,
        "kills": num_kills,
        "damaged lines": damaged,
        "torn tails": torn,
    }
    report = Report("kill: acknowledged steps lost when the writer is killed with SIGKILL", [row])
    report.goals[f"no acknowledged step lost in {num_kills} kills of the log's writer ({lost} lost)"] = lost == 0
    report.notes.append("a kill, not a power loss: what the kernel holds is kept")
    return report


def kill_peer(peer: Peer, folder: Path, num_kills: int, window_s: tuple[float, float]) -> list[dict[str, Any]]:
    """Kill `num_kills` trainers that log flat out through `peer`; what each had acknowledged, and what of it is lost.

    Raises:
        PeerError: the peer cannot be run.
    """
    least, most = window_s
    words = [f"--kills={num_kills}", f"--least={least}", f"--most={most}", *([] if peer.forks else ["--spawn"])]
    killed: list[dict[str, Any]] = run_peer(peer, "kill", folder, *words, timeout_s=60 + 25 * num_kills)
    given = [[one["folder"], one["acknowledged"]] for one in killed]
    found: list[dict[str, Any]] = []
    for part in [given] if peer.forks else [[one] for one in given]:
        mode = [] if peer.forks else ["--spawn"]
        found += run_peer(peer, "lost", folder, f"--given={json.dumps(part)}", *mode, timeout_s=900)
    return [one | read for one, read in zip(killed, found, strict=True)]


def beside_peers(peers: str | None, *, quick: bool) -> Report:
    """The hook and every installed peer."""
    report = Report("kill: the same through each tracker, every kill on a fresh run")
    for peer in the_peers.chosen(peers):
        if peer.name in {"bare", "writer"}:
            continue
        ours = peer.name == the_peers.OURS
        num_kills = (5 if quick else 200) if ours else (2 if quick else 20)
        # Ours is killed as soon as it logs, where a loss would be; who buffers for seconds needs a longer look.
        window_s = (0.0, 0.1) if ours else (0.2, 1.5)
        try:
            with workplace() as folder:
                kills = kill_peer(peer, folder / "runs", num_kills, window_s)
        except PeerError as error:
            report.notes.append(str(error))
            continue
        shares = [one["lost"] / max(1, one["acknowledged"]) for one in kills]
        lost = [one["lost"] for one in kills]
        remarks = sorted({one["error"] or one["remark"] for one in kills} - {""})
        report.rows.append(
            {
                "tracker": peer.title,
                "share lost, median": statistics.median(shares),
                "share lost, most": max(shares),
                "steps lost, median": statistics.median(lost),
                "steps lost, most": max(lost),
                "kills with loss": sum(one > 0 for one in lost),
                "kills": num_kills,
                "acknowledged, median": statistics.median(one["acknowledged"] for one in kills),
                "helpers": max(one["helpers"] for one in kills),
                "remark": "; ".join(remarks),
            }
        )
        if ours:
            report.goals[f"no acknowledged step lost in {num_kills} kills of the hook ({sum(lost)} lost)"] = not any(
                lost
            )
    if absent := the_peers.missing(peers):
        report.notes.append(f"not installed: {', '.join(absent)} (python -m benchmarks.peers.install)")
    report.notes += [
        "only the training process is killed; helper processes get 5 s to finish by themselves",
        "a step counts as lost when the peer's reader lacks it in any of the six curves",
        "flat out, so whoever is faster has more steps under way: compare the shares",
    ]
    return report


def run(*, quick: bool = False, peers: str | None = None) -> Report:
    report = of_the_log(40 if quick else 200)
    report.more.append(beside_peers(peers, quick=quick))
    return report


def main(argv: list[str]) -> int:
    """Kill writers in a folder and leave the evidence there; exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill", description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    killed = kill_many(args.dir, args.kills, args.seed)
    text = json.dumps([vars(k) for k in killed])
    (args.dir / "acknowledged.json").write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
