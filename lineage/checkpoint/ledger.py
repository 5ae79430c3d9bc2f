"""ledger.jsonl: what happened to each generation. Evidence for people, never needed to restore.

Several processes append: the trainer, `verify`, `pin`. One O_APPEND write per line, under a short lock on the ledger
itself; a torn last line is cut off from the next one by a newline, and skipped by readers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import ValidationError

from lineage import fs
from lineage_schemas.checkpoint import LedgerLine

Action = Literal["committed", "verified", "restored", "drilled", "pinned", "unpinned", "quarantined", "deleted"]

_LOCK_WAIT_S: Final = 2.0
MAX_LEDGER_BYTES: Final = 64 << 20


def append(
    path: Path,
    action: Action,
    checkpoint: str,
    *,
    session: str | None = None,
    ok: bool = True,
    details: Mapping[str, Any] | None = None,
    sync: bool = False,
) -> LedgerLine:
    """Add one line; it survives the death of the process on return, and of the machine when `sync`.

    Raises:
        OSError: the disk refused; a caller whose work was done regardless should say so and go on.
    """
    line = LedgerLine(
        ts=time.time(), action=action, checkpoint=checkpoint, session=session, ok=ok, details=dict(details or {})
    )
    data = orjson.dumps(line.to_wire()) + b"\n"
    if not fs.is_own_folder(path.parent):
        raise OSError(errno.ELOOP, "checkpoints is no folder of the run's own", str(path.parent))
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "the ledger is no plain file", str(path))
        _lock(fd)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data  # what a crash left unfinished ends here, as a line of its own
        fs.write_all(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    return line


def _lock(fd: int) -> None:
    """Wait for the others, but not for one that was stopped while it held the lock: a save must not hang on evidence.

    Without the lock the line is still one write at the end of the file; only a torn line before it may go unseen.
    """
    given_up = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > given_up:
                return
            time.sleep(0.005)
        else:
            return


def read(path: Path) -> list[LedgerLine]:
    """Every whole line, in order; lines that are torn, damaged or of an unknown action are passed over.

    So is a ledger that is no plain file of the run's own or has more than 64 MiB: it is evidence, never needed.
    """
    try:
        data = fs.read_plain(path, MAX_LEDGER_BYTES) if fs.is_own_folder(path.parent) else b""
    except OSError:
        return []
    lines = []
    for raw in data.split(b"\n"):
        if not raw:
            continue
        try:
            lines.append(LedgerLine.model_validate_json(raw))
        except ValidationError:
            continue
    return lines


def deleted_since(path: Path) -> frozenset[str]:
    """The generations that the ledger says are deleted, now.

    A prune tells the ledger first. So a reader that found one half gone, or gone, asks here whether somebody was just
    deleting it before it calls that damage.
    """
    return frozenset(name for name, standing in standings(read(path)).items() if standing.deleted)


@dataclass(frozen=True)
class Standing:
    """What the ledger says about one generation; times are Unix seconds, None for never.

    Attributes:
        verified_at: when the last verification found it whole.
        damaged: the last verification found a fault.
        quarantined: why, None when it is not.
    """

    committed_at: float | None = None
    verified_at: float | None = None
    restored_at: float | None = None
    drilled_at: float | None = None
    pinned: bool = False
    quarantined: str | None = None
    deleted: bool = False
    damaged: bool = False


def standings(lines: list[LedgerLine]) -> dict[str, Standing]:
    """Fold the ledger: generation to what is known of it."""
    state: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = state.setdefault(line.checkpoint, {})
        match line.action:
            case "committed":
                entry["committed_at"] = line.ts
            case "verified":
                entry["damaged"] = not line.ok
                if line.ok:
                    entry["verified_at"] = line.ts
            case "restored":
                if line.ok:
                    entry["restored_at"] = line.ts
            case "drilled":
                if line.ok:
                    entry["drilled_at"] = line.ts
            case "pinned":
                entry["pinned"] = True
            case "unpinned":
                entry["pinned"] = False
            case "quarantined":
                entry["quarantined"] = str(line.details.get("reason", "")) or "no reason recorded" if line.ok else None
            case "deleted":
                entry["deleted"] = True
    return {name: Standing(**entry) for name, entry in state.items()}
