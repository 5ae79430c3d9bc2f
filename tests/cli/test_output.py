"""What a stranger wrote into a run reaches the terminal as text and as nothing else."""

import io
import json
import math
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.cli.output import Column, Output, clean, plain
from lineage.cli.words import age, moment, number, size

HOSTILE = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b31m",
    "a\rb",
    "a\nb",
    "\u202egpj.exe",
    "\u2066x\u2069",
    "zero\u200bwidth\u200d\ufeff",
    "\u2028line",
    "\U000e0041tag",
    "\x00\x08\x7f",
    "lone \ud800 surrogate",
    "a" + "\u0301" * 500,
    "[bold red]markup[/] :smile: [link=file:///etc/passwd]x[/link]",
    "\u3164\u2800",
]


def is_harmless(text: str) -> bool:
    return all(unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for char in text)


@given(st.text())
def test_clean_lets_nothing_through_that_a_terminal_obeys_or_hides(text):
    assert is_harmless(clean(text))


@given(st.text(), st.integers(1, 30))
def test_clean_keeps_to_its_limit(text, limit):
    assert len(clean(text, limit=limit)) <= limit


@given(
    st.text(
        alphabet=st.characters(
            whitelist_categories=["L", "N", "P", "S"], blacklist_characters="\u115f\u1160\u3164\uffa0\u2800"
        )
    )
)
def test_clean_leaves_ordinary_text_as_it_is(text):
    assert clean(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_not_obeyed(text):
    shown = clean(text)
    assert is_harmless(shown)
    assert "\n" not in shown
    assert sum(unicodedata.category(char) == "Mn" for char in shown) <= 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", HOSTILE)
def test_a_table_takes_no_markup_and_no_escapes_from_its_cells(text, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    stream = Terminal()
    Output(stream).table([Column("name")], [[text]])
    title, row = stream.getvalue().split("\n")[:2]
    assert title == "name"
    assert row == clean(text).rstrip()


@pytest.mark.parametrize("make", [Terminal, io.StringIO])
@pytest.mark.parametrize("text", HOSTILE)
def test_json_has_no_raw_controls_and_means_the_same_on_a_terminal_and_in_a_pipe(text, make):
    stream = make()
    Output(stream).json({"name": text})
    written = stream.getvalue()
    assert is_harmless(written.replace("\n", ""))
    assert json.loads(written) == {"name": plain(text)}


@pytest.mark.parametrize("make", [Terminal, io.StringIO])
def test_a_raw_line_is_byte_for_byte_but_for_what_a_terminal_would_obey(make):
    harmless, hostile = orjson.dumps({"text": "läßt", "x": 1.5}), orjson.dumps({"text": "\u202e\x9b\U000e0041"})
    stream = make()
    Output(stream).raw_line(harmless)
    Output(stream).raw_line(hostile)
    first, second, _ = stream.getvalue().split("\n")
    assert first.encode() == harmless
    assert is_harmless(second)
    assert orjson.loads(second) == orjson.loads(hostile)


def test_a_narrow_terminal_cuts_and_a_pipe_never_does(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    narrow, pipe = Terminal(), io.StringIO()
    for stream in (narrow, pipe):
        Output(stream).table([Column("run", wide=True), Column("state")], [["x" * 500, "completed"]])
    plainly = narrow.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(map(len, plainly.splitlines())) <= 30
    assert "completed" in plainly
    assert "x" * 500 in pipe.getvalue()


def test_json_says_non_finite_numbers_by_name_and_times_in_utc():
    document = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        "zero": 0.0,
        "at": datetime(2026, 11, 29, 13, 40, 12, tzinfo=UTC),
        "path": Path("a/b"),
        "huge": 2**80,
    }
    stream = io.StringIO()
    Output(stream).json(document)
    assert json.loads(stream.getvalue()) == {
        "nan": "nan",
        "inf": ["inf", "-inf"],
        "zero": 0.0,
        "at": "2026-11-29T13:40:12Z",
        "path": "a/b",
        "huge": 2**80,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (12, "12 s"),
        (60, "1 m"),
        (192, "3 m 12 s"),
        (11_520, "3 h 12 m"),
        (183_600, "2 d 3 h"),
        (4e7, "462 d"),
    ],
)
def test_an_age_is_said_in_its_two_largest_units(seconds, text):
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (123_456_789, "123 MB"), (5e15, "5000 TB")]
)
def test_a_size_has_one_to_three_digits(num_bytes, text):
    assert size(num_bytes) == text


def test_numbers_have_five_digits_and_impossible_times_no_traceback():
    assert [number(x) for x in (2.314159, 3e-5, math.nan)] == ["2.3142", "3e-05", "nan"]
    assert moment(1.8e9) == "2027-01-15 08:00:00Z"
    assert moment(1e300) == "1e+300"
