"""One demo, played once, for every test that looks at what it left behind."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest


@dataclass
class Played:
    """A finished `lineage demo --fast`; `cpu_s` is its own and its children's."""

    done: subprocess.CompletedProcess[str]
    cpu_s: float
    path: Path
    record: dict[str, Any]
    lines: list[bytes]
    events: list[dict[str, Any]]
    by_kind: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def steps(self, ordinal: int) -> dict[int, dict[str, Any]]:
        """The step lines of one session, by step."""
        session = self.record["sessions"][ordinal - 1]["id"]
        return {event["step"]: event for event in self.by_kind["step"] if event["session"] == session}


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    runs = tmp_path_factory.mktemp("demo") / "runs"
    before = cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "lineage", "demo", str(runs), "--fast"], capture_output=True, text=True, timeout=200
    )
    cpu_s = cpu_of_children() - before
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    lines = (path / "metrics.jsonl").read_bytes().splitlines()
    events = [orjson.loads(line) for line in lines]
    by_kind = defaultdict(list)
    for event in events:
        by_kind[event["kind"]].append(event)
    record = orjson.loads((path / "run.json").read_bytes())
    return Played(done, cpu_s, path, record, lines, events, dict(by_kind))
