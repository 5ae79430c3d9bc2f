"""The example that users read trains as it says, with few lines of Lineage in it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from lineage.demo import train
from lineage.demo.train import Config, Trainer

SMALL = Config(max_steps=40, n_layer=1, n_head=2, n_embd=32, batch_size=2, eval_blocks=4, threads=1)


@pytest.fixture(autouse=True)
def _flags():
    """The trainer sets flags of the whole process; other tests of this process must not see them."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


def state_of(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def test_an_overflow_in_one_optimizers_gradients_changes_no_weight_of_the_other() -> None:
    """The scaler judges each optimizer alone, and a norm that is NaN would poison the healthy one in clipping."""
    trainer = Trainer(SMALL)
    batches = iter(trainer.loader)
    for _ in range(12):
        trainer.step(batches)
    before = state_of(trainer)
    trainer.muon.param_groups[0]["params"][0].register_hook(lambda grad: grad * float("nan"))
    scale = trainer.scaler.get_scale()
    _, _, norm = trainer.step(batches)
    assert not norm.isfinite()
    assert trainer.scaler.get_scale() == scale / 2
    assert all(torch.equal(old, new) for old, new in zip(before, state_of(trainer), strict=True))


def test_two_fresh_trainers_train_the_same_to_the_last_bit() -> None:
    attempts = []
    for _ in range(2):
        trainer = Trainer(SMALL)
        batches = iter(trainer.loader)
        attempts.append(([trainer.step(batches)[0] for _ in range(10)], state_of(trainer)))
    (losses, weights), (losses_again, weights_again) = attempts
    assert losses == losses_again
    assert all(torch.equal(a, b) for a, b in zip(weights, weights_again, strict=True))


def test_another_seed_trains_otherwise() -> None:
    one, two = Trainer(SMALL), Trainer(Config(**{**vars(SMALL), "seed": 2}))
    assert not torch.equal(one.model.tokens.weight, two.model.tokens.weight)
    assert not torch.equal(next(iter(one.loader))[0], next(iter(two.loader))[0])


def test_the_first_steps_are_skipped_and_do_not_use_up_the_warm_up() -> None:
    trainer = Trainer(SMALL)
    batches = iter(trainer.loader)
    before = state_of(trainer)
    _, lr, norm = trainer.step(batches)
    assert not norm.isfinite()
    assert all(torch.equal(old, new) for old, new in zip(before, state_of(trainer), strict=True))
    assert trainer.muon_schedule.get_last_lr() == [lr] == [SMALL.muon_lr / SMALL.warmup_steps]


def test_the_learning_rate_warms_up_and_ends_at_a_tenth() -> None:
    trainer = Trainer(SMALL)
    (factor,) = trainer.adamw_schedule.lr_lambdas
    rates = [factor(update) for update in range(SMALL.max_steps + 1)]
    top = rates.index(max(rates))
    assert rates[0] == 0.1
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[top] == 1.0
    assert rates[-1] == pytest.approx(0.1)


def test_each_weight_has_one_optimizer() -> None:
    trainer = Trainer(Config())
    owned = [id(p) for opt in (trainer.adamw, trainer.muon) for group in opt.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in trainer.model.parameters())
    assert all(p.ndim == 2 for p in trainer.muon.param_groups[0]["params"])


def test_an_evaluation_draws_no_random_number_and_goes_back_to_training() -> None:
    trainer = Trainer(SMALL)
    before = torch.get_rng_state()
    assert trainer.evaluate() == trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.model.training


def test_each_field_of_the_configuration_has_a_flag() -> None:
    argv = []
    wanted = {}
    for field in fields(Config):
        value = type(field.default)(3)
        wanted[field.name] = value
        argv += ["--steps" if field.name == "max_steps" else f"--{field.name.replace('_', '-')}", str(value)]
    config, args = train.parse(argv, "")
    assert vars(config) == wanted
    assert (args.runs, args.name, args.resume) == ("runs", "tiny-gpt", "auto")


def test_lineage_adds_about_a_dozen_lines_to_the_script() -> None:
    """Every line that names the run or the package is marked, and there are few of them."""
    lines = Path(train.__file__).read_text().splitlines()
    marked = [line for line in lines if "# lineage" in line]
    assert len([line for line in marked if "optional" not in line]) <= 12
    assert {line for line in lines if re.search(r"\brun\.\w+\(|lineage\.(init|Resumable)", line)} <= set(marked)
