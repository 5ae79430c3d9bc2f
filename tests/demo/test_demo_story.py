"""What `lineage demo --fast` leaves behind is what it told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import orjson
import pytest

from lineage_schemas.events import KINDS

if TYPE_CHECKING:
    from conftest import Played

pytestmark = pytest.mark.slow


def schema(name: str) -> jsonschema.Draft202012Validator:
    document = orjson.loads((files("lineage_schemas") / "published" / f"{name}.schema.json").read_bytes())
    return jsonschema.Draft202012Validator(document)


def test_the_sessions_were_killed_preempted_and_completed(played: Played) -> None:
    assert [s["status"] for s in played.record["sessions"]] == ["killed", "preempted", "completed"]
    assert played.record["sessions"][-1]["last_step"] == 60


def test_the_run_and_every_line_of_its_log_fit_the_published_schemas(played: Played) -> None:
    schema("run").validate(played.record)
    validator = schema("event")
    for event in played.events:
        validator.validate(event)


def test_every_kind_of_event_occurs(played: Played) -> None:
    assert set(played.by_kind) == set(KINDS)


def test_at_least_ten_steps_were_lost_and_trained_again(played: Played) -> None:
    first, second = played.steps(1), played.steps(2)
    restored = played.record["sessions"][1]["start"]["step"]
    assert sorted(first) == list(range(1, max(first) + 1))
    assert min(second) == restored + 1
    assert len(first.keys() & second.keys()) == max(first) - restored >= 10


def test_the_lost_steps_were_trained_again_to_the_last_bit(played: Played) -> None:
    """What the log says of both attempts is equal: JSON floats round-trip, so equal text is equal bits."""
    first, second = played.steps(1), played.steps(2)
    for step in sorted(first.keys() & second.keys()):
        assert first[step]["witness"].keys() >= {"batch", "rng", "lr", "scale"}
        assert first[step]["witness"] == second[step]["witness"], step
        assert first[step]["metrics"] == second[step]["metrics"], step
    verdict = played.record["sessions"][1]["continuation"]
    assert verdict["verdict"] == "exact"
    assert verdict["compared_steps"] == len(first.keys() & second.keys())


def test_a_session_after_a_clean_stop_has_nothing_to_compare_and_says_so(played: Played) -> None:
    verdict = played.record["sessions"][2]["continuation"]
    assert verdict["verdict"] == "unproven"
    assert verdict["compared_steps"] == 0


def test_float16_skipped_steps_are_steps_and_no_updates(played: Played) -> None:
    skips = played.by_kind["fp16_skip"]
    assert [event["step"] for event in skips][:3] == [1, 2, 3]
    assert all(event["scale_after"] < event["scale_before"] for event in skips)
    steps = {event["step"] for event in played.by_kind["step"]}
    assert {event["step"] for event in skips} <= steps


def test_the_model_learned(played: Played) -> None:
    losses = played.steps(3)
    evals = [event["metrics"]["loss"] for event in played.by_kind["eval"]]
    assert abs(played.steps(1)[1]["metrics"]["loss"] - 5.545) < 0.2
    assert losses[60]["metrics"]["loss"] < 3.2
    assert evals[-1] < 3.2


def test_the_torn_line_that_the_story_told_of_was_cut(played: Played) -> None:
    (event,) = played.by_kind["log_recovered"]
    assert f"{event['discarded_bytes']} bytes of half a line" in " ".join(played.done.stderr.split())


def test_the_refused_start_is_reported_with_what_it_would_have_changed(played: Played) -> None:
    told = " ".join(played.done.stderr.split())
    assert "block_size" in told
    assert "64" in told
    assert "128" in told
    assert len(played.record["sessions"]) == 3
    assert {event["session"] for event in played.events} == {s["id"] for s in played.record["sessions"]}


def test_stdout_is_the_folder_of_the_run_and_stderr_names_what_to_type(played: Played) -> None:
    assert played.done.stdout == f"{played.path}\n"
    assert f"lineage tui {played.path}" in played.done.stderr
    assert "\x1b" not in played.done.stderr


def test_the_fast_story_costs_no_more_than_its_half_minute(played: Played) -> None:
    """Processor time of all five processes, which depends little on who else is on the cores; 27 s were measured."""
    assert played.cpu_s < 45


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = demo(str(tmp_path / "file" / "runs"))
    assert done.returncode == 2
    assert "no run can be made there" in done.stderr


def test_too_few_steps_for_the_story_are_a_usage_error(tmp_path: Path) -> None:
    done = demo(str(tmp_path), "--steps", "59")
    assert done.returncode == 2
    assert "--steps: '59' is not a whole number, 60 or more" in done.stderr


def test_without_torch_the_demo_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else real(name, *more)\n"
        "from lineage.cli import main\n"
        "sys.exit(main(['demo', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 3
    assert "pip install 'lineage-tracker[torch]'" in done.stderr
    assert not any(tmp_path.iterdir())


def test_ctrl_c_ends_the_child_and_exits_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lineage", "demo", str(tmp_path), "--fast"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (logs := list(tmp_path.glob("*/metrics.jsonl"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert logs
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    record = orjson.loads(logs[0].with_name("run.json").read_bytes())
    assert [s["status"] for s in record["sessions"]] == ["interrupted"]


def test_a_trainer_that_fails_is_shown_and_exits_1(tmp_path: Path) -> None:
    """A Python without the text: the child fails at once, and the story shows its last words."""
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "__init__.py").write_text("")
    done = demo(str(tmp_path / "runs"), path=tmp_path)
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stderr.split())
    assert "came without pydoc_data.topics" in told
    assert "the trainer ended with exit code 1" in told


def demo(*argv: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ) | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, "-m", "lineage", "demo", *argv], capture_output=True, text=True, env=env, timeout=100
    )
