"""Where the data goes on: absolute cursors, any position, exact order; loaders that cannot are refused with the line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset

from lineage.checkpoint import tree
from lineage.checkpoint.components import Saved
from lineage.checkpoint.errors import LoaderRefusedError
from lineage.checkpoint.loaders import LoaderComponent, loader_component
from lineage.checkpoint.sampler import ResumableSampler, batch_digest, batch_length


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def component(length: int = 23, batch_size: int = 5, **more: Any) -> LoaderComponent:
    sampler = ResumableSampler(length, shuffle=more.pop("shuffle", True), seed=more.pop("seed", 7))
    return loader_component("train", DataLoader(Numbers(length), batch_size=batch_size, sampler=sampler, **more))


def saved(source: LoaderComponent) -> Saved:
    flat = tree.flatten(source.state(), source.name, source.name)
    return Saved(flat.wire, {}, lambda name: flat.tensors[name])


def moved(source: LoaderComponent, target: LoaderComponent) -> LoaderComponent:
    """`target` at the cursor of `source`, as a restore does it."""
    state = saved(source)
    assert target.check(state) == []
    target.restore(state)
    assert target.cursor_digest() == source.cursor_digest()
    return target


def take(batches: Iterator[Any], count: int) -> list[list[int]]:
    return [next(batches).tolist() for _ in range(count)]


@pytest.mark.parametrize("drop_last", [False, True], ids=["partial-last", "drop-last"])
@pytest.mark.parametrize("stop", range(13))
def test_any_position_can_be_gone_back_to(stop: int, drop_last: bool) -> None:
    """23 samples in batches of 5: the end of an epoch, its partial batch and the start of the next among them."""
    whole = take(component(drop_last=drop_last).iterate(), 13)
    source = component(drop_last=drop_last)
    first = take(source.iterate(), stop)
    target = moved(source, component(drop_last=drop_last))
    assert first + take(target.iterate(), 13 - stop) == whole


@pytest.mark.parametrize("stops", [(1, 2, 3), (4, 5, 1), (5, 5, 5)])
def test_a_resume_of_a_resume_lands_where_one_resume_would(stops: tuple[int, ...]) -> None:
    whole = take(component().iterate(), 20)
    found: list[list[int]] = []
    current = component()
    for stop in stops:
        found += take(current.iterate(), stop)
        current = moved(current, component())
    assert found + take(current.iterate(), 20 - len(found)) == whole


def test_every_epoch_is_a_permutation_and_no_two_are_alike() -> None:
    source = component()
    epochs = [sorted(i for batch in take(source.iterate(), 5) for i in batch) for _ in range(2)]
    assert epochs == [list(range(23))] * 2
    orders = {tuple(ResumableSampler(23, shuffle=True, seed=s).order(e).tolist()) for s in range(3) for e in range(3)}
    assert len(orders) == 9


def test_what_workers_have_prefetched_is_not_consumed() -> None:
    source = component(num_workers=2, prefetch_factor=4)
    first = take(source.iterate(), 3)
    assert source.cursor()["sample"] == 15
    target = moved(source, component(num_workers=2, prefetch_factor=4))
    assert first + take(target.iterate(), 4) == take(component().iterate(), 7)


def test_persistent_workers_start_each_epoch_and_each_resume_where_they_must() -> None:
    more = {"num_workers": 1, "persistent_workers": True}
    source = component(**more)
    first = take(source.iterate(), 7)
    target = moved(source, component(**more))
    assert first + take(target.iterate(), 6) == take(component().iterate(), 13)


def test_workers_that_may_overtake_each_other_are_refused() -> None:
    loader = DataLoader(Numbers(9), sampler=ResumableSampler(9, shuffle=True), num_workers=2, in_order=False)
    with pytest.raises(LoaderRefusedError, match="as workers finish"):
        loader_component("train", loader)


def test_totals_count_partial_batches_by_their_size() -> None:
    source = component()
    take(source.iterate(), 6)
    assert source.cursor() == {"epoch": 1, "batch": 1, "sample": 5, "num_batches": 6, "num_samples": 28}


def test_a_number_of_epochs_is_counted_from_the_beginning_of_the_run() -> None:
    assert len(list(component().iterate(epochs=2))) == 10
    source = component()
    take(source.iterate(), 7)
    assert len(list(moved(source, component()).iterate(epochs=2))) == 3


def test_the_sampler_draws_from_no_global_stream() -> None:
    before = torch.get_rng_state()
    list(ResumableSampler(100, shuffle=True, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_plain_order_and_a_subset() -> None:
    assert list(ResumableSampler(4, shuffle=False)) == [0, 1, 2, 3]
    assert len(list(ResumableSampler(10, shuffle=True, num_samples=4))) == 4
    with pytest.raises(ValueError, match="num_samples"):
        ResumableSampler(4, shuffle=False, num_samples=5)


def test_an_explicit_batch_sampler_and_no_batching_at_all() -> None:
    sampler = ResumableSampler(7, shuffle=False)
    batched = loader_component("t", DataLoader(Numbers(7), batch_sampler=BatchSampler(sampler, 3, drop_last=True)))
    assert take(batched.iterate(), 3) == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert batched.geometry()["drop_last"] is True
    single = loader_component("t", DataLoader(Numbers(3), batch_size=None, sampler=ResumableSampler(3, shuffle=False)))
    assert [int(b) for b, _ in zip(single.iterate(), range(4), strict=False)] == [0, 1, 2, 0]


def test_geometry_names_what_a_cursor_depends_on() -> None:
    geometry = component(num_workers=2, drop_last=True).geometry()
    assert geometry | {"sampler": ""} == {
        "length": 23,
        "num_samples": 23,
        "batch_size": 5,
        "batched": True,
        "num_workers": 2,
        "sampler": "",
        "shuffle": True,
        "seed": 7,
        "drop_last": True,
    }


def test_an_order_that_torch_would_draw_differently_now_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = component()
    take(source.iterate(), 2)
    state = saved(source)
    monkeypatch.setattr(ResumableSampler, "order", lambda self, epoch: torch.arange(self.num_samples).flip(0))
    assert [problem.path for problem in component().check(state)] == ["loader.train.order"]


@pytest.mark.parametrize(
    "cursor",
    [None, {}, {"epoch": -1, "batch": 0, "sample": 0, "num_batches": 0, "num_samples": 0}, {"epoch": "1"}],
)
def test_a_malformed_cursor_is_a_problem_and_not_a_crash(cursor: Any) -> None:
    wire = tree.flatten({"cursor": cursor, "order_digest": ""}, "t", "t").wire
    assert component().check(Saved(wire, {}, lambda _: torch.zeros(1)))


def test_a_loader_without_a_batch_ends() -> None:
    assert list(component(length=3, batch_size=5, drop_last=True).iterate()) == []


# ---- refused ---------------------------------------------------------------------------------------------------------


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(10)


@pytest.mark.parametrize(
    ("loader", "line"),
    [
        (
            lambda: DataLoader(Numbers(9), batch_size=4, shuffle=True),
            "DataLoader(dataset, batch_size=4, sampler=lineage.ResumableSampler(dataset, shuffle=True, seed=1234), ...)",
        ),
        (
            lambda: DataLoader(Numbers(9), batch_size=4),
            "DataLoader(dataset, batch_size=4, sampler=lineage.ResumableSampler(dataset, shuffle=False), ...)",
        ),
        (lambda: DataLoader(Endless()), "StatefulDataLoader"),
        (lambda: [1, 2, 3], "lineage.ResumableSampler"),
    ],
    ids=["random", "sequential", "iterable", "list"],
)
def test_a_loader_whose_position_nobody_knows_is_refused_with_the_line_to_write(loader: Any, line: str) -> None:
    # Made here: the audit of other tests looks for data loaders that are alive.
    with pytest.raises(LoaderRefusedError) as error:
        loader_component("train", loader())
    assert line in error.value.hint


def test_a_custom_sampler_is_refused_by_its_name() -> None:
    class Mine(ResumableSampler):
        pass

    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 9, 9)
    with pytest.raises(LoaderRefusedError, match="WeightedRandomSampler"):
        loader_component("train", DataLoader(Numbers(9), sampler=weighted))
    assert loader_component("train", DataLoader(Numbers(9), sampler=Mine(9, shuffle=True))).geometry()["sampler"]


@pytest.mark.filterwarnings("ignore")  # what torchdata's own import warns of
def test_a_stateful_loader_that_snapshots_rarely_is_refused() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    with pytest.raises(LoaderRefusedError) as error:
        loader_component("train", StatefulDataLoader(Numbers(9), snapshot_every_n_steps=10))
    assert "snapshot_every_n_steps=1" in error.value.hint


def test_a_loader_of_ones_own_needs_an_absolute_count() -> None:
    class Own:
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    with pytest.raises(LoaderRefusedError, match="num_samples"):
        loader_component("train", Own())


def test_a_loader_that_does_not_go_where_it_says_is_refused() -> None:
    class Forgetful:
        num_samples = 0

        def state_dict(self) -> dict[str, int]:
            return {"num_samples": self.num_samples}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.num_samples = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                self.num_samples += 2
                yield torch.zeros(2)

    source = loader_component("train", Forgetful())
    take(source.iterate(), 3)
    with pytest.raises(LoaderRefusedError, match="6 were consumed"):
        loader_component("train", Forgetful()).restore(saved(source))


# ---- one batch for ever ----------------------------------------------------------------------------------------------


def test_a_fixed_batch_repeats_without_moving_the_cursor_and_survives_a_resume() -> None:
    source = component()
    take(source.iterate(), 2)
    source.fix_batch()
    first = take(source.iterate(), 3)
    assert first[0] == first[1] == first[2]
    assert source.cursor()["sample"] == 10
    target = moved(source, component())
    assert target.fixed
    assert take(target.iterate(), 2) == first[:2]


def test_a_fixed_batch_changed_in_place_comes_whole_again() -> None:
    source = component()
    source.fix_batch()
    batches = source.iterate()
    before = next(batches)
    expected = before.clone()
    before.zero_()
    assert torch.equal(next(batches), expected)


def test_a_fixed_batch_whose_data_changed_is_refused() -> None:
    def loader(offset: int) -> LoaderComponent:
        data = TensorDataset(torch.arange(8) + offset)
        return loader_component("t", DataLoader(data, batch_size=4, sampler=ResumableSampler(8, shuffle=False)))

    source = loader(0)
    source.fix_batch()
    source.iterate()
    state = saved(source)
    target = loader(1)
    target.restore(state)
    with pytest.raises(LoaderRefusedError, match="reads differently"):
        target.iterate()


def test_lengths_and_digests_of_batches() -> None:
    pair = [torch.zeros(3, 2), torch.ones(3)]
    assert batch_length(pair) == 3
    assert batch_length({"x": torch.zeros(4)}) == 4
    assert batch_length(["a", "b"]) == 2
    assert batch_digest(pair) == batch_digest([torch.zeros(3, 2), torch.ones(3)])
    assert batch_digest(pair) != batch_digest([torch.zeros(3, 2), torch.ones(3) * 2])
    assert batch_digest({"x": torch.zeros(2), "y": "a"}) != batch_digest({"x": torch.zeros(2), "y": "b"})
