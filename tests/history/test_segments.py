"""Segments against the way a person would do it: write down, step by step, who trained what."""

from __future__ import annotations

from datetime import timedelta

import pytest
from history_records import OTHER_RUN, RUN, T0, gen, resumed, run_of, session, sid
from hypothesis import given
from hypothesis import strategies as st

from lineage.errors import NotFoundError
from lineage.history.segments import Segment, ancestry, first_trained, gaps, segments, trained_by
from lineage_schemas.run import Parent, Run, Start


def spans(found: tuple[Segment, ...]) -> list[tuple[int, int, int, int]]:
    return [(s.ordinal, s.start_step, s.effective_to, s.last_step) for s in found]


def test_a_session_alone_keeps_all_its_steps() -> None:
    assert spans(segments(run_of(session(1)), {sid(1): 437})) == [(1, 0, 437, 437)]


def test_a_resume_from_400_supersedes_401_to_437() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)))
    first, second = segments(run, {sid(1): 437, sid(2): 900})
    assert (first.effective_to, first.last_step, first.superseded_by) == (400, 437, sid(2))
    assert (second.effective_to, second.superseded_by, second.parent) == (900, None, sid(1))
    assert first.num_superseded == 37


def test_steps_ahead_of_a_resume_that_has_not_caught_up_are_superseded_too() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)))
    assert spans(segments(run, {sid(1): 437, sid(2): 410})) == [(1, 0, 400, 437), (2, 400, 410, 410)]


def test_a_session_that_died_before_its_first_step_supersedes_nothing() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)))
    first, second = segments(run, {sid(1): 437})
    assert first.superseded_by is None
    assert first.effective_to == 437
    assert second.num_steps == 0


def test_a_session_without_steps_may_stand_between_two_that_trained() -> None:
    run = run_of(session(1), session(2, resumed(400, 1), checkpoints=[gen(400, 2)]), session(3, resumed(400, 2)))
    first, second, third = segments(run, {sid(1): 437, sid(3): 500})
    assert (first.effective_to, first.superseded_by) == (400, sid(3))
    assert (second.num_steps, third.parent) == (0, sid(2))


def test_a_restart_from_before_the_last_checkpoint_cuts_earlier() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(200, 1)))
    found = segments(run, {sid(1): 437, sid(2): 900, sid(3): 300})
    assert spans(found) == [(1, 0, 200, 437), (2, 400, 400, 900), (3, 200, 300, 300)]
    assert [s.superseded_by for s in found] == [sid(3), sid(3), None]


def test_two_restarts_from_one_checkpoint_leave_only_the_second() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(400, 1)))
    found = segments(run, {sid(1): 437, sid(2): 460, sid(3): 450})
    assert spans(found) == [(1, 0, 400, 437), (2, 400, 400, 460), (3, 400, 450, 450)]


def test_an_older_line_may_come_back_when_its_checkpoint_is_resumed() -> None:
    """Session 3 goes on from session 1's 420, so session 2's line is off the history, superseded by session 3."""
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(420, 1)))
    found = segments(run, {sid(1): 437, sid(2): 430, sid(3): 500})
    assert spans(found) == [(1, 0, 420, 437), (2, 400, 400, 430), (3, 420, 500, 500)]
    assert found[1].superseded_by == sid(3)


def test_a_checkpoint_of_a_superseded_session_can_be_carried_on() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(200, 1)), session(4, resumed(600, 2)))
    found = segments(run, {sid(1): 437, sid(2): 700, sid(3): 300, sid(4): 650})
    assert spans(found) == [(1, 0, 400, 437), (2, 400, 600, 700), (3, 200, 200, 300), (4, 600, 650, 650)]


def test_a_named_checkpoint_shows_the_history_it_stands_on() -> None:
    run = run_of(session(1, checkpoints=[gen(200, 1), gen(400, 1)]), session(2, resumed(400, 1)))
    found = segments(run, {sid(1): 437, sid(2): 900}, head=gen(200, 1))
    assert spans(found) == [(1, 0, 200, 437), (2, 400, 400, 900)]
    assert [s.superseded_by for s in found] == [None, None]
    assert spans(segments(run, {sid(1): 437, sid(2): 900}, head=sid(1))) == [(1, 0, 437, 437), (2, 400, 400, 900)]


