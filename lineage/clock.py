"""The machine's clock as a date, wherever it stands: recording never stops training, and not for a clock either."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

_LAST_S: Final = 253_402_300_799.0
"""The last second of the year 9999, beyond which no file of a run could name the day."""


def utc_now() -> datetime:
    """Now, in UTC; of a clock before 1970 or beyond 9999 the nearest date between them."""
    return datetime.fromtimestamp(min(max(time.time(), 0.0), _LAST_S), UTC)
