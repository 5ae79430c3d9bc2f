"""Eight processes read while one trains, checkpoints, prunes, and is killed and resumed: no reader ever fails.

Two minutes with `LINEAGE_LONG=1`, about fifteen seconds without.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineage.history.evidence import audit_view
from lineage.view import read

HERE = Path(__file__).parent
LONG = bool(os.environ.get("LINEAGE_LONG"))
SECONDS = 120.0 if LONG else 7.0
WHATS = ("ls", "show", "log", "audit", "verify", "checkpoints", "view", "tui")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in {"LINEAGE_RUNS", "NO_COLOR"}},
    "OMP_NUM_THREADS": "1",
    "TEXTUAL_ANIMATIONS": "none",
    "TERM": "xterm-256color",
    "PYTHONWARNINGS": "error",
}


def start_writer(runs: Path) -> subprocess.Popen[str]:
    environment = {**ENVIRONMENT, "PYTHONWARNINGS": "default"}  # torch's own are not ours
    return subprocess.Popen(
        [sys.executable, str(HERE / "tiny_writer.py"), str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def await_checkpoint(writer: subprocess.Popen[str]) -> int:
    """The step of the next checkpoint; fails with what the writer said when it died."""
    assert writer.stdout
    assert writer.stderr
    line = writer.stdout.readline()
    assert line, writer.stderr.read()[-3000:]
    return int(line)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_reader_fails_or_sees_a_half_written_thing_while_a_run_is_killed_and_resumed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    dice = random.Random(7)
    writer = start_writer(runs)
    readers: list[subprocess.Popen[str]] = []
    num_kills = 0
    try:
        await_checkpoint(writer)
        (run,) = runs.iterdir()
        readers = [
            subprocess.Popen(
                [sys.executable, str(HERE / "one_reader.py"), what, str(runs), str(run), str(SECONDS)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=ENVIRONMENT,
            )
            for what in WHATS
        ]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or num_kills < 2:
            for _ in range(dice.randrange(2, 12 if LONG else 5)):
                await_checkpoint(writer)
            time.sleep(dice.uniform(0, 0.2))
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
            num_kills += 1
            writer = start_writer(runs)
            await_checkpoint(writer)
        told = [reader.communicate(timeout=120) for reader in readers]
    finally:
        for process in (writer, *readers):
            if process.poll() is None:
                process.kill()
                process.communicate()
    faults = []
    for what, (out, err) in zip(WHATS, told, strict=True):
        assert out, f"{what} said nothing: {err[-3000:]}"
        answer = json.loads(out)
        faults += [f"{what}: {fault}" for fault in answer["faults"]]
        assert answer["count"] > 2, answer
    assert not faults, "\n\n".join(faults)
    view = read(run)
    assert len(view.sessions) == num_kills + 1
    assert not view.damage
    assert {resume.verdict for resume in audit_view(view)} <= {"exact", "unproven"}
    assert any(resume.verdict == "exact" for resume in audit_view(view))
