"""Sizes, hostile text, damage and deletion: the app shows what is wrong and goes on."""

import json
import shutil
import unicodedata
from pathlib import Path

import pytest

from lineage_tui import keys
from lineage_tui.screens import FACTORIES

PLACES = [(digit, name) for digit, name, _ in keys.SCREENS if name in FACTORIES]
EVIL = "\x1b[31mred\x07 \u202eevil\u200b [bold]markup[/] \x9b2J\n\tend"


def is_clean(lines: list[str]) -> bool:
    return not any(unicodedata.category(char) in {"Cc", "Cf"} for line in lines for char in line)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_every_screen_fits_every_usual_size(size, drive, run_dir, runs_dir, wait, text_of) -> None:  # noqa: PLR0917
    async def script(app, pilot):
        for digit, place in PLACES:
            await pilot.press(digit)
            await wait(app, pilot, lambda place=place: app.screen.place == place)
            await pilot.pause(0.15)
            lines = text_of(app)
            assert len(lines) == size[1]
            assert "help" in lines[-1], place
            assert "quit" in lines[-1], place
            name = "runs" if place == "runs" else "beta"
            assert name in lines[0], place

    drive(script, run_dir, runs_dir, size)


def test_a_terminal_resized_to_one_cell_and_back_shows_the_same(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        for digit, place in PLACES:
            await pilot.press(digit)
            await wait(app, pilot, lambda place=place: app.screen.place == place)
            await pilot.pause(0.15)
            before = text_of(app)
            for size in ((1, 1), (3, 2), (20, 1), (1, 20), (40, 8), (100, 30)):
                await pilot.resize_terminal(*size)
                await pilot.pause(0.06)
            await pilot.resize_terminal(120, 40)
            await pilot.pause(0.2)
            assert text_of(app) == before, place

    drive(script, run_dir, runs_dir)


def make_hostile(run_dir: Path) -> None:
    record = json.loads((run_dir / "run.json").read_text())
    record["name"] = EVIL + "x" * 10_000
    record["notes"] = EVIL
    record["tags"] = [EVIL]
    for session in record["sessions"]:
        session |= {"host": EVIL, "argv": ["train.py", EVIL], "reason": EVIL}
        session["recipe"]["value"] = {EVIL: EVIL}
        session["source"] |= {"branch": EVIL, "remote": EVIL}
    (run_dir / "run.json").write_text(json.dumps(record))
    lines = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "step":
            event["metrics"] = {
                EVIL if name == "grad_norm" else name: value for name, value in event["metrics"].items()
            }
            if "nonfinite" in event:
                event["nonfinite"] = {EVIL if n == "grad_norm" else n: v for n, v in event["nonfinite"].items()}
        if event["kind"] == "alert":
            event["message"] = EVIL
        if event["kind"] == "session_end":
            event["reason"] = EVIL
        lines.append(json.dumps(event))
    last = json.loads(lines[-1])
    lines.append(
        json.dumps(
            {"kind": "note", "ts": last["ts"], "run": last["run"], "session": last["session"], "step": 9, "text": EVIL}
        )
    )
    lines.append(
        json.dumps({"kind": EVIL, "ts": last["ts"], "run": last["run"], "session": last["session"], EVIL: EVIL})
    )
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_hostile_names_and_notes_reach_no_screen_raw(drive, run_dir, runs_dir, wait, text_of) -> None:
    make_hostile(run_dir)

    async def script(app, pilot):
        for digit, place in PLACES:
            await pilot.press(digit)
            await wait(app, pilot, lambda place=place: app.screen.place == place)
            await pilot.pause(0.2)
            if place == "run":
                await pilot.press("n", "n", "n")
                await pilot.pause(0.1)
            lines = text_of(app)
            assert is_clean(lines), place
            assert all(len(line) <= 160 for line in lines)
        text = "\n".join(text_of(app))
        await pilot.press("2", "m")
        await pilot.pause(0.1)
        text += "\n".join(text_of(app))
        assert is_clean(text.splitlines())
        assert "\\x1b[31mred" in text
        await pilot.press("escape", "3")
        await pilot.pause(0.2)
        assert "[bold]markup[/]" in "\n".join(text_of(app))

    drive(script, run_dir, runs_dir, (160, 50))


def test_a_damaged_log_is_drawn_and_its_damage_told_with_the_place(drive, run_dir, runs_dir, wait, text_of) -> None:
    log = run_dir / "metrics.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[20] = b'{"kind": "step", "ts": 1, broken'
    log.write_bytes(b"\n".join(lines))
    shutil.rmtree(run_dir / ".cache", ignore_errors=True)

    async def script(app, pilot):
        await pilot.pause(0.2)
        assert "1 damaged" in text_of(app)[0]
        await pilot.press("exclamation_mark")
        await pilot.pause(0.1)
        text = "\n".join(text_of(app))
        assert "1 problem" in text
        assert f"byte {sum(len(line) + 1 for line in lines[:20]):,}" in text
        assert "lineage repair" in text

    drive(script, run_dir, runs_dir)


def test_a_torn_last_line_of_a_finished_log_is_told_and_is_not_waited_for(
    drive, run_dir, runs_dir, wait, text_of
) -> None:
    log = run_dir / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-37])
    begin = whole.rstrip(b"\n").rfind(b"\n") + 1

    async def script(app, pilot):
        await wait(app, pilot, lambda: "torn tail" in text_of(app)[0])
        assert "reading" not in text_of(app)[0]
        assert "damaged" not in text_of(app)[0]
        await pilot.press("exclamation_mark")
        await wait(app, pilot, lambda: "1 problem" in "\n".join(text_of(app)))
        text = " ".join("\n".join(text_of(app)).split())
        assert f"{len(whole) - 37 - begin:,} bytes" in text
        assert f"byte {begin:,}" in text

    drive(script, run_dir, runs_dir, (80, 24))


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_log_that_is_gone_under_a_finished_run_is_told(what, drive, run_dir, runs_dir, wait, text_of) -> None:  # noqa: PLR0917
    log = run_dir / "metrics.jsonl"
    shutil.rmtree(run_dir / ".cache", ignore_errors=True)
    log.unlink() if what == "missing" else log.write_bytes(b"")

    async def script(app, pilot):
        await wait(app, pilot, lambda: "1 damaged" in text_of(app)[0])
        await pilot.press("exclamation_mark")
        await wait(app, pilot, lambda: "1 problem" in "\n".join(text_of(app)))
        text = "\n".join(text_of(app))
        assert f"metrics.jsonl is {what}" in text
        assert str(400) in text
        assert "byte" not in text

    drive(script, run_dir, runs_dir)


