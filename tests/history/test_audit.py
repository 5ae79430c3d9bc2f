"""The audit of whole runs: which attempts count as the answer key, and the row of each resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from history_records import OTHER_RUN, gen, resumed, run_of, session, sid

from lineage.history.audit import ResumeAudit, audit
from lineage.history.continuation import StepWitness
from lineage.history.reference import Attempts, reference_for
from lineage_schemas.checkpoint import ExpectedNext
from lineage_schemas.ids import SessionId
from lineage_schemas.run import Continuation, Run, Start, Tolerance


def true_step(step: int, **changes: Any) -> StepWitness:
    """What a right attempt at a step records."""
    full = StepWitness(step, batch=f"{step:016x}", rng=f"{step:017x}", lr={"a": (1.0 / step,)}, loss=1.0 / step)
    return replace(full, **changes)


def right(first: int, last: int) -> dict[int, StepWitness]:
    return {s: true_step(s) for s in range(first, last + 1)}


def wrong(first: int, last: int, at: int | None = None, **changes: Any) -> dict[int, StepWitness]:
    """A line that is another experiment from `at` on."""
    changes = changes or {"loss": 7.0}
    return {s: true_step(s, **changes) if s >= (at or first) else true_step(s) for s in range(first, last + 1)}


class Log:
    """Witnesses by session, as an audit asks for them."""

    def __init__(self, lines: Mapping[int, Mapping[int, StepWitness]]) -> None:
        self.lines = {sid(ordinal): steps for ordinal, steps in lines.items()}
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, session: SessionId, after: int, to: int) -> Mapping[int, StepWitness]:
        self.asked.append((session, after, to))
        return {s: w for s, w in self.lines.get(session, {}).items() if after < s <= to}

    @property
    def last_steps(self) -> dict[SessionId, int]:
        return {s: max(steps) for s, steps in self.lines.items() if steps}

    @property
    def first_steps(self) -> dict[SessionId, int]:
        return {s: min(steps) for s, steps in self.lines.items() if steps}


def rows(run: Run, lines: Mapping[int, Mapping[int, StepWitness]], **options: Any) -> list[ResumeAudit]:
    log = Log(lines)
    return audit(run, log, log.last_steps, first_steps=log.first_steps, **options)


def test_a_crash_leaves_the_answer_key() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)))
    (row,) = rows(run, {1: right(1, 437), 2: right(401, 900)})
    assert (row.verdict, row.compared_steps, row.from_step, row.checkpoint) == ("exact", 37, 400, gen(400, 1))
    assert row.against == sid(1)
    assert set(row.to_wire()) >= {
        "session",
        "from_step",
        "checkpoint",
        "verdict",
        "compared_steps",
        "first_difference",
        "reason",
    }


def test_a_divergence_has_its_step_its_field_and_both_values_on_the_wire() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)))
    (row,) = rows(run, {1: right(1, 437), 2: wrong(401, 900, at=402, batch="f" * 16)})
    assert row.to_wire()["first_difference"] == {
        "step": 402,
        "field": "batch",
        "part": None,
        "before": f"{402:016x}",
        "after": "f" * 16,
    }
    assert (row.verdict, row.compared_steps) == ("diverged", 2)


def test_a_clean_stop_is_unproven_beyond_what_the_restore_proved() -> None:
    recorded = Continuation(
        verdict="unproven", from_step=400, compared_steps=0, proven=["learning rate", "batch cursor", "rng"]
    )
    run = run_of(session(1), session(2, resumed(400, 1), continuation=recorded))
    (row,) = rows(run, {1: right(1, 400), 2: right(401, 900)})
    assert (row.verdict, row.compared_steps, row.first_difference) == ("unproven", 0, None)
    assert row.reason == "no overlap; unproven beyond the restored state (proven: learning rate, batch cursor, rng)"


def test_a_session_that_trained_nothing_is_unproven() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(400, 1)))
    dead, alive = rows(run, {1: right(1, 437), 3: right(401, 420)})
    assert (dead.verdict, alive.verdict, alive.compared_steps) == ("unproven", "exact", 20)
    assert "no step" in dead.reason


def test_a_careless_restart_is_compared_though_it_names_no_checkpoint() -> None:
    """The loop was told to go on at 400: `steps(total, start=400)`."""
    run = run_of(session(1), session(2, Start(kind="fresh", step=400)))
    (row,) = rows(run, {1: right(1, 437), 2: wrong(401, 500, batch=f"{1:016x}", lr={"a": (9.0,)})})
    assert (row.verdict, row.checkpoint, row.from_step) == ("diverged", None, 400)
    assert row.first_difference is not None
    assert (row.first_difference.step, row.first_difference.field) == (401, "batch")
    assert "no checkpoint was restored" in row.reason


def test_a_careless_restart_is_seen_by_its_first_step_alone() -> None:
    run = run_of(session(1), session(2))
    (row,) = rows(run, {1: right(1, 437), 2: wrong(401, 500)})
    assert (row.verdict, row.from_step, row.against) == ("diverged", 400, sid(1))


def test_starting_over_in_the_same_run_is_compared_from_the_first_step() -> None:
    run = run_of(session(1), session(2), session(3))
    again, other = rows(run, {1: right(1, 20), 2: right(1, 10), 3: wrong(1, 5, at=1)})
    assert (again.verdict, again.compared_steps, again.from_step) == ("exact", 10, 0)
    assert (other.verdict, other.first_difference and other.first_difference.step) == ("diverged", 1)
    assert "started over" in again.reason


@pytest.mark.parametrize("field", ["batch", "rng", "lr", "scale"])
@pytest.mark.parametrize("how", ["went on", "started over", "another first step", "no overlap"])
def test_where_no_checkpoint_was_restored_no_reason_speaks_of_one(how: str, field: str) -> None:
    start = Start(kind="fresh", step=400 if how != "started over" else 0)
    other: dict[str, Any] = {"batch": "f" * 16, "rng": "f" * 17, "lr": {"a": (9.0,)}, "scale": {"s": 2.0}}
    first = {"started over": 1, "another first step": 402}.get(how, 401)
    begun = wrong(1, 400 if how == "no overlap" else 437, scale={"s": 1.0})
    taken = wrong(first, first + 5, **{"scale": {"s": 1.0}, field: other[field]})
    (row,) = rows(run_of(session(1), session(2, start)), {1: begun, 2: taken})
    assert row.verdict == ("unproven" if how == "no overlap" else "diverged")
    said = row.reason.removeprefix("no checkpoint was restored, ")
    assert said != row.reason
    assert "checkpoint" not in said
    assert "restored state" not in said
    assert "put back as" not in said


def test_of_a_checkpoint_whose_maker_is_not_in_the_record_it_is_not_said_that_none_was_restored() -> None:
    start = Start(kind="resume", step=400, checkpoint=gen(400, 7), session=sid(7))
    run = run_of(session(1), session(2, start))
    (row,) = rows(run, {1: right(1, 437), 2: wrong(401, 410, rng="f" * 17)})
    assert row.checkpoint == gen(400, 7)
    assert row.reason.startswith("the session that made its checkpoint is not in this run's record; step 401: rng was ")
    assert row.reason.endswith("not put back as the checkpoint left them, or were drawn from in between")


def test_a_first_session_and_a_fresh_one_after_nothing_have_no_row() -> None:
    assert rows(run_of(session(1), session(2)), {2: right(1, 10)}) == []


def test_a_fork_has_no_row() -> None:
    start = Start(kind="fork", step=400, checkpoint=gen(400, 1), run=OTHER_RUN, session=sid(1))
    assert rows(run_of(session(1, start)), {1: right(401, 410)}) == []


def test_a_fork_that_is_started_again_from_its_checkpoint_is_compared_with_itself() -> None:
    start = Start(kind="fork", step=400, checkpoint=gen(400, 1), run=OTHER_RUN, session=sid(1))
    (row,) = rows(run_of(session(1, start), session(2, start)), {1: right(401, 410), 2: wrong(401, 420, at=405)})
    assert (row.verdict, row.compared_steps) == ("diverged", 5)


def test_the_session_that_went_on_without_a_restore_is_the_better_reference() -> None:
    """Session 2 went wrong at 401; session 3 restores the same checkpoint rightly and is not blamed for it."""
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(400, 1)))
    second, third = rows(run, {1: right(1, 437), 2: wrong(401, 900), 3: right(401, 800)})
    assert second.verdict == "diverged"
    assert (third.verdict, third.compared_steps, third.against) == ("exact", 37, sid(1))


def test_beyond_the_first_attempt_a_proven_resume_is_the_reference() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(400, 1)))
    lines = {1: right(1, 437), 2: right(401, 900), 3: wrong(401, 800, at=500)}
    third = rows(run, lines)[1]
    assert (third.verdict, third.compared_steps) == ("diverged", 100)
    assert third.first_difference is not None
    assert third.first_difference.step == 500


def test_two_restarts_of_a_clean_stop_are_compared_with_each_other() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(400, 1)))
    second, third = rows(run, {1: right(1, 400), 2: right(401, 500), 3: right(401, 450)})
    assert (second.verdict, third.verdict, third.compared_steps, third.against) == ("unproven", "exact", 50, sid(2))


def test_who_carried_on_a_later_checkpoint_answers_for_the_steps_after_it() -> None:
    """1 died at 437 with a checkpoint at 420, 2 went on from there; 3 goes back to 400 and is compared with both."""
    run = run_of(session(1), session(2, resumed(420, 1)), session(3, resumed(400, 1)))
    log = Log({1: right(1, 437), 2: right(421, 500), 3: right(401, 480)})
    reference = reference_for(run, sid(3), log, log.last_steps)
    assert reference.spans == ((sid(1), 400, 437), (sid(2), 437, 500))
    assert sorted(reference.steps) == list(range(401, 501))
    assert rows(run, log_lines(log))[1].compared_steps == 80


def log_lines(log: Log) -> dict[int, Mapping[int, StepWitness]]:
    return {int(s[1:3]): steps for s, steps in log.lines.items()}


def test_a_line_that_left_before_the_checkpoint_is_no_reference() -> None:
    run = run_of(session(1), session(2, resumed(200, 1)), session(3, resumed(400, 1)))
    log = Log({1: right(1, 400), 2: wrong(201, 900), 3: right(401, 500)})
    assert reference_for(run, sid(3), log, log.last_steps).steps == {}
    assert [row.verdict for row in rows(run, log_lines(log))] == ["diverged", "unproven"]


def test_who_carries_on_a_diverged_session_is_compared_with_that_session() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(500, 2)))
    second, third = rows(run, {1: right(1, 437), 2: wrong(401, 520), 3: wrong(501, 600)})
    assert (second.verdict, third.verdict, third.compared_steps) == ("diverged", "exact", 20)


def test_a_restore_that_trained_nothing_is_passed_through() -> None:
    """Session 2 restored 400 and only wrote a checkpoint again: its state at 400 is session 1's."""
    run = run_of(session(1), session(2, resumed(400, 1), checkpoints=[gen(400, 2)]), session(3, resumed(400, 2)))
    found = rows(run, {1: right(1, 437), 3: right(401, 500)})
    assert [(row.verdict, row.compared_steps) for row in found] == [("unproven", 0), ("exact", 37)]


