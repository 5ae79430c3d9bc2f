"""`lineage tui`: the only door to Textual, and it opens only in `run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from lineage.cli.command import Command
from lineage.cli.values import real

if TYPE_CHECKING:
    from lineage.cli.diagnostics import ExitCode
    from lineage_tui.terminal import Terminal

MAX_FPS: Final = 60


class Target(NamedTuple):
    """What to open: a run in its folder, or the folder alone; maybe a session to look at."""

    run_dir: Path | None
    folder: Path
    session_step: int | None = None


class TuiCommand(Command):
    """Look at a run, or at a folder of runs, in the terminal.

    Draws the curves with what happened on top: session boundaries, learning-rate restores, skipped FP16 steps, eval
    and checkpoint phases, superseded steps. Press ? for the keys. Follows a live run; reads files and nothing else.

    Without a terminal there is `lineage show` for facts and `lineage plot` for curves.
    """

    name: ClassVar[str] = "tui"
    summary: ClassVar[str] = "a run, or a folder of runs, on the screen"
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("lineage tui", "the folder ./runs as a table"),
        ("lineage tui tiny-gpt", "the curves of a run"),
        ("lineage tui runs --theme light", "a folder, on a light terminal that does not say so"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", nargs="?", metavar="PATH", help="a run (path, id or name) or a folder of runs")
        parser.add_argument("--theme", choices=("dark", "light"), help="default: what the terminal says it is")
        parser.add_argument(
            "--fps", type=real(0.1, MAX_FPS), metavar="N", help="pictures of a live run a second (10; over ssh 4)"
        )
        parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal, to select text")
        parser.add_argument("--ascii", action="store_true", help="draw with ASCII only")

    def run(self, args: argparse.Namespace) -> ExitCode:
        """Open the app; the terminal is as before when this returns, whatever happened.

        Raises:
            UsageError: there is no terminal, or none that can place text.
            NotFoundError: there is no such run or folder.
        """
        from lineage.cli.diagnostics import ExitCode
        from lineage.errors import LineageError, UsageError
        from lineage_tui import terminal

        is_tty = sys.stdin.isatty() and sys.stdout.isatty()
        refusal = terminal.refuse(os.environ, is_tty=is_tty)
        target = find_target(args.path, Path(args.runs))
        if refusal is not None:
            raise UsageError(f"the screens need a terminal: {refusal}", hint=hint_without_terminal(target, args.path))
        found = terminal.detect(os.environ, is_tty=is_tty, ask=args.theme is None)
        crash = _run_app(target, found, args)
        if crash is not None:
            raise LineageError(crash, hint="please report it with the log; lineage show reads the same run")
        return ExitCode.OK


def find_target(path: str | None, runs_dir: Path) -> Target:
    """What a path, id or name stands for.

    Raises:
        NotFoundError, RefError, FormatError: as `lineage.runs.index.resolve`.
    """
    from lineage.errors import FormatError, NotFoundError
    from lineage.layout import RunDir
    from lineage.runs.index import resolve, typed_path

    if path is None:
        if not runs_dir.is_dir():
            raise NotFoundError(
                "there is no such folder of runs", str(runs_dir), "lineage demo makes one; or give a run's path"
            )
        return Target(None, runs_dir)
    given = typed_path(path)
    folder = given.parent if given.name in {"run.json", "metrics.jsonl"} and given.is_file() else given
    if folder.is_dir():
        inside = RunDir(folder)
        # A run whose run.json is lost or damaged is still a run: its log tells most of it.
        if inside.run_json.exists() or inside.log.exists():
            whole = folder.resolve()
            return Target(whole, whole.parent)
        return Target(None, folder)
    try:
        found = resolve(path, runs_dir)
    except FormatError:
        broken = runs_dir / path
        if broken.is_dir():
            return Target(broken.resolve(), broken.resolve().parent)
        raise
    whole = found.run_dir.path.resolve()
    return Target(whole, whole.parent, found.session.start.step if found.session is not None else None)


def hint_without_terminal(target: Target, path: str | None) -> str:
    """The commands that say the same in text."""
    if target.run_dir is None:
        folder = shlex.quote(str(target.folder))
        return f"lineage ls {folder} needs none; for a run, lineage show RUN and lineage plot RUN"
    shown = shlex.quote(path or str(target.run_dir))
    return f"lineage show {shown} and lineage plot {shown} need none"


MOST_COLLECTIONS: Final = 200
"""Of the young generations before all is collected though keys are being pressed."""


def quiet_collector() -> None:
    """Leave out what was imported from every later collection of garbage, and let the app say when to collect all.

    What Textual, rich and pydantic are made of never becomes garbage; looking at all of it took 60 ms, once in
    twenty frames.
    """
    import gc

    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, MOST_COLLECTIONS)


def _run_app(target: Target, terminal: Terminal, args: argparse.Namespace) -> str | None:
    """Run the app to its end; what to say when it crashed."""
    from lineage_tui.settings import state_dir

    # Textual reads these when it is imported. With NO_COLOR only a theme of its own, chosen this early, keeps every
    # colour code out; set later it paints black on black.
    if terminal.no_color:
        os.environ["TEXTUAL_THEME"] = f"ansi-{args.theme or terminal.background}"
    else:
        os.environ.pop("NO_COLOR", None)  # set but empty is unset (no-color.org); Textual takes it for set
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    # numpy's, read when it is imported: small products on two threads cost more than on one, which spins for the other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Textual believes these before it asks the terminal; exported from another window they are wrong.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    from lineage_tui.app import LineageApp, Options

    follow_hz = args.fps or (4.0 if terminal.ssh else 10.0)
    options = Options(
        glyphs="ascii" if args.ascii else terminal.glyphs,
        background=args.theme or terminal.background,
        max_builds_hz=max(20.0, follow_hz),
        follow_hz=follow_hz,
        hover=not (terminal.ssh or args.no_mouse),
        state_dir=state_dir(os.environ),
    )
    app = LineageApp(target.run_dir, target.folder, options)
    if target.session_step is not None:
        app.start_at(target.session_step)
    quiet_collector()
    app.run(mouse=not args.no_mouse)
    return app.crash_text
