"""The search for earlier attempts: the same as looking at every session, without looking at every session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest
from history_records import gen, resumed, run_of, session, sid
from hypothesis import given
from hypothesis import strategies as st

from lineage.history.audit import audit
from lineage.history.continuation import StepWitness
from lineage.history.reference import reference_for
from lineage.history.segments import Segment, segments
from lineage_schemas.ids import SessionId
from lineage_schemas.run import Continuation, Run, Session, Start, Verdict

Lines = dict[SessionId, dict[int, StepWitness]]

VERDICTS: Final[tuple[Verdict | None, ...]] = (None, "exact", "within_tolerance", "diverged", "unproven")


class Log:
    """Witnesses by session; counts how often it is asked."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.num_asked = 0
        self.last_steps = {id_: max(steps) for id_, steps in lines.items() if steps}
        self.first_steps = {id_: min(steps) for id_, steps in lines.items() if steps}

    def __call__(self, session: SessionId, after: int, to: int) -> Mapping[int, StepWitness]:
        self.num_asked += 1
        return {s: w for s, w in self.lines.get(session, {}).items() if after < s <= to}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Run, Log]:
    """Sessions that resume anything, start over, carry on carelessly or name what is not there; some logged gaps."""
    sessions: list[Session] = []
    lines: Lines = {}
    steps = st.integers(0, 12)
    for ordinal in range(1, draw(st.integers(1, 9)) + 1):
        start = Start(kind="fresh")
        how = draw(st.sampled_from(["resume"] * 6 + ["fresh", "careless", "named", "elsewhere"])) if sessions else ""
        if how == "resume":
            by = draw(st.integers(1, ordinal - 1))
            begin = sessions[by - 1].start.step
            start = resumed(draw(st.integers(begin, max(begin, *lines[sid(by)], begin))), by)
        elif how == "careless":
            start = Start(kind="resume", step=draw(steps))
        elif how == "named":
            start = Start(kind="resume", step=draw(steps), session=sid(draw(st.integers(1, ordinal - 1))))
        elif how == "elsewhere":
            start = Start(kind="resume", step=draw(steps), checkpoint=gen(draw(steps), 99), session=sid(99))
        trained = range(start.step + 1, start.step + 1 + draw(st.integers(0, 6)))
        logged = draw(st.sets(st.sampled_from(trained))) if trained and draw(st.booleans()) else set(trained)
        lines[sid(ordinal)] = {s: StepWitness(s, batch=f"{s:016x}", loss=float(ordinal)) for s in sorted(logged)}
        verdict = draw(st.sampled_from(VERDICTS))
        said = None
        if verdict is not None:
            said = Continuation(verdict=verdict, from_step=start.step, compared_steps=1, reason="recorded")
        sessions.append(session(ordinal, start, continuation=said))
    return run_of(*sessions), Log(lines)


def _whole(run: Run, own: Segment, placed: Mapping[SessionId, Segment], log: Log) -> dict[int, StepWitness]:
    """The model, session by session and step by step: docs/decisions/041 to the letter."""
    judged = {s.id: s.continuation.verdict for s in run.sessions if s.continuation is not None}
    starts = {s.id: s.start for s in run.sessions}

    def root_of(segment: Segment) -> str | None:
        if segment.origin == "fresh":
            return "root"
        checkpoint = starts[segment.session].checkpoint
        return f"root {checkpoint}" if checkpoint is not None else None

    def line_of(segment: Segment) -> Iterator[Segment]:
        yield segment
        while segment.parent is not None:
            segment = placed[segment.parent]
            yield segment

    base: str | None = root_of(list(line_of(own))[-1])
    for ancestor in list(line_of(own))[1:]:
        if ancestor.start_step < own.start_step:
            base = ancestor.session
            break
    found: dict[int, tuple[tuple[int, int, int], StepWitness]] = {}
    for other in placed.values():
        if base is None or other.ordinal >= own.ordinal:
            continue
        way: list[Segment] = []
        left_at = other.last_step
        for passed in line_of(other):
            if passed.session == base:
                through = left_at >= own.start_step
                break
            way.append(passed)
            left_at = passed.start_step
        else:
            through = root_of(way[-1]) == base and left_at == own.start_step
            if way[-1].origin == "fresh" and way[-1].ordinal == 1:
                way.pop()
        verdicts = [judged.get(s.session) for s in way]
        if not through or "diverged" in verdicts:
            continue
        rank = (sum(v not in ("exact", "within_tolerance") for v in verdicts), len(way), other.ordinal)
        for step, witness in log.lines[other.session].items():
            if step > max(own.start_step, other.start_step) and (step not in found or rank < found[step][0]):
                found[step] = (rank, witness)
    return {step: witness for step, (_, witness) in found.items()}


