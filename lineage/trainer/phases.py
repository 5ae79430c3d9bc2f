"""Training time apart from everything else a process does.

One clock that runs while no phase is open. Phases nest; only the outermost stops the clock, so nothing is counted
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TrainClock:
    """Monotonic seconds of training since the last `lap`, phases left out.

    Args:
        now: monotonic seconds; injected by tests.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._mark = now()
        self._paused_at = 0.0
        self._depth = 0

    @property
    def is_paused(self) -> bool:
        """Whether a phase is open."""
        return self._depth > 0

    def pause(self) -> float:
        """Enter a phase; the time of entering."""
        now = self._now()
        if self._depth == 0:
            self._paused_at = now
        self._depth += 1
        return now

    def resume(self, entered: float) -> float:
        """Leave the phase entered at `entered`; seconds it took."""
        now = self._now()
        self._depth -= 1
        if self._depth == 0:
            self._mark += now - self._paused_at
        return now - entered

    def lap(self) -> float:
        """Seconds of training since the last lap; starts the next."""
        now = self._paused_at if self._depth else self._now()
        seconds = now - self._mark
        self._mark = now
        return seconds if seconds > 0.0 else 0.0  # noqa: FURB136 - a call of max costs 70 ns more, at every step
