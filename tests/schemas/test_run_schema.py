from __future__ import annotations

import json
import pickle
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from lineage_schemas import publish
from lineage_schemas.base import Format, check_format
from lineage_schemas.errors import FormatError, NewerFormatError
from lineage_schemas.run import FORMAT, FORMAT_MAJOR, FORMAT_NAME, Run, Tolerance

validator = jsonschema.Draft202012Validator(json.loads(publish.published("run")))
ENVIRONMENT = {"python": "3.11.7", "implementation": "CPython", "platform": "Linux", "machine": "x86_64"}


def run_fields() -> dict[str, Any]:
    return {
        "format": {"name": "lineage-run", "version": "1.0"},
        "id": "20251129-134012-tiny-gpt",
        "name": "tiny GPT",
        "created_at": "2025-11-29T13:40:12.250000Z",
        "tags": ["a"],
        "parent": {"run": "r", "checkpoint": "step-00000400-s01-0a1b2c3d", "step": 400},
        "sessions": [
            {
                "id": "s01-0a1b2c3d",
                "ordinal": 1,
                "started_at": "2025-11-29T13:40:13+01:00",
                "pid": 4711,
                "host": "node-7",
                "recipe": {"value": {"lr": 3e-4, "betas": {"$tuple": [0.9, 0.95]}, "x": None}, "fingerprint": "0" * 64},
                "source": {"commit": "abc", "dirty": True},
                "environment": "0123456789abcdef",
                "runtime": {"device": "cuda", "precision": "fp16"},
                "data": {"train": {"fingerprint": "v1"}},
                "start": {"kind": "resume", "step": 400, "checkpoint": "step-00000400-s01-0a1b2c3d"},
                "continuation": {
                    "verdict": "diverged",
                    "from_step": 400,
                    "compared_steps": 2,
                    "first_difference": {"step": 402, "field": "loss", "before": 2.5, "after": "nan"},
                },
                "tolerance": {"rtol": 1e-6},
            }
        ],
        "environments": {"0123456789abcdef": ENVIRONMENT},
    }


def read(fields: dict[str, Any]) -> Run:
    return Run.model_validate_json(json.dumps(fields))


def test_a_run_reads_back_as_it_was_written() -> None:
    run = read(run_fields())
    again = Run.model_validate_json(run.model_dump_json(exclude_none=True))
    assert again == run
    assert again.to_wire() == run.to_wire()
    validator.validate(run.to_wire())


def test_a_recipe_of_nothing_reads_back() -> None:
    """None is left out on disk; what was written must never be damage to its reader."""
    fields = run_fields()
    fields["sessions"][0]["recipe"]["value"] = None
    record = Run.model_validate_json(json.dumps(fields))
    assert Run.model_validate_json(json.dumps(record.to_wire())) == record


@pytest.mark.parametrize("name", ["id", "ordinal"])
def test_two_sessions_that_cannot_be_told_apart_are_refused(name: str) -> None:
    fields = run_fields()
    fields["sessions"] += [fields["sessions"][0] | {"id": "s77-0a1b2c3d", "ordinal": 77}]
    fields["sessions"][-1][name] = fields["sessions"][0][name]
    with pytest.raises(ValidationError, match=f"same {name}"):
        Run.model_validate_json(json.dumps(fields))


def test_a_non_finite_loss_in_a_verdict_survives() -> None:
    wire = read(run_fields()).to_wire()
    assert wire["sessions"][0]["continuation"]["first_difference"]["after"] == "nan"
    json.dumps(wire, allow_nan=False)


def test_fields_of_a_newer_minor_version_survive_a_rewrite_at_every_level() -> None:
    fields = run_fields()
    session = fields["sessions"][0]
    places: list[dict[str, Any]] = [fields, fields["parent"], session, session["recipe"], session["source"]]
    places += [session["start"], session["data"]["train"], session["continuation"], fields["format"]]
    places += [fields["environments"]["0123456789abcdef"]]
    for number, place in enumerate(places):
        place["from_the_future"] = {"n": number}
    wire = read(fields).to_wire()
    assert json.dumps(wire).count("from_the_future") == len(places)
    assert read(wire).to_wire() == wire
    validator.validate(wire)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "../x"}, "id"),
        ({"id": 3}, "id"),
        ({"created_at": "2025-11-29T13:40:12"}, "created_at"),
        ({"created_at": 17}, "created_at"),
        ({"sessions": {}}, "sessions"),
        ({"format": {"name": "lineage-run", "version": "one"}}, "version"),
    ],
)
def test_a_run_that_is_not_one_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        read(run_fields() | change)


def test_what_a_person_writes_is_closed_so_that_a_typo_is_an_error() -> None:
    with pytest.raises(ValidationError, match="rtoll"):
        Tolerance.model_validate({"rtoll": 1e-3})


def test_a_newer_major_version_is_refused_by_name_and_a_newer_minor_one_is_read() -> None:
    check = {"name": FORMAT_NAME, "major": FORMAT_MAJOR, "where": "runs/x/run.json"}
    check_format(FORMAT, **check)
    check_format(Format(name="lineage-run", version="1.99"), **check)
    with pytest.raises(NewerFormatError, match=r"lineage-run version 2\.0.*runs/x/run\.json.*nothing was changed"):
        check_format(Format(name="lineage-run", version="2.0"), **check)
    with pytest.raises(FormatError, match="'lineage-log'"):
        check_format(Format(name="lineage-log", version="1.0"), **check)


def test_an_error_keeps_its_three_facts_across_processes() -> None:
    error = pickle.loads(pickle.dumps(NewerFormatError("what", "where", "hint")))
    assert (type(error), error.what, error.where, error.hint) == (NewerFormatError, "what", "where", "hint")
    assert str(error) == "what [where]; hint"
