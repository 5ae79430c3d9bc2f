"""Every way to resume wrongly, done to a real trainer: the verdict names the right step and the right first field.

The first session trains 14 steps, checkpoints after 10, and dies. The second goes on from step 10 in a trainer made
anew, as a fresh process would make it. Either Lineage restored it and the training code then spoils one thing, or a
person's own code restored too little (`steps(total, start=10)`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lineage
from lineage.history.audit import ResumeAudit
from lineage.history.evidence import audit_view
from lineage.trainer import endings
from lineage.view import read

SAVED, DIED, END = 10, 14, 16


class Trainer:
    """A tiny model with everything a resume can lose: moments, a schedule, a moving scale, a cursor, dropout."""

    def __init__(self, *, seed: int = 0, batch_size: int = 4, dropout: float = 0.25) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        x = torch.randn(48, 4)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        sampler = lineage.ResumableSampler(len(data), shuffle=True, seed=seed)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, decay)
        # Grows at steps 4, 8 and 12, so that a scaler made anew stands elsewhere at step 10.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
        self.recipe = {"seed": seed, "batch_size": batch_size, "dropout": dropout}

    def track(self, run: lineage.Run) -> None:
        run.track(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            train_loader=self.loader,
        )

    def step(self, batch: Any) -> dict[str, float]:
        inputs, targets = batch
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return {"loss": float(loss.detach()), "grad_norm": float(norm)}


def decay(step: int) -> float:
    return 1.0 / (1.0 + 0.1 * step)


def rng_state() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_rng(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def let_go(run: lineage.Run) -> None:
    """What a SIGKILL leaves: no end, a free lock."""
    endings.forget(run)
    run._optimizers.remove()
    run._recorder.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., lineage.Run]]:
    opened: list[lineage.Run] = []

    def init(trainer: Trainer, **options: Any) -> lineage.Run:
        run = lineage.init(
            tmp_path / "runs", **{"name": "tiny", "recipe": trainer.recipe, "system_interval_s": 1e9, **options}
        )
        opened.append(run)
        trainer.track(run)
        return run

    yield init
    for run in opened:
        let_go(run)


Start = Callable[..., lineage.Run]


def train(run: lineage.Run, trainer: Trainer, until: int, each: Callable[[int], None], **how: Any) -> None:
    """`each` is called between taking the first batch of a step and training it."""
    batches = run.batches(trainer.loader)
    for step in run.steps(END, **how):
        batch = next(batches)
        each(step)
        run.log(trainer.step(batch))
        if step == SAVED:
            run.checkpoint()
        if step == until:
            break


class First:
    """The session that dies, and what its process held at step 10."""

    def __init__(self, start: Start, *, died: int = DIED, seed: int = 0) -> None:
        self.trainer = Trainer(seed=seed)
        self.rng = rng_state()
        self.weights: dict[str, torch.Tensor] = {}
        run = start(self.trainer)
        run.restore()
        train(run, self.trainer, died, self._keep)
        self.path = run.path
        let_go(run)

    def _keep(self, step: int) -> None:
        if step == SAVED + 1:  # the batch is taken, nothing was drawn for the step itself
            self.rng = rng_state()
            self.weights = copy.deepcopy(self.trainer.model.state_dict())


def elsewhere() -> None:
    """Another process's generators stand somewhere else."""
    random.seed(987)
    np.random.seed(987)
    torch.manual_seed(987)


def resume(
    start: Start,
    first: First,
    spoil: Callable[[Trainer, First], None] | None = None,
    *,
    at: int = SAVED + 1,
    **options: Any,
) -> lineage.Run:
    """Restore by Lineage; then, at a step whose batch is taken, `spoil`."""
    shape = {key: options.pop(key) for key in ("seed", "batch_size", "dropout") if key in options}
    trainer = Trainer(**shape)
    elsewhere()
    run = start(trainer, resume="must", **options)
    run.restore()

    def each(step: int) -> None:
        if spoil is not None and step == at:
            spoil(trainer, first)

    train(run, trainer, END, each)
    run.finish()
    return run


def careless(start: Start, first: First, *, weights: bool = True, seed: int = 0) -> lineage.Run:
    """The weights by hand, everything else as a new process has it."""
    trainer = Trainer(seed=seed)
    if weights:
        trainer.model.load_state_dict(first.weights)
    elsewhere()
    run = start(trainer, resume="must")
    train(run, trainer, END, lambda _: None, start=SAVED)
    run.finish()
    return run


def verdict_of(run: lineage.Run) -> ResumeAudit:
    """The audit's row, which must be what the session itself found while it trained."""
    view = read(run.path, cache=False)
    (row,) = audit_view(view)
    live = view.record.sessions[-1].continuation
    assert live is not None
    assert (live.verdict, live.first_difference) == (row.verdict, row.first_difference)
    assert live.compared_steps == row.compared_steps
    return row


# -- ways to spoil it ------------------------------------------------------------------------------------------------


def nothing_restored_of_rng(trainer: Trainer, first: First) -> None:
    elsewhere()


def rng_before_the_iterator(trainer: Trainer, first: First) -> None:
    set_rng(first.rng)
    iter(DataLoader(trainer.loader.dataset, batch_size=4))  # draws its workers' seed from the global generator


def moments_lost(trainer: Trainer, first: First) -> None:
    trainer.optimizer.state.clear()


