"""Write the JSON Schemas beside this module, or `--check` that what is there is what the models say."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from lineage_schemas.checkpoint import LedgerLine, Manifest
from lineage_schemas.events import EVENT_CLASSES, AnyEvent
from lineage_schemas.run import Run

NAMES: Final = ("run", "event", "manifest", "ledger")
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
TITLES: Final = {
    "run": "run.json",
    "event": "one line of metrics.jsonl",
    "manifest": "manifest.json of a checkpoint generation",
    "ledger": "one line of checkpoints/ledger.jsonl",
}


def generate(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one file format, from the models."""
    match name:
        case "run":
            schema = Run.model_json_schema(mode="validation")
        case "manifest":
            schema = Manifest.model_json_schema(mode="validation")
        case "ledger":
            schema = LedgerLine.model_json_schema(mode="validation")
        case "event":
            schema = _event_schema()
        case _:
            raise ValueError(f"no schema is called {name!r}; there are {', '.join(NAMES)}")
    return {"$schema": _DIALECT, "$id": f"urn:lineage:{name}:1", **schema, "title": TITLES[name]}


def _event_schema() -> dict[str, Any]:
    """A choice by `kind`; a kind of a newer minor version passes as an event of unknown kind."""
    schema: dict[str, Any] = TypeAdapter(AnyEvent).json_schema(mode="validation")
    unknown = schema["$defs"]["UnknownEvent"]["properties"]["kind"]
    unknown["not"] = {"enum": sorted(EVENT_CLASSES)}
    schema["oneOf"] = schema.pop("anyOf")
    for definition in schema["$defs"].values():
        if "kind" in definition.get("properties", {}) and "kind" not in definition.get("required", []):
            definition["required"] = ["kind", *definition.get("required", [])]
    return schema


def render(name: str) -> str:
    """The published text: sorted keys, two spaces, a newline at the end."""
    return json.dumps(generate(name), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def published(name: str) -> str:
    """The text of a schema as the package ships it."""
    return (resources.files("lineage_schemas") / "published" / f"{name}.schema.json").read_text("utf-8")


def main(argv: list[str]) -> int:
    """Exit status 0, or 1 when `--check` finds a published schema that the models no longer say."""
    folder = Path(__file__).parent / "published"
    stale = []
    for name in NAMES:
        path = folder / f"{name}.schema.json"
        text = render(name)
        if "--check" in argv:
            if not path.exists() or path.read_text("utf-8") != text:
                stale.append(path)
        else:
            folder.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    for path in stale:
        sys.stderr.write(f"{path} is not what the models say; run: make format\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
