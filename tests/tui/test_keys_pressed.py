"""Every key of the help, pressed: what it promises happens."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from lineage_tui import keys
from lineage_tui.messages import Wanted
from lineage_tui.screens import FACTORIES

# -- curves ------------------------------------------------------------------------------------------------------------
# key: (keys pressed before, what must be true of (app, screen, what it was before))


def remember(screen: object) -> dict[str, object]:
    chart = screen.chart
    return {
        "looking": screen.looking,
        "pane": screen.pane,
        "alone": screen.alone,
        "x": screen.x,
        "frame": chart.frame if chart is not None else None,
    }


def moved(by: int) -> Callable:
    def check(app, screen, before):
        old, new = before["looking"].cursor, screen.looking.cursor
        assert new is not None
        if old is not None:
            assert (new - old) * by > 0
        return True

    return check


def column_moved(by: int) -> Callable:
    def check(app, screen, before):
        frame = before["frame"]
        return frame.column_of(screen.looking.cursor) - frame.column_of(before["looking"].cursor) == by

    return check


def narrower(app, screen, before):
    looking = screen.looking
    return looking.x0 is not None and 0 < looking.x1 - looking.x0 < 400


def wider(app, screen, before):
    old, new = before["looking"], screen.looking
    return new.x0 is None or new.x1 - new.x0 > old.x1 - old.x0


def panned(by: int) -> Callable:
    def check(app, screen, before):
        old, new = before["looking"], screen.looking
        return (new.x0 - old.x0) * by > 0 and abs((new.x1 - new.x0) - (old.x1 - old.x0)) < 1e-6

    return check


def shows(place: str) -> Callable:
    return lambda app, screen, before: app.screen.place == place


def pane_is(number: int) -> Callable:
    return lambda app, screen, before: screen.pane == number


def other(name: str) -> Callable:
    return lambda app, screen, before: getattr(screen.looking, name) != getattr(before["looking"], name)


RUN: dict[str, tuple[tuple[str, ...], Callable]] = {
    "left": (("n", "n", "n"), column_moved(-1)),
    "right": (("n", "n", "n"), column_moved(1)),
    "comma": (("n", "n"), lambda a, s, b: s.looking.cursor == b["looking"].cursor - 1),
    "full_stop": (("n", "n"), lambda a, s, b: s.looking.cursor == b["looking"].cursor + 1),
    "plus": ((), narrower),
    "equals_sign": ((), narrower),
    "minus": (("plus", "plus"), wider),
    "H": (("plus", "plus"), panned(-1)),
    "L": (("plus", "plus"), panned(1)),
    "shift+left": (("plus", "plus"), panned(-1)),
    "shift+right": (("plus", "plus"), panned(1)),
    "0": (("n", "plus"), lambda a, s, b: s.looking.cursor is None and s.looking.x0 is None),
    "tab": ((), pane_is(1)),
    "shift+tab": ((), pane_is(3)),
    "h": (("tab",), pane_is(0)),
    "l": ((), pane_is(1)),
    "j": ((), pane_is(1)),
    "k": (("tab",), pane_is(0)),
    "down": ((), pane_is(1)),
    "up": (("tab",), pane_is(0)),
    "enter": ((), lambda a, s, b: s.alone and s.shape.panes == 1),
    "n": ((), moved(1)),
    "N": (("n", "n"), moved(-1)),
    "left_curly_bracket": (("right_curly_bracket", "right_curly_bracket"), lambda a, s, b: s.looking.cursor == 100),
    "right_curly_bracket": ((), lambda a, s, b: s.looking.cursor == 100),
    "e": (("n",), shows("explain")),
    "d": (("right_curly_bracket", "full_stop"), shows("diff")),
    "f": ((), lambda a, s, b: s.looking.following),
    "x": ((), lambda a, s, b: s.x == "train"),
    "X": ((), other("log_x")),
    "y": ((), lambda a, s, b: s.looking.log_y == {"loss"}),
    "left_square_bracket": ((), lambda a, s, b: s.looking.smoothing < b["looking"].smoothing),
    "right_square_bracket": ((), lambda a, s, b: s.looking.smoothing > b["looking"].smoothing),
    "c": ((), lambda a, s, b: s.looking.unclipped == {"loss"}),
    "u": ((), lambda a, s, b: not s.looking.superseded),
    "o": ((), lambda a, s, b: s.looking.top == 1),
    "v": (("n",), lambda a, s, b: s.looking.marking and s.looking.range == (s.looking.cursor,) * 2),
    "a": ((), lambda a, s, b: len(s._extra) == 2),
    "m": ((), lambda a, s, b: type(a.screen).__name__ == "MetricPicker"),
}

# -- lists: rows under the cursor ---------------------------------------------------------------------------------------


def row_is(number: int) -> Callable:
    return lambda app, screen, before: screen.table.cursor == number


LIST: dict[str, tuple[tuple[str, ...], Callable]] = {
    "down": (("home",), row_is(1)),
    "j": (("home",), row_is(1)),
    "up": (("home", "down"), row_is(0)),
    "k": (("home", "down"), row_is(0)),
    "pagedown": (("home",), lambda a, s, b: s.table.cursor == min(s.table.size.height - 2, len(s.table.rows) - 1)),
    "pageup": (("end",), lambda a, s, b: s.table.cursor == max(len(s.table.rows) - 1 - (s.table.size.height - 2), 0)),
    "home": (("end",), row_is(0)),
    "g": (("end",), row_is(0)),
    "end": (("home",), lambda a, s, b: s.table.cursor == len(s.table.rows) - 1),
    "G": (("home",), lambda a, s, b: s.table.cursor == len(s.table.rows) - 1),
    "slash": ((), lambda a, s, b: s.filter_line.display and a.focused is s.filter),
}

RUNS: dict[str, tuple[tuple[str, ...], Callable]] = {
    "enter": ((), shows("run")),
    "space": ((), lambda a, s, b: len(s._selected) == 1),
    "s": ((), lambda a, s, b: [run.name for run in s._shown] == ["alpha", "beta", "gamma"]),
    "S": (("s",), lambda a, s, b: [run.name for run in s._shown] == ["gamma", "beta", "alpha"]),
}
SESSIONS: dict[str, tuple[tuple[str, ...], Callable]] = {
    "enter": ((), lambda a, s, b: a.screen.place == "run" and a.screen.looking.cursor == 200),
    "d": ((), shows("diff")),
    "e": ((), shows("explain")),
}
DIFF: dict[str, tuple[tuple[str, ...], Callable]] = {
    "n": (("home",), lambda a, s, b: s.table.cursor == 1 and s._shown[1].grade == "experiment"),
    "N": (("end",), lambda a, s, b: s._shown[s.table.cursor].grade == "experiment"),
    "left_curly_bracket": ((), lambda a, s, b: s._sides.after[1].ordinal == 2),
    "right_curly_bracket": (("left_curly_bracket",), lambda a, s, b: s._sides.after[1].ordinal == 3),
    "b": ((), lambda a, s, b: s._sides.before[1].ordinal == 1),
    "enter": ((), lambda a, s, b: type(a.screen).__name__ == "Page"),
}
CHECKPOINTS: dict[str, tuple[tuple[str, ...], Callable]] = {
    "enter": (("home",), lambda a, s, b: a.screen.place == "run" and a.screen.looking.cursor == 400),
    "v": ((), lambda a, s, b: s.verifying or s.verified is not None),
    "w": ((), lambda a, s, b: type(a.screen).__name__ == "Page"),
    "p": ((), lambda a, s, b: any(one.pinned for one in s._shown)),
}
TREE: dict[str, tuple[tuple[str, ...], Callable]] = {
    "enter": (("down", "down"), lambda a, s, b: a.screen.place == "run" and a.screen.looking.cursor == 100),
}
EVENTS: dict[str, tuple[tuple[str, ...], Callable]] = {
    "enter": ((), lambda a, s, b: a.screen.place == "run" and a.screen.looking.cursor == 400),
    "e": ((), shows("explain")),
    "s": ((), lambda a, s, b: len({event.kind for _, event in s._shown}) == 1),
}
EXPLAIN: dict[str, tuple[tuple[str, ...], Callable]] = {
    "enter": ((), lambda a, s, b: a.screen.place == "run" and a.screen.looking.cursor is not None),
    "d": ((), shows("diff")),
}
CASES = {
    "run": RUN,
    "runs": RUNS | LIST,
    "sessions": SESSIONS | LIST,
    "diff": DIFF | LIST,
    "checkpoints": CHECKPOINTS | LIST,
    "tree": TREE | LIST,
    "events": EVENTS | LIST,
    "explain": EXPLAIN | LIST,
}
SIDE = {"tab", "shift+tab", "h", "l", "left", "right"}
"""Keys of lists that scroll what stands beside them; pressed in a test of their own."""


def keys_of(place: str) -> Iterable[str]:
    return [one.key for entry in keys.entries(place) if entry.scope != "app" for one in entry.bound]


@pytest.mark.parametrize("place", sorted(CASES))
def test_every_key_of_the_help_has_a_case_here(place: str) -> None:
    wanted = set(keys_of(place)) - (SIDE if place != "run" else set())
    assert wanted == set(CASES[place])


def test_keys_on_the_curves_do_what_the_help_says(drive, run_dir: Path, runs_dir: Path, wait) -> None:
    """One app for all: each key begins from the run as it was opened."""
    failed: list[str] = []

    async def script(app, pilot):
        screen = app.screen
        for key, (first, check) in RUN.items():
            if key in {"e", "d"} and {"e": "explain", "d": "diff"}[key] not in FACTORIES:
                continue
            screen.runs_changed()
            screen.snapshot_changed(app.snapshot)
            await pilot.pause(0.06)
            for pressed in first:
                await pilot.press(pressed)
                await pilot.pause(0.06)
            before = remember(screen)
            await pilot.press(key)
            try:
                await wait(app, pilot, lambda check=check, before=before: bool(check(app, screen, before)), 8)
            except AssertionError:
                failed.append(key)
            if key == "x":
                app.want(Wanted(screen.names, "step"))
                await wait(app, pilot, lambda: app.snapshot.wanted.x == "step")
            while app.screen is not screen:
                if hasattr(app.screen, "place"):
                    app.action_show("run")
                else:
                    await pilot.press("escape")
                await pilot.pause()

    drive(script, run_dir, runs_dir)
    assert failed == []


async def ready(app, pilot, place: str, wait) -> object:
    digit = next(key for key, name, _ in keys.SCREENS if name == place)
    await pilot.press(digit)
    await wait(app, pilot, lambda: app.screen.place == place and len(app.screen.table.rows) > 0)
    return app.screen


@pytest.mark.parametrize("place", [name for name in CASES if name != "run" and name in FACTORIES])
def test_keys_in_lists_do_what_the_help_says(place: str, drive, run_dir: Path, runs_dir: Path, wait) -> None:
    """One app for all keys of a screen: each begins from the screen as it was opened."""
    prepare = {"diff": change_recipe, "checkpoints": commit_generations, "explain": add_bad_values}.get(place)
    if prepare is not None:
        prepare(run_dir)

    async def script(app, pilot):
        for key, (first, check) in CASES[place].items():
            screen = await ready(app, pilot, place, wait)
            for pressed in first:
                await pilot.press(pressed)
            await pilot.pause(0.05)
            await pilot.press(key)
            try:
                await wait(app, pilot, lambda check=check, screen=screen: bool(check(app, screen, None)), 8)
            except AssertionError:
                pytest.fail(f"{place}: {key} did not do it")
            # Back to the screen as it was opened: another screen first, then the state of this one.
            while type(app.screen).__name__ in {"Page", "MetricPicker"}:
                await pilot.press("escape")
            if app.screen is screen:
                while screen.step_back():
                    await pilot.pause()
            screen.runs_changed()
            if place in {"runs", "sessions"}:
                screen._sort, screen._turned = 0, False
                screen.table.move_edge(1)
            app.action_show("run")
            await pilot.pause()

    drive(script, run_dir, runs_dir)


def commit_generations(run_dir: Path) -> None:
    """Put a committed generation without tensors into the folder for each that run.json names."""
    import hashlib
    import json
    from datetime import UTC, datetime

    from lineage_schemas import checkpoint as schema

    document = json.loads((run_dir / "run.json").read_text())
    for session in document["sessions"]:
        for name in session["checkpoints"]:
            manifest = schema.Manifest(
                kind="training",
                name=name,
                created_at=datetime(2025, 11, 29, tzinfo=UTC),
                run=schema.RunPoint(run=document["id"], session=session["id"]),
                position=schema.Position(step=int(name.split("-")[1]), num_updates=1),
                artifacts=[],
                components=[],
                recipe=schema.RecipePoint(fingerprint="0" * 64),
                writer=schema.Writer(host="node", pid=1),
            )
            folder = run_dir / "checkpoints" / name
            folder.mkdir(parents=True)
            data = json.dumps(manifest.to_wire()).encode()
            (folder / "manifest.json").write_bytes(data)
            (folder / "COMMIT").write_bytes(schema.format_commit(hashlib.sha256(data).hexdigest()))


def add_bad_values(run_dir: Path) -> None:
    """Let the loss be NaN and infinite here and there, so that there is much to explain."""
    import json

    lines = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "step" and event["step"] % 60 == 30:
            event["metrics"]["loss"] = None
            event["nonfinite"] = {"loss": "inf"}
        lines.append(json.dumps(event))
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def change_recipe(run_dir: Path) -> None:
    """Make sessions 2 and 3 differ in what matters, and in what does not."""
    import json

    document = json.loads((run_dir / "run.json").read_text())
    recipe = document["sessions"][2]["recipe"]
    recipe["value"]["lr"] = 0.001
    recipe["value"]["seed"] = 77
    recipe["fingerprint"] = "0" * 64
    (run_dir / "run.json").write_text(json.dumps(document))


APP: dict[str, Callable] = {
    "exclamation_mark": lambda a: type(a.screen).__name__ == "ProblemsPage",
    "t": lambda a: a.theme == "lineage-light",
    "colon": lambda a: type(a.screen).__name__ == "CommandPalette",
    "ctrl+p": lambda a: type(a.screen).__name__ == "CommandPalette",
    "question_mark": lambda a: type(a.screen).__name__ == "HelpPage",
    "escape": lambda a: a.screen.place == "runs",
    "q": lambda a: a._exit,
} | {key: (lambda a, name=name: a.screen.place == name) for key, name, _ in keys.SCREENS}


def test_every_key_that_holds_everywhere_has_a_case() -> None:
    assert {one.key for entry in keys.TABLE if entry.scope == "app" for one in entry.bound} == set(APP)


def test_keys_that_hold_everywhere_do_what_the_help_says(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        for key in sorted(APP, key=lambda key: key == "q"):
            place = next((name for digit, name, _ in keys.SCREENS if digit == key), None)
            if place is not None and place not in FACTORIES:
                continue
            await pilot.press(key)
            await wait(app, pilot, lambda key=key: APP[key](app), 8)
            while not hasattr(app.screen, "place"):
                await pilot.press("escape")
                await pilot.pause(0.02)

    drive(script, run_dir, runs_dir, (80, 24))


def test_a_page_scrolls_with_the_same_keys_as_a_list(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        await pilot.press("question_mark")
        await pilot.pause(0.05)
        box = app.screen.box
        steps = {"down": 1, "j": 2, "up": 1, "k": 0, "end": box.max_scroll_y, "home": 0, "G": box.max_scroll_y, "g": 0}
        assert box.max_scroll_y > 10
        for key, at in steps.items():
            await pilot.press(key)
            await pilot.pause(0.02)
            assert box.scroll_offset.y == at, key
        await pilot.press("pagedown")
        await pilot.pause(0.02)
        assert box.scroll_offset.y == box.size.height - 1
        await pilot.press("pageup")
        await pilot.pause(0.02)
        assert box.scroll_offset.y == 0
        await pilot.press("escape")
        await pilot.pause(0.02)
        assert app.screen.place == "run"

    drive(script, run_dir, runs_dir, (80, 24))


def test_the_pane_under_the_sessions_scrolls(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        await pilot.press("3")
        await pilot.pause(0.1)
        side = app.screen.side()
        assert side.max_scroll_y > 6
        for key in sorted(SIDE):
            side.scroll_to(y=5, animate=False)
            await pilot.pause(0.02)
            await pilot.press(key)
            await wait(app, pilot, lambda: side.scroll_offset.y != 5, 2)

    drive(script, run_dir, runs_dir, (80, 24))


def test_the_picker_chooses_by_fuzzy_search(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        await pilot.press("m")
        await pilot.pause(0.05)
        await pilot.press(*"gn")
        await pilot.pause(0.05)
        assert app.screen._table.rows[0].key == "grad_norm"
        await pilot.press("backspace", "backspace")
        await pilot.press("space")  # loss, chosen before, goes
        await pilot.press("enter")
        await wait(
            app, pilot, lambda: app.screen.place == "run" and app.screen.names == ("lr", "grad_norm", "tokens_per_s")
        )
        await wait(app, pilot, lambda: set(app.screen._models) == set(app.screen.names))

    drive(script, run_dir, runs_dir)


def test_a_metric_left_out_and_chosen_again_is_back_in_its_place(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        names = app.screen.names
        assert len(names) > 1
        await pilot.press("m")
        await pilot.pause(0.05)
        await pilot.press(*names[0], "space")
        assert app.screen.chosen == names[1:]
        await pilot.press("space")
        assert app.screen.chosen == names

    drive(script, run_dir, runs_dir)


def test_a_key_that_can_do_nothing_is_answered_beside_the_values_and_covers_none(
    drive, run_dir, runs_dir, wait, text_of
) -> None:
    async def script(app, pilot):
        await pilot.press(*["right_curly_bracket"] * 3)
        await wait(app, pilot, lambda: any("that was the last session" in line for line in text_of(app)))
        line = next(line for line in text_of(app) if "that was the last session" in line)
        assert line.startswith(" step ")
        assert " loss " in line
        assert not app._notifications
        await pilot.press(*["left_curly_bracket"] * 2)
        await pilot.pause(0.1)
        assert app.screen.cursor_step() == 1  # the first session has no line, and is found going back
        await pilot.press("left_curly_bracket")
        await wait(app, pilot, lambda: any("that was the first session" in line for line in text_of(app)))

    drive(script, run_dir, runs_dir, (80, 24))


def test_answers_cover_nothing_but_the_keys_and_go_by_themselves(drive, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        before = text_of(app)
        await pilot.press("3")
        await wait(app, pilot, lambda: "open a run first: enter on one of the list" in text_of(app)[-1])
        assert text_of(app)[:-1] == before[:-1]
        assert not app._notifications
        await wait(app, pilot, lambda: text_of(app) == before, 6)

    drive(script, None, runs_dir, (80, 24))


@pytest.mark.parametrize(
    ("pressed", "answer"),
    [
        (("8", "slash", "x", "x", "enter", "enter"), "there is no change to go to"),
        (("8", "slash", "x", "x", "enter", "d"), "there is no change"),
        (("4", "n"), "no further difference that matters"),
        (("4", "slash", "x", "x", "enter", "enter"), "there is no difference to show"),
        (("4", "left_curly_bracket", "left_curly_bracket"), "no earlier session"),
        (("7", "slash", "x", "x", "enter", "enter"), "there is no event"),
        (("7", "slash", "x", "x", "enter", "e"), "there is no event"),
        (("7", "s"), "only session began: 3 of 40 events (esc: all)"),
    ],
)
def test_a_key_of_a_list_that_can_do_nothing_says_so(
    drive, run_dir, runs_dir, *, wait, text_of, pressed, answer
) -> None:
    async def script(app, pilot):
        await pilot.press(pressed[0])
        await wait(app, pilot, lambda: app.screen.place != "run" and len(app.screen.table.rows) > 0)
        await pilot.press(*pressed[1:])
        await wait(app, pilot, lambda: answer in text_of(app)[-1])

    drive(script, run_dir, runs_dir, (80, 24))


def test_a_range_says_of_which_metric_it_is(drive, run_dir, runs_dir, wait, text_of) -> None:
    async def script(app, pilot):
        await pilot.press("tab", "v", "right", "right", "v")
        name = app.screen.focused_name
        assert name != app.screen.names[0]
        await wait(app, pilot, lambda: any(line.startswith(f" {name}  range ") for line in text_of(app)))

    drive(script, run_dir, runs_dir, (80, 24))


def test_a_run_that_went_on_without_a_checkpoint_is_marked_in_the_list(drive, runs_dir, wait, text_of) -> None:
    for path in runs_dir.glob("*-gamma"):
        record = json.loads((path / "run.json").read_bytes())
        record["sessions"][-1] |= {"start": {"kind": "fresh", "step": 250}, "continuation": None}
        (path / "run.json").write_text(json.dumps(record))

    async def script(app, pilot):
        await wait(app, pilot, lambda: any("not restored" in line for line in text_of(app)))
        lines = [line for line in text_of(app) if "≠ not restored" in line]
        assert len(lines) == 1
        assert "gamma" in lines[0]
        while app.screen._sort == 0 or app.screen.table._sorted[0] != 5:
            await pilot.press("s")
        assert "gamma" in app.screen._shown[0].name  # the least trusted first

    drive(script, None, runs_dir, (80, 24))


def test_the_palette_runs_an_action_of_the_table(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        await pilot.press("colon")
        await pilot.pause(0.2)
        await pilot.press(*"log y")
        await pilot.pause(0.6)
        await pilot.press("enter")
        await wait(
            app, pilot, lambda: getattr(app.screen, "place", "") == "run" and app.screen.looking.log_y == {"loss"}
        )

    drive(script, run_dir, runs_dir)


def test_the_palette_finds_the_actions_of_other_screens_and_goes_there(drive, run_dir, runs_dir, wait) -> None:
    async def script(app, pilot):
        await pilot.press("8")
        await wait(app, pilot, lambda: getattr(app.screen, "place", "") == "explain")
        await pilot.press("colon")
        await pilot.pause(0.2)
        await pilot.press(*"curves: log y")
        await pilot.pause(0.6)
        await pilot.press("enter")
        await wait(
            app, pilot, lambda: getattr(app.screen, "place", "") == "run" and app.screen.looking.log_y == {"loss"}
        )

    drive(script, run_dir, runs_dir)


def test_the_palette_offers_every_action_once_with_its_own_key() -> None:
    from lineage_tui import keys

    for screen in keys.SCOPES:
        found = [(place, bound.action) for place, bound, _ in keys.offered(screen)]
        assert len(found) == len(set(found))
        scopes = {entry.scope for _, _, entry in keys.offered(screen)}
        assert scopes >= {"curves", "app", "runs", "sessions", "checkpoints", "tree", "events"}
    shown = {bound.command: keys.key_sign(bound.key) for _, bound, _ in keys.offered("run")}
    assert shown["Cursor one sample back"] == ","


def test_a_range_has_statistics_of_just_its_samples(drive, run_dir, runs_dir, wait, text_of) -> None:
    import lineage

    async def script(app, pilot):
        await pilot.press("n")
        await pilot.press("v", "full_stop", "full_stop", "full_stop", "v")
        await pilot.pause(0.2)
        low, high = app.screen.looking.range
        series = lineage.read(run_dir).series("loss")
        inside = series.value[(series.step >= low) & (series.step <= high)]
        assert inside.size == 4
        line = next(line for line in text_of(app) if "mean" in line)
        assert "n 4" in line
        assert f"{inside.max():.5g}" in line

    drive(script, run_dir, runs_dir)
