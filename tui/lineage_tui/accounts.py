"""All that is known of a run, gathered in the reading thread for `lineage.history.explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lineage.history.audit import ResumeAudit
    from lineage.history.changes import Curve
    from lineage.history.explain import Account, Change
    from lineage.view import RunView

MAX_AUDIT_BYTES: Final = 128 * 1024 * 1024
"""Larger logs are not read line by line here: the verdicts recorded while training ran stand in."""

THROUGHPUT: Final = ("tokens_per_s", "samples_per_s", "step_s")


def account_of(view: RunView) -> Account:
    """What the log and the record say, with the audit of each resume."""
    from lineage.history.explain import Account
    from lineage.history.segments import gaps

    metrics = view.metrics
    throughput = next((name for name in THROUGHPUT if name in metrics), None)
    return Account(
        run=view.record,
        segments=view.segments,
        events=view.events(),
        loss=_curve(view, "loss"),
        throughput=_curve(view, throughput) if throughput is not None else None,
        lr=_curve(view, "lr"),
        throughput_name=throughput or "steps_per_s",
        resumes=resumes_of(view),
        gaps=gaps(view.record),
    )


def changes_of(view: RunView, step: int | None) -> list[Change]:
    """The abrupt changes of a run, or what happened around one step."""
    from lineage.history.explain import explain_step, find_changes

    account = account_of(view)
    return find_changes(account) if step is None else explain_step(account, step)


def resumes_of(view: RunView) -> Sequence[ResumeAudit]:
    """The verdict on every resume: compared anew from the log, or as recorded where the log is too long for that."""
    import orjson

    from lineage.history.audit import Attempts, ResumeAudit, audit
    from lineage.log.reader import read_lines
    from lineage.log.scan import Line
    from lineage_schemas.ids import SessionId

    begun = [segment.start_step for segment in view.segments if segment.ordinal > 1]
    if not begun:
        return ()
    if view.size_bytes > MAX_AUDIT_BYTES:
        rows = []
        for session in view.record.sessions:
            found = session.continuation
            if found is not None:
                rows.append(
                    ResumeAudit(
                        session=SessionId(session.id),
                        ordinal=session.ordinal,
                        from_step=found.from_step,
                        checkpoint=session.start.checkpoint,
                        verdict=found.verdict,
                        compared_steps=found.compared_steps,
                        first_difference=found.first_difference,
                        reason=found.reason,
                        against=SessionId(found.against) if found.against else None,
                        proven=tuple(found.proven),
                    )
                )
        return rows
    attempts = Attempts()
    for line in read_lines(view.dir.log):
        if not isinstance(line, Line) or b'"step"' not in line.data:
            continue
        try:
            fields = orjson.loads(line.data)
        except orjson.JSONDecodeError:
            continue
        if isinstance(fields, dict) and fields.get("kind") == "step":
            attempts.add(fields, after=min(begun))
    return audit(view.record, attempts, attempts.last_steps, first_steps=attempts.first_steps(view.record))


def _curve(view: RunView, name: str) -> Curve | None:
    from lineage.history.changes import Curve

    if name not in view.metrics:
        return None
    series = view.series(name)
    return Curve(series.step, series.value) if len(series) else None