def test_only_the_overlap_is_read() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)))
    log = Log({1: right(1, 437), 2: right(401, 9000)})
    audit(run, log, log.last_steps, first_steps=log.first_steps)
    assert all(after >= 400 and to <= 437 for _, after, to in log.asked)


def test_an_unknown_beginning_is_said() -> None:
    (row,) = rows(run_of(session(1, Start(kind="resume", step=9000, checkpoint=gen(9000, 9)))), {1: right(9001, 9010)})
    assert row.verdict == "unproven"
    assert "not in this run's record" in row.reason


def test_a_resume_that_counts_from_the_wrong_step_diverged_at_its_start() -> None:
    run = run_of(session(1), session(2, resumed(400, 1)), session(3, resumed(400, 1)))
    early, late = rows(run, {1: right(1, 437), 2: right(400, 450), 3: right(402, 450)})
    assert early.first_difference is not None
    assert late.first_difference is not None
    assert (early.first_difference.field, early.first_difference.after, early.from_step) == ("start_step", 400.0, 400)
    assert (late.first_difference.field, late.first_difference.after) == ("start_step", 402.0)


def test_a_logging_interval_is_no_wrong_start() -> None:
    every = {s: true_step(s) for s in range(1, 438) if s % 10 == 0}
    again = {s: true_step(s) for s in range(406, 500) if s % 10 == 0}
    run = run_of(session(1), session(2, resumed(405, 1)))
    (row,) = rows(run, {1: every, 2: again})
    assert (row.verdict, row.compared_steps) == ("exact", 3)


