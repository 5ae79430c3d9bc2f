from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lineage.log.writer import encode_event
from lineage_schemas.events import StepEvent, UnknownEvent, parse_event

RUN = "20261129-134012-tiny-gpt"
SESSION = "s01-0a1b2c3d"
BASE = {"ts": 1.5, "run": RUN, "session": SESSION}

# Every string Python can hold, lone surrogates included.
any_text = st.text(st.characters(), max_size=12)
good_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def metrics_of(**metrics: Any) -> dict[str, float]:
    found = parse_event(encode_event({"kind": "step", **BASE, "step": 1, "metrics": metrics}))
    assert isinstance(found, StepEvent)
    return found.metrics


@given(st.dictionaries(good_text, st.floats(), max_size=8))
def test_every_float_reads_back_as_the_same_float(metrics: dict[str, float]) -> None:
    found = parse_event(encode_event({"kind": "step", **BASE, "step": 1, "metrics": metrics}))
    assert isinstance(found, StepEvent)
    assert found.metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        assert np.float64(found.metrics[name]).tobytes() == np.float64(value).tobytes() or (
            math.isnan(value) and math.isnan(found.metrics[name])
        )


@given(st.dictionaries(good_text, st.floats(), max_size=8))
def test_the_line_is_what_the_model_would_have_written(metrics: dict[str, float]) -> None:
    fields = {"kind": "step", **BASE, "step": 1, "metrics": metrics}
    assert orjson.loads(encode_event(fields)) == StepEvent(**fields).to_wire()


@given(st.dictionaries(good_text, st.floats(), max_size=8))
def test_a_wire_form_goes_through_unchanged(metrics: dict[str, float]) -> None:
    wire = StepEvent(**BASE, step=1, metrics=metrics).to_wire()
    assert orjson.loads(encode_event(wire)) == wire


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text | st.integers(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_whatever_is_in_a_field_the_line_is_one_line_of_strict_json(value: object) -> None:
    line = encode_event({"kind": "note", **BASE, "text": "x", "extra": value})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(line, parse_constant=refuse)
    parse_event(line)


def test_non_finite_metrics_are_null_with_a_map_beside_them() -> None:
    line = encode_event({"kind": "step", **BASE, "step": 1, "metrics": {"a": math.nan, "b": math.inf, "c": -math.inf}})
    fields = orjson.loads(line)
    assert fields["metrics"] == {"a": None, "b": None, "c": None}
    assert fields["nonfinite"] == {"a": "nan", "b": "inf", "c": "-inf"}


def test_the_map_is_absent_when_all_is_finite() -> None:
    assert b"nonfinite" not in encode_event({"kind": "step", **BASE, "step": 1, "metrics": {"null": 1.0}})


def test_non_finite_numbers_elsewhere_are_their_names() -> None:
    fields = {"kind": "fp16_skip", **BASE, "scale_before": math.inf, "scale_after": math.nan, "x": [[-math.inf]]}
    found = orjson.loads(encode_event(fields))
    assert (found["scale_before"], found["scale_after"], found["x"]) == ("inf", "nan", [["-inf"]])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(0.1), float(np.float16(0.1))),
        (np.int64(7), 7.0),
        (np.uint8(7), 7.0),
        (np.array(2.5), 2.5),
        (np.array([[2.5]]), 2.5),
        (np.bool_(1), 1.0),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([0.1], dtype=torch.bfloat16), torch.tensor(0.1, dtype=torch.bfloat16).item()),
        (True, 1.0),
        (3, 3.0),
        (2**63, 2.0**63),
        (2**70, 2.0**70),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (np.float32("inf"), math.inf),
        (np.float32("-inf"), -math.inf),
    ],
)
def test_a_number_of_any_kind_is_a_plain_number(value: object, number: float) -> None:
    assert metrics_of(loss=1.5, x=value) == {"loss": 1.5, "x": number}


def test_a_numpy_nan_is_not_lost_in_a_null() -> None:
    assert math.isnan(metrics_of(x=np.float32("nan"))["x"])


def test_a_metric_without_a_value_is_left_out() -> None:
    assert metrics_of(loss=1.0, accuracy=None) == {"loss": 1.0}


@pytest.mark.parametrize("value", ["0.5", [1.0], {}, object(), np.array([1.0, 2.0]), torch.zeros(2), b"1", 1j])
def test_a_metric_that_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="'accuracy'"):
        encode_event({"kind": "step", **BASE, "step": 1, "metrics": {"loss": 1.0, "accuracy": value}})


def test_a_lone_surrogate_is_replaced_where_one_can_see_it() -> None:
    found = parse_event(encode_event({"kind": "note", **BASE, "text": "bad \udcff name"}))
    assert found.model_dump()["text"] == "bad \\udcff name"


def test_a_lone_surrogate_in_a_metric_s_name_does_not_lose_the_value() -> None:
    assert metrics_of(**{"l\udcffss": 2.0}) == {"l\\udcffss": 2.0}


def test_a_cycle_and_a_bottomless_list_are_cut_where_one_can_see_it() -> None:
    cycle: list[object] = []
    cycle += [cycle, cycle]
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    line = encode_event({"kind": "note", **BASE, "text": "x", "cycle": cycle, "deep": deep})
    assert orjson.loads(line)["cycle"] == ["<circular>", "<circular>"]
    assert b"<nested too deep>" in line
    assert isinstance(parse_event(line).model_dump(), dict)


def test_objects_of_other_types_are_named_and_their_content_is_not_printed() -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    fields = {
        "kind": "note",
        **BASE,
        "text": "x",
        "a": Secret(),
        "b": PurePosixPath("a/b"),
        "c": dt.date(2026, 11, 29),
        "d": {1, 2},
        "e": np.zeros(3),
        "f": 10**5000,
    }
    found = orjson.loads(encode_event(fields))
    assert found["a"].endswith("Secret>")
    assert (found["b"], found["c"], sorted(found["d"]), found["e"]) == ("a/b", "2026-11-29", [1, 2], "<numpy.ndarray>")
    assert found["f"].startswith("0x")


def test_absent_fields_are_left_out() -> None:
    assert b"samples" not in encode_event({"kind": "step", **BASE, "step": 1, "metrics": {}, "samples": None})


def test_an_unknown_kind_keeps_its_fields(event: Callable[..., dict[str, Any]]) -> None:
    found = parse_event(encode_event(event("tachyon", speed={"c": 1.5}, step=3)))
    assert isinstance(found, UnknownEvent)
    assert found.to_wire() == event("tachyon", speed={"c": 1.5}, step=3)
