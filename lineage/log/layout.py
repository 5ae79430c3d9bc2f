"""Reading many step lines at once: lines of one layout differ in their numbers alone.

A training loop writes the same keys in the same order millions of times. `Layout.learn` takes one line that the schema
has accepted and splits it into constant bytes and holes. `Layout.match` then finds, with a few numpy passes over a
whole block of the log, the lines that have exactly those constant bytes, compares every one of them, and parses what
is in the holes column by column. A line that differs in anything else than its numbers is not matched and is left to
the reader that goes line by line, so that nothing is accepted here that the schema would refuse.

Numbers are parsed by orjson, which rounds as `float()` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, cast

import numpy as np
import numpy.typing as npt
import orjson

from lineage_schemas.events import StepEvent
from lineage_schemas.ids import MAX_STEP

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]

MAX_HOLE: Final = 72
"""Widest text a hole may have: a digest of 64 digits with its quotes, or any number a writer prints."""

_PADDING: Final = bytes(MAX_HOLE + 1)

_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*(?:("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|([{}\[\],:])|(true|false|null))'
)
_HEX: Final = re.compile(rb'"[0-9a-f]{8,64}"')
_COMMA: Final = ord(",")
_BLANK: Final = ord(" ")

_NUMBER_START: Final = np.zeros(256, dtype=np.bool_)
_NUMBER_START[list(b"-0123456789")] = True
_VALUE_START: Final = _NUMBER_START.copy()
_VALUE_START[ord("n")] = True
_HEX_DIGIT: Final = np.zeros(256, dtype=np.bool_)
_HEX_DIGIT[list(b"0123456789abcdef")] = True

Role = Literal["ts", "step", "duration_s", "tokens", "samples", "metric", "number", "digest"]
_ROLES: Final[dict[str, Role]] = {
    "ts": "ts",
    "step": "step",
    "duration_s": "duration_s",
    "tokens": "tokens",
    "samples": "samples",
}


class Block:
    """A piece of a log that ends with a newline, indexed: where its lines and its commas are."""

    def __init__(self, data: bytes | memoryview, before: Iterable[bytes] = ()) -> None:
        # One copy, with room behind the last hole for a window that looks past the end.
        self.padded = b"".join((*before, data, _PADDING))
        self.size_bytes = len(self.padded) - len(_PADDING)
        buffer = np.frombuffer(self.padded, np.uint8, self.size_bytes)
        self.ends: Ints = np.flatnonzero(buffer == 10)
        self.starts: Ints = np.empty_like(self.ends)
        self.starts[:1] = 0
        self.starts[1:] = self.ends[:-1] + 1
        self.commas: Ints = np.flatnonzero(buffer == _COMMA)
        edges = np.searchsorted(self.commas, self.ends)
        self.first_comma: Ints = np.concatenate((np.zeros(1, np.int64), edges[:-1]))
        self.num_commas: Ints = edges - self.first_comma

    def __len__(self) -> int:
        return len(self.ends)

    def line(self, row: int) -> bytes:
        return self.padded[self.starts[row] : self.ends[row]]

    def window(self, positions: Ints, width: int) -> _Bytes:
        """`width` bytes from each position, one row each."""
        # A void item of `width` bytes at every offset: one gather copies whole windows.
        every = np.ndarray((len(self.padded) - width + 1,), dtype=f"V{width}", buffer=self.padded, strides=(1,))
        return every[positions].view(np.uint8).reshape(len(positions), width)


@dataclass(frozen=True)
class Hole:
    """A place where lines of a layout differ.

    Attributes:
        comma: how-manieth comma of the line follows it, from 0; None when none does.
        gap: constant bytes between its end and that comma, or the end of the line.
    """

    role: Role
    name: str
    comma: int | None
    gap: int


@dataclass(frozen=True)
class Steps:
    """Step rows of one session, columns aligned with `rows`.

    Attributes:
        rows: which line of the block each came from, increasing.
        metrics: name to values.
        metric_rows: for a metric that some rows lack, which rows of this part have it, from 0, increasing.
    """

    session: str
    rows: Ints
    ts: Floats
    step: Ints
    duration_s: Floats | None
    tokens: Floats | None
    samples: Floats | None
    metrics: dict[str, Floats]
    metric_rows: dict[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Constant bytes and holes of the step lines of one session that have the same keys.

    Attributes:
        literals: constant bytes before each hole, and after the last one.
        constants: metrics whose value is non-finite in every line of this layout.
    """

    session: str
    literals: tuple[bytes, ...]
    holes: tuple[Hole, ...]
    constants: dict[str, float]
    num_commas: int

    @classmethod
    def learn(cls, line: bytes, event: StepEvent) -> Layout | None:
        """The layout of a line that was read as `event`; None when its lines must be read one by one."""
        found = _holes(line)
        if found is None:
            return None
        holes: list[Hole] = []
        literals: list[bytes] = []
        end = 0
        for role, name, start, stop in found:
            literals.append(line[end:start])
            end = stop
            # Between a number and the next comma stand closing brackets and blanks, never a string.
            comma = line.find(b",", stop)
            if comma < 0:
                holes.append(Hole(role, name, None, len(line) - stop))
            else:
                holes.append(Hole(role, name, line.count(b",", 0, comma), comma - stop))
        literals.append(line[end:])
        names = {hole.name for hole in holes if hole.role == "metric"}
        constants = {name: value for name, value in event.metrics.items() if name not in names}
        roles = {hole.role for hole in holes}
        if not {"ts", "step"} <= roles or any(np.isfinite(value) for value in constants.values()):
            return None
        return cls(event.session, tuple(literals), tuple(holes), constants, line.count(b","))

    def match(self, block: Block, rows: Ints) -> Steps | None:
        """Read those of `rows` that have this layout; None when there is none, or one's numbers are not numbers."""
        rows = rows[block.num_commas[rows] == self.num_commas]
        if not rows.size:
            return None
        begins, ends = block.starts[rows], block.ends[rows]
        commas = self._commas(block, rows)
        stops = np.empty((len(self.holes), rows.size), dtype=np.int64)
        starts = np.empty_like(stops)
        place = begins
        for index, hole in enumerate(self.holes):
            np.add(place, len(self.literals[index]), out=starts[index])
            place = stops[index]
            np.subtract(ends if hole.comma is None else commas[hole.comma], hole.gap, out=place)
        widths = stops - starts
        fits = place + len(self.literals[-1]) == ends
        if int(widths.min()) < 1 or int(widths.max()) > MAX_HOLE:
            fits &= ((widths > 0) & (widths <= MAX_HOLE)).all(axis=0)
        if not fits.all():
            rows, begins, starts, stops, widths = (
                rows[fits],
                begins[fits],
                starts[:, fits],
                stops[:, fits],
                widths[:, fits],
            )
        same = self._same_literals(block, begins, stops)
        if not same.all():
            rows, starts, widths = rows[same], starts[:, same], widths[:, same]
        return self._read(block, rows, starts, widths) if rows.size else None

    def _commas(self, block: Block, rows: Ints) -> Ints:
        """Where the commas of the rows are: one line a comma of the layout, one column a row."""
        first = block.first_comma[rows]
        begin, end = int(first[0]), int(first[-1]) + self.num_commas
        if end - begin == rows.size * self.num_commas:  # no other line between them: nothing to gather
            return block.commas[begin:end].reshape(rows.size, self.num_commas).T
        every: Ints = first + np.arange(self.num_commas, dtype=np.int64)[:, None]
        return block.commas[every]

    def _same_literals(self, block: Block, begins: Ints, stops: Ints) -> _Mask:
        same = np.ones(begins.size, dtype=np.bool_)
        for index, literal in enumerate(self.literals):
            positions = begins if index == 0 else stops[index - 1]
            if not literal or not positions.size:
                continue
            found = block.window(positions, len(literal))
            if found.tobytes() != literal * positions.size:
                same &= (found == np.frombuffer(literal, np.uint8)).all(axis=1)
        return same

    def _read(self, block: Block, rows: Ints, starts: Ints, widths: Ints) -> Steps | None:
        columns: dict[str, Floats] = {}
        metrics = {name: np.full(rows.size, value) for name, value in self.constants.items()}
        step: Ints | None = None
        for index, hole in enumerate(self.holes):
            if hole.role == "digest":
                if not _all_digests(block, starts[index], widths[index]):
                    return None
                continue
            optional = hole.role not in {"ts", "step", "number"}
            exact = hole.role in {"step", "tokens", "samples"}
            values = _parse(_text(block, starts[index], widths[index], optional=optional), rows.size, exact=exact)
            if values is None:
                return None
            if hole.role == "metric":
                metrics[hole.name] = values.astype(np.float64, copy=False)
            elif hole.role == "step":
                if values.dtype != np.int64 or int(values.min()) < 1 or int(values.max()) > MAX_STEP:
                    return None
                step = cast("Ints", values)
            elif hole.role != "number":
                counted = hole.role in {"tokens", "samples"}
                if (counted and values.dtype != np.int64) or (hole.role != "ts" and bool((values < 0).any())):
                    return None
                columns[hole.role] = values.astype(np.float64, copy=False)
        if step is None:
            return None
        return Steps(
            self.session,
            rows,
            columns["ts"],
            step,
            columns.get("duration_s"),
            columns.get("tokens"),
            columns.get("samples"),
            metrics,
        )


