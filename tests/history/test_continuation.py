"""Two attempts at the same steps: which verdict, at which step, for which first cause."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from history_records import step_event
from hypothesis import given
from hypothesis import strategies as st

from lineage.history.continuation import FIELDS, LR_RTOL, Comparer, StepWitness, same
from lineage_schemas.events import Witness
from lineage_schemas.run import Continuation, Tolerance

NUM = 10
FROM = 400


def attempt(step: int, **changes: Any) -> StepWitness:
    """What the first attempt at a step recorded: everything."""
    full = StepWitness(
        step,
        batch=f"{step:016x}",
        rng=f"{step * 7919:016x}",
        lr={"adamw": (1e-3 / step, 1e-4 / step)},
        scale={"scaler": 65536.0},
        loss=3.0 + 1.0 / step,
        grad_norm=0.5 + 1.0 / step,
    )
    return replace(full, **changes)


REFERENCE = {step: attempt(step) for step in range(FROM + 1, FROM + NUM + 1)}


def judge(after: dict[int, StepWitness], tolerance: Tolerance | None = None, **options: Any) -> Continuation:
    comparer = Comparer(options.pop("reference", REFERENCE), tolerance, start_step=FROM, **options)
    comparer.begin(min(after, default=FROM + 1))
    for step in sorted(after):
        comparer.compare(after[step])
    return comparer.verdict()


def changed(from_step: int, **changes: Any) -> dict[int, StepWitness]:
    """The second attempt: as the first, but from `from_step` on some fields are others."""
    return {s: replace(w, **changes) if s >= from_step else w for s, w in REFERENCE.items()}


OTHER: dict[str, Any] = {
    "batch": "f" * 16,
    "rng": "e" * 16,
    "lr": {"adamw": (5e-3, 1e-4)},
    "scale": {"scaler": 32768.0},
    "loss": 9.0,
    "grad_norm": 8.0,
}


def test_equal_attempts_are_exact_and_say_what_was_compared() -> None:
    found = judge(dict(REFERENCE), against=lambda step: "s01-0000aaaa")
    assert (found.verdict, found.compared_steps, found.first_difference) == ("exact", NUM, None)
    assert found.against == "s01-0000aaaa"
    for word in ("batch", "rng", "learning rate", "loss scale", "loss", "gradient norm", "10 steps"):
        assert word in found.reason


@pytest.mark.parametrize("field", FIELDS[1:])
@pytest.mark.parametrize("step", [FROM + 1, FROM + 4, FROM + NUM])
def test_one_field_that_differs_is_named_with_its_step_and_both_values(field: str, step: int) -> None:
    found = judge(changed(step, **{field: OTHER[field]}))
    first = found.first_difference
    assert found.verdict == "diverged"
    assert first is not None
    assert (first.step, first.field) == (step, field)
    assert found.compared_steps == step - FROM
    assert first.before != first.after
    assert str(step) in found.reason


@given(st.sets(st.sampled_from(FIELDS[1:]), min_size=1), st.integers(FROM + 1, FROM + NUM))
def test_of_several_fields_the_first_in_causal_order_is_named_and_the_others_said(fields: set[str], step: int) -> None:
    found = judge(changed(step, **{f: OTHER[f] for f in fields}))
    assert found.first_difference is not None
    assert found.first_difference.field == min(fields, key=FIELDS.index)
    assert ("also different there" in found.reason) == (len(fields) > 1)


def test_an_earlier_symptom_comes_before_a_later_cause() -> None:
    """The step decides first: a loss that differs at 402 was not caused by a batch that differs at 405."""
    after = changed(402, loss=9.0)
    after[405] = replace(after[405], batch="f" * 16)
    first = judge(after).first_difference
    assert first is not None
    assert (first.step, first.field) == (402, "loss")


@pytest.mark.parametrize(("first", "said"), [(400, "400"), (399, "399"), (402, "402")])
def test_a_wrong_first_step_comes_before_all_else(first: int, said: str) -> None:
    found = judge({s: attempt(s) for s in range(first, FROM + NUM)})
    assert found.first_difference is not None
    assert (found.first_difference.field, found.verdict) == ("start_step", "diverged")
    assert said in found.reason


def test_the_group_of_a_learning_rate_is_named() -> None:
    after = changed(403, lr={"adamw": (1e-3 / 403, 7.0)})
    first = judge(after).first_difference
    assert first is not None
    assert (first.field, first.part, first.before, first.after) == ("lr", "adamw[1]", 1e-4 / 403, 7.0)


def test_another_number_of_groups_is_a_difference() -> None:
    first = judge(changed(401, lr={"adamw": (1e-3 / 401,)})).first_difference
    assert first is not None
    assert (first.field, first.before, first.after) == ("lr", 2.0, 1.0)


@pytest.mark.parametrize("field", FIELDS[1:])
def test_a_field_missing_on_one_side_is_no_difference_but_is_said(field: str) -> None:
    nothing: Any = {} if field in ("lr", "scale") else None
    found = judge(changed(401, **{field: nothing}))
    assert found.verdict == "exact"
    assert "not compared" in found.reason


def test_a_field_recorded_on_some_steps_only_counts_those() -> None:
    found = judge(changed(404, batch=None, rng=None))
    assert found.verdict == "exact"
    assert "batch (on 3)" in found.reason


@pytest.mark.parametrize("fields", [("lr",), ("scale",), ("grad_norm",), ("lr", "scale", "grad_norm")])
def test_without_batch_rng_or_loss_nothing_is_called_exact(fields: tuple[str, ...]) -> None:
    blank: dict[str, Any] = {"batch": None, "rng": None, "loss": None, "lr": {}, "scale": {}, "grad_norm": None}
    found = judge({s: replace(w, **{k: v for k, v in blank.items() if k not in fields}) for s, w in REFERENCE.items()})
    assert found.verdict == "unproven"
    assert "only" in found.reason


@pytest.mark.parametrize("field", ["batch", "rng", "loss"])
def test_one_of_batch_rng_and_loss_is_enough(field: str) -> None:
    after = {s: StepWitness(s, **{field: getattr(w, field)}) for s, w in REFERENCE.items()}
    assert judge(after).verdict == "exact"


def test_no_overlap_is_unproven_with_what_the_restore_proved() -> None:
    found = judge({401: attempt(401)}, reference={}, proven=["learning rate", "batch cursor", "rng"])
    assert found.verdict == "unproven"
    assert found.reason == "no overlap; unproven beyond the restored state (proven: learning rate, batch cursor, rng)"
    assert found.proven == ["learning rate", "batch cursor", "rng"]


def test_other_witness_settings_are_unproven_and_named() -> None:
    after = {s: StepWitness(s, loss=w.loss) for s, w in REFERENCE.items()}
    before = {s: StepWitness(s, batch=w.batch) for s, w in REFERENCE.items()}
    found = judge(after, reference=before)
    assert found.verdict == "unproven"
    assert "other witness settings" in found.reason
    assert "batch only before" in found.reason
    assert "loss only after" in found.reason


def test_digests_of_another_method_say_nothing_about_each_other() -> None:
    found = judge(changed(401, batch="ab" * 4))
    assert found.verdict == "exact"
    assert "not compared: batch" in found.reason


def test_metrics_not_logged_is_a_reason_of_its_own() -> None:
    bare = {s: StepWitness(s) for s in REFERENCE}
    found = judge(bare, reference=bare)
    assert (found.verdict, found.compared_steps) == ("unproven", 0)
    assert "metrics not logged" in found.reason


def test_steps_logged_at_other_intervals_are_no_overlap() -> None:
    found = judge({411: attempt(411), 412: attempt(412)}, reference={410: attempt(410)})
    assert found.first_difference is not None  # 411 does not follow 400
    comparer = Comparer({410: attempt(410)})
    comparer.compare(attempt(409))
    assert "no overlap" in comparer.verdict().reason


def test_one_step_is_exact_and_says_how_little_that_is() -> None:
    found = judge({401: attempt(401)}, reference={401: attempt(401)})
    assert found.verdict == "exact"
    assert "1 step trained twice" in found.reason
    assert "optimizer state" in found.reason


# -- tolerance ------------------------------------------------------------------------------------------------------

LOOSE = Tolerance(rtol=1e-3, atol=1e-6, reason="GPU")


@pytest.mark.parametrize("field", ["loss", "grad_norm"])
def test_loss_and_gradient_norm_may_differ_by_the_declared_tolerance(field: str) -> None:
    base = getattr(attempt(403), field)
    found = judge(changed(403, **{field: base * (1 + 5e-4)}), LOOSE)
    assert (found.verdict, found.first_difference, found.compared_steps) == ("within_tolerance", None, NUM)
    assert "largest relative difference" in found.reason
    assert judge(changed(403, **{field: base * (1 + 5e-4)})).verdict == "diverged"
    assert judge(changed(403, **{field: base * 1.01}), LOOSE).verdict == "diverged"


@pytest.mark.parametrize("field", ["batch", "rng", "scale"])
def test_batch_rng_and_scale_know_no_tolerance(field: str) -> None:
    found = judge(changed(403, **{field: OTHER[field]}), Tolerance(rtol=10.0, atol=1e9))
    assert found.verdict == "diverged"
    assert found.first_difference is not None
    assert found.first_difference.field == field


def test_a_start_step_knows_no_tolerance() -> None:
    assert judge({402: attempt(402)}, Tolerance(rtol=10.0, atol=1e9)).verdict == "diverged"


def test_a_learning_rate_may_differ_by_its_last_bits_only_where_a_tolerance_was_declared() -> None:
    rate = 1e-3 / 403
    ulp = {"adamw": (math.nextafter(rate, 1.0), 1e-4 / 403)}
    after = dict(REFERENCE)
    after[403] = replace(after[403], lr=ulp)
    assert judge(after).verdict == "diverged"
    assert judge(after, LOOSE).verdict == "within_tolerance"
    after[403] = replace(after[403], lr={"adamw": (rate * (1 + 1e3 * LR_RTOL), 1e-4 / 403)})
    assert judge(after, LOOSE).verdict == "diverged"


def test_a_tolerance_of_zero_is_exact() -> None:
    assert judge(dict(REFERENCE), Tolerance()).verdict == "exact"
    assert judge(changed(401, loss=math.nextafter(REFERENCE[401].loss or 0.0, 9.0)), Tolerance()).verdict == "diverged"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_equals_itself_and_nothing_else(value: float) -> None:
    reference = {401: attempt(401, loss=value), 402: attempt(402)}
    assert judge({401: attempt(401, loss=value), 402: attempt(402)}, reference=reference).verdict == "exact"
    huge = Tolerance(rtol=1e300, atol=1e300)
    assert judge({401: attempt(401, loss=3.0)}, huge, reference=reference).verdict == "diverged"
    assert judge({401: attempt(401, loss=value)}, huge, reference=REFERENCE).verdict == "diverged"


def test_the_sign_of_a_zero_is_a_bit_too() -> None:
    assert same(0.0, 0.0)
    assert not same(0.0, -0.0)
    assert same(math.nan, -math.nan)


# -- live -----------------------------------------------------------------------------------------------------------


def test_a_difference_is_returned_once_and_nothing_is_wanted_after_it() -> None:
    comparer = Comparer(REFERENCE, start_step=FROM)
    returned = [comparer.compare(w) for w in changed(403, loss=9.0).values()]
    assert [r.step for r in returned if r is not None] == [403]
    assert not comparer.wants(404)
    assert comparer.verdict().compared_steps == 3


def test_the_verdict_grows_while_training_runs() -> None:
    comparer = Comparer(REFERENCE, start_step=FROM)
    assert comparer.verdict().verdict == "unproven"
    for num, step in enumerate(sorted(REFERENCE), start=1):
        assert comparer.wants(step)
        assert comparer.compare(REFERENCE[step]) is None
        assert (comparer.verdict().verdict, comparer.verdict().compared_steps) == ("exact", num)
    assert not comparer.wants(FROM + NUM + 1)


def test_further_metrics_are_compared_only_when_named() -> None:
    reference = {401: attempt(401, other={"acc": 0.5, "tokens_per_s": 9.0})}
    after = {401: attempt(401, other={"acc": 0.25, "tokens_per_s": 7.0})}
    assert judge(after, reference=reference).verdict == "exact"
    found = judge(after, reference=reference, also=["acc"])
    assert found.first_difference is not None
    assert found.first_difference.field == "acc"


# -- reading a witness ----------------------------------------------------------------------------------------------


def test_a_witness_reads_the_same_from_an_event_and_from_its_line() -> None:
    seen = Witness(batch="a" * 16, rng="b" * 16, lr={"adamw": [1e-3, math.inf]}, scale={"scaler": math.nan})
    event = step_event(1, 7, witness=seen, loss=math.nan, grad_norm=math.inf, lr=1e-3, acc=0.5)
    parsed, plain = StepWitness.from_event(event), StepWitness.from_fields(event.to_wire())
    assert repr(parsed).replace("[", "(").replace("]", ")") == repr(plain).replace("[", "(").replace("]", ")")
    assert (plain.step, plain.batch, plain.other) == (7, "a" * 16, {"acc": 0.5})
    assert math.isnan(plain.loss or 0.0)
    assert plain.lr == {"adamw": (1e-3, math.inf), "logged": (1e-3,)}


def test_a_learning_rate_that_only_the_loop_logged_is_compared() -> None:
    before = {s: StepWitness.from_event(step_event(1, s, loss=1.0, lr=1e-3)) for s in (401, 402)}
    after = {s: StepWitness.from_event(step_event(2, s, loss=1.0, lr=1e-4)) for s in (401, 402)}
    first = judge(after, reference=before).first_difference
    assert first is not None
    assert (first.field, first.part) == ("lr", "logged")


def test_fields_of_a_strange_type_are_not_recorded_rather_than_a_crash() -> None:
    strange = {
        "step": 3,
        "metrics": {"loss": "high", "grad_norm": True},
        "witness": {"lr": {"a": 3}, "batch": 5, "scale": 2},
    }
    assert StepWitness.from_fields(strange) == StepWitness(3)
    assert StepWitness.from_fields({}) == StepWitness(0)
