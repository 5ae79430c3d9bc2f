"""Where the data goes on: loaders that know how many samples were consumed, and a sampler that can start there.

What counts is what the training loop *took*, not what workers have prefetched. A cursor is absolute (epoch and sample
within it), so that a resume of a resume lands where a single resume would.

Building an iterator draws from the global random generator (the workers' base seed). So `iterate` builds the first
iterator at once, and random state is restored after that (CHECKPOINTS section 4); later epochs build theirs where the
uninterrupted run built them too.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import orjson
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from lineage.checkpoint import tree
from lineage.checkpoint.components import Captured, Component, Problem, Saved
from lineage.checkpoint.errors import LoaderRefusedError
from lineage.checkpoint.sampler import ResumableSampler, batch_digest, batch_length, clone_batch


class LoaderIterator(Iterator[Any]):
    """Batches of a tracked loader, counted as they are handed out."""

    def __init__(self, component: LoaderComponent, epochs: int | None) -> None:
        self._component = component
        self._epochs = epochs
        self._inner: Iterator[Any] | None = None
        self._fixed: Any = None
        if component.fixed:
            self._fixed = component._read_fixed()
        elif not self._over():
            self._inner = component._open()

    def __iter__(self) -> Self:
        return self

    def until(self, epochs: int | None) -> Self:
        """Set after how many epochs, counted from the run's beginning, to stop; None goes on for ever."""
        self._epochs = epochs
        return self

    def _over(self) -> bool:
        return self._epochs is not None and self._component.epoch >= self._epochs

    def __next__(self) -> Any:
        if self._component.fixed:
            self._component._count_fixed()
            return clone_batch(self._fixed)
        empty = 0
        while not self._over():
            if self._inner is None:
                self._inner = self._component._open()
            try:
                batch = next(self._inner)
            except StopIteration:
                self._inner = None
                empty = empty + 1 if self._component.batch == 0 else 0
                self._component._end_epoch()
                if empty > 1:  # a loader without a single batch would be asked for one forever
                    break
                continue
            self._component._count(batch)
            return batch
        raise StopIteration