@lru_cache(maxsize=MAX_HOLE + 1)
def _row_masks(widest: int) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """For each width up to `widest`: which bytes of a row to keep, and what to put in the others.

    After the text comes a comma, then blanks, which JSON allows between values: two passes of a bitwise operation
    over rows of one width cost half of what it takes to close the gaps between them.
    """
    text = np.tri(widest + 1, k=-1, dtype=np.bool_)
    keep = np.where(text, np.uint8(255), np.uint8(0))
    put = np.where(text, np.uint8(0), np.uint8(_BLANK))
    np.fill_diagonal(put, _COMMA)
    row = f"V{widest + 1}"
    return keep.view(row).reshape(widest + 1), put.view(row).reshape(widest + 1)


def _text(block: Block, starts: Ints, widths: Ints, *, optional: bool) -> _Bytes | None:
    """The texts in one hole, a row each, with a comma and maybe blanks behind; None when one begins like no number."""
    widest = int(widths.max())
    grid = block.window(starts, widest + 1)
    begins_well = (_VALUE_START if optional else _NUMBER_START)[grid[:, 0]]
    if not begins_well.all():
        return None
    if int(widths.min()) == widest:
        grid[:, widest] = _COMMA
        return grid
    keep, put = _row_masks(widest)
    grid &= keep.take(widths).view(np.uint8).reshape(grid.shape)
    grid |= put.take(widths).view(np.uint8).reshape(grid.shape)
    return grid