def test_the_problems_of_an_open_run_are_its_own_and_those_of_the_list_are_all(
    drive, run_dir, runs_dir, wait, text_of
) -> None:
    (next(runs_dir.glob("*-alpha")) / "run.json").write_text("{")

    async def script(app, pilot):
        await wait(app, pilot, lambda: bool(app.folder and app.folder.problems))
        await pilot.press("exclamation_mark")
        await wait(app, pilot, lambda: "0 problems" in "\n".join(text_of(app)))
        await pilot.press("escape", "1")
        await wait(app, pilot, lambda: app.screen.place == "runs")
        await pilot.press("exclamation_mark")
        await wait(app, pilot, lambda: "1 problem" in "\n".join(text_of(app)))

    drive(script, run_dir, runs_dir)


def test_a_run_without_its_record_is_drawn_from_its_log(drive, run_dir, runs_dir, wait, text_of) -> None:
    (run_dir / "run.json").unlink()

    async def script(app, pilot):
        await pilot.pause(0.2)
        lines = text_of(app)
        assert "3 sessions" in lines[0]
        assert "damaged" in lines[0]
        assert any("loss" in line for line in lines)
        await pilot.press("exclamation_mark")
        await pilot.pause(0.1)
        assert "run.json" in "\n".join(text_of(app))

    drive(script, run_dir, runs_dir)


def test_a_folder_that_is_no_run_gives_a_panel_not_a_traceback(drive, runs_dir, tmp_path, wait, text_of) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    async def script(app, pilot):
        await pilot.press("2")
        app.open_runs([empty])
        await wait(app, pilot, lambda: str(empty) in app.problems)
        await pilot.pause(0.1)
        text = "\n".join(text_of(app))
        assert "neither run.json nor metrics.jsonl" in " ".join(text.split())
        assert str(empty)[:40] in text
        assert "Traceback" not in text
        for digit, _ in PLACES:
            await pilot.press(digit)
            await pilot.pause(0.05)

    drive(script, None, runs_dir)


def test_a_run_of_a_newer_format_has_its_panel_alone_until_it_can_be_read(
    drive, run_dir, runs_dir, wait, text_of
) -> None:
    record = (run_dir / "run.json").read_text()
    newer = json.loads(record)
    newer["format"]["version"] = "9.0"
    (run_dir / "run.json").write_text(json.dumps(newer))

    async def script(app, pilot):
        app.open_runs([run_dir])
        await wait(app, pilot, lambda: "is newer than" in "\n".join(text_of(app)))
        text = "\n".join(text_of(app))
        for word in ("reading the log", "puts a cursor", "events"):
            assert word not in text
        (run_dir / "run.json").write_text(record)
        await wait(app, pilot, lambda: "s2 exact" in "\n".join(text_of(app)))
        await wait(app, pilot, lambda: "[loss]" in "\n".join(text_of(app)))

    drive(script, None, runs_dir, (80, 24))


