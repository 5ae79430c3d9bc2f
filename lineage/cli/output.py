"""The only writer of stdout: lines, tables, one JSON document or a stream of them.

What a run folder holds may come from a stranger. Text passes through `clean` on its way out, so that no escape
sequence, no change of writing direction and no invisible character reaches a terminal; rich gets `Text` objects and
never interprets markup.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED: Final = 100_000
"""Columns of something that is no terminal: nothing is cut or wrapped."""

_BLANK: Final = frozenset(
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Printable to Python, but drawn as nothing."""
_MARKS: Final = re.compile(
    r"([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]{3})[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]+"
)


def clean(text: str, *, limit: int | None = None) -> str:
    r"""`text` on one line, with everything a terminal would obey or hide written out as an escape.

    Control characters, bidirectional and zero-width characters, lone surrogates and unassigned code points become
    `\x1b`, `\u202e` and so on; spaces of every width become a space; of stacked combining marks three remain. With
    `limit`, at most so many characters, the last one `…`.
    """
    if limit is not None and len(text) > 4 * limit:
        text = text[: 4 * limit]  # the rest cannot show, however short its parts turn out
    if not text.isascii() or not text.isprintable():
        text = _MARKS.sub(r"\1", "".join(map(_shown, text)))
    if limit is not None and len(text) > limit:
        return text[: max(0, limit - 1)] + "…"
    return text


def _shown(char: str) -> str:
    if char in _BLANK:
        return " "
    if char.isprintable() and char not in _UNSEEN:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(value: Any) -> Any:
    """A value as JSON can say it: non-finite numbers by name, times in ISO 8601 UTC, records in their wire form."""
    match value:
        case None | bool() | int():
            return value
        case float():
            from lineage_schemas.base import nonfinite_name

            return nonfinite_name(value) or value
        case str():
            # A file name that is no UTF-8 carries surrogates, which JSON cannot.
            return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case datetime():
            try:
                return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
            except OverflowError:  # a time in the year 1 or 9999, far from UTC
                return value.isoformat()
        case date():
            return value.isoformat()
        case Path():
            return plain(str(value))
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    if hasattr(value, "to_wire"):
        return plain(value.to_wire())
    if hasattr(value, "item"):
        return plain(value.item())  # a numpy scalar
    return str(value)


@dataclass(frozen=True)
class Column:
    """One column of a table; `wide` ones give way first when the terminal is narrow."""

    title: str
    align: Literal["left", "right"] = "left"
    wide: bool = False


class Output:
    """Where a command's data goes.

    Attributes:
        is_terminal: whether a person is looking.
        colour: whether to colour: on a terminal that can, and never under NO_COLOR.
        width: columns to fill; practically unbounded when nobody looks.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self.colour = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = max(20, shutil.get_terminal_size().columns) if self.is_terminal else _UNBOUNDED

    def line(self, text: str = "") -> None:
        """One line of text, cleaned."""
        self.stream.write(clean(text) + "\n")

    def text(self, text: str) -> None:
        """Lines this program composed itself, written as they are; a newline is added where the last has none."""
        self.stream.write(text if text.endswith("\n") else text + "\n")

    def json(self, document: Any) -> None:
        """One JSON document: indented for a terminal, on one line for a pipe."""
        self._dump(document, indent=self.is_terminal)

    def json_line(self, document: Any) -> None:
        """One document of a stream, on a line of its own."""
        self._dump(document, indent=False)

    def _dump(self, document: Any, *, indent: bool) -> None:
        import orjson

        ready = plain(document)
        try:
            data = orjson.dumps(ready, option=orjson.OPT_INDENT_2 if indent else 0).decode()
        except TypeError:  # an integer beyond 64 bits
            import json

            data = json.dumps(ready, ensure_ascii=False, indent=2 if indent else None)
        self.stream.write(escaped(data, keep="\n") + "\n")

    def raw_line(self, data: bytes) -> None:
        """A JSON line of a file as it is, but for characters a terminal would obey or hide: those are JSON-escaped.

        Also in a pipe, behind which `head` or `less` so often writes to a terminal; the values are the same.
        """
        self.stream.write(escaped(data.decode("utf-8", "replace")) + "\n")

    def parts(self, parts: Iterable[str]) -> None:
        """Text in parts, each composed by this program and with its own line ends."""
        self.stream.writelines(parts)

    def binary(self, data: bytes) -> None:
        """Bytes as they are: for a pipe or a file."""
        self.stream.flush()
        self.stream.buffer.write(data)

    def flush(self) -> None:
        self.stream.flush()

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str | tuple[str, str]]]) -> None:
        """A table without lines; a cell is text, or text and a style of rich."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        texts = [[Text(clean(cell) if isinstance(cell, str) else clean(cell[0])) for cell in row] for row in rows]
        styles = [["" if isinstance(cell, str) or not self.colour else cell[1] for cell in row] for row in rows]
        widest = [
            max([len(column.title), *(row[index].cell_len for row in texts)]) for index, column in enumerate(columns)
        ]
        # rich would take from every column alike; the wide ones give way, so that a state is never cut for an id.
        fixed = sum(width + 2 for width, column in zip(widest, columns, strict=True) if not column.wide)
        share = max(8, (self.width - fixed) // max(1, sum(column.wide for column in columns)) - 2)
        for width, column in zip(widest, columns, strict=True):
            table.add_column(
                Text(column.title),
                justify=column.align,
                no_wrap=True,
                overflow="ellipsis",
                width=min(width, share) if column.wide else width,
            )
        for cells, looks in zip(texts, styles, strict=True):
            for text, style in zip(cells, looks, strict=True):
                text.stylize(style)
            table.add_row(*cells)
        console = self.console()
        with console.capture() as captured:
            console.print(table)
        drawn = captured.get()
        self.stream.write("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()))

    def console(self) -> Console:
        """rich, without markup, emoji codes or guessing of colours in text."""
        from rich.console import Console

        return Console(
            file=self.stream,
            width=self.width,
            no_color=not self.colour,
            color_system="auto" if self.colour else None,
            force_terminal=self.colour,
            markup=False,
            emoji=False,
            highlight=False,
        )


def escaped(text: str, keep: str = "") -> str:
    """JSON text with characters outside of the printable ones as JSON escapes; they occur inside strings alone."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if (char.isprintable() and char not in _UNSEEN) or char in keep else _json_escape(char) for char in text
    )


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def close_quietly() -> None:
    """Let the interpreter's last flush of a stdout whose reader is gone go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        return
    finally:
        os.close(null)
