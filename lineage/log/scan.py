"""A log as whole lines and a torn tail; pure, so that every rule about bytes can be tested without a file.

A line is whole once its newline is there. Bytes after the last newline are a torn append: a crash, or a writer that
is still at it. Anything wrong before that is damage (docs/format.md, "Tail").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import orjson

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Longest line, newline included. A longer one is damage, passed over without being held in memory."""

_BLOCK_BYTES: Final = 64 * 1024
_OTHERS: Final = "; others: "


@dataclass(frozen=True, slots=True)
class Line:
    """A whole line: where it begins in the file, and its bytes without the newline."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Offset of the next line."""
        return self.offset + len(self.data) + 1


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes between two newlines that are no event.

    Attributes:
        offset, size_bytes: where they are, the newline included.
        reason: why they are no event; never their content, which may be hostile. Of several lines, why the first is
            none, and in what other ways others are none.
        num_lines: how many bad lines stand here one after another.
        restart: set only by `follow`, on a mark without bytes: the file was replaced or cut, and what comes after
            this mark is read from its beginning again.
    """

    offset: int
    size_bytes: int
    reason: str
    num_lines: int = 1
    restart: bool = False

    @property
    def end(self) -> int:
        """Offset of the next line."""
        return self.offset + self.size_bytes

    def __str__(self) -> str:
        if not self.size_bytes:
            return self.reason  # of a whole file
        lines = f", {self.num_lines} lines" if self.num_lines > 1 else ""
        return f"bytes {self.offset} to {self.end}{lines}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Scan:
    """Whole lines in order, and what stands after the last newline."""

    lines: list[Line]
    torn: bytes
    torn_offset: int


def scan(data: bytes, offset: int = 0) -> Scan:
    """Split a log into whole lines and the torn tail a crash may leave; nothing is dropped and nothing is judged.

    Args:
        data: bytes of a log from the beginning of a line.
        offset: where `data` begins in its file.
    """
    *wholes, torn = data.split(b"\n")
    lines = []
    for whole in wholes:
        lines.append(Line(offset, whole))
        offset += len(whole) + 1
    return Scan(lines, torn, offset)


def fault_of(data: bytes) -> str | None:
    """Why a line is no event as far as JSON goes, or None: it is an object with a `kind`.

    Whether its fields are what the kind promises is for `lineage_schemas.events.parse_event` to say.
    """
    if len(data) >= MAX_LINE_BYTES:
        return f"the line is longer than {MAX_LINE_BYTES} bytes"
    if not data.strip():
        return "the line is empty"
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error.msg} at byte {error.pos}"
    except RecursionError:
        return "not JSON: nested too deep"
    if not isinstance(fields, dict):
        return "not a JSON object"
    if not isinstance(fields.get("kind"), str):
        return "the object has no kind"
    return None


def merge_damage(damage: Iterable[Damage]) -> Iterator[Damage]:
    """Join bad lines that stand one after another, so that a file full of garbage is one report and not a million.

    Also those that are bad in different ways: each way is named once.
    """
    held: Damage | None = None
    for found in damage:
        if held is not None and not found.restart and not held.restart and held.end == found.offset:
            held = replace(
                held,
                size_bytes=held.size_bytes + found.size_bytes,
                reason=_join_reasons(held.reason, found.reason),
                num_lines=held.num_lines + found.num_lines,
            )
            continue
        if held is not None:
            yield held
        held = found
    if held is not None:
        yield held


def _join_reasons(first: str, second: str) -> str:
    if second == first:
        return first
    known = _ways(first)
    new = [way for way in _ways(second) if way not in known]
    if not new:
        return first
    return first + (", " if _OTHERS in first else _OTHERS) + ", ".join(new)


def _ways(reason: str) -> list[str]:
    """In what ways the lines are bad, without what is said of one of them alone: what stands before the colon."""
    first, _, others = reason.partition(_OTHERS)
    return [first.partition(": ")[0], *(others.split(", ") if others else ())]


def whole_end(read_at: Callable[[int, int], bytes], size: int) -> int:
    """Offset just after the last newline in the first `size` bytes; 0 when there is none.

    `read_at(num_bytes, offset)` is asked backwards in blocks of 64 KiB, so a huge torn tail costs time, not memory.
    """
    end = size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        found = read_at(end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