@given(histories())
def test_what_is_compared_is_what_looking_at_every_session_finds(history: tuple[Run, Log]) -> None:
    """Where every step was logged; a session that logged some covers its gaps too, which the model does not know."""
    run, log = history
    placed = segments(run, log.last_steps, first_steps=log.first_steps)
    gapless = all(
        set(log.lines[s.session]) == set(range(s.start_step + 1, s.last_step + 1)) for s in placed if s.num_steps
    )
    for own in placed:
        model = _whole(run, own, {s.session: s for s in placed}, log)
        reference = reference_for(run, own.session, log, log.last_steps, first_steps=log.first_steps)
        if gapless:
            assert reference.steps == model
        assert set(reference.steps) <= set(model)
        for step, witness in reference.steps.items():
            attempt = reference.session_at(step)
            assert attempt is not None
            assert log.lines[attempt][step] == witness


@given(histories())
def test_a_row_compares_with_what_the_hook_would_have_compared_with(history: tuple[Run, Log]) -> None:
    """The audit judges one session after another; the hook asks for one, with the verdicts before it on record."""
    run, log = history
    rows = audit(run, log, log.last_steps, first_steps=log.first_steps)
    verdicts = {row.session: row.verdict for row in rows}
    ends = {s.session: s.last_step for s in segments(run, log.last_steps, first_steps=log.first_steps)}
    for row in rows:
        reference = reference_for(
            run,
            row.session,
            log,
            log.last_steps,
            first_steps=log.first_steps,
            verdicts=verdicts,
            to_step=ends[row.session],
        )
        assert row.from_step == reference.from_step
        if row.against is not None:
            assert row.against in {span[0] for span in reference.spans}


def chain(count: int) -> tuple[Run, Log]:
    """Each resumes the checkpoint ten steps on of the one before, which died five steps later."""
    sessions = [session(n, resumed(10 * n - 10, n - 1) if n > 1 else None) for n in range(1, count + 1)]
    return run_of(*sessions), Log({sid(n): _trained(10 * n - 9, 10 * n + 5) for n in range(1, count + 1)})


def crash_loop(count: int) -> tuple[Run, Log]:
    """Each resumes the same checkpoint and dies of the same step, which the first never reached."""
    sessions = [session(1), *(session(n, resumed(10, 1)) for n in range(2, count + 1))]
    lines = {sid(n): _trained(11, 13) for n in range(2, count + 1)}
    return run_of(*sessions), Log({sid(1): _trained(1, 10)} | lines)


def _trained(first: int, last: int) -> dict[int, StepWitness]:
    return {s: StepWitness(s, batch=f"{s:016x}", loss=1.0 / s) for s in range(first, last + 1)}


@pytest.mark.parametrize("history", [chain, crash_loop])
def test_a_resume_asks_the_log_a_few_times_however_many_sessions_there_are(
    history: Callable[[int], tuple[Run, Log]],
) -> None:
    run, log = history(300)
    rows = audit(run, log, log.last_steps, first_steps=log.first_steps)
    assert [row.verdict for row in rows[1:]] == ["exact"] * len(rows[1:])
    assert log.num_asked <= 5 * len(rows)
