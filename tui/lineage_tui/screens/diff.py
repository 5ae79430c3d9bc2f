"""Two sessions side by side: only what differs, what matters first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from lineage.history.diff import GRADES, SECTIONS, Difference, SessionSide, diff_sessions
from lineage_schemas.run import Run, Session
from lineage_tui.messages import Answer, Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.screens.pages import Page
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, joined, toned
from lineage_tui.widgets.table import Cell, Column, LazyRows, Row, Table
from lineage_tui.widgets.words import number, plain, plural

COLUMNS: Final = (
    Column("", 1),
    Column("matters", 10),
    Column("section", 11, drop=3),
    Column("path", 16, grow=3, cut="middle"),
    Column("before", 12, grow=3),
    Column("after", 12, grow=3),
    Column("because", 16, grow=2, drop=4),
)
GRADE_TONES: Final = {"experiment": "bad", "numerics": "warn", "harmless": "dim"}
GRADE_GLYPHS: Final = {"experiment": ("●", "!"), "numerics": ("◐", "~"), "harmless": ("·", ".")}


@dataclass(frozen=True)
class Sides:
    """Which sessions are compared: run and session of each."""

    before: tuple[Run, Session]
    after: tuple[Run, Session]

    @property
    def labels(self) -> tuple[str, str]:
        """`s1`, `s2`; with the run where they are of different ones."""
        (run_a, a), (run_b, b) = self.before, self.after
        if run_a.id == run_b.id:
            return f"s{a.ordinal}", f"s{b.ordinal}"
        return f"{plain(run_a.name, 32)}@{a.ordinal}", f"{plain(run_b.name, 32)}@{b.ordinal}"

    @property
    def topic(self) -> str:
        return f"diff:{self.before[0].id}@{self.before[1].id}:{self.after[0].id}@{self.after[1].id}"


def origin_of(session: Session, snapshot: Snapshot) -> Session | None:
    """The session of this run that a session carried on from; else the one before it."""
    segment = snapshot.segment(session.id)
    earlier = [other for other in snapshot.record.sessions if other.ordinal < session.ordinal]
    if segment is not None and segment.parent is not None:
        return next((other for other in earlier if other.id == segment.parent), None)
    return max(earlier, key=lambda other: other.ordinal, default=None)


class DiffScreen(ListScreen):
    """The differences of two sessions, graded."""

    place: ClassVar[str] = "diff"
    what: ClassVar[str] = "differences"
    filtered_by: ClassVar[str] = "path, section, grade, values"
    topics: ClassVar[frozenset[str]] = frozenset({"diff"})

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._session: str | None = None
        self._against: tuple[str, str] | None = None
        self._sides: Sides | None = None
        self._asked: str | None = None
        self._found: Sequence[Difference] | None = None
        self._shown: list[Difference] = []

    def compose_body(self) -> Iterable[Widget]:
        yield Static(id="diff-title")
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only)
        yield self.filter_line

    # -- news ------------------------------------------------------------------------------------------------------
    def runs_changed(self) -> None:
        self._session = self._against = self._sides = self._asked = self._found = None
        if self.is_mounted:
            self.draw_all()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        super().snapshot_changed(snapshot)
        self._ask()

    def show_session(self, session: str) -> None:
        self._session, self._against = session, None
        self._ask()

    def _ask(self) -> None:
        """Have the comparison made in the reading thread: a recipe can be large."""
        sides = self._find_sides()
        self._sides = sides
        if sides is None:
            self._asked = self._found = None
            self._list()
            return
        if sides.topic == self._asked:
            return
        self._asked, self._found = sides.topic, None
        self.lineage.ask(
            sides.topic, lambda _: diff_sessions(SessionSide.of(*sides.before), SessionSide.of(*sides.after))
        )
        self._list()

    def _find_sides(self) -> Sides | None:
        snapshot = self.lineage.snapshot
        if snapshot is None or not snapshot.record.sessions:
            return None
        record = snapshot.record
        sessions = sorted(record.sessions, key=lambda s: s.ordinal)
        after = next((s for s in sessions if s.id == self._session), sessions[-1])
        self._session = after.id
        if self._against is not None:
            for key in self.lineage.open_keys:
                other = self.lineage.snapshots.get(key)
                for session in other.record.sessions if other is not None else ():
                    if other is not None and (other.record.id, session.id) == self._against:
                        return Sides((other.record, session), (record, after))
        before = origin_of(after, snapshot)
        if before is None:
            others = [s for key in self.lineage.open_keys[1:] if (s := self.lineage.snapshots.get(key)) is not None]
            if not others or not others[0].record.sessions:
                return None
            return Sides((others[0].record, others[0].record.sessions[-1]), (record, after))
        return Sides((record, before), (record, after))

    def answered(self, answer: Answer) -> None:
        if answer.topic != self._asked:
            return
        if answer.problem is not None:
            self.panel.show_problem(answer.problem)
            return
        self._found = answer.value
        self._list()

    # -- showing ---------------------------------------------------------------------------------------------------
    def filter_changed(self) -> None:
        self._list()

    def _list(self) -> None:
        if not self.is_mounted:
            return
        words = self.filter.value
        order = {grade: place for place, grade in enumerate(GRADES)}
        sections = {section: place for place, section in enumerate(SECTIONS)}
        self._shown = sorted(
            (
                one
                for one in self._found or ()
                if matches(words, one.section, one.path, one.grade, str(one.before), str(one.after), one.why)
            ),
            key=lambda one: (order[one.grade], sections[one.section]),
        )
        table = self.table
        if self._sides is None:
            table.empty = "there is one session only: nothing to compare it with (select two runs, then enter)"
        elif self._found is None:
            table.empty = "comparing"
        elif not self._found:
            table.empty = (
                "no difference: recipe, environment, source, data, arguments and world are the same in both sessions; "
                "{ } goes to another session, b puts another on the other side"
            )
        else:
            table.empty = "no difference fits the filter"
        if self._sides is not None:
            before, after = self._sides.labels
            table.set_columns([*COLUMNS[:4], Column(before, 12, grow=3), Column(after, 12, grow=3), COLUMNS[6]])
        table.set_rows(LazyRows(self._shown, self._row, _key), keep=table.row.key if table.row else None)
        self.show_count(len(self._shown), len(self._found or ()))
        self.query_one("#diff-title", Static).update(self._title())
        self.show_header()

    def _title(self) -> Content:
        sides, snapshot = self._sides, self.lineage.snapshot
        if sides is None or snapshot is None:
            return Content("")
        before, after = sides.labels
        parts = [Content(" "), toned(f"{before} -> {after}", "strong"), Content("   ")]
        if self._found is not None:
            for grade, words in (
                ("experiment", "change the experiment"),
                ("numerics", "may change numerics"),
                ("harmless", "harmless"),
            ):
                num = sum(one.grade == grade for one in self._found)
                if num:
                    glyph = GRADE_GLYPHS[grade][self.ascii_only]
                    parts += [toned(f"{glyph} {num:,} {words}", GRADE_TONES[grade]), Content("   ")]
        return joined(parts)

    def _row(self, one: Difference) -> Row:
        tone = GRADE_TONES[one.grade]
        quiet = "dim" if one.grade == "harmless" else ""
        return Row(
            _key(one),
            (
                Cell(GRADE_GLYPHS[one.grade][self.ascii_only], tone),
                Cell(one.grade, tone),
                Cell(one.section, "dim"),
                Cell(plain(one.path or f"the whole {one.section}", 200), quiet or "strong"),
                Cell(*_side(one, one.before, "added")),
                Cell(*_side(one, one.after, "removed")),
                Cell(plain(one.why, 100), "dim"),
            ),
        )

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        if self._found is not None:
            right = [*right, Fact(plural(len(self._found), "difference"), "dim", 4)]
        return left, right

    # -- actions ---------------------------------------------------------------------------------------------------
    def action_jump(self, by: int) -> None:
        at = self.table.cursor
        places = [i for i, one in enumerate(self._shown) if one.grade != "harmless" and (i > at if by > 0 else i < at)]
        if places:
            self.table.select(places[0] if by > 0 else places[-1])

    def action_session(self, by: int) -> None:
        snapshot = self.lineage.snapshot
        if snapshot is None:
            return
        ids = [s.id for s in sorted(snapshot.record.sessions, key=lambda s: s.ordinal)]
        if self._session in ids:
            self.show_session(ids[max(min(ids.index(self._session) + by, len(ids) - 1), 0)])

    def action_against(self) -> None:
        """The next session of any open run on the other side."""
        if self._sides is None:
            return
        run, session = self._sides.after
        choices = [
            (snapshot.record.id, other.id)
            for key in self.lineage.open_keys
            if (snapshot := self.lineage.snapshots.get(key)) is not None
            for other in sorted(snapshot.record.sessions, key=lambda s: s.ordinal)
            if (snapshot.record.id, other.id) != (run.id, session.id)
        ]
        now = (self._sides.before[0].id, self._sides.before[1].id)
        if choices:
            self._against = choices[(choices.index(now) + 1) % len(choices)] if now in choices else choices[0]
            self._ask()

    def action_open(self) -> None:
        if not self._shown or self._sides is None:
            return
        one = self._shown[self.table.cursor]
        before, after = self._sides.labels
        lines = [
            joined([toned(f"{one.section}  ", "dim"), toned(plain(one.path, 1_000), "strong")]),
            joined([toned(one.grade, GRADE_TONES[one.grade]), toned(f"  {plain(one.why, 400)}", "dim")]),
            Content(""),
            toned(f"{before}  {one.before_type}", "accent"),
            Content(plain(_value(one.before) if one.change != "added" else "not there", 20_000)),
            Content(""),
            toned(f"{after}  {one.after_type}", "accent"),
            Content(plain(_value(one.after) if one.change != "removed" else "not there", 20_000)),
        ]
        self.app.push_screen(Page("both values", Content("\n").join(lines), ascii_only=self.ascii_only))

    def on_table_chosen(self) -> None:
        self.action_open()


def _key(one: Difference) -> str:
    return f"{one.section}:{one.path}"


def _side(one: Difference, value: object, absent_when: str) -> tuple[str, str]:
    """A value in a cell; its type where that is what differs."""
    if one.change == absent_when:
        return "not there", "dim"
    text = _value(value)
    if one.change == "retyped":
        text += f" ({one.before_type if value is one.before else one.after_type})"
    return plain(text, 200), "dim" if one.grade == "harmless" else ""


def _value(value: object) -> str:
    return number(value, 9) if isinstance(value, float) else "null" if value is None else str(value)
