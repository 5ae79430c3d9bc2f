"""`lineage verify`: every file of every generation against its manifest."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from lineage.checkpoint.verify import GenerationReport, VerifyReport, verify_run
from lineage.cli.checkpoints import run_folder
from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Output
from lineage.cli.words import size
from lineage.errors import UsageError


class VerifyCommand(Command):
    """Reread and rehash every artifact of every committed checkpoint of a run.

    One line per fault: missing, extra, short, flipped, a damaged manifest or marker, a newer format, an ACTIVE that
    points at the wrong generation. Exit code 1 when there is any. What was found is noted in the run's ledger.
    """

    name = "verify"
    summary = "every artifact of every checkpoint against its manifest"
    examples = (
        ("lineage verify tiny-gpt", "all generations"),
        ("lineage verify tiny-gpt --newest", "only the one a resume would take"),
        ("lineage verify tiny-gpt --json", "for scripts"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run")
        parser.add_argument("--newest", action="store_true", help="only the newest committed generation")
        parser.add_argument("--no-record", action="store_true", help="leave the run's ledger as it is")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        run_dir, session = run_folder(args.ref, args.runs)
        if session is not None:
            raise UsageError("checkpoints are verified for a whole run", hint="name the run, without @")
        progress = _Progress() if sys.stderr.isatty() and not args.json else None
        report = verify_run(run_dir, newest=args.newest, progress=progress, record=not args.no_record)
        if progress is not None:
            progress.end()
        output = Output()
        if args.json:
            output.json(_document(report))
        else:
            for line in _lines(report):
                output.line(line)
            for text in report.notes:
                note(f"note: {text}")
        return ExitCode.OK if report.ok else ExitCode.FAILED


def _document(report: VerifyReport) -> dict[str, Any]:
    return {
        "generations": [_generation(generation) for generation in report.generations],
        "notes": report.notes,
        "bytes": report.num_bytes,
        "duration_s": report.duration_s,
    }


def _generation(generation: GenerationReport) -> dict[str, Any]:
    return {
        "name": generation.name,
        "step": generation.step,
        "ok": generation.ok,
        "faults": [{"kind": f.kind, "path": f.path, "message": f.message} for f in generation.faults],
        "bytes": generation.num_bytes,
    }


def _lines(report: VerifyReport) -> list[str]:
    lines = []
    for generation in report.generations:
        if generation.ok:
            lines.append(f"verified {generation.name}  {size(generation.num_bytes)}")
        lines += [f"{f.kind:<8} {_where(generation, f.path)}: {f.message}" for f in generation.faults]
    right = sum(generation.ok for generation in report.generations)
    speed = f", {size(int(report.bytes_per_s))}/s" if report.num_bytes else ""
    total = f"{len(report.generations):,} checked, {size(report.num_bytes)} in {report.duration_s:.2f} s{speed}"
    num = len(report.generations)
    return [*lines, f"{total}: " + ("all verified" if right == num else f"{right:,} of {num:,} verified")]


def _where(generation: GenerationReport, path: str) -> str:
    return path if path in (generation.name, "ACTIVE") else f"{generation.name}/{path}"


class _Progress:
    """A line on stderr that says how far the hashing is."""

    def __init__(self) -> None:
        self._done = 0
        self._started = self._shown = time.monotonic()

    def __call__(self, path: str, done: int, total: int) -> None:  # noqa: ARG002  # the name flickers too fast to read
        self._done += done
        now = time.monotonic()
        if now - self._shown < 0.1:
            return
        self._shown = now
        speed = self._done / max(now - self._started, 1e-9)
        sys.stderr.write(f"\r{size(self._done)} of {size(total)}, {size(int(speed))}/s\x1b[K")
        sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
