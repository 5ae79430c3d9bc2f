"""The verdict on every resume of a run: which attempts to compare with which, and the rows of `lineage audit`.

The comparison itself is `lineage.history.continuation`. What an attempt is compared with: docs/decisions/041.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lineage.history.continuation import WORDS, Comparer, StepWitness, plain_value, same
from lineage.history.segments import Segment, first_trained, segments
from lineage_schemas.ids import SessionId, parse_generation_name
from lineage_schemas.run import FirstDifference

if TYPE_CHECKING:
    from lineage_schemas.checkpoint import ExpectedNext
    from lineage_schemas.events import StepEvent
    from lineage_schemas.run import Run, Session, Tolerance, Verdict


class Attempts:
    """What each session recorded at each step: the lines of a log, sorted by session.

    Attributes:
        last_steps: last step each session logged.
    """

    def __init__(self) -> None:
        self._witnesses: dict[SessionId, dict[int, StepWitness]] = {}
        self._first: dict[SessionId, list[int]] = {}
        self.last_steps: dict[SessionId, int] = {}

    @classmethod
    def of(cls, events: Iterable[StepEvent] | Iterable[Mapping[str, object]], *, after: int = 0) -> Attempts:
        """The attempts in some `step` events, parsed or plain; witnesses are kept only for steps beyond `after`."""
        attempts = cls()
        for event in events:
            attempts.add(event, after=after)
        return attempts

    def add(self, event: StepEvent | Mapping[str, object], *, after: int = 0) -> None:
        """Take one `step` event."""
        if isinstance(event, Mapping):
            session, step = SessionId(str(event.get("session"))), event.get("step")
            if not isinstance(step, int):
                return
        else:
            session, step = SessionId(event.session), event.step
        self.last_steps[session] = max(step, self.last_steps.get(session, 0))
        first = self._first.setdefault(session, [])
        if len(first) < 2:
            first.append(step)
        if step > after:
            witness = StepWitness.from_fields(event) if isinstance(event, Mapping) else StepWitness.from_event(event)
            self._witnesses.setdefault(session, {})[step] = witness

    def first_steps(self, run: Run) -> dict[SessionId, int]:
        """First step each session trained, as far as the log tells (`first_trained`)."""
        begun = {session.id: session.start.step for session in run.sessions}
        found = {session: first_trained(steps, begun.get(session, 0)) for session, steps in self._first.items()}
        return {session: first for session, first in found.items() if first is not None}

    def __call__(self, session: SessionId, after: int, to: int) -> Mapping[int, StepWitness]:
        """The session's witnesses of steps in (after, to]."""
        kept = self._witnesses.get(session, {})
        if to - after < len(kept):
            return {step: kept[step] for step in range(after + 1, to + 1) if step in kept}
        return {step: witness for step, witness in kept.items() if after < step <= to}


Lookup = Callable[[SessionId, int, int], Mapping[int, StepWitness]]
"""`lookup(session, after, to)`: a session's witnesses of steps in (after, to]; `Attempts` is one."""


@dataclass(frozen=True)
class Reference:
    """The attempts that a session's steps are to be compared with.

    Attributes:
        from_step: steps complete where both lines part.
        steps: step to witness.
        spans: whose attempts they are: (session, after, to).
        origin: how the session's own parent is known (`lineage.history.segments`).
    """

    session: SessionId
    from_step: int
    steps: Mapping[int, StepWitness]
    spans: tuple[tuple[SessionId, int, int], ...]
    origin: str

    def session_at(self, step: int) -> SessionId | None:
        """Whose attempt at `step` is compared."""
        for session, after, to in self.spans:
            if after < step <= to:
                return session
        return None

    def comparer(
        self, tolerance: Tolerance | None = None, *, proven: Sequence[str] = (), also: Collection[str] = ()
    ) -> Comparer:
        return Comparer(
            self.steps,
            tolerance,
            start_step=self.from_step,
            proven=proven,
            also=also,
            against=self.session_at,
        )


def reference_for(
    run: Run,
    session_id: str,
    lookup: Lookup,
    last_steps: Mapping[SessionId, int],
    *,
    first_steps: Mapping[SessionId, int] | None = None,
    verdicts: Mapping[str, Verdict] | None = None,
    to_step: int | None = None,
) -> Reference:
    """The earlier attempts at the steps that a session trains, or is about to train.

    They are those of sessions that passed through the very state the session began from: the one that made its
    checkpoint, as far as it went on; those that restarted from there; and whoever carried these on. At each step the
    attempt with the fewest restores in between counts, proven ones first; one behind a restore that is known to have
    diverged is no reference.

    Args:
        run: the record, the session included.
        session_id: the session to be judged.
        lookup: witnesses of the earlier sessions, asked only for what is needed.
        last_steps: last step each session logged.
        first_steps: see `segments`.
        verdicts: of earlier resumes; by default as recorded.
        to_step: nothing beyond is needed.

    Raises:
        KeyError: no such session in the record.
    """
    placed = {s.session: s for s in segments(run, last_steps, first_steps=first_steps)}
    own = placed[SessionId(session_id)]
    judged = {s.id: s.continuation.verdict for s in run.sessions if s.continuation is not None}
    judged.update(verdicts or {})
    roots = _roots(run, placed)
    base = _base(own, placed, roots)
    candidates: list[tuple[int, int, int, Segment]] = []
    for other in placed.values():
        way = _way(other, base, placed, roots) if base is not None and other.ordinal < own.ordinal else None
        if way is None or any(judged.get(s) == "diverged" for s in way):
            continue
        unsure = sum(judged.get(s) not in ("exact", "within_tolerance") for s in way)
        candidates.append((unsure, len(way), other.ordinal, other))
    spans: list[tuple[SessionId, int, int]] = []
    steps: dict[int, StepWitness] = {}
    for _, _, _, other in sorted(candidates, key=lambda candidate: candidate[:3]):
        to = other.last_step if to_step is None else min(other.last_step, to_step)
        for low, high in _uncovered(max(own.start_step, other.start_step), to, spans):
            found = lookup(other.session, low, high)
            if found:
                steps.update(found)
                spans.append((other.session, low, high))
    # What the record says, even where the log shows that training began elsewhere: the comparer tells the two apart.
    recorded = next(s.start.step for s in run.sessions if s.id == own.session)
    from_step = recorded if own.origin == "checkpoint" else own.start_step
    return Reference(own.session, from_step, steps, tuple(spans), own.origin)


