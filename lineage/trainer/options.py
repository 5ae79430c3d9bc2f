"""What a person hands to `lineage.init`: looked at before anything is made, and all that is wrong told at once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from lineage.errors import UsageError
from lineage.trainer.numbers import count
from lineage_schemas.run import Tolerance


def words(given: Collection[str] | str) -> list[str]:
    """Some words as a list; one word may stand alone."""
    return [given] if isinstance(given, str) else list(given)


def tolerance_of(given: Tolerance | float | None) -> Tolerance | None:
    """A tolerance, also where only the relative one was given.

    Raises:
        UsageError: it is none.
    """
    if given is None or isinstance(given, Tolerance):
        return given
    try:
        return Tolerance(rtol=float(given))
    except (TypeError, ValueError, ValidationError):
        hint = "a relative tolerance from 0, such as 1e-3, or a lineage.Tolerance"
        raise UsageError(f"tolerance={given!r:.100}", hint=hint) from None


def check_options(
    *,
    texts: Mapping[str, Any],
    lists: Mapping[str, list[Any]],
    counts: Mapping[str, tuple[Any, int]],
    sync_interval_s: Any,
    data: Any,
) -> None:
    """Refuse options that mean nothing.

    Args:
        texts: what has to be a text.
        lists: what has to be texts.
        counts: what has to be a whole number, and the least it may be.
        sync_interval_s: seconds; without an end to them the thread that syncs would turn in circles, or die of it.
        data: a mapping of splits, or None.

    Raises:
        UsageError: with every problem.
    """
    problems = [f"{name}={given!r:.100} is no text" for name, given in texts.items() if not isinstance(given, str)]
    for name, given in lists.items():
        problems += [f"{name} holds {word!r:.100}, which is no text" for word in given if not isinstance(word, str)]
    for name, (given, least) in counts.items():
        number = count(given)
        if number is None or number < least:
            problems.append(f"{name}={given!r:.100} is no whole number from {least}")
    is_number = isinstance(sync_interval_s, int | float) and not isinstance(sync_interval_s, bool)
    if not is_number or not 0 < sync_interval_s < threading.TIMEOUT_MAX:
        problems.append(f"sync_interval_s={sync_interval_s!r:.100} is no number of seconds above 0")
    if data is not None and not (isinstance(data, Mapping) and all(isinstance(split, str) for split in data)):
        problems.append(f"data={data!r:.100} gives no splits by name")
    if problems:
        raise UsageError(f"lineage.init cannot take this: {'; '.join(problems)}", hint="nothing was written")
