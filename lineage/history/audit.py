"""The verdict on every resume of a run, and the rows of `lineage audit`.

The comparison itself is `lineage.history.continuation`, and which attempts are compared `lineage.history.reference`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lineage.history.continuation import WORDS, Comparer, plain_value, same
from lineage.history.reference import Kin, Lookup, roots_of
from lineage.history.segments import Segment, segments
from lineage_schemas.ids import SessionId, parse_generation_name
from lineage_schemas.run import FirstDifference

if TYPE_CHECKING:
    from lineage_schemas.checkpoint import ExpectedNext
    from lineage_schemas.run import Run, Session, Verdict

DATA_STARTED_OVER = "the data started over"
"""Said of a session whose first batches are the very first of the run."""


@dataclass(frozen=True)
class ResumeAudit:
    """The continuation verdict on one session that did not begin a run.

    Attributes:
        checkpoint: generation it restored; None for a careless restart.
        against: session whose attempts were compared; the first, if several were.
    """

    session: SessionId
    ordinal: int
    from_step: int
    checkpoint: str | None
    verdict: Verdict
    compared_steps: int
    first_difference: FirstDifference | None
    reason: str
    against: SessionId | None = None
    proven: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, object]:
        """One row of `lineage audit --json` (docs/format.md, "Commands")."""
        first = self.first_difference
        return {
            "session": self.session,
            "ordinal": self.ordinal,
            "from_step": self.from_step,
            "checkpoint": self.checkpoint,
            "verdict": self.verdict,
            "compared_steps": self.compared_steps,
            "against": self.against,
            "first_difference": None
            if first is None
            else {"part": None, "before": None, "after": None, **first.to_wire()},
            "proven": list(self.proven),
            "reason": self.reason,
        }


def audit(
    run: Run,
    lookup: Lookup,
    last_steps: Mapping[SessionId, int],
    *,
    first_steps: Mapping[SessionId, int] | None = None,
    expectations: Mapping[str, ExpectedNext] | None = None,
    proven: Mapping[str, Sequence[str]] | None = None,
    also: Collection[str] = (),
) -> list[ResumeAudit]:
    """The verdict on every session that carried on, by ordinal; forks are other experiments and have no row.

    A session that trained steps again without having restored a checkpoint (a careless restart, or a start from
    scratch in the same run) is compared all the same.

    Args:
        run: the record.
        lookup: witnesses by session and steps; asked only where attempts overlap.
        last_steps: last step each session logged.
        first_steps: first step each session trained (`Attempts.first_steps`).
        expectations: what the manifests at hand expect next, by generation.
        proven: per session, what its restore is known to have proved; by default as recorded.
        also: further metrics to compare.
    """
    auditor = _Auditor(
        run,
        lookup,
        last_steps,
        first_steps=first_steps or {},
        expectations=expectations or {},
        proven=proven or {},
        also=also,
    )
    return auditor.rows()


class _Auditor:
    """The audit of one run; what its steps share."""

    def __init__(
        self,
        run: Run,
        lookup: Lookup,
        last_steps: Mapping[SessionId, int],
        *,
        first_steps: Mapping[SessionId, int],
        expectations: Mapping[str, ExpectedNext],
        proven: Mapping[str, Sequence[str]],
        also: Collection[str],
    ) -> None:
        self._run = run
        self._lookup = lookup
        self._last_steps = last_steps
        self._first_steps = first_steps
        self._expectations = expectations
        self._proven = proven
        self._also = also
        self._sessions = {session.id: session for session in run.sessions}
        self._placed = segments(run, last_steps, first_steps=first_steps)
        self._kin = Kin(run, self._placed)
        self._first_trained = next((s for s in self._placed if s.num_steps > 0), None)

    def rows(self) -> list[ResumeAudit]:
        found: list[ResumeAudit] = []
        roots = roots_of(self._run, self._placed)
        trained: set[str | None] = set()  # roots that some session before has trained from
        for segment in self._placed:
            root = roots.get(segment.session)
            again = root in trained and segment.num_steps > 0
            verdict: Verdict | None = None
            if segment.origin in ("checkpoint", "implied", "unknown") or again:
                row = self._row(segment)
                verdict = row.verdict
                found.append(row)
            self._kin.settle(segment, verdict)
            if root is not None and segment.num_steps > 0:
                trained.add(root)
        return found

    def _row(self, segment: Segment) -> ResumeAudit:
        session = self._sessions[segment.session]
        start, recorded = session.start, session.continuation
        proven = list(self._proven.get(segment.session, ()))
        if recorded is not None:
            proven += [word for word in recorded.proven if word not in proven]
        reference = self._kin.reference(segment, self._lookup, segment.last_step)
        rates = self._check_rates(segment, start.checkpoint) if not reference.steps else None
        if rates is not None and rates.agree and WORDS["lr"] not in proven:
            proven.append(WORDS["lr"])
        comparer = reference.comparer(session.tolerance, proven=proven, also=self._also)
        if segment.origin == "checkpoint":
            self._check_start(comparer, segment.session, start.step)
        self._feed(comparer, segment)
        found = comparer.verdict()
        if not reference.steps and (said := self._restarted_data(segment)):
            found = found.model_copy(update={"reason": f"{found.reason}; {said}"})
        if found.verdict == "unproven":
            if segment.num_steps == 0:
                words = f" (proven: {', '.join(proven)})" if proven else ""
                found = found.model_copy(update={"reason": f"the session trained no step{words}"})
            elif rates is not None and rates.difference is not None:
                changes = {"verdict": "diverged", "reason": rates.said, "first_difference": rates.difference}
                found = found.model_copy(
                    update=changes if rates.certain else {"reason": f"{found.reason}; {rates.said}"}
                )
            elif recorded is not None and recorded.compared_steps > found.compared_steps:
                told = "as the session recorded it, from lines no longer in the log"
                told += f": {recorded.reason}" if recorded.reason else ""
                found = recorded.model_copy(update={"reason": told})
        return ResumeAudit(
            session=segment.session,
            ordinal=segment.ordinal,
            from_step=reference.from_step,
            checkpoint=start.checkpoint,
            verdict=found.verdict,
            compared_steps=found.compared_steps,
            first_difference=found.first_difference,
            reason=_preface(segment, session) + found.reason,
            against=SessionId(found.against) if found.against else None,
            proven=tuple(proven),
        )

    def _feed(self, comparer: Comparer, segment: Segment) -> None:
        to = min(comparer.last_step, segment.last_step)
        if to <= segment.start_step:
            return
        own = self._lookup(segment.session, segment.start_step, to)
        for step in sorted(own):
            if not comparer.wants(step):
                return
            comparer.compare(own[step])

    def _check_start(self, comparer: Comparer, session: SessionId, start_step: int) -> None:
        """A wrong first step, unless it may be a logging interval that hides the right one."""
        first = self._first_steps.get(session)
        if first is None or first == start_step + 1:
            return
        if first <= start_step or len(self._lookup(session, first - 1, first + 1)) == 2:
            comparer.begin(first)

    def _restarted_data(self, segment: Segment) -> str:
        """A remark when the first batches are the first ones of the run again; no proof, since an epoch may end."""
        first = self._first_trained or segment
        if segment.start_step < 2 or first.session == segment.session:
            return ""
        begin = first.start_step
        early = [w.batch for w in self._lookup(first.session, begin, begin + 3).values()]
        own = [w.batch for w in self._lookup(segment.session, segment.start_step, segment.start_step + 3).values()]
        if len(early) < 2 or None in early or len(set(early)) < len(early) or own[: len(early)] != early:
            return ""  # not recorded, the same batch again and again on purpose, or simply others
        span = f"steps {segment.start_step + 1} to {segment.start_step + len(early)}"
        return (
            f"{span} took the batches of steps {begin + 1} to {begin + len(early)} again: {DATA_STARTED_OVER}, "
            "unless an epoch ended just there"
        )

    def _check_rates(self, segment: Segment, checkpoint: str | None) -> _Rates | None:
        """What the first step's learning rates say about the ones the manifest expected; None when nothing.

        A loop may set its rates at the top of each step, so that the ones seen at a checkpoint are those of the step
        before. Only where the run's other checkpoints were followed by the expected rates is a difference certain.
        """
        found = self._next_rates(segment.session, checkpoint, segment.start_step)
        if found is None:
            return None
        expected, taken = found
        for name, before in expected.items():
            after = taken.get(name)
            if after is None:
                continue
            for group, (x, y) in enumerate(zip(before, after, strict=False)):
                if not same(x, y):
                    return self._other_rate(segment.start_step + 1, f"{name}[{group}]", x, y)
        return _Rates(agree=any(name in taken for name in expected))

    def _other_rate(self, step: int, part: str, expected: float, taken: float) -> _Rates:
        had, wanted = plain_value(taken), plain_value(expected)
        said = f"step {step}: learning rate {part} is {had}, the checkpoint expected {wanted}"
        habit: list[bool] = []
        for session in self._run.sessions:
            for generation in session.checkpoints:
                parsed = parse_generation_name(generation)
                found = self._next_rates(SessionId(session.id), generation, parsed[0]) if parsed else None
                shared = [name for name in found[0] if name in found[1]] if found else []
                if found is not None and shared:
                    pairs = [pair for name in shared for pair in zip(found[0][name], found[1][name], strict=False)]
                    habit.append(all(same(x, y) for x, y in pairs))
        certain = bool(habit) and all(habit)
        if not certain:
            said += ", which proves nothing where the loop sets its rates itself"
        return _Rates(
            difference=FirstDifference(step=step, field="lr", part=part, before=expected, after=taken),
            said=said,
            certain=certain,
        )

    def _next_rates(
        self, session: SessionId, checkpoint: str | None, step: int
    ) -> tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]] | None:
        """The rates a generation expects next and those the session's next step was taken with."""
        expected = self._expectations.get(checkpoint) if checkpoint is not None else None
        if expected is None or not expected.lr:
            return None
        taken = self._lookup(session, step, step + 1).get(step + 1)
        return (expected.lr, taken.lr) if taken is not None and taken.lr else None


@dataclass(frozen=True)
class _Rates:
    """Learning rates of the first step against the manifest's."""

    agree: bool = False
    difference: FirstDifference | None = None
    said: str = ""
    certain: bool = False


def _preface(segment: Segment, session: Session) -> str:
    if segment.origin == "implied" and session.start.checkpoint is not None:
        return "the session that made its checkpoint is not in this run's record; "
    if segment.origin == "implied":
        return f"no checkpoint was restored, the session just went on with step {segment.start_step + 1}; "
    if segment.origin == "fresh":
        return "no checkpoint was restored, the session started over; "
    if segment.origin == "unknown":
        return "what it began from is not in this run's record; "
    return "restored by force; " if session.start.forced else ""
