"""The family of deliberate errors; the base and the format errors live on the ground floor."""

from __future__ import annotations

from lineage_schemas.errors import FormatError, LineageError, NewerFormatError, RefError

__all__ = [
    "CheckpointError",
    "DamagedError",
    "FormatError",
    "LineageError",
    "LockedError",
    "NewerFormatError",
    "NotFoundError",
    "RefError",
    "UsageError",
]


class UsageError(LineageError):
    """The caller asked for something that makes no sense; exit code 2."""


class NotFoundError(LineageError):
    """There is no such run, session, generation or file; exit code 3."""


class LockedError(LineageError):
    """Another live process writes this run; exit code 5.

    Attributes:
        pid, host, session: the owner, as far as its lock file tells.
    """

    def __init__(
        self,
        what: str,
        where: str = "",
        hint: str = "",
        *,
        pid: int | None = None,
        host: str | None = None,
        session: str | None = None,
    ) -> None:
        super().__init__(what, where, hint)
        self.pid = pid
        self.host = host
        self.session = session

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword-only fields across processes."""
        state = {"pid": self.pid, "host": self.host, "session": self.session}
        return (type(self), (self.what, self.where, self.hint), state)


class DamagedError(FormatError):
    """Bytes that were once right no longer are; exit code 1."""


def without_torch(error: ModuleNotFoundError, what: str) -> LineageError | ModuleNotFoundError:
    """What to raise where an import failed: of torch, a refusal that names the extra; of anything else, as it is.

    Args:
        error: of the import.
        what: needs PyTorch; begins the sentence.
    """
    if (error.name or "").partition(".")[0] != "torch":
        return error
    return LineageError(
        f"{what} needs PyTorch, which is not installed",
        hint='pip install "lineage-tracker[torch]"; a run that tracks nothing logs without it',
    )


class CheckpointError(LineageError):
    """A checkpoint cannot be saved or restored; subclasses live in `lineage.checkpoint.errors`."""
