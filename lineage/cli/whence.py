"""`lineage whence`: the run, session and step that made a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Output
from lineage.errors import NotFoundError
from lineage.history.whence import Whence, whence


class WhenceCommand(Command):
    """Say which run, session and step made a checkpoint.

    PATH is a generation's folder, wherever it was moved; a file copied out of one, under any name; or a .safetensors
    or .pt file with the same tensors, whatever its name and key prefixes. Files are read, never run. --runs says
    where to look for the runs.
    """

    name = "whence"
    summary = "the session that made this checkpoint or weights file"
    examples = (
        ("lineage whence runs/*tiny-gpt/checkpoints/step-*", "folders of generations"),
        ("lineage whence runs/*tiny-gpt/checkpoints/*/manifest.json --json", "files of them, for scripts"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("paths", metavar="PATH", nargs="+", help="a folder or a file")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        runs = Path(args.runs)
        found = [whence(Path(path), [runs] if runs.is_dir() else []) for path in args.paths]
        output = Output()
        if args.json:
            documents = [_document(item) for item in found]
            output.json(documents[0] if len(documents) == 1 else {"results": documents})
        else:
            for item in found:
                for line in _lines(item):
                    output.line(line)
        for item in found:
            for text in item.notes:
                note(f"{item.path}: {text}")
        unknown = [item for item in found if not item.matches]
        if unknown and len(unknown) == len(found) == 1 and not args.json:
            raise NotFoundError(
                "no run made this file, as far as is known", str(found[0].path), "--runs DIR looks there"
            )
        return ExitCode.NOT_FOUND if unknown else ExitCode.OK


def _document(item: Whence) -> dict[str, Any]:
    return {
        "path": str(item.path),
        "matches": [
            {
                "run": m.run,
                "session": m.session,
                "step": m.step,
                "checkpoint": m.checkpoint,
                "how": m.how,
                "kind": m.kind,
                "recipe": m.recipe,
                "commit": m.commit,
            }
            for m in item.matches
        ],
        "ancestry": [
            {"run": a.run, "session": a.session, "checkpoint": a.checkpoint, "step": a.step} for a in item.ancestry
        ],
    }


def _lines(item: Whence) -> Iterator[str]:
    if not item.matches:
        yield f"{item.path}: unknown"
        return
    first, *others = item.matches
    yield f"{item.path}: step {first.step:,} of session {first.session}, run {first.run}"
    yield f"  checkpoint: {first.checkpoint} ({first.kind}), recognised by {_HOW[first.how]}"
    if first.recipe:
        yield f"  recipe: {first.recipe}"
    if first.commit:
        yield f"  commit: {first.commit}"
    for other in others:
        yield f"  also: {other.checkpoint} of run {other.run}, step {other.step:,} ({_HOW[other.how]})"
    for link in item.ancestry[1:]:
        yield f"  before it: step {link.step:,}, checkpoint {link.checkpoint}, session {link.session}, run {link.run}"


_HOW = {
    "manifest": "its own manifest",
    "artifact": "the hash of the file",
    "tensors": "its tensors",
    "some tensors": "the tensors it has, a part of the checkpoint's",
}
