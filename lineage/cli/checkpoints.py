"""`lineage checkpoints`: the generations of a run, and which of them stay."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lineage.checkpoint import retention
from lineage.checkpoint.generations import Generation, State, list_generations
from lineage.checkpoint.retention import Policy, RetentionPlan
from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Column, Output
from lineage.cli.refs import find
from lineage.cli.values import whole
from lineage.cli.words import age, size
from lineage.errors import FormatError, NotFoundError, UsageError
from lineage.layout import RunDir

ACTIONS: Final = ("pin", "unpin", "prune")
_STYLES: Final[dict[State, str]] = {
    "committed": "",
    "verified": "green",
    "restorable": "green",
    "quarantined": "yellow",
    "damaged": "red",
    "gone": "",
    "unfinished": "yellow",
    "export": "cyan",
}


class CheckpointsCommand(Command):
    """List a run's checkpoints: step, session, size, state, age, kind, when each was verified and restored.

    `pin` and `unpin` take generations by name, a part of it, a step, or `newest`; a pinned one outlives every prune.
    `prune` keeps the newest two, the newest verified, the newest that was restored, the pinned, the one ACTIVE points
    at, and with --every those at every Nth step. It deletes only with --force; without, it says what it would do.

    States: committed (whole as far as manifest, name and sizes tell), verified (every byte was reread and right),
    restorable (a restore of it succeeded), quarantined (a restore failed: no resume takes it by itself), damaged
    (something of it is missing or wrong), gone (its files are not here), export (weights only, no checkpoint). With any
    that is damaged or gone the exit code is 1; whether every byte is right is for `lineage verify` to say.
    """

    name = "checkpoints"
    summary = "the checkpoints of a run and their state; pin, unpin, prune"
    examples = (
        ("lineage checkpoints tiny-gpt", "all of them"),
        ("lineage checkpoints tiny-gpt pin newest", "keep one through every prune"),
        ("lineage checkpoints tiny-gpt prune --dry-run", "what a prune would delete"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or RUN@N for the checkpoints of one session")
        parser.add_argument(
            "words", nargs="*", default=[], metavar="pin|unpin|prune NAME", help="what to do; nothing lists"
        )
        parser.add_argument(
            "--keep", type=whole(1), default=2, metavar="N", help="newest to keep in a prune (default: 2)"
        )
        parser.add_argument("--every", type=whole(1), metavar="N", help="keep those whose step is a multiple of N too")
        parser.add_argument("--dry-run", action="store_true", help="say what would be deleted, change nothing")
        parser.add_argument("--force", action="store_true", help="really delete")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        ref, action, names = _words(args)
        run_dir, session = run_folder(ref, args.runs)
        if action == "prune":
            if names:
                raise UsageError("prune takes no names", hint="pin what has to stay")
            return _prune(run_dir, args)
        if action is not None:
            return _pin(run_dir, names, pinned=action == "pin", json=args.json)
        generations = list_generations(run_dir)
        if session is not None:
            generations = [g for g in generations if g.session == session]
        output = Output()
        if args.json:
            output.json({"generations": [_document(g) for g in generations]})
        elif generations:
            _table(output, generations)
        else:
            note("no checkpoints")
        for generation in generations:
            if generation.problem is not None and not args.json:
                note(f"{generation.state}: {generation.name}: {generation.problem}")
        return ExitCode.FAILED if any(g.problem is not None for g in generations) else ExitCode.OK


def _words(args: argparse.Namespace) -> tuple[str, str | None, list[str]]:
    """`RUN pin NAME` as well as `pin RUN NAME`."""
    words = [args.ref, *args.words]
    for at in (1, 0):
        if len(words) > at and words[at] in ACTIONS:
            action = words.pop(at)
            if not words:
                raise UsageError(f"{action} of which run?", hint=f"lineage checkpoints RUN {action}")
            return words[0], action, words[1:]
    if len(words) > 1:
        raise UsageError(f"{words[1]!r} is nothing to do", hint=f"one of {', '.join(ACTIONS)}")
    return words[0], None, []


def run_folder(ref: str, runs: str) -> tuple[RunDir, str | None]:
    """The folder a REF names and the session in it; checkpoints count where run.json and log are lost, too."""
    try:
        target = find(ref, runs)
    except (NotFoundError, FormatError):
        folder = RunDir(Path(ref))
        if not folder.checkpoints_dir.is_dir():
            raise
        return folder, None
    return target.dir, target.session.id if target.session is not None else None


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _document(generation: Generation) -> dict[str, Any]:
    return {
        "name": generation.name,
        "step": generation.step,
        "session": generation.session,
        "bytes": generation.size_bytes,
        "kind": generation.kind,
        "committed_at": _at(generation.committed_at),
        "verified_at": _at(generation.verified_at),
        "restored_at": _at(generation.restored_at),
        "drilled_at": _at(generation.drilled_at),
        "pinned": generation.pinned,
        "quarantined": generation.quarantined is not None,
        "quarantine_reason": generation.quarantined,
        "problem": generation.problem,
        "state": generation.state,
        "path": str(generation.path),
    }


def _table(output: Output, generations: Sequence[Generation]) -> None:
    now = time.time()

    def ago(at: float | None) -> str:
        return "-" if at is None else f"{age(now - at)} ago"

    rows: list[list[str | tuple[str, str]]] = [
        [
            f"{g.step:,}",
            g.session or "-",
            size(g.size_bytes),
            (g.state, _STYLES[g.state]),
            ago(g.committed_at),
            g.kind,
            ago(g.verified_at),
            ago(g.restored_at),
            "pinned" if g.pinned else "",
            g.name,
        ]
        for g in generations
    ]
    titles = ("STEP", "SESSION", "SIZE", "STATE", "COMMITTED", "KIND", "VERIFIED", "RESTORED", "PINNED", "NAME")
    right = ("STEP", "SIZE")
    output.table([Column(t, "right" if t in right else "left", wide=t == "NAME") for t in titles], rows)


def _pin(run_dir: RunDir, names: list[str], *, pinned: bool, json: bool) -> ExitCode:
    if not names:
        raise UsageError("which checkpoint?", hint="lineage checkpoints RUN pin NAME, a step, or newest")
    resolved = [retention.resolve(run_dir, name) for name in names]
    for name in resolved:
        retention.pin(run_dir, name, pinned=pinned)
    output = Output()
    if json:
        output.json({"pinned" if pinned else "unpinned": resolved})
    else:
        for name in resolved:
            output.line(f"{'pinned' if pinned else 'unpinned'} {name}")
    return ExitCode.OK


def _prune(run_dir: RunDir, args: argparse.Namespace) -> ExitCode:
    if args.dry_run and args.force:
        raise UsageError("--dry-run and --force contradict each other")
    policy = Policy(last=args.keep, every=args.every)
    alive = _writer_is_alive(run_dir)
    plan = retention.plan_retention(run_dir, policy, unfinished=not alive)
    deleted = retention.apply_retention(run_dir, plan) if args.force else []
    output = Output()
    if args.json:
        output.json(_plan_document(plan, deleted))
    else:
        _say(output, plan, done=args.force)
        if not args.force and (plan.delete or plan.unfinished):
            note("nothing was deleted; add --force to do it")
    return ExitCode.OK


def _writer_is_alive(run_dir: RunDir) -> bool:
    from lineage.runs.lock import probe

    return probe(run_dir) is not None


def _plan_document(plan: RetentionPlan, deleted: list[str]) -> dict[str, Any]:
    return {
        "keep": [{"name": name, "reasons": list(reasons)} for name, reasons in plan.keep.items()],
        "delete": list(plan.delete),
        "unfinished": list(plan.unfinished),
        "left_alone": [{"name": name, "reason": reason} for name, reason in plan.reported.items()],
        "freed_bytes": plan.freed_bytes,
        "deleted": deleted,
    }


def _say(output: Output, plan: RetentionPlan, *, done: bool) -> None:
    for name, reasons in plan.keep.items():
        output.line(f"keep    {name}  ({', '.join(reasons)})")
    for name in plan.delete:
        output.line(f"{'deleted' if done else 'delete '} {name}")
    for name in plan.unfinished:
        output.line(f"{'deleted' if done else 'delete '} {name}  (a save that never finished)")
    for name, reason in plan.reported.items():
        output.line(f"leave   {name}  ({reason})")
    output.line(
        f"{len(plan.keep):,} kept, {len(plan.delete) + len(plan.unfinished):,} to delete, {size(plan.freed_bytes)}"
    )
