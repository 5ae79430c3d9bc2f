"""Files in the safetensors format, written and read as a stream, hashed in the same pass.

Layout (docs/format.md, "Tensor files"): 8 bytes little-endian length of the header, the header (JSON: name to dtype,
shape and byte range, plus `__metadata__`), then the tensors' bytes without a hole. This module knows bytes and names,
not torch: `verify` and `whence` run without it. A header is bounded and checked before anything is allocated, so a
file that claims ten gigabytes costs nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import orjson

from lineage import fs
from lineage.checkpoint.errors import ArtifactError

MAX_HEADER_BYTES: Final = 100_000_000
"""The stock library's own limit."""
CHUNK_BYTES: Final = 1 << 20
"""Hashed and written (or read) at a time: small enough to be hashed while it is still in the cache."""
_SMALL_BYTES: Final = 1 << 16
"""Below this, tensors are gathered into one write."""

ITEM_BITS: Final[dict[str, int]] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element, by the format's name of the type."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor in a file: `dtype` as the format writes it, `start` and `end` relative to the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    end: int = 0

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BITS[self.dtype] // 8


@dataclass(frozen=True)
class Header:
    """What a file says about itself; `data_start` is the absolute offset of the first tensor's bytes."""

    tensors: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    data_start: int


@dataclass(frozen=True)
class Written:
    """A file that is durable (its bytes, not yet its name)."""

    num_bytes: int
    sha256: str
    write_s: float
    fsync_s: float


