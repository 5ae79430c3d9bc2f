"""`lineage explain`: what happened around a step, or wherever a curve changed abruptly."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note, tell_damage
from lineage.cli.output import Output
from lineage.cli.refs import find
from lineage.cli.values import whole
from lineage.errors import NotFoundError

if TYPE_CHECKING:
    from lineage.history.segments import Segment
    from lineage_schemas.run import Session


class ExplainCommand(Command):
    """Say what happened around a step, likeliest cause first; without --step, find the abrupt changes and explain each.

    Is this a new session, and what is other in it? Did the learning rate restore? Were updates skipped? Were other
    batches read? Did eval or checkpointing take the time? Is a loss no number? When nothing recorded explains a
    change, that is said.

    Changes of the loss and of the throughput are found by robust statistics (docs/continuation.md), over the steps
    that count; what was superseded is left out. The exit code is 1 when record or log are damaged.
    """

    name = "explain"
    summary = "what happened around a step, or at each abrupt change"
    examples = (
        ("lineage explain tiny-gpt", "every abrupt change of loss and throughput"),
        ("lineage explain tiny-gpt --step 120", "what happened around step 120"),
        ("lineage explain tiny-gpt@2 --json", "changes in what the second session trained, for scripts"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or RUN@N for what one session trained")
        parser.add_argument("--step", type=whole(), metavar="N", help="the step to explain")
        parser.add_argument(
            "--window",
            type=whole(1),
            default=10,
            metavar="W",
            help="steps on each side that may hold a cause (default 10)",
        )
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        from lineage.history.evidence import account_of
        from lineage.history.explain import explain_step, find_changes, tell
        from lineage.view import read

        target = find(args.ref, args.runs)
        view = read(target.dir.path)
        last = view.last_step or 0
        first = 1 + min((s.start_step for s in view.segments if s.num_effective), default=0)
        if args.step is not None and not first <= args.step <= last:
            reached = f"it trained steps {first} to {last}" if last else "it has trained no step"
            raise NotFoundError(f"there is no step {args.step} in this run", str(target.dir.path), reached)
        segment = None
        if target.session is not None:
            segment = next((s for s in view.segments if s.session == target.session.id), None)
            if args.step is not None:
                _check_counts(args.step, target.session, segment, str(target.dir.path))
        account = account_of(view)
        changes = (
            find_changes(account, window=args.window)
            if args.step is None
            else explain_step(account, args.step, window=args.window)
        )
        if target.session is not None:
            changes = [change for change in changes if _within(change.step, segment)]
        output = Output()
        if args.json:
            output.json({"changes": [change.to_wire() for change in changes]})
        else:
            for line in tell(changes):
                output.line(line)
        if not changes:
            note("no abrupt change of loss or throughput; --step N tells what happened around a step")
        return tell_damage(view.damage, "what could be read was used", args.ref)


def _within(step: int, segment: Segment | None) -> bool:
    return segment is not None and segment.start_step < step <= segment.effective_to


def _check_counts(step: int, session: Session, segment: Segment | None, where: str) -> None:
    """Refuse a step that the session did not train, or that a later one trained again.

    Raises:
        NotFoundError: the hint has the steps of the session that count, and how to ask for the step all the same.
    """
    if _within(step, segment):
        return
    what = f"session {session.ordinal} has no step {step} that counts"
    if segment is not None and segment.effective_to < step <= segment.last_step:
        what = f"step {step} of session {session.ordinal} was trained again, so it does not count"
    counts = (
        f"of this session, steps {segment.start_step + 1} to {segment.effective_to} do"
        if segment is not None and segment.num_effective
        else "of this session, none does"
    )
    raise NotFoundError(what, where, f"the run without @{session.ordinal}; {counts}")
