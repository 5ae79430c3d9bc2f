"""Run one command in this process, and notice everything that it must never do.

What it must never do: raise, hang, answer another exit code than the documented ones, print a traceback or a character
that a terminal obeys or hides, open a file outside of the folder of runs, or change one.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from lineage import cli

EXIT_CODES = {0, 1, 2, 3, 5, 130}
NOT_RUN = {"demo": "trains for a minute and needs torch; it reads no run but those it made itself"}
MORE: dict[str, tuple[tuple[str, ...], ...]] = {
    "checkpoints": (("pin", "step-00000030"), ("prune", "--force", "--keep", "1"))
}
"""Words after the target that make a verb change something."""
ENDLESS = {"follow"}
"""Flags after which a command goes on until it is interrupted."""


class Hang(BaseException):
    """The command took longer than it may; no `except Exception` swallows it."""


@dataclass
class Outcome:
    """What a command answered."""

    argv: list[str]
    code: object
    out: str
    err: str
    opened: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        found = []
        if self.code not in EXIT_CODES:
            found.append(f"exit code {self.code!r}")
        if "Traceback (most recent call last)" in self.err + self.out:
            found.append("a traceback")
        if "defect of Lineage" in self.err or "internal error" in self.err:
            found.append("a defect: " + self.err[-400:])
        for name, text in (("stdout", self.out), ("stderr", self.err)):
            if name == "stdout" and "parquet" in self.argv and text[:4] == text[-4:] == "PAR1":
                continue  # a whole file, into a pipe; a terminal is refused it
            raw = sorted({char for char in text if is_raw(char)})
            if raw:
                found.append(f"raw {[f'U+{ord(char):04X}' for char in raw]} on {name}")
        found += [f"opened {path}" for path in self.opened]
        return found

    def __str__(self) -> str:
        return f"lineage {' '.join(word[:80] for word in self.argv)!r}: {'; '.join(self.faults)}"


def is_raw(char: str) -> bool:
    """Whether a terminal obeys or hides the character; a newline is how lines end."""
    return char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


class Watch:
    """Runs commands. Its audit hook stays for the life of the process, asleep between commands."""

    def __init__(self) -> None:
        self._forbidden: str | None = None
        self._opened: list[str] = []
        self._main = threading.main_thread().ident
        sys.addaudithook(self._audit)
        self._before = signal.signal(signal.SIGUSR2, self._ring)

    def close(self) -> None:
        signal.signal(signal.SIGUSR2, self._before)

    @staticmethod
    def _ring(*_: object) -> None:
        raise Hang

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if self._forbidden is None or event not in {
            "open",
            "os.listdir",
            "os.scandir",
            "os.mkdir",
            "os.rename",
            "os.remove",
        }:
            return
        forbidden = self._forbidden
        try:
            path = args[0]
            if not isinstance(path, (str, bytes, os.PathLike)):
                return
            text = os.fsdecode(path)
            flags = args[2] if event == "open" else 0
            if isinstance(flags, int) and flags & os.O_NOFOLLOW:
                given = Path(text)
                text = str(Path(os.path.realpath(given.parent)) / given.name)
            else:
                text = os.path.realpath(text)
            if text == forbidden or text.startswith(forbidden + "/"):
                self._opened.append(f"{event} {text}")
        except (ValueError, OSError):
            return

    @contextlib.contextmanager
    def forbidding(self, outside: Path) -> Iterator[list[str]]:
        """Collect what is opened in `outside` meanwhile, by any thread of this process."""
        self._opened = []
        self._forbidden = os.path.realpath(outside)
        try:
            yield self._opened
        finally:
            self._forbidden = None

    def run(
        self, argv: Sequence[str], outside: Path, *, limit_s: float = 20.0, interrupt_after_s: float | None = None
    ) -> Outcome:
        """One command; `interrupt_after_s` is when a person presses Ctrl-C."""
        streams = sys.stdin, sys.stdout, sys.stderr
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), out, err
        self._opened = []
        timers = [threading.Timer(limit_s, signal.pthread_kill, (self._main, signal.SIGUSR2))]
        if interrupt_after_s is not None:
            timers.append(threading.Timer(interrupt_after_s, signal.pthread_kill, (self._main, signal.SIGINT)))
        for timer in timers:
            timer.daemon = True
            timer.start()
        self._forbidden = os.path.realpath(outside)
        try:
            code: object = cli.main(list(argv))
        except Hang:
            code = f"none within {limit_s} s"
        except BaseException as error:  # noqa: BLE001  # a command raises nothing at all
            code = f"raised {type(error).__name__}: {error}"
        finally:
            self._forbidden = None
            for timer in timers:
                timer.cancel()
            sys.stdin, sys.stdout, sys.stderr = streams
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))
        return Outcome(list(argv), code, *texts, self._opened)


def verbs() -> dict[str, argparse.ArgumentParser]:
    """Every verb of the table and of the entry points, with its parser; new ones come by themselves."""
    names = [*cli.VERBS, *cli._entry_points()]
    return {name: cli.parser_of(cli._load(name)) for name in names if name not in NOT_RUN}


def interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C as Python takes it, but a moment later where the garbage collector runs: there an exception is lost."""
    at = frame
    while at is not None:
        if at.f_code.co_name in {"_remove", "__del__"}:
            again = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, number))
            again.daemon = True
            again.start()
            return
        at = at.f_back
    signal.default_int_handler(number, frame)


