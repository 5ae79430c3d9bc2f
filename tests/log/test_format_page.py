"""docs/format.md says what the code does, where a test can tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema

from lineage.log.scan import MAX_LINE_BYTES, scan
from lineage_schemas import publish
from lineage_schemas.events import EVENT_CLASSES, KINDS, Event, parse_event

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_example_line_is_an_event() -> None:
    examples = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        parse_event(example)


def test_every_kind_is_in_the_table_with_every_field_it_has() -> None:
    rows = [row for row in section("metrics.jsonl").splitlines() if row.startswith("| `")]
    for kind in KINDS:
        (row,) = [row for row in rows if f"`{kind}`" in row.split("|")[1]]
        for name in EVENT_CLASSES[kind].model_fields.keys() - Event.model_fields.keys():
            assert f"`{name}`" in row, f"{kind}: {name}"


def test_the_longest_line_is_the_one_the_code_has() -> None:
    assert f"{MAX_LINE_BYTES:,} bytes" in PAGE


def test_what_the_writer_writes_passes_a_stock_validator(real_log: bytes) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(publish.published("event")))
    for line in scan(real_log).lines:
        validator.validate(json.loads(line.data))
