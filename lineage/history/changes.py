r"""Abrupt changes of a curve: jumps, spikes, and where it stops being a number.

The statistics, for a curve `x` over the rows of the effective history (docs/decisions/043):

- `y = log x` where every value is positive, else `y = asinh(x / median |x|)`: a jump counts by its ratio.
- `m` is the running median of five of `y`: no spike of one or two rows can look like a jump.
- The noise of one row is `s = 1.4826 / sqrt 2 * median |y[i] - y[i-1]|` in blocks of 256 rows; of a block and its
  neighbours the largest counts, here and below.
- For windows of w rows, L the mean of `m` over the w rows before row t, R over the w rows from t on, LL and RR the
  windows beyond: the jump beyond what the slopes on both sides predict is
  `J = (R - L) - ((L - LL) + (RR - R)) / 2`. For white noise its deviation is `sqrt(5 / w) s`; the larger of that and
  of `1.4826 * median |J|` around is used, so that correlated noise raises the bar.
- A row is a jump when J has the sign of R - L, is `Z` deviations and `VISIBLE` times the row noise, and reaches the
  metric's smallest ratio; w is 8, 32 and 128 (throughput: 16 and 64). Of neighbours the largest counts, placed by the
  split of its surroundings that separates best; the medians of both sides must differ by half of J, since a few odd
  rows in a window are no jump. At a row where something is known to have happened (a session began) `Z_KNOWN` is
  enough: few rows are asked about, not a million.
- A spike (only of losses) is one or two rows, `Z_SPIKE` row noises above the median of five around them and
  `RATIO_SPIKE` times as high as the third highest within 2000 rows (spikes come in twos and threes).
- A stretch of non-finite values is a change by itself.

Everything is a few passes of numpy over the curve; a million rows take about half a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

Kind = Literal["jump", "drop", "spike", "non_finite"]

WINDOWS: Final = (8, 32, 128)
SLOW_WINDOWS: Final = (16, 64)
"""For throughput, where a few slow steps in a row are ordinary."""

_SIDE: Final = 32
Z: Final = 6.5
Z_KNOWN: Final = 4.5
VISIBLE: Final = 2.5
VISIBLE_KNOWN: Final = 1.5
Z_SPIKE: Final = 12.0
RATIO_SPIKE: Final = 3.5
_BLOCK: Final = 256
_NEARBY: Final = 2_000
_APART: Final = 4
_MIN_ROWS: Final = 24


@dataclass(frozen=True)
class Curve:
    """One quantity over the effective history; arrays of one length, in order."""

    step: Ints
    value: Floats


@dataclass(frozen=True)
class Shift:
    """An abrupt change of a curve.

    Attributes:
        step: the first step that shows it.
        before, after: medians of up to 32 rows on both sides; for a spike `after` is its peak.
        size: in deviations of what noise alone would do; infinite for non-finite values.
        num_rows: rows a spike or a non-finite stretch lasts; 0 for a lasting change.
    """

    step: int
    kind: Kind
    before: float
    after: float
    size: float
    num_rows: int = 0


def find_shifts(
    curve: Curve,
    *,
    known: Sequence[int] = (),
    min_ratio: float = 0.01,
    windows: Sequence[int] = WINDOWS,
    spikes: bool = True,
) -> list[Shift]:
    """The abrupt changes of a curve, by step.

    Args:
        curve: NaN and infinities are values.
        known: steps at which something is known to have begun; a smaller change is believed there.
        min_ratio: changes below it are never reported, however quiet the curve is (0.01: one per cent).
        windows: rows on each side that a change is told from, in several lengths.
        spikes: whether to look for changes of one or two rows.
    """
    step = np.asarray(curve.step, dtype=np.int64)
    value = np.asarray(curve.value, dtype=np.float64)
    finite = np.isfinite(value)
    found = _non_finite(step, value, finite)
    step, value = step[finite], value[finite]
    if len(step) >= _MIN_ROWS:
        with np.errstate(over="ignore", invalid="ignore"):  # a log may claim any number
            found += _Scan(step, value, min_ratio, windows).shifts(known, spikes=spikes)
    return sorted(found, key=lambda shift: shift.step)


def _non_finite(step: Ints, value: Floats, finite: Bools) -> list[Shift]:
    """Each stretch of values that are none; stretches less than ten rows apart are one."""
    bad = np.flatnonzero(~finite)
    if not bad.size:
        return []
    stretches = np.split(bad, np.flatnonzero(np.diff(bad) > 10) + 1)
    found = []
    for rows in stretches:
        first = int(rows[0])
        before = value[first - 1] if first else np.nan
        found.append(Shift(int(step[first]), "non_finite", float(before), float(value[first]), np.inf, len(rows)))
    return found


@dataclass(frozen=True)
class _Jump:
    """A lasting change at a row: `size` in deviations, `height` in the transformed value, told from `width` rows."""

    row: int
    size: float
    height: float
    width: int


class _Scan:
    """One curve of finite values, transformed, with its noise."""

    def __init__(self, step: Ints, value: Floats, min_ratio: float, windows: Sequence[int]) -> None:
        self.step = step
        self.value = value
        self.y = _transform(value)
        self.m = _median_of(self.y, 5)
        self.floor = float(np.log1p(min_ratio))
        self.noise = _row_noise(self.y)
        self.windows = windows
        self.jumps: dict[int, tuple[Floats, Floats]] = {}
        self.sums = np.concatenate(([0.0], np.cumsum(self.m - self.m.mean())))

    def shifts(self, known: Sequence[int], *, spikes: bool) -> list[Shift]:
        found: dict[int, _Jump] = {}
        for width in self.windows:
            if len(self.y) < 3 * width:
                continue
            jump, deviation = self.jumps[width] = self._jumps(width)
            for row in self._peaks(jump, deviation, width):
                height = float(jump[row])
                placed = self._place(row, width, height)
                if self._lasts(placed, width, height):
                    _keep_larger(found, _Jump(placed, abs(height / float(deviation[row])), height, width))
        begun_rows = {int(np.searchsorted(self.step, begun)) for begun in known}
        for row in begun_rows:
            for candidate in self._at(row):
                _keep_larger(found, candidate)
        kept = _without_neighbours(found.values(), begun_rows)
        rows = [jump.row for jump in kept]
        shifts = [
            self._shift(jump, low, high)
            for jump, low, high in zip(kept, [0, *rows], [*rows[1:], len(self.y)], strict=False)
        ]
        return shifts + (self._spikes(rows) if spikes else [])

    def _mean(self, first: Ints, last: Ints) -> Floats:
        found: Floats = (self.sums[last] - self.sums[first]) / (last - first)
        return found

    def _jumps(self, width: int) -> tuple[Floats, Floats]:
        """J and its deviation at every row; 0 where the curve is too short to tell."""
        count = len(self.y)
        jump = np.zeros(count)
        row = np.arange(width, count - width + 1)
        step = self._mean(row, row + width) - self._mean(row - width, row)  # R - L, from row `width` on
        left = np.zeros(len(row))
        left[width:] = step[:-width]  # the same one window earlier: L - LL
        right = np.zeros(len(row))
        right[:-width] = step[width:]
        late = len(row) - width
        beyond = step - (left + right) / 2
        beyond[:width] = np.where(step[:width] > 0, step[:width], 0.0)
        beyond[max(width, late) :] = (step - left)[max(width, late) :]
        around = 1.4826 * _smooth_blocks(np.abs(beyond), max(_BLOCK, 16 * width))
        beyond[np.sign(beyond) != np.sign(step)] = 0.0
        jump[row[:-1]] = beyond[:-1]
        deviation = np.full(count, np.inf)
        deviation[row[:-1]] = np.maximum(around, np.sqrt(5.0 / width) * self.noise[row[0] : row[-1] + 1])[:-1]
        # A curve without noise: the smallest change worth telling must still be a few deviations.
        return jump, np.maximum(deviation, self.floor / Z)

    def _peaks(self, jump: Floats, deviation: Floats, width: int) -> list[int]:
        """The highest row of each group of rows that are jumps."""
        height = np.abs(jump)
        enough = (height > Z * deviation) & (height > VISIBLE * self.noise) & (height >= self.floor)
        rows = np.flatnonzero(enough)
        if not rows.size:
            return []
        peaks = []
        for one_way in (rows[jump[rows] > 0], rows[jump[rows] < 0]):  # a rise and the fall after it are two changes
            groups = np.split(one_way, np.flatnonzero(np.diff(one_way) > width) + 1)
            peaks += [int(group[np.argmax(height[group])]) for group in groups if group.size]
        return sorted(peaks)

    def _place(self, row: int, width: int, jump: float) -> int:
        """The row around `row` that splits its surroundings best."""
        low, high = max(0, row - width), min(len(self.y), row + width)
        part = self.y[low:high]
        part = np.clip(part, *np.quantile(part, [0.05, 0.95]))
        count = len(part)
        sums = np.cumsum(part)
        left = np.arange(1, count)
        difference = (sums[-1] - sums[:-1]) / (count - left) - sums[:-1] / left
        score = np.sign(jump) * difference * np.sqrt(left * (count - left))
        return low + 1 + int(np.argmax(score))

    def _lasts(self, row: int, width: int, jump: float) -> bool:
        """Whether the medians of both sides differ by half the jump at least: a few odd rows do not make one."""
        before, after = self.y[max(0, row - width) : row], self.y[row : row + width]
        return bool((np.median(after) - np.median(before)) * np.sign(jump) >= abs(jump) / 2)

    def _at(self, row: int) -> Iterator[_Jump]:
        """The jumps believed at a row where something is known to have begun."""
        if row >= len(self.y):
            return
        for width, (jump, deviation) in self.jumps.items():
            height = float(jump[row])
            size = abs(height / float(deviation[row]))
            if size > Z_KNOWN and abs(height) >= max(self.floor, VISIBLE_KNOWN * float(self.noise[row])):
                yield _Jump(row, size, height, width)

    def _shift(self, jump: _Jump, low: int, high: int) -> Shift:
        """The jump with the levels on both sides, as far as no other change stands between."""
        row = jump.row
        before = self.value[max(low, row - _SIDE) : row] if row else self.value[:1]
        after = self.value[row : min(high, row + _SIDE)]
        kind: Kind = "jump" if jump.height > 0 else "drop"
        return Shift(int(self.step[row]), kind, float(np.median(before)), float(np.median(after)), jump.size)

    def _spikes(self, jumps: Sequence[int]) -> list[Shift]:
        residual = self.y - self.m
        rows = np.flatnonzero(residual > np.maximum(Z_SPIKE * self.noise, 3 * self.floor))
        if not rows.size:
            return []
        groups = np.split(rows, np.flatnonzero(np.diff(rows) > 2) + 1)
        found = []
        for group in sorted(groups, key=lambda group: -float(residual[group].max()))[:_NEARBY]:
            first, last = int(group[0]), int(group[-1])
            if last - first > 2 or any(abs(row - first) <= _SIDE for row in jumps):
                continue
            low, high = max(0, first - _NEARBY), min(len(self.y), last + _NEARBY)
            others = np.concatenate((residual[low : max(low, first - 5)], residual[last + 6 : high]))
            peak = float(residual[group].max())
            if others.size > 2 and peak < RATIO_SPIKE * float(np.partition(np.abs(others), -3)[-3]):
                continue
            top = group[np.argmax(residual[group])]
            before = float(np.median(self.value[max(0, first - _SIDE) : first])) if first else float("nan")
            size = peak / max(float(self.noise[top]), 1e-300)
            found.append(Shift(int(self.step[first]), "spike", before, float(self.value[top]), size, last - first + 1))
        return found


def _transform(value: Floats) -> Floats:
    if bool((value > 0).all()):
        return np.log(value)
    scale = float(np.median(np.abs(value)))
    return np.arcsinh(value / (scale if scale > 0 else 1.0))


def _median_of(y: Floats, width: int) -> Floats:
    """Running median over an odd number of rows, the ends repeated."""
    half = width // 2
    padded = np.pad(y, half, mode="edge")
    found: Floats = np.empty_like(y)
    # In pieces, so that a million rows do not take a hundred megabytes.
    for low in range(0, len(y), 65_536):
        high = min(len(y), low + 65_536)
        windows = np.stack([padded[low + i : high + i] for i in range(width)])
        windows.partition(half, axis=0)
        found[low:high] = windows[half]
    return found


def _row_noise(y: Floats) -> Floats:
    """Deviation of one row from a smooth curve, at every row."""
    changes: Floats = np.abs(np.diff(y, prepend=y[:1]))
    if len(changes) > 1:
        changes[0] = changes[1]
    noise: Floats = np.maximum(1.4826 / np.sqrt(2.0) * _smooth_blocks(changes, _BLOCK), 1e-12)
    return noise


def _smooth_blocks(values: Floats, block: int) -> Floats:
    """Medians of blocks, each replaced by the largest of itself and its neighbours, at every row."""
    count = len(values)
    blocks = max(1, count // block)
    whole = (blocks - 1) * block  # the last block takes what does not fill one
    medians = np.empty(blocks)
    medians[:-1] = np.median(values[:whole].reshape(blocks - 1, block), axis=1) if whole else []
    medians[-1] = np.median(values[whole:])
    if blocks > 2:
        padded = np.pad(medians, 1, mode="edge")
        medians = np.maximum(np.maximum(padded[:-2], padded[2:]), medians)
    found: Floats = np.repeat(medians, [*[block] * (blocks - 1), count - whole])
    return found


def _keep_larger(found: dict[int, _Jump], jump: _Jump) -> None:
    """Of jumps at one row, told from different windows, the surest."""
    if jump.row not in found or found[jump.row].size < jump.size:
        found[jump.row] = jump


def _without_neighbours(found: Iterable[_Jump], known: Collection[int]) -> list[_Jump]:
    """Of changes close to each other only the largest, one at a known row before all; a fall may follow a rise.

    A jump has echoes of half its height and the other sign one window away, where it lies in one of the slopes.
    """
    kept: list[_Jump] = []
    for jump in sorted(found, key=lambda jump: (jump.row not in known, -jump.size)):
        for other in kept:
            apart = abs(jump.row - other.row)
            if jump.height * other.height > 0:
                hidden = apart <= _SIDE
            else:
                echo = apart <= 2 * jump.width and abs(jump.height) <= 0.75 * abs(other.height)
                hidden = apart <= _APART or echo
            if hidden:
                break
        else:
            kept.append(jump)
    return sorted(kept, key=lambda jump: jump.row)
