"""The `lineage` command: find the verb, load it and nothing else, turn errors into messages and exit codes.

`lineage --help` must be quick, so the verbs are a static table, and a verb's module is imported only when it is typed.
Verbs of other packages are found through entry points, only when they are needed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from lineage.cli.diagnostics import ExitCode, report

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from lineage.cli.command import Command

__all__ = ["ExitCode", "main"]

VERBS: Final[dict[str, tuple[str, str]]] = {
    "demo": (
        "lineage.demo.command:DemoCommand",
        "train a tiny GPT through a kill, a resume and a preemption",
    ),
    "ls": ("lineage.cli.ls:LsCommand", "the runs of a folder: state, sessions, steps, last loss, age"),
    "show": ("lineage.cli.show:ShowCommand", "a run, or one of its sessions, in full"),
    "log": ("lineage.cli.log:LogCommand", "the events of a run"),
    "export": ("lineage.cli.export:ExportCommand", "the steps of a run as CSV, JSON or Parquet"),
    "audit": ("lineage.cli.audit:AuditCommand", "the continuation verdict of each resume"),
    "diff": ("lineage.cli.diff:DiffCommand", "recipes and environments of two sessions, compared and graded"),
    "explain": ("lineage.cli.explain:ExplainCommand", "what happened around a step, or at each abrupt change"),
    "checkpoints": (
        "lineage.cli.checkpoints:CheckpointsCommand",
        "the checkpoints of a run and their state; pin, unpin, prune",
    ),
    "verify": ("lineage.cli.verify:VerifyCommand", "every artifact of every checkpoint against its manifest"),
    "whence": ("lineage.cli.whence:WhenceCommand", "the session that made this checkpoint or weights file"),
    "repair": ("lineage.cli.repair:RepairCommand", "mend a torn or damaged log, the original kept aside"),
    "schema": ("lineage.cli.schema:SchemaCommand", "the JSON Schemas of the files"),
}
"""Verb to `module:Class` and the line shown in the help, in the order of the help."""

ENTRY_POINTS: Final = "lineage.commands"

_DESCRIPTION: Final = "Experiment lineage for PyTorch training: sessions, checkpoints, proven resumes."
_EPILOG: Final = """\
A REF is a run's path, id or name, with @N, @last or @<session id> for one of its sessions.

examples:
  lineage ls                       the runs in ./runs
  lineage show tiny-gpt@last       what the newest session of a run is and did
  lineage log tiny-gpt --follow    events as they happen

lineage VERB --help tells more, with examples.
"""


class _HelpWanted(Exception):  # noqa: N818  # a way out of argparse, not an error
    """`--help` stood somewhere: it wins over whatever else is wrong with the line."""


class _Help(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise _HelpWanted


class Parser(argparse.ArgumentParser):
    """argparse whose errors are of the family."""

    def error(self, message: str) -> NoReturn:
        from lineage.errors import UsageError

        raise UsageError(message, hint=f"{self.prog} --help")


def _add_globals(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument("-h", "--help", action=_Help, nargs=0, default=argparse.SUPPRESS, help="show this and end")
    group.add_argument(
        "--runs",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the folder of runs in which ids and names are looked up (default: $LINEAGE_RUNS, else runs)",
    )
    group.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Never raises, and prints no traceback without `--debug`."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    debug = "--debug" in words[: words.index("--")] if "--" in words else "--debug" in words
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a locale without UTF-8 must not end in an error
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader had enough, as in `lineage log RUN | head`
        from lineage.cli.output import close_quietly

        close_quietly()
        return ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the last line before a traceback
        return report(error, debug=debug)
    return int(code)


def _open_closed_streams() -> None:
    """Where stdin, stdout or stderr was closed (`>&-`), nothing stands for it, and what is written goes nowhere.

    Left closed, its number would be the next file's that is opened, and `print` would write errors to stdout.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the one that was closed
            setattr(sys, name, os.fdopen(fd, "w" if number else "r", encoding="utf-8", closefd=False))


