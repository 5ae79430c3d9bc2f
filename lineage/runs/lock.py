"""run.lock: one process writes a run, and the kernel forgets it the moment it dies.

The lock is `flock`, not a pid in a file: after a SIGKILL it is free at once, with nothing to clean up and no timeout to
wait for. What the file says (pid, host, session, when) is for people; only the lock itself is believed.

A flock belongs to the open file, and `fork` shares open files: a DataLoader worker that outlives its SIGKILLed trainer
would keep the run locked. So a forked child closes its copy before it does anything else. Closing a copy does not
unlock; the child must never call LOCK_UN, which would.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from lineage.errors import LockedError
from lineage.layout import RunDir

RETRY_S: Final = 1.0
"""How long `acquire` tries: a reader's probe holds a shared lock for an instant and must not look like a writer."""

_POLL_S: Final = 0.02
_MAX_BYTES: Final = 4096

_guard = threading.RLock()
_inherited: set[int] = set()
"""Descriptors a forked child must close. Changed only under `_guard`, which `fork` takes as well, so that no child is
born between the opening of a file and its entry here."""


def _close_in_child() -> None:
    for fd in _inherited:
        with contextlib.suppress(OSError):
            os.close(fd)
    _inherited.clear()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_in_child)


def _open(path: Path, flags: int) -> int:
    with _guard:
        # O_NONBLOCK: a run folder comes from anyone, and a FIFO in the place of the lock must not hang a reader.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
        _inherited.add(fd)
        return fd


def _close(fd: int) -> None:
    with _guard:
        if fd in _inherited:
            _inherited.discard(fd)
            os.close(fd)


@dataclass(frozen=True)
class LockOwner:
    """Who holds a run's lock, as far as its file tells; every field is None where it does not.

    Attributes:
        session: None also while the owner is still opening the run.
        started_at: Unix seconds, UTC, when the lock was taken.
    """

    pid: int | None = None
    host: str | None = None
    session: str | None = None
    started_at: float | None = None

    def __str__(self) -> str:
        who = "another process" if self.pid is None else f"pid {self.pid}"
        if self.host:
            who += f" on {self.host}"
        if self.session:
            who += f", session {self.session}"
        return who


def _read_owner(fd: int) -> LockOwner:
    """What the lock file says; a file caught between two writes is read again."""
    for _ in range(5):
        try:
            fields = orjson.loads(os.pread(fd, _MAX_BYTES, 0))
        except (orjson.JSONDecodeError, OSError):
            time.sleep(0.001)
            continue
        if not isinstance(fields, dict):
            break
        pid, host, session, started_at = (fields.get(name) for name in ("pid", "host", "session", "started_at"))
        return LockOwner(
            pid=pid if type(pid) is int else None,
            host=host if isinstance(host, str) else None,
            session=session if isinstance(session, str) else None,
            started_at=float(started_at) if isinstance(started_at, int | float) else None,
        )
    return LockOwner()


def _is_gone(owner: LockOwner) -> bool:
    """Whether the owner named in the file is surely dead, though something still holds its lock."""
    if owner.pid is None or owner.host != socket.gethostname():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def locked_error(run_dir: Path, owner: LockOwner) -> LockedError:
    """The refusal a second writer gets: it names the owner."""
    what = f"the run is being written by {owner}"
    hint = "wait for it to end, or stop that process; reading the run is always possible"
    if owner.pid == os.getpid():
        what = f"this process (pid {owner.pid}) has the run open already" + (
            f", session {owner.session}" if owner.session else ""
        )
        hint = "finish the first one before opening the run again"
    elif _is_gone(owner):
        hint = "that process is gone, but a child it left behind still holds the run's lock; end that child"
    return LockedError(what, str(run_dir), hint, pid=owner.pid, host=owner.host, session=owner.session)


class RunLock:
    """The right to write one run, held until `close` or the death of this process.

    Not inherited: in a forked child `held` is False. Safe to use from several threads.
    """

    def __init__(self, path: Path, fd: int, owner: LockOwner) -> None:
        self.path = path
        self.owner = owner
        self._fd = fd
        self._pid = os.getpid()

    @classmethod
    def acquire(cls, run_dir: RunDir | Path, session: str | None = None, *, retry_s: float = RETRY_S) -> RunLock:
        """Take the lock of a run whose folder exists; a lock whose owner died is simply free.

        Raises:
            LockedError: another live process (or another opening in this one) holds it, with pid, host and session.
            OSError: the folder is missing, or its disk refuses files or locks.
        """
        run_dir = run_dir if isinstance(run_dir, RunDir) else RunDir(Path(run_dir))
        deadline = time.monotonic() + retry_s
        while True:
            fd = _open(run_dir.lock, os.O_RDWR | os.O_CREAT)
            owner: LockOwner | None = None
            try:
                if not _try_lock(fd, fcntl.LOCK_EX):
                    owner = _read_owner(fd)
                # Somebody may have removed the file between our open and our lock: then we hold a lock that nobody
                # else will ever look at.
                elif _is_still_at(fd, run_dir.lock):
                    lock = cls(run_dir.lock, fd, LockOwner())
                    lock.name_session(session)
                    return lock
            except BaseException:
                _close(fd)
                raise
            _close(fd)
            if owner is not None and time.monotonic() >= deadline:
                raise locked_error(run_dir.path, owner)
            time.sleep(_POLL_S)

    @property
    def held(self) -> bool:
        return self._fd >= 0 and os.getpid() == self._pid

    def name_session(self, session: str | None) -> None:
        """Write who holds the lock; a disk that refuses is no reason to lose it, so that is passed over."""
        self.owner = LockOwner(os.getpid(), socket.gethostname(), session, time.time())
        text = orjson.dumps(
            {"pid": self.owner.pid, "host": self.owner.host, "session": session, "started_at": self.owner.started_at}
        )
        with contextlib.suppress(OSError):
            # Overwrite, then cut: a reader in between finds old or new text, or a mixture it reads again.
            os.pwrite(self._fd, text + b"\n", 0)
            os.ftruncate(self._fd, len(text) + 1)

    def close(self) -> None:
        """Give the lock up and empty its file; does nothing the second time, or in a forked child."""
        if not self.held:
            return
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        _close(fd)


def _try_lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True


def _is_still_at(fd: int, path: Path) -> bool:
    ours = os.fstat(fd)
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def probe(run_dir: RunDir | Path) -> LockOwner | None:
    """Who writes the run right now, or None when nobody does.

    Takes a shared lock for an instant, which a writer's `acquire` outwaits. On a network file system that keeps flocks
    to one host, a writer on another host is not seen.

    Raises:
        OSError: the lock file exists and cannot be opened.
    """
    path = run_dir.lock if isinstance(run_dir, RunDir) else RunDir(Path(run_dir)).lock
    try:
        fd = _open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return None if _try_lock(fd, fcntl.LOCK_SH) else _read_owner(fd)
    finally:
        _close(fd)