def test_an_unknown_head_is_an_error_and_not_an_empty_history() -> None:
    with pytest.raises(NotFoundError):
        segments(run_of(session(1)), {}, head=sid(7))


def test_a_parent_nobody_knows_is_implied_by_who_reached_the_step() -> None:
    start = Start(kind="resume", step=400, checkpoint=gen(400, 9), session=sid(9))
    found = segments(run_of(session(1), session(2, start)), {sid(1): 437, sid(2): 450})
    assert (found[1].parent, found[1].origin) == (sid(1), "implied")
    assert found[0].effective_to == 400


def test_a_parent_nobody_knows_and_nobody_reached_is_a_root() -> None:
    start = Start(kind="resume", step=9000, checkpoint=gen(9000, 9), session=sid(9))
    found = segments(run_of(session(1), session(2, start)), {sid(1): 437, sid(2): 9100})
    assert (found[1].parent, found[1].origin) == (None, "unknown")
    assert (found[0].effective_to, found[0].superseded_by) == (0, sid(2))


def test_a_session_that_names_itself_or_a_later_one_as_parent_ends_the_walk() -> None:
    run = run_of(session(1, resumed(10, 2)), session(2, resumed(20, 2)))
    assert [s.parent for s in segments(run, {sid(1): 30, sid(2): 40})] == [None, sid(1)]


def test_a_careless_restart_is_seen_by_its_first_step() -> None:
    run = run_of(session(1), session(2))
    found = segments(run, {sid(1): 437, sid(2): 600}, first_steps={sid(1): 1, sid(2): 401})
    assert spans(found) == [(1, 0, 400, 437), (2, 400, 600, 600)]
    assert found[1].origin == "implied"


def test_a_start_over_in_the_same_run_supersedes_everything() -> None:
    run = run_of(session(1), session(2))
    found = segments(run, {sid(1): 437, sid(2): 10}, first_steps={sid(1): 1, sid(2): 1})
    assert spans(found) == [(1, 0, 0, 437), (2, 0, 10, 10)]
    assert found[0].superseded_by == sid(2)


def test_clocks_that_go_back_change_no_segment() -> None:
    right = run_of(session(1), session(2, resumed(400, 1)))
    back = run_of(session(1), session(2, resumed(400, 1), started_at=T0 - timedelta(days=900)))
    assert segments(right, {sid(1): 437, sid(2): 500}) == segments(back, {sid(1): 437, sid(2): 500})


def test_a_fork_starts_a_root_of_its_own() -> None:
    start = Start(kind="fork", step=400, checkpoint=gen(400, 1), run=OTHER_RUN, session=sid(1))
    (found,) = segments(run_of(session(1, start)), {sid(1): 500})
    assert (found.start_step, found.effective_to, found.origin, found.parent) == (400, 500, "fork", None)


def test_the_ancestry_of_a_fork_cuts_its_parent_at_the_checkpoint() -> None:
    parent = run_of(session(1, checkpoints=[gen(400, 1)]), id=OTHER_RUN)
    start = Start(kind="fork", step=400, checkpoint=gen(400, 1), run=OTHER_RUN, session=sid(1))
    child = run_of(session(1, start), parent=Parent(run=OTHER_RUN, session=sid(1), checkpoint=gen(400, 1), step=400))
    chain = ancestry({RUN: child, OTHER_RUN: parent}, RUN, {RUN: {sid(1): 500}, OTHER_RUN: {sid(1): 1000}})
    assert [(a.run, spans(a.segments)) for a in chain] == [
        (OTHER_RUN, [(1, 0, 400, 1000)]),
        (RUN, [(1, 400, 500, 500)]),
    ]


