"""What a tracker's reader shows after a resume trained some steps again.

A first session logs steps 1 to 100 and ends. A second one goes on from step 50, as after a restore, and logs 51 to 150
with other values. Steps 51 to 100 were then trained twice; the curve of the experiment as it is now has the second
attempt, and a person who wants to know what happened needs the first one too.
"""

from __future__ import annotations

import json
from collections import Counter

from benchmarks import peers as the_peers
from benchmarks.peers import Peer
from benchmarks.peers.driver import PeerError, workplace
from benchmarks.peers.driver import run as run_peer
from benchmarks.report import Figure, Report

FIRST, RESTORED, LAST = 100, 50, 150
MARK = 1000.0  # added to what the second session logs


def ask(peer: Peer) -> dict[str, Figure]:
    """One row: which attempt the reader gives for the steps that were trained twice."""
    first = [[step, step] for step in range(1, FIRST + 1)]
    second = [[step, step + MARK] for step in range(RESTORED + 1, LAST + 1)]
    with workplace() as folder:
        refused = run_peer(peer, "log", folder / "run", f"--given={json.dumps(first)}")["refused"]
        words = [f"--after={RESTORED}", f"--given={json.dumps(second)}"]
        refused += run_peer(peer, "log", folder / "run", *words)["refused"]
        read = run_peer(peer, "read", folder / "run")
    attempts: dict[int, list[str]] = {}
    for step, value in zip(*read["curves"].get("loss", [[], []]), strict=True):
        attempts.setdefault(step, []).append("second" if value >= MARK else "first")
    twice = Counter("+".join(attempts.get(step, ["none"])) for step in range(RESTORED + 1, FIRST + 1))
    expected = {step: ["first" if step <= RESTORED else "second"] for step in range(1, LAST + 1)}
    right = sum(attempts.get(step) == wanted for step, wanted in expected.items())
    remarks = [f"{len(refused)} refused, first {refused[0]}" if refused else "", read.get("error", ""), read["remark"]]
    return {
        "tracker": peer.title,
        "one current line": right / LAST,
        f"steps {RESTORED + 1}-{FIRST} show": ", ".join(f"{count}x {shown}" for shown, count in twice.most_common()),
        f"steps 1-{RESTORED} kept": sum(step in attempts for step in range(1, RESTORED + 1)),
        f"steps {FIRST + 1}-{LAST} shown": sum(step in attempts for step in range(FIRST + 1, LAST + 1)),
        "remark": "; ".join(filter(None, remarks)),
    }


def run(*, quick: bool = False, peers: str | None = None) -> Report:
    del quick
    report = Report("resume: what a reader shows after steps 51 to 100 were trained twice")
    for peer in the_peers.chosen(peers):
        if peer.name == "writer":
            continue  # it has no reader of curves
        try:
            report.rows.append(ask(peer))
        except PeerError as error:
            report.notes.append(str(error))
            continue
        if peer.name == the_peers.OURS:
            row = report.rows[-1]
            report.goals["Lineage shows one current line"] = row["one current line"] == 1.0
            report.goals["and keeps the 50 superseded points"] = "50 superseded" in str(row["remark"])
    if absent := the_peers.missing(peers):
        report.notes.append(f"not installed: {', '.join(absent)} (python -m benchmarks.peers.install)")
    report.notes.append("one current line: share of the 150 steps that have one value, of the attempt that counts")
    report.notes.append("each tracker resumes in the way its documentation gives; the first session had ended cleanly")
    return report
