"""`lineage audit`: did each resume carry on the same experiment?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note, tell_damage
from lineage.cli.output import Output
from lineage.cli.refs import check_metrics, find

if TYPE_CHECKING:
    from lineage.history.audit import ResumeAudit


class AuditCommand(Command):
    """Say for each resume of a run whether it carried on the same experiment, and how that is known.

    A session that died had trained steps after its last checkpoint; the session that resumed from there trained them
    again. Both attempts are compared step by step: batch, random streams, learning rates, loss scale, loss, gradient
    norm. The verdict is exact, within_tolerance (declared before the session), diverged (with the first step and field
    that differ) or unproven (and why). Restarts that restored no checkpoint are compared all the same.

    The exit code is 1 when any session diverged, and when record or log are damaged: what could be read is compared.
    """

    name = "audit"
    summary = "the continuation verdict of each resume"
    examples = (
        ("lineage audit tiny-gpt", "each resume of a run"),
        ("lineage audit tiny-gpt@2", "what became of its second session"),
        ("lineage audit tiny-gpt --json", "for scripts; exit code 1 when any diverged"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or RUN@N for one session")
        parser.add_argument(
            "--metric",
            action="append",
            default=[],
            metavar="NAME",
            help="compare this metric too, after the others; may repeat",
        )
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        from lineage.history.evidence import audit_view
        from lineage.view import read

        target = find(args.ref, args.runs)
        view = read(target.dir.path)
        check_metrics(args.metric, view.metrics)
        rows = audit_view(view, also=args.metric)
        if target.session is not None:
            rows = [row for row in rows if row.session == target.session.id]
        output = Output()
        if args.json:
            output.json({"resumes": [row.to_wire() for row in rows]})
        else:
            for row in rows:
                for line in _lines(row):
                    output.line(line)
        if not rows:
            who = f"session {target.session.ordinal} is no resume" if target.session else "no session is a resume"
            note(f"{who}: there is nothing to audit")
        code = tell_damage(view.damage, "what could be read was compared", args.ref)
        return ExitCode.FAILED if any(row.verdict == "diverged" for row in rows) else code


def _lines(row: ResumeAudit) -> Iterator[str]:
    verdict = row.verdict.replace("_", " ")
    source = f"checkpoint {row.checkpoint}" if row.checkpoint else "no checkpoint"
    yield f"session {row.ordinal} ({row.session}): {verdict}"
    yield f"  from step {row.from_step:,}, {source}"
    yield f"  {row.reason}"
