"""Saves beside the training, exports, retention and the fixed batch, through the run that users hold."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import threading
from collections.abc import Callable

import orjson
import pytest
from safetensors.torch import load_file

import lineage
from lineage.checkpoint import tensorfile


def test_a_background_save_is_recorded_at_a_later_boundary_and_restores(make, start, abandon, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    batches = run.batches(trainer.loader)
    for step in run.steps(12):
        run.log(loss=trainer.step(next(batches)))
        if step == 5:
            run.checkpoint(background=True)
    run.finish()
    (saved,) = events_of(run, "checkpoint_saved")
    assert saved["step"] == 5
    assert lineage.read(run.path).record.sessions[0].checkpoints == [saved["checkpoint"]]
    trainer, run = make(), start(resume=run.id)
    trainer.track(run)
    restored = run.restore()
    assert restored is not None
    assert restored.position.step == 5


def test_what_a_background_save_holds_is_the_state_at_its_boundary(make, start, monkeypatch) -> None:
    """The writer is held until the training has moved on: later updates must not be in the file."""
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    held = threading.Event()
    write = tensorfile.write_tensors

    def later(*args: object, **kwargs: object) -> object:
        assert held.wait(30)
        return write(*args, **kwargs)

    monkeypatch.setattr(tensorfile, "write_tensors", later)
    batches = run.batches(trainer.loader)
    kept: dict[str, object] = {}
    for step in run.steps(10):
        run.log(loss=trainer.step(next(batches)))
        if step == 5:
            run.checkpoint(background=True)
            kept = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    held.set()
    run.finish()
    (generation,) = (run.path / "checkpoints").glob("step-*")
    found = load_file(generation / "model.r00000.safetensors")
    assert found.keys() == kept.keys()
    assert all(found[name].equal(kept[name]) for name in kept)


@pytest.mark.parametrize("background", [False, True])
def test_every_checkpoint_that_a_full_disk_prevents_is_told(
    make, start, events_of, monkeypatch, capsys, *, background: bool
) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()

    def full(*_: object, **__: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorfile, "write_tensors", full)
    batches = run.batches(trainer.loader)
    for step in run.steps(12):
        run.log(loss=trainer.step(next(batches)))
        if step % 4 == 0:
            run.checkpoint(background=background)
    run.finish()
    assert run.step == 12
    assert len([e for e in events_of(run, "alert") if e["code"] == "checkpoint_failed"]) == 3
    assert capsys.readouterr().err.count("training goes on") == 3
    assert not list((run.path / "checkpoints").glob("step-*"))


def with_a_log_that(run: lineage.Run, fdatasync: Callable[[int], None]) -> None:
    """Let the log's disk answer syncs this way; every other file is as it was."""
    log = run._recorder._log
    log._disk = dataclasses.replace(log._disk, fdatasync=fdatasync)


@pytest.mark.parametrize("background", [False, True])
def test_a_log_that_cannot_be_synced_costs_no_checkpoint_and_the_checkpoint_says_so(
    make, start, events_of, abandon, capsys, *, background: bool
) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    asked: list[int] = []
    healthy = run._recorder._log._disk.fdatasync

    def refuse(fd: int) -> None:
        asked.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    batches = run.batches(trainer.loader)
    for step in run.steps(12):
        run.log(loss=trainer.step(next(batches)))
        if step == 5:
            with_a_log_that(run, refuse)
            run.checkpoint(background=background)
            run._settle(wait=True)
            assert asked, "the sync comes before the marker, also where it fails"
            with_a_log_that(run, healthy)
        if step == 10:
            run.checkpoint(background=background)
    run.finish()
    unsynced, synced = events_of(run, "checkpoint_saved")
    (alert,) = (e for e in events_of(run, "alert") if e["code"] == "log_unsynced")
    assert alert["details"] == {"step": 5, "checkpoint": unsynced["checkpoint"]}
    assert "the log could not be synced before it" in capsys.readouterr().err
    ledger = [orjson.loads(line) for line in (run.path / "checkpoints" / "ledger.jsonl").read_bytes().splitlines()]
    told = {line["checkpoint"]: line["details"].get("log_synced", True) for line in ledger}
    assert told == {unsynced["checkpoint"]: False, synced["checkpoint"]: True}
    trainer, again = make(), start(resume=str(run.path / "checkpoints" / unsynced["checkpoint"]))
    trainer.track(again)
    assert again.restore().position.step == 5


