"""A folder of invented runs, and an app driven without a terminal."""

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

# Read by Textual when it is imported.
os.environ["TEXTUAL_ANIMATIONS"] = "none"
for name in ("NO_COLOR", "TEXTUAL_THEME", "SSH_CONNECTION", "SSH_TTY", "COLORFGBG"):
    os.environ.pop(name, None)
os.environ["COLORTERM"] = "truecolor"
os.environ["TERM"] = "xterm-256color"

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks.synthetic


@pytest.fixture(scope="session")
def _made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.synthetic import write_run

    folder = tmp_path_factory.mktemp("made") / "runs"
    for number, name in enumerate(("alpha", "beta", "gamma")):
        write_run(folder, steps=300 + 100 * number, sessions=3, seed=number, name=name)
    return folder


@pytest.fixture
def runs_dir(_made_runs: Path, tmp_path: Path) -> Path:
    """A fresh copy of three runs of three sessions: killed, preempted, completed."""
    folder = tmp_path / "runs"
    shutil.copytree(_made_runs, folder)
    return folder


@pytest.fixture
def run_dir(runs_dir: Path) -> Path:
    """The run called beta: 400 steps, 37 of them superseded."""
    return next(runs_dir.glob("*-beta"))


@pytest.fixture
def drive(tmp_path: Path) -> Callable:
    """`drive(script, run_dir, folder, size)`: run the app headless and let `script(app, pilot)` use it."""
    from lineage_tui.app import LineageApp, Options

    def go(
        script: Callable[..., Awaitable[None]],
        run: Path | None,
        folder: Path,
        size: tuple[int, int] = (120, 40),
        **options: object,
    ) -> LineageApp:
        app = LineageApp(run, folder, Options(**({"state_dir": tmp_path / "state"} | options)))

        async def main() -> None:
            async with app.run_test(size=size) as pilot:
                await settle(app, pilot, lambda: app.snapshot is not None if run else app.folder is not None)
                await pilot.pause(0.06)
                await script(app, pilot)

        asyncio.run(asyncio.wait_for(main(), 60))
        return app

    return go


async def settle(app: object, pilot: object, until: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is true; fail when it does not come."""
    for _ in range(int(seconds / 0.02)):
        if until():
            await pilot.pause()
            return
        await pilot.pause(0.02)
    message = f"did not happen within {seconds} s"
    raise AssertionError(message)


@pytest.fixture
def wait() -> Callable[..., Awaitable[None]]:
    return settle


def screen_text(app: object) -> list[str]:
    """What is on the screen, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip)[:width] for strip in strips[:height]]


@pytest.fixture
def text_of() -> Callable[[object], list[str]]:
    return screen_text
