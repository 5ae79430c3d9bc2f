"""A long log parsed by more than one process: stretches of whole lines, put together in the order of the log.

Threads do not help: what is left of the parsing beside numpy holds the interpreter's lock. So helpers are fresh
interpreters that parse stretches ahead of the reader and leave the columns in a file without a name. They only save
time: what a helper does not deliver, because it died or the stretch holds something that is not for it to judge, the
reader parses itself; and every stretch is taken over in its turn, so that the columns are those of a single reader.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import orjson

from lineage.log.columns import Columns, Part
from lineage.log.packed import ALIGN, pack, unpack

if TYPE_CHECKING:
    from lineage.log.layout import Layout

MAX_READERS: Final = 4
STRETCH_BYTES: Final = 8 << 20

_QUEUE: Final = 4  # stretches a helper has before it: it goes on while the reader does something else
_MAX_AHEAD: Final = 8  # stretches that are parsed and wait for one before them
_EDGE_BYTES: Final = 64 << 10
_LEAST_SLOT_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 0.1
_PREFIX: Final = struct.Struct("<Q")
_at_work: list[_Helper] = []
"""All helpers of this process: whoever reads many runs at once starts no more of them than for one."""
_hiring = threading.Lock()
_BOOT: Final = "from lineage.log.parallel import help_reading; help_reading()"


def num_readers() -> int:
    """Processes that read a long log: one a core, at most `MAX_READERS`; fewer where `LINEAGE_READERS` says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("LINEAGE_READERS", "")
    most = min(int(asked), MAX_READERS) if asked.isdecimal() and len(asked) < 4 else MAX_READERS
    return max(1, min(cores, most))


@dataclass(eq=False)
class _Stretch:
    """Whole lines from `lo` to `hi`.

    Attributes:
        helper: who is to parse it; None when it is the reader's, or parsed.
        part: what is in it; None while it is not parsed, or when it has to be read line by line.
    """

    lo: int
    hi: int
    helper: _Helper | None = None
    is_parsed: bool = False
    part: Part | None = None


@dataclass(eq=False)
class _Helper:
    """A process, the file in whose slots it leaves its results, and what it has to do, by slot."""

    process: subprocess.Popen[bytes]
    results: int
    slot_bytes: int
    is_up: bool = False
    said: bytes = b""  # the beginning of its next line
    queue: dict[int, _Stretch] = field(default_factory=dict)


class Team:
    """The helpers of one long reading, and the stretches that were cut for it.

    Args:
        columns: whose log is read; the first stretch begins at its `offset`.
        fd: the log, open.
        size_bytes: what of the log is cut into stretches; what is appended later is not.
        num_helpers: processes to start, as far as others that this process reads have left any.
    """

    def __init__(self, columns: Columns, fd: int, size_bytes: int, num_helpers: int) -> None:
        self._cut = columns.offset
        self._size = size_bytes
        self._layouts: list[Layout] = []
        self._stretches: list[_Stretch] = []  # that were not taken over yet, in order
        self._selector = selectors.DefaultSelector()
        self._helpers = _start(fd, num_helpers)
        for helper in self._helpers:
            self._selector.register(_of(helper.process.stdout), selectors.EVENT_READ, helper)
        self._close = weakref.finalize(self, _end, self._helpers, self._selector, os.getpid())

    def close(self) -> None:
        """End the helpers, and wait until they have ended."""
        self._close()

    def read(self, columns: Columns, fd: int, stop: int, size_bytes: int) -> bool:
        """Have `columns` take whole stretches over until `stop` is passed; False when the rest is its own to read.

        Nothing beyond `size_bytes` is taken over: the log may have been cut since helpers read it.
        """
        while columns.offset < stop:
            self._listen(0.0)
            if not self._helpers:
                return False
            self._give_out(fd)
            if not self._stretches and not self._cut_off(fd, stop):
                return False
            first = self._stretches[0]
            if not first.is_parsed:
                self._work(fd, first)
                continue
            fits = first.lo == columns.offset and first.hi <= size_bytes
            if not fits or first.part is None or not columns.take_over(first.part):
                return False
            del self._stretches[0]
        return True

    def _cut_off(self, fd: int, stop: int) -> _Stretch | None:
        """The next stretch, of `STRETCH_BYTES` or up to `stop`, to the end of that line; None where there is none."""
        target = min(self._cut + STRETCH_BYTES, max(stop, self._cut + 1))
        if target + _EDGE_BYTES > self._size:
            return None
        newline = os.pread(fd, _EDGE_BYTES, target - 1).find(b"\n")
        if newline < 0:
            return None
        stretch = _Stretch(self._cut, target + newline)
        self._stretches.append(stretch)
        self._cut = stretch.hi
        return stretch

    def _give_out(self, fd: int) -> None:
        """Fill the queues of the helpers that are up."""
        for slot in range(_QUEUE):
            for helper in [one for one in self._helpers if one.is_up and slot not in one.queue]:
                stretch = self._cut_off(fd, self._size)
                if stretch is None:
                    return
                stretch.helper = helper
                helper.queue[slot] = stretch
                try:
                    _of(helper.process.stdin).write(b"%d %d %d\n" % (slot, stretch.lo, stretch.hi))
                except OSError:
                    self._lose(helper)

    def _work(self, fd: int, first: _Stretch) -> None:
        """Do something towards the first stretch: parse it or another, or wait a little for the helper that has it."""
        if first.helper is None:
            self._parse(fd, first)
        elif sum(one.is_parsed for one in self._stretches) >= _MAX_AHEAD:
            self._parse(fd, first)  # its helper is slow
        elif (more := self._cut_off(fd, self._size)) is not None:
            self._parse(fd, more)
        elif (last := next(one for one in reversed(self._stretches) if not one.is_parsed)) is not first:
            self._parse(fd, last)  # nothing is left to give out, and its helper may not have begun with it
        elif not self._listen(_PATIENCE_S):
            self._parse(fd, first)

    def _parse(self, fd: int, stretch: _Stretch) -> None:
        stretch.part = Columns.of_stretch(fd, stretch.lo, stretch.hi, self._layouts)
        stretch.is_parsed = True
        stretch.helper = None

    def _listen(self, seconds: float) -> bool:
        """Take in what helpers have said, waiting at most so long for a first word; False when there was none."""
        heard = self._selector.select(seconds)
        for key, _ in heard:
            helper: _Helper = key.data
            said = os.read(key.fd, 4096)
            *lines, helper.said = (helper.said + said).split(b"\n")
            try:
                for line in lines:
                    _take_word(helper, line)
            except (ValueError, KeyError):
                said = b""  # something else speaks there
            if not said:
                self._lose(helper)
        return bool(heard)

    def _lose(self, helper: _Helper) -> None:
        """Go on without a helper: what it had is the reader's."""
        for stretch in helper.queue.values():
            if stretch.helper is helper:
                stretch.helper = None
        if helper in self._helpers:
            self._helpers.remove(helper)
            self._selector.unregister(_of(helper.process.stdout))
            _end([helper])


