"""What a run records without being told: skips, restores, alerts, phases, witnesses; and what it counts."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch

import lineage
from lineage.trainer.continuity import ContinuationDivergedError
from lineage_schemas.events import parse_event
from lineage_schemas.run import Run as RunRecord


def test_skipped_steps_are_counted_apart_from_updates_with_the_scale_before_and_after(make, start, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 12, overflow_at=(3, 7))
    run.finish()
    assert (run.step, run.num_updates, run.num_skipped) == (12, 10, 2)
    skips = events_of(run, "fp16_skip")
    assert [(e["step"], e["scale_before"], e["scale_after"]) for e in skips] == [(3, 1024, 512), (7, 512, 256)]
    assert [(e["num_updates"], e["num_skipped"]) for e in skips] == [(2, 1), (5, 2)]


def test_counters_go_on_across_a_resume(make, start, abandon) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, overflow_at=(3,), stop_after=14)
    abandon(run)
    trainer, run = make(), start()
    trainer.track(run)
    restored = run.restore()
    assert restored is not None
    assert (restored.position.step, restored.position.num_updates, restored.position.num_skipped) == (10, 9, 1)
    trainer.train(run, 20, overflow_at=(12,))
    assert (run.step, run.num_updates, run.num_skipped) == (20, 18, 2)


def test_a_restore_marks_the_learning_rate_before_after_and_expected(make, start, abandon, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, stop_after=12)
    abandon(run)
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    (mark,) = events_of(run, "lr_restore")
    (group,) = mark["groups"]
    assert group["before"] == 0.05
    assert group["after"] == group["expected"] == pytest.approx(0.05 * 0.99**10)
    assert mark["step"] == 10
    assert mark["ok"]
    assert [e["lost_steps"] for e in events_of(run, "checkpoint_restored")] == [2]


def test_the_proof_of_a_resume_is_exact_and_in_the_record(make, start, abandon, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    first = trainer.train(run, 30, stop_after=17)
    abandon(run)
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    second = trainer.train(run, 20)
    run.finish()
    assert second[:7] == first[10:]
    (verdict,) = events_of(run, "continuation")
    assert (verdict["verdict"], verdict["compared_steps"], verdict["final"]) == ("exact", 7, True)
    record = lineage.read(run.path).record
    assert record.sessions[1].continuation is not None
    assert record.sessions[1].continuation.verdict == "exact"


def careless(make, start, abandon, policy: str) -> lineage.Run:
    """Weights only: a fresh optimizer, the loader from the start, the steps counted on."""
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, stop_after=17)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    abandon(run)
    trainer = make()
    trainer.model.load_state_dict(weights)
    run = start(continuation=policy)
    for step, batch in zip(run.steps(20, start=10), trainer.loader, strict=False):
        run.log(loss=trainer.step(batch), step=step)
    return run


def test_a_careless_restart_is_told_while_it_trains(
    make, start, abandon, capsys: pytest.CaptureFixture[str], events_of
) -> None:
    run = careless(make, start, abandon, "warn")
    run.finish()
    (verdict,) = events_of(run, "continuation")
    assert verdict["verdict"] == "diverged"
    assert verdict["first_difference"]["step"] == 11
    (alert,) = events_of(run, "alert")
    assert alert["code"] == "diverged"
    assert capsys.readouterr().err.count("diverged") == 1


def test_policy_stop_raises_at_the_first_diverged_step(make, start, abandon) -> None:
    with pytest.raises(ContinuationDivergedError) as caught:
        careless(make, start, abandon, "stop")
    assert caught.value.verdict is not None
    assert caught.value.verdict.first_difference.step == 11


def test_policy_off_compares_nothing(make, start, abandon, events_of) -> None:
    run = careless(make, start, abandon, "off")
    run.finish()
    assert not events_of(run, "continuation")


def test_the_first_nonfinite_loss_is_one_alert_and_its_value_is_kept(
    start, capsys: pytest.CaptureFixture[str], events_of
) -> None:
    run = start()
    for loss in (1.0, math.nan, math.inf):
        run.log(loss=loss, grad_norm=math.inf)
    run.finish()
    (alert,) = events_of(run, "alert")
    assert alert["details"] == {"metric": "loss", "step": 2, "value": "nan"}
    assert "since step 2" in capsys.readouterr().err
    values = lineage.read(run.path).series("loss").value
    assert values[0] == 1.0
    assert math.isnan(values[1])
    assert values[2] == math.inf


def test_training_time_leaves_phases_out_and_throughput_is_of_training_alone(start, events_of) -> None:
    run = start()
    for _ in run.steps(2):
        time.sleep(0.02)
        run.log(loss=1.0, tokens=100)
        with run.phase("eval"):
            time.sleep(0.3)
            run.log_eval(loss=0.5)
    run.finish()
    durations = [e["duration_s"] for e in events_of(run, "step")]
    assert all(0.01 < seconds < 0.25 for seconds in durations), durations
    assert all(e["duration_s"] >= 0.3 for e in events_of(run, "phase_end"))


def test_a_phase_left_by_an_exception_is_not_ok_and_the_exception_passes(start, events_of) -> None:
    run = start()
    with pytest.raises(ZeroDivisionError), run.phase("eval"):
        raise ZeroDivisionError
    assert [e["ok"] for e in events_of(run, "phase_end")] == [False]


def test_witnesses_stand_on_the_steps_after_a_start_and_after_each_checkpoint(make, start, events_of) -> None:
    trainer, run = make(), start(witness_steps=3)
    trainer.track(run)
    run.restore()
    trainer.train(run, 20)
    steps = events_of(run, "step")
    assert [e["step"] for e in steps if "witness" in e] == [1, 2, 3, 11, 12, 13]
    witness = steps[0]["witness"]
    assert set(witness) == {"batch", "rng", "lr", "scale"}
    assert witness["lr"] == {"optimizer": [0.05]}
    assert witness["scale"] == {"scaler": 1024.0}


def test_log_every_writes_every_nth_step_and_converts_nothing_in_between(start, events_of) -> None:
    class Watched:
        def __init__(self) -> None:
            self.read = 0

        def item(self) -> float:
            self.read += 1
            return 1.0

    run, value = start(log_every=5), Watched()
    for _ in run.steps(12):
        run.log(loss=value, tokens=10)
    run.finish()
    assert [e["step"] for e in events_of(run, "step")] == [5, 10]
    assert value.read == 2
    assert run.num_tokens == 120


def test_a_value_that_is_no_number_is_left_out_with_one_alert(
    start, capsys: pytest.CaptureFixture[str], events_of
) -> None:
    run = start()
    for _ in range(3):
        run.log(loss=1.0, words="no")
    assert [e["metrics"] for e in events_of(run, "step")] == [{"loss": 1.0}] * 3
    assert [e["code"] for e in events_of(run, "alert")] == ["bad_metric"]
    assert "'words'" in capsys.readouterr().err


def test_every_line_and_the_record_validate_against_their_models(make, start) -> None:
    trainer, run = make(), start(data={"train": "synthetic-1"}, tags=["a"], notes="n", system_interval_s=0.0)
    trainer.track(run)
    run.restore()
    trainer.train(run, 12, overflow_at=(2,), each=lambda _: run.note("hello"))
    run.alert("look", severity="info")
    run.finish()
    for line in (run.path / "metrics.jsonl").read_bytes().splitlines():
        assert type(parse_event(line)).__name__ != "UnknownEvent"
    record = RunRecord.model_validate_json((run.path / "run.json").read_bytes())
    assert record.sessions[0].data["train"].fingerprint == "synthetic-1"
    assert record.sessions[0].recipe.value == {}


def test_a_fork_is_a_new_linked_run_and_the_old_one_stays_as_it_was(make, start) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 10)
    run.finish()
    before = {
        p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name not in ("run.lock", "ledger.jsonl")
    }
    (generation,) = (run.path / "checkpoints").glob("step-*")
    trainer, forked = make(lr=0.01), start(resume=str(generation), fork=True)
    trainer.track(forked)
    forked.restore()
    trainer.train(forked, 15)
    forked.finish()
    record = lineage.read(forked.path).record
    assert forked.id != run.id
    assert record.parent is not None
    assert (record.parent.run, record.parent.step, record.parent.checkpoint) == (run.id, 10, generation.name)
    assert record.sessions[0].start.kind == "fork"
    assert {p: p.read_bytes() for p in before} == before


def test_a_refused_fork_leaves_no_run_behind(make, start) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 10)
    run.finish()
    (generation,) = (run.path / "checkpoints").glob("step-*")
    forked = start(resume=str(generation), fork=True)
    model = torch.nn.Linear(3, 3)
    forked.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    forked.absent("loader", "random inputs")
    with pytest.raises(lineage.CheckpointError):
        forked.restore()
    assert [p.name for p in run.path.parent.iterdir()] == [run.id]


def test_a_restore_after_the_first_step_is_refused(make, start) -> None:
    run = start()
    run.log(loss=1.0)
    with pytest.raises(lineage.UsageError, match="after the session had begun"):
        run.restore()


def test_batches_taken_around_the_run_are_told_at_the_first_step(make, start) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    with pytest.raises(lineage.UsageError, match=r"run\.batches"):
        for _, batch in zip(run.steps(3), trainer.loader, strict=False):
            run.log(loss=trainer.step(batch))


def test_a_full_disk_during_a_checkpoint_is_told_and_training_goes_on(
    make, start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], events_of
) -> None:
    from lineage.checkpoint import tensorfile

    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    write = tensorfile.write_bytes

    def full(path: Path, *args: object, **kwargs: object) -> object:
        if path.name == "manifest.json" and run.step < 15:
            raise OSError(28, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(tensorfile, "write_bytes", full)
    trainer.train(run, 25)
    run.finish()
    assert run.step == 25
    assert [e["step"] for e in events_of(run, "checkpoint_saved")] == [20]
    (alert,) = events_of(run, "alert")
    assert alert["code"] == "checkpoint_failed"
    assert "training goes on" in capsys.readouterr().err


def test_steps_without_a_loop_count_by_themselves_or_as_told(start, events_of) -> None:
    run = start()
    run.log(loss=1.0)
    run.log({"train/loss": 2.0})
    run.log(loss=3.0, step=10)
    run.log(loss=4.0)
    run.finish()
    assert [e["step"] for e in events_of(run, "step")] == [1, 2, 10, 11]
    assert events_of(run, "step")[1]["metrics"] == {"train/loss": 2.0}


def test_leaving_the_context_by_an_exception_is_recorded_and_passed_on(start) -> None:
    run = start()
    with pytest.raises(ValueError, match="boom"), run:
        run.log(loss=1.0)
        raise ValueError("boom")
    (session,) = lineage.read(run.path).record.sessions
    assert (session.status, session.reason) == ("failed", "ValueError: boom")


def test_must_without_anything_to_resume_is_not_found_and_makes_nothing(start, tmp_path: Path) -> None:
    with pytest.raises(lineage.NotFoundError):
        start(resume="must")
    assert not (tmp_path / "runs").exists()


def test_a_loss_that_jumps_after_a_resume_is_one_alert(make, start, abandon, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 60, stop_after=50)
    abandon(run)
    trainer = make(seed=5)
    run = start(continuation="warn")
    for step in run.steps(70, start=50):
        run.log(loss=float(trainer.step(next(iter(trainer.loader))).detach()) + 20.0, step=step)
    run.finish()
    jumps = [e for e in events_of(run, "alert") if e["code"] == "loss_jump"]
    assert len(jumps) == 1
    assert jumps[0]["details"]["after"] > jumps[0]["details"]["before"]


def test_a_right_resume_raises_no_alert(make, start, abandon, events_of) -> None:
    for stop in (17, 28, None):
        trainer, run = make(), start()
        trainer.track(run)
        run.restore()
        trainer.train(run, 40, stop_after=stop)
        if stop is None:
            run.finish()
        else:
            abandon(run)
    assert not events_of(run, "alert")
    assert [e["verdict"] for e in events_of(run, "continuation")] == ["exact", "exact"]


def test_a_learning_rate_that_is_not_the_expected_one_after_a_clean_stop_is_an_alert(make, start, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 10)
    run.end_on_exception(KeyboardInterrupt())
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.optimizer.param_groups[0]["lr"] = 0.5
    trainer.train(run, 12)
    (alert,) = events_of(run, "alert")
    assert alert["code"] == "lr_unexpected"
    assert alert["details"]["groups"][0]["taken"] == 0.5


def test_a_loop_that_counts_from_one_again_after_a_restore_has_diverged_at_its_start(
    make, start, abandon, events_of
) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, stop_after=17)
    abandon(run)
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    batches = run.batches(trainer.loader)
    for step in range(1, 4):
        run.log(loss=trainer.step(next(batches)), step=step)
    run.finish()
    (verdict,) = events_of(run, "continuation")
    assert (verdict["verdict"], verdict["first_difference"]["field"]) == ("diverged", "start_step")


def test_a_script_that_only_logs_and_starts_again_is_told_nothing(start, abandon, events_of, capsys) -> None:
    for losses in ((1.0, 2.0), (3.0, 4.0, 5.0)):
        run = start()
        for loss in losses:
            run.log(loss=loss)
        abandon(run)
    assert not events_of(run, "alert")
    assert not events_of(run, "continuation")
    assert not capsys.readouterr().err


def test_starting_from_scratch_in_the_same_run_is_compared_and_alarms_nobody(make, start, abandon, events_of) -> None:
    for seed in (0, 1):
        trainer, run = make(seed=seed), start()
        trainer.track(run)
        run.restore()
        trainer.train(run, 30, stop_after=5)
        abandon(run)
    assert [e["verdict"] for e in events_of(run, "continuation")] == ["diverged"]
    assert not events_of(run, "alert")


def test_state_that_nobody_declared_is_told_before_the_first_step(make, start) -> None:
    trainer, run = make(), start()
    run.track(model=trainer.model, optimizer=trainer.optimizer, train_loader=trainer.loader, scaler=trainer.scaler)
    with pytest.raises(lineage.CheckpointError, match="ExponentialLR"):
        run.restore()


def test_a_stream_of_the_users_own_is_tracked_as_a_loader(start, abandon) -> None:
    class Stream:
        def __init__(self) -> None:
            self.num_samples = 0

        def state_dict(self) -> dict[str, int]:
            return {"num_samples": self.num_samples}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.num_samples = state["num_samples"]

        def __iter__(self):
            while True:
                self.num_samples += 1
                yield torch.full((1, 2), float(self.num_samples))

    def begin() -> tuple[lineage.Run, Stream, torch.nn.Module]:
        run, stream, model = start(), Stream(), torch.nn.Linear(2, 1)
        run.track(model=model)
        run.track_as("loader", stream=stream)
        run.absent("optimizer", "nothing is updated in this test")
        run.restore()
        return run, stream, model

    run, stream, model = begin()
    batches = run.batches(stream)
    for step in run.steps(8):
        run.log(loss=model(next(batches)).sum())
        if step == 4:
            run.checkpoint()
        if step == 6:
            break
    abandon(run)
    run, stream, model = begin()
    assert next(run.batches(stream))[0, 0] == 5.0


@pytest.mark.parametrize(("given", "rtol"), [(None, 0.0), (1e-5, 1e-5)])
def test_the_tolerance_of_a_continuation_is_in_the_record_declared_or_not(make, start, given, rtol) -> None:
    trainer, run = make(), start(tolerance=given)
    trainer.track(run)
    run.restore()
    run.finish()
    tolerance = lineage.read(run.path).record.sessions[0].tolerance
    assert tolerance is not None
    assert tolerance.rtol == rtol
    assert bool(tolerance.reason) is (given is None)


def test_an_accelerator_has_a_stated_relative_tolerance_by_default() -> None:
    from lineage.trainer.recorder import default_tolerance

    assert default_tolerance("cuda").rtol == 1e-3
    assert "cuda" in default_tolerance("cuda").reason


def test_a_step_whose_loop_is_left_by_break_after_its_training_is_complete(make, start, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, stop_after=7)
    saved = run.checkpoint()
    run.finish()
    assert (run.step, run.num_updates) == (7, 7)
    assert saved is not None
    assert events_of(run, "checkpoint_saved")[-1]["step"] == 7
    assert events_of(run, "session_end")[0]["step"] == 7


def test_a_step_whose_loop_is_left_before_its_training_is_not(start) -> None:
    run = start()
    for step in run.steps(30):
        if step == 8:
            break
        run.log(loss=1.0)
    run.finish()
    assert run.step == 7


@pytest.mark.parametrize("after", ["begin_session", "log", "session_start"])
def test_a_ctrl_c_while_the_session_begins_loses_no_record(start, monkeypatch, after: str) -> None:
    """Wherever it comes, the run ends as interrupted, and leaving the interpreter takes nothing away."""
    from lineage.trainer import recorder as module

    run = start()
    recorder = run._recorder
    if after == "begin_session":
        monkeypatch.setattr(module, "LogWriter", interrupt)
    elif after == "log":
        monkeypatch.setattr(recorder, "event", interrupt)
    else:
        monkeypatch.setattr(run, "_begin_proof", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.restore()
    monkeypatch.undo()
    run.end_on_exception(KeyboardInterrupt())
    run.end_at_exit()
    (session,) = lineage.read(run.path).record.sessions
    assert session.status == "interrupted"


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
