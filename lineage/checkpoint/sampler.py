"""A sampler that can start anywhere in an epoch, and what can be said about a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sized
from typing import Any, Final

import orjson
import torch
from torch.utils.data import Sampler

from lineage.checkpoint.errors import UnsupportedStateError
from lineage.checkpoint.tensors import bytes_of

_ORDER_SAMPLE: Final = 1 << 16


class ResumableSampler(Sampler[int]):
    """A sampler whose order depends on `(seed, epoch)` alone, so that any position can be gone back to.

    Use it where a `DataLoader` would take `shuffle=True` (or for plain order with `shuffle=False`)::

        DataLoader(dataset, batch_size=32, sampler=lineage.ResumableSampler(dataset, shuffle=True, seed=1234))

    It draws from no global generator. Where it stands is not its own business: the tracked loader counts what was
    consumed, and sets `start` before an epoch's iterator is built.

    Args:
        data_source: the dataset, or its number of samples.
        shuffle: a new permutation each epoch; False for index order.
        seed: any integer from 0; with the epoch it decides the permutation.
        num_samples: samples per epoch, fewer than the dataset has; None for all.
    """

    def __init__(
        self, data_source: Sized | int, *, shuffle: bool, seed: int = 0, num_samples: int | None = None
    ) -> None:
        self.length = data_source if isinstance(data_source, int) else len(data_source)
        if self.length < 0 or seed < 0:
            raise ValueError(f"length {self.length} and seed {seed} must not be negative")
        self.num_samples = self.length if num_samples is None else num_samples
        if not 0 <= self.num_samples <= self.length:
            raise ValueError(f"num_samples {self.num_samples} is not between 0 and the {self.length} of the dataset")
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        """Samples of a whole epoch, wherever the next iterator starts."""
        return self.num_samples

    def order(self, epoch: int) -> torch.Tensor:
        """Indices of an epoch, in order."""
        if not self.shuffle:
            return torch.arange(self.num_samples)
        # Hashed, so that neighbouring seeds and epochs do not give related streams.
        mixed = hashlib.sha256(f"lineage-sampler:{self.seed}:{epoch}".encode("ascii")).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") & (2**63 - 1))
        return torch.randperm(self.length, generator=generator)[: self.num_samples]

    def __iter__(self) -> Iterator[int]:
        """Indices from `start` of `epoch` to the end of it; both are read when the iterator is built."""
        return iter(self.order(self.epoch)[self.start :].tolist())

    def order_digest(self, epoch: int) -> str:
        """Digest of an epoch's order: torch does not promise `randperm` across versions, so a resume checks."""
        order = self.order(epoch)
        head = f"{self.length}:{self.num_samples}:".encode("ascii")
        return hashlib.sha256(head + bytes(bytes_of(order[:_ORDER_SAMPLE].to(torch.int64)))).hexdigest()[:32]


def batch_length(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor, or the length of its first sequence."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, dict):
        return batch_length(next(iter(batch.values()))) if batch else 0
    if isinstance(batch, list | tuple) and batch:
        first = batch[0]
        if isinstance(first, torch.Tensor | dict | list | tuple):
            return batch_length(first)
        return len(batch)
    return 1


def _map_tensors(batch: Any, apply: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(batch, torch.Tensor):
        return apply(batch)
    if type(batch) in (list, tuple):
        return type(batch)(_map_tensors(item, apply) for item in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map_tensors(item, apply) for item in batch))
    if isinstance(batch, dict):
        return {key: _map_tensors(value, apply) for key, value in batch.items()}
    return batch


def clone_batch(batch: Any) -> Any:
    """A copy the loop may change in place without changing the next repetition."""
    return _map_tensors(batch, torch.Tensor.clone)


def batch_digest(batch: Any) -> str:
    """32 hex digits over every tensor and plain value of a batch."""
    digest = hashlib.sha256()

    def add(tensor: torch.Tensor) -> None:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode("ascii"))
        digest.update(bytes_of(tensor))

    plain = _map_tensors(batch, add)
    try:
        digest.update(orjson.dumps(plain, default=repr, option=orjson.OPT_NON_STR_KEYS))
    except orjson.JSONEncodeError as error:
        raise UnsupportedStateError(f"a batch holds a value that cannot be compared: {error}") from error
    return digest.hexdigest()[:32]
