"""`lineage plot`: the curves of a run as text, for terminals, pipes, logs and pull requests."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Output
from lineage.cli.values import real, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lineage.history.audit import ResumeAudit
    from lineage.view import RunView
    from lineage_tui.plot.frame import Frame
    from lineage_tui.plot.model import ChartModel, Glyphs, View
    from lineage_tui.theme import Depth, Palette

WIDTH: Final = 80  # where nobody looks
HEIGHT: Final = 20
MOST: Final = 2000
LEAST_WIDTH: Final = 24  # with less there is no room for the numbers of the y axis
LEAST_HEIGHT: Final = 5  # title, curves and the numbers of the x axis


class PlotCommand(Command):
    """Draw metrics of a run as text: one chart each, under one another, with what happened along the way.

    In the chart: a solid line is where a session began, with its verdict; a dashed one is where one died; dotted
    curves are steps that were trained again later; shaded columns are eval, checkpoint and restore phases. In the
    lane below: v-shaped marks are learning rates restored, ticks FP16 steps skipped, crosses non-finite values,
    diamonds checkpoints, exclamation marks alerts, dots notes.

    Without a terminal the chart is 80 columns wide and has no colours; a locale without UTF-8 gets ASCII.
    """

    name = "plot"
    summary = "the curves of a run, as text or as a picture"
    examples = (
        ("lineage plot tiny-gpt", "loss, learning rate, gradient norm and throughput"),
        ("lineage plot tiny-gpt --metric loss --log-y --smoothing 0.9", "the loss, smoothed"),
        ("lineage plot tiny-gpt@2 --x time", "what its second session did, over training time"),
        ("lineage plot tiny-gpt --output loss.svg --metric loss", "a picture for a paper"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or one of its sessions to look at closely")
        parser.add_argument(
            "--metric", action="append", metavar="NAME", default=[], help="what to draw; several times for several"
        )
        parser.add_argument(
            "--width",
            type=whole(LEAST_WIDTH, MOST),
            metavar="N",
            help=f"columns, {LEAST_WIDTH} or more (default: the terminal's, else {WIDTH})",
        )
        parser.add_argument(
            "--height",
            type=whole(LEAST_HEIGHT, MOST),
            metavar="N",
            help=f"rows of each chart, {LEAST_HEIGHT} or more (default: {HEIGHT})",
        )
        parser.add_argument(
            "--x",
            choices=("step", "time", "wall", "tokens", "session"),
            default="step",
            help="steps, training time, wall time, tokens, or steps since each session's start (default: step)",
        )
        parser.add_argument("--log-y", action="store_true", help="a logarithmic y axis")
        parser.add_argument("--log-x", action="store_true", help="a logarithmic x axis")
        parser.add_argument(
            "--smoothing", type=real(0, 0.9999), default=0.0, metavar="W", help="weight of the past, 0 (raw) to 0.9999"
        )
        parser.add_argument(
            "--superseded",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="also draw steps that were trained again later (default: yes)",
        )
        parser.add_argument(
            "--unclip", action="store_true", help="show outliers in full, however flat the rest becomes"
        )
        parser.add_argument("--glyphs", choices=("braille", "blocks", "ascii"), help="characters to draw with")
        parser.add_argument(
            "--theme", choices=("dark", "light"), help="the background it is for (default: dark; of pictures, light)"
        )
        parser.add_argument(
            "-o", "--output", type=Path, metavar="FILE", help="a picture instead: .svg, .png or .pdf (needs matplotlib)"
        )
        parser.add_argument("--force", action="store_true", help="write over a picture that is there")

    def run(self, args: argparse.Namespace) -> ExitCode:
        import lineage
        from lineage.cli.places import check_place
        from lineage.cli.refs import find
        from lineage_tui.build import chart_models, default_names

        found = find(args.ref, args.runs)
        if args.output is not None:
            check_place(args.output, found.dir.path, force=args.force)
        view = lineage.read(found.dir.path)
        names = args.metric or default_names(view.metrics)
        _check_names(view, names)
        for damage in view.damage:
            where = found.dir.log if damage.num_lines else found.dir.path
            note(f"{where}: {damage.reason}" + (f" (byte {damage.offset:,})" if damage.num_lines else ""))
        if not names:
            note("no step was logged yet")
            return ExitCode.OK
        axis = "train" if args.x == "time" else args.x
        models = chart_models(view, names, axis, verdicts=_verdicts(view))
        look = _view_of(args, models, found.session.ordinal if found.session else None, view)
        output = Output()
        if args.output is not None:
            from lineage_tui.plot_image import save

            save(models, look, args.output, dark=args.theme == "dark")
            output.line(str(args.output))
            return ExitCode.OK
        depth = depth_from(os.environ, is_colour=output.colour)
        width = args.width or (shutil.get_terminal_size((WIDTH, 24)).columns if output.is_terminal else WIDTH)
        width = max(width, LEAST_WIDTH)
        output.text(
            draw(
                models,
                look,
                width=width,
                height=args.height or HEIGHT,
                glyphs=args.glyphs or glyphs_for(output.stream.encoding, os.environ),
                depth=depth,
                dark=args.theme != "light",
            )
        )
        return ExitCode.OK


def draw(
    models: Sequence[ChartModel],
    view: View,
    *,
    width: int,
    height: int,
    glyphs: Glyphs = "braille",
    depth: Depth = "none",
    dark: bool = True,
) -> str:
    """The charts under one another, each `height` rows, no trailing blanks; escape sequences unless depth is none."""
    from dataclasses import replace

    from lineage_tui.plot import Memo, render
    from lineage_tui.theme import palette

    colours = palette(depth, dark=dark)
    # On paper a tint may be all there is to see a phase by, so without colours shades stand in for it.
    look = replace(colours.look(glyphs), letters=depth == "none")
    memo = Memo()
    frames = [render(model, view, width, height, look=look, memo=memo) for model in models]
    return "\n\n".join(text_of(frame, colours) for frame in frames)


def text_of(frame: Frame, colours: Palette) -> str:
    """A frame as lines, with the palette's escape sequences where it has colours."""
    if colours.depth == "none":
        return "\n".join(line.rstrip() for line in frame.lines())
    from lineage_tui.plot.text import FILLER, cells_of
    from lineage_tui.theme import sgr

    lines: list[str] = []
    for y, text in enumerate(map(cells_of, frame.chars)):
        stop = len(text)
        while stop and text[stop - 1] == " " and not frame.bg[y, stop - 1]:
            stop -= 1
        parts: list[str] = []
        now = ""
        for x in range(stop):
            code = sgr(colours, int(frame.fg[y, x]), int(frame.bg[y, x]))
            if code != now:
                parts.append(("\x1b[0m" if now else "") + code)
                now = code
            parts.append(text[x])
        lines.append("".join(parts).replace(FILLER, "") + ("\x1b[0m" if now else ""))
    return "\n".join(lines)


