"""End to end: the installed command in a real terminal (tmux), with real keys."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

LINEAGE = Path(sys.executable).with_name("lineage")


class Terminal:
    """One tmux server of its own with one window."""

    def __init__(self, size: tuple[int, int], tmp_path: Path, env: dict[str, str]) -> None:
        self._socket = f"lineage-{uuid.uuid4().hex[:8]}"
        self._size = size
        self._tmp = tmp_path
        self._env = env

    def tmux(self, *args: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, "-f", "/dev/null", *args], capture_output=True, text=True)
        return done.stdout

    def start(self, *args: str) -> None:
        env = {"TERM": "xterm-256color", "XDG_STATE_HOME": str(self._tmp / "state"), "LC_ALL": "C.UTF-8"} | self._env
        words = ["env", "-u", "NO_COLOR", "-u", "COLORTERM", *(f"{k}={v}" for k, v in env.items()), str(LINEAGE), *args]
        command = shlex.join(words) + "; echo LEFT $?; cat"
        width, height = self._size
        self.tmux("new-session", "-d", "-x", str(width), "-y", str(height), command)
        self.tmux("set-option", "-g", "status", "off")
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def keys(self, *names: str) -> None:
        for name in names:
            self.tmux("send-keys", name)
            time.sleep(0.03)

    def text(self, *, escapes: bool = False) -> str:
        return self.tmux("capture-pane", "-p", *(["-e"] if escapes else []))

    def wait(self, until: str | Callable[[str], bool], seconds: float = 20.0) -> str:
        text = ""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self.text()
            if re.search(until, text) if isinstance(until, str) else until(text):
                return text
            time.sleep(0.05)
        message = f"never came: {until}\n{text}"
        raise AssertionError(message)

    def stop(self) -> None:
        self.tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(size: tuple[int, int], **env: str) -> Terminal:
        made.append(Terminal(size, tmp_path, env))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_a_run_is_looked_at_with_real_keys(size, terminal, run_dir: Path) -> None:
    term = terminal(size)
    term.start("tui", str(run_dir))
    words = ("s2 exact", "tokens_per_s", "▼", "q quit")
    text = term.wait(lambda now: all(word in now for word in words) and len(now.split("\n")) >= size[1])
    lines = text.rstrip("\n").split("\n")
    assert "beta" in lines[0]
    assert "completed" in lines[0]
    assert "3 sessions" in lines[0]
    assert lines[-1].rstrip().endswith("q quit")
    for mark in ("▼", "◆", "╵", "✕", "╎", "s2 exact", "eval", "superseded"):
        assert mark in text, mark
    if size[0] == 200:
        assert all(f"{name} " in text for name in ("loss", "lr", "grad_norm", "tokens_per_s"))
        assert "events, the newest last" in text
    term.keys("n", "n")
    term.wait(r"step \d+  session 1")
    term.keys("+", "+")
    term.wait(lambda now: now != text and "session 1" in now)
    term.keys("?")
    term.wait("move the cursor one column")
    term.keys("Escape")
    time.sleep(0.3)  # tmux holds an escape back, to see whether it begins a sequence
    term.keys("3")
    term.wait("started from|fresh")
    term.keys("7")
    term.wait("session ended")
    term.keys("q")
    term.wait("LEFT 0")


def test_a_folder_is_opened_and_a_run_in_it(terminal, runs_dir: Path) -> None:
    term = terminal((80, 24))
    term.start("tui", str(runs_dir))
    text = term.wait("gamma")
    assert "3 runs" in text
    term.keys("/", "a", "l", "p", "h")
    term.wait(lambda now: "gamma" not in now)
    term.keys("Enter", "Enter")
    term.wait("s2 exact")
    term.keys("q")
    term.wait("LEFT 0")


def test_no_color_means_not_one_colour_code(terminal, run_dir: Path) -> None:
    term = terminal((80, 24))
    term._env["NO_COLOR"] = "1"
    term.start("tui", str(run_dir))
    term.wait(r"s2 exact")
    term.keys("n", "3")
    term.wait("started from|fresh")
    term.keys("2")
    term.wait(r"s2 exact")
    for sgr in re.findall(r"\x1b\[([0-9;]*)m", term.text(escapes=True)):
        codes = [int(part or 0) for part in sgr.split(";")]
        # 39 and 49 are the terminal's own colours: tmux says so after what was reversed.
        assert not [c for c in codes if (30 <= c <= 48 and c != 39) or 90 <= c <= 107], sgr
    term.keys("q")
    term.wait("LEFT 0")


def test_sixteen_colours_are_asked_for_by_name(terminal, run_dir: Path) -> None:
    term = terminal((80, 24), TERM="xterm")
    term.start("tui", str(run_dir))
    term.wait(r"s2 exact")
    term.keys("n", "7")
    term.wait("session ended")
    text = term.text(escapes=True)
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", text)
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[34]8;[25];", text)
    term.keys("q")
    term.wait("LEFT 0")


def test_a_dumb_terminal_is_refused_with_what_to_use_instead(run_dir: Path) -> None:
    env = dict(os.environ) | {"TERM": "dumb"}
    done = subprocess.run(
        [LINEAGE, "tui", str(run_dir)], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "lineage show" in done.stderr
    assert "lineage plot" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_is_not_there_is_said_before_any_screen(tmp_path: Path) -> None:
    done = subprocess.run([LINEAGE, "tui", "nothing", "--runs", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 3
    assert "nothing" in done.stderr


def test_a_window_made_tiny_and_large_again_is_drawn_anew(terminal, run_dir: Path) -> None:
    term = terminal((80, 24))
    term.start("tui", str(run_dir))
    term.wait(r"s2 exact")
    for width, height in ((20, 5), (1, 1), (120, 40)):
        term.tmux("resize-window", "-x", str(width), "-y", str(height))
        time.sleep(0.3)
    term.wait(lambda now: "s2 exact" in now and "q quit" in now and max(map(len, now.split("\n"))) > 100)
    term.keys("q")
    term.wait("LEFT 0")
