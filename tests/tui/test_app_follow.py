"""A live run: what is written appears, a death is told at once, a resume goes on, and the user's view is kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WRITER = """
import sys, time, lineage
run = lineage.init(sys.argv[1], name="live", recipe={"lr": 1e-3}, resume="auto")
for step in run.steps(100_000):
    run.log(loss=5.0 / step, lr=1e-3, grad_norm=1.0, tokens=100)
    time.sleep(0.005)
"""


@pytest.fixture
def writer(tmp_path: Path):
    """`writer()` starts a process that trains into tmp_path/live until it is killed."""
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, str(script), str(tmp_path / "live")], stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def first_run(folder: Path) -> Path:
    for _ in range(400):
        found = list(folder.glob("*/metrics.jsonl")) if folder.is_dir() else []
        if found and found[0].stat().st_size > 2_000:
            return found[0].parent
        time.sleep(0.05)
    raise AssertionError("the writer wrote nothing")


def test_a_writer_is_followed_through_its_death_and_its_resume(drive, writer, tmp_path, wait, text_of) -> None:
    process = writer()
    run_dir = first_run(tmp_path / "live")

    async def script(app, pilot):
        await wait(app, pilot, lambda: app.snapshot.state == "running")
        before = app.snapshot.last_step
        await wait(app, pilot, lambda: app.snapshot.last_step > before + 20)
        assert "running" in text_of(app)[0]
        assert "following" in text_of(app)[0]
        process.send_signal(signal.SIGKILL)
        process.wait()
        died_at = time.monotonic()
        await wait(app, pilot, lambda: app.snapshot.state == "killed", 5)
        assert time.monotonic() - died_at < 3
        await pilot.pause(0.1)
        assert "killed" in text_of(app)[0]
        # Every step it was told is written is on the curve.
        reached = app.snapshot.last_step
        assert float(app.screen.model.series[0].x[-1]) == reached
        writer()
        await wait(app, pilot, lambda: len(app.snapshot.record.sessions) == 2, 20)
        await wait(app, pilot, lambda: app.snapshot.state == "running", 10)
        await wait(app, pilot, lambda: (app.snapshot.segments[1].num_steps or 0) > 20, 20)
        await pilot.pause(0.1)
        lines = text_of(app)
        assert "2 sessions" in lines[0]
        assert any("killed" in line for line in lines[1:])

    drive(script, run_dir, run_dir.parent)


def test_a_zoomed_view_holds_still_while_the_run_grows_and_moves_when_told_to_follow(
    drive, writer, tmp_path, wait, text_of
) -> None:
    writer()
    run_dir = first_run(tmp_path / "live")

    async def script(app, pilot):
        screen = app.screen
        await wait(app, pilot, lambda: (app.snapshot.last_step or 0) > 30 and screen.model is not None)
        await pilot.press("n")
        await pilot.press("plus", "plus")
        held = (screen.looking.x0, screen.looking.x1, screen.looking.cursor)
        reached = app.snapshot.last_step
        await wait(app, pilot, lambda: app.snapshot.last_step > reached + 20)
        assert (screen.looking.x0, screen.looking.x1, screen.looking.cursor) == held
        await pilot.pause(0.1)
        assert "holding the view" in text_of(app)[0]
        await pilot.press("f")
        width = held[1] - held[0]
        await wait(app, pilot, lambda: screen.looking.x1 == screen._end())
        at = screen.looking.x1
        await wait(app, pilot, lambda: screen.looking.x1 > at)
        assert screen.looking.x1 - screen.looking.x0 == pytest.approx(width)
        assert "following" in text_of(app)[0]

    drive(script, run_dir, run_dir.parent)


def test_pictures_are_paced_whatever_arrives(drive, writer, tmp_path, wait) -> None:
    writer()
    run_dir = first_run(tmp_path / "live")

    async def script(app, pilot):
        await wait(app, pilot, lambda: app.snapshot.state == "running")
        screen = app.screen
        builds = 0
        draw = screen.draw

        def counted() -> None:
            nonlocal builds
            builds += 1
            draw()

        screen.draw = counted
        version = app.snapshot.version
        began = time.monotonic()
        while time.monotonic() - began < 1.0:
            await pilot.press("plus", "minus")
        took = time.monotonic() - began
        assert builds <= 20 * took + 2
        assert app.snapshot.version - version <= 4 * took + 2

    drive(script, run_dir, run_dir.parent, follow_hz=4.0)


def test_quitting_ends_the_reading_threads(drive, writer, tmp_path, wait) -> None:
    import threading

    writer()
    run_dir = first_run(tmp_path / "live")

    async def script(app, pilot):
        await pilot.press("q")

    began = time.monotonic()
    app = drive(script, run_dir, run_dir.parent)
    assert time.monotonic() - began < 5
    assert all(follower.is_stopped() for follower in app._followers.values())
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name and thread.is_alive()]


def test_the_app_never_loads_torch(run_dir, runs_dir) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from lineage_tui.app import LineageApp, Options
from lineage_tui.screens import FACTORIES
from lineage_tui import keys
async def main():
    app = LineageApp(Path({str(run_dir)!r}), Path({str(runs_dir)!r}), Options())
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(200):
            await pilot.pause(0.02)
            if app.snapshot is not None:
                break
        for digit, name, _ in keys.SCREENS:
            await pilot.press(digit)
            await pilot.pause(0.2)
asyncio.run(main())
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_verb_loads_no_textual_until_it_runs() -> None:
    code = "import sys; from lineage_tui.command import TuiCommand; assert not {'textual', 'rich', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_long_curves_are_never_smoothed_by_the_thread_that_draws(drive, run_dir, runs_dir, wait, monkeypatch) -> None:
    """Neither at first nor when the smoothing changes: with ten million points that would hold keys back."""
    import threading

    from lineage_tui.plot import fold

    smoothed: list[tuple[str, int, float]] = []
    real = fold.ema

    def spy(y, weight, state=None, out=None):
        smoothed.append((threading.current_thread().name, y.size, weight))
        return real(y, weight, state, out)

    monkeypatch.setattr(fold, "ema", spy)
    for module in ("follower", "screens.run"):
        monkeypatch.setattr(f"lineage_tui.{module}.WARM_FROM", 300)

    async def script(app, pilot):
        before = app.screen.charts[0].view.smoothing
        await pilot.press("right_square_bracket")
        await wait(app, pilot, lambda: app.screen.charts[0].view.smoothing > before)
        long = [(thread, weight) for thread, size, weight in smoothed if size >= 300]
        assert {weight for _, weight in long} == {before, app.screen.looking.smoothing}
        assert not [thread for thread, _ in long if thread == threading.main_thread().name]

    drive(script, run_dir, runs_dir)


def test_what_another_thread_prepared_is_drawn_as_if_it_were_prepared_here() -> None:
    import numpy as np

    from lineage_tui.plot import ChartModel, Memo, SeriesData, View, render

    x = np.arange(1.0, 20_001.0)
    series = SeriesData("loss", "loss", x, np.sin(x / 700) + np.random.default_rng(0).normal(0, 0.2, x.size))
    model, view = ChartModel("loss", (series,)), View(smoothing=0.95)
    theirs, mine = Memo(), Memo()
    theirs.pyramid(series)
    theirs.smoothed(series, 0.95)
    mine.take(theirs)
    assert render(model, view, 100, 30, memo=mine).same_as(render(model, view, 100, 30))
    grown = SeriesData("loss", "loss", np.append(x, x[-1] + 1), np.append(series.y, 9.0))
    assert render(ChartModel("loss", (grown,)), view, 100, 30, memo=mine).same_as(
        render(ChartModel("loss", (grown,)), view, 100, 30)
    )


def test_garbage_is_collected_at_rest_and_costs_a_hundredth_of_a_core(drive, run_dir, runs_dir, monkeypatch) -> None:
    """Collecting every second while a run was followed took more than drawing its curves."""
    from types import SimpleNamespace

    from lineage_tui import app as module

    clock = [1000.0]
    collected: list[float] = []

    def collect() -> None:
        collected.append(clock[0])
        clock[0] += 0.06

    async def script(app, pilot):
        del pilot
        with monkeypatch.context() as patch:
            patch.setattr(module, "gc", SimpleNamespace(collect=collect, get_count=lambda: (0, 0, 100)))
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
            app._touched_at = clock[0]
            app._tidy()
            assert collected == []  # a key came just now
            for _ in range(600):
                clock[0] += 1.0
                app._tidy()
        spent = 0.06 * len(collected)
        assert 3.0 < spent < 6.1

    drive(script, run_dir, runs_dir)
