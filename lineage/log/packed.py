"""Columns as a JSON header and one body of bytes: what a cache file holds, and what a helper hands over."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lineage.log.columns import Part, RareLine
from lineage.log.scan import Damage
from lineage.log.session_columns import SessionColumns
from lineage_schemas.ids import SessionId

ALIGN: Final = 64
"""Every array begins at a multiple of this."""


class _Body:
    """Arrays and bytes to be written one after another, aligned."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self.size = 0

    def add(self, data: memoryview) -> list[int]:
        """Place of the part: where it begins in the body, and how many bytes it has."""
        flat = data.cast("B") if data.nbytes else memoryview(b"")
        place = [self.size, flat.nbytes]
        padding = -flat.nbytes % ALIGN
        self.parts += [flat, memoryview(bytes(padding))]
        self.size += flat.nbytes + padding
        return place


def pack(part: Part) -> tuple[dict[str, Any], list[memoryview]]:
    """A header, ready for JSON, and the pieces of the body it describes."""
    body = _Body()
    header = {
        "run": part.run,
        "offset": part.offset,
        "sessions": [session.dump(body.add) for session in part.sessions.values()],
        "rare": {
            "kinds": [line.kind for line in part.rare],
            "sessions": [line.session for line in part.rare],
            "offsets": [line.offset for line in part.rare],
            "sizes": [len(line.data) for line in part.rare],
            "place": body.add(memoryview(b"".join(line.data for line in part.rare))),
        },
        "damage": [[d.offset, d.size_bytes, d.reason, d.num_lines] for d in part.damage],
    }
    return header, body.parts


def unpack(header: dict[str, Any], body: memoryview) -> Part:
    """The inverse of `pack`, on the bytes of the body themselves.

    Raises:
        ValueError: a part lies outside of the body; also KeyError, TypeError and others, as the header is from a file.
    """

    def piece(place: list[int]) -> memoryview:
        start, size = place
        if start < 0 or size < 0 or start + size > body.nbytes:
            raise ValueError("a part of the columns lies outside of their bytes")
        return body[start : start + size]

    sessions: dict[SessionId, SessionColumns] = {}
    for dumped in header["sessions"]:
        session = SessionColumns.restore(dumped, piece)
        sessions[session.session] = session
    rare = header["rare"]
    text = bytes(piece(rare["place"]))
    ends = np.cumsum([0, *rare["sizes"]]).tolist()
    lines = [
        RareLine(kind, SessionId(session), at, text[ends[index] : ends[index + 1]])
        for index, (kind, session, at) in enumerate(zip(rare["kinds"], rare["sessions"], rare["offsets"], strict=True))
    ]
    damage = [Damage(at, size, reason, num_lines) for at, size, reason, num_lines in header["damage"]]
    return Part(header["run"], header["offset"], sessions, lines, damage)
