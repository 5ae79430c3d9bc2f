"""What becomes of NaN and infinities between `log` and the peer's own reader."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import peers as the_peers
from benchmarks.peers import Peer
from benchmarks.peers.driver import PeerError, workplace
from benchmarks.peers.driver import run as run_peer
from benchmarks.report import Figure, Report

LOGGED = ("1.0", "nan", "inf", "-inf", "2.0")


def ask(peer: Peer) -> dict[str, Figure]:
    """One row: what is read back for each value that was logged."""
    with workplace() as folder:
        given = [[step, value] for step, value in enumerate(LOGGED, 1)]
        logged = run_peer(peer, "log", folder / "run", f"--given={json.dumps(given)}")
        read = run_peer(peer, "read", folder / "run")
    steps, values = read["curves"].get("loss", [[], []])
    found: dict[int, Any] = dict(zip(steps, values, strict=True))
    shown = [_shown(found, step) for step in range(1, len(LOGGED) + 1)]
    remarks = [*logged["refused"], read.get("error", ""), read["remark"]]
    row: dict[str, Figure] = {"tracker": peer.title}
    row["kept"] = sum(a == b for a, b in zip(shown, LOGGED, strict=True)) / len(LOGGED)
    row |= dict(zip(LOGGED[1:-1], shown[1:-1], strict=True))
    row["remark"] = "; ".join(filter(None, remarks))
    return row


def _shown(found: dict[int, Any], step: int) -> str:
    return "absent" if step not in found else "null" if found[step] is None else str(found[step])


def run(*, quick: bool = False, peers: str | None = None) -> Report:
    del quick
    report = Report("nan: a loss of 1, nan, inf, -inf, 2, as the tracker's reader gives it back")
    for peer in the_peers.chosen(peers):
        try:
            report.rows.append(ask(peer))
        except PeerError as error:
            report.notes.append(str(error))
        if peer.name == the_peers.OURS and report.rows:
            report.goals["Lineage gives back every value that was logged"] = report.rows[-1]["kept"] == 1.0
    if absent := the_peers.missing(peers):
        report.notes.append(f"not installed: {', '.join(absent)} (python -m benchmarks.peers.install)")
    report.notes.append("a 1.8e308 is the largest float in the place of an infinity")
    return report
