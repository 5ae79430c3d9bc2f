"""Take what is no event out of a log: the damaged file is kept aside first, every good line stays byte for byte.

The caller holds the run's lock. Nothing is guessed or put together again: a line is good as it stands, or it goes.
What goes can still be looked at in the copy.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from lineage.errors import FormatError, LineageError
from lineage.fs import fsync_dir
from lineage.log.reader import check_line_format, open_log, read_lines
from lineage.log.scan import Damage, Line, fault_of, merge_damage, whole_end

MAX_LISTED: Final = 1_000
"""Damaged places a plan lists; the counts are of all of them."""

_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class RepairPlan:
    """What is wrong with a log and what `repair` would do about it.

    Attributes:
        path: the log.
        size_bytes: of the whole file.
        num_good: lines that stay as they are.
        num_damaged: lines that go; `damaged_bytes` with their newlines.
        damage: the first `MAX_LISTED` places, neighbours joined.
        torn_offset: where the torn tail begins; the file's size when there is none.
        torn_bytes: length of the torn tail, which goes too.
    """

    path: Path
    size_bytes: int
    num_good: int
    num_damaged: int
    damaged_bytes: int
    damage: tuple[Damage, ...]
    torn_offset: int
    torn_bytes: int

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to do."""
        return self.num_damaged == 0 and self.torn_bytes == 0


@dataclass(frozen=True)
class RepairResult:
    """What `repair` did.

    Attributes:
        plan: what it found.
        copy_path: the untouched original; None when the log was clean and nothing was written.
        size_bytes: of the log now.
    """

    plan: RepairPlan
    copy_path: Path | None
    size_bytes: int


def plan_repair(path: Path | str) -> RepairPlan:
    """Find what is wrong; changes nothing.

    Raises:
        NewerFormatError: a session was written by a newer major version, so nobody here can tell good from bad.
        NotFoundError, LineageError: see `lineage.log.reader.open_log`.
    """
    path = Path(path)
    fd = open_log(path)
    try:
        size = os.fstat(fd).st_size
        torn_offset = whole_end(lambda num_bytes, offset: os.pread(fd, num_bytes, offset), size)
    finally:
        os.close(fd)
    num_good = num_damaged = damaged_bytes = 0
    listed: list[Damage] = []

    def bad_lines() -> Iterator[Damage]:
        nonlocal num_good
        for item in _judge(path, torn_offset):
            if isinstance(item, Line):
                num_good += 1
            else:
                yield item

    for damage in merge_damage(bad_lines()):
        num_damaged += damage.num_lines
        damaged_bytes += damage.size_bytes
        if len(listed) < MAX_LISTED:
            listed.append(damage)
    return RepairPlan(path, size, num_good, num_damaged, damaged_bytes, tuple(listed), torn_offset, size - torn_offset)


def repair(path: Path | str) -> RepairResult:
    """Keep the good lines and nothing else; the original is beside it under another name. Durable on return.

    A clean log is left alone. A crash on the way leaves the old log or the new one, and at worst a copy too many.

    Raises:
        LineageError: the log changed meanwhile, or could not be written; it is as it was.
        NewerFormatError, NotFoundError: see `plan_repair`.
    """
    path = Path(path)
    plan = plan_repair(path)
    if plan.is_clean:
        return RepairResult(plan, None, plan.size_bytes)
    try:
        copy_path = _copy_aside(path)
        size = _replace_by_good_lines(plan)
    except OSError as error:
        raise LineageError(f"the log could not be repaired: {error.strerror or error}", str(path)) from error
    return RepairResult(plan, copy_path, size)


def _judge(path: Path, stop: int) -> Iterator[Line | Damage]:
    """Each whole line before `stop`, or why it is no event by the same rules as `read_events`."""
    from lineage_schemas.events import parse_event

    for item in read_lines(path, 0, stop, check=False):
        if isinstance(item, Damage):
            yield item
            continue
        reason = fault_of(item.data)
        if reason is None:
            check_line_format(item.data, where=f"{path}, byte {item.offset}")
            try:
                parse_event(item.data)
            except FormatError as error:
                reason = error.what
        yield item if reason is None else Damage(item.offset, len(item.data) + 1, reason)


def _copy_aside(path: Path) -> Path:
    """Copy the whole file to `<name>.damaged-<UTC>` beside it, durably; an older copy is never replaced."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    source = open_log(path)
    try:
        mode = stat.S_IMODE(os.fstat(source).st_mode)
        copy_path, copy = _create_beside(path, f"{path.name}.damaged-{stamp}", mode)
        try:
            with os.fdopen(copy, "wb") as out:
                position = 0
                while chunk := os.pread(source, _CHUNK_BYTES, position):
                    out.write(chunk)
                    position += len(chunk)
                _make_durable(out)
        except BaseException:
            with contextlib.suppress(OSError):
                copy_path.unlink()
            raise
    finally:
        os.close(source)
    fsync_dir(path.parent)
    return copy_path


def _create_beside(path: Path, name: str, mode: int) -> tuple[Path, int]:
    number = 1
    while True:
        found = path.with_name(name if number == 1 else f"{name}-{number}")
        try:
            return found, os.open(found, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            number += 1


def _replace_by_good_lines(plan: RepairPlan) -> int:
    path = plan.path
    mode = stat.S_IMODE(path.lstat().st_mode)
    temporary, fd = _create_beside(path, f".{path.name}.repair-{os.getpid()}.tmp", mode)
    try:
        num_good = 0
        with os.fdopen(fd, "wb") as out:
            for item in _judge(path, plan.torn_offset):
                if isinstance(item, Line):
                    out.write(item.data + b"\n")
                    num_good += 1
            _make_durable(out)
        _refuse_if_changed(plan, num_good)
        size = temporary.stat().st_size
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_dir(path.parent)
    return size


def _refuse_if_changed(plan: RepairPlan, num_good: int) -> None:
    if num_good != plan.num_good or plan.path.lstat().st_size != plan.size_bytes:
        raise LineageError(
            "the log changed while it was repaired; it was left as it was",
            str(plan.path),
            "end the process that writes it, then repair again",
        )


def _make_durable(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())