class LoaderComponent(Component):
    """A tracked loader: cursor, geometry, and an iterator that counts.

    Attributes:
        epoch: epochs completed.
        batch: batches consumed in the current epoch.
        sample: samples consumed in the current epoch.
        num_batches, num_samples: consumed since the run began.
        fixed: whether one batch is repeated (`fix_batch`).
    """

    family = "loader"
    scope = "rank"

    def __init__(self, name: str, obj: Any) -> None:
        super().__init__(name, obj)
        self.epoch = 0
        self.batch = 0
        self.sample = 0
        self.num_batches = 0
        self.num_samples = 0
        self.fixed = False
        self._fixed_digest: str | None = None

    def iterate(self, epochs: int | None = None) -> LoaderIterator:
        """Batches from the cursor on, epoch after epoch.

        The first underlying iterator is built before this returns; put random state back after it, not before
        (`Restored.finish`).

        Args:
            epochs: total epochs counted from the run's beginning, so a resumed run ends where it would have; None
                goes on for ever.
        """
        return LoaderIterator(self, epochs)

    def fix_batch(self) -> None:
        """Repeat the batch at the cursor for ever (overfitting on one batch); the cursor stays where it is.

        A resume rereads the same batch from its own offset, and refuses when its content has changed. Call it before
        `iterate`.
        """
        self.fixed = True

    def state(self) -> Any:
        """The cursor, ready for `tree.flatten`."""
        cursor = self.cursor()
        if self.fixed:
            cursor["fixed"] = self._fixed_digest
        return {"cursor": cursor}

    def load(self, state: Any) -> None:
        """Go to a saved cursor; takes effect when the next iterator is built."""
        cursor = state["cursor"]
        self.epoch = cursor["epoch"]
        self.batch = cursor["batch"]
        self.sample = cursor["sample"]
        self.num_batches = cursor["num_batches"]
        self.num_samples = cursor["num_samples"]
        self.fixed = "fixed" in cursor
        self._fixed_digest = cursor.get("fixed")

    def cursor(self) -> dict[str, Any]:
        """Epoch, batch and sample within it, and totals; all of consumed things."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "sample": self.sample,
            "num_batches": self.num_batches,
            "num_samples": self.num_samples,
        }

    def cursor_digest(self) -> str:
        """32 hex digits that are equal exactly when the next batch is the same one of the same loader."""
        facts = {"cursor": self.cursor(), "geometry": self.geometry(), "fixed": self._fixed_digest}
        return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]

    @abstractmethod
    def geometry(self) -> dict[str, Any]:
        """What must be equal for a cursor to mean the same: length, batch size, workers, sampler, drop_last, ..."""

    @abstractmethod
    def _open(self) -> Iterator[Any]:
        """An iterator over the rest of the current epoch."""

    def generators(self) -> dict[str, Any]:
        """Random generators that belong to the loader; saved and restored with the other streams."""
        found = getattr(self.obj, "generator", None)
        return {} if found is None else {f"{self.name}.generator": found}

    def owned(self) -> Iterator[object]:
        yield self.obj
        parts = [getattr(self.obj, attribute, None) for attribute in ("sampler", "batch_sampler", "generator")]
        parts += [getattr(part, "sampler", None) for part in parts]
        parts += [getattr(part, "generator", None) for part in parts]
        yield from (part for part in parts if part is not None)

    def describe(self) -> dict[str, Any]:
        return {"type": type(self.obj).__qualname__}

    def capture(self) -> Captured:
        flat = tree.flatten(self.state(), self.name, self.name)
        return Captured(wire=flat.wire, extra=flat.tensors)

    def check(self, saved: Saved) -> list[Problem]:
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        cursor = state.get("cursor") if isinstance(state, dict) else None
        wanted = ("epoch", "batch", "sample", "num_batches", "num_samples")
        if not isinstance(cursor, dict) or not all(type(cursor.get(k)) is int and cursor[k] >= 0 for k in wanted):
            return [Problem(f"loader.{self.name}.cursor", cursor, self.cursor(), "a cursor has five counts")]
        return []

    def restore(self, saved: Saved) -> None:
        self.load(tree.unflatten(saved.wire, saved.tensor, self.name))

    def _count(self, batch: Any) -> None:
        size = batch_length(batch)
        self.batch += 1
        self.num_batches += 1
        self.sample += size
        self.num_samples += size

    def _end_epoch(self) -> None:
        self.epoch += 1
        self.batch = 0
        self.sample = 0

    def _read_fixed(self) -> Any:
        """The batch at the cursor, read without moving it and checked against what was saved."""
        try:
            batch = next(iter(self._open()))
        except StopIteration:
            raise LoaderRefusedError(
                f"loader {self.name!r} has no batch at its cursor to repeat",
                hint="fix the batch at the start of an epoch",
            ) from None
        digest = batch_digest(batch)
        if self._fixed_digest not in (None, digest):
            raise LoaderRefusedError(
                f"the fixed batch of loader {self.name!r} reads differently than when it was saved",
                hint="the data has changed; start a new run",
            )
        self._fixed_digest = digest
        return batch

    def _count_fixed(self) -> None:
        """A repeated batch moves no cursor."""


class SamplerLoader(LoaderComponent):
    """A plain `DataLoader` over a map-style dataset with a `ResumableSampler`; exact with any number of workers."""

    obj: DataLoader[Any]

    def __init__(self, name: str, obj: DataLoader[Any], sampler: ResumableSampler) -> None:
        super().__init__(name, obj)
        self.sampler = sampler

    def owned(self) -> Iterator[object]:
        yield from super().owned()
        yield self.sampler

    @property
    def _batch_size(self) -> int:
        return int(getattr(self.obj.batch_sampler, "batch_size", 1))  # no batch sampler: one sample at a time

    @property
    def _drop_last(self) -> bool:
        return bool(getattr(self.obj.batch_sampler, "drop_last", False) or self.obj.drop_last)

    def geometry(self) -> dict[str, Any]:
        return {
            "length": self.sampler.length,
            "num_samples": len(self.sampler),
            "batch_size": self._batch_size,
            "batched": self.obj.batch_sampler is not None,
            "num_workers": int(self.obj.num_workers),
            "sampler": type(self.sampler).__qualname__,
            "shuffle": self.sampler.shuffle,
            "seed": self.sampler.seed,
            "drop_last": self._drop_last,
        }

    def state(self) -> Any:
        state = super().state()
        state["order_digest"] = self.sampler.order_digest(self.epoch)
        return state

    def check(self, saved: Saved) -> list[Problem]:
        problems = super().check(saved)
        if problems:
            return problems
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        cursor = state["cursor"]
        if cursor["sample"] > len(self.sampler):
            problems.append(
                Problem(f"loader.{self.name}.cursor.sample", cursor["sample"], len(self.sampler), "beyond the epoch")
            )
        digest = self.sampler.order_digest(cursor["epoch"])
        if state.get("order_digest") != digest:
            problems.append(
                Problem(
                    f"loader.{self.name}.order",
                    state.get("order_digest"),
                    digest,
                    "the epoch's order differs",
                    loadable=True,
                )
            )
        return problems

    def _open(self) -> Iterator[Any]:
        self.sampler.epoch = self.epoch
        self.sampler.start = self.sample
        return iter(self.obj)

    def _count(self, batch: Any) -> None:  # noqa: ARG002  # the base class looks into it
        # By arithmetic, not by looking into the batch: a collate function may return anything.
        size = min(self._batch_size, len(self.sampler) - self.sample)
        self.batch += 1
        self.num_batches += 1
        self.sample += size
        self.num_samples += size

    def sample_ids(self) -> list[int]:
        """Indices of the next batch, for a person or a drill to compare; empty at the end of an epoch."""
        order = self.sampler.order(self.epoch)[self.sample : self.sample + self._batch_size].tolist()
        return [] if self._drop_last and len(order) < self._batch_size else [int(i) for i in order]


class StatefulLoader(LoaderComponent):
    """torchdata's `StatefulDataLoader`, with the geometry that it does not check and an absolute count beside it."""

    def __init__(self, name: str, obj: Any) -> None:
        super().__init__(name, obj)
        self._start: Any = None  # its state where the current epoch or fixed batch began
        self._open_yet = False

    def owned(self) -> Iterator[object]:
        yield from super().owned()
        yield self.obj.dataset  # its state, where it has one, is part of the loader's

    def geometry(self) -> dict[str, Any]:
        dataset = self.obj.dataset
        iterable = isinstance(dataset, IterableDataset)
        sampler = getattr(self.obj, "sampler", None)
        return {
            "length": None if iterable else _length(dataset),
            "batch_size": self.obj.batch_size,
            "num_workers": int(self.obj.num_workers),
            "sampler": None if iterable else type(sampler).__qualname__,
            "drop_last": bool(self.obj.drop_last),
            "snapshot_every_n_steps": int(getattr(self.obj, "snapshot_every_n_steps", 1)),
        }

    def state(self) -> Any:
        state = super().state()
        if self.fixed:
            state["loader"] = self._start
        else:
            state["loader"] = self.obj.state_dict() if self._open_yet or self._start is None else self._start
        return state

    def load(self, state: Any) -> None:
        super().load(state)
        self._start = state["loader"]
        self._open_yet = False

    def check(self, saved: Saved) -> list[Problem]:
        problems = super().check(saved)
        state = tree.unflatten(saved.wire, saved.tensor, self.name)
        if not problems and "loader" not in state:
            problems.append(Problem(f"loader.{self.name}.state", None, "present", "the loader's own state is missing"))
        return problems

    def _open(self) -> Iterator[Any]:
        if self._start is not None and not self._open_yet:
            self.obj.load_state_dict(self._start)
        if self.fixed and self._start is None:
            self._start = self.obj.state_dict()
        self._open_yet = True
        return iter(self.obj)


