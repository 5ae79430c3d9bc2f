"""What explains a change: the true cause first, and nothing where nothing was recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from history_records import RUN, gen, resumed, run_of, session, sid

from lineage.history.audit import ResumeAudit
from lineage.history.changes import Curve
from lineage.history.explain import NOTHING, Account, Cause, explain, explain_step, find_changes, tell
from lineage.history.segments import Gap, segments
from lineage_schemas.events import AlertEvent, Event, Fp16SkipEvent, LrGroup, LrRestoreEvent, NoteEvent, PhaseEndEvent
from lineage_schemas.run import FirstDifference, Recipe, Run

ROWS = 900


def at(cls: type[Event], ordinal: int, step: int, **fields: Any) -> Event:
    return cls(ts=float(step), run=RUN, session=sid(ordinal), step=step, **fields)


def loss(jump_at: int | None = None, factor: float = 1.3) -> Curve:
    rng = np.random.default_rng(3)
    value = (1.5 + 3 * np.exp(-np.arange(ROWS) / 150)) * (1 + 0.01 * rng.normal(size=ROWS))
    if jump_at:
        value[jump_at - 1 :] *= factor
    return Curve(np.arange(1, ROWS + 1), value)


def rate(slow_at: int | None = None) -> Curve:
    value = 1e4 * (1 + 0.02 * np.random.default_rng(4).normal(size=ROWS))
    if slow_at:
        value[slow_at - 1 :] *= 0.5
    return Curve(np.arange(1, ROWS + 1), value)


def account(*events: Event, run: Run | None = None, last: dict[Any, int] | None = None, **fields: Any) -> Account:
    run = run or run_of(session(1))
    placed = segments(run, last or {sid(1): ROWS})
    return Account(run, placed, list(events), **({"loss": loss()} | fields))


def resumed_run(**second: Any) -> tuple[Run, dict[Any, int]]:
    return run_of(session(1), session(2, resumed(400, 1), **second)), {sid(1): 437, sid(2): ROWS}


def row(verdict: str, field: str | None = None, step: int = 401) -> ResumeAudit:
    first = FirstDifference(step=step, field=field, before="a", after="b") if field else None
    return ResumeAudit(sid(2), 2, 400, gen(400, 1), verdict, 37, first, "the reason given")  # type: ignore[arg-type]  # a verdict


def first_cause(changes: list[Any]) -> Cause:
    assert len(changes) == 1
    cause: Cause = changes[0].causes[0]
    return cause


def test_a_jump_that_nothing_explains_has_no_cause_and_says_so() -> None:
    (change,) = find_changes(account(loss=loss(500)))
    assert abs(change.step - 500) <= 2
    assert (change.metric, change.causes) == ("loss", ())
    assert change.to_wire()["summary"] == NOTHING
    assert list(tell([change]))[1].strip() == NOTHING


def test_a_calm_run_has_no_changes_whatever_was_recorded() -> None:
    events = [at(PhaseEndEvent, 1, s, phase="eval", duration_s=3.0) for s in range(50, ROWS, 50)]
    assert find_changes(account(*events, throughput=rate())) == []


def test_a_resume_that_took_other_batches_is_named_before_everything_else() -> None:
    run, last = resumed_run(recipe=Recipe(value={"lr": 2}, fingerprint="1" * 64))
    restore = at(LrRestoreEvent, 2, 400, groups=[LrGroup(optimizer="a", group=0, before=1.0, after=0.5, expected=0.5)])
    cause = first_cause(
        find_changes(account(restore, run=run, last=last, loss=loss(401), resumes=[row("diverged", "batch")]))
    )
    assert (cause.kind, cause.step) == ("data", 401)
    assert "the reason given" in cause.message


def test_a_diverged_resume_is_told_though_its_loss_does_not_jump() -> None:
    run, last = resumed_run()
    (change,) = find_changes(account(run=run, last=last, resumes=[row("diverged", "lr", 402)]))
    assert (change.step, change.shift, change.causes[0].kind) == (402, None, "lr")
    assert change.to_wire()["change"] == "diverged"
    assert "another experiment" in next(iter(tell([change])))
    assert find_changes(account(run=run, last=last, resumes=[row("exact")])) == []


def test_what_differs_at_a_boundary_is_told_by_weight() -> None:
    run, last = resumed_run(recipe=Recipe(value={"lr": 2, "compile": True}, fingerprint="1" * 64), host="other")
    (change,) = find_changes(account(run=run, last=last, loss=loss(401)))
    told = [(c.kind, c.message) for c in change.causes]
    assert told[0][0] == "difference"
    assert "lr added: 2 (changes the experiment)" in told[0][1]
    assert "compile" in told[1][1]
    assert told[2][0] == "session"
    assert "harmless" in told[2][1]


def test_a_learning_rate_the_checkpoint_did_not_expect_is_the_cause() -> None:
    run, last = resumed_run()
    group = LrGroup(optimizer="a", group=0, before=1.0, after=1.0, expected=0.25)
    restore = at(LrRestoreEvent, 2, 400, groups=[group], ok=False)
    cause = first_cause(find_changes(account(restore, run=run, last=last, loss=loss(401))))
    assert (cause.kind, cause.event) == ("lr", restore)
    assert "expects 0.25" in cause.message


def test_a_rate_that_jumps_in_the_log_is_found_but_warm_up_and_decay_are_not() -> None:
    steps = np.arange(1, ROWS + 1)
    smooth = np.minimum(steps / 100, 1.0) * (1 + np.cos(np.pi * steps / ROWS))
    broken = smooth.copy()
    broken[499:] *= 3
    jumped = first_cause(find_changes(account(loss=loss(500), lr=Curve(steps, broken))))
    assert (jumped.kind, jumped.step) == ("lr", 500)
    for step in (3, 50, 99, 101, 300, 890):
        assert explain(account(lr=Curve(steps, smooth)), step) == []


def test_a_warm_up_that_skipped_updates_hold_back_is_no_jump() -> None:
    rates = np.minimum(np.arange(ROWS) * 0.01, 0.1)
    rates[4:9] = rates[4]  # four skipped updates, then the schedule goes on where it was
    rates[9:] = np.minimum(rates[4] + (np.arange(ROWS - 9) + 1) * 0.01, 0.1)
    assert explain(account(lr=Curve(np.arange(1, ROWS + 1), rates)), 8) == []


def test_skipped_updates_are_one_cause_with_the_scale() -> None:
    events = [
        at(Fp16SkipEvent, 1, s, scale_before=2.0 ** (20 - i), scale_after=2.0 ** (19 - i))
        for i, s in enumerate((497, 498, 499))
    ]
    cause = first_cause(find_changes(account(*events, loss=loss(500))))
    assert cause.kind == "fp16_skip"
    assert "3 updates skipped at steps 497 to 499" in cause.message
    assert "1,048,576 to 131,072" in cause.message


def test_phases_explain_throughput_and_not_loss() -> None:
    phase = at(PhaseEndEvent, 1, 499, phase="eval", duration_s=30.0)
    assert first_cause(find_changes(account(phase, throughput=rate(500)))).kind == "phase"
    (change,) = find_changes(account(phase, loss=loss(500)))
    assert change.causes == ()


def test_another_environment_explains_a_slower_session() -> None:
    run, last = resumed_run(world=1, runtime={"device": "cuda"})
    cause = first_cause(find_changes(account(run=run, last=last, throughput=rate(401))))
    assert (cause.kind, cause.step) == ("difference", 401)
    assert "runtime.device" in cause.message


def test_what_comes_after_a_change_is_not_its_cause_and_what_is_far_is_not_named() -> None:
    before, after, far = (at(NoteEvent, 1, s, text=f"note at {s}") for s in (498, 505, 530))
    (change,) = find_changes(account(before, after, far, loss=loss(500)))
    assert [c.step for c in change.causes] == [498, 505]


def test_what_happened_on_a_superseded_line_explains_nothing() -> None:
    run, last = resumed_run()
    lost = at(NoteEvent, 1, 430, text="on the line that was lost")
    assert not any("lost" in c.message for c in explain(account(lost, run=run, last=last), 430))


def test_a_step_asked_about_is_answered_even_where_the_curve_is_calm() -> None:
    run, last = resumed_run()
    gap = Gap(sid(1), sid(2), 0.0, 7_200.0, 7_200.0)
    (change,) = explain_step(account(run=run, last=last, resumes=[row("exact")], gaps=[gap]), 403)
    assert (change.step, change.shift) == (403, None)
    assert change.causes[0].kind == "session"
    assert "2.0 h after" in change.causes[0].message
    assert "carried on exactly (37 steps compared)" in change.causes[0].message
    (quiet,) = explain_step(account(), 600)
    assert quiet.causes == ()


def test_the_change_near_a_step_asked_about_is_the_answer() -> None:
    (change,) = explain_step(account(loss=loss(500)), 505)
    assert change.shift is not None
    assert abs(change.step - 500) <= 2


def test_nonfinite_losses_are_changes_and_causes() -> None:
    curve = loss()
    curve.value[449:455] = np.nan
    overflow = at(Fp16SkipEvent, 1, 449, scale_before=4.0, scale_after=2.0)
    (change,) = find_changes(account(overflow, loss=curve))
    assert (change.step, change.shift and change.shift.kind) == (450, "non_finite")
    assert change.causes[0].kind == "fp16_skip"
    assert change.to_wire()["change"] == "non_finite"
    jumped = loss(458)
    jumped.value[449:455] = np.nan
    last = find_changes(account(loss=jumped))[-1]
    assert (last.causes[0].kind, last.causes[0].step) == ("non_finite", 450)


def test_alerts_that_tell_of_the_change_are_not_why_it_happened() -> None:
    alert = at(AlertEvent, 1, 503, code="loss_jump", message="the loss jumped")
    (change,) = find_changes(account(alert, loss=loss(500)))
    assert change.causes == ()


@pytest.mark.parametrize("where", [300, 401, 620])
def test_the_wire_form_has_the_fields_of_the_contract(where: int) -> None:
    run, last = resumed_run()
    for change in find_changes(account(run=run, last=last, loss=loss(where))):
        wire = change.to_wire()
        assert set(wire) >= {"step", "metric", "causes"}
        assert all(set(c) >= {"kind", "step", "message"} for c in wire["causes"])  # type: ignore[attr-defined]  # a list


def test_without_curves_there_are_no_changes_but_answers() -> None:
    bare = account(at(NoteEvent, 1, 5, text="hello"), loss=None)
    assert find_changes(bare) == []
    assert explain_step(bare, 5)[0].causes[0].message == "note: hello"
