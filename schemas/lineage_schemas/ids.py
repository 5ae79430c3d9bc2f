"""Ids a person can type and sort, and the grammar of REFs (docs/format.md, "References").

A run id is `YYYYMMDD-HHMMSS-<slug>` (UTC), a session id `s<ordinal>-<8 hex>`, a generation's name
`step-<8 digits>-s<ordinal>-<8 hex>`. Ordinals and steps may outgrow their padding, to 9 and 15 digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NewType

from lineage_schemas.errors import RefError

RunId = NewType("RunId", str)
SessionId = NewType("SessionId", str)
GenerationName = NewType("GenerationName", str)

RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
MAX_STEP: Final = 2**53
"""No file has a larger step: up to here a step is exact in 64-bit integers and in the doubles that charts draw."""
MAX_ORDINAL: Final = 10**9 - 1
"""Most sessions a run can name."""
SESSION_ID_PATTERN: Final = r"^s[0-9]{2,9}-[0-9a-f]{8}$"
GENERATION_PATTERN: Final = r"^step-[0-9]{8,15}-s[0-9]{2,9}-[0-9a-f]{8}$"

_GENERATION = re.compile(r"step-([0-9]{8,15})-s([0-9]{2,9})-([0-9a-f]{8})")
_SESSION = re.compile(r"s([0-9]{2,9})-([0-9a-f]{8})")


def slug(name: str) -> str:
    """Lower-case ASCII letters, digits and single dashes, at most 40 characters; `run` when nothing is left."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return text or "run"


def make_run_id(name: str, created_at: datetime) -> RunId:
    """The id of a run created at `created_at` (aware); unique only once its folder was made exclusively."""
    return RunId(f"{created_at.astimezone(UTC):%Y%m%d-%H%M%S}-{slug(name)}")


def make_session_id(ordinal: int, nonce: int) -> SessionId:
    """The id of the `ordinal`-th session (from 1); `nonce` is 32 random bits."""
    return SessionId(f"s{ordinal:02d}-{nonce & 0xFFFFFFFF:08x}")


def make_generation_name(step: int, ordinal: int, nonce: int) -> GenerationName:
    """The folder name of a generation after `step` completed steps; `nonce` is 32 random bits."""
    return GenerationName(f"step-{step:08d}-s{ordinal:02d}-{nonce & 0xFFFFFFFF:08x}")


def parse_generation_name(name: str) -> tuple[int, int] | None:
    """`(step, session ordinal)` of a generation's folder name, or None when it is no such name."""
    found = _GENERATION.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def is_session_id(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


@dataclass(frozen=True)
class Ref:
    """What a person typed to name a run or one of its sessions.

    Attributes:
        run: a path or a run id; None when only a session id was given.
        session: ordinal from 1, `"last"`, a full session id, or None for the whole run.
    """

    run: str | None
    session: int | str | None = None

    def __str__(self) -> str:
        if self.session is None:
            return self.run or ""
        return f"{self.run}@{self.session}" if self.run else str(self.session)


def parse_ref(text: str) -> Ref:
    """Parse `RUN`, `RUN@N`, `RUN@last`, `RUN@<session id>` or a bare session id.

    The last `@` decides; a path with an `@` in it is taken as a path when what follows is no session.

    Raises:
        RefError: empty text, an ordinal of 0, or something after `@` that names no session.
    """
    if not text or "\0" in text:
        raise RefError("an empty REF names nothing", hint="give a run's path or id, with @N for a session")
    if is_session_id(text):
        return Ref(None, text)
    run, at, session = text.rpartition("@")
    if not at or "/" in session:
        return Ref(text)
    if not run:
        raise RefError(f"REF {text!r} names a session of no run", hint="write RUN@N")
    if session == "last" or is_session_id(session):
        return Ref(run, session)
    if session.isascii() and session.isdigit() and 0 < len(session) <= 9 and int(session) > 0:
        return Ref(run, int(session))
    raise RefError(f"{session!r} after @ names no session", text, "write RUN@N (from 1), RUN@last or RUN@<session id>")
