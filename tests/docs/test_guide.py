"""The pages of the guide do what they say: every code block is run, and every output shown is what comes out.

What a block is, its fence says:

    ```python title="train.py"     a file, written to the working directory (any language)
    ```python title="used below"   run now, and again before the code of each section (`##`) of the page
    ```python                      run, in the order of its section
    ```text                        what the block before it printed
    ```console                     commands behind `$ `, each with its output, standard output before standard error
    ```sh                          commands too long for here; `CHECKED_ELSEWHERE` names the test that runs each

In an output, `...` stands for anything within a line, a line of only `...` for any number of lines, and several blanks
between two words for any number of them: columns are as wide as their longest value. Of the rows of a plot the axis alone
is compared here; how a curve is drawn has tests of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import io
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lineage
from lineage.cli import main
from lineage_tui.keys import SCREENS, TABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDE = DOCS / "guide"
PAGES = sorted(page.name for page in GUIDE.glob("*.md"))

CHECKED_ELSEWHERE = {
    "python3 -m venv .venv": "what makes an environment is Python's, and `make` begins with the same line",
    ". .venv/bin/activate": "the same",
    "pip install '.[torch]'": "test_the_extras_that_the_guide_installs_are_declared",
    "lineage demo runs": "tests/demo/test_demo_story.py",
    "lineage tui runs": "tests/tui/test_tmux_real.py",
    "lineage tui sample_runs": "test_the_keys_of_the_page_lead_from_the_list_to_the_cause",
    "sbatch train.sbatch": "test_the_batch_script_passes_the_signal_on_and_puts_itself_back_into_the_queue",
}


@dataclass(frozen=True)
class Block:
    """One fenced block: `section` counts the `##` headings before it, `line` is where it begins."""

    language: str
    title: str
    text: str
    section: int
    line: int


def blocks(page: str) -> Iterator[Block]:
    text = (GUIDE / page).read_text("utf-8")
    for found in re.finditer(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        before = text[: found.start()]
        section = len(re.findall(r"^## ", before, re.MULTILINE))
        yield Block(found[1], found[2] or "", found[3], section, before.count("\n") + 1)


def matches(shown: str, real: str) -> bool:
    pattern = ""
    for line in shown.rstrip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ ]*\n"
    return re.fullmatch(pattern, real.rstrip("\n") + "\n" if real.strip() else "") is not None


def squeezed(text: str) -> str:
    text = re.sub(r"^(.*?[│┤]).*[\u2801-\u28ff].*$", r"\1", text, flags=re.MULTILINE)
    return re.sub(r"(?<=\S) {2,}(?=\S)", "  ", text)


def require_output(shown: str, real: str, where: str) -> None:
    real = squeezed(re.sub(r"\x1b\[[0-9;]*m", "", real))
    assert matches(squeezed(shown), real), f"{where} shows\n{shown}\nand what comes out is\n{real}"


def run_command(line: str) -> str:
    """A command of a page, in this process where it is ours; standard output, then standard error."""
    words = shlex.split(line)
    environment = dict(os.environ)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words[0] == "lineage":
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(words[1:])
        return out.getvalue() + err.getvalue()
    assert words[0] == "python", f"a page runs {line!r}, which no test can"
    done = subprocess.run([sys.executable, *words[1:]], env=environment, capture_output=True, text=True, timeout=200)
    return done.stdout + done.stderr


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a copy of the sample runs; commands print as into 100 columns without colours."""
    shutil.copytree(ROOT / "sample_runs", tmp_path / "sample_runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("LINEAGE_RUNS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_does_what_the_page_says(page: str, place: Path) -> None:
    import torch

    flags = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        run_page(page, place)
    finally:
        torch.use_deterministic_algorithms(flags[0])
        torch.set_num_threads(flags[1])


def run_page(page: str, place: Path) -> None:
    shared: list[Block] = []
    scope: dict[str, object] = {}
    section = -1
    printed = ""
    for block in blocks(page):
        where = f"{page}, line {block.line}"
        if block.section != section:
            section = block.section
            scope.clear()
            gc.collect()  # an object of the section before is no state of this one
            for common in shared:
                execute(common, scope, where)
        if "." in block.title:
            (place / block.title).write_text(block.text)
        elif block.language == "python":
            printed = execute(block, scope, where)
            if block.title:
                shared.append(block)
        elif block.language == "text":
            require_output(block.text, printed, where)
        elif block.language == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
                require_output(shown, run_command(command), f"{where}: {command}")
        elif block.language == "sh":
            unknown = set(block.text.split("\n")) - {""} - set(CHECKED_ELSEWHERE)
            assert not unknown, f"{where}: nothing checks {unknown}"
        else:
            pytest.fail(f"{where}: nothing says how a {block.language} block is checked")


def execute(block: Block, scope: dict[str, object], where: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * block.line + block.text, where, "exec"), scope)
    return out.getvalue()


