"""`lineage.read`: what people plot in a notebook is the effective history, with nothing lost and nothing twice."""

import builtins
import math
import os
import time

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lineage
from benchmarks.synthetic import write_run
from lineage.errors import LineageError, NewerFormatError, NotFoundError, UsageError
from lineage.log.writer import encode_event
from lineage.runs.lock import RunLock


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three sessions: killed at 237 after the checkpoint at 200, preempted at 400, completed at 600; NaN at 240."""
    return write_run(tmp_path_factory.mktemp("runs"), steps=600, sessions=3, overlap=37, diverged=0.01)


@pytest.fixture(scope="module")
def lines(run):
    return [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]


def append(run, *events) -> None:
    with (run / "metrics.jsonl").open("ab") as out:
        out.write(b"".join(map(encode_event, events)))


def test_the_effective_history_has_every_step_once_and_in_order(run):
    loss = lineage.read(run).series("loss")
    assert loss.step.tolist() == list(range(1, 601))
    assert loss.session.tolist() == [1] * 200 + [2] * 200 + [3] * 200


def test_a_step_trained_twice_has_the_value_of_the_session_that_counts(run, lines):
    loss = lineage.read(run).series("loss")
    attempts = [line for line in lines if line["kind"] == "step" and line["step"] == 210]
    assert len(attempts) == 2
    assert attempts[0]["metrics"]["loss"] != attempts[1]["metrics"]["loss"]
    assert loss.value[209] == attempts[1]["metrics"]["loss"]


def test_superseded_gives_every_attempt_in_order_of_the_log(run, lines):
    every = lineage.read(run).series("loss", superseded=True)
    steps = [line for line in lines if line["kind"] == "step"]
    assert every.step.tolist() == [line["step"] for line in steps]
    assert every.time.tolist() == [line["ts"] for line in steps]
    assert len(every) == 637


def test_a_session_gives_all_it_trained_by_ordinal_and_by_id(run):
    view = lineage.read(run)
    first = view.series("loss", session=1)
    assert first.step.tolist() == list(range(1, 238))
    assert view.series("loss", session=view.sessions[0].id).value.tolist() == first.value.tolist()
    with pytest.raises(NotFoundError, match="9"):
        view.series("loss", session=9)


def test_nan_is_a_value_and_stands_at_its_step(run):
    loss = lineage.read(run).series("loss")
    assert loss.step[np.isnan(loss.value)].tolist() == [240]


def test_training_time_leaves_out_phases_gaps_and_what_was_superseded(run, lines):
    view = lineage.read(run)
    loss = view.series("loss")
    took = {(line["session"], line["step"]): line["duration_s"] for line in lines if line["kind"] == "step"}
    ids = {session.ordinal: session.id for session in view.sessions}
    durations = [took[ids[s], n] for s, n in zip(loss.session.tolist(), loss.step.tolist(), strict=True)]
    assert loss.train_time == pytest.approx(np.cumsum(durations))
    assert (np.diff(loss.train_time) > 0).all()
    assert loss.time[-1] - loss.time[0] > loss.train_time[-1] + 500  # two gaps of minutes


def test_superseded_steps_have_the_training_time_of_their_own_attempt(run):
    view = lineage.read(run)
    first = view.series("loss", session=1)
    assert (np.diff(first.train_time) > 0).all()
    assert first.train_time[199] == view.series("loss").train_time[199]


def test_throughput_is_tokens_over_training_time(run, lines):
    view = lineage.read(run)
    rate = view.series("tokens_per_s")
    line = next(line for line in lines if line["kind"] == "step" and line["step"] == 100)
    assert rate.value[99] == line["tokens"] / line["duration_s"]
    assert view.series("step_s").value[99] == line["duration_s"]
    assert view.metrics == ["loss", "lr", "grad_norm", "tokens_per_s", "step_s"]


@pytest.mark.parametrize("start", [0, 150, 250, 600])
def test_what_steps_counted_is_told_for_every_row_and_is_nan_where_one_did_not(tmp_path, start):
    run = write_run(tmp_path, steps=600, sessions=3, overlap=37)
    log = run / "metrics.jsonl"
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    for line in lines:
        if line["kind"] == "step" and (line["step"] <= 200 or line["step"] == 300):
            del line["tokens"]
    log.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    view = lineage.read(run)
    parts = list(view.counted("tokens", start=start))
    steps = [step for part, _ in parts for step in part.tolist()]
    tokens = np.concatenate([values for _, values in parts]) if parts else np.empty(0)
    assert steps == list(range(start + 1, 601))
    assert [step for step, bad in zip(steps, np.isnan(tokens), strict=True) if bad] == [
        *range(start + 1, 201),
        *([300] if start < 300 else []),
    ]
    assert np.isnan(np.concatenate([values for _, values in view.counted("samples")])).all()
    ((step, values),) = view.counted("tokens", session=1)
    assert step.tolist() == list(range(1, 238))
    assert np.nansum(values) == 37 * 8192


def test_an_unknown_metric_is_refused_with_those_there_are(run):
    with pytest.raises(NotFoundError, match="grad_norm"):
        lineage.read(run).series("los")


def test_evaluations_of_the_effective_history_come_once_each(run):
    view = lineage.read(run)
    evals = view.evals()
    assert evals.step.tolist() == [100, 200, 300, 400, 500, 600]
    assert evals.session.tolist() == [1, 1, 2, 2, 3, 3]
    assert evals.train_time[1] == view.series("loss").train_time[199]
    assert len(view.evals("no such suite")) == 0


def test_an_evaluation_of_superseded_steps_shows_only_when_asked_for(tmp_path):
    run = write_run(tmp_path, steps=400, sessions=2, overlap=60, eval_every=50, checkpoint_every=200)
    view = lineage.read(run)
    assert view.evals().step.tolist() == [50, 100, 150, 200, 250, 300, 350, 400]
    assert view.evals(superseded=True).step.tolist() == [50, 100, 150, 200, 250, 250, 300, 350, 400]


def test_events_are_everything_but_steps_in_order(run, lines):
    view = lineage.read(run)
    expected = [(line["kind"], line["ts"]) for line in lines if line["kind"] != "step"]
    assert [(event.kind, event.ts) for event in view.events()] == expected
    assert {event.kind for event in view.events("fp16_skip", session=2)} == {"fp16_skip"}
    assert len(view.events("session_start", session=3)) == 1


def test_states_are_derived_for_the_run_and_each_session(run):
    view = lineage.read(run)
    assert list(view.session_states.values()) == ["killed", "preempted", "completed"]
    assert view.state == "completed"


def test_a_run_whose_lock_is_free_is_killed_at_once_and_running_while_it_is_held(tmp_path):
    run = write_run(tmp_path, steps=100, sessions=1, live=True, started_at=time.time() - 30)
    view = lineage.read(run)
    assert view.state == "killed"
    lock = RunLock.acquire(run, view.sessions[-1].id)
    try:
        assert view.refresh()
        assert view.state == "running"
        assert view.owner is not None
        assert view.owner.pid == os.getpid()
    finally:
        lock.close()
    assert view.refresh()
    assert view.state == "killed"
    assert not view.refresh()


def test_following_gives_only_the_new_rows(tmp_path):
    run = write_run(tmp_path, steps=200, sessions=2, live=True)
    view = lineage.read(run)
    session = view.sessions[-1].id
    version, have = view.history_version, len(view.series("loss"))
    for number in range(201, 205):
        event = {"kind": "step", "ts": 2e9, "run": view.record.id, "session": session, "step": number}
        append(run, event | {"metrics": {"loss": float(number)}, "duration_s": 1.0})
    assert view.refresh()
    assert view.history_version == version
    new = view.series("loss", start=have)
    assert new.step.tolist() == [201, 202, 203, 204]
    assert new.train_time[-1] == pytest.approx(view.series("loss").train_time[-1])
    assert len(view.series("loss", start=have + 4)) == 0


@pytest.mark.parametrize("superseded", [False, True])
@pytest.mark.parametrize("start", [0, 1, 199, 200, 201, 399, 599, 600, 700])
def test_start_leaves_out_exactly_the_rows_before_it(run, start, superseded):
    view = lineage.read(run)
    for name in view.metrics:
        whole, part = view.series(name, superseded), view.series(name, superseded, start=start)
        assert part.step.tolist() == whole.step[start:].tolist()
        assert part.train_time.tolist() == whole.train_time[start:].tolist()


def test_a_resume_that_supersedes_steps_changes_the_version_of_the_history(tmp_path):
    run = write_run(tmp_path, steps=200, sessions=1, checkpoint_every=100)
    view = lineage.read(run)
    version = view.history_version
    start = {"kind": "resume", "step": 100, "checkpoint": view.sessions[0].checkpoints[0]}
    new = {"ts": 2e9, "run": view.record.id, "session": "s02-0000abcd"}
    append(
        run,
        {"kind": "session_start", "step": 100, "ordinal": 2, "start": start} | new,
        *({"kind": "step", "step": n, "metrics": {"loss": -1.0}} | new for n in range(101, 111)),
    )
    assert view.refresh()
    assert view.history_version != version
    loss = view.series("loss")
    assert loss.step.tolist() == list(range(1, 111))
    assert loss.value[100:].tolist() == [-1.0] * 10
    assert [session.ordinal for session in view.sessions] == [1, 2]


@pytest.mark.parametrize("what", ["missing", "damaged", "a folder"])
def test_a_run_without_its_record_is_told_from_the_log_and_says_so(tmp_path, run, what):
    whole = lineage.read(run)
    copy = tmp_path / run.name
    copy.mkdir()
    (copy / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes())
    if what == "damaged":
        (copy / "run.json").write_bytes((run / "run.json").read_bytes()[:-40])
    elif what == "a folder":
        (copy / "run.json").mkdir()
    view = lineage.read(copy)
    assert view.damage[0].reason.count("run.json") == 1
    assert view.record.id == whole.record.id
    assert [s.id for s in view.sessions] == [s.id for s in whole.sessions]
    assert [s.start.step for s in view.sessions] == [0, 200, 400]
    assert view.series("loss").step.tolist() == list(range(1, 601))
    assert list(view.session_states.values()) == ["killed", "preempted", "completed"]
    (copy / "run.json").is_dir() and (copy / "run.json").rmdir()
    (copy / "run.json").write_bytes((run / "run.json").read_bytes())
    assert view.refresh()
    assert view.damage == []
    assert view.record == whole.record


def test_damage_in_the_log_is_located_and_the_rest_is_read(tmp_path):
    run = write_run(tmp_path, steps=100, sessions=1)
    log = run / "metrics.jsonl"
    rows = log.read_bytes().splitlines(keepends=True)
    rows[50] = rows[50][:-9] + b"\xff\n"
    log.write_bytes(b"".join(rows))
    view = lineage.read(run)
    assert [damage.offset for damage in view.damage] == [sum(map(len, rows[:50]))]
    assert len(view.series("loss")) == 99


def test_neither_record_nor_log_is_no_run(tmp_path):
    with pytest.raises(NotFoundError, match=r"run\.json"):
        lineage.read(tmp_path)
    with pytest.raises(NotFoundError):
        lineage.read(tmp_path / "nowhere")


def test_a_record_without_a_log_is_a_run_without_curves(tmp_path, run):
    (tmp_path / "run.json").write_bytes((run / "run.json").read_bytes())
    view = lineage.read(tmp_path)
    assert view.metrics == []
    assert view.events() == []
    assert len(view.sessions) == 3


@pytest.mark.parametrize("what", ["is missing", "is empty", "has no whole line"])
def test_a_log_that_lost_all_its_steps_is_damage_and_none_that_never_had_any(tmp_path, run, what):
    record = orjson.loads((run / "run.json").read_bytes())
    (tmp_path / "run.json").write_bytes(orjson.dumps(record))
    if what != "is missing":
        (tmp_path / "metrics.jsonl").write_bytes(b"" if what == "is empty" else b'{"kind": "st')
    view = lineage.read(tmp_path)
    assert [str(damage) for damage in view.damage] == [f"metrics.jsonl {what}, though run.json tells of 600 steps"]
    for session in record["sessions"]:
        session["last_step"] = None
    (tmp_path / "run.json").write_bytes(orjson.dumps(record))
    assert lineage.read(tmp_path).damage == []


def test_bytes_after_the_last_newline_are_told_once_nobody_writes_any_more(tmp_path):
    run = write_run(tmp_path, steps=100, sessions=1)
    log = run / "metrics.jsonl"
    whole = log.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    log.write_bytes(whole[:-37])
    view = lineage.read(run)
    assert (view.num_torn_bytes, view.num_unread_bytes, view.damage) == (last - 37, 0, [])
    lock = RunLock.acquire(run, view.sessions[0].id)
    view.refresh()
    assert (view.num_torn_bytes, view.num_unread_bytes) == (0, 0)
    lock.close()


def test_a_log_whose_torn_tail_was_cut_and_that_went_on_shorter_is_read_on(tmp_path, run):
    copy = tmp_path / "copy"
    copy.mkdir()
    log = copy / "metrics.jsonl"
    whole = (run / "metrics.jsonl").read_bytes()
    log.write_bytes(whole + b"x" * 5000)
    view = lineage.read(copy)
    with log.open("r+b") as file:
        file.truncate(len(whole))
    append(copy, {"kind": "note", "ts": 2e9, "run": run.name, "session": view.sessions[-1].id, "text": "went on"})
    assert view.refresh()
    assert view.events()[-1].kind == "note"


def test_the_files_of_a_run_name_it_too(run):
    assert lineage.read(run / "run.json").record.id == lineage.read(run / "metrics.jsonl").record.id == run.name


def test_a_newer_major_version_is_refused(tmp_path, run):
    record = orjson.loads((run / "run.json").read_bytes())
    record["format"]["version"] = "2.0"
    (tmp_path / "run.json").write_bytes(orjson.dumps(record))
    with pytest.raises(NewerFormatError):
        lineage.read(tmp_path)


def test_a_metric_logged_now_and_then_has_only_its_own_steps(tmp_path):
    run = write_run(tmp_path, steps=100, sessions=1, live=True)
    view = lineage.read(run)
    session = view.sessions[0].id
    for number in range(101, 121):
        metrics = {"loss": 1.0} | ({"memory": number / 2} if number % 5 == 0 else {})
        event = {"kind": "step", "ts": 2e9, "run": view.record.id, "session": session, "step": number}
        append(run, event | {"metrics": metrics})
    view.refresh()
    assert view.series("memory").step.tolist() == [105, 110, 115, 120]
    assert view.series("memory").value.tolist() == [52.5, 55.0, 57.5, 60.0]
    assert view.series("lr").step.tolist() == list(range(1, 101))
    assert view.series("memory", start=3).step.tolist() == [120]


def test_a_step_logged_twice_in_a_session_counts_once_with_its_last_value(tmp_path):
    run = write_run(tmp_path, steps=20, sessions=1, live=True, checkpoint_every=1000, eval_every=1000)
    view = lineage.read(run)
    event = {"kind": "step", "ts": 2e9, "run": view.record.id, "session": view.sessions[0].id, "step": 7}
    append(run, event | {"metrics": {"loss": 77.0}})
    view.refresh()
    loss = view.series("loss")
    assert loss.step.tolist() == list(range(1, 21))
    assert loss.value[6] == 77.0
    assert len(view.series("loss", superseded=True)) == 21


def test_frames_need_their_library_and_say_so(run, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] in {"polars", "pandas"}:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", without)
    view = lineage.read(run)
    for method in (view.to_polars, view.to_pandas):
        with pytest.raises(UsageError, match="not installed"):
            method()


def test_polars_gets_a_row_for_each_step_with_null_for_absent_and_nan_for_nan(run):
    polars = pytest.importorskip("polars")
    frame = lineage.read(run).to_polars()
    assert frame.height == 600
    assert frame["step"].to_list() == list(range(1, 601))
    assert frame["loss"].is_nan().sum() == 1
    assert frame["loss"].null_count() == 0
    assert frame.schema["session"] == polars.Int64


def test_pandas_gets_a_row_for_each_attempt_when_asked(run):
    pytest.importorskip("pandas")
    frame = lineage.read(run).to_pandas(superseded=True)
    assert len(frame) == 637
    assert frame["step"].tolist()[236:239] == [237, 201, 202]


def test_the_table_behind_the_frames_marks_what_is_absent(tmp_path):
    run = write_run(tmp_path, steps=10, sessions=1, live=True)
    view = lineage.read(run)
    event = {"kind": "step", "ts": 2e9, "run": view.record.id, "session": view.sessions[0].id, "step": 11}
    append(run, event | {"metrics": {"loss": math.inf}})
    view.refresh()
    table = view.table()
    values, missing = table["loss"]
    assert (values[-1], missing) == (math.inf, None)
    values, missing = table["lr"]
    assert missing.tolist() == [False] * 10 + [True]
    assert {len(values) for values, _ in table.values()} == {11}


def test_reading_needs_no_right_to_write(tmp_path, run):
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("run.json", "metrics.jsonl"):
        (copy / name).write_bytes((run / name).read_bytes())
    copy.chmod(0o555)
    try:
        assert len(lineage.read(copy).series("loss")) == 600
    finally:
        copy.chmod(0o755)


def test_errors_of_reading_are_of_the_family(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/etc/hostname")
    with pytest.raises(LineageError):
        lineage.read(tmp_path)


def test_a_session_that_went_back_once_is_followed_by_its_new_rows_alone(tmp_path):
    """A loop that restored by hand: every refresh after it would otherwise build everything anew."""
    run = write_run(tmp_path, steps=200, sessions=1, live=True)
    view = lineage.read(run)
    shared = {"ts": 2e9, "run": view.record.id, "session": view.sessions[-1].id, "kind": "step", "duration_s": 1.0}

    def log(*steps: int) -> None:
        append(run, *(shared | {"step": step, "metrics": {"loss": 1000.0 + step}} for step in steps))
        assert view.refresh()

    version = view.history_version
    log(150, 151, 152)
    assert view.history_version > version, "three rows were replaced"
    log(*range(153, 202))
    version, have = view.history_version, len(view.series("loss"))
    log(202, 203)
    log(204)
    assert view.history_version == version
    assert view.series("loss", start=have).step.tolist() == [202, 203, 204]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=5))
def test_rows_followed_in_portions_are_those_of_the_whole_whatever_the_order_of_steps(tmp_path_factory, portions):
    run = tmp_path_factory.mktemp("order")
    session = "s01-0000abcd"
    shared = {"run": "20251129-134012-x", "session": session, "kind": "step", "duration_s": 0.5}
    append(run, {**shared, "kind": "session_start", "ts": 1.0, "step": 0, "ordinal": 1, "start": {"kind": "fresh"}})
    view = lineage.read(run)
    last: dict[int, float] = {}
    now, version, have = 1.0, -1, 0
    for portion in portions:
        events = []
        for step in portion:
            now += 1.0
            last[step] = now
            events.append(shared | {"ts": now, "step": step, "metrics": {"loss": now}})
        append(run, *events)
        view.refresh()
        found = view.series("loss")
        assert dict(zip(found.step.tolist(), found.value.tolist(), strict=True)) == last
        assert (np.diff(found.step) > 0).all()
        if view.history_version == version:
            assert min(portion) > have, "a row was replaced, and nobody was told"
        version, have = view.history_version, max(last)
