"""The base of every deliberate error of Lineage: what happened, where, and what to do next."""

from __future__ import annotations


class LineageError(Exception):
    """An error a person can act on.

    Attributes:
        what: what happened, one sentence without a full stop.
        where: a path with line or byte offset, or an id; empty when the sentence says it all.
        hint: what to do next, a command where there is one; empty when nothing helps.
    """

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        # All fields go up, so that the error survives pickling on its way out of a worker process.
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" [{self.where}]"
        if self.hint:
            text += f"; {self.hint}"
        return text


class FormatError(LineageError):
    """A file or line is not what its format promises: damaged, or never ours."""


class NewerFormatError(FormatError):
    """A file was written by a newer major version of its format; nothing in it is guessed."""


class RefError(LineageError):
    """A REF does not follow the grammar of docs/format.md, "References"."""