# ---- what the blocks cannot check ------------------------------------------------------------------------------------


def test_the_extras_that_the_guide_installs_are_declared() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {
        extra
        for page in PAGES
        for found in re.findall(r"'\.\[([\w,]+)\]'", (GUIDE / page).read_text("utf-8"))
        for extra in found.split(",")
    }
    assert asked
    assert asked <= set(extras)


def test_the_loop_page_speaks_of_every_parameter_of_init_and_every_method_of_a_run() -> None:
    text = (GUIDE / "loop.md").read_text("utf-8")
    parameters = set(inspect.signature(lineage.init).parameters)
    own = {"end_on_exception", "end_at_exit"}  # called by the hooks of the interpreter
    methods = {name for name in vars(lineage.Run) if not name.startswith("_")} - own
    missing = {name for name in parameters | methods if not re.search(rf"`(run\.)?{name}\b", text)}
    assert not missing


def test_every_key_the_guide_names_is_a_key_of_the_table() -> None:
    known = {shown for entry in TABLE for shown in re.split(r"\s+", entry.shown)}
    known |= {key for key, *_ in SCREENS} | {"=", "j", "k"}
    named = {
        (page, key) for page in PAGES for key in re.findall(r"<kbd>(.+?)</kbd>", (GUIDE / page).read_text("utf-8"))
    }
    assert named
    assert {(page, key) for page, key in named if key not in known} == set()


def test_the_keys_of_the_page_lead_from_the_list_to_the_cause(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the keys of the numbered list are pressed, on the sample runs, and the cause is on the screen."""
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.delenv("NO_COLOR")
    from lineage_tui.app import LineageApp, Options

    text = (GUIDE / "curves.md").read_text("utf-8")
    part = text.partition("## Why did the loss jump?")[2].partition("\n## ")[0]
    keys = re.findall(r"<kbd>(.+?)</kbd>", "".join(re.findall(r"^\d+\. .*$", part, re.MULTILINE)))
    assert len(keys) >= 3
    names = {"}": "right_curly_bracket", "{": "left_curly_bracket", "↓": "down", "↑": "up", "esc": "escape"}
    app = LineageApp(None, place / "sample_runs", Options(state_dir=place / "state"))

    def screen() -> str:
        strips = app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    async def until(pilot: object, said: str) -> None:
        for _ in range(500):
            await pilot.pause(0.02)  # type: ignore[attr-defined]
            if said in screen():
                return
        pytest.fail(f"{said!r} did not appear; there is\n{screen()}")

    async def press() -> None:
        async with app.run_test(size=(140, 45)) as pilot:
            await until(pilot, "tiny-gpt-carele")
            for key in keys:
                await pilot.press(names.get(key, key))
                await pilot.pause(0.3)
            await until(pilot, "session 2 did not carry on the same experiment")

    asyncio.run(asyncio.wait_for(press(), 60))


def test_the_batch_script_passes_the_signal_on_and_puts_itself_back_into_the_queue(place: Path) -> None:
    """The very script of the page, under a stand-in for Slurm: a `scontrol` that writes down what it is asked."""
    for block in blocks("cluster.md"):
        if "." in block.title:
            (place / block.title).write_text(block.text)
    (place / "bin").mkdir()
    for name, text in (
        ("scontrol", f'#!/bin/sh\necho "$@" >> {place}/asked\n'),
        ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}

    starts = []
    for job in (1, 2):
        child = subprocess.Popen(["bash", "train.sbatch"], env=environment)
        try:
            deadline = time.monotonic() + 100
            while len(trained := steps_of_session(place, job)) < 20:
                assert child.poll() is None, "the script ended before it was asked to"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            child.send_signal(signal.SIGUSR1)
            assert child.wait(timeout=60) == 0
        finally:
            if child.poll() is None:
                child.kill()
        trained = steps_of_session(place, job)
        starts.append((trained[0], trained[-1]))
        assert (place / "asked").read_text() == "requeue 4711\n" * job
    view = lineage.read(next((place / "runs").iterdir()))
    assert [session.status for session in view.sessions] == ["preempted", "preempted"]
    assert starts[0][0] == 1
    assert starts[1][0] == starts[0][1] + 1, "the second job goes on where the first one left"
    assert view.sessions[1].start.kind == "resume"


def steps_of_session(place: Path, ordinal: int) -> list[int]:
    found = list((place / "runs").glob("*/metrics.jsonl"))
    if not found:
        return []
    import json

    lines = [json.loads(line) for line in found[0].read_bytes().split(b"\n")[:-1]]
    return [e["step"] for e in lines if e["kind"] == "step" and e["session"].startswith(f"s{ordinal:02d}-")]


AS_BENCHMARKED = {
    "Lightning's CSVLogger": "Lightning CSVLogger",
    "**Lineage**": "lineage, the hook",
    "trackio": "trackio",
    "SwanLab, offline": "swanlab offline",
    "Weights & Biases, offline": "wandb offline",
    "torch SummaryWriter": "torch SummaryWriter",
    "Aim": "aim",
    "DVCLive": "dvclive",
    "MLflow, SQLite": "mlflow sqlite",
}


def cells(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The first table below a heading: first cell of each row to its cells by column."""
    below = itertools.dropwhile(lambda line: not line.startswith("|"), text.partition(heading)[2].splitlines())
    table = itertools.takewhile(lambda line: line.startswith("|"), below)
    names, _, *rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table]
    return {row[0]: dict(zip(names, row, strict=False)) for row in rows}


