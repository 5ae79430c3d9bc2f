"""Which steps each session trained, which of them count, and who trained the others again.

A run's sessions form a tree: each began at the start, from a checkpoint of an earlier session, or from another run.
The *head* is the newest session that trained anything. Walking from the head to the root and cutting each session
where its successor took over gives the effective history: every step at most once. Nothing here looks at a clock,
since clocks go back; sessions are ordered by ordinal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from lineage.errors import NotFoundError
from lineage_schemas.ids import SessionId, parse_generation_name

if TYPE_CHECKING:
    from lineage_schemas.run import Run, Session, Start

Origin = Literal["fresh", "checkpoint", "implied", "fork", "unknown"]
"""How a session's parent is known.

`fresh` began at step 0; `checkpoint` names its parent; `implied` names none, but carried on at a step an earlier
session had reached; `fork` came from another run; `unknown` names a parent nobody here knows.
"""


@dataclass(frozen=True)
class Segment:
    """The steps one session trained, and how far they count.

    Effective steps are `(start_step, effective_to]`, the others `(effective_to, last_step]`.

    Attributes:
        start_step: steps complete when the session began.
        last_step: last step it completed; `start_step` when it trained none.
        superseded_by: the first later session of the effective history that trained beyond the point where this
            one left it; None when all steps count, or when no later session did (the head is a named checkpoint).
        parent: session of this run it carried on from; None at a root.
        origin: how the parent is known.
    """

    session: SessionId
    ordinal: int
    start_step: int
    last_step: int
    effective_to: int
    superseded_by: SessionId | None = None
    parent: SessionId | None = None
    origin: Origin = "fresh"

    @property
    def num_steps(self) -> int:
        return self.last_step - self.start_step

    @property
    def num_effective(self) -> int:
        return self.effective_to - self.start_step

    @property
    def num_superseded(self) -> int:
        return self.last_step - self.effective_to


@dataclass(frozen=True)
class Gap:
    """Wall time in which nobody worked on the run.

    Attributes:
        before, after: the session that ended and the next one that started.
        duration_s: None when the clocks disagree: the next session started before the last sign of the one before.
    """

    before: SessionId
    after: SessionId
    start_ts: float
    end_ts: float
    duration_s: float | None


@dataclass(frozen=True)
class Ancestor:
    """One run on the way from the first ancestor to the run asked about.

    Attributes:
        head: the session or checkpoint up to which the run belongs to the history; None for the run itself.
        known: False when the run is named as a parent but its record is not at hand; then there are no segments.
    """

    run: str
    head: str | None
    segments: tuple[Segment, ...]
    known: bool = True


def first_trained(steps: Sequence[int], start_step: int = 0) -> int | None:
    """The first step a session trained, from the steps it logged in order; None when it logged none.

    With a logging interval of N the first line stands up to N - 1 steps after it; N is told from the first two lines.

    Args:
        steps: as logged; the first two are enough.
        start_step: steps complete when the session began, as its record says.
    """
    if len(steps) == 0:
        return None
    first = int(steps[0])
    if first <= start_step:
        return first
    interval = max(1, int(steps[1]) - first) if len(steps) > 1 else 1
    return max(start_step + 1, first - interval + 1)


def segments(
    run: Run,
    last_steps: Mapping[SessionId, int],
    *,
    head: str | None = None,
    first_steps: Mapping[SessionId, int] | None = None,
) -> tuple[Segment, ...]:
    """The segment of every session, by ordinal, as seen from `head`.

    Args:
        run: the record.
        last_steps: last step each session logged; what is missing is taken from the record, else none was trained.
        head: a session or a generation; None is the newest session that trained a step (a session that died before
            its first step superseded nothing).
        first_steps: first step each session trained (`first_trained`). Only with it can a careless restart be seen:
            a session recorded as `fresh` whose first step is not 1.

    Raises:
        NotFoundError: `head` names no session or generation of this run.
    """
    placed: list[Segment] = []
    earlier = _Earlier(run)
    for session in _in_order(run):
        segment = _place(run, session, last_steps, first_steps or {}, earlier)
        earlier.add(segment)
        placed.append(segment)
    if not placed:
        if head is not None:
            raise NotFoundError(f"{head!r} is no session of this run", run.id)
        return ()
    by_id = {segment.session: segment for segment in placed}
    tip, limit = _find_head(run, placed, head)
    effective_to = _walk(by_id, tip, limit)
    return tuple(_cut(placed, effective_to))


def _in_order(run: Run) -> list[Session]:
    return sorted(run.sessions, key=lambda session: session.ordinal)


class _Earlier:
    """The sessions before the one that is placed, found by what a start may name."""

    def __init__(self, run: Run) -> None:
        self.segments: list[Segment] = []
        self._run = run
        self._known: set[SessionId] = set()
        self._by_ordinal: dict[int, SessionId] = {}

    @cached_property
    def _makers(self) -> dict[str, list[SessionId]]:
        """The sessions that recorded each generation; made when a start names one by nothing else."""
        makers: dict[str, list[SessionId]] = {}
        for session in self._run.sessions:
            for name in session.checkpoints:
                makers.setdefault(name, []).append(SessionId(session.id))
        return makers

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._known.add(segment.session)
        self._by_ordinal[segment.ordinal] = segment.session

    def named(self, start: Start) -> SessionId | None:
        """The session that a start names; None when it names none, or one that is not before this one."""
        if start.session is not None and start.session in self._known:
            return SessionId(start.session)
        if start.checkpoint is None:
            return None
        for maker in self._makers.get(start.checkpoint, ()):
            if maker in self._known:
                return maker
        if start.session is not None:
            return None  # the ordinal in the generation's name could be that of another run's session
        parsed = parse_generation_name(start.checkpoint)
        return self._by_ordinal.get(parsed[1]) if parsed else None

    def implied(self, step: int) -> SessionId | None:
        """The newest one that had completed `step`; one that trained it comes before one that began at it."""
        for segment in reversed(self.segments):
            if segment.start_step < step <= segment.last_step:
                return segment.session
        for segment in reversed(self.segments):
            if segment.start_step == step:
                return segment.session
        return None


def _place(
    run: Run,
    session: Session,
    last_steps: Mapping[SessionId, int],
    first_steps: Mapping[SessionId, int],
    earlier: _Earlier,
) -> Segment:
    """The session with its parent; `effective_to` is still its last step."""
    start = session.start
    id_ = SessionId(session.id)
    first = first_steps.get(id_)
    begin = start.step
    careless = start.kind == "fresh" and start.checkpoint is None and begin == 0 and bool(earlier.segments)
    if first is not None and (first <= begin or (careless and first > 1)):
        begin = first - 1
    parent: SessionId | None = None
    origin: Origin
    if start.kind == "fork" or (start.run is not None and start.run != run.id):
        origin = "fork"
    elif begin == 0 and start.checkpoint is None:
        origin = "fresh"
    else:
        parent = earlier.named(start)
        origin = "checkpoint"
        if parent is None:
            parent = earlier.implied(begin)
            origin = "unknown" if parent is None else "implied"
    last = last_steps.get(id_, session.last_step)
    return Segment(
        session=id_,
        ordinal=session.ordinal,
        start_step=begin,
        last_step=begin if last is None else max(begin, last),
        effective_to=begin,
        parent=parent,
        origin=origin,
    )


def _find_head(run: Run, placed: Sequence[Segment], head: str | None) -> tuple[Segment, int]:
    """The session the walk begins in, and the step up to which it counts."""
    if head is None:
        trained = [segment for segment in placed if segment.num_steps > 0]
        tip = trained[-1] if trained else placed[-1]
        return tip, tip.last_step
    for segment in placed:
        if segment.session == head:
            return segment, segment.last_step
    parsed = parse_generation_name(head)
    makers = {session.id for session in run.sessions if head in session.checkpoints}
    for segment in reversed(placed):
        if segment.session in makers or (parsed and not makers and segment.ordinal == parsed[1]):
            return segment, parsed[0] if parsed else segment.last_step
    raise NotFoundError(f"{head!r} is no session or checkpoint of this run", run.id)


def _walk(by_id: Mapping[SessionId, Segment], tip: Segment, limit: int) -> dict[SessionId, int]:
    """From the head to the root: each session on the way, and the step up to which it counts."""
    effective_to: dict[SessionId, int] = {}
    segment: Segment | None = tip
    while segment is not None:
        # A parent that began after the point it was left at contributes nothing; the walk goes on before it.
        effective_to[segment.session] = max(segment.start_step, min(limit, segment.last_step))
        limit = min(limit, segment.start_step)
        segment = by_id[segment.parent] if segment.parent is not None else None
    return effective_to


def _cut(placed: Sequence[Segment], effective_to: Mapping[SessionId, int]) -> Iterator[Segment]:
    """Each session cut where the effective history left it, and by whom."""
    # Along the effective history ordinals rise, and so do the ends of those that add steps to it.
    counted = [s for s in placed if effective_to.get(s.session, s.start_step) > s.start_step]
    ordinals = [s.ordinal for s in counted]
    ends = [effective_to[s.session] for s in counted]
    left_at: dict[SessionId, int] = {}  # where a session's line left the effective history
    for segment in placed:
        end = effective_to.get(segment.session, segment.start_step)
        left = end
        if segment.session not in effective_to and segment.parent is not None:
            left = min(end, left_at[segment.parent])
        left_at[segment.session] = left
        by: SessionId | None = None
        if end < segment.last_step:
            first = max(bisect_right(ordinals, segment.ordinal), bisect_right(ends, left))
            by = counted[first].session if first < len(counted) else None
        yield replace(segment, effective_to=end, superseded_by=by)


def trained_by(found: Sequence[Segment], step: int) -> Segment | None:
    """The segment whose attempt at `step` is effective, or None."""
    for segment in found:
        if segment.start_step < step <= segment.effective_to:
            return segment
    return None


def ancestry(
    runs: Mapping[str, Run],
    run_id: str,
    last_steps: Mapping[str, Mapping[SessionId, int]],
    *,
    head: str | None = None,
) -> tuple[Ancestor, ...]:
    """The history of a run across forks, the oldest run first and `run_id` last.

    Each ancestor is cut at the checkpoint its child was forked from. A parent whose record is missing ends the chain
    and is named with `known=False`; so does a run that would be its own ancestor.

    Raises:
        NotFoundError: `run_id` is not among `runs`, or `head` is none of its sessions or checkpoints.
    """
    if run_id not in runs:
        raise NotFoundError(f"no run {run_id!r}")
    chain: list[Ancestor] = []
    seen: set[str] = set()
    current: str | None = run_id
    while current is not None:
        run = runs.get(current)
        if run is None or current in seen:
            chain.append(Ancestor(current, head, (), known=False))
            break
        seen.add(current)
        try:
            found = segments(run, last_steps.get(current, {}), head=head)
        except NotFoundError:
            if current == run_id:
                raise
            chain.append(Ancestor(current, head, (), known=False))
            break
        chain.append(Ancestor(current, head, found))
        current, head = (run.parent.run, run.parent.checkpoint) if run.parent else (None, None)
    return tuple(reversed(chain))


def gaps(
    run: Run,
    *,
    first_seen: Mapping[SessionId, float] | None = None,
    last_seen: Mapping[SessionId, float] | None = None,
) -> tuple[Gap, ...]:
    """The wall time between each session and the next, in order.

    Args:
        run: the record.
        first_seen: Unix seconds of each session's first event; else its recorded start.
        last_seen: Unix seconds of each session's last event, the only sign of the end of one that was killed;
            without it no gap is given.
    """
    ordered = _in_order(run)
    found: list[Gap] = []
    for earlier, later in pairwise(ordered):
        before, after = SessionId(earlier.id), SessionId(later.id)
        end = (last_seen or {}).get(before)
        if end is None and earlier.ended_at is not None:
            end = earlier.ended_at.timestamp()
        if end is None:
            continue
        begin = (first_seen or {}).get(after, later.started_at.timestamp())
        found.append(Gap(before, after, end, begin, begin - end if begin >= end else None))
    return tuple(found)