def depth_from(environ: Mapping[str, str], *, is_colour: bool) -> Depth:
    """How many colours a terminal shows, by what it says of itself."""
    term = environ.get("TERM", "")
    if not is_colour or term in {"", "dumb"}:
        return "none"
    if environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        return "truecolor"
    if "256" in term or term.startswith(("tmux", "screen", "xterm-kitty", "alacritty", "foot", "wezterm", "ghostty")):
        return "256"
    return "16"


def glyphs_for(encoding: str | None, environ: Mapping[str, str]) -> Glyphs:
    """Braille where it can be shown, blocks on a Linux console, ASCII where the locale is not UTF-8."""
    name = (encoding or "ascii").lower().replace("_", "-")
    if name not in {"utf-8", "utf8"}:
        return "ascii"
    return "blocks" if environ.get("TERM") == "linux" else "braille"


def _view_of(args: argparse.Namespace, models: Sequence[ChartModel], ordinal: int | None, run: RunView) -> View:
    """The whole run, or the stretch one session trained with a little before it."""
    from lineage_tui.plot.model import View

    view = View(
        log_y=args.log_y,
        log_x=args.log_x,
        smoothing=args.smoothing,
        clip=not args.unclip,
        show_superseded=args.superseded,
    )
    segment = next((one for one in run.segments if one.ordinal == ordinal), None)
    if segment is None or args.x == "session":
        return view
    ends: list[float] = []
    for series in (one for model in models for one in model.series):
        steps = series.x if series.step is None else series.step
        inside = series.x[(steps >= segment.start_step) & (steps <= segment.last_step)]
        ends += inside[[0, -1]].tolist() if inside.size else []
    return view.but(x0=min(ends), x1=max(ends)) if ends else view


def _verdicts(view: RunView) -> Mapping[str, ResumeAudit]:
    """How each session carried on, by its log; empty where damage stands in the way: what was recorded is drawn."""
    from lineage.errors import LineageError
    from lineage.history.evidence import audit_view

    try:
        return {str(row.session): row for row in audit_view(view)}
    except (LineageError, OSError, ValueError, KeyError):
        return {}


def _check_names(view: RunView, names: Sequence[str]) -> None:
    from lineage.errors import UsageError

    unknown = [name for name in names if name not in view.metrics]
    if unknown:
        known = ", ".join(view.metrics) or "nothing yet"
        raise UsageError(f"no metric is called {unknown[0]!r}", hint=f"logged are {known}")
