"""`lineage plot`: text that fits where it goes."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.synthetic import write_run
from lineage.cli import main
from lineage_tui.plot_command import PlotCommand, depth_from, glyphs_for

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), steps=600, sessions=3)


def plot(capsys, *words):
    code = main(["plot", *map(str, words)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_without_a_terminal_it_is_80_columns_of_plain_text(folder, capsys):
    code, out, err = plot(capsys, folder)
    assert code == 0
    assert not err
    assert "\x1b" not in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    for word in ("loss", "lr", "grad_norm", "tokens_per_s", "s2 exact", "s1 killed", "superseded", "events", "step"):
        assert word in out
    assert any("\u2800" < char < "\u2900" for char in out)
    assert all(line == line.rstrip() for line in lines)


def test_metrics_size_and_view_are_as_asked(folder, capsys):
    _, out, _ = plot(
        capsys,
        folder,
        "--metric",
        "lr",
        "--metric",
        "loss",
        "--width",
        "60",
        "--height",
        "12",
        "--smoothing",
        "0.9",
        "--log-y",
    )
    first, second = out.rstrip("\n").split("\n\n")
    assert first.startswith("lr")
    assert second.startswith("loss")
    assert len(first.split("\n")) == 12
    assert max(map(len, out.splitlines())) <= 60
    assert "ema 0.9" in out
    assert "log y" in out


def test_superseded_steps_can_be_left_out(folder, capsys):
    assert "superseded" in plot(capsys, folder, "--metric", "lr")[1]
    assert "superseded" not in plot(capsys, folder, "--metric", "lr", "--no-superseded")[1]


@pytest.mark.parametrize(
    ("axis", "word"), [("step", "600"), ("time", "m"), ("wall", "13:"), ("tokens", "M"), ("session", "s3")]
)
def test_every_axis_can_be_drawn(folder, capsys, monkeypatch, axis, word):
    monkeypatch.setenv("TZ", "UTC")
    code, out, _ = plot(capsys, folder, "--metric", "lr", "--x", axis)
    assert code == 0
    assert word in out


def test_a_session_is_looked_at_closely(folder, capsys):
    _, whole, _ = plot(capsys, folder, "--metric", "lr")
    _, second, _ = plot(capsys, f"{folder}@2", "--metric", "lr")
    assert "500" in whole.splitlines()[-1]
    assert "500" not in second.splitlines()[-1]
    assert "300" in second.splitlines()[-1]


def test_unknown_metrics_are_a_usage_error_that_says_what_there_is(folder, capsys):
    code, out, err = plot(capsys, folder, "--metric", "accuracy")
    assert code == 2
    assert not out
    assert "accuracy" in err
    assert "grad_norm" in err


@pytest.mark.parametrize(("option", "least"), [("--width", 24), ("--height", 5)])
def test_a_size_with_no_room_for_a_chart_is_refused_with_the_least_there_is(option, least, folder, capsys):
    code, out, err = plot(capsys, folder, option, least - 1)
    assert (code, out) == (2, "")
    assert f"'{least - 1}' is not a whole number from {least} to 2000" in err
    assert plot(capsys, folder, "--metric", "loss", option, least)[0] == 0


@pytest.mark.parametrize("words", [("--smoothing", "1"), ("--width", "0"), ("--height", "many"), ("--x", "moon")])
def test_values_out_of_range_are_usage_errors(folder, capsys, words):
    assert plot(capsys, folder, *words)[0] == 2


def test_a_missing_run_is_not_found(tmp_path, capsys):
    code, _, err = plot(capsys, tmp_path / "nothing")
    assert code == 3
    assert "nothing" in err


def test_a_run_without_steps_says_so_on_stderr(folder, tmp_path, capsys):
    empty = tmp_path / folder.name
    empty.mkdir()
    (empty / "run.json").write_bytes((folder / "run.json").read_bytes())
    code, out, err = plot(capsys, empty)
    assert code == 0
    assert not out
    assert "no step" in err


def test_damage_is_told_beside_the_chart(folder, tmp_path, capsys):
    damaged = tmp_path / folder.name
    damaged.mkdir()
    (damaged / "run.json").write_bytes((folder / "run.json").read_bytes())
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[50] = b"\x00garbage\n"
    (damaged / "metrics.jsonl").write_bytes(b"".join(lines))
    code, out, err = plot(capsys, damaged, "--metric", "lr")
    assert code == 0
    assert "lr" in out
    assert "byte" in err


def run_in(folder, env, *words, terminal=False):
    """The command in a process of its own; what it wrote, on a pseudo terminal of 100 columns if asked."""
    command = [sys.executable, "-m", "lineage", "plot", str(folder), "--metric", "lr", *words]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **env}
    if not terminal:
        done = subprocess.run(command, env=env, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()
    main_end, their_end = pty.openpty()
    with subprocess.Popen(
        command, env={"COLUMNS": "100", "LINES": "40", **env}, stdout=their_end, stderr=their_end
    ) as child:
        os.close(their_end)
        parts = []
        try:
            while part := os.read(main_end, 65536):
                parts.append(part)
        except OSError:  # how a closed pseudo terminal says that it ended
            pass
        assert child.wait(60) == 0
    os.close(main_end)
    return b"".join(parts).decode().replace("\r\n", "\n")


UTF8 = {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}


def test_on_a_terminal_it_has_its_width_and_its_colours(folder):
    out = run_in(folder, UTF8, terminal=True)
    assert "\x1b[38;5;87m" in out
    assert "38;2;" not in out
    widths = [len(ESCAPE.sub("", line)) for line in out.splitlines()]
    assert 80 < max(widths) <= 100
    assert out.rstrip("\n").endswith("\x1b[0m")


def test_truecolor_terminals_get_true_colours(folder):
    assert "\x1b[38;2;95;255;255m" in run_in(folder, {**UTF8, "COLORTERM": "truecolor"}, terminal=True)


def test_no_color_is_obeyed_on_a_terminal(folder):
    assert "\x1b" not in run_in(folder, {**UTF8, "NO_COLOR": "1"}, terminal=True)
    assert "\x1b" not in run_in(folder, {**UTF8, "TERM": "dumb"}, terminal=True)


def test_a_locale_without_utf8_gets_ascii(folder):
    out = run_in(folder, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert out.isascii()
    assert "superseded" in out


def test_colours_follow_what_the_terminal_says_of_itself():
    assert depth_from({"TERM": "xterm-256color"}, is_colour=True) == "256"
    assert depth_from({"TERM": "xterm", "COLORTERM": "truecolor"}, is_colour=True) == "truecolor"
    assert depth_from({"TERM": "linux"}, is_colour=True) == "16"
    assert depth_from({"TERM": "tmux"}, is_colour=True) == "256"
    assert depth_from({"TERM": "dumb", "COLORTERM": "truecolor"}, is_colour=True) == "none"
    assert depth_from({"TERM": "xterm-256color"}, is_colour=False) == "none"


def test_characters_follow_encoding_and_terminal():
    assert glyphs_for("utf-8", {}) == "braille"
    assert glyphs_for("UTF8", {"TERM": "linux"}) == "blocks"
    assert glyphs_for("latin-1", {}) == "ascii"
    assert glyphs_for(None, {}) == "ascii"


def test_the_verb_is_found_by_its_entry_point(capsys):
    assert main(["plot", "--help"]) == 0
    out = capsys.readouterr().out
    for line, _ in PlotCommand.examples:
        assert line in out


def test_plotting_loads_neither_textual_nor_torch(folder):
    code = (
        "import sys\nfrom lineage.cli import main\n"
        f"main(['plot', {str(folder)!r}, '--metric', 'lr'])\n"
        "sys.exit(bool({'textual', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_boundary_carries_the_audited_verdict(tmp_path, capsys):
    sample = next((Path(__file__).resolve().parents[2] / "sample_runs").glob("*-careless"))
    folder = shutil.copytree(sample, tmp_path / "run", ignore=shutil.ignore_patterns(".cache"))
    code, out, _ = plot(capsys, folder, "--metric", "loss")
    assert code == 0
    assert "s2 diverged @251" in out
