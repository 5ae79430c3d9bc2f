"""The runs of a folder: state, sessions, steps, last loss, its shape, age, tags."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final, get_args

import numpy as np
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from lineage.glance import Standing
from lineage_schemas.run import Session
from lineage_tui.folder import RunSummary
from lineage_tui.plot.model import ChartModel, SeriesData, View
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.screens.sessions import started_from, verdict_text
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, joined, toned
from lineage_tui.widgets.chart import Chart
from lineage_tui.widgets.table import Cell, Column, LazyRows, Row, Table
from lineage_tui.widgets.words import (
    DASH,
    STATE_TONES,
    VERDICT_GLYPHS,
    VERDICT_TONES,
    age,
    clock,
    count,
    number,
    plain,
    plural,
    state_glyph,
    to_ascii,
)

CURVE: Final = 8
"""Cells of the curve in the list."""
TALL_FROM: Final = 30
"""From this height on the run under the cursor has a preview below the list; on lower screens, two lines."""
BRIEF_FROM: Final = 12
PREVIEW: Final = (16, 26)
"""Least and most lines of what is under the list; a long list leaves the least."""
COLUMNS: Final = (
    Column("state", 13),
    Column("name", 14, grow=3, cut="middle"),
    Column("ses", 3, align="right", drop=3),
    Column("step", 9, align="right", most=14),
    Column("loss", 8, align="right"),
    Column("continued", 14, drop=1),
    Column("curve", CURVE, drop=2),
    Column("last event", 11, align="right", drop=4),
    Column("tags", 10, grow=2, drop=5),
    Column("id", 26, grow=1, drop=6, cut="middle"),
)

_SORTS: Final = (7, 1, 0, 3, 4, 5, 2)
"""Columns that `s` walks through, by their place in COLUMNS; the first is the order at the start."""
_ORDERS: Final = {
    7: ("newest", "oldest"),
    1: ("a", "z"),
    0: ("running", "completed"),
    3: ("longest", "shortest"),
    4: ("lowest", "highest"),
    5: ("least trusted", "most trusted"),
    2: ("most", "fewest"),
}
"""What comes first by each of those columns, and what when the order is turned round."""
_SHORT: Final[dict[str, str]] = {"nothing_restored": "not restored", "within_tolerance": "in tolerance"}
_DESCENDING: Final = frozenset({7, 3, 2})
_BY_STATE: Final = ("running", "stalled", "failed", "killed", "interrupted", "preempted", "completed")
_BY_STANDING: Final = tuple(get_args(Standing))

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_FLAT: Final = "_.-=+*%#"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The values as `width` blocks at most; a value that is no number is `✕`."""
    if not values:
        return ""
    marks = _FLAT if ascii_only else _BLOCKS
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    span = high - low
    step = max(len(values) / width, 1.0)
    shown = [values[min(int((at + 1) * step), len(values)) - 1] for at in range(min(width, len(values)))]
    return "".join(
        ("x" if ascii_only else "✕")
        if not math.isfinite(value)
        else marks[round((value - low) / span * (len(marks) - 1)) if span > 0 else 0]
        for value in shown
    )