def test_a_missing_parent_run_is_named_and_a_circle_ends() -> None:
    here = Parent(run=OTHER_RUN, checkpoint=gen(400, 1), step=400)
    chain = ancestry({RUN: run_of(session(1), parent=here)}, RUN, {})
    assert [(a.run, a.known) for a in chain] == [(OTHER_RUN, False), (RUN, True)]
    circle = run_of(session(1, checkpoints=[gen(400, 1)]), parent=Parent(run=RUN, checkpoint=gen(400, 1), step=400))
    assert [a.known for a in ancestry({RUN: circle}, RUN, {})] == [False, True]


def test_gaps_say_when_the_clock_went_back() -> None:
    run = run_of(session(1), session(2, resumed(4, 1)), session(3, resumed(4, 1), started_at=T0))
    assert [
        g.duration_s for g in gaps(run, last_seen={sid(1): T0.timestamp() + 3600, sid(2): T0.timestamp() + 9000})
    ] == [3600.0, None]
    assert gaps(run) == ()


def test_the_first_trained_step_allows_for_a_logging_interval() -> None:
    assert first_trained([401, 402]) == 401
    assert first_trained([410, 420]) == 401
    assert first_trained([]) is None
    assert first_trained([7]) == 7


@st.composite
def histories(draw: st.DrawFn) -> tuple[Run, dict[str, int], str | None]:
    """A run of up to seven sessions, each from any step that an earlier one had reached, or from nothing."""
    sessions, last = [], {}
    reached: list[tuple[int, int]] = []  # (first possible checkpoint, last step) by ordinal
    for ordinal in range(1, draw(st.integers(1, 7)) + 1):
        begin, start = 0, Start(kind="fresh")
        if reached and draw(st.integers(0, 9)):
            by = draw(st.integers(1, len(reached)))
            begin = draw(st.integers(*reached[by - 1]))
            start = resumed(begin, by)
        end = begin + draw(st.integers(0, 6))
        when = T0 + timedelta(hours=draw(st.integers(-5, 5)))
        sessions.append(session(ordinal, start, started_at=when))
        if end > begin or draw(st.booleans()):
            last[sid(ordinal)] = end
        reached.append((begin, end))
    head = draw(st.none() | st.sampled_from([s.id for s in sessions]))
    return run_of(*sessions), last, head


def lines_of(run: Run, last: dict[str, int]) -> dict[str, dict[int, str]]:
    """The model: what each session believes was trained by whom, step by step, copied from its parent and cut."""
    lines: dict[str, dict[int, str]] = {}
    for one in run.sessions:
        line = {s: who for s, who in lines.get(one.start.session or "", {}).items() if s <= one.start.step}
        for step in range(one.start.step + 1, last.get(one.id, 0) + 1):
            line[step] = one.id
        lines[one.id] = line
    return lines


@given(histories())
def test_segments_agree_with_writing_every_line_down(history: tuple[Run, dict[str, int], str | None]) -> None:
    run, last, head = history
    lines = lines_of(run, last)
    trained = [s.id for s in run.sessions if last.get(s.id, 0) > s.start.step]
    truth = lines[head or (trained[-1] if trained else run.sessions[-1].id)]
    found = segments(run, last, head=head)
    told = {step: s.session for s in found for step in range(s.start_step + 1, s.effective_to + 1)}
    assert told == truth
    assert sum(s.num_effective for s in found) == len(truth)  # each step once
    for s in found:
        assert s.start_step <= s.effective_to <= s.last_step
        owners = set(truth.values())
        if s.superseded_by is not None:
            assert s.num_superseded > 0
            assert s.superseded_by in owners
            assert s.superseded_by > s.session
    for step in range(1, max(truth, default=0) + 2):
        owner = trained_by(found, step)
        assert (owner.session if owner else None) == truth.get(step)


@given(histories())
def test_what_is_off_the_newest_history_names_a_successor(history: tuple[Run, dict[str, int], str | None]) -> None:
    """Only when the newest session leads: a session that trained steps nobody counts was superseded by someone."""
    run, last, _ = history
    for s in segments(run, last):
        assert (s.superseded_by is not None) == (s.num_superseded > 0)
