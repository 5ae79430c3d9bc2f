"""Filters and orders of lists: what is asked for is seen, how much is left is counted, the cursor stays on its row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def many_runs(run_dir: Path, tmp_path: Path) -> Path:
    """Forty runs; every fourth is a baseline, and the later a run the fewer steps it has."""
    folder = tmp_path / "many"
    record = json.loads((run_dir / "run.json").read_text())
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(40):
        name = "baseline" if number % 4 == 0 else "ablation"
        path = folder / f"20251129-1340{number:02d}-{name}"
        path.mkdir(parents=True)
        record["id"], record["name"] = path.name, f"{name}-{number}"
        (path / "run.json").write_text(json.dumps(record))
        (path / "metrics.jsonl").write_bytes(b"".join(lines[: len(lines) - number]))
    shutil.rmtree(run_dir.parent)
    return folder


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_list_of_runs_says_what_is_typed_and_how_many_are_left(drive, many_runs, wait, text_of, size) -> None:
    async def script(app, pilot):
        assert " of 40 runs" not in text_of(app)[-2]
        await pilot.press("slash")
        await wait(app, pilot, lambda: text_of(app)[-2].startswith(" / words in name"))
        assert "enter keeps the filter, esc clears it" in text_of(app)[-1]  # the other keys are words now
        await pilot.press(*"baseline-1")
        await wait(app, pilot, lambda: text_of(app)[-2].split() == ["/", "baseline-1", "2", "of", "40", "runs"])
        assert [run.name for run in app.screen._shown] == ["baseline-12", "baseline-16"]
        assert "2 of 40 runs" in text_of(app)[0]
        await pilot.press("enter")
        await wait(app, pilot, lambda: app.focused is None)
        assert "2 of 40 runs" in text_of(app)[-2]  # it goes on holding, and is seen to
        assert "quit" in text_of(app)[-1]
        await pilot.press("escape")
        await wait(app, pilot, lambda: len(app.screen._shown) == 40)
        assert not any(" of 40 runs" in line for line in text_of(app))

    drive(script, None, many_runs, size)


def test_runs_are_found_by_how_they_continued(drive, many_runs, wait) -> None:
    async def script(app, pilot):
        await pilot.press("slash", *"unproven")
        await pilot.pause(0.1)
        assert len(app.screen._shown) == 40
        await pilot.press(*"x")
        await wait(app, pilot, lambda: not app.screen._shown)

    drive(script, None, many_runs)


def test_another_order_or_filter_leaves_the_cursor_on_its_run(drive, many_runs, wait) -> None:
    async def script(app, pilot):
        screen = app.screen
        await pilot.press(*["down"] * 7)
        key = screen.table.row.key
        name = next(run.name for run in screen._shown if run.key == key)
        places = {screen.table.cursor}
        for pressed in ("s", "S", "s", "s", "S", "s"):
            await pilot.press(pressed)
            await pilot.pause()
            assert screen.table.row.key == key
            assert screen._shown[screen.table.cursor].name == name
            places.add(screen.table.cursor)
        assert len(places) > 2  # the rows did change their order
        await pilot.press("slash", *name)
        await wait(app, pilot, lambda: len(screen._shown) < 40)
        assert screen.table.row.key == key
        await pilot.press("escape")
        await wait(app, pilot, lambda: len(screen._shown) == 40)
        assert screen.table.row.key == key

    drive(script, None, many_runs)


@pytest.mark.parametrize(
    ("key", "words", "count"),
    [
        ("3", "preempted", "1 of 3 sessions"),
        ("5", "s03", "2 of 4 checkpoints"),
        ("6", "session", "3 of 8 lines"),
        ("7", "skipped", "4 of 40 events"),
        ("8", "nan", "0 of 1 changes"),
    ],
)
def test_every_list_says_how_many_rows_a_filter_leaves(drive, run_dir, runs_dir, *, wait, text_of, key, words, count):
    async def script(app, pilot):
        await pilot.press(key)
        await wait(app, pilot, lambda: len(app.screen.table.rows) > 0)
        await pilot.press("slash", *words)
        await wait(app, pilot, lambda: text_of(app)[-2].split() == ["/", words, *count.split()])

    drive(script, run_dir, runs_dir, (80, 24))


def test_a_filter_that_no_session_fits_says_so_and_tells_of_none(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        await pilot.press("3")
        await wait(app, pilot, lambda: len(app.screen.table.rows) == 3)
        await pilot.press("slash", *"nothing-like-it")
        await wait(app, pilot, lambda: any("no session fits the filter" in line for line in text_of(app)))
        assert not any("pid" in line for line in text_of(app))
        await pilot.press("escape")
        await wait(app, pilot, lambda: any("pid" in line for line in text_of(app)))

    drive(script, run_dir, runs_dir)


def test_finding_the_row_of_the_cursor_makes_no_other_row() -> None:
    from lineage_tui.widgets.table import LazyRows, Row

    made: list[str] = []

    def make(item: str) -> Row:
        made.append(item)
        return Row(item, ())

    rows = LazyRows([str(number) for number in range(10_000)], make, lambda item: item)
    assert rows.place_of("9000") == 9000
    assert rows.place_of("none") is None
    assert not made


def test_the_order_is_told_also_where_its_column_has_no_room(drive, many_runs, wait, text_of) -> None:
    async def script(app, pilot):
        await pilot.press("S")
        await wait(app, pilot, lambda: "sorted by last event, oldest first" in text_of(app)[-1])
        await pilot.press("s")
        await wait(app, pilot, lambda: "sorted by name, a first" in text_of(app)[-1])

    drive(script, None, many_runs, (80, 24))


def test_runs_that_go_on_come_first_by_state_and_completed_ones_last() -> None:
    from lineage.runs.state import STATES
    from lineage_tui.screens.runs import _BY_STATE

    assert set(_BY_STATE) == set(STATES)
    assert (_BY_STATE[0], _BY_STATE[-1]) == ("running", "completed")


def test_at_80_columns_the_run_under_the_cursor_says_how_often_it_was_resumed(drive, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        lines = text_of(app)
        assert "ses" not in lines[1].split()
        at = next(y for y, line in enumerate(lines) if line.startswith("───"))
        assert lines[at + 1].split()[:3] == ["gamma", "3", "sessions"]
        assert lines[at + 2].split()[:3] == ["s1", "✕", "killed"]
        assert "s2 ◐ preempted @100 = exact   s3 ✓ completed @300 ? unproven" in lines[at + 2]
        await pilot.press("down")
        await wait(app, pilot, lambda: text_of(app)[at + 1].split()[0] == "beta")

    drive(script, None, runs_dir, (80, 24))


def test_of_many_sessions_the_newest_are_told_in_the_room_there_is() -> None:
    from datetime import UTC, datetime, timedelta

    from lineage_schemas.run import Recipe, Session, Source, Start
    from lineage_tui.folder import RunSummary
    from lineage_tui.screens.runs import run_brief

    began = datetime(2025, 11, 29, tzinfo=UTC)
    sessions = tuple(
        Session(
            id=f"s{number:02d}-0badcafe",
            ordinal=number,
            started_at=began + timedelta(hours=number),
            pid=1,
            host="node",
            status="killed",
            recipe=Recipe(value={}, fingerprint="0" * 64),
            source=Source(),
            environment="0" * 16,
            start=Start(kind="fresh" if number == 1 else "resume", step=100 * (number - 1)),
        )
        for number in range(1, 31)
    )
    run = RunSummary("key", "id", "long", "killed", 30, 3_000, 2.0, 0.0, 0.0, sessions=sessions)
    for width in (20, 40, 80, 120):
        first, second = run_brief(run, "braille", width).plain.split("\n")
        assert "30 sessions" in first
        assert max(len(first), len(second)) <= width
        assert second.startswith("… ")
        assert "s30 ✕ kill" in second


def test_a_filter_that_takes_the_cursors_row_away_begins_at_the_first_row_left(drive, many_runs, wait) -> None:
    async def script(app, pilot):
        screen = app.screen
        await pilot.press("s", "G")
        assert "baseline" in screen._shown[screen.table.cursor].name
        await pilot.press("slash", *"ablation")
        await wait(app, pilot, lambda: len(screen._shown) == 30)
        assert screen.table.cursor == 0

    drive(script, None, many_runs)


def test_losses_stand_with_their_points_under_each_other() -> None:
    from lineage_tui.screens.runs import _loss

    assert [_loss(value) for value in (2.1, 2.11114, 2.0, 0.5)] == ["2.1000", "2.1111", "2.0000", "0.50000"]
    assert [_loss(value) for value in (float("nan"), 0.0, 1e-7, 123456.0)] == ["nan", "0", "1e-7", "123,456"]
