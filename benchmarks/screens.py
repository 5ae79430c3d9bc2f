"""Pictures of every screen on the sample runs: `python -m benchmarks.screens [DIR]` writes docs/screens/*.svg.

Each screen at 80x24 and 200x50, dark and light. They are to be looked at after every change of a screen; nothing
compares them byte by byte. Fonts are the reader's own: the pictures load nothing from anywhere.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lineage_tui.app import LineageApp

ROOT = Path(__file__).resolve().parent.parent
SIZES = ((80, 24), (200, 50))
THEMES = ("dark", "light")


@dataclass(frozen=True)
class Shot:
    """One picture: which sample, and the keys that lead to it."""

    name: str
    run: str | None
    keys: tuple[str, ...]


SHOTS = (
    Shot("runs", None, ()),
    Shot("curves", "tiny-gpt", ()),
    Shot("cursor", "tiny-gpt", ("}", "}")),
    Shot("careless", "careless", ("}",)),
    Shot("attempts", "tiny-gpt", ("a",)),
    Shot("sessions", "tiny-gpt", ("3", "up")),
    Shot("diff", "careless", ("4",)),
    Shot("checkpoints", "tiny-gpt", ("5",)),
    Shot("lineage", "tiny-gpt", ("6",)),
    Shot("events", "tiny-gpt", ("7",)),
    Shot("explain", "careless", ("8",)),
    Shot("help", "tiny-gpt", ("?",)),
)
_KEYS = {"}": "right_curly_bracket", "?": "question_mark"}


def plain_svg(svg: str) -> str:
    """The picture without the fonts it would load from the network, and without what makes it twice as large."""
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family:\s*[^;]*;", 'font-family: "Fira Code", "DejaVu Sans Mono", monospace;', svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<clipPath id="[^"]*-line-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(r' clip-path="url\(#[^"]*-line-\d+\)"', "", svg)
    svg = re.sub(r' shape-rendering="crispEdges"', "", svg)
    svg = svg.replace("<style>", "<style>\n    rect { shape-rendering: crispEdges; }", 1)
    return re.sub(r"terminal-\d+-", "t-", svg)


async def _idle(app: LineageApp, pilot: object) -> None:
    """Wait until the picture on the screen stops changing."""
    last = ""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        await pilot.pause(0.3)
        now = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
        if now == last and (app.snapshot is not None or app.main_key is None) and app.folder is not None:
            return
        last = now


async def _shoot(shot: Shot, run: Path | None, runs: Path, *, size: tuple[int, int], theme: str, now: float) -> str:
    from lineage_tui.app import LineageApp, Options

    app = LineageApp(run, runs, Options(background=theme, clock=lambda: now))
    async with app.run_test(size=size) as pilot:
        await _idle(app, pilot)
        for key in shot.keys:
            await pilot.press(_KEYS.get(key, key))
            await pilot.pause(0.1)
        await _idle(app, pilot)
        return app.export_screenshot(title=f"lineage: {shot.name}")


def main(argv: Sequence[str]) -> int:
    """Write the pictures, or those whose names are given after the folder."""
    os.environ.update({"TEXTUAL_ANIMATIONS": "none", "COLORTERM": "truecolor", "TERM": "xterm-256color", "TZ": "UTC"})
    for name in ("NO_COLOR", "TEXTUAL_THEME"):
        os.environ.pop(name, None)
    time.tzset()
    out = Path(argv[0]) if argv else ROOT / "docs" / "screens"
    wanted = set(argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # A copy: looking at a run keeps a cache in it.
        runs = Path(folder) / "lineage" / "sample_runs"
        shutil.copytree(ROOT / "sample_runs", runs, ignore=shutil.ignore_patterns(".cache"))
        now = max(int(path.name[:8] + path.name[9:15]) for path in runs.glob("2*"))
        clock = datetime.strptime(str(now), "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() + 3_600
        for shot in SHOTS:
            run = next(runs.glob(f"*{shot.run}")) if shot.run else None
            if wanted and shot.name not in wanted:
                continue
            for size in SIZES:
                for theme in THEMES:
                    svg = plain_svg(asyncio.run(_shoot(shot, run, runs, size=size, theme=theme, now=clock)))
                    path = out / f"{shot.name}-{size[0]}x{size[1]}-{theme}.svg"
                    path.write_text(svg, encoding="utf-8")
                    print(path, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
