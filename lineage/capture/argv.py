"""The command line of a session, with its secrets masked."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lineage.capture.redact import redact_argv


def printable(text: str) -> str:
    r"""`text` as UTF-8 can hold it: bytes of a file name or argument that are no UTF-8 become `\xNN`."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        pass
    else:
        return text
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that no file name can give
        data = text.encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "backslashreplace")


def capture_argv(argv: Sequence[str] | None = None) -> list[str]:
    """The command line (`sys.argv` when None), one item for each, secrets masked (docs/redaction.md)."""
    return redact_argv([printable(item) for item in (sys.argv if argv is None else argv)])
