"""How a session ended, when what ended it is an exception of anybody's making."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lineage
from lineage.capture.problem import describe_error, error_text
from lineage.checkpoint import tensorfile
from lineage_schemas.events import SessionEndEvent

LEAKS = [
    "connection to postgres://trainer:hunter2@db.example/runs failed",
    "401 for url: https://api.example/v1/models?api_key=hunter2",
    "password=hunter2 was refused",
    "token: hunter2",
    "Command 'mysql --user x --password=hunter2 runs' returned non-zero exit status 1",
    "Command '['curl', '--token', 'hunter2', 'host']' returned non-zero exit status 1",
    "{'headers': {'authorization': 'hunter2'}}",
]


def ended(tmp_path: Path, error: BaseException) -> tuple[SessionEndEvent, lineage.RunView]:
    run = lineage.init(tmp_path / "runs", name="a", recipe={}, resume="never")
    with pytest.raises(type(error)), run:
        run.log(loss=1.0)
        raise error
    view = lineage.read(run.path)
    assert list(view.damage) == []
    (event,) = view.events("session_end")
    return event, view


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("text", LEAKS)
def test_the_credentials_in_an_exceptions_text_reach_no_file_of_the_run(tmp_path, text) -> None:
    event, view = ended(tmp_path, RuntimeError(text))
    assert b"hunter2" not in everything_in(tmp_path)
    assert event.reason.startswith("RuntimeError: ")
    assert "***masked:" in event.reason
    assert view.record.sessions[0].reason == event.reason


def test_a_long_text_is_cut_behind_its_masks_and_never_inside_a_secret(tmp_path) -> None:
    text = "x" * 1_970 + " https://user:" + "hunter2" * 20 + "@host/"
    event, _ = ended(tmp_path, ValueError(text))
    assert len(event.reason) <= 2_000
    assert b"hunter2" not in everything_in(tmp_path)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unspeakable(), "Unspeakable: <its text cannot be made>"),
        (ValueError("\ud800 half"), "ValueError: \\ud800 half"),
        (
            FileNotFoundError(2, "No such file", "\udcff.bin"),
            "FileNotFoundError: [Errno 2] No such file: '\\udcff.bin'",
        ),
        (StopIteration(), "StopIteration"),
        (SystemExit("usage: --password=hunter2"), "SystemExit: usage: --password=***masked:a515344735ffab0d***"),
    ],
    ids=["raises", "surrogate", "file-name", "empty", "exit"],
)
def test_an_exception_without_a_text_that_can_be_written_ends_the_session_all_the_same(tmp_path, error, said) -> None:
    event, view = ended(tmp_path, error)
    assert event.reason == said
    assert view.state == "failed"
    assert describe_error(error) == said
    assert said.endswith(error_text(error))


def test_what_a_full_disk_says_of_a_checkpoint_is_masked_too(make, start, events_of, monkeypatch) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()

    def full(*_: object, **__: object) -> object:
        raise OSError(5, "https://user:hunter2@store.example/x: Input/output error")

    monkeypatch.setattr(tensorfile, "write_tensors", full)
    trainer.train(run, 10)
    run.finish()
    (alert,) = (e for e in events_of(run, "alert") if e["code"] == "checkpoint_failed")
    assert "hunter2" not in str(alert)
    assert "Input/output error" in alert["message"]


def test_the_address_of_the_data_is_kept_without_its_credentials(tmp_path) -> None:
    data = {"train": "s3://user:hunter2@bucket/train", "val": "wikitext-103, validation split"}
    with lineage.init(tmp_path, name="a", recipe={}, resume="never", data=data) as run:
        run.log(loss=1.0)
    (session,) = lineage.read(run.path).record.sessions
    assert b"hunter2" not in everything_in(tmp_path)
    assert session.data["val"].fingerprint == data["val"]


BROKEN = """
    import sys
    import lineage

    run = lineage.init(sys.argv[1], name="a", recipe={}, resume="never")
    run.log(loss=1.0)
    run._recorder.end = lambda *_: [][0]
    raise ValueError("the training's own")
