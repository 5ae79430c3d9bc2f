"""What a step records so that a second attempt at it can be compared (docs/format.md, "Witness").

Digests are BLAKE2b, 128 bits, hex. They are taken only on the steps where a witness is due, since hashing a batch and
the generators' states costs tens of microseconds, and a batch on a device must be copied to the host.
"""

from __future__ import annotations

import hashlib
import random
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_DIGEST_BYTES: Final = 16
_WHOLE_LIMIT: Final = 1 << 20
_SAMPLE_BYTES: Final = 4096
_SAMPLE_COUNT: Final = 256


class BatchDigest:
    """Digest of the microbatches of one step, in the order in which the loop took them.

    A tensor or array counts with dtype, shape and bytes; above 1 MiB only 256 evenly spread blocks of 4 KiB are
    hashed. Containers count with their structure, everything else with its `repr`. What has no bytes to read (a sparse,
    nested or meta tensor), what reading would use up (an iterator) and what has no `repr` of its own count with their
    type alone: a batch is looked at, never spoilt, and never ends a training.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._num_batches = 0

    def add(self, batch: Any) -> None:
        _feed(self._hash, batch)
        self._num_batches += 1

    def take(self) -> str | None:
        """The digest so far, or None when no batch was seen; starts over for the next step."""
        if not self._num_batches:
            return None
        text = self._hash.hexdigest()
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._num_batches = 0
        return text


def _feed(digest: hashlib.blake2b, value: Any) -> None:
    try:
        _feed_content(digest, value)
    except Exception:  # noqa: BLE001  # anybody's object
        _feed_type(digest, value)


def _feed_type(digest: hashlib.blake2b, value: object) -> None:
    digest.update(f"type {type(value).__module__}.{type(value).__qualname__}".encode())


def _feed_content(digest: hashlib.blake2b, value: Any) -> None:
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor, without importing torch
        host = value.detach().cpu().contiguous()
        digest.update(f"tensor {host.dtype} {tuple(host.shape)}".encode())
        flat = host.reshape(-1)
        _feed_bytes(digest, memoryview(flat.view(_uint8()).numpy()) if flat.numel() else memoryview(b""))
    elif hasattr(value, "__array_interface__"):
        import numpy as np

        host = np.ascontiguousarray(value)
        digest.update(f"array {host.dtype.str} {host.shape}".encode())
        _feed_bytes(digest, host.reshape(-1).view(np.uint8).data if host.size else memoryview(b""))
    elif isinstance(value, Mapping):
        digest.update(f"map {len(value)}".encode())
        for key, item in value.items():
            digest.update(repr(key).encode())
            _feed(digest, item)
    elif isinstance(value, str | bytes):
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, set | frozenset):  # of strings, it has another order in every process
        digest.update(f"set {sorted(map(repr, value))}".encode("utf-8", "surrogatepass"))
    elif isinstance(value, Iterator):
        _feed_type(digest, value)
    elif isinstance(value, Iterable):
        items = list(value)
        digest.update(f"seq {len(items)}".encode())
        for item in items:
            _feed(digest, item)
    elif getattr(type(value), "__repr__", None) is object.__repr__:  # an address, which no second attempt has
        _feed_type(digest, value)
    else:
        digest.update(repr(value).encode("utf-8", "surrogatepass"))


def _uint8() -> Any:
    return sys.modules["torch"].uint8


def _feed_bytes(digest: hashlib.blake2b, data: memoryview) -> None:
    if data.nbytes <= _WHOLE_LIMIT:
        digest.update(data)
        return
    last = data.nbytes - _SAMPLE_BYTES
    for i in range(_SAMPLE_COUNT):
        offset = last * i // (_SAMPLE_COUNT - 1)
        digest.update(data[offset : offset + _SAMPLE_BYTES])


def rng_digest(extra: Iterable[Any] = ()) -> str:
    """Digest of the state of every random stream: Python, NumPy's global one, torch on the CPU and each CUDA device.

    Args:
        extra: generators of the loop's own: of torch, numpy (either kind) or Python.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    version, words, gauss = random.getstate()
    digest.update(array("L", words).tobytes())
    digest.update(f"{version} {gauss!r}".encode())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            digest.update(state["state"]["key"].tobytes())
            digest.update(repr((state["state"]["pos"], state["has_gauss"], state["gauss"])).encode())
        else:  # somebody put another one in its place
            digest.update(repr(state).encode())
    torch = sys.modules.get("torch")
    if torch is not None:
        digest.update(torch.get_rng_state().numpy())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            for state in torch.cuda.get_rng_state_all():
                digest.update(state.cpu().numpy())
    for generator in extra:
        digest.update(_generator_state(generator))
    return digest.hexdigest()


def _generator_state(generator: Any) -> bytes:
    """The state of a generator of torch, numpy (either kind) or Python."""
    if hasattr(generator, "bit_generator"):  # numpy.random.Generator
        return repr(generator.bit_generator.state).encode()
    state = generator.getstate() if hasattr(generator, "getstate") else generator.get_state()
    if hasattr(state, "cpu"):
        return bytes(state.cpu().numpy().tobytes())
    if isinstance(state, tuple) and hasattr(state[1], "tobytes"):  # numpy.random.RandomState
        return bytes(state[1].tobytes()) + repr(state[2:]).encode()
    return repr(state).encode()
