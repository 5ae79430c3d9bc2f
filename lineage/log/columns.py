"""metrics.jsonl as numpy columns, per session; only what was appended is read again.

`step` lines become columns and are forgotten; every other line is kept as its bytes, since there are few of them and
their fields differ. Memory is therefore the columns, the rare lines and one block of the file.

Steps of one layout are read many at once (`lineage.log.layout`), everything else line by line through the schema, so
that both ways accept the same lines. Bad lines are located in `Columns.damage` and never stop the reading.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from lineage.errors import FormatError, LineageError, NewerFormatError, NotFoundError
from lineage.layout import RunDir
from lineage.log.layout import Block, Floats, Ints, Layout, Steps
from lineage.log.reader import check_line_format, open_log, searched_from
from lineage.log.scan import MAX_LINE_BYTES, Damage, fault_of, merge_damage
from lineage.log.session_columns import SessionColumns
from lineage_schemas.events import Event, StepEvent, parse_event
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage.log.parallel import Team

MAX_SESSIONS: Final = 10_000
"""Sessions kept apart; lines of further ones are reported as damage, since no real run has so many."""

_BLOCK_BYTES: Final = 1 << 20
_LEAST_BYTES: Final = 4096
_AHEAD_FROM_BYTES: Final = 8 << 20
_TOGETHER_FROM_BYTES: Final = 64 << 20
"""A helper needs a fifth of a second before it can begin; less than this is read in about that time."""
_TAIL_BYTES: Final = 64 << 10
_MAX_LAYOUTS: Final = 32
_LEARN_AFTER: Final = 16
"""Lines that must be left in a block before it pays to learn their layout."""

_CACHE_FROM_BYTES: Final = 1 << 20
_RECACHE_FROM_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RareLine:
    """A whole, valid line that is no `step`."""

    kind: str
    session: SessionId
    offset: int
    data: bytes

    def event(self) -> Event:
        return parse_event(self.data)


@dataclass(frozen=True, slots=True)
class Part:
    """What a stretch of a log said, up to `offset`: fields as those of `Columns`."""

    run: str | None
    offset: int
    sessions: dict[SessionId, SessionColumns]
    rare: list[RareLine]
    damage: list[Damage]


class Columns:
    """The columns of one log.

    Attributes:
        run: id in the first line; None while there is none.
        sessions: by id, in order of their first line.
        rare: every line that is no `step`, in order.
        damage: bad lines; neighbours are one entry.
        offset: bytes read so far, always the beginning of a line.
        size_bytes: size of the log when it was last looked at.
    """

    def __init__(self, run_dir: RunDir | Path, *, cache: bool = True) -> None:
        self.dir = run_dir if isinstance(run_dir, RunDir) else RunDir(Path(run_dir))
        self.size_bytes = 0
        self.num_rebuilds = 0
        self._caching = cache
        self._team: Team | None = None
        self._clear()

    @classmethod
    def open(cls, run_dir: RunDir | Path, *, cache: bool = True, max_bytes: int | None = None) -> Columns:
        """The columns of a run's log, read to its last newline, or at most about `max_bytes` of it.

        With `cache`, what an earlier reader left in `.cache/` is used where it fits the log, and what was read is
        left there for the next one. A run without a log yet has no sessions.

        Raises:
            NewerFormatError: a session in the log was written by a newer major version of the format.
            LineageError: the log is a link, not a regular file, or may not be read.
        """
        columns = cls(run_dir, cache=cache)
        columns.refresh(max_bytes=max_bytes)
        return columns

    def _clear(self) -> None:
        self.run: str | None = None
        self.sessions: dict[SessionId, SessionColumns] = {}
        self.rare: list[RareLine] = []
        self.damage: list[Damage] = []
        self.offset = 0
        self._identity: tuple[int, int] | None = None
        self._layouts: list[Layout] = []
        self._began: dict[SessionId, int] = {}  # where the first line of a session is
        self._searched = 0
        self._cached = 0
        if self._team is not None:
            self._team.close()
        self._team = None
        self._is_alone = False  # helpers were tried, and are not to be tried again

    def part(self) -> Part:
        """What was read so far: the very lists and columns, which go on growing."""
        return Part(self.run, self.offset, self.sessions, self.rare, self.damage)

    @property
    def num_unread_bytes(self) -> int:
        """Bytes that were there at the last look and are not in the columns: a torn tail, or what is still to come."""
        return max(0, self.size_bytes - self.offset)

    @property
    def num_torn_bytes(self) -> int:
        """Of those, bytes after the last newline of a log that was read to its end; 0 while more is to come."""
        return self.num_unread_bytes if self._searched >= self.size_bytes else 0

    @property
    def num_damaged(self) -> int:
        return sum(damage.num_lines for damage in self.damage)

    def refresh(self, *, max_bytes: int | None = None, save: bool = True) -> bool:
        """Read what was appended, up to the last newline; True when anything changed.

        A log that was replaced or cut below what was read is read anew from its beginning. `max_bytes` stops after
        about so many, so that a caller can draw in between; call again until `num_unread_bytes` no longer shrinks.
        Without `save` nothing is left for the next reader until `save_cache` is called.

        Raises:
            NewerFormatError, LineageError: as `open`.
        """
        try:
            fd = open_log(self.dir.log)
        except NotFoundError:
            changed = self.offset > 0 or bool(self.sessions)
            self._clear()
            self.size_bytes = 0
            return changed
        try:
            status = os.fstat(fd)
            changed = False
            identity = (status.st_dev, status.st_ino)
            if self._identity is not None and (identity != self._identity or status.st_size < self.offset):
                self._clear()
                self.num_rebuilds += 1
                changed = True
            self.size_bytes = status.st_size
            if self._identity is None:
                self._identity = identity
                if self._caching and status.st_size >= _CACHE_FROM_BYTES and self._load_cache(fd, status):
                    changed = True
            stop = status.st_size
            if max_bytes is not None:
                stop = min(stop, self.offset + max_bytes)
            changed |= self._read(fd, stop, status.st_size)
            if save:
                self._maybe_save_cache(fd)
        finally:
            os.close(fd)
        return changed

    def save_cache(self) -> None:
        """Leave what was read for the next reader, where `refresh` was told not to; never raises for want of a place.

        Raises:
            LineageError: as `open`.
        """
        with contextlib.suppress(NotFoundError):
            fd = open_log(self.dir.log)
            try:
                status = os.fstat(fd)
                if self._identity == (status.st_dev, status.st_ino) and status.st_size >= self.offset:
                    self._maybe_save_cache(fd)
            finally:
                os.close(fd)

    def _read(self, fd: int, stop: int, size: int) -> bool:
        """Take in whole lines until `stop` is passed; no byte beyond `size` is looked at."""
        if size == self._searched:
            tail = max(self.offset, size - _TAIL_BYTES)
            if size == self.offset or b"\n" not in os.pread(fd, size - tail, tail):
                return False  # the torn tail is as it was
            self._searched = self.offset  # it was cut off, and lines of its length came in its place
        began = self.offset
        if not self._read_with_helpers(fd, stop, size):
            self._read_alone(fd, stop, size, ahead=True)
        return self.offset > began

    def _read_with_helpers(self, fd: int, stop: int, size: int) -> bool:
        """Read a long log as several processes; False when what is left is for this one."""
        if self._team is None and not self._is_alone and size - self.offset >= _TOGETHER_FROM_BYTES:
            from lineage.log import parallel

            self._is_alone = True
            with contextlib.suppress(OSError):  # no more descriptors or processes: then one reader it is
                if (num_helpers := parallel.num_readers() - 1) > 0:
                    self._team = parallel.Team(self, fd, size, num_helpers)
        if self._team is None:
            return False
        went_well = False
        try:
            went_well = self._team.read(self, fd, stop, size)
        finally:
            self._searched = max(self._searched, self.offset)
            if not went_well:
                self._team.close()
                self._team = None
        return went_well

    def _read_alone(self, fd: int, stop: int, size: int, *, ahead: bool) -> None:
        began = self.offset
        reader = _Blocks(fd, began, stop, size, searched_from(fd, began, min(self._searched, size)))
        items: Iterator[Block | int] = iter(reader)
        if ahead and min(stop, size) - began > _AHEAD_FROM_BYTES:
            items = _ahead(items)
        for item in items:
            if isinstance(item, Block):
                self._take(item)
            else:
                self._damaged(Damage(self.offset, item, f"the line is longer than {MAX_LINE_BYTES} bytes"))
                self.offset += item
        self._searched = reader.position

    @classmethod
    def of_stretch(cls, fd: int, lo: int, hi: int, layouts: list[Layout]) -> Part | None:
        """What the whole lines from `lo` to `hi` say; None when they are not all for a reader of a stretch to judge.

        Args:
            fd: the log.
            lo: where a line begins.
            hi: where one ends.
            layouts: of lines that were met, the latest first; what is met is added.
        """
        found = cls(Path(), cache=False)
        found.offset = found._searched = lo
        found._layouts = layouts
        try:
            found._read_alone(fd, hi, hi, ahead=False)
        except LineageError:
            return None  # of a newer major version: who reads the lines in order says where
        if found.offset != hi:
            return None
        in_order = sorted(found.sessions, key=found._began.__getitem__)
        return Part(found.run, hi, {id_: found.sessions[id_] for id_ in in_order}, found.rare, found.damage)

    def take_over(self, part: Part) -> bool:
        """Add what the stretch from `offset` on said; False, and nothing added, when this must be read line by line."""
        if len(self.sessions.keys() | part.sessions.keys()) > MAX_SESSIONS:
            return False
        self.run = self.run or part.run
        for session, columns in part.sessions.items():
            if session in self.sessions:
                self.sessions[session].extend(columns)
            else:
                self.sessions[session] = columns
        self.rare += part.rare
        for damage in part.damage:
            self._damaged(damage)
        self.offset = part.offset
        return True

    def _damaged(self, damage: Damage) -> None:
        self.damage[-1:] = merge_damage([*self.damage[-1:], damage])

    def _take(self, block: Block) -> None:
        """Add a block of whole lines that begins at `offset`.

        Raises:
            NewerFormatError: one is of a newer major version; what the lines before it said is not kept, since the
                block is read again when the caller tries again.
        """
        num_rare, num_damage, last_damage = len(self.rare), len(self.damage), self.damage[-1:]
        try:
            self._take_lines(block)
        except NewerFormatError:
            del self.rare[num_rare:], self.damage[num_damage:]
            self.damage[-1:] = last_damage
            raise

    def _take_lines(self, block: Block) -> None:
        left: Ints = np.arange(len(block), dtype=np.int64)
        parts: list[Steps] = []
        for layout in list(self._layouts):
            if not left.size:
                break
            left = self._match(layout, block, left, parts)
        base = self.offset
        loose: dict[str, _Loose] = {}
        budget = 8
        pending = left.tolist()
        index = 0
        while index < len(pending):
            row = pending[index]
            index += 1
            line = block.line(row)
            event = self._take_line(line, base + int(block.starts[row]))
            if not isinstance(event, StepEvent):
                continue
            remaining = len(pending) - index
            learned = Layout.learn(line, event) if budget and remaining >= _LEARN_AFTER else None
            loose.setdefault(event.session, _Loose(event.session)).add(event, row)
            if learned is not None and learned not in self._layouts:
                budget -= 1
                rest = np.array(pending[index:], dtype=np.int64)
                self._layouts.insert(0, learned)
                del self._layouts[_MAX_LAYOUTS:]
                pending = self._match(learned, block, rest, parts).tolist()
                index = 0
        by_session: dict[str, list[Steps]] = {}
        for part in (*parts, *(some.steps() for some in loose.values())):
            by_session.setdefault(part.session, []).append(part)
        for session, found in by_session.items():
            id_ = SessionId(session)
            columns = self.sessions.get(id_)
            if columns is None:  # its layout was learned elsewhere in the log
                columns = self.sessions[id_] = SessionColumns(id_)
            columns.append(found)
            at = base + int(block.starts[min(int(part.rows[0]) for part in found)])
            self._began[id_] = min(self._began.get(id_, at), at)
        self.offset = base + block.size_bytes

    def _match(self, layout: Layout, block: Block, rows: Ints, parts: list[Steps]) -> Ints:
        """Read those rows that have the layout; the others."""
        steps = layout.match(block, rows)
        if steps is None:
            return rows
        if self._layouts[0] is not layout:
            self._layouts.remove(layout)
            self._layouts.insert(0, layout)
        parts.append(steps)
        if len(steps.rows) == len(rows):
            return rows[:0]
        left = np.ones(len(rows), dtype=np.bool_)
        left[np.searchsorted(rows, steps.rows)] = False
        return rows[left]

    def _take_line(self, line: bytes, offset: int) -> Event | None:
        """The event of one line, its session noted; a line that is none is noted as damage."""
        reason = fault_of(line)
        if reason is None:
            check_line_format(line, where=f"{self.dir.log}, byte {offset}")
            try:
                event = parse_event(line)
            except FormatError as error:
                reason = error.what
            else:
                self.run = self.run or event.run
                session = SessionId(event.session)
                if session in self.sessions or len(self.sessions) < MAX_SESSIONS:
                    columns = self.sessions.get(session)
                    if columns is None:
                        columns = self.sessions[session] = SessionColumns(session)
                        self._began[session] = offset
                    columns.saw(event.ts)
                    if not isinstance(event, StepEvent):
                        self.rare.append(RareLine(event.kind, session, offset, line))
                    return event
                reason = f"a session beyond the first {MAX_SESSIONS}"
        self._damaged(Damage(offset, len(line) + 1, reason))
        return None

    def _load_cache(self, fd: int, status: os.stat_result) -> bool:
        from lineage.log import column_cache

        found = column_cache.load(self.dir, column_cache.Identity.of(fd, status))
        if found is None:
            return False
        self.run = found.run
        self.sessions = found.sessions
        self.rare = found.rare
        self.damage = found.damage
        self.offset = self._cached = found.offset
        return True

    def _maybe_save_cache(self, fd: int) -> None:
        fresh = self.offset - self._cached
        if not self._caching or self.num_unread_bytes >= MAX_LINE_BYTES:
            return
        if self.offset < _CACHE_FROM_BYTES or fresh < max(_CACHE_FROM_BYTES, self._cached // 4):
            return
        if self._cached and fresh < _RECACHE_FROM_BYTES:
            return
        from lineage.log import column_cache

        column_cache.save(self, column_cache.Identity.of(fd, os.fstat(fd)))
        self._cached = self.offset  # also when it could not be saved: trying at every refresh would help nobody


class _Blocks:
    """Whole lines of a file in blocks; in the place of a line that is too long, how many bytes it has.

    Attributes:
        position: how far the file was read, a torn tail included.
    """

    def __init__(self, fd: int, offset: int, stop: int, size: int, searched: int) -> None:
        self.position = searched
        self._offset = offset
        self._fd = fd
        self._stop = stop
        self._size = size

    def __iter__(self) -> Iterator[Block | int]:
        offset = self._offset
        parts: list[bytes] = []
        held = self.position - offset
        while self.position < self._size and offset < self._stop:
            wanted = min(_BLOCK_BYTES, self._size - self.position, max(_LEAST_BYTES, self._stop - self.position))
            chunk = os.pread(self._fd, wanted, self.position)
            if not chunk:
                return
            self.position += len(chunk)
            end = chunk.rfind(b"\n") + 1
            if not end:
                held += len(chunk)
                parts = [*parts, chunk] if held < MAX_LINE_BYTES else []
                continue
            begin = 0
            if held >= MAX_LINE_BYTES:
                begin = chunk.find(b"\n") + 1
                yield held + begin
            if begin < end:
                yield Block(memoryview(chunk)[begin:end], parts)
            offset = self.position - (len(chunk) - end)
            parts = [chunk[end:]] if end < len(chunk) else []
            held = len(chunk) - end


def _ahead(items: Iterator[Block | int]) -> Iterator[Block | int]:
    """The same items, the next one made on another thread meanwhile: reading and indexing wait for no parser."""
    with ThreadPoolExecutor(1, "lineage-columns") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


class _Loose:
    """Steps of one session that were read one by one, gathered into one part."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._rows: list[int] = []
        self._events: list[StepEvent] = []

    def add(self, event: StepEvent, row: int) -> None:
        self._rows.append(row)
        self._events.append(event)

    def steps(self) -> Steps:
        values: dict[str, list[float]] = {}
        rows: dict[str, list[int]] = {}
        for row, event in enumerate(self._events):
            for name, value in event.metrics.items():
                values.setdefault(name, []).append(value)
                rows.setdefault(name, []).append(row)
        return Steps(
            session=self._session,
            rows=np.array(self._rows, dtype=np.int64),
            ts=np.array([event.ts for event in self._events], dtype=np.float64),
            step=np.array([event.step for event in self._events], dtype=np.int64),
            duration_s=self._optional("duration_s"),
            tokens=self._optional("tokens"),
            samples=self._optional("samples"),
            metrics={name: np.array(found, dtype=np.float64) for name, found in values.items()},
            metric_rows={
                name: np.array(found, dtype=np.int64) for name, found in rows.items() if len(found) < len(self._rows)
            },
        )

    def _optional(self, name: str) -> Floats | None:
        found = [getattr(event, name) for event in self._events]
        if all(value is None for value in found):
            return None
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)
