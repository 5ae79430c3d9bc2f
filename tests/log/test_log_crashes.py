"""What a crash or a bad sector at any byte costs: that record, and a report that says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from lineage.log.reader import read_events, read_lines
from lineage.log.scan import Damage, Line, scan
from lineage.log.writer import LogRecovered, LogWriter

ROOT = Path(__file__).parents[2]
Open = Callable[..., LogWriter]


def test_a_log_cut_at_any_byte_costs_only_the_record_that_was_cut(tmp_path: Path, real_log: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = scan(real_log).lines
    for cut in range(len(real_log) + 1):
        path.write_bytes(real_log[:cut])
        assert list(read_lines(path)) == [line for line in lines if line.end <= cut]


def test_a_log_cut_at_any_byte_is_reopened_with_every_whole_line_and_a_report(
    tmp_path: Path, real_log: bytes, open_writer: Open, step_event: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "metrics.jsonl"
    for cut in range(len(real_log) + 1):
        path.write_bytes(real_log[:cut])
        whole = real_log[: real_log.rfind(b"\n", 0, cut) + 1]
        with open_writer(path) as writer:
            writer.append(step_event(9))
        now = path.read_bytes()
        assert now.startswith(whole)
        added = [orjson.loads(line) for line in now[len(whole) :].splitlines()]
        if cut == len(whole):
            assert writer.recovered is None
            assert added == [step_event(9)]
        else:
            assert writer.recovered == LogRecovered(cut - len(whole), len(whole))
            assert [event["kind"] for event in added] == ["log_recovered", "step"]
            assert (added[0]["discarded_bytes"], added[0]["offset"]) == (cut - len(whole), len(whole))


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF])
@pytest.mark.parametrize("number", [1, 6], ids=["a step with a witness", "a note with escapes"])
def test_a_flipped_byte_at_any_position_of_a_line_costs_no_other_line(
    tmp_path: Path, real_log: bytes, flip: int, number: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = scan(real_log).lines
    line = lines[number]
    num_reported = 0
    for position in range(line.offset, line.end):
        data = bytearray(real_log)
        data[position] ^= flip
        path.write_bytes(data)
        found = list(read_lines(path))
        # The newline itself joins this line with the next one; every other byte stays within this line.
        num_touched = 2 if position == line.end - 1 else 1
        assert found[:number] == lines[:number]
        num_after = len(lines) - number - num_touched
        assert found[len(found) - num_after :] == lines[len(lines) - num_after :]
        assert all(item.end == after.offset for item, after in pairwise(found))
        assert (found[0].offset, found[-1].end) == (0, len(real_log))
        damage: list[Damage] = []
        events = list(read_events(path, on_damage=damage.append))
        assert len(events) + len(damage) == len(found)
        assert all(line.offset <= d.offset < d.end <= lines[number + num_touched - 1].end for d in damage)
        num_reported += bool(damage)
    # Without a checksum a flipped digit is another number; most of a line is not digits.
    assert num_reported > len(line.data) // 3


def test_no_acknowledged_step_is_lost_in_200_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kill", str(tmp_path), "--kills", "200", "--seed", "7"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    killed = json.loads((tmp_path / "acknowledged.json").read_bytes())
    assert len(killed) == 200
    assert sum(one["num_acknowledged"] for one in killed) > 2_000
    steps: dict[str, list[int]] = defaultdict(list)
    for log in {one["log"] for one in killed}:
        for item in read_lines(tmp_path / log):
            assert isinstance(item, Line)
            fields = orjson.loads(item.data)
            if fields["kind"] == "step":
                steps[fields["session"]].append(fields["step"])
    for one in killed:
        found = steps[one["session"]]
        # One more than was acknowledged may be there: killed between the write and the acknowledgement.
        assert found == list(range(1, len(found) + 1))
        assert 0 <= len(found) - one["num_acknowledged"] <= 1