DATA_STARTED_OVER = "the data started over"
"""Said of a session whose first batches are the very first of the run."""

_Base = tuple[str, int]
"""A state of training: who reached it by training (a session, or the name of a root), and the step."""


def _roots(run: Run, placed: Mapping[SessionId, Segment]) -> dict[SessionId, str]:
    """A name for what each session without a parent here began from; equal names are equal states.

    Fresh starts share one: with a seed in the recipe, a second one repeats the first.
    """
    names: dict[SessionId, str] = {}
    for session in run.sessions:
        segment, start = placed[SessionId(session.id)], session.start
        if segment.parent is not None:
            continue
        if segment.origin == "fresh":
            names[segment.session] = "root:"
        elif start.checkpoint is not None:
            names[segment.session] = f"root:{start.run or run.id}/{start.checkpoint}"
    return names


def _base(segment: Segment, placed: Mapping[SessionId, Segment], roots: Mapping[SessionId, str]) -> _Base | None:
    """The state a session began from; restores that trained nothing before it are passed through."""
    current, step = segment, segment.start_step
    while current.parent is not None:
        parent = placed[current.parent]
        if parent.start_step < step:
            return (parent.session, step)
        current, step = parent, min(step, parent.start_step)
    root = roots.get(current.session)
    return None if root is None else (root, step)


def _way(
    other: Segment, base: _Base, placed: Mapping[SessionId, Segment], roots: Mapping[SessionId, str]
) -> list[SessionId] | None:
    """The sessions from `base` to `other`, each one restore; None when its line does not pass through `base`."""
    way: list[SessionId] = []
    current, left_at = other, other.last_step
    while current.session != base[0]:
        way.append(current.session)
        left_at = current.start_step
        if current.parent is None:
            if roots.get(current.session) != base[0] or left_at != base[1]:
                return None
            first = min(s.ordinal for s in placed.values())
            return way[:-1] if current.origin == "fresh" and current.ordinal == first else way
        current = placed[current.parent]
    return way if left_at >= base[1] else None


def _uncovered(after: int, to: int, spans: Sequence[tuple[SessionId, int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of (after, to] that no span covers yet, in order."""
    low = after
    for _, begin, end in sorted(spans, key=lambda span: span[1]):
        if begin >= to or low >= to:
            break
        if begin > low:
            yield low, min(begin, to)
        low = max(low, end)
    if low < to:
        yield low, to


# -- after the fact ------------------------------------------------------------------------------------------------


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
        self._verdicts: dict[str, Verdict] = {}

    def rows(self) -> list[ResumeAudit]:
        found: list[ResumeAudit] = []
        roots = _roots(self._run, {s.session: s for s in self._placed})
        trained: set[str | None] = set()  # roots that some session before has trained from
        for segment in self._placed:
            root = roots.get(segment.session)
            again = root in trained and segment.num_steps > 0
            if segment.origin in ("checkpoint", "implied", "unknown") or again:
                row = self._row(segment)
                self._verdicts[segment.session] = row.verdict
                found.append(row)
            if root is not None and segment.num_steps > 0:
                trained.add(root)
        return found

    def _row(self, segment: Segment) -> ResumeAudit:
        session = self._sessions[segment.session]
        start, recorded = session.start, session.continuation
        proven = list(self._proven.get(segment.session, ()))
        if recorded is not None:
            proven += [word for word in recorded.proven if word not in proven]
        reference = reference_for(
            self._run,
            segment.session,
            self._lookup,
            self._last_steps,
            first_steps=self._first_steps,
            verdicts=self._verdicts,
            to_step=segment.last_step,
        )
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
                told = f"as the session recorded it, from lines no longer in the log: {recorded.reason}"
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
        first = next((s for s in self._placed if s.num_steps > 0), segment)
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
    if segment.origin == "implied":
        return f"no checkpoint was restored, the session just went on with step {segment.start_step + 1}; "
    if segment.origin == "fresh":
        return "no checkpoint was restored, the session started over; "
    if segment.origin == "unknown":
        return "what it began from is not in this run's record; "
    return "restored by force; " if session.start.forced else ""