class RunsScreen(ListScreen):
    """The folder as a table; several runs can be selected and laid over each other."""

    place: ClassVar[str] = "runs"
    what: ClassVar[str] = "runs"
    filtered_by: ClassVar[str] = "name, id, state, verdict, tags"

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._sort = 0
        self._turned = False
        self._selected: list[str] = []
        self._shown: list[RunSummary] = []

    def compose_body(self) -> Iterable[Widget]:
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only, empty="no runs here")
        yield self.filter_line
        self.curve = Chart(glyphs=self.glyphs, id="preview-chart")
        self.curve.can_focus = False
        yield Horizontal(Static(id="preview-facts"), self.curve, id="preview")
        yield Static(id="remark", classes="run")

    def on_table_highlighted(self) -> None:
        self._preview()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self.set_class(event.size.width < 100, "-narrow")
        self._preview()

    def _preview(self) -> None:
        """Under the list, where there is room: the run under the cursor."""
        at = self.table.cursor
        run = self._shown[at] if at < len(self._shown) else None
        preview = self.query_one("#preview")
        preview.display = run is not None and self.size.height >= TALL_FROM
        brief = self.query_one("#remark", Static)
        brief.display = run is not None and BRIEF_FROM <= self.size.height < TALL_FROM
        preview.styles.height = min(max(self.size.height - len(self._shown) - 5, PREVIEW[0]), PREVIEW[1])
        if run is None:
            return
        if brief.display:
            brief.update(run_brief(run, self.glyphs, max(self.size.width - 2, 8)))
        self.query_one("#preview-facts", Static).update(run_facts(run, self.glyphs))
        y = np.array(run.spark, dtype=np.float64)
        x = np.linspace(0.0, float(run.last_step or len(y)), len(y)) if len(y) else y
        series = (SeriesData(run.key, "at a few places of the log", x, y),) if len(y) else ()
        self.curve.show(ChartModel("loss", series, message="no loss logged", has_lane=False), View())

    def draw_all(self) -> None:
        self.folder_changed()

    def folder_changed(self) -> None:
        app = self.lineage
        folder = app.folder
        self.panel.show_problem(app.folder_problem if folder is None else None)
        if folder is None:
            self.show_header()
            self.table.empty = "reading the folder" if app.folder_problem is None else ""
            self.table.refresh()
            return
        self.table.empty = "no run fits the filter" if self.filter.value else "no runs in this folder"
        now = app.options.clock()
        runs = [run for run in folder.runs if self._fits(run)]
        column = _SORTS[self._sort]
        runs.sort(key=lambda run: _sort_key(run, column), reverse=(column in _DESCENDING) != self._turned)
        first = not self._shown
        keep = app.main_key if first else (self.table.row.key if self.table.row else None)
        self._shown = runs
        self.table.set_sorted(column, descending=(column in _DESCENDING) != self._turned)
        self.table.set_rows(LazyRows(runs, lambda run: self._row(run, now), lambda run: run.key), keep=keep)
        self.show_count(len(runs), len(folder.runs))
        self.show_header()
        self._preview()

    def filter_changed(self) -> None:
        self.folder_changed()

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        app = self.lineage
        runs = app.folder.runs if app.folder else ()
        live = sum(run.state in {"running", "stalled"} for run in runs)
        left = [
            Fact("lineage", "dim", 9),
            Fact(plain(_short(app.folder_path), 60), "strong", 1),
            Fact(
                f"{len(self._shown):,} of {plural(len(runs), 'run')}" if self.filter.value else plural(len(runs), "run")
            ),
            Fact(f"{live} running" if live else "", "good", 2),
            Fact(f"{len(self._selected)} selected" if self._selected else "", "info", 2),
        ]
        problems = app.all_problems()
        return left, [Fact(f"! {plural(len(problems), 'problem')}" if problems else "", "bad", 3)]

    # -- actions ---------------------------------------------------------------------------------------------------
    def action_open(self) -> None:
        paths = [Path(key) for key in self._selected] or ([Path(self.table.row.key)] if self.table.row else [])
        broken = [run for run in self._shown if run.problem is not None and not run.has_log and Path(run.key) in paths]
        if broken:
            self.lineage.action_problems()
            return
        if paths:
            self.lineage.open_runs(paths)

    def on_table_chosen(self) -> None:
        self.action_open()

    def action_select(self) -> None:
        row = self.table.row
        if row is None:
            return
        if row.key in self._selected:
            self._selected.remove(row.key)
        else:
            self._selected.append(row.key)
        self.folder_changed()
        self.table.move(1)

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(_SORTS)
        self._turned = False
        self._reorder()

    def action_turn(self) -> None:
        self._turned = not self._turned
        self._reorder()

    def _reorder(self) -> None:
        """Sort again, and say by what: the column may have no room here."""
        self.folder_changed()
        column = _SORTS[self._sort]
        order = _ORDERS[column][self._turned]
        self.say(f"sorted by {COLUMNS[column].title}, {order} first (S: the other way round)")

    def step_back(self) -> bool:
        if super().step_back():
            return True
        if self._selected:
            self._selected.clear()
            self.folder_changed()
            return True
        return False

    # -- rows ------------------------------------------------------------------------------------------------------
    def _fits(self, run: RunSummary) -> bool:
        return matches(self.filter.value, run.name, run.id, run.state, _continued(run).text, *run.tags)

    def _row(self, run: RunSummary, now: float) -> Row:
        state = f"{state_glyph(run.state, self.glyphs)} {run.state}"
        name = plain(run.name, 80) + (f"  fork of {plain(run.parent, 60)}" if run.parent else "")
        return Row(
            run.key,
            (
                Cell(state, STATE_TONES.get(run.state, "bad")),
                Cell(name, "strong"),
                Cell(count(run.num_sessions or None)),
                Cell(count(run.last_step)),
                Cell(
                    _loss(run.last_loss),
                    "bad" if run.last_loss is not None and not math.isfinite(run.last_loss) else "",
                ),
                _continued(run),
                Cell(sparkline(run.spark, CURVE, ascii_only=self.ascii_only), "info"),
                Cell(age(now - run.last_event_at) if run.last_event_at else DASH, "dim"),
                Cell(plain(" ".join(run.tags), 60), "dim"),
                Cell(plain(run.id, 80), "dim"),
            ),
            marked=run.key in self._selected,
        )


