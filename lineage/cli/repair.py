"""`lineage repair`: a log without its bad lines, the original kept aside."""

from __future__ import annotations

import argparse
import os
from typing import Any

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Output
from lineage.cli.refs import find
from lineage.errors import NotFoundError, UsageError
from lineage.log.repair import RepairPlan, plan_repair, repair
from lineage.runs.lock import RunLock


class RepairCommand(Command):
    """Take the torn tail and the damaged lines out of a run's log.

    The log is first copied to metrics.jsonl.damaged-<time> in the same folder; every good line stays byte for byte.
    Nothing is ever deleted, so no --force is needed. Refused (5) while a session writes the run.

    With --dry-run nothing is changed: the exit code is 1 when there is something to mend, else 0.
    """

    name = "repair"
    summary = "mend a torn or damaged log, the original kept aside"
    examples = (
        ("lineage repair tiny-gpt --dry-run", "what is damaged, and where"),
        ("lineage repair tiny-gpt", "mend it"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        target = find(args.ref, args.runs)
        if target.session is not None:
            raise UsageError("sessions share one log", hint="name the run, without @")
        output = Output()
        log = target.dir.log
        if not os.path.lexists(log):
            hint = f"put it back from a copy; lineage checkpoints {args.ref} shows what else there is"
            raise NotFoundError("this run has no log to repair", str(log), hint)
        if args.dry_run:
            plan, copy_path = plan_repair(log), None
        else:
            lock = RunLock.acquire(target.dir)
            try:
                result = repair(log)
            finally:
                lock.close()
            plan, copy_path = result.plan, result.copy_path
        if args.json:
            output.json(_document(plan) | {"copy": copy_path, "repaired": copy_path is not None})
        else:
            _say(output, plan)
            if copy_path is not None:
                output.line(f"the original is kept as {copy_path}")
        if args.dry_run and not plan.is_clean:
            note("nothing was changed (--dry-run)")
            return ExitCode.FAILED
        return ExitCode.OK


def _document(plan: RepairPlan) -> dict[str, Any]:
    return {
        "path": plan.path,
        "clean": plan.is_clean,
        "good_lines": plan.num_good,
        "damaged_lines": plan.num_damaged,
        "damaged_bytes": plan.damaged_bytes,
        "torn_bytes": plan.torn_bytes,
        "damage": [
            {"offset": d.offset, "bytes": d.size_bytes, "lines": d.num_lines, "reason": d.reason} for d in plan.damage
        ],
    }


def _say(output: Output, plan: RepairPlan) -> None:
    output.line(
        f"{plan.path}: {plan.num_good:,} good lines, {plan.num_damaged:,} damaged, {plan.torn_bytes:,} bytes torn"
    )
    for damage in plan.damage:
        output.line(f"  damaged: {damage}")
    if plan.torn_bytes:
        output.line(f"  torn: bytes {plan.torn_offset} to {plan.size_bytes}, after the last newline")
