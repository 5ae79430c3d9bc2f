"""The few operations on files whose order decides what survives a crash.

Everything durable in Lineage goes through here, so that tests can count, fail and reorder it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path


def open_plain(path: Path | str) -> int:
    """A descriptor for reading the file that is at `path` itself; never waits, never follows a link.

    A run folder comes from anyone: a link in it could lead to somebody's keys, a FIFO never ends.

    Raises:
        OSError: there is none, it may not be read, it is a symbolic link (ELOOP), or no plain file (EINVAL).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "this is no plain file", str(path))
    return fd


def read_plain(path: Path | str, limit: int) -> bytes:
    """All of a file opened by `open_plain`.

    Raises:
        OSError: as `open_plain`; EFBIG when it has more than `limit` bytes, of which none is held then.
    """
    fd = open_plain(path)
    with os.fdopen(fd, "rb") as stream:
        if os.fstat(fd).st_size > limit:
            raise OSError(errno.EFBIG, f"the file has more than {limit} bytes", str(path))
        return stream.read(limit)


def is_own_folder(path: Path | str) -> bool:
    """Whether there is a folder at `path` itself, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


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
