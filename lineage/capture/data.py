"""What the data of a split is: a digest of its files' names, sizes and content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lineage.errors import NotFoundError, UsageError
from lineage_schemas.run import DataIdentity

BLOCK_BYTES: Final = 64 << 10
NUM_BLOCKS: Final = 8
_SHOWN: Final = 5


@dataclass(frozen=True)
class _File:
    path: Path
    size_bytes: int


def fingerprint_files(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    content: Literal["sampled", "whole"] = "sampled",
) -> DataIdentity:
    """The identity of a set of files, the same wherever their common folder lies and in whatever order they are given.

    A folder stands for all files below it. Names count relative to the deepest folder common to all, with `/`;
    of a single file, its name alone. The order of files does not count (the order of a listing is the file
    system's whim): an order that training depends on belongs in the recipe.

    The fingerprint is `<scheme>:<SHA-256>`, over, for each file sorted by name (bytes of UTF-8): name, NUL, size in
    decimal, NUL, SHA-256 of its content in hex, newline. Scheme `whole-1` hashes every byte. Scheme `sampled-1`
    hashes 8 blocks of 64 KiB, the k-th beginning at floor(k * (size - 65536) / 7), and all of a file of up to 512 KiB:
    it sees every change of a name or size, and every change at a file's ends, but not one between the blocks.

    Raises:
        NotFoundError: files that are not there; all are counted, the first five named.
        UsageError: no file at all, or something that is no plain file.
        OSError: a file cannot be read.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if content not in {"sampled", "whole"}:
        raise UsageError(f"content={content!r} is neither 'sampled' nor 'whole'")
    files = _find(given)
    if not files:
        raise UsageError("a fingerprint of no files identifies nothing", ", ".join(map(str, given[:_SHOWN])))
    root = os.path.commonpath([file.path.parent for file in files])
    # Threads, since both reading and hashing release the interpreter; few, since disks like few readers.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(_hash_whole if content == "whole" else _hash_sampled, files))
    lines = sorted(
        os.fsencode(file.path.relative_to(root).as_posix()) + f"\0{file.size_bytes}\0{digest}\n".encode()
        for file, digest in zip(files, digests, strict=True)
    )
    scheme = "whole-1" if content == "whole" else "sampled-1"
    return DataIdentity(
        fingerprint=f"{scheme}:{hashlib.sha256(b''.join(lines)).hexdigest()}",
        method="content" if content == "whole" else "sampled",
        num_files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
    )


def _find(given: list[str | os.PathLike[str]]) -> list[_File]:
    """Every file once, however often it is named."""
    found: dict[Path, _File] = {}
    missing: list[str] = []
    for one in given:
        path = Path(os.path.abspath(one))  # noqa: PTH100  # as named: resolving links would follow a moved data set home
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                for inner in sorted(path.rglob("*")):
                    if inner.is_file():
                        found[inner] = _File(inner, inner.stat().st_size)
                continue
        except (FileNotFoundError, NotADirectoryError):
            missing.append(str(one))
            continue
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("only files and folders have a fingerprint", str(one))
        found[path] = _File(path, status.st_size)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise NotFoundError(
            f"{len(missing)} of {len(given)} data files are not there: {', '.join(missing[:_SHOWN])}{more}",
            hint="check the paths of the data; a fingerprint of the others would hide the loss",
        )
    return list(found.values())


def _hash_whole(file: _File) -> str:
    with file.path.open("rb", buffering=0) as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return digest.hexdigest()


def _hash_sampled(file: _File) -> str:
    if file.size_bytes <= NUM_BLOCKS * BLOCK_BYTES:
        return _hash_whole(file)
    digest = hashlib.sha256()
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for block in range(NUM_BLOCKS):
            digest.update(os.pread(fd, BLOCK_BYTES, block * (file.size_bytes - BLOCK_BYTES) // (NUM_BLOCKS - 1)))
    finally:
        os.close(fd)
    return digest.hexdigest()
