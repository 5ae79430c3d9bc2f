"""What training code hands over by mistake, or from where it should not: no line is spoilt, no training ends of it."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import lineage
from lineage.errors import UsageError
from lineage.log.reader import read_events


@pytest.fixture
def run(tmp_path: Path):
    with lineage.init(tmp_path / "runs", name="a", recipe={}, resume="never", system_interval_s=1e9) as opened:
        yield opened


def of(run: lineage.Run) -> lineage.RunView:
    view = lineage.read(run.path)
    assert list(view.damage) == []
    return view


def alerts(run: lineage.Run) -> list[str]:
    return [event.code for event in of(run).events("alert")]


@pytest.mark.parametrize("what", ["tokens", "samples"])
@pytest.mark.parametrize(
    "given", [3.5, float("nan"), float("inf"), -3, True, 2**70, "3", [3], object], ids=lambda value: str(value)[:8]
)
def test_a_count_that_is_none_is_left_out_with_one_alert_and_the_loss_is_kept(run, what, given) -> None:
    run.log(loss=1.0, **{what: given})
    run.log(loss=2.0, **{what: given})
    assert of(run).series("loss").value.tolist() == [1.0, 2.0]
    assert alerts(run) == ["bad_count"]
    assert run.num_tokens == 0


@pytest.mark.parametrize("given", [3, 3.0, np.int64(3), np.float32(3), np.array(3)], ids=lambda v: type(v).__name__)
def test_a_count_may_be_any_whole_number(run, given) -> None:
    run.log(loss=1.0, tokens=given)
    assert [event.tokens for event in read_events(run.path / "metrics.jsonl") if event.kind == "step"] == [3]
    assert type(run.num_tokens) is int


def test_a_step_may_be_any_whole_number(run) -> None:
    for step in (1, np.int64(2), 3.0, np.array(4)):
        run.log(loss=1.0, step=step)
    assert of(run).series("loss").step.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("given", [0, -1, 1.5, 2**60, "5", True, float("nan")], ids=str)
def test_a_step_that_is_none_is_refused_at_the_call_and_the_session_ends_as_it_should(tmp_path, given) -> None:
    run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
    run.log(loss=1.0)
    with pytest.raises(UsageError, match=r"counted from 1"):
        run.log(loss=2.0, step=given)
    run.finish()
    view = of(run)
    assert view.state == "completed"
    assert view.last_step == 1


class Spoilt:
    """A number of somebody's, whose every conversion fails in its own way."""

    def item(self) -> float:
        raise KeyError("item")

    def __float__(self) -> float:
        raise ZeroDivisionError


class SpoiltFloat:
    def __float__(self) -> float:
        raise KeyError("float")


@pytest.mark.parametrize("given", [Spoilt(), SpoiltFloat()], ids=["item", "float"])
def test_a_metric_that_raises_is_left_out(run, given) -> None:
    run.log(loss=given, other=1.0)
    assert of(run).series("other").value.tolist() == [1.0]
    assert alerts(run) == ["bad_metric"]


def test_a_whole_number_beyond_every_float_is_an_infinity(run) -> None:
    run.log(loss=10**400, other=-(10**400))
    view = of(run)
    assert view.series("loss").value.tolist() == [float("inf")]
    assert view.series("other").value.tolist() == [float("-inf")]


def test_words_of_any_kind_leave_lines_that_can_be_read(run) -> None:
    for word in ("", None, 3, "\ud800", "a\nb"):
        with run.phase(word):
            run.log_eval(loss=1.0, name=word)
            run.note(word)
            run.alert(word, code=word, severity=word)
    assert {event.severity for event in of(run).events("alert")} == {"error"}


@pytest.mark.parametrize("given", [[("loss", 1.0)], 3, "loss"], ids=["list", "int", "str"])
def test_metrics_that_are_no_mapping_are_refused_with_the_way_on(run, given) -> None:
    with pytest.raises(UsageError, match=r"a mapping of names to numbers"):
        run.log(given)
    with pytest.raises(UsageError, match=r"a mapping of names to numbers"):
        run.log_eval(given)


def test_what_comes_after_finish_says_so(tmp_path) -> None:
    run = lineage.init(tmp_path / "one", name="a", recipe={}, resume="never")
    run.finish()
    with pytest.raises(UsageError, match=r"after finish\(\)"):
        run.log(loss=1.0)
    other = lineage.init(tmp_path / "two", name="a", recipe={}, resume="never")
    other.log(loss=1.0)
    other.finish()
    other.finish()
    for late in (lambda: other.track(model=object()), other.checkpoint, other.restore, lambda: other.export("x")):
        with pytest.raises(UsageError, match=r"after finish\(\)"):
            late()