def test_the_tolerance_is_the_one_the_session_declared() -> None:
    run = run_of(session(1), session(2, resumed(400, 1), tolerance=Tolerance(rtol=1e-3)))
    near = {s: true_step(s, loss=(1 + 1e-5) / s) for s in range(401, 438)}
    (row,) = rows(run, {1: right(1, 437), 2: near})
    assert row.verdict == "within_tolerance"


def test_a_recorded_verdict_stands_where_the_lines_are_gone() -> None:
    recorded = Continuation(verdict="exact", from_step=400, compared_steps=37, reason="37 steps")
    run = run_of(session(1, last_step=437), session(2, resumed(400, 1), continuation=recorded))
    (row,) = rows(run, {2: right(401, 500)})
    assert (row.verdict, row.compared_steps) == ("exact", 37)
    assert row.reason == "as the session recorded it, from lines no longer in the log: 37 steps"
    silent = recorded.model_copy(update={"reason": ""})
    run = run_of(session(1, last_step=437), session(2, resumed(400, 1), continuation=silent))
    (row,) = rows(run, {2: right(401, 500)})
    assert row.reason == "as the session recorded it, from lines no longer in the log"


# -- what the manifests expect ---------------------------------------------------------------------------------------


def expecting(*steps_and_rates: tuple[int, float]) -> dict[str, ExpectedNext]:
    return {gen(step, 1): ExpectedNext(lr={"a": [rate]}) for step, rate in steps_and_rates}


