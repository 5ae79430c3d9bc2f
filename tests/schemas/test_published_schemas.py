"""The published JSON Schemas are what the models say, and a stock validator accepts them."""

from __future__ import annotations

import json

import jsonschema
import pytest

from lineage_schemas import publish


@pytest.mark.parametrize("name", publish.NAMES)
def test_the_published_schema_is_the_generated_one(name: str) -> None:
    assert publish.published(name) == publish.render(name), "run: make format"


@pytest.mark.parametrize("name", publish.NAMES)
def test_a_stock_validator_accepts_the_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(publish.published(name)))
