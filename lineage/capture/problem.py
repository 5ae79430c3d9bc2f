"""The text of an exception as a file of a run may hold it: one that can be written, masked, and of bounded length.

Exceptions are made by anybody's code. Their texts name URLs with the password in them, hold what no UTF-8 can say, or
raise when they are asked for.
"""

from __future__ import annotations

from typing import Final

from lineage.capture.redact import redact_text
from lineage.log.wire import text

_MAX_TEXT: Final = 2_000
_MAX_READ: Final = 64 * 1024
"""Of a longer text no more is looked at; many times what is kept, so that no half of a secret stands at its end."""


def describe_error(error: BaseException, limit: int = _MAX_TEXT) -> str:
    """The exception's type and text in `limit` characters, credentials masked (docs/redaction.md); never raises."""
    said = error_text(error, limit)
    name = type(error).__name__
    return _cut(f"{name}: {said}" if said else name, limit)


def error_text(error: BaseException, limit: int = _MAX_TEXT) -> str:
    """The exception's text alone, likewise; empty where it has none."""
    try:
        said = text(error)
    except Exception:  # noqa: BLE001  # anybody's `__str__`: how a training ended is recorded all the same
        said = "<its text cannot be made>"
    return _cut(redact_text(said[:_MAX_READ]), limit)


def _cut(said: str, limit: int) -> str:
    return said if len(said) <= limit else said[: limit - 1] + "…"
