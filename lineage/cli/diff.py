"""`lineage diff`: what differs between two sessions, and how much it matters."""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lineage import fs
from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Output
from lineage.cli.refs import Target, find
from lineage.errors import FormatError, UsageError

if TYPE_CHECKING:
    from lineage.history.diff import Compared, Difference, Grade, Section, SessionSide
    from lineage_schemas.run import Session

_LIVE: Final = "live"
_GRADES: Final[dict[Grade, str]] = {
    "experiment": "changes the experiment",
    "numerics": "may change numerics",
    "harmless": "harmless",
}
_MAX_COMMITS: Final = 50
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_MAX_PATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class _Side:
    side: SessionSide
    target: Target | None = None
    session: Session | None = None


class DiffCommand(Command):
    """Compare two sessions: recipe, environment, source, data, command line, world. Also of two runs.

    Each difference is graded: it changes the experiment, it may change numerics, or it is harmless. With one REF the
    session is compared with the one before it; `live` is this machine, now (its environment and source alone). A run
    without @N stands for its newest session.

    Where nothing differs, how many values were compared is told, section by section.

    The exit code is 0 when nothing differs, and 1 when something does or run.json cannot be read.
    """

    name = "diff"
    summary = "recipes and environments of two sessions, compared and graded"
    examples = (
        ("lineage diff tiny-gpt@1 tiny-gpt@3", "the first session and the third"),
        ("lineage diff tiny-gpt@2", "the second and the one before it"),
        ("lineage diff tiny-gpt live", "would this machine do what the newest session's did?"),
        ("lineage diff tiny-gpt@2 --all --json", "for scripts, with what is the same"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("before", metavar="REF", help="a session: RUN@N, or RUN for its newest; or live")
        parser.add_argument("after", metavar="REF", nargs="?", help="the other one; without it, see above")
        parser.add_argument("--all", action="store_true", help="also what is the same")
        parser.add_argument("--patch", action="store_true", help="print the uncommitted changes each side ran with")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        from lineage.history.diff import Compared, same_paths

        before, after = _sides(args.before, args.after, args.runs)
        found = Compared.of(before.side, after.side)
        differences = found.differences
        same = same_paths(before.side, after.side) if args.all else []
        commits = _commits_between(differences)
        output = Output()
        if args.json:
            document: dict[str, object] = {
                "before": before.side.label,
                "after": after.side.label,
                "differences": [difference.to_wire() for difference in differences],
                "commits": commits,
                "equal": found.equal,
                "not_compared": found.unknown,
            }
            if args.all:
                document["same"] = [{"section": s, "path": path, "value": value} for s, path, value in same]
            if args.patch:
                document["patches"] = {s.side.label: _patch(s) for s in (before, after)}
            output.json(document)
        else:
            for line in _lines(before.side, after.side, found, commits):
                output.line(line)
            if same:
                output.line("the same:")
            for section, path, value in same:
                output.line(f"  {section:<11} {path} {value!r}")
            if args.patch:
                _show_patches(output, before, after)
        if found.unknown:
            note(f"not compared, since one side does not know it: {', '.join(sorted(found.unknown))}")
        if before.side.label == after.side.label and not differences:
            note("both sides are the same session; one REF alone is compared with the session before it")
        return ExitCode.FAILED if differences else ExitCode.OK


def _sides(first: str, second: str | None, runs_dir: str) -> tuple[_Side, _Side]:
    if second is not None:
        if first == second == _LIVE:
            raise UsageError("live compared with live", hint="give a session, as in lineage diff RUN@1 live")
        return _side(first, runs_dir), _side(second, runs_dir)
    if first == _LIVE:
        raise UsageError("live is one side; the other is missing", hint="lineage diff RUN@N live")
    target = _find(first, runs_dir)
    after = _session_of(target)
    earlier = [session for session in target.record.sessions if session.ordinal < after.ordinal]
    if not earlier:
        raise UsageError(
            f"session {after.ordinal} is the first of its run: there is none before it",
            str(target.dir.path),
            "give two sessions, as in lineage diff RUN@1 OTHER@1",
        )
    return _recorded(target, max(earlier, key=lambda session: session.ordinal)), _recorded(target, after)


def _side(text: str, runs_dir: str) -> _Side:
    if text == _LIVE:
        return _Side(_live())
    target = _find(text, runs_dir)
    return _recorded(target, _session_of(target))


def _find(text: str, runs_dir: str) -> Target:
    """As `find`; a run that only its log tells of is refused.

    Raises:
        FormatError: run.json is missing or damaged. Two sessions of which nothing is known would differ in nothing.
    """
    target = find(text, runs_dir)
    if target.problem is not None:
        raise FormatError(
            f"there is nothing to compare: {target.problem.what}",
            str(target.dir.run_json),
            "put it back from a copy: the log has no recipe and no environment; lineage audit compares the steps",
        ) from target.problem
    return target


def _session_of(target: Target) -> Session:
    if target.session is not None:
        return target.session
    if not target.record.sessions:
        raise UsageError("this run has no session yet", str(target.dir.path))
    return target.record.sessions[-1]


def _recorded(target: Target, session: Session) -> _Side:
    from lineage.history.diff import SessionSide

    return _Side(SessionSide.of(target.record, session), target, session)


def _live() -> SessionSide:
    """This machine, now. Thread counts and determinism flags are a process's own, so they stay out."""
    from lineage.capture.environment import capture_environment
    from lineage.capture.source import capture_source
    from lineage.history.diff import SessionSide

    environment = capture_environment(load_torch=True)
    source = capture_source(Path.cwd())
    unknown: set[Section] = {"recipe", "data", "argv", "world"}
    if source.commit is None:
        unknown.add("source")  # not in a working tree: that says nothing about the code
    return SessionSide(
        label=_LIVE,
        environment=environment.model_copy(update={"threads": {}, "determinism": {}}),
        source=source,
        unknown=frozenset(unknown),
        unknown_paths=("threads.*", "determinism.*"),
    )


def _lines(before: SessionSide, after: SessionSide, found: Compared, commits: Sequence[str]) -> Iterator[str]:
    from lineage.history.diff import describe

    yield f"{before.label} -> {after.label}"
    if not found.differences:
        num = found.num_equal
        yield (
            f"no difference: {num:,} {'value' if num == 1 else 'values'} compared, all equal"
            if num
            else ("no difference, and no value to compare")
        )
        yield from (f"  {part}" for part in (found.told_equal(), found.told_absent()) if part)
    for grade, words in _GRADES.items():
        graded = [difference for difference in found.differences if difference.grade == grade]
        if graded:
            yield f"{words}:"
        for difference in graded:
            yield f"  {difference.section:<11} {describe(difference)}"
    if commits:
        yield "commits between:"
        yield from (f"  {line}" for line in commits)


def _commits_between(differences: Sequence[Difference]) -> list[str]:
    """Subjects of the commits from one side to the other, where the working directory's repository has both."""
    for difference in differences:
        if (difference.section, difference.path, difference.change) == ("source", "commit", "changed"):
            if not all(_COMMIT.fullmatch(str(side)) for side in (difference.before, difference.after)):
                return []  # run.json comes from anyone: `--output=FILE` is no commit, but git would obey it
            words = ["git", "log", "--oneline", "--no-decorate", f"-n{_MAX_COMMITS}"]
            span = f"{difference.before}..{difference.after}"
            try:
                found = subprocess.run(
                    [*words, span, "--"], capture_output=True, text=True, errors="replace", timeout=10, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                return []
            return found.stdout.splitlines() if found.returncode == 0 else []
    return []


def _patch(side: _Side) -> str | None:
    """The uncommitted changes a session ran with, as kept in the run; None when there are none."""
    if side.target is None or side.session is None or side.session.source.patch is None:
        return None
    if not fs.is_own_folder(side.target.dir.source_dir):
        return None
    try:
        return fs.read_plain(side.target.dir.patch(side.session.id), _MAX_PATCH_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _show_patches(output: Output, *sides: _Side) -> None:
    for side in sides:
        text = _patch(side)
        output.line(f"uncommitted changes of {side.side.label}:" if text else f"{side.side.label}: none kept")
        for line in (text or "").splitlines():
            output.line(f"  {line}")