def _parse(grid: _Bytes | None, count: int, *, exact: bool) -> Floats | Ints | None:
    """The numbers in the rows of `grid`, each with a comma behind, as an array of `count` float64, NaN for null.

    With `exact` they are int64 when all are integers of 64 bits.
    """
    if grid is None:
        return None
    text = grid.tobytes()
    constant = text == text[: grid.shape[1]] * count
    try:
        # The last comma wants a value behind it, which is not looked at.
        values = orjson.loads(b"".join((b"[", text[: grid.shape[1]] if constant else text, b"0]")))
    except orjson.JSONDecodeError:
        return None
    if len(values) != (2 if constant else count + 1):
        return None
    if constant:
        is_integer = exact and type(values[0]) is int and -(2**63) <= values[0] < 2**63
        array = np.array(values[:1], dtype=np.int64 if is_integer else np.float64)
        return cast("Floats | Ints", np.repeat(array, count))
    if exact:
        found = np.array(values)
        if found.dtype == np.int64:
            return cast("Ints", found[:-1])
    try:
        return np.fromiter(values, np.float64, count)
    except TypeError:
        return np.array(values[:-1], dtype=np.float64)  # null among them


def _all_digests(block: Block, starts: Ints, widths: Ints) -> bool:
    """Whether every hole is a quoted hex digest of 8 to 64 digits."""
    widest, narrowest = int(widths.max()), int(widths.min())
    if narrowest < 10 or widest > 66:
        return False
    grid = block.window(starts, widest)
    rows = np.arange(len(widths))
    quoted = (grid[:, 0] == ord('"')) & (grid[rows, widths - 1] == ord('"'))
    inner = np.arange(widest)
    outside = (inner == 0) | (inner >= widths[:, None] - 1)
    return bool(quoted.all() and (_HEX_DIGIT[grid] | outside).all())


def _holes(line: bytes) -> list[tuple[Role, str, int, int]] | None:
    """The numbers and witness digests of a JSON object, with their roles; None when a key comes twice."""
    found: list[tuple[Role, str, int, int]] = []
    seen: set[tuple[str, ...]] = set()
    path: list[str | None] = []  # the key in each open object; None inside an array
    expects_key = False
    at = 0
    while token := _TOKEN.match(line, at):
        at = token.end()
        string, number, mark, word = token.groups()
        if mark in (b"{", b"["):
            path.append("" if mark == b"{" else None)
            expects_key = mark == b"{"
        elif mark in (b"}", b"]"):
            path.pop()
        elif mark == b",":
            expects_key = bool(path) and path[-1] is not None
        elif mark == b":":
            expects_key = False
        elif string is not None and expects_key:
            path[-1] = orjson.loads(string)
            keys = tuple(key for key in path if key is not None)
            if len(keys) <= 2 and keys in seen:
                return None
            seen.add(keys)
        elif string is not None:
            if path[0] == "witness" and len(path) == 2 and _HEX.fullmatch(string):
                found.append(("digest", "", token.start(1), token.end(1)))
        elif number is not None:
            found.append((*_role(path), token.start(2), token.end(2)))
        elif word is None:
            break
    return found if at == len(line) or not line[at:].strip() else None


def _role(path: list[str | None]) -> tuple[Role, str]:
    top = path[0] or ""
    if len(path) == 1 and top in _ROLES:
        return _ROLES[top], ""
    if len(path) == 2 and top == "metrics":
        return "metric", path[1] or ""
    return "number", ""