def test_a_checkpoint_is_resumed_from_when_the_log_that_led_to_it_is_gone(make, start, events_of, abandon) -> None:
    """What a power loss may leave after a sync of the log failed: the state is whole, and nothing is compared."""
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 20, stop_after=10)
    abandon(run)
    log = run.path / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]))
    trainer, again = make(), start()
    trainer.track(again)
    assert again.restore().position.step == 10
    losses = trainer.train(again, 12)
    again.finish()
    trainer, whole = make(), start(resume="never")
    trainer.track(whole)
    whole.restore()
    assert trainer.train(whole, 12)[-2:] == losses
    assert events_of(again, "continuation")[0]["verdict"] == "unproven"


def test_keep_leaves_the_newest_generations_and_those_of_every_nth_step(make, start) -> None:
    trainer, run = make(), start(keep=2, keep_every=20)
    trainer.track(run)
    run.restore()
    trainer.train(run, 60)
    run.finish()
    steps = sorted(int(p.name.split("-")[1]) for p in (run.path / "checkpoints").glob("step-*"))
    assert steps == [20, 40, 50, 60]


def test_an_export_holds_the_weights_and_no_resume_takes_it(make, start) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 3)
    run.export("best")
    run.finish()
    folder = run.path / "exports" / "best"
    found = load_file(folder / "model.safetensors")
    assert all(found[name].equal(value) for name, value in trainer.model.state_dict().items())
    trainer, again = make(), start(resume=str(folder))
    trainer.track(again)
    with pytest.raises(lineage.CheckpointError, match="weights-only"):
        again.restore()


def test_a_fixed_batch_is_trained_on_again_after_a_resume(make, start, abandon, events_of) -> None:
    def begin() -> tuple[object, lineage.Run]:
        trainer, run = make(), start()
        trainer.track(run)
        run.fix_batch(trainer.loader)
        run.restore()
        return trainer, run

    trainer, run = begin()
    trainer.train(run, 30, stop_after=15)
    abandon(run)
    trainer, run = begin()
    trainer.train(run, 20)
    run.finish()
    batches = {e["witness"]["batch"] for e in events_of(run, "step")}
    assert len(batches) == 1
    assert events_of(run, "continuation")[0]["verdict"] == "exact"


def test_preemption_waits_for_the_save_in_flight_and_needs_no_second_one(make, start, events_of) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    batches = run.batches(trainer.loader)
    for step in run.steps(12):
        run.log(loss=trainer.step(next(batches)))
        if step == 6:
            run.checkpoint(background=True)
            run._preemption.signal_name = "SIGTERM"
    assert run.ended == "preempted"
    assert [e["step"] for e in events_of(run, "checkpoint_saved")] == [6]


def test_another_order_of_the_data_is_refused_forks_and_can_be_taken_responsibility_for(make, start, abandon) -> None:
    def begin(**options: object) -> lineage.Run:
        trainer, run = make(seed=7), start(**options)
        trainer.track(run)
        run.restore()
        return run

    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, stop_after=15)
    abandon(run)
    with pytest.raises(
        lineage.CheckpointError, match=r"allow=\['loader.train_loader.seed', 'loader.train_loader.order'\]"
    ):
        begin()
    forked = begin(fork=True, resume="must")
    assert forked.id != run.id
    abandon(forked)
    forced = begin(resume=run.id, allow=["loader.train_loader.*"])
    assert forced.id == run.id
    assert lineage.read(run.path).record.sessions[-1].start.forced


def test_a_flipped_bit_in_the_newest_generation_is_found_and_the_one_before_is_taken_with_the_reason(
    make, start, abandon, capsys
) -> None:
    from lineage.cli import main

    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 30, stop_after=25)
    abandon(run)
    assert main(["verify", str(run.path)]) == 0
    newest = max((run.path / "checkpoints").glob("step-*"))
    artifact = newest / "optim.r00000.safetensors"
    data = bytearray(artifact.read_bytes())
    data[-1] ^= 1
    artifact.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(run.path)]) == 1
    told = capsys.readouterr().out
    assert artifact.name in told
    assert hashlib.sha256(data).hexdigest() in told
    assert "expected" in told or "says" in told
    trainer, run = make(), start(resume="must")
    trainer.track(run)
    restored = run.restore()
    assert restored is not None
    assert restored.position.step == 10
    session = lineage.read(run.path).record.sessions[-1]
    assert [r.name for r in session.start.rejected] == [newest.name]
    assert artifact.name in session.start.rejected[0].reason


def test_must_goes_on_with_a_completed_run_and_auto_begins_a_new_one(make, start) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    trainer.train(run, 10)
    run.finish()
    trainer, again = make(), start(resume="must")
    trainer.track(again)
    assert again.restore() is not None
    trainer.train(again, 12)
    again.finish()
    assert again.id == run.id
    assert lineage.read(run.path).last_step == 12
    assert start(resume="auto").id != run.id
