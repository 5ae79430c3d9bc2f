"""Which sessions the diff compares first, and what it says when nothing differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pair(app: object) -> tuple[int, int]:
    """Ordinals of the sessions compared."""
    sides = app.screen._sides
    return sides.before[1].ordinal, sides.after[1].ordinal


def change_record(run_dir: Path, change) -> None:
    record = json.loads((run_dir / "run.json").read_text())
    change(record)
    (run_dir / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("pressed", "expected"),
    [
        ((), (2, 3)),
        (("right_curly_bracket",), (1, 2)),  # the cursor of the curves on the second session's boundary
        (("3", "home", "down"), (1, 2)),
        (("3", "home"), (1, 2)),  # the first came from nowhere: what came from it
        (("5", "end", "up"), (1, 2)),
        (("6", "down", "down", "down"), (1, 2)),
        (("7", "home"), (1, 2)),
    ],
)
def test_the_diff_is_of_the_session_that_one_was_looking_at(drive, run_dir, runs_dir, *, wait, pressed, expected):
    async def script(app, pilot):
        for key in pressed:
            await pilot.press(key)
            await wait(app, pilot, lambda: app.screen.place == "run" or len(app.screen.table.rows) > 0)
        await pilot.press("4")
        await wait(app, pilot, lambda: app.screen.place == "diff" and app.screen._found is not None)
        assert pair(app) == expected

    drive(script, run_dir, runs_dir)


def test_without_a_cursor_it_is_of_the_session_that_became_another_experiment(drive, run_dir, runs_dir, wait):
    def restart(record) -> None:
        record["sessions"][1] |= {"start": {"kind": "fresh", "step": 100}, "continuation": None}

    change_record(run_dir, restart)

    async def script(app, pilot):
        await wait(app, pilot, lambda: bool(app.snapshot and app.snapshot.resumes))
        await pilot.press("4")
        await wait(app, pilot, lambda: app.screen.place == "diff" and app.screen._found is not None)
        assert pair(app) == (1, 2)

    drive(script, run_dir, runs_dir)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_no_difference_says_what_was_compared_and_how_much_of_it(drive, run_dir, runs_dir, *, wait, text_of, size):
    def same_host(record) -> None:
        for session in record["sessions"]:
            session["host"] = "node"

    change_record(run_dir, same_host)

    async def script(app, pilot):
        await pilot.press("4")
        await wait(app, pilot, lambda: app.screen._found is not None)
        await pilot.pause(0.1)
        found = app.screen._found
        text = " ".join(line.strip() for line in text_of(app))
        assert "s2 -> s3   session 3 (resume @200) against session 2, which it came from" in text
        assert f"no difference: {found.num_equal} values compared, all equal" in text
        recipe = app.snapshot.record.sessions[2].recipe.value
        assert found.equal["recipe"] == sum(len(value) if isinstance(value, dict) else 1 for value in recipe.values())
        told = f"recipe {found.equal['recipe']}, environment {found.equal['environment']}, "
        assert told in text
        assert sum(found.equal.values()) == found.num_equal > 10

    drive(script, run_dir, runs_dir, size)


def test_a_section_that_nothing_is_recorded_of_is_not_called_equal(drive, run_dir, runs_dir, wait, text_of):
    def forget(record) -> None:
        for session in record["sessions"]:
            session["data"] = {}
            session["host"] = "node"
        record["environments"].clear()

    change_record(run_dir, forget)

    async def script(app, pilot):
        await pilot.press("4")
        await wait(app, pilot, lambda: app.screen._found is not None)
        await pilot.pause(0.1)
        text = " ".join(line.strip() for line in text_of(app))
        assert "not recorded of one session, so not compared: environment" in text
        assert "recorded of neither: data" in text

    drive(script, run_dir, runs_dir, (160, 40))


def test_both_values_of_the_difference_under_the_cursor_stand_below_where_the_columns_cut_them(
    drive, run_dir, runs_dir, wait, text_of
):
    long = "a/path/that/is/longer/than/any/column/of/eighty/cells/could/be.bin"

    def other(record) -> None:
        record["sessions"][2]["recipe"]["value"]["dataset"] = long
        record["sessions"][2]["recipe"]["fingerprint"] = "0" * 64

    change_record(run_dir, other)

    async def script(app, pilot):
        await pilot.press("4")
        await wait(app, pilot, lambda: app.screen._found is not None and any(long in line for line in text_of(app)))
        lines = text_of(app)
        at = next(y for y, line in enumerate(lines) if line.startswith("───"))
        assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["recipe", "s2", "s3"]
        assert "not there" in lines[at + 2]
        assert long in lines[at + 3]

    drive(script, run_dir, runs_dir, (80, 24))


def test_brackets_walk_the_pairs_there_are_and_say_where_they_end(drive, run_dir, runs_dir, wait, text_of):
    async def script(app, pilot):
        await pilot.press("4")
        await wait(app, pilot, lambda: app.screen._found is not None)
        await pilot.press("left_curly_bracket")
        await wait(app, pilot, lambda: pair(app) == (1, 2))
        await pilot.press("left_curly_bracket")
        await wait(app, pilot, lambda: "no earlier session" in text_of(app)[-1])
        assert pair(app) == (1, 2)
        await pilot.press("right_curly_bracket")
        await wait(app, pilot, lambda: pair(app) == (2, 3))
        await pilot.press("b")
        await wait(app, pilot, lambda: pair(app) == (1, 3))
        await pilot.press("3", "home", "4", "b")
        await wait(app, pilot, lambda: pair(app) == (1, 3))  # the earlier one stays on the left

    drive(script, run_dir, runs_dir)


def test_a_fork_is_compared_with_the_session_of_the_run_it_came_from(drive, run_dir, runs_dir, wait, text_of):
    parent = next(runs_dir.glob("*-alpha"))
    source = json.loads((parent / "run.json").read_text())["sessions"][0]

    def fork(record) -> None:
        point = {"run": parent.name, "session": source["id"], "checkpoint": source["checkpoints"][0], "step": 100}
        record["parent"] = point
        record["sessions"][0]["start"] = {"kind": "fork"} | point

    change_record(run_dir, fork)

    async def script(app, pilot):
        await pilot.press("3", "home", "4")
        await wait(app, pilot, lambda: app.screen._sides is not None and app.screen._sides.before[0].id == parent.name)
        await wait(app, pilot, lambda: app.screen._found is not None)
        assert app.screen._sides.before[1].id == source["id"]
        assert any("alpha@1 -> beta@1" in line and "it was forked from" in line for line in text_of(app))

    drive(script, run_dir, runs_dir)


def test_the_title_leaves_out_how_sessions_started_before_it_cuts_what_they_are_to_each_other(
    drive, run_dir, runs_dir, wait, text_of
):
    other = next(runs_dir.glob("*-alpha"))

    async def script(app, pilot):
        app.open_runs([run_dir, other])
        await wait(app, pilot, lambda: len(app.snapshots) == 2)
        await pilot.press("4", "b")
        await wait(app, pilot, lambda: app.screen._sides.before[0].id == other.name)
        await pilot.pause(0.1)
        assert (
            text_of(app)[1].rstrip()
            == " alpha@1 -> beta@3   session 3 (resume @200) against session 1 of alpha (fresh)"
        )
        await pilot.resize_terminal(70, 24)
        await pilot.pause(0.2)
        assert text_of(app)[1].rstrip() == " alpha@1 -> beta@3   session 3 against session 1 of alpha"

    drive(script, run_dir, runs_dir, (80, 24))


def test_a_run_that_was_not_resumed_says_with_what_it_could_be_compared(drive, tmp_path, wait, text_of):
    from benchmarks.synthetic import write_run

    run = write_run(tmp_path / "one", steps=60, sessions=1, name="one")

    async def script(app, pilot):
        await pilot.press("4")
        await wait(app, pilot, lambda: any("this run was not resumed" in line for line in text_of(app)))
        assert text_of(app)[1].rstrip() == " one session"
        await pilot.press("b")
        await wait(app, pilot, lambda: "there is no other session" in text_of(app)[-1])

    drive(script, run, run.parent, (80, 24))
