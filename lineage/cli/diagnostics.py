"""stderr and exit codes: what people read when something is not data."""

from __future__ import annotations

import enum
import errno
import sys
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from lineage.log.scan import Damage


class ExitCode(enum.IntEnum):
    """What the process answers; a contract with scripts (docs/cli.md)."""

    OK = 0
    FAILED = 1
    """The check failed, or something is damaged."""
    USAGE = 2
    NOT_FOUND = 3
    LOCKED = 5
    """Another session writes the run."""
    INTERRUPTED = 130


_NEXT: Final = {
    errno.ENOENT: "see whether its folder is there, or was moved or deleted; lineage ls DIR shows the runs of one",
    errno.EACCES: "ls -l shows whose it is; its owner can let you in with chmod",
    errno.EPERM: "ls -l shows whose it is; its owner can let you in with chmod",
    errno.EROFS: "a copy of it on a disk that can be written",
    errno.ENOSPC: "make room on that disk, then the same command again",
    errno.EDQUOT: "make room within your quota, then the same command again",
    errno.EIO: "the same command again; if it fails again, save what can be read of that disk",
    errno.ESTALE: "the same command again: the file server no longer knows that file",
    errno.ELOOP: "the file or folder itself, not a link to it",
    errno.ENAMETOOLONG: "a shorter name",
    errno.EMFILE: "ulimit -n 4096, then the same command again",
    errno.ENOLCK: "a disk that takes locks; this one refuses them",
}
"""What to do about what the system refused, where whoever asked has nothing closer to say."""


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that stands for an error of the family; FAILED for every other."""
    from lineage import errors

    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case errors.UsageError() | errors.RefError():
            return ExitCode.USAGE
        case errors.NotFoundError() | FileNotFoundError():
            return ExitCode.NOT_FOUND
        case errors.LockedError():
            return ExitCode.LOCKED
        case _:
            return ExitCode.FAILED


def note(text: str, stream: TextIO | None = None) -> None:
    """A line for people: progress, a warning, what was passed over."""
    from lineage.cli.output import clean

    _write(clean(text), stream)


def tell_damage(damage: Sequence[Damage], rest: str, ref: str) -> ExitCode:
    """Say what of the run `ref` could not be read and what became of the `rest`; FAILED when there was anything."""
    places = [found for found in damage if found.size_bytes]
    for found in damage:
        if not found.size_bytes:  # of a whole file
            note(found.reason)
    if places:
        where = f"in {len(places):,} places, first at" if len(places) > 1 else "at"
        note(f"the log is damaged {where} {places[0]}; {rest}")
        note(f"  try: {repair_hint(ref)}")
    return ExitCode.FAILED if damage else ExitCode.OK


def repair_hint(ref: str) -> str:
    """What to do about bad lines in the log of the run or session `ref`."""
    import shlex

    from lineage_schemas.ids import parse_ref

    run = shlex.quote(parse_ref(ref).run or "RUN")
    return (
        f"lineage repair {run} --dry-run lists them; without --dry-run it keeps the good lines, and the old log aside"
    )


def report(error: BaseException, *, debug: bool = False, stream: TextIO | None = None) -> ExitCode:
    """Say what went wrong, where, and what to do; the exit code. A traceback only with `debug`."""
    from lineage.cli.output import clean
    from lineage.errors import LineageError

    if debug:
        lines = "".join(traceback.format_exception(error)).rstrip().split("\n")
        _write("\n".join(map(clean, lines)), stream)  # an error quotes what was typed, or what a file says
    if isinstance(error, KeyboardInterrupt):
        _write("interrupted", stream)
    elif isinstance(error, LineageError):
        _write(f"error: {clean(error.what)}", stream)
        if error.where:
            _write(f"  at {clean(error.where)}", stream)
        hint = error.hint or (_next_after(error.__cause__) if isinstance(error.__cause__, OSError) else "")
        if hint:
            _write(f"  try: {clean(hint)}", stream)
    elif isinstance(error, OSError):
        _write(f"error: {clean(error.strerror or str(error))}", stream)
        if error.filename is not None:
            _write(f"  at {clean(str(error.filename))}", stream)
        _write(f"  try: {_next_after(error)}", stream)
    else:
        _write(f"error: {type(error).__name__}: {clean(str(error))}", stream)
        _write("  try: the same command with --debug shows where; it is a defect of Lineage", stream)
    return exit_code_of(error)


def _next_after(error: OSError) -> str:
    return _NEXT.get(error.errno or 0, "the same command again; with --debug it shows where that was")


def _write(text: str, stream: TextIO | None) -> None:
    """One line to stderr; a stderr that is gone is no reason to fail."""
    try:
        print(text, file=stream or sys.stderr, flush=True)
    except (OSError, ValueError):
        return
