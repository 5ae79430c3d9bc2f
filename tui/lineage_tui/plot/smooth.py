"""The debiased exponential mean, in numpy and appendable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from lineage_tui.plot.model import Floats

CHUNK: Final = 1 << 16  # samples at a time: what fits a processor's cache is several times as fast
BLOCK: Final = 64
SETTLED: Final = 40.0  # exp(-40) is far below the last bit of 1


@dataclass(frozen=True)
class EmaState:
    """Where a mean stands: the biased sum, and how many finite samples went in."""

    value: float = 0.0
    count: int = 0


@lru_cache(maxsize=16)
def _triangle(weight: float) -> Floats:
    """What each sample of a block adds to the means after it."""
    later = np.arange(BLOCK)[np.newaxis, :] - np.arange(BLOCK)[:, np.newaxis]
    return np.where(later >= 0, (1.0 - weight) * weight ** np.maximum(later, 0).astype(np.float64), 0.0)


def ema(y: Floats, weight: float, state: EmaState | None = None, out: Floats | None = None) -> tuple[Floats, EmaState]:
    """The debiased exponential mean of `y`, and the state to go on from with the samples that follow.

    With `out`, of the size of `y`, the means of more than `CHUNK` samples are put there.

    s[t] = w s[t-1] + (1 - w) y[t], divided by 1 - w^t (Kingma and Ba 2015, section 3, the same correction as Adam's),
    t counting finite samples. Non-finite samples stay as they are and are left out of the mean.
    """
    state = state or EmaState()
    if weight <= 0 or y.size == 0:
        return y, state
    if y.size > CHUNK:
        smoothed = np.empty(y.size) if out is None else out
        for start in range(0, y.size, CHUNK):
            smoothed[start : start + CHUNK], state = ema(y[start : start + CHUNK], weight, state)
        return smoothed, state
    finite = np.isfinite(y)
    whole = bool(finite.all())
    samples = y if whole else y[finite]
    n = samples.size
    if n == 0:
        return y, state
    # Within a block the mean is a product with a triangle of weights; then what each block hands to the next.
    num_blocks = -(-n // BLOCK)
    padded = np.zeros(num_blocks * BLOCK)
    padded[:n] = samples
    fade = weight ** np.arange(1, BLOCK + 1, dtype=np.float64)
    grid = padded.reshape(num_blocks, BLOCK) @ _triangle(weight)
    carry = np.empty(num_blocks)
    value = state.value
    whole_fade = float(fade[-1])
    for k, last in enumerate(grid[:, -1].tolist()):
        carry[k] = value
        value = last + whole_fade * value
    grid += carry[:, np.newaxis] * fade
    biased = grid.reshape(-1)[:n]
    if state.count * -math.log(weight) > SETTLED:
        smoothed = biased  # divided by exactly 1
    else:
        counts = np.arange(state.count + 1, state.count + n + 1, dtype=np.float64)
        smoothed = biased / -np.expm1(counts * math.log(weight))
    after = EmaState(float(biased[-1]), state.count + n)
    if whole:
        return smoothed, after
    result = y.copy()
    result[finite] = smoothed
    return result, after
