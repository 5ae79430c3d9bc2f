"""Extremes of any stretch of a long series in a time that does not depend on its length.

Level 0 keeps the minimum and maximum of each whole block of 64 samples, each level above those of four blocks below.
A stretch is answered exactly: raw samples at its ends, then ever larger whole blocks towards its middle. First and
last values need no level of their own, since the fold looks at the raw samples at the edges of its columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lineage_tui.plot.model import NO_INDEX, Floats, Ints

BLOCK: Final = 64
FAN: Final = 4
MANY_BLOCKS: Final = 16384
"""So many blocks of the lowest level are looked through faster than the levels above are climbed."""
_CHUNK: Final = BLOCK * 16384


class Pyramid:
    """Minimum and maximum per block of a series that grows at its end; non-finite samples are left out of them.

    Attributes:
        size: samples taken in so far.
        bad: indices of the non-finite samples among them, ascending.
    """

    def __init__(self) -> None:
        self.size = 0
        self._levels: list[tuple[_Growing, _Growing]] = []
        self._bad: list[Ints] = []
        self._bad_merged: Ints = NO_INDEX
        self._bad_seen = 0  # samples already looked at for `bad`

    @property
    def bad(self) -> Ints:
        if self._bad:
            self._bad_merged = np.concatenate([self._bad_merged, *self._bad])
            self._bad.clear()
        return self._bad_merged

    @property
    def nbytes(self) -> int:
        return sum(lo.data.nbytes + hi.data.nbytes for lo, hi in self._levels) + self.bad.nbytes

    def extend(self, y: Floats) -> None:
        """Take in the samples of `y` beyond `size`; `y` is the whole series, its known part unchanged."""
        if y.size <= self.size:
            return
        for start in range(self._bad_seen, y.size, _CHUNK):
            part = y[start : start + _CHUNK]
            found = np.flatnonzero(~np.isfinite(part))
            if found.size:
                self._bad.append(found.astype(np.int64) + start)
        self._bad_seen = y.size
        self.size = y.size
        if not self._levels:
            self._levels.append((_Growing(), _Growing()))
        lo, hi = self._levels[0]
        for start in range(lo.size * BLOCK, y.size - BLOCK + 1, _CHUNK):
            part = y[start : start + _CHUNK]
            whole = part[: part.size // BLOCK * BLOCK].reshape(-1, BLOCK)
            if not np.isfinite(whole).all():
                whole = np.where(np.isfinite(whole), whole, np.nan)
                lo.append(np.fmin.reduce(whole, axis=1))
                hi.append(np.fmax.reduce(whole, axis=1))
            else:
                lo.append(whole.min(axis=1))
                hi.append(whole.max(axis=1))
        level = 0
        while self._levels[level][0].size >= FAN:
            if level + 1 == len(self._levels):
                self._levels.append((_Growing(), _Growing()))
            for below, above, reduce in (
                (self._levels[level][0], self._levels[level + 1][0], np.fmin.reduce),
                (self._levels[level][1], self._levels[level + 1][1], np.fmax.reduce),
            ):
                new = below.data[above.size * FAN : below.size // FAN * FAN]
                if new.size:
                    above.append(reduce(new.reshape(-1, FAN), axis=1))
            level += 1

    def extreme(self, y: Floats, first: int, last: int) -> tuple[float, float]:
        """Smallest and largest finite sample of one stretch [first, last); both NaN where it holds none."""
        whole, end = -(-first // BLOCK), last // BLOCK
        if not self._levels or not 0 < end - whole <= MANY_BLOCKS:
            lo, hi = self.extremes(y, np.array([first]), np.array([last]))
            return float(lo[0]), float(hi[0])
        ends = np.concatenate((y[first : whole * BLOCK], y[end * BLOCK : last]))
        ends = ends[np.isfinite(ends)]
        below, above = (level.data[whole:end] for level in self._levels[0])
        least, most = np.fmin.reduce(below), np.fmax.reduce(above)
        if ends.size:
            least, most = np.fmin(least, ends.min()), np.fmax(most, ends.max())
        return float(least), float(most)

    def extremes(self, y: Floats, starts: Ints, stops: Ints) -> tuple[Floats, Floats]:
        """Smallest and largest finite sample of each stretch [start, stop); NaN where it holds none."""
        lo = np.full(starts.size, np.nan)
        hi = np.full(starts.size, np.nan)
        a, b = starts, np.maximum(stops, starts)
        below_lo, below_hi, fan = y, y, BLOCK
        for level_lo, level_hi in self._levels:
            head = np.minimum(b, -(-a // fan) * fan)
            tail = np.maximum(head, b // fan * fan)
            _reduce_into((lo, hi), (below_lo, below_hi), a, head)
            _reduce_into((lo, hi), (below_lo, below_hi), tail, b)
            a = -(-a // fan)
            b = np.maximum(a, tail // fan)
            below_lo, below_hi, fan = level_lo.data, level_hi.data, FAN
            if not (b > a).any():
                return lo, hi
        _reduce_into((lo, hi), (below_lo, below_hi), a, b)
        return lo, hi


class _Growing:
    """An array that is appended to; capacity doubles."""

    def __init__(self) -> None:
        self._buffer = np.empty(16, dtype=np.float64)
        self.size = 0

    @property
    def data(self) -> Floats:
        return self._buffer[: self.size]

    def append(self, values: Floats) -> None:
        needed = self.size + values.size
        if needed > self._buffer.size:
            grown = np.empty(max(needed, self._buffer.size * 2), dtype=np.float64)
            grown[: self.size] = self.data
            self._buffer = grown
        self._buffer[self.size : needed] = values
        self.size = needed


def _reduce_into(into: tuple[Floats, Floats], below: tuple[Floats, Floats], starts: Ints, stops: Ints) -> None:
    """Widen lo and hi by the extremes of the short stretches [start, stop)."""
    (lo, hi), (below_lo, below_hi) = into, below
    which = np.flatnonzero(stops > starts)
    if not which.size:
        return
    first, lengths = starts[which], (stops - starts)[which]
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    flat = np.repeat(first - offsets, lengths) + np.arange(int(lengths.sum()))
    low = below_lo[flat]
    high = low if below_hi is below_lo else below_hi[flat]
    if below_hi is below_lo and not np.isfinite(low).all():
        low = high = np.where(np.isfinite(low), low, np.nan)
    lo[which] = np.fmin(lo[which], np.fmin.reduceat(low, offsets))
    hi[which] = np.fmax(hi[which], np.fmax.reduceat(high, offsets))