class ObjectLoader(LoaderComponent):
    """A loader of the user's own: `state_dict`, `load_state_dict`, `num_samples`, and batches where it is iterable.

    `num_samples` (attribute or method) is the absolute number of samples it has handed out since the run began; its
    own state must lead back to exactly there.
    """

    def __init__(self, name: str, obj: Any) -> None:
        super().__init__(name, obj)
        if not hasattr(obj, "num_samples"):
            raise LoaderRefusedError(
                f"loader {name!r} ({type(obj).__qualname__}) has state_dict but no num_samples",
                hint="give it an attribute num_samples: samples handed out since the run began",
            )

    def _absolute(self) -> int:
        found = self.obj.num_samples
        return int(found() if callable(found) else found)

    def geometry(self) -> dict[str, Any]:
        own = getattr(self.obj, "geometry", None)
        given = own() if callable(own) else {}
        facts = {key: getattr(self.obj, key) for key in ("batch_size", "drop_last", "seed") if hasattr(self.obj, key)}
        plain = {k: v for k, v in {**facts, **given}.items() if type(v) in (bool, int, float, str, type(None))}
        return {"length": _length(self.obj), **plain}

    def cursor(self) -> dict[str, Any]:
        return super().cursor() | {"num_samples": self._absolute()}

    def state(self) -> Any:
        return super().state() | {"loader": self.obj.state_dict()}

    def load(self, state: Any) -> None:
        super().load(state)
        self.obj.load_state_dict(state["loader"])
        if self._absolute() != state["cursor"]["num_samples"]:
            raise LoaderRefusedError(
                f"loader {self.name!r} stands at sample {self._absolute()} after load_state_dict, "
                f"{state['cursor']['num_samples']} were consumed",
                hint="its load_state_dict does not lead back to where state_dict was taken",
            )

    def _open(self) -> Iterator[Any]:
        if not callable(getattr(self.obj, "__iter__", None)):
            raise LoaderRefusedError(
                f"loader {self.name!r} ({type(self.obj).__qualname__}) is not iterable",
                hint="take batches by its own method; its position is saved all the same",
            )
        return iter(self.obj)

    def _read_fixed(self) -> Any:
        before = self.obj.state_dict()
        batch = super()._read_fixed()
        self.obj.load_state_dict(before)
        return batch


