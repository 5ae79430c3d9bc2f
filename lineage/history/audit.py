"""The verdict on every resume of a run: which attempts to compare with which, and the rows of `lineage audit`.

The comparison itself is `lineage.history.continuation`. What an attempt is compared with: docs/decisions/041.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
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
    placed = segments(run, last_steps, first_steps=first_steps)
    kin = _Kin(run, placed)
    for segment in placed:
        if segment.session == session_id:
            return kin.reference(segment, lookup, to_step)
        kin.settle(segment, (verdicts or {}).get(segment.session))
    raise KeyError(session_id)


DATA_STARTED_OVER = "the data started over"
"""Said of a session whose first batches are the very first of the run."""

_Base = tuple[str, int]
"""A state of training: who reached it by training (a session, or the name of a root), and the step."""


def _roots(run: Run, placed: Sequence[Segment]) -> dict[SessionId, str]:
    """A name for what each session without a parent here began from; equal names are equal states.

    Fresh starts share one: with a seed in the recipe, a second one repeats the first.
    """
    names: dict[SessionId, str] = {}
    starts = {session.id: session.start for session in run.sessions}
    for segment in placed:
        start = starts[segment.session]
        if segment.parent is not None:
            continue
        if segment.origin == "fresh":
            names[segment.session] = "root:"
        elif start.checkpoint is not None:
            names[segment.session] = f"root:{start.run or run.id}/{start.checkpoint}"
    return names


@dataclass(frozen=True)
class _Reach:
    """What a session and all that stand on it trained: nothing up to `after`, nothing beyond `to`."""

    after: int
    to: int


class _Kin:
    """The sessions of a run by the states they began from, as one after another is judged.

    A reference is looked for from a state outwards, nearest first, and only until its steps are found: most resumes
    meet one or two of the sessions, however many the run has.
    """

    def __init__(self, run: Run, placed: Sequence[Segment]) -> None:
        self._placed = {segment.session: segment for segment in placed}
        self._sessions = {session.id: session for session in run.sessions}
        self._roots = _roots(run, placed)
        self._first = placed[0].session if placed else None
        self._bases: dict[SessionId, _Base | None] = {}
        for segment in placed:
            self._bases[segment.session] = self._base(segment)
        self._reach = _reaches(placed)
        # Those judged so far, by the session or root they stand on and whether they proved to carry it on.
        self._children: dict[tuple[str, bool], list[Segment]] = {}
        self._original: Segment | None = None

    def settle(self, segment: Segment, verdict: Verdict | None = None) -> None:
        """Take a session, by ordinal, as a reference for later ones; its verdict is by default the recorded one."""
        if verdict is None:
            recorded = self._sessions[segment.session].continuation
            verdict = recorded.verdict if recorded is not None else None
        under = segment.parent if segment.parent is not None else self._roots.get(segment.session)
        if segment.session == self._first and segment.origin == "fresh":
            self._original = segment  # the first attempt of all began from no restore, so none can have gone wrong
        elif under is not None and verdict != "diverged":
            self._children.setdefault((under, verdict in ("exact", "within_tolerance")), []).append(segment)

    def reference(self, own: Segment, lookup: Lookup, to_step: int | None) -> Reference:
        """What `own` is to be compared with, from the sessions settled so far (`reference_for`)."""
        needed = _Needed(own.start_step, to_step)
        spans: list[tuple[SessionId, int, int]] = []
        steps: dict[int, StepWitness] = {}
        for other in self._nearest(self._bases[own.session], needed):
            to = other.last_step if to_step is None else min(other.last_step, to_step)
            for low, high in needed.missing(other.start_step, to):
                found = lookup(other.session, low, high)
                if found:
                    steps.update(found)
                    spans.append((other.session, low, high))
                    needed.found(low, high)
        # What the record says, even where the log shows that training began elsewhere: the comparer tells them apart.
        recorded = self._sessions[own.session].start.step
        from_step = recorded if own.origin == "checkpoint" else own.start_step
        return Reference(own.session, from_step, steps, tuple(spans), own.origin)

    def _nearest(self, base: _Base | None, needed: _Needed) -> Iterator[Segment]:
        """The sessions whose lines pass through `base`, fewest unproven restores first, then fewest, then oldest."""
        if base is None:
            return
        queue: list[tuple[int, int, int, Segment, Iterator[Segment]]] = []

        def draw(source: Iterator[Segment], unsure: int, restores: int) -> None:
            for segment in source:
                reach = self._reach[segment.session]
                if needed.misses(reach.after, reach.to):
                    heappush(queue, (unsure, restores, segment.ordinal, segment, source))
                    return

        def descend(under: str, unsure: int, restores: int, *, at: int | None = None, since: int = 0) -> None:
            for sure in (True, False):
                found: Iterable[Segment] = self._children.get((under, sure), ())
                if at is not None:
                    found = (s for s in found if s.start_step == at)
                elif since:
                    found = (s for s in found if s.start_step >= since)
                draw(iter(found), unsure + (not sure), restores + 1)

        origin, step = base
        maker = self._placed.get(SessionId(origin))
        if maker is not None:
            yield maker
            descend(origin, 0, 0, since=step)
        else:
            original = self._original
            if original is not None and (self._roots.get(original.session), original.start_step) == base:
                draw(iter((original,)), 0, 0)
            descend(origin, 0, 0, at=step)
        while queue and not needed.is_found:
            unsure, restores, _, segment, source = heappop(queue)
            yield segment
            draw(source, unsure, restores)
            descend(segment.session, unsure, restores)

    def _base(self, segment: Segment) -> _Base | None:
        """The state a session began from; restores that trained nothing before it are passed through."""
        step = segment.start_step
        current = segment
        while current.parent is not None:
            parent = self._placed[current.parent]
            if parent.start_step < step:
                return (parent.session, step)
            # Whatever stands between the parent and its own base began no earlier than the parent did.
            known = self._bases[parent.session]
            maker = self._placed.get(SessionId(known[0])) if known is not None else None
            if maker is None:
                return None if known is None else (known[0], step)
            if maker.start_step < step:
                return (maker.session, step)
            current = maker
        root = self._roots.get(current.session)
        return None if root is None else (root, step)


def _reaches(placed: Sequence[Segment]) -> dict[SessionId, _Reach]:
    found: dict[SessionId, _Reach] = {}
    below: dict[SessionId, _Reach] = {}
    for segment in reversed(placed):  # a parent comes before its children
        after, to = segment.start_step, segment.last_step
        if (known := below.get(segment.session)) is not None:
            after, to = min(after, known.after), max(to, known.to)
        found[segment.session] = _Reach(after, to)
        if segment.parent is not None:
            other = below.get(segment.parent, found[segment.session])
            below[segment.parent] = _Reach(min(after, other.after), max(to, other.to))
    return found


class _Needed:
    """Which of the steps in (after, to] an attempt was found for; `to` is None where there is no end."""

    def __init__(self, after: int, to: int | None) -> None:
        self._after = after
        self._to = to
        self._begins: list[int] = []  # of what was found, in order and never touching
        self._ends: list[int] = []

    @property
    def is_found(self) -> bool:
        """Whether nothing is missing."""
        return self._to is not None and not self.misses(self._after, self._to)

    def misses(self, after: int, to: int) -> bool:
        """Whether a step in (after, to] is missing."""
        return next(self._holes(after, to), None) is not None

    def missing(self, after: int, to: int) -> list[tuple[int, int]]:
        """The parts of (after, to] that are missing, in order."""
        return list(self._holes(after, to))

    def _holes(self, after: int, to: int) -> Iterator[tuple[int, int]]:
        low = max(after, self._after)
        to = to if self._to is None else min(to, self._to)
        index = bisect_right(self._ends, low)  # the first that ends beyond
        while low < to:
            if index == len(self._begins):
                yield low, to
                return
            if self._begins[index] > low:
                yield low, min(self._begins[index], to)
            low = self._ends[index]
            index += 1

    def found(self, low: int, high: int) -> None:
        """Take (low, high], all of which was missing."""
        first = bisect_left(self._ends, low)
        last = bisect_right(self._begins, high)
        if first < last:
            low, high = min(low, self._begins[first]), max(high, self._ends[last - 1])
        self._begins[first:last] = [low]
        self._ends[first:last] = [high]


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
        self._kin = _Kin(run, self._placed)
        self._first_trained = next((s for s in self._placed if s.num_steps > 0), None)

    def rows(self) -> list[ResumeAudit]:
        found: list[ResumeAudit] = []
        roots = _roots(self._run, self._placed)
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
    if segment.origin == "implied":
        return f"no checkpoint was restored, the session just went on with step {segment.start_step + 1}; "
    if segment.origin == "fresh":
        return "no checkpoint was restored, the session started over; "
    if segment.origin == "unknown":
        return "what it began from is not in this run's record; "
    return "restored by force; " if session.start.forced else ""
