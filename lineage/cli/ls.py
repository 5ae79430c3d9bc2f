"""`lineage ls`: the runs of a folder."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Final

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Column, Output
from lineage.cli.words import age, number, state_cell
from lineage.glance import Glance, glance, standing
from lineage.runs.index import RunEntry, list_runs, read_entry

_COLUMNS: Final = (
    Column("run", wide=True),
    Column("state"),
    Column("sessions", "right"),
    Column("step", "right"),
    Column("loss", "right"),
    Column("age", "right"),
    Column("continued"),
)
_TONES: Final[dict[str, str]] = {
    "nothing_restored": "red",
    "diverged": "red",
    "unproven": "yellow",
    "within_tolerance": "green",
    "exact": "green",
}


class LsCommand(Command):
    """List the runs of a folder, newest first: state, sessions, last step, last loss, age of the last event.

    The state is derived from the record, the lock and the log, never believed from one of them: running, stalled
    (alive, but silent), killed (no end was recorded), completed, failed, interrupted, preempted.

    `continued` is the worst verdict that a session of the run recorded of its own continuation. `nothing restored`: a
    session went on at a later step without a checkpoint. `lineage audit` compares the steps themselves.

    A run whose run.json cannot be read, or is missing beside a log, is told on stderr with the reason, and the exit
    code is 1.
    """

    name = "ls"
    summary = "the runs of a folder: state, sessions, steps, last loss, age"
    examples = (
        ("lineage ls", "the runs in ./runs, or in $LINEAGE_RUNS"),
        ("lineage ls runs --state killed", "those that died"),
        ("lineage ls --json", "one document, for scripts"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        from lineage.runs.state import STATES

        parser.add_argument("dir", nargs="?", metavar="DIR", help="a folder of runs, or one run (default: --runs)")
        parser.add_argument("--state", action="append", choices=STATES, metavar="STATE", help="only runs in this state")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, args: argparse.Namespace) -> ExitCode:
        folder = Path(args.dir or args.runs)
        entries = list_runs(folder)
        alone = read_entry(folder) if not entries else None
        rows: list[tuple[RunEntry, Glance]] = []
        code = ExitCode.OK
        for entry in [alone] if alone else entries:
            if entry.record is None:
                note(f"{entry.dir.path.name}: {entry.problem.what if entry.problem else 'run.json cannot be read'}")
                code = ExitCode.FAILED
                continue
            seen = glance(entry.dir, entry.record)
            if not args.state or seen.state in args.state:
                rows.append((entry, seen))
        output = Output()
        if args.json:
            output.json({"runs": [_document(entry, seen) for entry, seen in rows]})
        elif rows:
            output.table(_COLUMNS, [_row(entry, seen) for entry, seen in rows])
        elif args.state:
            note(f"no {'other ' if code else ''}runs in {folder} are {' or '.join(args.state)}")
        elif code is ExitCode.OK:
            note(f"no runs in {folder}")
        return code


def _document(entry: RunEntry, seen: Glance) -> dict[str, Any]:
    record = entry.record
    assert record is not None  # noqa: S101  # the caller listed those apart
    return {
        "id": record.id,
        "path": entry.dir.path,
        "name": record.name,
        "state": seen.state,
        "sessions": seen.num_sessions,
        "last_step": seen.last_step,
        "last_loss": seen.last_loss,
        "last_event_at": seen.last_event_at,
        "created_at": record.created_at,
        "tags": record.tags,
        "parent": record.parent.run if record.parent else None,
        "continuation": found[0] if (found := standing(record)) else None,
    }


def _row(entry: RunEntry, seen: Glance) -> list[str | tuple[str, str]]:
    return [
        entry.dir.path.name,
        state_cell(seen.state),
        str(seen.num_sessions),
        "" if seen.last_step is None else f"{seen.last_step:,}",
        "" if seen.last_loss is None else number(seen.last_loss),
        age(time.time() - seen.last_event_at),
        _continued(entry),
    ]


def _continued(entry: RunEntry) -> str | tuple[str, str]:
    found = standing(entry.record) if entry.record is not None else None
    return "" if found is None else (found[0].replace("_", " "), _TONES.get(found[0], ""))