def _length(obj: object) -> int | None:
    try:
        return len(obj)  # type: ignore[arg-type]  # asked, not assumed
    except (TypeError, NotImplementedError):
        return None


def is_stateful_dataloader(obj: object) -> bool:
    """Whether this is torchdata's loader, told without importing torchdata."""
    return any(
        kind.__name__ == "StatefulDataLoader" and kind.__module__.startswith("torchdata") for kind in type(obj).__mro__
    )


def loader_component(name: str, obj: Any) -> LoaderComponent:
    """The adapter for a loader.

    Raises:
        LoaderRefusedError: its position cannot be saved exactly; the hint is the line to write instead.
    """
    if isinstance(obj, LoaderComponent):
        return obj
    if isinstance(obj, DataLoader) and obj.num_workers and not getattr(obj, "in_order", True):
        raise LoaderRefusedError(
            f"loader {name!r} hands out batches as workers finish them, in an order that no resume can repeat",
            hint="DataLoader(..., in_order=True), which is the default",
        )
    if is_stateful_dataloader(obj):
        every = int(getattr(obj, "snapshot_every_n_steps", 1))
        if every != 1:
            raise LoaderRefusedError(
                f"loader {name!r} snapshots its workers every {every} steps, so its state is not that of each step",
                hint="StatefulDataLoader(..., snapshot_every_n_steps=1)",
            )
        return StatefulLoader(name, obj)
    if isinstance(obj, DataLoader):
        return _sampler_loader(name, obj)
    if callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None)):
        return ObjectLoader(name, obj)
    raise LoaderRefusedError(
        f"loader {name!r} is a {type(obj).__qualname__}, which says nothing about its position",
        hint="give it state_dict, load_state_dict and num_samples, or use a DataLoader with lineage.ResumableSampler",
    )


def _sampler_loader(name: str, loader: DataLoader[Any]) -> SamplerLoader:
    if isinstance(loader.dataset, IterableDataset):
        raise LoaderRefusedError(
            f"loader {name!r} is a plain DataLoader over an IterableDataset, whose position nobody knows",
            hint="use torchdata.stateful_dataloader.StatefulDataLoader with a dataset that has state_dict",
        )
    sampler: Any = loader.sampler
    if type(loader.batch_sampler) is BatchSampler:
        sampler = loader.batch_sampler.sampler
    if isinstance(sampler, ResumableSampler) and type(loader.batch_sampler) in (BatchSampler, type(None)):
        return SamplerLoader(name, loader, sampler)
    found = type(loader.batch_sampler if type(loader.batch_sampler) not in (BatchSampler, type(None)) else sampler)
    shuffle = found.__name__ != "SequentialSampler"
    seed = ", seed=1234" if shuffle else ""
    size = "" if loader.batch_size is None else f"batch_size={loader.batch_size}, "
    raise LoaderRefusedError(
        f"loader {name!r} draws its order from {found.__qualname__}, which cannot start in the middle of an epoch",
        hint=f"DataLoader(dataset, {size}sampler=lineage.ResumableSampler(dataset, shuffle={shuffle}{seed}), ...)",
    )
