"""The mouse over a chart: what it shows, what it leaves alone, and what is asked of the terminal for it."""

import contextlib
import dataclasses
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widget import Widget

from lineage_tui.screens.run import KEYS_AT_THE_LINE

LINEAGE = Path(sys.executable).with_name("lineage")


def cursor_columns(frame: object) -> list[int]:
    """The columns in which a cursor is drawn."""
    from lineage_tui.plot import Fg

    plot = frame.plot
    region = (slice(plot.y, plot.y + plot.height), slice(plot.x, plot.x + plot.width))
    found = frame.fg[region] == Fg.CURSOR
    return [plot.x + int(column) for column in found.any(axis=0).nonzero()[0]]


def readout(screen: object) -> str:
    return str(screen.readout.render())


async def point(pilot: object, screen: object, column: int, chart: int = 0) -> None:
    """Move the mouse to a column of the plot of a chart."""
    target = screen.charts[chart]
    await pilot.hover(target, offset=(target.frame.plot.x + column, target.frame.plot.y + 2))
    await pilot.pause(0.12)


def test_the_line_and_the_readout_follow_the_mouse_and_go_when_it_goes(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        before = screen.charts[0].frame
        for column in (20, 45):
            await point(pilot, screen, column)
            for chart in screen.charts[:2]:  # one line through all
                assert cursor_columns(chart.frame) == [chart.frame.plot.x + column]
            step = round(screen.charts[0].frame.x_at(screen.charts[0].frame.plot.x + column))
            assert readout(screen).startswith(f" step {step}")
        await pilot.hover(screen.readout)
        await pilot.pause(0.12)
        assert screen.charts[0].frame.same_as(before)
        assert "puts a cursor on the curves" in readout(screen)

    drive(script, run_dir, run_dir.parent)


def test_no_line_stays_under_a_mouse_when_the_terminal_is_left(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        before = screen.charts[0].frame
        await point(pilot, screen, 30)
        assert not screen.charts[0].frame.same_as(before)
        app.app_focus = False
        await pilot.pause(0.12)
        assert screen.charts[0].frame.same_as(before)

    drive(script, run_dir, run_dir.parent)


def test_the_mouse_leaves_the_cursor_the_window_and_what_is_followed_alone(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        await pilot.press("n", "n", "plus", "tab")
        screen.looking = dataclasses.replace(screen.looking, following=True)
        await pilot.pause(0.1)
        looking, pane, frame = screen.looking, screen.pane, screen.charts[0].frame
        for column in (3, 60, 30):
            await point(pilot, screen, column)
            assert screen.looking == looking
            assert screen.pane == pane
            shown = screen.charts[0].frame.window
            assert (shown.x0, shown.x1) == (frame.window.x0, frame.window.x1)
        await pilot.hover(screen.readout)
        await pilot.pause(0.12)
        assert screen.charts[0].frame.same_as(frame)

    drive(script, run_dir, run_dir.parent)


def test_the_chart_under_the_mouse_is_read_first(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        for index, name in enumerate(screen.page()):
            await point(pilot, screen, 30, index)
            words = [word for word in readout(screen).split() if word in screen.names]
            assert words[0] == name

    drive(script, run_dir, run_dir.parent)


def test_a_click_puts_the_cursor_there_for_good(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        chart = screen.charts[0]
        column = chart.frame.plot.x + 40
        await point(pilot, screen, 40)
        await pilot.click(chart, offset=(column, 6))
        await pilot.pause(0.12)
        await pilot.hover(screen.readout)
        await pilot.pause(0.12)
        assert cursor_columns(chart.frame) == [column]
        assert screen.looking.cursor == chart.frame.x_at(column)
        assert screen.looking.x0 is None

    drive(script, run_dir, run_dir.parent)


def test_a_key_takes_the_line_back_until_the_mouse_moves_again(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        await pilot.press("right_curly_bracket")
        await point(pilot, screen, 10)
        assert screen.charts[0].frame.column_of(100.0) not in cursor_columns(screen.charts[0].frame)
        await pilot.press("full_stop")
        await pilot.pause(0.1)
        assert screen.looking.cursor == 101  # from where the cursor was, not from the mouse
        assert cursor_columns(screen.charts[0].frame) == [screen.charts[0].frame.column_of(101.0)]
        await point(pilot, screen, 11)
        assert cursor_columns(screen.charts[0].frame) == [screen.charts[0].frame.plot.x + 11]

    drive(script, run_dir, run_dir.parent)


def test_what_a_key_asks_about_is_the_line_that_is_seen(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        for key, place in (("e", "explain"), ("d", "diff"), ("v", "run")):
            await point(pilot, screen, 50)
            wanted = screen.charts[0].frame.x_at(screen.charts[0].frame.plot.x + 50)
            await pilot.press(key)
            await pilot.pause(0.1)
            assert app.screen.place == place
            assert screen.looking.cursor == wanted
            await pilot.press("2", "0")
            await pilot.pause(0.1)
        assert {"e", "d", "v"} < KEYS_AT_THE_LINE

    drive(script, run_dir, run_dir.parent)


def test_the_wheel_zooms_at_the_mouse_and_does_not_move_the_cursor_there(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        from textual.events import MouseScrollUp

        screen, chart = app.screen, app.screen.charts[0]
        await pilot.press("right_curly_bracket")
        await point(pilot, screen, 60)
        offset = (chart.frame.plot.x + 60, 6)
        await pilot._post_mouse_events([MouseScrollUp], widget=chart, offset=offset)
        await pilot.pause(0.12)
        assert screen.looking.cursor == 100
        assert screen.looking.x1 - screen.looking.x0 < 350
        assert cursor_columns(chart.frame) == [offset[0]]

    drive(script, run_dir, run_dir.parent)


@pytest.mark.parametrize("hover", [True, False])
def test_a_drag_marks_a_range_with_the_cursor_at_its_end(drive: Callable, run_dir: Path, *, hover: bool) -> None:
    async def script(app, pilot):
        screen, chart = app.screen, app.screen.charts[0]
        x = chart.frame.plot.x
        first, last = chart.frame.x_at(x + 20), chart.frame.x_at(x + 50)
        await pilot.mouse_down(chart, offset=(x + 20, 6))
        for column in (25, 50):
            await pilot.hover(chart, offset=(x + column, 6))
            await pilot.pause(0.1)
        await pilot.mouse_up(chart, offset=(x + 50, 6))
        await pilot.pause(0.1)
        assert screen.looking.range == (first, last)
        assert not screen.looking.marking
        assert screen.looking.cursor == last
        assert "mean" in readout(screen)
        await pilot.hover(chart, offset=(x + 70, 6))  # no button is down any more
        await pilot.pause(0.1)
        assert screen.looking.range == (first, last)
        assert app.mouse_captured is None
        await pilot.press("escape")
        assert screen.looking.range is None

    drive(script, run_dir, run_dir.parent, hover=hover)


def test_a_click_extends_the_range_that_is_being_marked(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen, chart = app.screen, app.screen.charts[0]
        await pilot.press("right_curly_bracket", "v")
        await pilot.pause(0.1)
        column = chart.frame.plot.x + 60
        await pilot.click(chart, offset=(column, 6))
        await pilot.pause(0.1)
        assert screen.looking.range == (100, chart.frame.x_at(column))
        assert screen.looking.marking

    drive(script, run_dir, run_dir.parent)


def test_without_hover_a_mouse_that_moves_changes_nothing(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen = app.screen
        frame, paints = screen.charts[0].frame, screen.charts[0].num_paints
        await point(pilot, screen, 30)
        assert screen.charts[0].frame is frame
        assert screen.charts[0].num_paints == paints
        assert "puts a cursor on the curves" in readout(screen)

    drive(script, run_dir, run_dir.parent, hover=False)


def test_many_moves_are_few_pictures_and_none_within_a_column(
    drive: Callable, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(app, pilot):
        import lineage_tui.screens.run as module

        screen, chart = app.screen, app.screen.charts[0]
        await point(pilot, screen, 0)
        now = time.monotonic() + 1000
        monkeypatch.setattr(module, "monotonic", lambda: now)  # the first move is drawn, then the clock stands still
        asked: list[float] = []
        monkeypatch.setattr(screen, "set_timer", lambda wait, _: asked.append(wait) or object())
        paints = chart.num_paints
        for column in range(10, 50):
            await pilot.hover(chart, offset=(chart.frame.plot.x + column, 6))
        assert chart.num_paints == paints + 1
        assert asked == [pytest.approx(0.05)]
        screen._timer = None
        screen.draw()
        assert cursor_columns(chart.frame) == [chart.frame.plot.x + 49]
        paints = chart.num_paints
        await pilot.hover(chart, offset=(chart.frame.plot.x + 49, 9))
        screen.draw()
        assert chart.num_paints == paints

    drive(script, run_dir, run_dir.parent, max_builds_hz=60.0)


def test_under_a_mouse_that_rests_the_line_stays_while_the_run_goes_on(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        screen, chart = app.screen, app.screen.charts[0]
        await point(pilot, screen, 60)
        x = screen.line_x
        screen.looking = dataclasses.replace(screen.looking, x0=0.0, x1=200.0)  # as if it had slid
        screen.draw()
        assert cursor_columns(chart.frame) == [chart.frame.plot.x + 60]
        assert screen.line_x < x

    drive(script, run_dir, run_dir.parent)


def test_a_chart_is_not_what_the_terminal_selects(drive: Callable, run_dir: Path) -> None:
    async def script(app, pilot):
        assert isinstance(app.screen.charts[0], Widget)
        assert not app.screen.charts[0].allow_select

    drive(script, run_dir, run_dir.parent)


# -- what is asked of the terminal ---------------------------------------------------------------------------------------


def asked_of_the_terminal(run_dir: Path, state: Path, *options: str, **env: str) -> bytes:
    """All that the command writes to a terminal of its own until it has drawn the run and was told to quit."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SSH_", "TEXTUAL"))}
    process = subprocess.Popen(
        [str(LINEAGE), "tui", str(run_dir), "--theme", "dark", *options],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=kept | {"TERM": "xterm-256color", "XDG_STATE_HOME": str(state)} | env,
        start_new_session=True,
    )
    os.close(slave)
    written = b""
    told = False
    end = time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    written += os.read(master, 65536)
            if not told and b"grad_norm" in written:
                os.write(master, b"q")
                told = True
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    while select.select([master], [], [], 0)[0]:
        try:
            written += os.read(master, 65536)
        except OSError:
            break
    os.close(master)
    return written


@pytest.mark.parametrize(
    ("options", "env", "modes"),
    [
        ((), {}, {b"1000", b"1003", b"1006"}),
        ((), {"SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}, {b"1000", b"1002", b"1006"}),
        (("--no-mouse",), {}, set()),
    ],
)
def test_moves_of_the_mouse_are_asked_for_only_where_they_are_shown(
    run_dir: Path, tmp_path: Path, options: tuple[str, ...], env: dict[str, str], modes: set[bytes]
) -> None:
    written = asked_of_the_terminal(run_dir, tmp_path / "state", *options, **env)
    for mode in (b"1000", b"1002", b"1003", b"1006"):
        assert (b"\x1b[?" + mode + b"h" in written) == (mode in modes), mode
    for mode in modes:  # and put back at the end
        assert written.rindex(b"\x1b[?" + mode + b"l") > written.rindex(b"\x1b[?" + mode + b"h")
