"""Optimizers, generators and counts that are not as most are: they end no training."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lineage
from lineage.errors import UsageError
from lineage.trainer import run as run_module
from lineage.trainer.witness import rng_digest


class SelfTuned(torch.optim.Optimizer):
    """Finds its own rates, as Adafactor does: `lr` is None, a word, or not there."""

    def __init__(self, params, **group) -> None:
        super().__init__(params, group)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.01 * parameter.grad)


@pytest.mark.parametrize("group", [{}, {"lr": None}, {"lr": "auto"}], ids=str)
def test_an_optimizer_without_a_learning_rate_trains_saves_and_resumes(make, start, abandon, events_of, group) -> None:
    def train(run, trainer, stop: int) -> None:
        del trainer.scaler, trainer.scheduler
        trainer.optimizer = SelfTuned(trainer.model.parameters(), **group)
        run.track(model=trainer.model, optimizer=trainer.optimizer, train_loader=trainer.loader)
        run.restore()
        batches = run.batches(trainer.loader)
        for step in run.steps(8):
            inputs, targets = next(batches)
            trainer.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(trainer.model(inputs), targets)
            loss.backward()
            trainer.optimizer.step()
            run.log(loss=loss)
            if step == 4:
                run.checkpoint()
            if step == stop:
                break

    trainer, run = make(), start()
    train(run, trainer, 6)
    abandon(run)
    trainer, run = make(), start()
    train(run, trainer, 8)
    run.finish()
    assert events_of(run, "continuation")[0]["verdict"] == "exact"
    assert events_of(run, "lr_restore") == []
    assert list(lineage.read(run.path).damage) == []
    assert all("lr" not in event["metrics"] for event in events_of(run, "step"))


def test_the_digest_of_numpys_stream_is_that_of_its_legacy_state_and_another_generator_has_one_too() -> None:
    before = rng_digest()
    name, keys, *rest = np.random.get_state(legacy=True)
    np.random.set_state((name, keys, *rest))
    assert rng_digest() == before
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        other = rng_digest()
        assert rng_digest() == other != before
        np.random.random()
        assert rng_digest() != other
    finally:
        np.random.set_bit_generator(kept)
    assert rng_digest() == before


def test_a_generator_that_cannot_be_looked_at_costs_the_witness_and_no_training(
    make, start, events_of, monkeypatch
) -> None:
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()

    def broken(*_: object) -> str:
        raise RuntimeError("https://user:hunter2@host is gone")

    monkeypatch.setattr(run_module, "rng_digest", broken)
    trainer.train(run, 3)
    run.finish()
    assert [e["metrics"]["loss"] > 0 for e in events_of(run, "step")] == [True] * 3
    (alert,) = events_of(run, "alert")
    assert alert["code"] == "witness_failed"
    assert "hunter2" not in str(alert)


def test_figures_of_the_machine_that_cannot_be_had_end_no_training(start, events_of, monkeypatch) -> None:
    def broken() -> dict[str, float]:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(run_module, "machine_figures", broken)
    with start(system_interval_s=0.0) as run:
        run.log(loss=1.0)
        run.log(loss=2.0)
    assert len(events_of(run, "step")) == 2
    assert events_of(run, "system") == []


@pytest.mark.parametrize("begin", [2, 2.0, np.int64(2), torch.tensor(2)], ids=lambda value: type(value).__name__)
def test_steps_may_begin_behind_any_whole_number(start, begin) -> None:
    with start() as run:
        assert list(run.steps(4, start=begin)) == [3, 4]
    assert lineage.read(run.path).record.sessions[0].start.step == 2


@pytest.mark.parametrize("begin", ["2", -1, 2.5, 2**60, True], ids=str)
def test_steps_that_begin_behind_no_count_are_refused_before_the_session_begins(start, begin) -> None:
    run = start()
    with pytest.raises(UsageError, match="no count of complete steps"):
        list(run.steps(4, start=begin))
    assert run.session is None


def test_epochs_that_are_over_are_told_where_a_loop_asks_for_one_more_of_each(start, events_of) -> None:
    """`for epoch in range(3): for batch in run.batches(loader, epochs=1)` trains one epoch, and says why."""
    data = TensorDataset(torch.zeros(8, 1))
    loader = DataLoader(data, batch_size=4, sampler=lineage.ResumableSampler(data, shuffle=False))
    run = start()
    run.track(loader=loader)
    num_batches = 0
    for _ in range(3):
        for _ in run.batches(loader, epochs=1):
            num_batches += 1
            run.log(loss=1.0)
    run.finish()
    assert num_batches == 2
    assert [e["code"] for e in events_of(run, "alert")] == ["no_batch"]


def test_epochs_that_rise_with_the_loop_are_trained(start, events_of) -> None:
    data = TensorDataset(torch.zeros(8, 1))
    loader = DataLoader(data, batch_size=4, sampler=lineage.ResumableSampler(data, shuffle=False))
    run = start()
    run.track(loader=loader)
    taken = [len(list(run.batches(loader, epochs=epoch + 1))) for epoch in range(3)]
    run.finish()
    assert taken == [2, 2, 2]
    assert not run.session
