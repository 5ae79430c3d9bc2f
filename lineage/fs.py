"""The few operations on files whose order decides what survives a crash.

Everything durable in Lineage goes through here, so that tests can count, fail and reorder it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def fsync_dir(path: Path) -> None:
    """Make names created, replaced or removed in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte, going on after a short write.

    Raises:
        OSError: the disk refused; an unknown part of `data` may have been written.
    """
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(fd, view) :]


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`: a reader sees the old bytes or the new ones, and the new ones are durable on return.

    Raises:
        OSError: nothing was replaced; the temporary file is gone.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_dir(path.parent)
