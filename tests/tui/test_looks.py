"""How words and tables look: what can be read on what, what is cut where, what stands under what."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.color import Color, ColorSystem

from lineage_tui.theme import BACKGROUND, contrast, hex_of, palette, tones, xterm_rgb
from lineage_tui.widgets.table import Cell, Column, Row, Table, fit_columns
from lineage_tui.widgets.words import DASH

WORDS = ("tone-dim", "tone-good", "tone-warn", "tone-bad", "tone-info", "tone-accent", "bar-text")


def rgb_of(name: str, depth: str) -> tuple[int, int, int]:
    """A colour as a terminal of this depth draws it."""
    colour = Color.parse(name)
    if depth == "256":
        return xterm_rgb(colour.downgrade(ColorSystem.EIGHT_BIT).number or 0)
    return tuple(colour.get_truecolor())


@pytest.mark.parametrize("depth", ["truecolor", "256"])
@pytest.mark.parametrize("kind", ["dark", "light"])
def test_words_can_be_read_on_the_ground_on_bars_on_the_cursors_row_and_in_boxes(kind: str, depth: str) -> None:
    colours = tones(kind)
    grounds = {name: colours[name] for name in ("bar", "row", "raised")}
    grounds["ground"] = hex_of(BACKGROUND[kind == "dark"], "256")
    for word in WORDS:
        for name, ground in grounds.items():
            found = contrast(rgb_of(colours[word], depth), rgb_of(ground, depth))
            assert found >= 4.5, (word, name, found)
    for name in ("ground", "raised"):
        assert contrast(rgb_of(colours["edge"], depth), rgb_of(grounds[name], depth)) >= 3.6, name


@pytest.mark.parametrize("kind", ["dark", "light"])
def test_no_two_tones_or_grounds_become_one_in_256_colours(kind: str) -> None:
    numbers = {name: Color.parse(value).downgrade(ColorSystem.EIGHT_BIT).number for name, value in tones(kind).items()}
    assert numbers["row"] not in {numbers["raised"], BACKGROUND[kind == "dark"]}
    assert len({numbers[name] for name in WORDS} - {numbers["tone-accent"]}) == len(WORDS) - 2  # warn is the accent


def test_sixteen_colours_are_named_not_mixed() -> None:
    assert all(value.startswith("ansi_") for value in tones("ansi").values())
    assert tones("ansi").keys() == tones("dark").keys() == tones("light").keys()


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("depth", ["truecolor", "256"])
def test_the_axes_of_charts_stand_out_as_lines_do(depth: str, *, dark: bool) -> None:
    from lineage_tui.plot.styles import Fg

    colours = palette(depth, dark=dark)
    assert contrast(colours.rgb(colours.fg[Fg.AXIS].ink), colours.rgb(colours.background)) >= 3.6


def rendered(columns: tuple[Column, ...], texts: tuple[str, ...], width: int) -> list[str]:
    """The cells of a row, by the widths that a table of this width gives them."""
    from lineage_tui.widgets import table

    widths = fit_columns(columns, width)
    return [
        table._align(text, cells, column.align, column.cut)
        for column, cells, text in zip(columns, widths, texts, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "cells", "shown"),
    [
        ("llama-120m-lr3e-4", 17, "llama-120m-lr3e-4"),
        ("llama-120m-lr3e-4", 12, "llama-…r3e-4"),
        ("llama-120m-lr3e-4", 11, "llama…r3e-4"),
        ("run", 2, "r…"),
        ("run", 1, "…"),
        ("日本語の名前です", 9, "日本…です"),
        ("日本語の名前です", 8, "日本… す"),
    ],
)
def test_a_name_too_long_keeps_both_its_ends(text: str, cells: int, shown: str) -> None:
    (found,) = rendered((Column("name", cells, cut="middle"),), (text,), cells)
    assert found == shown
    assert cell_len(found) == cells


def test_other_columns_are_cut_at_their_end() -> None:
    assert rendered((Column("what", 8),), ("eval: loss 1.7698",), 8) == ["eval: l…"]


def test_names_that_differ_only_at_their_end_can_be_told_apart_at_80_columns(drive, runs_dir, text_of) -> None:
    import json

    for number, path in enumerate(sorted(runs_dir.glob("2*"))):
        record = path / "run.json"
        changed = json.loads(record.read_text())
        changed["name"] = f"pretrain-small-mixture-of-experts-{number}"
        record.write_text(json.dumps(changed))
    found: list[str] = []

    async def script(app, pilot) -> None:
        await pilot.pause(0.2)
        found.extend(line for line in text_of(app) if "completed    pretrain" in line)

    drive(script, None, runs_dir, (80, 24))
    assert len(found) == 3
    for number in range(3):
        assert any(f"erts-{number} " in line for line in found)


def test_the_event_under_the_cursor_is_told_in_full_where_its_line_is_cut(drive, run_dir, runs_dir, text_of) -> None:
    seen: list[list[str]] = []

    async def script(app, pilot) -> None:
        await pilot.press("7")
        await pilot.pause(0.2)
        for _ in range(3):
            await pilot.press("up")
            await pilot.pause(0.1)
            seen.append(text_of(app))
        app.screen.filter.value = "skipped"
        await pilot.pause(0.2)
        seen.append(text_of(app))

    drive(script, run_dir, runs_dir, (80, 24))
    places = {next(y for y, line in enumerate(lines) if line.startswith("────")) for lines in seen}
    assert len(places) == 1  # the list does not jump as the cursor moves
    assert any("…" in line for line in seen[-1][: min(places)])
    told = " ".join(line.strip() for line in seen[-1][min(places) :])
    assert "step 388  session 3" in told
    assert "2 skipped so far" in told


def test_the_facts_of_a_session_stand_in_one_column_and_options_are_not_broken_at_their_hyphens() -> None:
    from lineage_tui.screens.sessions import _columns

    blocks = [
        ("session 2", [("id", "s02-x", ""), ("argv", "train.py " + "--checkpoint-every 50 " * 6, "")]),
        ("steps", [("checkpoints", "3", "")]),
        ("recipe", [("a_name_longer_than_all_the_others", "1", "")]),
    ]
    lines = _columns(blocks, 80).plain.splitlines()
    at = {line.index(value) for line in lines for value in ("s02-x", "train.py") if value in line}
    at.add(next(line for line in lines if "checkpoints " in line).index("3"))
    assert len(at) == 1
    assert not any(line.rstrip().endswith("-") for line in lines)


def test_the_causes_have_the_room_that_a_change_does_not_need() -> None:
    from lineage_tui.screens.explain import COLUMNS, _fitted

    row = Row("1", (Cell("160"), Cell("loss"), Cell("nan for 1 step"), Cell("nothing recorded explains this")))
    columns = _fitted([row])
    assert [column.title for column in columns] == [column.title for column in COLUMNS]
    assert fit_columns(columns, 78)[-1] >= len("nothing recorded explains this")
    wide = Row("1", (Cell("160"), Cell("m" * 50), Cell("c" * 50), Cell("")))
    assert [column.width for column in _fitted([wide])] == [column.width for column in COLUMNS]


def test_the_screen_one_is_on_is_not_fainter_than_the_others(drive, run_dir, runs_dir) -> None:
    colours: dict[str, object] = {}

    async def script(app, pilot) -> None:
        await pilot.press("4")
        await pilot.pause(0.2)
        for segment in app.screen._compositor.render_strips()[1]:
            colours[segment.text.strip()] = segment.style.color

    drive(script, run_dir, runs_dir, (120, 40))
    assert colours["diff"] == colours["events"]


def test_a_short_list_of_runs_leaves_its_room_to_the_run_under_the_cursor(drive, runs_dir) -> None:
    heights: list[int] = []

    async def script(app, pilot) -> None:
        await pilot.pause(0.2)
        heights.append(app.screen.query_one("#preview").size.height)
        heights.append(app.screen.query_one(Table).size.height)

    drive(script, None, runs_dir, (200, 50))
    assert heights[0] > 20
    assert heights[1] >= 4


@pytest.mark.parametrize(("key", "words"), [("5", "s01"), ("7", "skipped")])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_filter_is_seen_while_it_is_typed(drive, run_dir, runs_dir, text_of, *, size, key, words) -> None:
    seen: list[str] = []

    async def script(app, pilot) -> None:
        await pilot.press(key)
        await pilot.pause(0.2)
        await pilot.press("slash", *words)
        await pilot.pause(0.3)
        seen.extend(text_of(app))

    drive(script, run_dir, runs_dir, size)
    assert seen[-2].split()[:2] == ["/", words]
    assert f" of {4 if key == '5' else 40} " in seen[-2]
    assert sum(line.startswith("───") for line in seen) == 1  # what is told of the row stands above it
    assert " of " in seen[0]


def test_a_number_that_needs_more_room_than_its_column_has_gets_it() -> None:
    from lineage_tui.widgets.table import widened

    columns = (Column("step", 9, align="right", most=14), Column("name", 9))
    assert [column.width for column in widened(columns, [])] == [9, 9]
    rows = [Row(str(step), (Cell(f"{step:,}"), Cell("n" * 30))) for step in (7, 1_234_567_890)]
    assert [column.width for column in widened(columns, rows)] == [13, 9]
    rows.append(Row("x", (Cell("9" * 40), Cell(""))))
    assert [column.width for column in widened(columns, rows)] == [14, 9]


def test_on_narrow_terminals_words_give_way_and_numbers_stay_whole() -> None:
    columns = (Column("step", 9, align="right"), Column("state", 13), Column("name", 31))
    assert fit_columns(columns, 57) == [9, 13, 31]
    assert fit_columns(columns, 40) == [9, 13, 14]
    assert fit_columns(columns, 30) == [9, 8, 9]
    assert fit_columns(columns, 5) == [9, 6, 6]


@pytest.mark.parametrize(("key", "column"), [("3", 6), ("6", 2), ("5", 2)])
def test_at_60_columns_what_a_list_is_about_is_still_whole(
    drive, run_dir, runs_dir, *, wait, text_of, key, column
) -> None:
    async def script(app, pilot) -> None:
        await pilot.press(key)
        await wait(app, pilot, lambda: len(app.screen.table.rows) > 2)
        await pilot.pause(0.1)
        rows = app.screen.table.rows
        shown = text_of(app)
        for row in rows:
            assert any(row.cells[column].text in line for line in shown[1 : 3 + len(rows)]), row

    drive(script, run_dir, runs_dir, (60, 20))


@pytest.mark.parametrize(("key", "count"), [("3", 3), ("6", 8), ("7", 40), ("5", 4)])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_steps_of_long_runs_are_not_cut(drive, run_dir, runs_dir, *, wait, text_of, key, count, size) -> None:
    import json

    def later(value: object) -> object:
        """The same run, twenty million steps on."""
        if isinstance(value, dict):
            names = ("step", "last_step", "from_step")
            return {k: v + 20_000_000 if k in names and isinstance(v, int) else later(v) for k, v in value.items()}
        return [later(item) for item in value] if isinstance(value, list) else value

    record = later(json.loads((run_dir / "run.json").read_text()))
    (run_dir / "run.json").write_text(json.dumps(record))
    lines = [json.dumps(later(json.loads(line))) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    async def script(app, pilot) -> None:
        await pilot.press(key)
        await wait(app, pilot, lambda: len(app.screen.table.rows) >= count)
        await pilot.pause(0.1)
        app.screen.table.move_edge(-1)
        await pilot.pause(0.1)
        lines = text_of(app)[1 : 2 + len(app.screen.table.rows)]
        assert not any("20,00…" in line or "000,…" in line or "0,000…" in line for line in lines)
        if key in {"3", "6"}:
            assert any(f"20,000,101{DASH}20,000,200" in line for line in lines)
        if key == "7":
            assert any(" 20,000,1" in line for line in lines)

    drive(script, run_dir, runs_dir, size)
