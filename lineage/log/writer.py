"""Append to metrics.jsonl from a training loop: one write per event, and no failing disk ever stops the loop.

What is promised (docs/format.md, "Writing"):

- When `append` returns and the log is healthy, the whole line is in the kernel: a SIGKILL of the process loses
  nothing. Power loss may cost what was not yet synced; a daemon thread calls fdatasync, the caller never does.
- A half line is never followed by another one. After a short write the rest is written, or the half is cut again.
- While the disk refuses, lines wait in a bounded backlog. When it is full the oldest goes and is counted; when the
  disk is back the backlog is written in order, then an alert that says how many were lost.

Healthy or not is one attribute, `_write`: `os.write` while all is well, a slower method otherwise. So the hot path
asks no questions.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import orjson

from lineage.errors import LineageError
from lineage.fs import fsync_dir
from lineage.log.scan import MAX_LINE_BYTES, whole_end
from lineage.log.wire import encode_event, text

__all__ = ["Disk", "LogRecovered", "LogWriter", "encode_event"]

_RETRY_FIRST_S: Final = 0.1
_RETRY_LAST_S: Final = 5.0
_BACKLOG_BYTES: Final = 64 * 1024 * 1024
_BATCH_BYTES: Final = 64 * 1024
_WARN_EVERY_S: Final = 60.0
_CLOSE_S: Final = 30.0
_HANDLED: Final = -1

_Write = Callable[[int, bytes], int]


@dataclass(frozen=True)
class Disk:
    """The calls the writer makes; a test puts failing ones in their place."""

    open: Callable[[Path, int, int], int] = os.open
    write: _Write = os.write
    pread: Callable[[int, int, int], bytes] = os.pread
    ftruncate: Callable[[int, int], None] = os.ftruncate
    fstat: Callable[[int], os.stat_result] = os.fstat
    fdatasync: Callable[[int], None] = field(default=getattr(os, "fdatasync", os.fsync))
    close: Callable[[int], None] = os.close


@dataclass(frozen=True, slots=True)
class LogRecovered:
    """The torn tail that opening cut: how many bytes, and where it began."""

    discarded_bytes: int
    offset: int


_open_writers: weakref.WeakSet[LogWriter] = weakref.WeakSet()


class LogWriter:
    """The one writer of a log; the caller holds the run's lock.

    Opening creates the file, or cuts a torn tail (bytes after the last newline, nothing else) and says so with a
    `log_recovered` event. Threads may share a writer. A process forked from the owner has a writer that does
    nothing: it neither writes nor syncs nor closes.

    Attributes:
        recovered: what opening cut; None when the log ended with a newline.
        num_lost: events that will never be in the file, because the disk refused for too long or they were longer
            than a line may be.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        run: str,
        session: str,
        sync_interval_s: float = 5.0,
        backlog: int = 10_000,
        warn: Callable[[str], object] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Open or create `path` for appending.

        Args:
            path: the log; its folder exists. A symbolic link or anything but a regular file is refused.
            run: id of the run, for the writer's own events.
            session: id of the session, likewise.
            sync_interval_s: a log with new bytes is synced at least this often.
            backlog: most events that wait for a failing disk; 64 MiB of them at most.
            warn: told in a sentence when the disk begins to refuse and when it is back; called on whichever thread
                noticed, never while the writer is locked.
            disk: the system calls; for tests.

        Raises:
            LineageError: the file cannot be opened or its tail cannot be read.
        """
        self.path = Path(path)
        self.recovered: LogRecovered | None = None
        self.num_lost = 0
        self._run = run
        self._session = session
        self._disk = disk or Disk()
        self._warn = warn
        self._interval_s = sync_interval_s

        # Re-entrant: a signal handler or a finalizer that logs may run in the middle of an append.
        self._lock = threading.RLock()
        self._backlog: deque[bytes] = deque()
        self._backlog_limit = max(1, backlog)
        self._backlog_bytes = 0
        self._flushing = False
        self._num_unreported = 0
        self._retry_at = 0.0
        self._retry_delay_s = _RETRY_FIRST_S
        self._notices: list[str] = []
        self._warned_at = -math.inf
        self._outage_told = False
        self._write: _Write = self._disk.write

        self._wake = threading.Condition()  # re-entrant too
        self._asked = 0
        self._served = 0
        self._failed = 0  # the newest ticket that could not be served
        self._closing = False
        self._synced_size = -1
        self._unsynced_from: int | None = None
        self._deleted_told = False
        self._closed_told = False

        self._fd = self._open()
        _open_writers.add(self)
        self._thread: threading.Thread | None = threading.Thread(target=self._keep_durable, name="lineage-log-sync")
        self._thread.daemon = True
        self._thread.start()
        self._notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def num_backlog(self) -> int:
        """Events that wait for the disk to come back."""
        return len(self._backlog)

    # --- appending -----------------------------------------------------------------------------------------------

    def append(self, fields: Mapping[str, Any]) -> None:
        """Write one event as one line; on return it is in the kernel, or waits in the backlog while the disk fails.

        Never raises for the disk. After `close` an event is counted as lost.

        Raises:
            TypeError: a metric is not a number (see `encode_event`); nothing was written.
        """
        line = encode_event(fields)
        size = len(line)
        if size > MAX_LINE_BYTES:
            line = self._instead_of_too_long(fields, size)
            size = len(line)
        with self._lock:
            try:
                written = self._write(self._fd, line)
                if written == size:
                    return
                if written != _HANDLED:
                    self._finish(line, written)
            except OSError as error:
                self._begin_outage(line, error)
            except BaseException:
                # Ctrl-C between the write and here: nobody knows whether a half line stands at the end.
                if self._write is self._disk.write:
                    self._write = self._write_after_look
                raise
        self._notify()

    def _finish(self, line: bytes, written: int) -> None:
        """Complete a short write, or cut it and keep the whole line for later."""
        rest = memoryview(line)[written:]
        try:
            while rest.nbytes:
                count = self._disk.write(self._fd, rest)  # type: ignore[arg-type]  # os.write takes any buffer
                if count == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - one way to fail below
                rest = rest[count:]
        except OSError as error:
            self._begin_outage(line, error)
            with contextlib.suppress(OSError):  # tried again before the next write
                self._cut_half_line()

    def _cut_half_line(self) -> None:
        """Leave the file ending with a newline, or empty. Safe: one process writes, and this one knows its lines."""
        size = self._disk.fstat(self._fd).st_size
        if size == 0 or self._read_at(1, size - 1) == b"\n":
            return
        self._disk.ftruncate(self._fd, whole_end(self._read_at, size))
        self._synced_size = -1

    def _read_at(self, num_bytes: int, offset: int) -> bytes:
        return self._disk.pread(self._fd, num_bytes, offset)

    def _write_after_look(self, fd: int, line: bytes) -> int:
        self._cut_half_line()
        self._write = self._disk.write
        return self._disk.write(fd, line)

    def _instead_of_too_long(self, fields: Mapping[str, Any], size: int) -> bytes:
        kind = text(fields.get("kind", "?"))[:100]
        with self._lock:
            self.num_lost += 1
            self._notices.append(
                f"an event of kind {kind} has {size} bytes, more than a line may have; it was not logged"
            )
        self._notify()
        return self._alert(
            "event_too_long", "an event was longer than a line may be", {"kind": kind, "size_bytes": size}
        )

    def _alert(self, code: str, message: str, details: dict[str, Any]) -> bytes:
        return encode_event(
            {
                "kind": "alert",
                "ts": time.time(),
                "run": self._run,
                "session": self._session,
                "code": code,
                "message": message,
                "severity": "error",
                "details": details,
            }
        )

    # --- while the disk refuses ----------------------------------------------------------------------------------

    def _begin_outage(self, line: bytes, error: OSError) -> None:
        self._keep(line)
        self._write = self._write_later
        self._retry_delay_s = _RETRY_FIRST_S
        self._retry_at = time.monotonic() + self._retry_delay_s
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:  # a disk that flaps is worth one line a minute, not one a step
            self._warned_at = now
            self._outage_told = True
            self._notices.append(
                f"{self.path} cannot be written ({error.strerror or error}); training goes on, "
                f"up to {self._backlog_limit} events wait for the disk"
            )

    def _keep(self, line: bytes) -> None:
        self._backlog.append(line)
        self._backlog_bytes += len(line)
        # Not while flushing: the batch being written must stay in front.
        while not self._flushing and (len(self._backlog) > self._backlog_limit or self._backlog_bytes > _BACKLOG_BYTES):
            self._backlog_bytes -= len(self._backlog.popleft())
            self.num_lost += 1
            self._num_unreported += 1

    def _write_later(self, fd: int, line: bytes) -> int:
        del fd
        self._keep(line)
        if not self._flushing and time.monotonic() >= self._retry_at:
            self._flush()
        return _HANDLED

    def _write_closed(self, fd: int, line: bytes) -> int:
        del fd, line
        self.num_lost += 1
        if not self._closed_told:
            self._closed_told = True
            self._notices.append(
                f"{self.path} is closed: what is logged after finish(), or after a signal ended the loop, is lost; "
                "lineage.init begins the next session"
            )
        return _HANDLED

    def _flush(self) -> bool:
        """Write the backlog in order, then the alert about what was lost. True when the log is healthy again."""
        if self._write != self._write_later:
            return not self._backlog
        self._flushing = True
        num_late = 0
        try:
            self._cut_half_line()
            while self._backlog:
                num_late += self._write_batch()
            if self._num_unreported:
                num_reported = self._num_unreported
                message = f"{num_reported} events were lost while the log could not be written"
                self._backlog.append(self._alert("events_lost", message, {"num_lost": num_reported}))
                self._backlog_bytes += len(self._backlog[-1])
                try:
                    self._write_batch()
                except OSError:
                    if self._backlog:
                        self._backlog_bytes -= len(self._backlog.pop())
                    raise
                self._num_unreported -= num_reported
        except OSError:
            with contextlib.suppress(OSError):
                self._cut_half_line()
            self._retry_delay_s = min(2 * self._retry_delay_s, _RETRY_LAST_S)
            self._retry_at = time.monotonic() + self._retry_delay_s
            return False
        finally:
            self._flushing = False
        self._write = self._disk.write
        if self._outage_told:
            self._outage_told = False
            self._notices.append(
                f"{self.path} can be written again: {num_late} events written late, {self.num_lost} lost in all"
            )
        return True

    def _write_batch(self) -> int:
        """Write lines from the front of the backlog with one call; only whole written lines leave it."""
        lines: list[bytes] = []
        size = 0
        for line in self._backlog:
            if lines and size + len(line) > _BATCH_BYTES:
                break
            lines.append(line)
            size += len(line)
        written = self._disk.write(self._fd, b"".join(lines))
        num_done = 0
        done = 0
        while num_done < len(lines) and done + len(lines[num_done]) <= written:
            done += len(lines[num_done])
            num_done += 1
            self._backlog_bytes -= len(self._backlog.popleft())
        if written != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return num_done

    def _notify(self) -> None:
        """Tell the caller outside of the lock what happened inside it."""
        while self._notices:
            message = self._notices.pop(0)
            if self._warn is not None:
                # A logger that raises must not stop the training that this writer was built never to stop.
                with contextlib.suppress(Exception):
                    self._warn(message)

    # --- durability ----------------------------------------------------------------------------------------------

    def request_sync(self) -> None:
        """Ask for an fdatasync soon and return at once; for the ends of phases."""
        with self._wake:
            self._asked += 1
            self._wake.notify_all()

    def sync(self, timeout_s: float | None = 30.0) -> bool:
        """Wait until everything appended before is on the disk.

        True when it is. False when the disk refused, when events still wait in the backlog, when `timeout_s` passed,
        or in a forked process; training may go on, but nothing may be committed that relies on these events.
        """
        with self._wake:
            if self._thread is None or self._closing:
                return False
            self._asked += 1
            ticket = self._asked
            self._wake.notify_all()
            if not self._wake.wait_for(lambda: self._served >= ticket or self._closing, timeout_s):
                return False
            return self._served >= ticket > self._failed

    def _keep_durable(self) -> None:
        """The daemon thread: sync when asked and every so often, and bring the backlog home."""
        while True:
            with self._wake:
                timeout = self._interval_s
                if self._backlog:
                    timeout = min(timeout, max(0.01, self._retry_at - time.monotonic()))
                self._wake.wait_for(lambda: self._asked > self._served or self._closing, timeout)
                ticket, asked = self._asked, self._asked > self._served
                closing = self._closing
            ok = self._bring_home(now=asked or closing) and self._sync()
            self._notify()
            with self._wake:
                self._served = ticket
                if not ok:
                    self._failed = ticket
                self._wake.notify_all()
                if closing:
                    return

    def _bring_home(self, *, now: bool) -> bool:
        with self._lock:
            if self._write != self._write_later:
                return True
            if not now and time.monotonic() < self._retry_at:
                return False
            return self._flush()

    def _sync(self) -> bool:
        """Fdatasync when there are new bytes; the lock is not held, so appends go on meanwhile."""
        try:
            status = self._disk.fstat(self._fd)
            size = status.st_size
            if size == self._synced_size:
                return True
            self._disk.fdatasync(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages that it could not write: a later success says nothing of them.
            if self._unsynced_from is None:
                self._unsynced_from = max(0, self._synced_size)
                self._notices.append(f"{self.path} could not be synced ({error.strerror or error}); training goes on")
            self._synced_size = -2
            return False
        self._synced_size = size
        if status.st_nlink == 0 and not self._deleted_told:
            self._deleted_told = True
            self._notices.append(f"{self.path} was deleted while it was written; what is logged now has no name")
        if self._unsynced_from is not None:
            first, self._unsynced_from = self._unsynced_from, None
            self._append_alert_of_failed_sync(first, size)
        return True

    def _append_alert_of_failed_sync(self, first: int, end: int) -> None:
        line = self._alert(
            "sync_failed",
            "a sync of the log had failed; after a power loss these bytes may be missing",
            {"offset": first, "end_offset": end},
        )
        self.append(orjson.loads(line))

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Bring the backlog home, sync, and close; what the disk still refuses is counted in `num_lost`.

        Waits at most `timeout_s` for a disk that hangs. Closing twice, or in a forked process, does nothing.
        """
        with self._wake:
            if self._closing or self._thread is None:
                return
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout_s)
        hangs = self._thread.is_alive()
        with self._lock:
            self._write = self._write_closed
            _open_writers.discard(self)
            num_left = len(self._backlog)
            self._backlog.clear()
            self._backlog_bytes = 0
            self.num_lost += num_left
            if num_left:
                self._notices.append(f"{self.path}: {num_left} events could not be written before the log was closed")
            if hangs:
                self._notices.append(f"{self.path} did not finish syncing within {timeout_s:g} s")
            else:
                fd, self._fd = self._fd, -1
                with contextlib.suppress(OSError):  # every byte was synced, or the failure was told
                    self._disk.close(fd)
        self._notify()

    # --- opening and forking -------------------------------------------------------------------------------------

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        where = str(self.path)
        try:
            is_new = not self.path.exists()
            fd = self._disk.open(self.path, flags | os.O_CREAT, 0o644)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise LineageError(
                    "the log is a symbolic link; it must be a file of the run's own folder", where
                ) from error
            raise LineageError(f"the log cannot be opened: {error.strerror}", where) from error
        try:
            size = self._size_of_regular(fd)
            if is_new:
                fsync_dir(self.path.parent)
            self._cut_torn_tail(fd, size)
        except OSError as error:
            self._disk.close(fd)
            raise LineageError(f"the end of the log cannot be read: {error.strerror}", where) from error
        except BaseException:
            self._disk.close(fd)
            raise
        return fd

    def _size_of_regular(self, fd: int) -> int:
        status = self._disk.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise LineageError("the log is not a regular file", str(self.path))
        return status.st_size

    def _cut_torn_tail(self, fd: int, size: int) -> None:
        end = whole_end(lambda num_bytes, offset: self._disk.pread(fd, num_bytes, offset), size)
        if end == size:
            return
        self._disk.ftruncate(fd, end)
        self.recovered = LogRecovered(size - end, end)
        self._fd = fd
        self.append(
            {
                "kind": "log_recovered",
                "ts": time.time(),
                "run": self._run,
                "session": self._session,
                "discarded_bytes": size - end,
                "offset": end,
            }
        )

    def _forget_in_child(self) -> None:
        """In a forked child: do nothing from now on, with locks that no thread of the parent can be holding."""
        self._write = _write_nothing
        self._lock = threading.RLock()
        self._wake = threading.Condition()  # re-entrant too
        self._thread = None
        self._closing = True
        self._backlog = deque()
        self._notices = []
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def _write_nothing(fd: int, line: bytes) -> int:
    del fd
    return len(line)


def _forget_all_in_child() -> None:
    for writer in list(_open_writers):
        writer._forget_in_child()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_forget_all_in_child)