def _dispatch(words: list[str]) -> ExitCode:
    front = Parser(
        prog="lineage",
        usage="lineage [--runs DIR] [--debug] VERB ...",
        add_help=False,
        allow_abbrev=False,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_globals(front)
    front.add_argument("--version", action="store_true", help="show the version and end")
    cut = _verb_at(words)
    try:
        options = front.parse_args(words[:cut])
    except _HelpWanted:
        cut = len(words)
        options = argparse.Namespace(version=False)
    if options.version:
        from lineage import __version__

        sys.stdout.write(f"lineage {__version__}\n")
        return ExitCode.OK
    if cut == len(words):
        _show_help(front)
        return ExitCode.OK
    command = _load(words[cut])
    parser = parser_of(command)
    del options.version
    try:
        args = parser.parse_args(words[cut + 1 :], namespace=options)
    except _HelpWanted:
        sys.stdout.write(parser.format_help())
        return ExitCode.OK
    args.runs = getattr(args, "runs", None) or os.environ.get("LINEAGE_RUNS") or "runs"
    args.debug = getattr(args, "debug", False)
    from lineage.errors import UsageError

    try:
        return command.run(args)
    except UsageError as error:
        error.hint = error.hint or f"{parser.prog} --help"
        raise


def _verb_at(words: list[str]) -> int:
    """Where the verb stands: the first word that is neither an option nor the value of `--runs`."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] == "--runs" else 1
    return min(at, len(words))


def parser_of(command: Command) -> argparse.ArgumentParser:
    """The parser of a verb: its own arguments, those of every verb, its docstring and its examples."""
    import inspect

    epilog = ""
    if command.examples:
        width = max(len(line) for line, _ in command.examples)
        epilog = "examples:\n" + "\n".join(f"  {line:<{width}}  {says}" for line, says in command.examples)
    parser = Parser(
        prog=f"lineage {command.name}",
        add_help=False,
        allow_abbrev=False,
        description=inspect.getdoc(command) or command.summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.arguments(parser)
    _add_globals(parser)
    return parser


def _load(verb: str) -> Command:
    """The command of this name.

    Raises:
        UsageError: there is no such verb; what comes close is in the hint.
    """
    from lineage.errors import UsageError

    if verb in VERBS:
        module, _, name = VERBS[verb][0].partition(":")
        command: Command = getattr(importlib.import_module(module), name)()
        return command
    others = _entry_points()
    if verb in others:
        try:
            loaded: Command = others[verb].load()()
        except ImportError as error:
            raise UsageError(f"lineage {verb} cannot be loaded: {error}", others[verb].value) from error
        return loaded
    import difflib

    meant = {name: f"lineage {name}" for name in (*VERBS, *others)} | {"version": "lineage --version"}
    close = difflib.get_close_matches(verb, meant, n=1)
    hint = meant[close[0]] if close else "lineage --help lists the verbs"
    raise UsageError(f"there is no verb {verb!r}", hint=hint)


def _entry_points() -> dict[str, EntryPoint]:
    """Verbs of installed packages by name; those of this table cannot be replaced."""
    from importlib.metadata import entry_points

    return {found.name: found for found in entry_points(group=ENTRY_POINTS) if found.name not in VERBS}


def _show_help(front: argparse.ArgumentParser) -> None:
    lines = {name: summary for name, (_, summary) in VERBS.items()}
    for name, found in sorted(_entry_points().items()):
        try:
            lines[name] = str(found.load().summary)
        except Exception as error:  # noqa: BLE001  # a foreign package; its fault must not take the help away
            lines[name] = f"(cannot be loaded: {type(error).__name__})"
    width = max(map(len, lines))
    verbs = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in lines.items())
    front.description = f"{_DESCRIPTION}\n\nverbs:\n{verbs}"
    sys.stdout.write(front.format_help())
