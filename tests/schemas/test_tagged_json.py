from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_schemas.errors import FormatError
from lineage_schemas.tagged import MAX_DEPTH, decode, encode

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | text | st.binary(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)
values = st.recursive(
    hashable | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(text | text.map(lambda t: "$" + t), inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
    ),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equal with types, order of keys, NaN and the sign of zero."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(ka, kb) and same(va, vb) for (ka, va), (kb, vb) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@given(values)
def test_every_value_comes_back_with_its_type_through_real_json(value: Any) -> None:
    assert same(decode(json.loads(json.dumps(encode(value), allow_nan=False))), value)
    assert same(decode(orjson.loads(orjson.dumps(encode(value)))), value)


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {"$tuple": [1]}, {True: 1, "x": 2}, {(1, 2): {b"k": None}}])
def test_keys_that_json_would_confuse_are_kept_apart(value: dict[Any, Any]) -> None:
    assert same(decode(json.loads(json.dumps(encode(value)))), value)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, [{"a": object()}], range(3)])
def test_a_value_that_would_change_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^\$"):
        encode(value)


def test_the_path_leads_to_the_value() -> None:
    with pytest.raises(TypeError, match=r"^\$\.model\.layers\[1\]"):
        encode({"model": {"layers": [1, object()]}})


@pytest.mark.parametrize(
    "wire",
    [
        {"$what": 1},
        {"$tuple": 1},
        {"$tuple": [1], "x": 2},
        {"$bytes": "no base64!"},
        {"$bytes": 3},
        {"$int": "1.5"},
        {"$int": 5},
        {"$int": "9" * 5000},
        {"$float": "1.5"},
        {"$float": "NaN"},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$dict": 3},
    ],
)
def test_an_unknown_or_malformed_tag_is_an_error_and_never_a_guess(wire: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        decode({"a": [wire]})


def test_nesting_is_bounded_both_ways() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    with pytest.raises(TypeError, match="nested"):
        encode(deep)
    with pytest.raises(FormatError, match="nested"):
        decode(deep)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$tuple", "$bytes", "$int", "$float", "$dict", "a"]), inner, max_size=2)
    ),
    max_leaves=10,
)


@given(json_values)
def test_no_json_makes_the_decoder_raise_anything_but_the_family(value: Any) -> None:
    with contextlib.suppress(FormatError):
        decode(value)