def _loss(value: float | None) -> str:
    """Five digits, the last ones zeros or not: values of one size stand with their points under each other."""
    return f"{value:#.5g}" if value is not None and 1e-3 <= abs(value) < 1e4 else number(value)


def _continued(run: RunSummary) -> Cell:
    """The worst continuation of a run, as a word."""
    if run.standing is None:
        return Cell("")
    word = _SHORT.get(run.standing) or run.standing.replace("_", " ")
    return Cell(f"{VERDICT_GLYPHS[run.standing]} {word}", VERDICT_TONES[run.standing])


def run_brief(run: RunSummary, glyphs: Glyphs, width: int) -> Content:
    """A run in two lines: who it is and how often it was resumed; its sessions, the newest where not all fit."""
    if run.problem is not None:
        second = toned(plain(run.problem.what, 400), "bad")
    else:
        shown: list[Content] = []
        for session in reversed(run.sessions):
            one = _session_brief(run, session, glyphs)
            if shown and joined([*shown, Content("   "), one]).cell_length > width - 2:
                shown.insert(0, toned("… ", "dim"))
                break
            shown = [one, *([Content("   ")] if shown else []), *shown]
        second = joined(shown)
    facts = [
        plural(run.num_sessions, "session") if run.num_sessions else "",
        run.id if run.id != run.name else "",
        " ".join(run.tags),
        run.notes,
    ]
    first = joined(
        [toned(plain(run.name, 80), "strong"), toned("".join(f"  {plain(f, 120)}" for f in facts if f), "dim")]
    )
    text = Content("\n").join([first.truncate(width, ellipsis=True), second.truncate(width, ellipsis=True)])
    return Content(to_ascii(text.plain)) if glyphs == "ascii" else text


def _session_brief(run: RunSummary, session: Session, glyphs: Glyphs) -> Content:
    """`s2 ✕ killed @100 ≠ diverged @101`."""
    state = run.state if session is run.sessions[-1] else session.status
    start = session.start
    lost = start.kind == "fresh" and bool(start.step) and session.ordinal > 1
    from_ = f" {'not restored ' if lost else ''}@{start.step:,}" if start.step else ""
    verdict, tone = verdict_text(session)
    parts = [
        toned(f"s{session.ordinal} ", "strong"),
        toned(f"{state_glyph(state, glyphs)} {state}", STATE_TONES.get(state, "")),
    ]
    parts += [toned(from_, "bad" if lost else "dim"), toned(f" {verdict}" if verdict else "", tone)]
    return joined(parts)


def run_facts(run: RunSummary, glyphs: Glyphs) -> Content:
    """A run in a few lines: who it is, and its sessions."""
    lines = [
        joined(
            [toned(plain(run.name, 60), "strong"), toned(f"  {plain(run.id, 60)}" if run.id != run.name else "", "dim")]
        )
    ]
    facts = [("created", clock(run.created_at) if run.created_at else "")]
    facts += [("forked from", run.parent or ""), ("tags", " ".join(run.tags)), ("notes", run.notes)]
    lines += [joined([toned(f"{name}  ", "dim"), Content(plain(value, 300))]) for name, value in facts if value]
    if run.problem is not None:
        lines.append(toned(plain(run.problem.what, 400), "bad"))
    lines.append(Content(""))
    for session in run.sessions[-8:]:
        last = session is run.sessions[-1]
        state = run.state if last else session.status
        verdict, tone = verdict_text(session)
        lines.append(
            joined(
                [
                    toned(f"{session.ordinal:>3}  ", "strong"),
                    toned(f"{state_glyph(state, glyphs)} {state:<12}", STATE_TONES.get(state, "")),
                    toned(
                        f"{started_from(session):<14}  ",
                        "bad" if session.start.kind == "fresh" and session.start.step and session.ordinal > 1 else "",
                    ),
                    toned(verdict, tone),
                ]
            )
        )
    text = Content("\n").join(lines)
    return Content(to_ascii(text.plain)) if glyphs == "ascii" else text


def _sort_key(run: RunSummary, column: int) -> tuple[float, str]:
    if column == 1:
        return (0.0, run.name.casefold())
    if column == 0:
        return (float(_BY_STATE.index(run.state)) if run.state in _BY_STATE else -1.0, run.id)
    value: float | None
    if column == 3:
        value = run.last_step
    elif column == 4:
        value = run.last_loss
        return (math.inf if value is None or math.isnan(value) else value, run.id)
    elif column == 5:  # the least trusted first
        value = len(_BY_STANDING) if run.standing is None else _BY_STANDING.index(run.standing)
    elif column == 2:
        value = run.num_sessions
    else:
        value = run.last_event_at
    return (-1.0 if value is None else float(value), run.id)


def _short(path: Path) -> str:
    """The last two parts of a path."""
    return "/".join(path.parts[-2:]) if len(path.parts) > 2 else str(path)