def test_a_run_deleted_while_open_keeps_its_curves_and_says_so(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        shutil.rmtree(run_dir)
        await wait(app, pilot, lambda: bool(app.problems))
        await pilot.pause(0.1)
        lines = text_of(app)
        assert "gone" in lines[0]
        assert any("killed" in line for line in lines)
        for digit, _ in PLACES:
            await pilot.press(digit)
            await pilot.pause(0.1)

    drive(script, run_dir, runs_dir)


def test_a_broken_run_among_others_is_listed_and_its_problem_told(drive, runs_dir, run_dir, wait, text_of) -> None:
    (run_dir / "run.json").write_text("{")

    async def script(app, pilot):
        await pilot.pause(0.1)
        text = "\n".join(text_of(app))
        assert "unreadable" in text
        assert "1 problem" in text
        assert sum("completed" in line for line in text_of(app)[2:8]) == 2

    drive(script, None, runs_dir)


@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_enter_on_a_run_without_a_readable_record_shows_what_its_log_tells(  # noqa: PLR0917
    what, drive, runs_dir, run_dir, wait, text_of
) -> None:
    (run_dir / "run.json").unlink() if what == "missing" else (run_dir / "run.json").write_text("{")

    async def script(app, pilot):
        await wait(app, pilot, lambda: len(app.folder.runs) == 3)
        assert "1 problem" in text_of(app)[0]
        await pilot.press("G", "enter")
        await wait(app, pilot, lambda: app.snapshot is not None)
        await wait(app, pilot, lambda: "1 damaged" in text_of(app)[0])
        assert app.main_key == str(run_dir)
        assert app.snapshot.metrics[0] == "loss"

    drive(script, None, runs_dir)


def test_new_runs_of_a_folder_appear(drive, runs_dir, wait) -> None:
    from benchmarks.synthetic import write_run

    async def script(app, pilot):
        assert len(app.screen.table.rows) == 3
        write_run(runs_dir, steps=200, sessions=2, seed=5, name="delta")
        await wait(app, pilot, lambda: len(app.screen.table.rows) == 4)

    drive(script, None, runs_dir)


def test_ten_thousand_rows_are_there_in_tens_of_milliseconds(drive, runs_dir, wait) -> None:
    import time

    from lineage_tui.command import quiet_collector
    from lineage_tui.folder import RunSummary
    from lineage_tui.messages import Folder

    rows = tuple(
        RunSummary(f"/r/{i}", f"2026-{i}", f"run {i}", "completed", 1, i, i / 7, 0.0, 1.0, spark=(1.0, 2.0))
        for i in range(10_000)
    )

    async def script(app, pilot):
        screen = app.screen
        app.folder = Folder(runs_dir, rows)
        quiet_collector()  # of what the tests before left, too
        began = time.process_time()
        screen.folder_changed()
        await pilot.pause()
        took = time.process_time() - began
        assert len(screen.table.rows) == 10_000
        assert took < 0.5  # DataTable takes seconds; tens of ms when nobody else uses the machine
        began = time.process_time()
        for _ in range(20):
            screen.table.move_page(1)
            await pilot.pause()
        assert time.process_time() - began < 1.5

    drive(script, None, runs_dir)


def test_ascii_shows_nothing_else(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        for digit, place in PLACES:
            await pilot.press(digit)
            await wait(app, pilot, lambda place=place: app.screen.place == place)
            await pilot.pause(0.2)
            for line in text_of(app):
                assert line.isascii(), (place, line)
        await pilot.press("question_mark")
        await pilot.pause(0.1)
        assert all(line.isascii() for line in text_of(app))

    drive(script, run_dir, runs_dir, (120, 40), glyphs="ascii")


def test_several_runs_lie_over_each_other_in_hues_of_their_own(drive, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        await pilot.press("space", "space", "enter")
        await wait(app, pilot, lambda: len(app.snapshots) == 2)
        await pilot.pause(0.2)
        model = app.screen.model
        assert len({series.hue for series in model.series}) == 2
        head = next(line for line in text_of(app) if line.startswith("loss"))
        assert [run for run in ("alpha", "beta", "gamma") if run in head] == ["beta", "gamma"]
        assert "1 overlaid" in text_of(app)[0]

    drive(script, None, runs_dir, (160, 45))


def test_what_was_chosen_comes_back_the_next_time(drive, run_dir, runs_dir, wait) -> None:
    async def first(app, pilot):
        await pilot.press("y", "x", "u", "right_square_bracket")
        await pilot.pause(0.8)

    async def second(app, pilot):
        screen = app.screen
        await wait(app, pilot, lambda: bool(screen._models))
        assert screen.x == "train"
        assert screen.looking.log_y == {"loss"}
        assert not screen.looking.superseded
        assert screen.looking.smoothing == 0.95

    drive(first, run_dir, runs_dir)
    assert not list(run_dir.glob("**/tui.json"))
    drive(second, run_dir, runs_dir)


def test_both_attempts_of_lost_steps_are_compared(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        await pilot.press("a")
        await pilot.pause(0.2)
        text = "\n".join(text_of(app))
        assert "both attempts" in text
        assert "later minus earlier" in text
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert "both attempts" not in "\n".join(text_of(app))

    drive(script, run_dir, runs_dir)


def test_the_crash_of_a_screen_is_logged_and_told_in_one_sentence(run_dir, runs_dir, tmp_path) -> None:
    import asyncio

    from lineage_tui.app import LineageApp, Options

    app = LineageApp(run_dir, runs_dir, Options(state_dir=tmp_path / "state"))

    async def main() -> None:
        async with app.run_test() as pilot:
            await pilot.pause(0.2)
            app.screen.action_zoom = lambda by: 1 / 0
            await pilot.press("plus")
            await pilot.pause(0.2)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert app.crash_text.startswith("lineage tui stopped on an internal error (ZeroDivisionError)")
    log = (tmp_path / "state" / "tui.log").read_text()
    assert "ZeroDivisionError" in log
    assert "action_zoom" in log


def test_a_diff_asked_for_on_a_boundary_is_of_the_session_that_begins_there(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        await pilot.press("right_curly_bracket")
        await pilot.pause(0.1)
        await pilot.press("d")
        await wait(app, pilot, lambda: app.screen.place == "diff" and app.screen._found is not None)
        assert app.screen._sides.labels == ("s1", "s2")

    drive(script, run_dir, runs_dir)


def test_the_careless_restart_of_the_samples_is_found_in_two_keys(drive, tmp_path, wait, text_of) -> None:
    """The first thing a newcomer should find: why the loss of that run jumped, with nobody telling where to look."""
    samples = Path(__file__).resolve().parents[2] / "sample_runs"
    folder = tmp_path / "samples"
    shutil.copytree(samples, folder, ignore=shutil.ignore_patterns(".cache"))

    async def script(app, pilot):
        await pilot.press("enter", "8")
        await wait(app, pilot, lambda: app.screen.place == "explain" and app.screen._changes is not None)
        await pilot.pause(0.1)
        text = " ".join(" ".join(text_of(app)).split())
        assert "session 2 did not carry on the same experiment" in text
        assert "no checkpoint was restored" in text
        await pilot.press("2")
        await wait(app, pilot, lambda: "s2 diverged @251" in " ".join(text_of(app)))
        await pilot.press("0", "right_curly_bracket")
        # Of all that happened at step 250, what the jump was to comes first.
        await wait(app, pilot, lambda: "session began  session 2: nothing restored @250" in " ".join(text_of(app)[-3:]))

    drive(script, None, folder, (80, 24))


def test_pages_over_a_screen_survive_one_cell(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        for key in ("question_mark", "m", "exclamation_mark", "colon"):
            await pilot.press(key)
            await pilot.pause(0.1)
            before = text_of(app)
            for size in ((1, 1), (5, 3), (120, 40)):
                await pilot.resize_terminal(*size)
                await pilot.pause(0.08)
            await pilot.pause(0.1)
            if key != "colon":
                assert text_of(app) == before, key
            await pilot.press("escape")
            await pilot.pause(0.1)
        assert app.screen.place == "run"

    drive(script, run_dir, runs_dir)


def test_the_wheel_zooms_every_chart_at_the_pointer(drive, run_dir, runs_dir, wait) -> None:
    from textual.events import MouseScrollUp

    async def script(app, pilot):
        chart = app.screen.charts[1]
        frame = chart.frame
        column = frame.plot.x + frame.plot.width // 4
        at = frame.x_at(column)
        chart.post_message(MouseScrollUp(chart, column, 5, 0, -1, 0, shift=False, meta=False, ctrl=False))
        await wait(app, pilot, lambda: app.screen.looking.x0 is not None)
        looking = app.screen.looking
        assert looking.x0 <= at <= looking.x1
        assert app.screen.pane == 1
        await pilot.pause(0.1)
        assert {one.view.x0 for one in app.screen.charts[:2]} == {looking.x0}

    drive(script, run_dir, runs_dir)