def layout(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Give every tensor its byte range: widest elements first, then by name, so that each is aligned."""
    placed: list[TensorSpec] = []
    at = 0
    for spec in sorted(specs, key=lambda s: (-ITEM_BITS[s.dtype], s.name)):
        placed.append(TensorSpec(spec.name, spec.dtype, spec.shape, at, at + spec.num_bytes))
        at += spec.num_bytes
    return placed


def encode_header(placed: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON, padded with spaces to a multiple of 8 as the stock writer does."""
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for spec in placed:
        table[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [spec.start, spec.end],
        }
    text = orjson.dumps(table)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes is above the format's limit of {MAX_HEADER_BYTES}")
    return struct.pack("<Q", len(text)) + text


class HashingFile:
    """A file made exclusively, hashed while it is written; `finish` makes its bytes durable.

    Usable as a context manager: leaving it without `finish` closes the file and keeps what is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._hash = hashlib.sha256()
        self._num_bytes = 0
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, view.nbytes, CHUNK_BYTES):
            chunk = view[at : at + CHUNK_BYTES]
            self._hash.update(chunk)
            fs.write_all(self._fd, chunk)
        self._num_bytes += view.nbytes

    def finish(self) -> Written:
        """Fsync and close; the name is durable only after the folder was synced too."""
        wrote = time.perf_counter()
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        return Written(self._num_bytes, self._hash.hexdigest(), wrote - self._started, time.perf_counter() - wrote)


def write_bytes(path: Path, data: bytes) -> Written:
    """Create a small file exclusively; its bytes are durable on return."""
    with HashingFile(path) as out:
        out.write(data)
        return out.finish()


def write_tensors(
    path: Path,
    specs: Sequence[TensorSpec],
    data_of: Callable[[TensorSpec], memoryview],
    metadata: Mapping[str, str],
) -> Written:
    """Write one file; `data_of` gives a tensor's bytes when their turn comes, so that no copy of all is needed."""
    placed = layout(specs)
    with HashingFile(path) as out:
        out.write(encode_header(placed, metadata))
        pending = bytearray()
        for spec in placed:
            view = data_of(spec)
            if view.nbytes != spec.num_bytes:
                raise ValueError(f"{spec.name} gave {view.nbytes} bytes, {spec.num_bytes} were planned")
            if view.nbytes < _SMALL_BYTES:
                pending += view
            if view.nbytes >= _SMALL_BYTES or len(pending) >= CHUNK_BYTES:
                out.write(pending)
                pending = bytearray()
            if view.nbytes >= _SMALL_BYTES:
                out.write(view)
        out.write(pending)
        return out.finish()


# ---- reading ---------------------------------------------------------------------------------------------------------


def open_regular(path: Path) -> tuple[int, int]:
    """Descriptor and size of a plain file; a link, device or folder is refused, since a run folder may be hostile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ArtifactError("the file is missing", str(path), kind="missing") from error
    except OSError as error:
        raise ArtifactError(
            f"the file cannot be opened as a plain file: {error.strerror}", str(path), kind="link"
        ) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise ArtifactError("this is not a plain file", str(path), kind="link")
    return fd, found.st_size


def parse_header(text: bytes, data_bytes: int, where: str) -> tuple[tuple[TensorSpec, ...], dict[str, str]]:
    """Check a header against the number of bytes that follow it.

    Raises:
        ArtifactError: anything but tensors of known types that fill `data_bytes` without hole or overlap.
    """

    def wrong(what: str) -> ArtifactError:
        return ArtifactError(what, where, "this is not a whole safetensors file", kind="header")

    try:
        table = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise wrong(f"the tensor header is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise wrong("the tensor header is not a JSON object")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise wrong("__metadata__ must map names to strings")
    specs: list[TensorSpec] = []
    for name, entry in table.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
                dtype in ITEM_BITS and all(type(n) is int and n >= 0 for n in shape) and 0 <= start <= end <= data_bytes
            ):
                spec = TensorSpec(name, dtype, tuple(shape), start, end)
            case _:
                raise wrong(f"the entry of tensor {name[:200]!r} is malformed or of an unknown type")
        if spec.num_bytes != end - start:
            raise wrong(f"tensor {name[:200]!r} has a shape of {spec.num_bytes} bytes and a range of {end - start}")
        specs.append(spec)
    specs.sort(key=lambda s: (s.start, s.end))
    at = 0
    for spec in specs:
        if spec.start != at:
            raise wrong(f"there is a hole or an overlap before tensor {spec.name[:200]!r}")
        at = spec.end
    if at != data_bytes:
        raise wrong(f"the tensors end at byte {at} of {data_bytes}")
    return tuple(specs), metadata


def _read_exactly(fd: int, view: memoryview, where: str) -> None:
    at = 0
    while at < view.nbytes:
        got = os.readv(fd, [view[at:]])
        if not got:
            raise ArtifactError(f"the file ends {view.nbytes - at} bytes early", where, kind="short")
        at += got


def read_header(path: Path) -> Header:
    """The header of a file, without its tensors."""
    fd, size = open_regular(path)
    try:
        return _read_header(fd, size, str(path))[0]
    finally:
        os.close(fd)


def _read_header(fd: int, size: int, where: str) -> tuple[Header, bytes]:
    if size < 8:
        raise ArtifactError(f"the file has {size} bytes, too few for a tensor file", where, kind="short")
    prefix = bytearray(8)
    _read_exactly(fd, memoryview(prefix), where)
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER_BYTES or 8 + length > size:
        raise ArtifactError(
            f"the header claims {length} bytes in a file of {size}", where, "the file is damaged or forged", "header"
        )
    text = bytearray(length)
    _read_exactly(fd, memoryview(text), where)
    specs, metadata = parse_header(bytes(text), size - 8 - length, where)
    return Header(specs, metadata, 8 + length), bytes(prefix + text)


def read_tensors(
    path: Path,
    *,
    num_bytes: int | None,
    sha256: str | None,
    check: Callable[[Header], None],
    destination: Callable[[TensorSpec], memoryview],
) -> Header:
    """Read a whole file into the caller's memory, hashing it in the same pass.

    Args:
        path: the file.
        num_bytes: size the manifest states; None to take what is there.
        sha256: hash the manifest states; None to skip it.
        check: sees the header before any memory is asked for, and raises to refuse it.
        destination: writable bytes for one tensor, exactly as long as it.

    Raises:
        ArtifactError: missing, short, long, malformed, or another hash; what was read must then not be used.
    """
    fd, size = open_regular(path)
    try:
        if num_bytes is not None and size != num_bytes:
            kind = "short" if size < num_bytes else "long"
            raise ArtifactError(f"the file has {size} bytes, its manifest says {num_bytes}", str(path), kind=kind)
        header, head = _read_header(fd, size, str(path))
        check(header)
        digest = hashlib.sha256(head)
        for view in _destinations(header.tensors, destination):
            for at in range(0, view.nbytes, CHUNK_BYTES):
                chunk = view[at : at + CHUNK_BYTES]
                _read_exactly(fd, chunk, str(path))
                digest.update(chunk)
        if os.read(fd, 1):
            raise ArtifactError("the file grew while it was read", str(path), kind="long")
    finally:
        os.close(fd)
    check_hash(path, digest.hexdigest(), sha256)
    return header


def _destinations(specs: Iterable[TensorSpec], destination: Callable[[TensorSpec], memoryview]) -> Iterator[memoryview]:
    for spec in specs:
        if spec.num_bytes:
            view = destination(spec)
            if view.nbytes != spec.num_bytes or view.readonly:
                raise ValueError(f"the memory for {spec.name} has {view.nbytes} bytes, {spec.num_bytes} are needed")
            yield view


def check_hash(path: Path, found: str, expected: str | None) -> None:
    """Raise when a file's hash is not the manifest's."""
    if expected is not None and found != expected:
        raise ArtifactError(
            f"SHA-256 is {found}, its manifest says {expected}",
            str(path),
            "the file was changed after it was committed",
            "flipped",
        )


def read_bytes(path: Path, *, limit: int, num_bytes: int | None = None, sha256: str | None = None) -> bytes:
    """A whole small file, bounded by `limit`, checked against its manifest where one says what it must be."""
    fd, size = open_regular(path)
    try:
        if num_bytes is not None and size != num_bytes:
            kind = "short" if size < num_bytes else "long"
            raise ArtifactError(f"the file has {size} bytes, its manifest says {num_bytes}", str(path), kind=kind)
        if size > limit:
            raise ArtifactError(f"the file has {size} bytes, more than the {limit} expected", str(path), kind="long")
        data = bytearray(size)
        _read_exactly(fd, memoryview(data), str(path))
    finally:
        os.close(fd)
    if sha256 is not None:
        check_hash(path, hashlib.sha256(data).hexdigest(), sha256)
    return bytes(data)


def hash_file(path: Path, progress: Callable[[int], None] | None = None) -> tuple[int, str]:
    """`(bytes, SHA-256)` of a plain file; `progress` is told how many bytes each chunk had."""
    fd, _ = open_regular(path)
    digest, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while got := os.readv(fd, [buffer]):
            digest.update(buffer[:got])
            total += got
            if progress is not None:
                progress(got)
    finally:
        os.close(fd)
    return total, digest.hexdigest()


# ---- tensor digests --------------------------------------------------------------------------------------------------

_FOLD_BYTES: Final = 512
_WHOLE_BYTES: Final = 1 << 16


def tensor_digest(dtype: str, shape: Sequence[int], data: memoryview) -> str:
    """Who a tensor is, whatever file it lies in: 32 hex digits over its type, shape and bytes.

    Up to 64 KiB the bytes are hashed as they are. Above, they are first folded: padded with zeros to a multiple of
    512 bytes, read as rows of 64 little-endian unsigned 64-bit integers, each row summed modulo 2**64. Every byte
    counts, and a gigabyte costs 0.05 s instead of the 0.6 s of a second SHA-256. It finds a tensor; it does not
    protect one: the artifact's own SHA-256 does that (docs/format.md, "Tensor digests").
    """
    digest = hashlib.sha256(f"{dtype}:{','.join(map(str, shape))}:".encode("ascii"))
    if data.nbytes <= _WHOLE_BYTES:
        digest.update(data)
        return digest.hexdigest()[:32]
    import numpy as np

    whole = data.nbytes // _FOLD_BYTES * _FOLD_BYTES
    raw = np.frombuffer(data, dtype=np.uint8)
    step = 1 << 24
    for at in range(0, whole, step):
        rows = raw[at : min(at + step, whole)]
        if rows.ctypes.data % 8:
            rows = rows.copy()
        digest.update(rows.view("<u8").reshape(-1, _FOLD_BYTES // 8).sum(axis=1, dtype=np.uint64).tobytes())
    if whole < data.nbytes:
        last = np.zeros(_FOLD_BYTES, np.uint8)
        last[: data.nbytes - whole] = raw[whole:]
        digest.update(last.view("<u8").sum(dtype=np.uint64).tobytes())
    return digest.hexdigest()[:32]