def test_logging_after_finish_is_told_once_with_what_to_do_and_never_raises(tmp_path, capsys) -> None:
    run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
    run.log(loss=1.0)
    run.finish()
    for _ in range(3):
        run.log(loss=2.0)
        run.log_eval(loss=2.0)
        run.note("late")
    told = capsys.readouterr().err
    assert told.count("after finish()") == told.count("\n") == 1
    assert "lineage.init" in told
    assert of(run).series("loss").value.tolist() == [1.0]


def test_a_script_may_change_its_folder_after_init(tmp_path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    for resume in ("never", "auto"):
        run = lineage.init("runs", name="a", recipe={}, resume=resume)
        run.track(model=torch.nn.Linear(2, 2))
        run.absent("optimizer", "none here")
        os.chdir(elsewhere)
        restored = run.restore()
        assert (restored is not None) == (resume == "auto")
        run.log(loss=1.0)
        assert run.checkpoint() is not None
        run.finish() if resume == "auto" else run.end_on_exception(KeyboardInterrupt())
        os.chdir(home)
    assert list(elsewhere.iterdir()) == []
    record = lineage.read(next((home / "runs").iterdir())).record
    assert [len(session.checkpoints) for session in record.sessions] == [1, 1]


FORKED = """
    import os, sys
    import lineage
    from lineage.errors import UsageError

    run = lineage.init(sys.argv[1], name="a", recipe={}, resume="never")
    run.log(loss=1.0)
    if os.fork() == 0:
        CHILD
    _, status = os.wait()
    run.log(loss=2.0)
    run.finish()
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_what_comes_after_a_preempted_loop_is_told_that_the_session_ended_so(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    run = lineage.init(tmp_path, name="a", recipe={}, resume="never")
    run.track(model=torch.nn.Linear(2, 2))
    run.absent("optimizer", "none here")
    run.restore()
    for _ in run.steps(5):
        run.log(loss=1.0)
        os.kill(os.getpid(), signal.SIGTERM)
    assert run.ended == "preempted"
    for late in (run.checkpoint, lambda: run.export("final")):
        with pytest.raises(UsageError, match=r"after the session ended as preempted.*run\.ended"):
            late()
    assert not (run.path / "exports").exists()
    assert of(run).state == "preempted"


RESUMED = """
    import os, sys
    import torch
    import lineage

    def begun(resume):
        torch.manual_seed(0)
        run = lineage.init(sys.argv[1], name="a", recipe={}, resume=resume, continuation="stop")
        model = torch.nn.Linear(2, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        run.absent("loader", "no data")
        run.restore()
        return run

    run = begun("never")
    for step in range(6):
        run.log(loss=1.0)
        if step == 2:
            run.checkpoint()
    run.end_on_exception(KeyboardInterrupt())
    run = begun("auto")
    if os.fork() == 0:
        for _ in range(6):
            run.log(loss=2.0)
        list(run.steps(20))
        sys.exit(0)
    _, status = os.wait()
    for _ in range(6):
        run.log(loss=1.0)
    run.finish()
    run.log(loss=2.0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_that_logs_has_no_part_in_the_proof_of_a_resume(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(RESUMED))
    ran = subprocess.run([sys.executable, str(script), str(tmp_path / "runs")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "LockedError" not in ran.stderr
    assert "diverged" not in ran.stderr
    record = lineage.read(next((tmp_path / "runs").glob("*-a"))).record
    assert record.sessions[-1].continuation.verdict == "exact"


@pytest.mark.parametrize(
    ("child", "code", "said"),
    [
        ("raise ValueError('of the child')", 1, "ValueError: of the child"),
        ("with run: raise ValueError('of the child')", 1, "ValueError: of the child"),
        ("run.finish(); sys.exit(0)", 0, ""),
        ("run.checkpoint()", 1, "UsageError: checkpoint() in a process forked from the one that has the run"),
        ("run.export('x')", 1, "UsageError: export() in a process forked from the one that has the run"),
        ("lineage.init(sys.argv[1], name='b', recipe={}).log(loss=1.0); raise ValueError('own run')", 1, "own run"),
    ],
    ids=["fails", "fails-in-with", "finishes", "checkpoints", "exports", "has-its-own"],
)
def test_a_forked_child_has_no_part_in_the_run(tmp_path, child, code, said) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(FORKED).replace("CHILD", child))
    ran = subprocess.run([sys.executable, str(script), str(tmp_path / "runs")], capture_output=True, text=True)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr
    assert "LockedError" not in ran.stderr
    assert "RecursionError" not in ran.stderr
    assert "During handling" not in ran.stderr
    view = lineage.read(next((tmp_path / "runs").glob("*-a")))
    assert view.state == "completed"
    assert view.series("loss").value.tolist() == [1.0, 2.0]
    assert not (view.dir.path / "checkpoints").exists()