@dataclass(frozen=True)
class Line:
    """A command line but for its target: words before and after it."""

    verb: str
    words: tuple[str, ...]
    num_targets: int
    endless: bool = False
    changes: bool = False
    is_json: bool = False
    after: tuple[str, ...] = ()

    def argv(self, target: str, runs: Path, second: str) -> list[str]:
        line = ["--runs", str(runs), self.verb, *self.words]
        if self.num_targets:
            line += ["--", target, *[second] * (self.num_targets - 1)]
        if self.after:
            line = ["--runs", str(runs), self.verb, target, *self.after]
        return line


def command_lines(*, every: bool, scratch: Path) -> list[Line]:
    """Lines of every verb: bare, with `--json`, and with `every` also each flag and each choice alone.

    Those that change the run come last.
    """
    found: list[Line] = []
    for verb, parser in verbs().items():
        actions = [action for action in parser._actions if action.dest not in {"help", "runs", "debug"}]
        positionals = [action for action in actions if not action.option_strings]
        num_targets = sum(action.metavar in {"REF", "PATH", "DIR"} for action in positionals)
        required = [
            str(next(iter(action.choices)))
            for action in positionals
            if action.choices is not None and action.nargs != "?"
        ]
        for action in actions:
            if action.option_strings and action.required:
                required += [action.option_strings[-1], _value(action, scratch)]
        variants: list[tuple[str, ...]] = [()]
        for action in actions:
            if not action.option_strings or action.required:
                continue
            name = action.option_strings[-1]
            if action.nargs == 0:
                names = action.option_strings if isinstance(action, argparse.BooleanOptionalAction) else [name]
                variants += [(one,) for one in names]
            elif action.choices is not None:
                variants += [(name, str(choice)) for choice in action.choices]
            else:
                variants.append((name, _value(action, scratch)))
        found += [
            Line(
                verb,
                (*required, *variant),
                num_targets,
                endless=any(word.lstrip("-") in ENDLESS for word in variant),
                changes=verb == "repair" and "--dry-run" not in variant,
                is_json="--json" in variant,
            )
            for variant in variants
            if every or variant in {(), ("--json",), ("--follow",)}
        ]
        found += [Line(verb, (), num_targets, changes=True, after=words) for words in MORE.get(verb, ())]
    return sorted(found, key=lambda line: line.changes)


def _value(action: argparse.Action, scratch: Path) -> str:
    """Something an option takes: a number where it wants one, a file of ours, else a word."""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if metavar in {"FILE", "OUT", "PATH"}:
        return str(scratch / "out.svg")
    for text in ("5", "40", "0.5", "loss", "step"):
        if action.type is None or _takes(action.type, text):
            return text if action.type is not None else "loss"
    raise AssertionError(f"{action.option_strings} takes none of our values; teach hostile_watch one")


def _takes(type_: object, text: str) -> bool:
    assert callable(type_)
    try:
        type_(text)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return False
    return True


def snapshot(folder: Path) -> Iterator[tuple[str, int, int, bytes]]:
    """Every file of a folder: name, mode, size and content."""
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1 << 20 else b""
        yield str(path), status.st_mode, status.st_size, content
