"""What is found out about the terminal, and what is remembered of a person's choices."""

import json
import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from lineage_tui import terminal
from lineage_tui.settings import MAX_RUNS, Choice, Settings, state_dir


@pytest.mark.parametrize(
    ("reply", "background"),
    [
        (b"\x1b]11;rgb:0000/0000/0000\x1b\\", "dark"),
        (b"\x1b]11;rgb:ffff/ffff/ffff\x07", "light"),
        (b"\x1b]11;rgb:1e/1e/2e\x1b\\", "dark"),
        (b"\x1b]11;rgb:fd/f6/e3\x1b\\\x1b[?62;4c", "light"),
        (b"\x1b]11;rgba:ffff/ffff/ffff/ffff\x1b\\", "light"),
        (b"\x1b[?62;4c", None),
        (b"\x1b]11;rgb:ff", None),
        (b"", None),
    ],
)
def test_a_reply_to_osc_11_is_light_or_dark_by_its_luma(reply: bytes, background: str | None) -> None:
    assert terminal.parse_reply(reply) == background


@pytest.mark.parametrize(
    ("value", "background"), [("15;0", "dark"), ("0;15", "light"), ("0;default;15", "light"), ("", None), ("x;y", None)]
)
def test_colorfgbg_is_the_second_witness(value: str, background: str | None) -> None:
    assert terminal.background_of_colorfgbg(value) == background


@pytest.mark.parametrize(
    ("env", "glyphs"),
    [
        ({"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}, "braille"),
        ({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}, "braille"),
        ({"TERM": "linux", "LANG": "en_US.UTF-8"}, "blocks"),
        ({"TERM": "xterm", "LANG": "de_DE.ISO-8859-1"}, "ascii"),
        ({"TERM": "xterm", "LC_ALL": "de_DE.ISO-8859-1", "LANG": "en_US.UTF-8"}, "ascii"),
    ],
)
def test_the_finest_marks_that_show_reliably_are_taken(env: dict[str, str], glyphs: str) -> None:
    assert terminal.glyphs_of(env) == glyphs


def test_no_terminal_and_a_dumb_one_are_refused() -> None:
    assert terminal.refuse({"TERM": "xterm"}, is_tty=False)
    assert terminal.refuse({"TERM": "dumb"}, is_tty=True)
    assert terminal.refuse({}, is_tty=True)
    assert terminal.refuse({"TERM": "xterm"}, is_tty=True) is None


def test_the_refusal_names_the_commands_for_what_was_asked_for(run_dir: Path) -> None:
    def hint(*words: str) -> str:
        command = [str(Path(sys.executable).with_name("lineage")), *words]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 2
        return done.stderr.splitlines()[-1]

    folder, name = str(run_dir.parent), run_dir.name
    assert f"lineage ls {folder} needs none" in hint("tui", folder)
    assert f"lineage ls {folder} needs none" in hint("--runs", folder, "tui")
    assert f"lineage show {run_dir} and lineage plot {run_dir} need none" in hint("tui", str(run_dir))
    assert f"lineage show {name}@2 and lineage plot {name}@2 need none" in hint("--runs", folder, "tui", f"{name}@2")


ASK = "from lineage_tui.terminal import query_background; import time; t = time.monotonic(); print(query_background(1.0)); print(time.monotonic() - t < 0.9)"


def ask(answer: bytes, delay_s: float = 0.0) -> tuple[list[str], bytes]:
    """Run the question in a process with a terminal of its own that answers so; its output, and what is left to read."""
    master, slave = pty.openpty()
    code = (
        "import os, sys, fcntl, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        + ASK
        + "; import select; print(bool(select.select([0], [], [], 0.2)[0]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=slave, stdout=subprocess.PIPE, text=True)
    asked = b""
    while b"\x1b[c" not in asked:
        asked += os.read(master, 1024)
    before = termios.tcgetattr(slave)
    time.sleep(delay_s)
    os.write(master, answer)
    out, _ = process.communicate(timeout=20)
    after = termios.tcgetattr(slave)
    assert before[3] & termios.ECHO == 0  # not shown while it was asked
    assert after[3] & termios.ECHO
    os.close(master)
    os.close(slave)
    return out.split(), asked


def test_a_terminal_that_knows_is_believed_and_nothing_is_left_to_be_taken_for_keys() -> None:
    out, asked = ask(b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;4c")
    assert out == ["light", "True", "False"]
    assert asked.startswith(b"\x1b]11;?")


def test_a_terminal_that_only_says_what_it_is_ends_the_wait_at_once() -> None:
    assert ask(b"\x1b[?1;2c")[0] == ["None", "True", "False"]


def test_choices_survive_and_live_outside_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tui.json"
    settings = Settings.read(path)
    choice = Choice(metrics=("loss", "z"), x="train", smoothing=0.5, log_y=("loss",), superseded=False)
    assert settings.keep("/runs/a", choice)
    assert Settings.read(path).of("/runs/a") == choice
    assert Settings.read(path).of("/runs/b") == Choice()


@pytest.mark.parametrize(
    "content",
    ["", "[", "[]", '{"runs": 3}', '{"runs": {"a": 3, "b": {"x": 7, "smoothing": "much", "metrics": [1, "loss"]}}}'],
)
def test_a_damaged_file_of_choices_is_no_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tui.json"
    path.write_text(content)
    settings = Settings.read(path)
    assert settings.of("a") == Choice()
    assert set(settings.of("b").metrics) <= {"loss"}
    assert settings.keep("a", Choice(x="wall"))
    assert json.loads(path.read_text())["runs"]["a"]["x"] == "wall"


def test_a_folder_that_cannot_be_written_costs_the_memory_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings.read(tmp_path / "file" / "tui.json")
    assert settings.keep("a", Choice(x="wall")) is False
    assert settings.of("a").x == "wall"


def test_only_the_runs_looked_at_last_are_remembered() -> None:
    settings = Settings()
    for number in range(MAX_RUNS + 5):
        settings.keep(str(number), Choice(x=str(number)))
    assert len(settings.choices) == MAX_RUNS
    assert settings.of("0") == Choice()
    assert settings.of(str(MAX_RUNS + 4)).x == str(MAX_RUNS + 4)


def test_the_state_folder_is_the_users() -> None:
    assert state_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/lineage")
    assert state_dir({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local" / "state" / "lineage"