def _start(fd: int, count: int) -> list[_Helper]:
    """So many helpers that know the log by its open file; fewer where there can be none."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    slot_bytes = max(8 * STRETCH_BYTES, _LEAST_SLOT_BYTES)  # columns take at most three times the bytes of their lines
    helpers: list[_Helper] = []
    with _hiring:
        while sys.executable and len(helpers) < count and len(_at_work) < count:
            results = -1
            try:
                results = _nameless_file()
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _BOOT, str(fd), str(results), str(slot_bytes)],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(fd, results),
                    env=environment,
                )
            except OSError:
                if results >= 0:
                    os.close(results)
                break
            helpers.append(_Helper(process, results, slot_bytes))
            _at_work.append(helpers[-1])
    return helpers


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lineage-columns")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _end(helpers: list[_Helper], selector: selectors.BaseSelector | None = None, pid: int | None = None) -> None:
    """Kill the helpers and wait for them; they have nothing to put in order. A fork of the reader leaves them be."""
    if pid not in {None, os.getpid()}:
        return
    if selector is not None:
        selector.close()
    for helper in helpers:
        with contextlib.suppress(OSError):
            helper.process.kill()
        for pipe in (helper.process.stdin, helper.process.stdout):
            with contextlib.suppress(OSError):
                _of(pipe).close()
        helper.process.wait()
        os.close(helper.results)
        with contextlib.suppress(ValueError):
            _at_work.remove(helper)
    helpers.clear()


def _take_word(helper: _Helper, line: bytes) -> None:
    """Take in a line of what a helper says: that it is up, or a slot and how many bytes it left there.

    Raises:
        ValueError, KeyError: it is no such line.
    """
    if line == b"up":
        helper.is_up = True
        return
    slot, num_bytes = map(int, line.split())
    stretch = helper.queue.pop(slot)
    if stretch.helper is helper:
        stretch.helper = None
        if num_bytes:
            stretch.part = _fetch(helper, slot, num_bytes)
            stretch.is_parsed = True


def _fetch(helper: _Helper, slot: int, num_bytes: int) -> Part | None:
    """What a helper left; None when it is not whole."""
    data = np.empty(num_bytes, np.uint8).data
    if os.preadv(helper.results, [data], slot * helper.slot_bytes) != num_bytes:
        return None
    body = _PREFIX.size + _PREFIX.unpack_from(data)[0]
    return unpack(orjson.loads(data[_PREFIX.size : body]), data[body:])


def _leave(results: int, place: int, slot_bytes: int, part: Part) -> int:
    """Write what `_fetch` reads; how many bytes, 0 when there is no room."""
    header, pieces = pack(part)
    text = orjson.dumps(header)
    text += b" " * (-(len(text) + _PREFIX.size) % ALIGN)
    num_bytes = _PREFIX.size + len(text) + sum(piece.nbytes for piece in pieces)
    if num_bytes > slot_bytes:
        return 0
    for piece in (memoryview(_PREFIX.pack(len(text))), memoryview(text), *pieces):
        left = piece
        while left.nbytes:
            written = os.pwrite(results, left, place)
            left, place = left[written:], place + written
    return num_bytes


def help_reading() -> None:
    """What a helper does: parse the stretches that its standard input names, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the reader, who ends its helpers
    fd, results, slot_bytes = map(int, sys.argv[1:])
    layouts: list[Layout] = []
    os.write(1, b"up\n")
    for line in sys.stdin.buffer:
        slot, lo, hi = map(int, line.split())
        part = Columns.of_stretch(fd, lo, hi, layouts)
        num_bytes = 0 if part is None else _leave(results, slot * slot_bytes, slot_bytes, part)
        os.write(1, b"%d %d\n" % (slot, num_bytes))


def _of(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise BrokenPipeError  # never: both were asked for
    return pipe
