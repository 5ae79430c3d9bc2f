from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lineage_schemas import events, publish
from lineage_schemas.errors import FormatError
from lineage_schemas.events import EVENT_CLASSES, KINDS, Event, StepEvent, UnknownEvent, parse_event

BASE: dict[str, Any] = {"ts": 1764423613.25, "run": "20251129-134012-tiny-gpt", "session": "s01-0a1b2c3d"}
GENERATION = "step-00000400-s01-0a1b2c3d"
SHA = "0" * 64
EXAMPLES: dict[str, dict[str, Any]] = {
    "session_start": {"ordinal": 1, "start": {"kind": "fresh"}, "format": {"name": "lineage-log", "version": "1.0"}},
    "session_end": {"status": "failed", "reason": "ValueError: boom"},
    "step": {
        "step": 3,
        "metrics": {"loss": 1.5, "n": 2},
        "duration_s": 0.5,
        "tokens": 9,
        "witness": {"batch": "0123abcd", "lr": {"o": [1e-3, "inf"]}, "scale": {"s": "nan"}},
    },
    "eval": {"step": 3, "name": "eval", "metrics": {"loss": 1.5}},
    "phase_start": {"phase": "eval"},
    "phase_end": {"phase": "eval", "duration_s": 1.0, "ok": False},
    "fp16_skip": {"step": 3, "scale_before": 65536.0, "scale_after": "inf"},
    "lr_restore": {"groups": [{"optimizer": "o", "group": 0, "before": 0.1, "after": 0.2, "expected": 0.2}]},
    "checkpoint_saved": {"checkpoint": GENERATION, "manifest_sha256": SHA, "size_bytes": 1},
    "checkpoint_restored": {
        "checkpoint": GENERATION,
        "from_run": "r",
        "from_session": "s01-0a1b2c3d",
        "manifest_sha256": SHA,
    },
    "continuation": {
        "verdict": "diverged",
        "from_step": 400,
        "compared_steps": 3,
        "first_difference": {"step": 402, "field": "loss", "before": "nan", "after": 1.5},
    },
    "alert": {"code": "non_finite", "message": "loss is nan", "details": {"step": 3, "any": [None, {"x": 1}]}},
    "note": {"text": "x"},
    "system": {"metrics": {"gpu": 0.5}},
    "log_recovered": {"discarded_bytes": 3, "offset": 0},
}

validator = jsonschema.Draft202012Validator(json.loads(publish.published("event")))


def line_of(kind: str, **changes: Any) -> str:
    return json.dumps({"kind": kind, **BASE, **EXAMPLES.get(kind, {}), **changes})


def test_there_is_an_example_of_every_kind() -> None:
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_reads_back_as_it_was_written(kind: str) -> None:
    event = parse_event(line_of(kind))
    assert type(event) is EVENT_CLASSES[kind]
    again = parse_event(json.dumps(event.to_wire()))
    assert again.to_wire() == event.to_wire()
    assert set(json.loads(line_of(kind))) <= set(event.to_wire())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_a_stock_validator(kind: str) -> None:
    validator.validate(json.loads(line_of(kind)))
    validator.validate(parse_event(line_of(kind)).to_wire())


@pytest.mark.parametrize("kind", [*KINDS, "tachyon"])
def test_fields_of_a_newer_minor_version_are_kept(kind: str) -> None:
    future = {"deep": [1, {"x": None}], "n": 1.5}
    event = parse_event(line_of(kind, future=future))
    assert event.to_wire()["future"] == future
    validator.validate(event.to_wire())


def test_a_kind_of_a_newer_minor_version_is_kept_whole() -> None:
    event = parse_event(line_of("tachyon", speed=3, step=7))
    assert type(event) is UnknownEvent
    assert event.to_wire() == {"kind": "tachyon", **BASE, "speed": 3, "step": 7}


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_or_mistyped_common_field_is_refused(kind: str) -> None:
    for field in BASE:
        fields = json.loads(line_of(kind))
        del fields[field]
        with pytest.raises(FormatError, match=field):
            parse_event(json.dumps(fields))
        assert not validator.is_valid(fields)
        with pytest.raises(FormatError, match=field):
            parse_event(line_of(kind, **{field: [1]}))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"step": 0}, "step"),
        ({"step": True}, "step"),
        ({"step": 1.5}, "step"),
        ({"step": "3"}, "step"),
        ({"metrics": None}, "metrics"),
        ({"metrics": {"loss": "nan"}}, "metrics.loss"),
        ({"metrics": {"loss": True}}, "metrics.loss"),
        ({"metrics": {"loss": [1.0]}}, "metrics.loss"),
        ({"duration_s": -1.0}, "duration_s"),
        ({"run": "../escape"}, "run"),
        ({"session": "s1-0"}, "session"),
        ({"nonfinite": {"loss": "nan"}}, "nonfinite"),
        ({"nonfinite": {"other": "nan"}, "metrics": {"loss": None}}, "nonfinite"),
        ({"nonfinite": {"loss": "NaN"}, "metrics": {"loss": None}}, "nonfinite"),
        ({"nonfinite": ["loss"], "metrics": {"loss": None}}, "nonfinite"),
    ],
)
def test_a_step_that_is_not_what_it_promises_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError, match=field):
        parse_event(line_of("step", **changes))


@pytest.mark.parametrize("line", ["", "[]", "{}", "3", '{"kind":1}', "{", "[" * 100_000, '{"kind":' * 9_999, "\ud800"])
def test_a_line_that_is_no_event_is_an_error_of_the_family(line: str) -> None:
    with pytest.raises(FormatError):
        parse_event(line)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.floats(), max_size=6))
def test_metrics_are_plain_floats_in_memory_and_strict_json_on_disk(metrics: dict[str, float]) -> None:
    event = StepEvent(**BASE, step=1, metrics=metrics)
    text = json.dumps(event.to_wire(), allow_nan=False)
    wire = json.loads(text)
    validator.validate(wire)
    bad = {name for name, value in metrics.items() if not math.isfinite(value)}
    assert set(wire.get("nonfinite", {})) == bad
    assert ("nonfinite" in wire) == bool(bad)
    again = parse_event(text)
    assert isinstance(again, StepEvent)
    assert [repr(v) for v in again.metrics.values()] == [repr(v) for v in metrics.values()]
    assert not hasattr(again, "nonfinite")


def test_a_null_whose_name_was_lost_is_read_as_nan() -> None:
    event = parse_event(line_of("step", metrics={"loss": None, "lr": 0.1}))
    assert isinstance(event, StepEvent)
    assert math.isnan(event.metrics["loss"])


@settings(max_examples=300)
@given(
    kind=st.sampled_from([*KINDS, "tachyon"]),
    changes=st.dictionaries(
        st.sampled_from(["ts", "step", "metrics", "nonfinite", "format", "start", "witness", "details", "groups"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=3,
    ),
)
def test_any_fields_give_an_event_or_an_error_of_the_family(kind: str, changes: dict[str, Any]) -> None:
    try:
        event = parse_event(line_of(kind, **changes))
    except FormatError:
        return
    assert isinstance(event, Event)
    json.dumps(event.to_wire(), allow_nan=False)


def test_events_are_frozen() -> None:
    event = parse_event(line_of("note"))
    with pytest.raises(ValidationError):
        event.ts = 2.0  # type: ignore[misc]


def test_the_format_of_the_log_is_named_in_every_session() -> None:
    event = events.SessionStartEvent(**BASE, **{k: v for k, v in EXAMPLES["session_start"].items() if k != "format"})
    assert event.to_wire()["format"] == {"name": "lineage-log", "version": "1.0"}
