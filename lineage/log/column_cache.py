"""The columns of a log in one file under `.cache/`, so that the next reader need not parse them again.

The file is derived: deleting it costs time and nothing else. It is believed only when all of this holds: its version
and byte order are ours, it was made from the very file that is there now (device, inode, and the bytes at the head and
just before the offset it had reached), that file is not shorter than the offset, or as long and modified since, and
the checksum over the whole cache is right. Anything else, whatever it is, means "no cache".

The file is `LNGCOLS1`, the length of a JSON header (8 bytes, little-endian), CRC-32 of header and body (4 bytes), the
header, then arrays and lines, each at a multiple of 64 bytes. It is replaced atomically and not synced: after a power
loss the checksum tells.

It is read, not mapped: whoever cuts a mapped file short kills its readers (SIGBUS), and what is overwritten in one
after the checksum was right would be in the curves (decision 050).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from lineage import fs
from lineage.layout import RunDir
from lineage.log.packed import ALIGN, pack, unpack

if TYPE_CHECKING:
    from lineage.log.columns import Columns, Part

NAME: Final = "columns-1.bin"
_MAGIC: Final = b"LNGCOLS1"
_PREFIX: Final = struct.Struct("<8sQI")
_PROBE_BYTES: Final = 4096
_BLOCK_BYTES: Final = 16 << 20
_MAX_RATIO: Final = 8
"""A value takes at least six bytes of the log and at most sixteen here, a row sixty and forty."""


@dataclass(frozen=True)
class Identity:
    """Which file a log is, as far as can be told without reading all of it."""

    fd: int
    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, fd: int, status: os.stat_result) -> Identity:
        return cls(fd, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def key(self, offset: int) -> dict[str, Any]:
        """What must be the same for columns read up to `offset` to be those of this file."""
        head = os.pread(self.fd, min(_PROBE_BYTES, offset), 0)
        tail = os.pread(self.fd, min(_PROBE_BYTES, offset), max(0, offset - _PROBE_BYTES))
        return {
            "byteorder": sys.byteorder,
            "device": self.device,
            "inode": self.inode,
            "head": hashlib.blake2b(head, digest_size=16).hexdigest(),
            "tail": hashlib.blake2b(tail, digest_size=16).hexdigest(),
        }


def save(columns: Columns, identity: Identity) -> bool:
    """Leave the columns for the next reader; False when the folder takes no file, which is no error."""
    packed, parts = pack(columns.part())
    header = {
        "key": identity.key(columns.offset),
        "size": identity.size,
        "mtime_ns": identity.mtime_ns,
        **packed,
    }
    text = orjson.dumps(header)
    text += b" " * (-(len(text) + _PREFIX.size) % ALIGN)
    crc = zlib.crc32(text)
    for part in parts:
        crc = zlib.crc32(part, crc)
    folder = columns.dir.cache_dir
    temporary = folder / f".{NAME}.{secrets.token_hex(4)}.tmp"
    try:
        if folder.is_symlink():
            return False
        folder.mkdir(exist_ok=True)
        with temporary.open("xb") as out:
            out.write(_PREFIX.pack(_MAGIC, len(text), crc))
            out.write(text)
            for part in parts:
                out.write(part)
        temporary.replace(folder / NAME)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True


def load(run_dir: RunDir, identity: Identity) -> Part | None:
    """What an earlier reader left, if it is of this log and whole; else None."""
    if run_dir.cache_dir.is_symlink():
        return None
    try:
        return _load(run_dir.cache_dir / NAME, identity)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        MemoryError,
        struct.error,
    ):
        return None  # a cache of any other shape is no cache


def _load(path: Path, identity: Identity) -> Part | None:
    fd = fs.open_plain(path)
    try:
        size = os.fstat(fd).st_size
        if size > _MAX_RATIO * identity.size + (1 << 20):
            return None  # not of this log, whatever is in it; looking would read all of it
        magic, length, crc = _PREFIX.unpack(os.pread(fd, _PREFIX.size, 0))
        if magic != _MAGIC or length > size - _PREFIX.size:
            return None
        described, found = _read(fd, _PREFIX.size, length, 0)
        header = orjson.loads(described)
        offset = header["offset"]
        grown = identity.size > header["size"]
        fits = offset <= identity.size and (grown or identity.mtime_ns == header["mtime_ns"])
        if not fits or header["key"] != identity.key(offset):
            return None
        body, found = _read(fd, _PREFIX.size + length, size - _PREFIX.size - length, found)
        if found != crc:
            return None
    finally:
        os.close(fd)

    return unpack(header, body)


def _read(fd: int, start: int, size: int, crc: int) -> tuple[memoryview, int]:
    """So many bytes of the file, not to be written to, and `crc` carried on over them.

    Raises:
        ValueError: the file ends before.
    """
    data = np.empty(size, np.uint8)
    left = data.data
    while left.nbytes:
        read = os.preadv(fd, [left[:_BLOCK_BYTES]], start)  # a block is checked while the processor still holds it
        if not read:
            raise ValueError("the cache was cut while it was read")
        crc = zlib.crc32(left[:read], crc)
        start += read
        left = left[read:]
    data.flags.writeable = False
    return data.data, crc
