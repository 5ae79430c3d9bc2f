"""Whole screens as they were looked at and kept: their text at two sizes, their colours in every theme.

The runs are invented and always the same, clocks stand still, and times are UTC, so a difference is a change of the
screens. Run with LINEAGE_WRITE_GOLDENS=1 to write them anew; look at the difference before keeping it.
"""

from __future__ import annotations

import difflib
import os
import shutil
import time
from pathlib import Path

import pytest
from textual.app import App

GOLDENS = Path(__file__).with_name("goldens") / "screens"
NOW = 1_764_500_000.0
SCREENS = {
    "runs": (None, ()),
    "run": ("run", ("right_curly_bracket",)),
    "sessions": ("run", ("3", "down")),
    "diff": ("run", ("3", "down", "d")),
    "checkpoints": ("run", ("5",)),
    "lineage": ("run", ("6",)),
    "events": ("run", ("7",)),
    "explain": ("run", ("8",)),
    "help": ("run", ("question_mark",)),
    "picker": ("run", ("m",)),
}
SIZES = ((80, 24), (200, 50))
THEMES = {
    "dark": ("truecolor", {"background": "dark"}),
    "light": ("truecolor", {"background": "light"}),
    "256": ("256", {"background": "dark"}),
    "16": ("standard", {"background": "dark"}),
    "none": ("truecolor", {"background": "dark"}),
}
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@pytest.fixture
def shown(drive, tmp_path, monkeypatch, wait):
    """`shown(screen, size, theme)`: the rows of a screen, as (text, style) of each segment."""
    from benchmarks.synthetic import write_run

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)
    folder = tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("alpha", "beta", "a-name-that-is-rather-long-for-a-table")):
        made = write_run(Path("runs"), steps=300 + 100 * number, sessions=3, seed=number, name=name)
        for path in (*made.rglob("*"), made):
            os.utime(path, (NOW - 3600 * (number + 1),) * 2)

    def look(screen: str, size: tuple[int, int], theme: str = "dark") -> list[list[tuple[str, object]]]:
        depth, options = THEMES[theme]
        monkeypatch.setattr("textual.constants.COLOR_SYSTEM", depth)
        monkeypatch.setattr("textual.app.constants.COLOR_SYSTEM", depth)
        if theme == "none":
            monkeypatch.setenv("NO_COLOR", "1")
            # What TEXTUAL_THEME does before Textual is imported (`lineage_tui.command` sets it).
            monkeypatch.setattr(vars(App)["theme"], "_default", "ansi-dark")
        kind, keys = SCREENS[screen]
        rows: list[list[tuple[str, object]]] = []

        async def script(app, pilot) -> None:
            await wait(app, pilot, lambda: app.folder is not None)
            if kind:
                await wait(app, pilot, lambda: bool(app.snapshot and app.snapshot.resumes))
            await pilot.press(*keys)
            seen: list[list[tuple[str, object]]] = [[]]
            for _ in range(100):  # until it is the same twice, with what threads had to say
                await pilot.pause(0.1)
                strips = app.screen._compositor.render_strips()[: size[1]]
                seen.append([[(segment.text, segment.style) for segment in strip] for strip in strips])
                if seen[-1] == seen[-2]:
                    break
            rows.extend(seen[-1])

        run = next(Path("runs").glob("*-beta")) if kind else None
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        drive(script, run, Path("runs"), size, clock=lambda: NOW, **options)
        return rows

    assert folder.is_dir()
    yield look
    monkeypatch.undo()
    time.tzset()


def text_of_rows(rows: list[list[tuple[str, object]]]) -> str:
    return "".join("".join(text for text, _ in row).rstrip() + "\n" for row in rows)


def colours_of_rows(rows: list[list[tuple[str, object]]]) -> str:
    """A letter for each style, a cell for each cell, and what the letters stand for."""
    from rich.cells import cell_len

    names: dict[str, str] = {}
    lines = []
    for row in rows:
        line = ""
        for text, style in row:
            meaning = _meaning(style)
            names.setdefault(meaning, LETTERS[len(names)])
            line += names[meaning] * cell_len(text)
        lines.append(line + "\n")
    return "".join(lines) + "\n" + "".join(f"{letter}  {meaning}\n" for meaning, letter in names.items())


def _meaning(style: object) -> str:
    if style is None:
        return "nothing"
    fg = style.color.name if style.color else "default"  # type: ignore[attr-defined]
    bg = style.bgcolor.name if style.bgcolor else "default"  # type: ignore[attr-defined]
    extra = [word for word in ("bold", "dim", "italic", "underline", "reverse") if getattr(style, word)]
    return " ".join((f"{fg} on {bg}", *extra))


def faint_words(rows: list[list[tuple[str, object]]]) -> dict[str, str]:
    """Texts whose letters and digits have less contrast than 4.5:1 with what they stand on."""
    from lineage_tui.theme import contrast

    faint = {}
    for text, style in (part for row in rows for part in row):
        if style is None or not any(letter.isalnum() for letter in text):
            continue
        fg, bg = (colour.get_truecolor() for colour in (style.color, style.bgcolor))  # type: ignore[attr-defined]
        if (found := contrast(tuple(fg), tuple(bg))) < 4.5:
            faint[text.strip()] = f"{fg.hex} on {bg.hex}, {found:.2f}"
    return faint


def keep_or_compare(name: str, found: str) -> None:
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("LINEAGE_WRITE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    kept = path.read_text(encoding="utf-8").splitlines()
    differs = "\n".join(difflib.unified_diff(kept, found.splitlines(), "kept", "found", n=1, lineterm=""))
    assert not differs, f"{path.name} differs; LINEAGE_WRITE_GOLDENS=1 writes it anew\n{differs}"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_the_one_that_was_looked_at(shown, screen, size) -> None:
    keep_or_compare(f"{screen}-{size[0]}x{size[1]}", text_of_rows(shown(screen, size)))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("screen", ["runs", "run", "diff"])
def test_a_screen_has_the_colours_that_were_looked_at(shown, screen, theme) -> None:
    keep_or_compare(f"{screen}-80x24-{theme}", colours_of_rows(shown(screen, (80, 24), theme)))


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("screen", ["runs", "run", "sessions", "diff", "checkpoints", "lineage", "events", "explain"])
def test_every_word_on_a_screen_can_be_read(shown, screen, theme) -> None:
    assert faint_words(shown(screen, (120, 40), theme)) == {}


@pytest.mark.parametrize("screen", ["runs", "run", "diff", "events"])
def test_without_colours_no_cell_has_one(shown, screen) -> None:
    styles = [style for row in shown(screen, (80, 24), "none") for _, style in row if style is not None]
    inks = {ink.name for style in styles for ink in (style.color, style.bgcolor) if ink is not None}
    assert inks <= {"default"}
    assert any(style.reverse for style in styles) or screen == "run"  # the cursor is seen all the same
