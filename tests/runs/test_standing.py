"""What a list of runs says of their continuations."""

import json
from pathlib import Path

import pytest

from lineage.glance import standing
from lineage_schemas.run import Run

SAMPLE = next(Path(__file__).resolve().parents[2].glob("sample_runs/*-tiny-gpt/run.json"))


def record_with(*sessions: dict[str, object]) -> Run:
    """The sample run, with sessions of these starts and verdicts."""
    record = json.loads(SAMPLE.read_bytes())
    template = record["sessions"][0]
    record["sessions"] = [
        template | {"id": f"s{number:02d}-0000000{number:x}", "ordinal": number} | fields
        for number, fields in enumerate(sessions, 1)
    ]
    return Run.model_validate_json(json.dumps(record))


FRESH = {"start": {"kind": "fresh", "step": 0}}
CARELESS = {"start": {"kind": "fresh", "step": 250}}
RESUMED = {"start": {"kind": "resume", "step": 100}}


def judged(verdict: str) -> dict[str, object]:
    return RESUMED | {"continuation": {"verdict": verdict, "from_step": 100, "compared_steps": 3}}


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ([], None),
        ([FRESH], None),
        ([CARELESS], None),
        ([FRESH, FRESH], None),
        ([FRESH, judged("exact")], ("exact", 2)),
        ([FRESH, judged("exact"), judged("exact")], ("exact", 3)),
        ([FRESH, judged("exact"), judged("within_tolerance")], ("within_tolerance", 3)),
        ([FRESH, RESUMED, judged("exact")], ("not_compared", 2)),
        ([FRESH, judged("unproven"), RESUMED], ("unproven", 2)),
        ([FRESH, judged("diverged"), judged("unproven")], ("diverged", 2)),
        ([FRESH, CARELESS, judged("diverged")], ("nothing_restored", 2)),
    ],
)
def test_a_run_is_as_good_as_the_worst_of_its_continuations(
    sessions: list[dict[str, object]], expected: tuple[str, int] | None
) -> None:
    found = standing(record_with(*sessions))
    assert (found and (found[0], found[1].ordinal)) == expected
