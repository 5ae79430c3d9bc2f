"""Which earlier attempts a session is compared with: those of sessions that passed through the state it began from.

What an attempt is compared with, and why: docs/decisions/041.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from lineage.history.continuation import Began, Comparer, StepWitness
from lineage.history.segments import Segment, first_trained, segments
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage_schemas.events import StepEvent
    from lineage_schemas.run import Run, Tolerance, Verdict


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
        began: how the session itself began.
    """

    session: SessionId
    from_step: int
    steps: Mapping[int, StepWitness]
    spans: tuple[tuple[SessionId, int, int], ...]
    origin: str
    began: Began = "restored"

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
            began=self.began,
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
    kin = Kin(run, placed)
    for segment in placed:
        if segment.session == session_id:
            return kin.reference(segment, lookup, to_step)
        kin.settle(segment, (verdicts or {}).get(segment.session))
    raise KeyError(session_id)


_Base = tuple[str, int]
"""A state of training: who reached it by training (a session, or the name of a root), and the step."""


def roots_of(run: Run, placed: Sequence[Segment]) -> dict[SessionId, str]:
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


class Kin:
    """The sessions of a run by the states they began from, as one after another is judged.

    A reference is looked for from a state outwards, nearest first, and only until its steps are found: most resumes
    meet one or two of the sessions, however many the run has.
    """

    def __init__(self, run: Run, placed: Sequence[Segment]) -> None:
        self._placed = {segment.session: segment for segment in placed}
        self._sessions = {session.id: session for session in run.sessions}
        self._roots = roots_of(run, placed)
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
        start = self._sessions[own.session].start
        from_step = start.step if own.origin == "checkpoint" else own.start_step
        began: Began = "restored"
        if start.checkpoint is None:
            began = "went_on" if own.start_step else "started_over"
        return Reference(own.session, from_step, steps, tuple(spans), own.origin, began)

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
