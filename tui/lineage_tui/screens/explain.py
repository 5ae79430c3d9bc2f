"""Why a curve changed: each abrupt change of a run, or one step, with what was recorded around it, likeliest first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from rich.cells import cell_len
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from lineage.history.explain import NOTHING, Cause, Change
from lineage_tui.accounts import Explained, changes_of
from lineage_tui.messages import Answer, Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, joined, toned
from lineage_tui.widgets.readout import event_line
from lineage_tui.widgets.table import Cell, Column, Row, Table
from lineage_tui.widgets.words import kind_glyph, number, plain, plural, to_ascii

COLUMNS: Final = (
    Column("step", 9, align="right", most=14),
    Column("metric", 12),
    Column("change", 24),
    Column("likeliest cause", 24, grow=1),
)
CAUSE_KINDS: Final = {
    "session": "session_start",
    "continuation": "continuation",
    "data": "alert",
    "difference": "alert",
    "lr": "lr_restore",
    "fp16_skip": "fp16_skip",
    "phase": "eval",
    "non_finite": "alert",
    "alert": "alert",
    "note": "note",
    "log": "log_recovered",
}
"""The mark of an event that stands for a kind of cause."""
CAUSE_WORDS: Final = {
    "session": "new session",
    "continuation": "not the same experiment",
    "data": "the data",
    "difference": "something differs",
    "lr": "learning rate",
    "fp16_skip": "skipped updates",
    "phase": "a phase",
    "non_finite": "not finite",
    "alert": "alert",
    "note": "note",
    "log": "the log",
}


def change_words(change: Change, calm: str = "") -> tuple[str, str]:
    """What happened to the metric, and its tone; `calm` is what to say where nothing was found."""
    shift = change.shift
    if shift is None:
        return ("another experiment", "bad") if change.diverged else (calm, "dim")
    if shift.kind == "non_finite":
        return f"{number(shift.after)} for {plural(shift.num_rows, 'step')}", "bad"
    verb = {"jump": "jumps", "drop": "drops", "spike": "spikes"}.get(shift.kind, shift.kind)
    return f"{verb} {number(shift.before, 4)} -> {number(shift.after, 4)}", "bad" if shift.kind != "drop" else "warn"


def _fitted(rows: Sequence[Row]) -> list[Column]:
    """The columns, those before the cause no wider than what is in them."""
    widths = [max((cell_len(row.cells[at].text) for row in rows), default=0) for at in range(len(COLUMNS) - 1)]
    narrow = [
        replace(column, width=min(max(width, cell_len(column.title)), column.width))
        for column, width in zip(COLUMNS[1:-1], widths[1:], strict=True)
    ]
    return [COLUMNS[0], *narrow, COLUMNS[-1]]


class ExplainScreen(ListScreen):
    """The changes as a table, the causes of the one under the cursor below."""

    place: ClassVar[str] = "explain"
    what: ClassVar[str] = "changes"
    filtered_by: ClassVar[str] = "metric, step, causes"
    topics: ClassVar[frozenset[str]] = frozenset({"explain"})

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._step: int | None = None
        self._asked: tuple[object, ...] | None = None
        self._changes: tuple[Change, ...] | None = None
        self._calm = ("", "")
        self._shown: list[Change] = []

    def compose_body(self) -> Iterable[Widget]:
        yield Static(id="explain-title")
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only, empty="looking for abrupt changes")
        yield self.filter_line
        yield VerticalScroll(Static(id="detail-text"), id="detail", can_focus=False)

    def side(self) -> Widget:
        return self.query_one("#detail")

    # -- news ------------------------------------------------------------------------------------------------------
    def runs_changed(self) -> None:
        self._step = None
        self._asked = self._changes = None
        self._shown = []

    def show_step(self, step: int | None, session: str | None = None) -> None:  # noqa: ARG002  # a step is enough
        self._step = step
        self._ask()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        super().snapshot_changed(snapshot)
        self._ask()

    def _ask(self) -> None:
        """Have it worked out in the reading thread, anew when a session or a screenful of steps was added."""
        main = self.lineage.snapshot
        if main is None:
            return
        stamp = (main.key, self._step, len(main.record.sessions), (main.last_step or 0) // 100, main.num_unread == 0)
        if stamp == self._asked:
            return
        if self._asked is None or self._asked[:2] != stamp[:2]:
            self._changes = None
        self._asked = stamp
        self.lineage.ask(f"explain:{self._step}", partial(changes_of, step=self._step))
        self._list()

    def answered(self, answer: Answer) -> None:
        if answer.topic != f"explain:{self._step}":
            return
        self.panel.show_problem(answer.problem)
        found: Explained | None = answer.value
        self._changes = found.changes if found is not None else ()
        self._calm = found.calm if found is not None else ("", "")
        self._list()

    def filter_changed(self) -> None:
        self._list()

    # -- showing ---------------------------------------------------------------------------------------------------
    def _list(self) -> None:
        if not self.is_mounted:
            return
        words = self.filter.value
        self._shown = [
            change
            for change in self._changes or ()
            if matches(words, change.metric, str(change.step), *(cause.message for cause in change.causes))
        ]
        table = self.table
        if self._changes is None:
            table.empty = "comparing the attempts, looking for abrupt changes"
        else:
            calm = f"{self._calm[1] or 'no abrupt change'}. On the curves, e explains the steps around the cursor"
            table.empty = "no change fits the filter" if self._changes else calm
        rows = [self._row(at, one) for at, one in enumerate(self._shown)]
        if self._changes:
            table.set_columns(_fitted(rows))
        table.set_rows(rows, keep=table.row.key if table.row else None)
        self.show_count(len(self._shown), len(self._changes or ()))
        table.styles.height = min(len(self._shown) + 2, max(self.size.height // 2 - 2, 4)) if self._shown else 4
        if self._step is None:
            title = joined([toned(" every abrupt change of loss and throughput", "strong")])
        else:
            title = joined(
                [
                    toned(f" around step {self._step:,}", "strong"),
                    toned("   esc: every abrupt change of the run", "dim"),
                ]
            )
        self.query_one("#explain-title", Static).update(title)
        self._show_detail()
        self.show_header()

    def _row(self, at: int, change: Change) -> Row:
        said, tone = change_words(change, self._calm[0])
        first = change.causes[0] if change.causes else None
        cause = f"{CAUSE_WORDS[first.kind]}: {plain(first.message, 300)}" if first is not None else NOTHING
        return Row(
            f"{at}:{change.step}:{change.metric}",
            (
                Cell(f"{change.step:,}", "strong"),
                Cell(plain(change.metric, 40)),
                Cell(said, tone),
                Cell(cause, "" if first is not None else "dim"),
            ),
        )

    def on_table_highlighted(self) -> None:
        self._show_detail()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self._list()

    def _change(self) -> Change | None:
        return self._shown[self.table.cursor] if self._shown and self.table.row else None

    def _show_detail(self) -> None:
        change = self._change()
        detail = self.query_one("#detail-text", Static)
        self.query_one("#detail").display = change is not None
        if change is not None:
            detail.update(self.detail(change, max(self.size.width - 3, 20)))

    def detail(self, change: Change, width: int) -> Content:
        """A change and all its causes, in words."""
        said, tone = change_words(change, self._calm[0])
        head = joined(
            [
                toned(f" step {change.step:,}  ", "strong"),
                toned(f"{plain(change.metric, 40)} ", "strong"),
                toned(said, tone),
            ]
        )
        lines = [head]
        if change.shift is None:
            whole = (
                "no jump was found here, and what is trained from here on is another experiment all the same"
                if change.diverged
                else self._calm[1]
            )
            lines += [toned(f" {part}", "dim") for part in textwrap.wrap(whole, max(width - 2, 10))]
        lines.append(Content(""))
        if not change.causes:
            lines.append(toned(f" {NOTHING}", "dim"))
            lines.append(toned(" what is logged beside it may tell: on the curves, m picks metrics", "dim"))
        for rank, cause in enumerate(change.causes, 1):
            lines += self._cause(rank, cause, width)
        return Content("\n").join(lines)

    def _cause(self, rank: int, cause: Cause, width: int) -> list[Content]:
        glyph, tone = kind_glyph(CAUSE_KINDS[cause.kind], self.glyphs)
        head = [toned(f" {rank}. ", "dim"), toned(f"{glyph} ", tone), toned(CAUSE_WORDS[cause.kind], tone, "bold")]
        head.append(toned(f"  step {cause.step:,}", "dim"))
        message = plain(cause.message, 2_000)
        message = to_ascii(message) if self.ascii_only else message
        lines = [joined(head)]
        lines += [Content(f"      {part}") for part in textwrap.wrap(message, max(width - 7, 10))]
        if cause.event is not None:
            line = joined([Content("      "), event_line(cause.event, ascii_only=self.ascii_only)])
            lines.append(line.truncate(width, ellipsis=True) if line.cell_length > width else line)
        return lines

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        if self._changes is not None and self._step is None:
            right = [*right, Fact(plural(len(self._changes), "change"), "dim", 4)]
        return left, right

    # -- actions ---------------------------------------------------------------------------------------------------
    def action_open(self) -> None:
        change = self._change()
        if change is not None:
            self.lineage.go_to_step(change.step)
        else:
            self.say("there is no change to go to")

    def on_table_chosen(self) -> None:
        self.action_open()

    def session_here(self) -> str | None:
        change, snapshot = self._change(), self.lineage.snapshot
        if change is None or snapshot is None:
            return None
        named = change.causes[0].session if change.causes else None
        return named or (found.id if (found := snapshot.session_at(change.step)) is not None else None)

    def action_diff(self) -> None:
        session = self.session_here()
        if session is not None:
            self.lineage.open_diff(session)
        else:
            self.say("there is no change, and so no session of one; 4 compares the newest session")

    def step_back(self) -> bool:
        if super().step_back():
            return True
        if self._step is not None:
            self.show_step(None)
            return True
        return False
