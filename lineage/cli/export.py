"""`lineage export`: the steps of a run as a table, for other programs."""

from __future__ import annotations

import argparse
import importlib
import io
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note, tell_damage
from lineage.cli.output import Output, clean, escaped
from lineage.cli.places import check_place
from lineage.cli.refs import check_metrics, find
from lineage.errors import LineageError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lineage.log.layout import Floats, Ints

    Table: TypeAlias = dict[str, tuple[Ints | Floats, npt.NDArray[np.bool_] | None]]

FORMATS: Final = ("csv", "json", "jsonl", "parquet")
_ROWS: Final = 8192
"""Written at once, so that a reader like `head` is served before all of a long run is text."""
_NONFINITE: Final = frozenset({"nan", "inf", "-inf"})


class ExportCommand(Command):
    """Write the steps of a run as a table: step, session, time, train_time, and a column for each metric.

    A row for each step of the effective history; with --superseded for every attempt at one, in order of the log. Of
    RUN@N, all that session trained. time is Unix seconds in UTC, train_time seconds of training since the run began.

    A value that was not logged and one that was NaN are two things. CSV: an empty field, and nan, inf or -inf. JSON: no
    key, and "nan", "inf" or "-inf". Parquet: null, and the float. Numbers keep all their digits. A metric called like
    one of the first four columns has metric. before its name.

    json is one array of objects, jsonl an object a line. Parquet needs polars or pyarrow. Damaged lines are told on
    stderr, what could be read is written, and the exit code is then 1.
    """

    name = "export"
    summary = "the steps of a run as CSV, JSON or Parquet"
    examples = (
        ("lineage export tiny-gpt", "CSV of the effective history"),
        ("lineage export tiny-gpt --metric loss --metric lr -o curves.csv", "two metrics, into a file"),
        ("lineage export tiny-gpt@2 --format jsonl", "what its second session trained, an object a line"),
        ("lineage export tiny-gpt --superseded | head -n 3", "every attempt; as many rows as the reader wants"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or RUN@N for all that one session trained")
        parser.add_argument("--format", choices=FORMATS, help="what to write (default: what FILE ends with, else csv)")
        parser.add_argument(
            "--metric", action="append", metavar="NAME", help="only this metric; may repeat, in this order"
        )
        parser.add_argument("--superseded", action="store_true", help="every attempt at a step, in order of the log")
        parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to (default: -, stdout)")
        parser.add_argument("--force", action="store_true", help="write over a file that is there")

    def run(self, args: argparse.Namespace) -> ExitCode:
        from lineage.view import read

        target = find(args.ref, args.runs)
        path = None if args.output == "-" else Path(args.output)
        form = args.format or _format_of(path)
        if path is not None:
            check_place(path, target.dir.path, force=args.force)
        elif form == "parquet" and Output().is_terminal:
            raise UsageError("Parquet is no text for a terminal", hint="-o FILE.parquet")
        write_parquet = _parquet_writer() if form == "parquet" else None
        view = read(target.dir.path)
        check_metrics(args.metric or (), view.metrics)
        session = target.session.ordinal if target.session else None
        table = view.table(args.superseded, session=session, metrics=args.metric)
        if not len(table["step"][0]):
            note("no step was logged yet")
        if write_parquet is not None:
            _put(path, lambda out: write_parquet(table, out))
        else:
            lines = {"csv": csv_lines, "jsonl": json_lines, "json": json_array}[form](table)
            _put(path, lambda out: out.writelines(part.encode() for part in lines), lines)
        return tell_damage(view.damage, "what could be read was written", args.ref)


def csv_lines(table: Table) -> Iterator[str]:
    """The table as CSV in parts of many rows: header first, quoted where RFC 4180 asks for it."""
    yield ",".join(_field(name) for name in _distinct(table)) + "\n"
    for columns in _parts(table, absent=""):
        yield "".join(",".join(row) + "\n" for row in zip(*columns, strict=True))


def json_lines(table: Table) -> Iterator[str]:
    """The table as JSON objects, one a line, in parts of many."""
    import orjson

    keys = [escaped(orjson.dumps(name).decode()) + ":" for name in table]
    for columns in _parts(table, absent=None):
        rows = (
            ",".join(
                f'{key}"{value}"' if value in _NONFINITE else key + value
                for key, value in zip(keys, row, strict=True)
                if value is not None
            )
            for row in zip(*columns, strict=True)
        )
        yield "".join(f"{{{row}}}\n" for row in rows)


def json_array(table: Table) -> Iterator[str]:
    """The table as one JSON array of objects, in parts of many."""
    lead = "[\n"
    for part in json_lines(table):
        yield lead + part.rstrip("\n").replace("}\n{", "},\n{")
        lead = ",\n"
    yield "[]\n" if lead == "[\n" else "\n]\n"


def _parts(table: Table, *, absent: str | None) -> Iterator[list[list[str | None]]]:
    """Columns of text, so many rows at a time; floats with all their digits."""
    num_rows = len(table["step"][0])
    for start in range(0, num_rows, _ROWS):
        columns: list[list[str | None]] = []
        for values, missing in table.values():
            texts: list[str | None] = [repr(value) for value in values[start : start + _ROWS].tolist()]
            if missing is not None:
                for row in missing[start : start + _ROWS].nonzero()[0].tolist():
                    texts[row] = absent
            columns.append(texts)
        yield columns


def _distinct(table: Table) -> list[str]:
    """Names for a header line: without what a terminal would obey, and still each another."""
    names: dict[str, None] = {}
    for name in table:
        shown = clean(name)
        while shown in names:
            shown += "'"
        names[shown] = None
    return list(names)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",\r\n') or text != text.strip() else text


def _format_of(path: Path | None) -> str:
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    if suffix in FORMATS:
        return suffix
    if path is None or not suffix:
        return "csv"
    raise UsageError(f"no format is known for .{suffix}", str(path), f"--format {' or '.join(FORMATS)}")


def _put(path: Path | None, write: Callable[[BinaryIO], object], lines: Iterator[str] | None = None) -> None:
    """Write to stdout, or beside the file and then in its place, so that nobody ever finds half of it.

    What is there and no file (a pipe with a name, a device) is written into as it stands.

    Raises:
        LineageError: the disk refuses; a file that was there is as it was.
    """
    if path is None:
        if lines is not None:
            Output().parts(lines)
        else:
            Output().binary(_bytes_of(write))
        return
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as out:
                if lines is not None:
                    write(out)
                else:
                    out.write(_bytes_of(write))
        else:
            _replace(path, write)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LineageError(f"this cannot be written: {error.strerror or error}", str(path)) from error


def _bytes_of(write: Callable[[BinaryIO], object]) -> bytes:
    """What is written, for a place where nobody can go back, as who writes Parquet does."""
    held = io.BytesIO()
    write(held)
    return held.getvalue()


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as out:
            write(out)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _parquet_writer() -> Callable[[Table, BinaryIO], object]:
    """What writes Parquet: polars, else pyarrow.

    Raises:
        LineageError: neither is installed.
    """
    for name, writer in (("polars", _write_by_polars), ("pyarrow", _write_by_pyarrow)):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return writer
    raise LineageError(
        "Parquet needs polars or pyarrow, and neither is installed",
        hint="pip install 'lineage-tracker[export]', or --format csv",
    )


def _write_by_polars(table: Table, out: BinaryIO) -> None:
    polars: Any = importlib.import_module("polars")
    columns = []
    for name, (values, missing) in table.items():
        column = polars.Series(name, values)
        if missing is not None:
            column = column.zip_with(polars.Series(~missing), column.clear(len(column)))
        columns.append(column)
    polars.DataFrame(columns).write_parquet(out)


def _write_by_pyarrow(table: Table, out: BinaryIO) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    columns = {name: arrow.array(values, mask=missing, from_pandas=False) for name, (values, missing) in table.items()}
    parquet.write_table(arrow.table(columns), out)
