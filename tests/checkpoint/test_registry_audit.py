"""Nothing stateful is forgotten: what is reachable and undeclared is named with its path."""

from __future__ import annotations

import collections.abc
import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lineage.checkpoint.discover import discover
from lineage.checkpoint.errors import SaveRefusedError, UndeclaredStateError, UnsupportedStateError
from lineage.checkpoint.registry import Registry
from lineage.checkpoint.restore import apply_restore, plan_restore
from lineage.checkpoint.sampler import ResumableSampler
from lineage.checkpoint.store import CheckpointStore
from lineage.errors import UsageError
from lineage_schemas.checkpoint import Position

schedulers = torch.optim.lr_scheduler


def registry_of(**objects: Any) -> Registry:
    registry = Registry()
    for name, obj in objects.items():
        registry.track(name, obj)
    return registry


def refusal(registry: Registry) -> tuple[str, ...]:
    with pytest.raises(UndeclaredStateError) as error:
        registry.seal()
    assert all(path in str(error.value) for path in error.value.paths)
    return error.value.paths


def round_trip(source: Registry, target: Registry, folder: Path, contexts: Any) -> None:
    CheckpointStore(folder, source).save(Position(step=1, num_updates=1), contexts[0]())
    candidate = discover(folder).newest()
    assert candidate is not None
    restored = apply_restore(plan_restore(candidate, target, contexts[1]()))
    restored.finish()


# ---- what is found ---------------------------------------------------------------------------------------------------


def test_a_schedulers_optimizer_must_be_tracked() -> None:
    model = nn.Linear(2, 2)
    scheduler = schedulers.StepLR(torch.optim.SGD(model.parameters(), lr=1), 3)
    assert "scheduler.optimizer" in refusal(registry_of(model=model, scheduler=scheduler))


