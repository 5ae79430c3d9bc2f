from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_schemas.errors import RefError
from lineage_schemas.ids import (
    GENERATION_PATTERN,
    RUN_ID_PATTERN,
    SESSION_ID_PATTERN,
    Ref,
    is_session_id,
    make_generation_name,
    make_run_id,
    make_session_id,
    parse_generation_name,
    parse_ref,
    slug,
)

# Years that `%Y` pads to four digits, and offsets as time zones have them.
times = st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001 - bounds are naive


@given(st.text(max_size=80), times)
def test_any_name_makes_a_run_id_that_is_safe_to_type_and_to_use_as_a_folder(name: str, at: datetime) -> None:
    run_id = make_run_id(name, at)
    assert re.fullmatch(RUN_ID_PATTERN, run_id)
    assert re.fullmatch(r"\d{8}-\d{6}-[a-z0-9]+(-[a-z0-9]+)*", run_id)
    assert parse_ref(run_id) == Ref(run_id)


def test_run_ids_sort_by_time_whatever_the_zone() -> None:
    early = datetime(2026, 11, 29, 23, 30, tzinfo=timezone(timedelta(hours=9)))
    late = datetime(2026, 11, 29, 15, 0, tzinfo=UTC)
    assert make_run_id("b", early) < make_run_id("a", late)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tiny GPT", "tiny-gpt"),
        ("--a__b--", "a-b"),
        ("日本", "run"),
        ("", "run"),
        ("x" * 99, "x" * 40),
        ("../..", "run"),
    ],
)
def test_a_slug_is_lower_case_letters_digits_and_single_dashes(name: str, expected: str) -> None:
    assert slug(name) == expected


@given(st.integers(1, 10**6), st.integers(0, 2**32 - 1))
def test_a_session_id_is_one_and_refers_to_itself(ordinal: int, nonce: int) -> None:
    session = make_session_id(ordinal, nonce)
    assert re.fullmatch(SESSION_ID_PATTERN, session)
    assert is_session_id(session)
    assert parse_ref(session) == Ref(None, session)
    assert parse_ref(f"runs/a@{session}") == Ref("runs/a", session)


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(0, 2**32 - 1))
def test_a_generation_s_name_says_its_step_and_session(step: int, ordinal: int, nonce: int) -> None:
    name = make_generation_name(step, ordinal, nonce)
    assert re.fullmatch(GENERATION_PATTERN, name)
    assert parse_generation_name(name) == (step, ordinal)


@pytest.mark.parametrize(
    "name", ["", "step-1-s01-00000000", "step-00000001-s01-0000000", "ACTIVE", "step-00000001-s01-0000000G"]
)
def test_other_names_are_no_generation(name: str) -> None:
    assert parse_generation_name(name) is None


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("runs/x", Ref("runs/x")),
        ("x@1", Ref("x", 1)),
        ("x@12", Ref("x", 12)),
        ("x@last", Ref("x", "last")),
        ("a@b/c", Ref("a@b/c")),
        ("a@b/c@2", Ref("a@b/c", 2)),
        ("user@host/runs@last", Ref("user@host/runs", "last")),
        ("s01-0a1b2c3d", Ref(None, "s01-0a1b2c3d")),
    ],
)
def test_a_ref_is_read_as_it_was_meant_and_printed_as_it_was_typed(text: str, ref: Ref) -> None:
    assert parse_ref(text) == ref
    assert str(ref) == text


@pytest.mark.parametrize(
    "text", ["", "@1", "@", "x@", "x@0", "x@-1", "x@first", "x@1.5", "x@\u0661", "x@9999999999", "a\0b"]
)
def test_a_ref_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(RefError):
        parse_ref(text)


@given(st.text(max_size=30))
def test_any_text_is_a_ref_or_an_error_of_the_family(text: str) -> None:
    try:
        ref = parse_ref(text)
    except RefError:
        return
    assert parse_ref(str(ref)) == ref