def test_a_first_learning_rate_as_expected_is_proof_of_it() -> None:
    run = run_of(session(1, checkpoints=[gen(400, 1)]), session(2, resumed(400, 1)))
    (row,) = rows(run, {1: right(1, 400), 2: right(401, 410)}, expectations=expecting((400, 1 / 401)))
    assert (row.verdict, row.proven) == ("unproven", ("learning rate",))


def test_a_first_learning_rate_that_was_not_expected_diverged_where_expectations_are_known_to_hold() -> None:
    run = run_of(session(1, checkpoints=[gen(200, 1), gen(400, 1)]), session(2, resumed(400, 1)))
    lines = {1: right(1, 400), 2: wrong(401, 410, lr={"a": (1.0,)})}
    (row,) = rows(run, lines, expectations=expecting((200, 1 / 201), (400, 1 / 401)))
    assert row.verdict == "diverged"
    assert row.first_difference is not None
    assert (row.first_difference.step, row.first_difference.field) == (401, "lr")


def test_a_loop_that_sets_its_rates_itself_is_not_accused() -> None:
    """Its checkpoints see the rate of the step before, here as everywhere in the run."""
    run = run_of(session(1, checkpoints=[gen(200, 1), gen(400, 1)]), session(2, resumed(400, 1)))
    lines = {1: right(1, 400), 2: right(401, 410)}
    (row,) = rows(run, lines, expectations=expecting((200, 1 / 200), (400, 1 / 400)))
    assert row.verdict == "unproven"
    assert "sets its rates itself" in row.reason


# -- reading a log ---------------------------------------------------------------------------------------------------


def test_attempts_keep_only_what_was_asked_for_and_know_every_end() -> None:
    lines: list[dict[str, object]] = [
        {"kind": "step", "session": sid(o), "step": s, "metrics": {"loss": 1.0}}
        for o, steps in ((1, range(1, 11)), (2, range(6, 21, 2)))
        for s in steps
    ]
    attempts = Attempts.of(lines, after=5)
    run = run_of(session(1), session(2, resumed(4, 1)))
    assert attempts.last_steps == {sid(1): 10, sid(2): 20}
    assert attempts.first_steps(run) == {sid(1): 1, sid(2): 5}
    assert sorted(attempts(sid(1), 0, 100)) == [6, 7, 8, 9, 10]
    assert sorted(attempts(sid(2), 7, 9)) == [8]
    assert attempts(sid(9), 0, 100) == {}
