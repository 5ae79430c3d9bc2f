"""A checkpoint is the state after a completed step: inside an unfinished one it is refused, and a batch taken ahead is told."""

import pytest
import torch

import lineage
from lineage.checkpoint.errors import SaveRefusedError


def begun(make, start, **options):
    trainer, run = make(), start(**options)
    trainer.track(run)
    sampler = lineage.ResumableSampler(trainer.loader.dataset, shuffle=True, seed=9)
    trainer.held_out = torch.utils.data.DataLoader(trainer.loader.dataset, batch_size=4, sampler=sampler)
    run.track(held_out=trainer.held_out)
    run.restore()
    return trainer, run, run.batches(trainer.loader)


def update(trainer, *batches) -> torch.Tensor:
    """One optimizer step over some microbatches."""
    trainer.optimizer.zero_grad(set_to_none=True)
    for inputs, targets in batches:
        loss = torch.nn.functional.mse_loss(trainer.model(inputs), targets)
        loss.backward()
    trainer.optimizer.step()
    trainer.scheduler.step()
    return loss.detach()


def test_a_checkpoint_between_the_batch_and_its_update_is_refused_with_the_way_on(make, start) -> None:
    trainer, run, batches = begun(make, start)
    for step in run.steps(3):
        batch = next(batches)
        if step == 2:
            with pytest.raises(SaveRefusedError, match=r"inside step 2.*no update and no log.*after run\.log"):
                run.checkpoint()
        run.log(loss=trainer.step(batch))
    run.finish()
    assert run.ended == "completed"
    assert not list(run.path.glob("checkpoints/step-*"))


def test_a_checkpoint_between_two_microbatches_is_refused_and_after_their_update_it_is_exact(
    make, start, abandon
) -> None:
    def losses(run, trainer, batches, *, stop: int = 8) -> list[float]:
        found = []
        for step in run.steps(8):
            first = next(batches)
            with pytest.raises(SaveRefusedError):
                run.checkpoint()
            second = next(batches)
            found.append(float(update(trainer, first, second)))
            if step == 4:
                run.checkpoint()  # before the log, which adds nothing to the state
            run.log(loss=found[-1])
            if step == stop:
                break
        return found

    trainer, run, batches = begun(make, start)
    whole = losses(run, trainer, batches)
    run.finish()
    trainer, run, batches = begun(make, start)
    losses(run, trainer, batches, stop=6)
    abandon(run)
    trainer, run, batches = begun(make, start, resume=run.id)
    assert run.step == 4
    assert losses(run, trainer, batches) == whole[4:]


@pytest.mark.parametrize("where", ["top", "after-update", "after-log", "after-eval", "after-skip"])
def test_a_checkpoint_at_a_completed_step_is_taken_wherever_the_loop_says_so(
    make, start, abandon, events_of, where
) -> None:
    def evaluate(run, batches) -> None:
        """Off the position of a tracked loader: in a phase, or where nothing can train."""
        with run.phase("eval"):
            next(batches)
        with torch.no_grad():
            next(batches)

    def train(trainer, run, batches, stop: int = 8) -> list[float]:
        losses = []
        held_out = run.batches(trainer.held_out)
        for step in run.steps(8):
            if step == 5 and where == "top":
                run.checkpoint()
            loss = trainer.step(next(batches), overflow=step == 4 and where == "after-skip")
            if step == 4 and where in ("after-update", "after-skip"):
                run.checkpoint()
            losses.append(float(loss.detach()))
            run.log(loss=loss)
            if step == 4 and where == "after-eval":
                evaluate(run, held_out)
            if step == 4 and where in ("after-log", "after-eval"):
                run.checkpoint()
            if step == stop:
                break
        return losses

    trainer, run, batches = begun(make, start)
    whole = train(trainer, run, batches)
    run.finish()
    trainer, run, batches = begun(make, start)
    train(trainer, run, batches, stop=6)
    abandon(run)
    assert [e["step"] for e in events_of(run, "checkpoint_saved")] == [4]
    assert events_of(run, "alert") == []
    trainer, run, batches = begun(make, start, resume=run.id)
    assert train(trainer, run, batches) == whole[4:]


def test_a_batch_taken_ahead_costs_no_checkpoint_and_is_told_once(make, start, events_of, capsys) -> None:
    trainer, run, batches = begun(make, start)
    batch = next(batches)
    for _ in run.steps(6):
        run.log(loss=trainer.step(batch))
        batch = next(batches)
        assert run.checkpoint() is not None
    assert run.checkpoint() is not None, "after the loop too"
    run.finish()
    (alert,) = events_of(run, "alert")
    assert (alert["code"], alert["step"]) == ("batch_ahead", 1)
    assert capsys.readouterr().err.count("would skip it") == 1


def test_a_preempted_loop_that_takes_batches_ahead_is_checkpointed_all_the_same(make, start, events_of) -> None:
    trainer, run, batches = begun(make, start)
    batch = next(batches)
    for step in run.steps(6):
        run.log(loss=trainer.step(batch))
        batch = next(batches)
        if step == 3:
            run._preemption.signal_name = "SIGTERM"
    assert run.ended == "preempted"
    assert [e["step"] for e in events_of(run, "checkpoint_saved")] == [3]
    assert [e["code"] for e in events_of(run, "alert")] == ["batch_ahead"]


def test_a_step_that_trained_nothing_has_its_batch_behind_it_at_the_boundary(make, start, abandon) -> None:
    """A loop that drops a batch (`continue` at a loss that is no number): the next step may save at its top."""

    def train(trainer, run, batches, stop: int = 8) -> list[float]:
        losses = []
        for step in run.steps(8):
            if step == 5:
                run.checkpoint()
            batch = next(batches)
            if step == 4:
                continue
            losses.append(float(trainer.step(batch).detach()))
            run.log(loss=losses[-1])
            if step == stop:
                break
        return losses

    trainer, run, batches = begun(make, start)
    whole = train(trainer, run, batches)
    run.finish()
    trainer, run, batches = begun(make, start)
    train(trainer, run, batches, stop=6)
    abandon(run)
    trainer, run, batches = begun(make, start, resume=run.id)
    assert run.step == 4
    assert train(trainer, run, batches) == whole[3:]


def test_outside_of_steps_a_batch_that_nothing_was_trained_on_is_told(make, start, events_of) -> None:
    trainer, run, batches = begun(make, start)
    run.log(loss=trainer.step(next(batches)))
    assert run.checkpoint() is not None
    assert events_of(run, "alert") == []
    next(batches)
    assert run.checkpoint() is not None
    assert [e["code"] for e in events_of(run, "alert")] == ["batch_ahead"]
    run.finish()


def test_the_way_on_is_a_checkpoint_error_that_can_be_caught() -> None:
    assert issubclass(SaveRefusedError, lineage.CheckpointError)