def scheduler_reset(trainer: Trainer, first: First) -> None:
    trainer.scheduler.last_epoch = 0


def scheduler_remade(trainer: Trainer, first: First) -> None:
    trainer.scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, decay)


def scheduler_stepped_twice(trainer: Trainer, first: First) -> None:
    trainer.scheduler.step()


def scaler_reset(trainer: Trainer, first: First) -> None:
    trainer.scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4).state_dict())


def scaler_counter_lost(trainer: Trainer, first: First) -> None:
    trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"_growth_tracker": 0})


def weights_touched(trainer: Trainer, first: First) -> None:
    with torch.no_grad():
        trainer.model[0].weight[0, 0] += 1e-3


SPOILED = [
    (nothing_restored_of_rng, 11, "rng"),
    (rng_before_the_iterator, 11, "rng"),
    (moments_lost, 12, "loss"),  # the first loss and gradient are those of the same weights
    (scheduler_reset, 12, "lr"),  # the optimizer's own state still holds the right rate for one step
    (scheduler_remade, 11, "lr"),
    (scheduler_stepped_twice, 11, "lr"),
    (scaler_reset, 11, "scale"),
    (scaler_counter_lost, 13, "scale"),  # the scale should have grown after step 12
    (weights_touched, 11, "loss"),
]


@pytest.mark.parametrize(("spoil", "step", "field"), SPOILED, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_was_spoiled_is_the_first_difference(
    start: Start, spoil: Callable[[Trainer, First], None], step: int, field: str
) -> None:
    row = verdict_of(resume(start, First(start), spoil))
    assert row.verdict == "diverged"
    assert row.first_difference is not None
    assert (row.first_difference.step, row.first_difference.field) == (step, field)
    assert row.compared_steps == step - SAVED


@pytest.mark.parametrize(("shape", "field"), [({"batch_size": 3}, "batch"), ({"dropout": 0.5}, "loss")], ids=str)
def test_another_recipe_accepted_by_force_diverges_at_the_first_step(
    start: Start, shape: dict[str, Any], field: str
) -> None:
    first = First(start)
    row = verdict_of(resume(start, first, allow=("*",), **shape))
    assert row.first_difference is not None
    assert (row.verdict, row.first_difference.step, row.first_difference.field) == ("diverged", 11, field)
    assert "restored by force" in row.reason


@pytest.mark.parametrize("how", [{}, {"weights": False}, {"seed": 1}], ids=["weights alone", "nothing", "other seed"])
def test_weights_alone_are_no_resume_and_the_data_started_over(start: Start, how: dict[str, Any]) -> None:
    row = verdict_of(careless(start, First(start), **how))
    assert row.first_difference is not None
    assert (row.verdict, row.first_difference.step, row.first_difference.field) == ("diverged", 11, "batch")
    assert row.checkpoint is None
    assert "no checkpoint was restored" in row.reason


@pytest.mark.parametrize("seed", range(20))
def test_a_right_resume_is_exact(start: Start, seed: int) -> None:
    first = First(start, died=SAVED + 2 + seed % 4, seed=seed)
    row = verdict_of(resume(start, first, seed=seed))
    assert (row.verdict, row.compared_steps, row.first_difference) == ("exact", 2 + seed % 4, None)
    for word in ("batch", "rng", "learning rate", "loss scale", "loss", "gradient norm"):
        assert word in row.reason


def test_a_resume_of_a_resume_is_exact_too(start: Start) -> None:
    first = First(start)
    again = Trainer()
    elsewhere()
    run = start(again, resume="must")
    run.restore()
    train(run, again, DIED + 1, lambda _: None)
    let_go(run)
    resume(start, first)
    rows = audit_view(read(first.path, cache=False))
    assert [(row.verdict, row.compared_steps) for row in rows] == [("exact", 4), ("exact", 5)]


def test_a_clean_stop_is_unproven_beyond_what_the_restore_proved(start: Start) -> None:
    first = First(start, died=SAVED)
    row = verdict_of(resume(start, first))
    assert (row.verdict, row.compared_steps) == ("unproven", 0)
    assert row.reason.startswith("no overlap; unproven beyond the restored state (proven: ")
    assert row.proven


def test_a_tolerance_declared_beforehand_covers_the_loss(start: Start) -> None:
    first = First(start)

    def nudged(trainer: Trainer, _: First) -> None:
        with torch.no_grad():
            trainer.model[0].weight[0, 0] += 1e-6

    row = verdict_of(resume(start, first, nudged, tolerance=1e-2))
    assert (row.verdict, row.first_difference) == ("within_tolerance", None)


def test_a_tolerance_however_wide_covers_no_learning_rate(start: Start) -> None:
    row = verdict_of(resume(start, First(start), scheduler_stepped_twice, tolerance=1.0))
    assert row.first_difference is not None
    assert (row.verdict, row.first_difference.field) == ("diverged", "lr")


def test_policy_stop_raises_before_more_compute_is_burnt(start: Start) -> None:
    first = First(start)
    with pytest.raises(lineage.LineageError, match="11"):
        resume(start, first, scheduler_stepped_twice, continuation="stop")
    view = read(first.path, cache=False)
    assert view.record.sessions[-1].continuation is not None
    assert view.last_step == 11
