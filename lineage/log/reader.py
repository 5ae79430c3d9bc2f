"""Read and follow metrics.jsonl: every good line is delivered, every bad one is reported with its place.

Memory is bounded by `MAX_LINE_BYTES` plus one chunk, whatever the file holds. A torn tail is no damage and is not
delivered: the next append, or the next opening, decides what becomes of it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from lineage.errors import DamagedError, FormatError, LineageError, NewerFormatError, NotFoundError
from lineage.log.scan import MAX_LINE_BYTES, Damage, Line, fault_of, merge_damage

if TYPE_CHECKING:
    from lineage_schemas.events import Event

_CHUNK_BYTES: Final = 1024 * 1024  # at most MAX_LINE_BYTES: a line within one chunk is never too long
_PROBE_BYTES: Final = 64 * 1024
_TOO_LONG: Final = f"the line is longer than {MAX_LINE_BYTES} bytes"


def open_log(path: Path | str) -> int:
    """A file descriptor for reading; never blocks, never follows a link out of the folder.

    Raises:
        NotFoundError: there is no such file.
        LineageError: it is a symbolic link, not a regular file, or may not be read.
    """
    where = str(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise NotFoundError("there is no log", where) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LineageError(
                "the log is a symbolic link; it must be a file of the run's own folder", where
            ) from error
        raise LineageError(f"the log cannot be opened: {error.strerror}", where) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LineageError("the log is not a regular file", where)
    return fd


def read_lines(
    path: Path | str, start: int = 0, stop: int | None = None, *, check: bool = True
) -> Iterator[Line | Damage]:
    """Yield the whole lines of a log in order, and a `Damage` in the place of each one that is no event.

    Args:
        path: the log.
        start: offset of the beginning of a line.
        stop: lines that end after this offset are not read; None for all that are there.
        check: look whether each line is a JSON object with a kind. Without it only a line that is too long is
            damage, and the caller parses.

    Raises:
        NotFoundError, LineageError: see `open_log`.
    """
    fd = open_log(path)
    try:
        for batch in _read_batches(fd, start, stop, check=check):
            yield from batch
    finally:
        os.close(fd)


def read_events(
    path: Path | str,
    *,
    kinds: Collection[str] | None = None,
    session: str | None = None,
    on_damage: Callable[[Damage], object] | None = None,
) -> Iterator[Event]:
    """Yield the events of a log in order of the file.

    Args:
        path: the log.
        kinds: only these kinds; None for all, those of a newer minor version included.
        session: only this session's.
        on_damage: told of each bad line. Without it all good events are delivered first and then `DamagedError` is
            raised, so that damage is never passed over in silence. A line that was not asked for is only checked
            to be a JSON object with a kind.

    Raises:
        NewerFormatError: a session in this log was written by a newer major version of the format.
        DamagedError: there was damage and nobody was told.
        NotFoundError, LineageError: see `open_log`.
    """
    from lineage_schemas.events import parse_event

    unheard: list[Damage] = []
    num_unheard = 0

    def report(damage: Damage) -> None:
        nonlocal num_unheard
        if on_damage is not None:
            on_damage(damage)
            return
        num_unheard += 1
        if len(unheard) < 3:
            unheard.append(damage)

    for item in read_lines(path, check=False):
        fault = item if isinstance(item, Damage) else None
        if isinstance(item, Line):
            reason = fault_of(item.data)
            if reason is None:
                check_line_format(item.data, where=f"{path}, byte {item.offset}")
                if not _is_wanted(item.data, kinds, session):
                    continue
                try:
                    event = parse_event(item.data)
                except FormatError as error:
                    reason = error.what
                else:
                    yield event
                    continue
            fault = Damage(item.offset, len(item.data) + 1, reason)
        if fault is not None:
            report(fault)
    if unheard:
        places = "; ".join(str(damage) for damage in merge_damage(unheard))
        raise DamagedError(
            f"{num_unheard} damaged lines were passed over ({places})", str(path), "lineage repair keeps the good lines"
        )


def _is_wanted(data: bytes, kinds: Collection[str] | None, session: str | None) -> bool:
    if kinds is None and session is None:
        return True
    fields = orjson.loads(data)
    return (kinds is None or fields["kind"] in kinds) and (session is None or fields.get("session") == session)


def check_line_format(data: bytes, *, where: str = "") -> None:
    """Refuse a `session_start` line of a newer major version; a search of the bytes for every other line.

    Raises:
        NewerFormatError: the version is named in the message.
    """
    if b'"session_start"' not in data:
        return
    from lineage_schemas.events import FORMAT_MAJOR, FORMAT_NAME

    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    found = fields.get("format") if isinstance(fields, dict) and fields.get("kind") == "session_start" else None
    if not isinstance(found, dict) or found.get("name") != FORMAT_NAME:
        return
    version = found.get("version")
    major = version.partition(".")[0] if isinstance(version, str) else ""
    # Before the schema is asked: a newer major version may have changed any field.
    if major.isascii() and major.isdigit() and len(major) <= 9 and int(major) > FORMAT_MAJOR:
        raise NewerFormatError(
            f"{FORMAT_NAME} version {major}.x is newer than this Lineage reads ({FORMAT_MAJOR}.x)",
            where,
            "install a newer lineage-tracker to read it; nothing was changed",
        )


def check_log_format(path: Path | str) -> None:
    """Refuse a log in which any session was written by a newer major version; parses only the sessions' first lines.

    Raises:
        NewerFormatError: see `check_line_format`.
        NotFoundError, LineageError: see `open_log`.
    """
    for item in read_lines(path, check=False):
        if isinstance(item, Line):
            check_line_format(item.data, where=f"{path}, byte {item.offset}")


def follow(
    path: Path | str,
    *,
    start: int = 0,
    stop: Callable[[], bool],
    poll_s: float = 0.1,
    check: bool = True,
) -> Iterator[list[Line | Damage]]:
    """Yield what is appended to a log, in batches of whole lines, until `stop()` is true.

    What was there before `stop` turned true is still delivered. A file that is not there yet is waited for. When it
    was replaced, deleted and made again, or cut below what was read, a `Damage` with `restart` set stands at the
    head of the next batch and everything from offset 0 follows: whatever the caller kept of it is void.

    Args:
        path: the log.
        start: offset of the beginning of a line.
        stop: asked before each look at the file.
        poll_s: seconds between two looks.
        check: as for `read_lines`.

    Raises:
        LineageError: the log is a symbolic link, not a regular file, or may not be read.
    """
    fd = -1
    position = start
    seen_size = -1
    searched = start  # up to where no newline was found
    restart = ""
    try:
        while True:
            stopping = stop()
            if fd < 0:
                try:
                    fd = open_log(path)
                except NotFoundError:
                    if stopping:
                        return
                    time.sleep(poll_s)
                    continue
            size = os.fstat(fd).st_size
            if size < position:
                restart = "the file was cut below what was read; it is read again from its beginning"
                position, searched, seen_size = 0, 0, -1
            if size != seen_size or stopping or _is_ended(fd, position, size):
                seen_size = size
                searched = searched_from(fd, position, min(searched, size))
                for batch in _read_batches(fd, position, size, check=check, searched=searched):
                    position = batch[-1].end
                    if restart:
                        batch.insert(0, Damage(0, 0, restart, num_lines=0, restart=True))
                        restart = ""
                    yield batch
                searched = size
            elif _is_other_file(path, fd):
                # The old file was read to its end above: nothing that was whole in it is missed.
                os.close(fd)
                fd, position, searched, seen_size = -1, 0, 0, -1
                restart = "the file was replaced; it is read again from its beginning"
                continue
            if stopping:
                return
            time.sleep(poll_s)
    finally:
        if fd >= 0:
            os.close(fd)


def searched_from(fd: int, start: int, searched: int) -> int:
    """Where to look on for the end of a line that begins at `start` and has none before `searched`.

    `start` itself unless the line is too long already: then its bytes are of no interest, and whoever appends them for
    ever makes no reader read them again and again. Nor where a writer has cut the line off meanwhile and gone on.
    """
    if searched - start < MAX_LINE_BYTES or b"\n" in os.pread(fd, _PROBE_BYTES, start):
        return start
    return searched


def _is_ended(fd: int, start: int, size: int) -> bool:
    """Whether a tail that was torn at `start` has a newline now: cut off, and written over up to the same size."""
    if size <= start:
        return False
    return b"\n" in os.pread(fd, min(_PROBE_BYTES, size - start), start) or os.pread(fd, 1, size - 1) == b"\n"


def _is_other_file(path: Path | str, fd: int) -> bool:
    """Whether the name leads to another file now; a name that is gone does not yet."""
    try:
        named = Path(path).lstat()
    except OSError:
        return False
    mine = os.fstat(fd)
    return (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino)


def _read_batches(
    fd: int, start: int, stop: int | None, *, check: bool, searched: int = 0
) -> Iterator[list[Line | Damage]]:
    """Non-empty lists of lines, one for each chunk read, from a line's beginning to the last newline before `stop`."""
    offset = start  # of the line being collected
    position = max(start, searched)  # of the next read
    parts: list[bytes] = []
    held = position - start
    while True:
        wanted = _CHUNK_BYTES if stop is None else min(_CHUNK_BYTES, stop - position)
        chunk = os.pread(fd, wanted, position) if wanted > 0 else b""
        if not chunk:
            return
        position += len(chunk)
        first = chunk.find(b"\n")
        if first < 0:
            held += len(chunk)
            if held < MAX_LINE_BYTES:
                parts.append(chunk)
            else:
                parts.clear()  # too long: only its length is still of interest
            continue
        batch: list[Line | Damage] = []
        if held + first >= MAX_LINE_BYTES:
            batch.append(Damage(offset, held + first + 1, _TOO_LONG))
            offset += held + first + 1
            chunk = chunk[first + 1 :]
        elif parts:
            parts.append(chunk)
            chunk = b"".join(parts)
        parts.clear()
        *wholes, rest = chunk.split(b"\n")
        for whole in wholes:
            reason = fault_of(whole) if check else None
            batch.append(Line(offset, whole) if reason is None else Damage(offset, len(whole) + 1, reason))
            offset += len(whole) + 1
        held = len(rest)
        if rest:
            parts.append(rest)
        yield batch