def test_the_comparison_has_the_figures_of_the_benchmarks_and_the_cheapest_first() -> None:
    page, measured = (GUIDE / "comparison.md").read_text("utf-8"), (DOCS / "benchmarks.md").read_text("utf-8")
    shown = cells(page, "## What a SIGKILL costs")
    logged = cells(measured, "**Log: the same six metrics through each tracker")
    killed = cells(measured, "**Kill: the same through each tracker")

    def near(text: str, figure: str) -> bool:
        """The figure as the page writes it: to two digits, or to the unit."""
        exact = float(figure.replace(",", ""))
        return abs(float(text.replace(",", "")) - exact) <= max(0.5 if exact >= 10 else 0.05, exact * 0.005)

    assert set(shown) == set(AS_BENCHMARKED)
    for name, row in shown.items():
        log, kill = logged[AS_BENCHMARKED[name]], killed[AS_BENCHMARKED[name]]
        assert near(row["beside a bare write"], log["median x"]), name
        assert near(row["median µs a step"], log["flat median us"]), name
        assert near(row["bytes a step"], log["bytes"]), name
        assert near(row["import s"], log["import s"]), name
        lost = [float(kill[column].replace(",", "")) for column in ("steps lost, median", "steps lost, most")]
        said = [
            float(number.replace(",", ""))
            for number in re.findall(r"[\d,]*\d", row["lost, median / most"].split(" (")[0])
        ]
        assert said == (lost if any(lost) else [0.0]), name
    ratios = [float(row["beside a bare write"].replace(",", "")) for row in shown.values()]
    assert ratios == sorted(ratios)


def test_every_link_of_the_guide_leads_somewhere() -> None:
    for page in [*GUIDE.glob("*.md"), DOCS / "index.md", *(DOCS / "api").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).resolve().exists(), f"{page.name} links to {target}"


def test_every_page_of_guide_and_api_is_in_the_table_of_contents_and_nothing_else_is() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {name for name in listed if not (DOCS / name).is_file()} == set()
    ours = {str(page.relative_to(DOCS)) for folder in ("guide", "api") for page in (DOCS / folder).glob("*.md")}
    assert ours <= listed


def test_every_public_name_has_its_place_in_the_reference() -> None:
    text = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    assert {name for name in lineage.__all__ if f"::: lineage.{name}\n" not in text} == set()


def test_every_promise_of_the_guide_names_a_test_that_is_there() -> None:
    text = (GUIDE / "guarantees.md").read_text("utf-8").partition("## Promised")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!promise|---)(.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert len(rows) >= 10
    for promise, named in rows:
        found = re.fullmatch(r"`([\w/]+\.py)::(\w+)`", named)
        assert found, f"no test is named for: {promise}"
        assert f"def {found[2]}(" in (ROOT / "tests" / found[1]).read_text("utf-8"), named


def test_the_pages_are_built_without_a_warning_and_ask_nobody_for_a_font() -> None:
    """The build itself is `make docs`: its tools are no part of the test environment."""
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    assert "mkdocs build" in recipe
    assert "--strict" in recipe
    config = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^  font: false\b", config, re.MULTILINE)
    assert not re.search(r"https?://", config), "an address in the configuration is a request of the reader's browser"