"""


def test_the_trainings_own_traceback_is_shown_even_where_its_end_cannot_be_recorded(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BROKEN))
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs")], capture_output=True, text=True, env=os.environ
    )
    assert ran.returncode == 1
    assert ran.stderr.rstrip().endswith("ValueError: the training's own")
    assert "lineage: how the session ended was not recorded: IndexError" in ran.stderr
    assert ran.stderr.count("Traceback") == 1


def in_flight(run: lineage.Run, error: BaseException, *, total: int = 5) -> None:
    """What many loops do: whatever happens, finish."""
    try:
        for step in run.steps(total):
            run.log(loss=1.0)
            if step == 3:
                raise error
    finally:
        run.finish()


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("out of memory"), "failed", "RuntimeError: out of memory"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (SystemExit(0), "completed", None),
    ],
    ids=["error", "ctrl-c", "exit-3", "exit-0"],
)
def test_finish_in_a_finally_records_the_exception_that_is_under_way(tmp_path, error, status, reason) -> None:
    run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
    with pytest.raises(type(error)):
        in_flight(run, error)
    (session,) = lineage.read(run.path).record.sessions
    assert (session.status, session.reason) == (status, reason)


def test_a_run_that_a_finally_finished_is_gone_on_with_after_its_exception(tmp_path) -> None:
    run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
    with pytest.raises(ValueError):
        in_flight(run, ValueError())
    with lineage.init(tmp_path, name="a", recipe={}) as again:
        assert again.id == run.id


def test_an_exception_after_the_loop_was_over_leaves_the_training_completed(tmp_path) -> None:
    run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
    with pytest.raises(ValueError):
        try:
            for _ in run.steps(2):
                run.log(loss=1.0)
            raise ValueError("a plot of the results")
        finally:
            run.finish()
    assert lineage.read(run.path).state == "completed"


def test_a_training_inside_of_an_except_clause_or_ended_by_its_data_is_completed(tmp_path) -> None:
    try:
        int("a faster library")
    except ValueError:
        run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
        run.log(loss=1.0)
        run.finish()
    assert lineage.read(run.path).state == "completed"
    run = lineage.init(tmp_path, name="b", recipe={}, resume="never")
    try:
        run.log(loss=float(next(iter(()))))
    except StopIteration:
        run.log(loss=1.0)
        run.finish()
    assert lineage.read(run.path).state == "completed"


def test_a_log_behind_the_loop_is_told_to_be_a_step(tmp_path, capsys) -> None:
    with lineage.init(tmp_path, name="a", recipe={}, resume="never") as run:
        for _ in run.steps(2):
            run.log(loss=1.0)
        run.log(accuracy=0.5)
        run.log(accuracy=0.5)
    assert capsys.readouterr().err.count("counts as step 3") == 1
    assert [event.code for event in lineage.read(run.path).events("alert")] == ["log_outside_steps"]


@pytest.mark.parametrize(("stop", "status"), [(None, "completed"), (2, "failed")])
def test_a_run_that_a_function_leaves_behind_ends_when_nobody_holds_it_any_more(tmp_path, stop, status) -> None:
    """With its log closed and its lock free, as at the exit: the next run of the process is no second writer."""

    def train() -> None:
        run = lineage.init(tmp_path, name="a", recipe={})
        for step in run.steps(3):
            run.log(loss=1.0)
            if step == stop:
                return

    train()
    gc.collect()
    (folder,) = tmp_path.iterdir()
    view = lineage.read(folder)
    assert view.state == status
    assert view.record.sessions[0].reason.endswith("without finish()")
    train()
    gc.collect()
    assert [s.status for s in lineage.read(folder).record.sessions] == [status] * (1 if stop is None else 2)


class Deaf:
    def write(self, text: str) -> int:
        raise RuntimeError("nobody listens")


@pytest.mark.parametrize("stderr", [None, Deaf()], ids=["closed-at-the-start", "somebodys"])
def test_a_stderr_that_takes_no_line_ends_no_training(tmp_path, monkeypatch, stderr) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with lineage.init(tmp_path, name="a", recipe={}, resume="never") as run:
        run.log(loss=float("nan"), other="no number")
        run.log(loss=1.0)
    monkeypatch.undo()
    assert sorted(event.code for event in lineage.read(run.path).events("alert")) == ["bad_metric", "non_finite"]
