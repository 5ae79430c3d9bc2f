"""What a verb of the command line is; other packages add theirs under the entry points `lineage.commands`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from lineage.cli.diagnostics import ExitCode


class Command:
    """A verb: its docstring is its help.

    Attributes:
        name: what people type.
        summary: one line for `lineage --help`.
        examples: command lines and what each does; a test runs all of them, in a folder whose `runs/` has a run
            called `tiny-gpt` with three sessions.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    examples: ClassVar[tuple[tuple[str, str], ...]] = ()

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's own arguments; `--runs`, `--debug` and `--help` are there for all."""

    def run(self, args: argparse.Namespace) -> ExitCode:
        """Do it. Raises a `LineageError` for everything a person can act on."""
        raise NotImplementedError
