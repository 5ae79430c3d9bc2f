"""Clock, numbers, digests, signals: the pieces of the hook on their own."""

from __future__ import annotations

import os
import random
import signal
from fractions import Fraction

import numpy as np
import pytest
import torch

from lineage.trainer.marks import OptimizerWatch, ScalerWatch
from lineage.trainer.numbers import merged, plain, plain_metrics
from lineage.trainer.phases import TrainClock
from lineage.trainer.signals import Preemption
from lineage.trainer.witness import BatchDigest, rng_digest


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_in_nested_phases_is_left_out_of_training_once() -> None:
    now = FakeClock()
    clock = TrainClock(now)
    now.now += 2
    outer = clock.pause()
    now.now += 5
    inner = clock.pause()
    now.now += 7
    assert clock.resume(inner) == 7
    now.now += 1
    assert clock.resume(outer) == 13
    now.now += 3
    assert clock.lap() == 5
    assert clock.lap() == 0


def test_a_lap_inside_a_phase_counts_only_the_training_before_it() -> None:
    now = FakeClock()
    clock = TrainClock(now)
    now.now += 2
    entered = clock.pause()
    now.now += 10
    assert clock.lap() == 2
    clock.resume(entered)
    now.now += 1
    assert clock.lap() == 1


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1.5, 1.5),
        (3, 3),
        (True, 1),
        (2**70, float(2**70)),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(7), 7),
        (np.array([2.5]), 2.5),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([3]), 3),
        (Fraction(1, 4), 0.25),
        ("0.1", None),
        (None, None),
        ([1.0], None),
        (torch.zeros(2), None),
        (1j, None),
    ],
)
def test_a_metric_value_becomes_a_plain_number_or_nothing(value: object, number: float | None) -> None:
    found = plain(value)
    assert found == number
    assert found is None or type(found) in (int, float)


def test_values_that_are_no_numbers_are_named_and_left_out() -> None:
    metrics = {"a": 1.0, "b": "x", "c": torch.tensor(2.0)}
    assert plain_metrics(metrics) == ["b"]
    assert metrics == {"a": 1.0, "c": 2.0}
    assert merged({"train/loss": 1}, {"lr": 2}) == {"train/loss": 1, "lr": 2}


def digest_of(*batches: object) -> str | None:
    digest = BatchDigest()
    for batch in batches:
        digest.add(batch)
    return digest.take()


def test_a_batch_digest_tells_content_order_dtype_shape_and_structure_apart() -> None:
    x = torch.arange(6)
    different = [
        (x,),
        (x.int(),),
        (x.reshape(2, 3),),
        (x.flip(0),),
        (x, x),
        ((x, x),),
        ({"x": x},),
        ({"y": x},),
        (x.numpy().astype("i4"),),
        ("text",),
        (torch.empty(0),),
    ]
    digests = [digest_of(*batches) for batches in different]
    assert len(set(digests)) == len(different)
    assert digest_of(x.clone()) == digests[0]
    assert digest_of(x.flip(0), x) != digest_of(x, x.flip(0))
    assert digest_of() is None


def test_a_large_batch_is_sampled_from_its_first_byte_to_its_last() -> None:
    x = torch.zeros(4 << 20, dtype=torch.uint8)
    whole = digest_of(x)
    for i in (0, -1):
        y = x.clone()
        y[i] = 1
        assert digest_of(y) != whole


def test_bfloat16_batches_have_a_digest() -> None:
    assert digest_of(torch.ones(3, dtype=torch.bfloat16)) != digest_of(torch.ones(3, dtype=torch.float16))


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1)])
def test_a_draw_from_any_global_stream_changes_the_digest_and_looking_does_not(draw) -> None:
    before = rng_digest()
    assert rng_digest() == before
    draw()
    assert rng_digest() != before


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g)),
        (np.random.default_rng(1), lambda g: g.random()),
        (np.random.RandomState(1), lambda g: g.random_sample()),
        (random.Random(1), lambda g: g.random()),
    ],
)
def test_a_generator_of_the_loops_own_counts_too(generator, draw) -> None:
    before = rng_digest([generator])
    assert rng_digest([generator]) == before
    draw(generator)
    assert rng_digest([generator]) != before


def test_preemption_is_heard_once_and_a_second_signal_keeps_its_old_meaning() -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        preemption = Preemption()
        preemption.install()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert preemption.asked
        assert preemption.signal_name == "SIGUSR1"
        assert heard == [signal.SIGUSR1], "the training code's own handler goes on working"
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] * 2
        preemption.restore()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(heard) == 3
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_handler_put_in_after_ours_is_left_alone() -> None:
    original = signal.getsignal(signal.SIGUSR1)
    try:
        preemption = Preemption()
        preemption.install()
        later = lambda *_: None  # noqa: E731
        signal.signal(signal.SIGUSR1, later)
        preemption.restore()
        assert signal.getsignal(signal.SIGUSR1) is later
    finally:
        signal.signal(signal.SIGUSR1, original)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_told_from_the_scale_for_fused_optimizers_too(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    attempts: list[int] = []
    watch = OptimizerWatch(lambda: attempts.append(1))
    watch.add("adamw", optimizer)
    scales = ScalerWatch()
    scales.add("scaler", scaler)

    def train(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    train(1.0)
    skips, before = scales.observe()
    assert (skips, before) == ([], {"scaler": 4.0})
    kept = weight.detach().clone()
    train(float("inf"))
    skips, before = scales.observe()
    assert [(s.before, s.after) for s in skips] == [(4.0, 2.0)]
    assert before == {"scaler": 4.0}
    assert torch.equal(weight.detach(), kept)
    assert scales.observe()[0] == []


def test_the_learning_rate_a_step_was_taken_with_is_not_the_one_the_scheduler_set_after_it() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    watch = OptimizerWatch(lambda: None)
    watch.add("sgd", optimizer)
    watch.wanted = True
    weight.sum().backward()
    optimizer.step()
    scheduler.step()
    assert watch.taken_with() == {"sgd": [1.0]}
    assert watch.current() == {"sgd": [0.5]}


class Plain:
    """Without a repr of its own: the one it inherits has an address in it."""


def test_a_batch_of_any_kind_is_digested_the_same_twice_and_ends_no_training() -> None:
    def make() -> list[object]:
        return [
            torch.eye(3).to_sparse(),
            torch.empty(3, device="meta"),
            Plain(),
            {"a", "b"},
            np.array(["x", None], dtype=object),
        ]

    found = []
    for batch in (make(), make()):
        digest = BatchDigest()
        digest.add(batch)
        found.append(digest.take())
    assert found[0] == found[1]
    other = BatchDigest()
    other.add([*make()[:-2], {"a", "c"}, make()[-1]])
    assert other.take() != found[0]


def test_an_iterator_in_a_batch_is_left_to_the_training() -> None:
    numbers = iter([1, 2, 3])
    digest = BatchDigest()
    digest.add({"x": numbers})
    assert digest.take() is not None
    assert list(numbers) == [1, 2, 3]
