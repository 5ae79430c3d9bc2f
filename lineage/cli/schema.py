"""`lineage schema`: the JSON Schemas the package ships."""

from __future__ import annotations

import argparse

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode
from lineage.cli.output import Output
from lineage_schemas import publish


class SchemaCommand(Command):
    """Print the JSON Schema (draft 2020-12) of one of the files.

    The names are run (run.json), event (a line of metrics.jsonl), manifest (manifest.json of a checkpoint) and ledger
    (a line of checkpoints/ledger.jsonl). Without a name, list them. Any validator can use them.
    """

    name = "schema"
    summary = "the JSON Schemas of the files"
    examples = (
        ("lineage schema", "which there are"),
        ("lineage schema event > event.schema.json", "that of a line of the log"),
        ("lineage schema run | head -n 5", "the beginning of that of run.json"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("schema", nargs="?", metavar="NAME", choices=publish.NAMES, help=", ".join(publish.NAMES))

    def run(self, args: argparse.Namespace) -> ExitCode:
        output = Output()
        if args.schema:
            output.text(publish.published(args.schema))
        else:
            for name in publish.NAMES:
                output.line(f"{name:<10}{publish.TITLES[name]}")
        return ExitCode.OK