def test_a_scheduler_nobody_tracked_is_found_in_memory() -> None:
    """Closures and globals hide from a walk, and not from the garbage collector."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    hidden = schedulers.CosineAnnealingLR(optimizer, 3)
    assert refusal(registry_of(model=model, optimizer=optimizer)) == ("<in memory>.CosineAnnealingLR",)
    del hidden


def test_an_optimizer_of_the_same_parameters_nobody_tracked_is_found() -> None:
    model = nn.Linear(2, 2)
    hidden = torch.optim.SGD(model.parameters(), lr=1)
    assert refusal(registry_of(model=model)) == ("<in memory>.SGD",)
    del hidden


def test_a_scaler_nobody_tracked_is_found_and_a_disabled_one_is_not() -> None:
    model = nn.Linear(2, 2)
    off = torch.amp.GradScaler("cpu", enabled=False)
    registry_of(model=model).seal()
    on = torch.amp.GradScaler("cpu")
    assert refusal(registry_of(model=model)) == ("<in memory>.GradScaler",)
    del off, on


def test_a_data_loader_with_no_loader_declared_is_found_and_absence_answers_it() -> None:
    data = DataLoader(TensorDataset(torch.zeros(4)))
    assert refusal(registry_of(model=nn.Linear(2, 2))) == ("<in memory>.DataLoader",)
    registry = registry_of(model=nn.Linear(2, 2))
    registry.absent("loader", "only used for evaluation")
    registry.seal()
    del data


def test_parameters_of_no_tracked_module_are_named() -> None:
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]}], lr=1)
    assert refusal(registry_of(model=nn.Linear(1, 1), optimizer=optimizer)) == ("optimizer.param_groups[0].params[0]",)


class Augmenting(TensorDataset):
    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.transform = {"noise": [np.random.default_rng(1)], "crop": torch.Generator()}


def test_generators_deep_in_a_dataset_are_named() -> None:
    data = Augmenting(torch.zeros(4))
    loader = DataLoader(data, sampler=ResumableSampler(data, shuffle=True))
    assert set(refusal(registry_of(model=nn.Linear(1, 1), train_loader=loader))) == {
        "train_loader.dataset.transform['noise'][0]",
        "train_loader.dataset.transform['crop']",
    }


class Collate:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, rows: Any, rng: Any = None) -> Any:
        return rows

    def method(self, rows: Any) -> Any:
        return rows


@pytest.mark.parametrize(
    ("collate", "path"),
    [
        (Collate(), "train_loader.collate_fn.rng"),
        (Collate().method, "train_loader.collate_fn.__self__.rng"),
        (functools.partial(Collate(), rng=torch.Generator()), "train_loader.collate_fn.func.rng"),
    ],
    ids=["object", "method", "partial"],
)
def test_generators_behind_a_collate_function_are_named(collate: Any, path: str) -> None:
    data = TensorDataset(torch.zeros(4))
    loader = DataLoader(data, sampler=ResumableSampler(data, shuffle=True), collate_fn=collate)
    assert path in refusal(registry_of(model=nn.Linear(1, 1), train_loader=loader))


def test_a_declared_absence_by_path_is_accepted_and_recorded() -> None:
    data = Augmenting(torch.zeros(4))
    loader = DataLoader(data, sampler=ResumableSampler(data, shuffle=True))
    registry = registry_of(model=nn.Linear(1, 1), train_loader=loader, noise=data.transform["noise"][0])
    registry.absent("train_loader.dataset.transform['crop']", "reseeded for every sample")
    registry.seal()
    declared = {c.name: c.reason for c in registry.describe().components if c.state == "absent"}
    assert declared["train_loader.dataset.transform['crop']"] == "reseeded for every sample"
    assert "noise" in registry.generators()


class WithCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.running = torch.zeros(3)
        self.tracker = copy.deepcopy
        self.average = [nn.Linear(2, 2)]


def test_tensor_attributes_and_modules_in_plain_lists_are_named() -> None:
    """Neither is in a state_dict."""
    assert set(refusal(registry_of(model=WithCache()))) == {"model.layer.running", "model.average[0]"}


class Custom:
    def __init__(self) -> None:
        self.count = 0
        self.inner: Any = None

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_any_object_with_a_state_dict_is_found_inside_another() -> None:
    outer = Custom()
    outer.inner = Custom()
    assert refusal(registry_of(model=nn.Linear(1, 1), clipper=outer)) == ("clipper.inner",)


def test_a_lazy_mapping_is_not_read() -> None:
    class Lazy(collections.abc.Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            raise AssertionError("it was read")

        def __iter__(self) -> Any:
            raise AssertionError("it was read")

        def __len__(self) -> int:
            return 1

    outer = Custom()
    outer.inner = Lazy()
    registry_of(model=nn.Linear(1, 1), clipper=outer).seal()


def test_what_iterates_and_counts_samples_is_a_loader_under_any_name() -> None:
    class Stream(Custom):
        num_samples = 0

        def __iter__(self) -> Any:
            return iter([torch.zeros(2)])

    assert registry_of(model=nn.Linear(1, 1), tokens=Stream()).components["tokens"].family == "loader"


def test_an_object_without_any_way_to_save_it_is_refused() -> None:
    with pytest.raises(UnsupportedStateError, match="neither state_dict"):
        Registry().track("thing", object())


def test_families_nobody_has_are_absent_with_a_reason() -> None:
    registry = registry_of(model=nn.Linear(1, 1))
    registry.seal()
    absent = {c.family: c.reason for c in registry.describe().components if c.state == "absent"}
    assert set(absent) == {"optimizer", "scheduler", "scaler", "loader"}
    assert set(absent.values()) == {"none handed in and none found"}
    present = {c.family for c in registry.describe().components if c.state == "present"}
    assert present == {"model", "rng", "counters"}


def test_names_and_absences_are_checked() -> None:
    registry = registry_of(model=nn.Linear(1, 1))
    for name in ("optim", "a/b", "", "extra", "../x"):
        with pytest.raises(UsageError):
            registry.track(name, Custom())
    with pytest.raises(UsageError, match="two components"):
        registry.track("model", nn.Linear(1, 1))
    with pytest.raises(UsageError, match="is tracked"):
        registry.absent("model", "no")
    with pytest.raises(UsageError, match="reason"):
        registry.absent("loader", " ")
    registry.seal()
    with pytest.raises(UsageError, match="after the first save"):
        registry.track("late", Custom())
    with pytest.raises(UsageError, match="nothing is tracked"):
        Registry().seal()


# ---- modules ---------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("rope", torch.rand(3), persistent=False)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": int(self.seen[0])}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch.compile's own imports
def test_names_are_canonical_under_compile_and_data_parallel() -> None:
    plain, wrapped = Tied(), Tied()
    wrapped.embed = torch.compile(wrapped.embed)
    expected = list(registry_of(model=plain).components["model"].tensors())
    for module in (torch.compile(wrapped), nn.DataParallel(torch.compile(wrapped))):
        assert list(registry_of(model=module).components["model"].tensors()) == expected


def test_tied_weights_are_saved_once_and_untying_is_refused(tmp_path: Path, contexts: Any) -> None:
    from lineage.checkpoint.errors import ResumeRefusedError

    registry = registry_of(model=Tied())
    saved = CheckpointStore(tmp_path, registry).save(Position(step=1, num_updates=1), contexts[0]())
    assert saved.manifest.aliases == {"head.weight": "embed.weight"}
    model = next(a for a in saved.manifest.artifacts if a.component == "model")
    assert set(model.tensors) == {"embed.weight", "seen"}
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.rand(5, 3))
    candidate = discover(tmp_path).newest()
    assert candidate is not None
    with pytest.raises(ResumeRefusedError) as error:
        plan_restore(candidate, registry_of(model=untied), contexts[1]())
    paths = {finding.path for finding in error.value.findings}
    assert {"model.aliases.head.weight", "model.tensors.model.head.weight"} <= paths


def test_buffers_outside_of_the_state_dict_and_extra_state_come_back(tmp_path: Path, contexts: Any) -> None:
    source, target = Tied(), Tied()
    source.seen += 4
    round_trip(registry_of(model=source), registry_of(model=target), tmp_path, contexts)
    assert torch.equal(source.rope, target.rope)
    assert target.calls == 4


def test_a_cache_that_has_grown_comes_back_in_its_size(tmp_path: Path, contexts: Any) -> None:
    source, target = Tied(), Tied()
    source.rope = torch.rand(9)
    round_trip(registry_of(model=source), registry_of(model=target), tmp_path, contexts)
    assert torch.equal(source.rope, target.rope)


def test_a_restored_parameter_keeps_its_identity_and_strides(tmp_path: Path, contexts: Any) -> None:
    source = nn.Conv2d(3, 4, 3)
    target = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weight, strides = target.weight, target.weight.stride()
    round_trip(registry_of(model=source), registry_of(model=target), tmp_path, contexts)
    assert target.weight is weight
    assert target.weight.stride() == strides
    assert torch.equal(target.weight, source.weight)


def test_several_modules_have_a_file_each_and_an_average_is_one_of_them(tmp_path: Path, contexts: Any) -> None:
    model = nn.Linear(3, 3)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    registry = registry_of(model=model)
    registry.track("ema", average, family="ema")
    saved = CheckpointStore(tmp_path, registry).save(Position(step=1, num_updates=1), contexts[0]())
    names = {a.component: set(a.tensors) for a in saved.manifest.artifacts if a.component != "state"}
    assert names == {"model": {"weight", "bias"}, "ema": {"module.weight", "module.bias", "n_averaged"}}
    assert {c.name: c.family for c in saved.manifest.components if c.state == "present"}["ema"] == "ema"


def test_zero_gradients_and_no_gradients_are_told_apart(tmp_path: Path, contexts: Any) -> None:
    """AdamW decays a parameter whose gradient is zero and skips one that has none."""
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    source.weight.grad = torch.zeros(2, 2)
    target.bias.grad = torch.ones(2)
    round_trip(registry_of(model=source), registry_of(model=target), tmp_path, contexts)
    assert target.weight.grad is not None
    assert not target.weight.grad.any()
    assert target.bias.grad is None
    candidate = discover(tmp_path).newest()
    assert candidate is not None
    assert candidate.manifest.position.gradients == "zeroed"


def test_gradients_left_over_are_said_so(tmp_path: Path, contexts: Any) -> None:
    source = nn.Linear(2, 2)
    source.weight.grad = torch.ones(2, 2)
    saved = CheckpointStore(tmp_path, registry_of(model=source)).save(Position(step=1, num_updates=1), contexts[0]())
    assert saved.manifest.position.gradients == "left over"


# ---- optimizers, schedulers, scalers ---------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "SGD plain": lambda p: torch.optim.SGD(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3),
}


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        data = torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1)

        def closure(data: torch.Tensor = data) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(data) - data).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_goes_on_exactly(kind: str, tmp_path: Path, contexts: Any) -> None:
    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Registry]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
        optimizer = OPTIMIZERS[kind](list(model.parameters()))
        return model, optimizer, registry_of(model=model, optimizer=optimizer)

    model, optimizer, registry = build(0)
    _train(model, optimizer, 4)
    other_model, other, other_registry = build(1)
    _train(other_model, other, 1)
    round_trip(registry, other_registry, tmp_path, contexts)
    assert _train(other_model, other, 3) == _train(model, optimizer, 3)
    for a, b in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(a, b)


SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 3]),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: 0.9**t),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.9),
    "LinearLR": schedulers.LinearLR,
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 9),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3, 2),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "ConstantLR": schedulers.ConstantLR,
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1, 3), schedulers.CosineAnnealingLR(o, 9)], [3]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 3), schedulers.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=4),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
}


def _lrs(optimizer: Any, scheduler: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_goes_on_exactly(kind: str, tmp_path: Path, contexts: Any) -> None:
    def build() -> tuple[Any, Any, Registry]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = SCHEDULERS[kind](optimizer)
        return optimizer, scheduler, registry_of(model=model, optimizer=optimizer, scheduler=scheduler)

    optimizer, scheduler, registry = build()
    _lrs(optimizer, scheduler, 4)
    other, other_scheduler, other_registry = build()
    round_trip(registry, other_registry, tmp_path, contexts)
    assert _lrs(other, other_scheduler, 8) == _lrs(optimizer, scheduler, 8)


def test_a_lambda_that_closes_over_another_value_is_refused(tmp_path: Path, contexts: Any) -> None:
    """`state_dict` of a LambdaLR says nothing about its function."""
    from lineage.checkpoint.errors import ResumeRefusedError

    def build(total: int) -> Registry:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = schedulers.LambdaLR(optimizer, lambda step: 1 - step / total)
        return registry_of(model=model, optimizer=optimizer, scheduler=scheduler)

    CheckpointStore(tmp_path, build(10)).save(Position(step=1, num_updates=1), contexts[0]())
    candidate = discover(tmp_path).newest()
    assert candidate is not None
    with pytest.raises(ResumeRefusedError) as error:
        plan_restore(candidate, build(20), contexts[1]())
    finding = error.value.findings[0]
    assert (finding.path, finding.saved, finding.live) == (
        "component.scheduler.constants.functions.lr_lambdas[0].closure.total",
        10,
        20,
    )


@pytest.mark.parametrize("used", [False, True], ids=["before-its-first-scale", "in-use"])
def test_a_scaler_goes_on_before_and_after_its_first_scale(used: bool, tmp_path: Path, contexts: Any) -> None:
    source, target = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2))
    model = nn.Linear(1, 1)
    registry = registry_of(model=model, scaler=source)
    if used:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        registry.track("optimizer", optimizer)
        for _ in range(3):
            source.scale(model(torch.ones(1, 1)).sum()).backward()
            source.step(optimizer)
            source.update()
    other = registry_of(model=nn.Linear(1, 1), scaler=target)
    if used:
        other.track("optimizer", torch.optim.SGD(other.components["model"].obj.parameters(), lr=0.1))
    round_trip(registry, other, tmp_path, contexts)
    assert target.state_dict() == source.state_dict()
    assert target.get_scale() == (16.0 if used else 8.0)


def test_a_scaler_that_waits_for_its_update_is_no_boundary(tmp_path: Path, contexts: Any) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    registry = registry_of(model=model, optimizer=optimizer, scaler=scaler)
    scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    scaler.step(optimizer)
    store = CheckpointStore(tmp_path, registry)
    with pytest.raises(SaveRefusedError, match="update"):
        store.save(Position(step=1, num_updates=1), contexts[0]())
    scaler.update()
    store.save(Position(step=1, num_updates=1), contexts[0]())


def test_accumulation_pending_is_no_boundary(tiny: Any, tmp_path: Path, contexts: Any) -> None:
    with pytest.raises(SaveRefusedError, match="2 microbatches"):
        CheckpointStore(tmp_path, tiny.registry).save(Position(step=1, num_updates=1, microbatch=2), contexts[0]())
    assert list(tmp_path.iterdir()) == []


def test_objects_of_the_users_own_come_back_and_may_object(tmp_path: Path, contexts: Any) -> None:
    from lineage.checkpoint.errors import ResumeRefusedError

    class Picky(Custom):
        def check_state_dict(self, state: dict[str, int]) -> list[str]:
            return ["too many"] if state["count"] > 5 else []

    source, target = Picky(), Picky()
    source.count = 5
    round_trip(
        registry_of(model=nn.Linear(1, 1), own=source),
        registry_of(model=nn.Linear(1, 1), own=target),
        tmp_path,
        contexts,
    )
    assert target.count == 5
    source.count = 6
    registry = registry_of(model=nn.Linear(1, 1), own=source)
    CheckpointStore(tmp_path, registry).save(Position(step=2, num_updates=2), contexts[0]())
    candidate = discover(tmp_path).newest()
    assert candidate is not None
    with pytest.raises(ResumeRefusedError, match="too many"):
        plan_restore(candidate, registry_of(model=nn.Linear(1, 1), own=Picky()), contexts[1]())
    assert target.count == 5
