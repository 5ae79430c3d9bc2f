"""`lineage whence`: the run, session and step that made a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note, report
from lineage.cli.output import Output
from lineage.errors import FormatError, LineageError, NotFoundError
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
        places = [runs] if runs.is_dir() else []
        if len(args.paths) > 1:
            return _tell_all([Path(path) for path in args.paths], places, as_json=args.json)
        found = _find(Path(args.paths[0]), places)
        if args.json:
            Output().json(_document(found))
        else:
            _tell(found)
        for text in found.notes:
            note(f"{found.path}: {text}")
        if not found.matches and not args.json:
            raise NotFoundError("no run made this file, as far as is known", str(found.path), "--runs DIR looks there")
        return ExitCode.OK if found.matches else ExitCode.NOT_FOUND


def _find(path: Path, places: list[Path]) -> Whence:
    """As `whence`, its errors with what to do next."""
    try:
        return whence(path, places)
    except NotFoundError as error:
        error.hint = error.hint or "a path, not a REF: lineage checkpoints RUN --json has the path of each checkpoint"
        raise
    except FormatError as error:
        error.hint = (
            error.hint or "name a generation's folder, a file of one, or a .safetensors or .pt file that is whole"
        )
        raise


def _tell_all(paths: list[Path], places: list[Path], *, as_json: bool) -> ExitCode:
    """One after another; what cannot be read of some is told, and the others are answered."""
    output = Output()
    code = ExitCode.OK
    documents: list[dict[str, Any]] = []
    for path in paths:
        try:
            found = _find(path, places)
        except (LineageError, OSError) as error:
            code = max(code, report(error))
            documents.append({"path": str(path), "matches": [], "ancestry": []})
            continue
        documents.append(_document(found))
        if not as_json:
            _tell(found)
        for text in found.notes:
            note(f"{path}: {text}")
        code = code if found.matches else max(code, ExitCode.NOT_FOUND)
    if as_json:
        output.json({"results": documents})
    return code


def _tell(found: Whence) -> None:
    output = Output()
    for line in _lines(found):
        output.line(line)
    output.flush()


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
