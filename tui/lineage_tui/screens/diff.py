"""Two sessions side by side: only what differs, what matters first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from lineage.history.diff import GRADES, SECTIONS, Compared, Difference, SessionSide
from lineage_schemas.run import Run, Session
from lineage_tui.messages import Answer, Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.screens.pages import Page
from lineage_tui.screens.sessions import started_from
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, joined, toned
from lineage_tui.widgets.table import Cell, Column, LazyRows, Row, Table
from lineage_tui.widgets.words import number, plain, plural

if TYPE_CHECKING:
    from lineage.view import RunView

COLUMNS: Final = (
    Column("", 1),
    Column("matters", 10),
    Column("section", 11, drop=3),
    Column("path", 16, grow=3, cut="middle"),
    Column("before", 12, grow=3),
    Column("after", 12, grow=3),
    Column("because", 16, grow=2, drop=4),
)
TALL_FROM: Final = 16
"""From this height on both values of the difference under the cursor stand below the list."""
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


def session_to_show(snapshot: Snapshot) -> Session | None:
    """The session whose comparison tells most: the last that became another experiment, else the last one."""
    sessions = sorted(snapshot.record.sessions, key=lambda session: session.ordinal)
    strayed = [session for session in sessions[1:] if _strayed(session, snapshot)]
    return strayed[-1] if strayed else sessions[-1] if sessions else None


def _strayed(session: Session, snapshot: Snapshot) -> bool:
    found = snapshot.resumes.get(session.id) or session.continuation
    segment = snapshot.segment(session.id)
    nothing_restored = session.start.kind == "fresh" and segment is not None and segment.start_step > 0
    return nothing_restored or (found is not None and found.verdict == "diverged")


def session_on_line(snapshot: Snapshot, step: int) -> str | None:
    """The session at a step of the curves; on a boundary the one that begins there is meant."""
    begun = [segment.session for segment in snapshot.segments if segment.ordinal > 1 and segment.start_step == step]
    found = snapshot.session_at(step)
    return str(begun[-1]) if begun else found.id if found is not None else None


def read_parent(view: RunView, run: str) -> Run | None:
    """The run that this one was forked from, where it is in the same folder."""
    from lineage_tui.screens.tree import read_family

    found = read_family(view).get(run)
    return found[1] if found is not None else None


class DiffScreen(ListScreen):
    """The differences of two sessions, graded."""

    place: ClassVar[str] = "diff"
    what: ClassVar[str] = "differences"
    filtered_by: ClassVar[str] = "path, section, grade, values"
    topics: ClassVar[frozenset[str]] = frozenset({"diff", "parent"})

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._session: str | None = None
        self._against: tuple[str, str] | None = None
        self._sides: Sides | None = None
        self._asked: str | None = None
        self._found: Compared | None = None
        self._shown: list[Difference] = []
        self._parents: dict[str, Run | None] = {}

    def compose_body(self) -> Iterable[Widget]:
        yield Static(id="diff-title")
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only)
        yield self.filter_line
        yield Static(id="remark", classes="event")

    # -- news ------------------------------------------------------------------------------------------------------
    def runs_changed(self) -> None:
        self._session = self._against = self._sides = self._asked = self._found = None
        self._parents.clear()
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
            sides.topic, lambda _: Compared.of(SessionSide.of(*sides.before), SessionSide.of(*sides.after))
        )
        self._list()

    def _find_sides(self) -> Sides | None:
        """The session that was chosen, or the one that tells most, and the one it came from."""
        snapshot = self.lineage.snapshot
        after = None if snapshot is None else self._after(snapshot)
        if snapshot is None or after is None:
            return None
        record = snapshot.record
        if self._against is not None:
            for other in self._open():
                for session in other.sessions:
                    if (other.id, session.id) == self._against:
                        pair = Sides((other, session), (record, after))
                        is_later = other.id == record.id and session.ordinal > after.ordinal
                        return Sides(pair.after, pair.before) if is_later else pair
        before = origin_of(after, snapshot)
        if before is not None:
            return Sides((record, before), (record, after))
        if (parent := self._parent_of(after)) is not None:
            return Sides(parent, (record, after))
        later = min((s for s in record.sessions if s.ordinal > after.ordinal), key=lambda s: s.ordinal, default=None)
        if later is not None:
            return Sides((record, after), (record, later))
        overlaid = [run for run in self._open()[1:] if run.sessions]
        return Sides((overlaid[0], overlaid[0].sessions[-1]), (record, after)) if overlaid else None

    def _after(self, snapshot: Snapshot) -> Session | None:
        chosen = next((one for one in snapshot.record.sessions if one.id == self._session), None)
        return chosen or session_to_show(snapshot)

    def _open(self) -> list[Run]:
        """The runs that are looked at, the main one first."""
        found = [self.lineage.snapshots.get(key) for key in self.lineage.open_keys]
        return [snapshot.record for snapshot in found if snapshot is not None]

    def _parent_of(self, session: Session) -> tuple[Run, Session] | None:
        """The session of another run that one was forked from, where that run is here."""
        start = session.start
        if start.run is None:
            return None
        run = next((run for run in self._open() if run.id == start.run), None) or self._parents.get(start.run)
        if run is None and start.run not in self._parents:
            self._parents[start.run] = None
            self.lineage.ask(f"parent:{start.run}", partial(read_parent, run=start.run))
        source = next((one for one in run.sessions if one.id == start.session), None) if run is not None else None
        return (run, source) if run is not None and source is not None else None

    def answered(self, answer: Answer) -> None:
        topic, _, run = answer.topic.partition(":")
        if topic == "parent":
            self._parents[run] = answer.value
            self._ask()
            return
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
                for one in (self._found.differences if self._found is not None else ())
                if matches(words, one.section, one.path, one.grade, str(one.before), str(one.after), one.why)
            ),
            key=lambda one: (order[one.grade], sections[one.section]),
        )
        table = self.table
        if self._sides is None:
            table.empty = (
                "nothing to compare it with: this run was not resumed. In the list of runs, space selects several and "
                "enter opens them; then b compares their sessions"
            )
        elif self._found is None:
            table.empty = "comparing"
        elif not self._found.differences:
            table.empty = f"{self._found.told()}. {{ }} goes to another session, b puts another on the other side"
        else:
            table.empty = "no difference fits the filter"
        if self._sides is not None:
            before, after = self._sides.labels
            table.set_columns([*COLUMNS[:4], Column(before, 12, grow=3), Column(after, 12, grow=3), COLUMNS[6]])
        table.set_rows(LazyRows(self._shown, self._row, _key), keep=table.row.key if table.row else None)
        self.show_count(len(self._shown), len(self._found.differences) if self._found is not None else 0)
        self.query_one("#diff-title", Static).update(self._title())
        self._show_values()
        self.show_header()

    def on_table_highlighted(self) -> None:
        self._show_values()

    def _show_values(self) -> None:
        """Both values of the difference under the cursor, which the columns may cut; its place never moves."""
        shown = self.query_one("#remark", Static)
        shown.display = bool(self._shown) and self.size.height >= TALL_FROM
        if self._sides is None or not shown.display or self.table.row is None:
            return
        one = self._shown[self.table.cursor]
        labels = self._sides.labels
        cells = max(map(cell_len, labels))
        head = joined(
            [
                toned(f"{one.section}  ", "dim"),
                toned(plain(one.path or f"the whole {one.section}", 200), "strong"),
                toned(f"  {one.grade}", GRADE_TONES[one.grade]),
                toned(f"  {plain(one.why, 200)}", "dim"),
            ]
        )
        values = (_side(one, one.before, "added"), _side(one, one.after, "removed"))
        lines = [
            joined([toned(f"{set_cell_size(label, cells)}  ", "accent"), toned(*value)])
            for label, value in zip(labels, values, strict=True)
        ]
        shown.update(Content("\n").join([head, *lines]))

    def _title(self) -> Content:
        """Which sessions are compared and why these, then what was found."""
        if self._sides is None:
            alone = self.lineage.snapshot is not None and len(self.lineage.snapshot.record.sessions) == 1
            return toned(" one session" if alone else " no session yet" if self.lineage.snapshot else "", "strong")
        before, after = self._sides.labels
        label = f"{before} -> {after}"
        room = self.size.width - cell_len(label) - 5
        pairs = [self._pair(started=True), self._pair(started=False)]
        pair = next((one for one in pairs if cell_len(one) <= room), pairs[-1])
        first = joined([Content(" "), toned(label, "strong"), toned(f"   {pair}", "dim")])
        return Content("\n").join([first, self._counts()])

    def _pair(self, *, started: bool) -> str:
        """What the sessions are to each other; how each was `started`, where there is room for it."""
        sides, snapshot = self._sides, self.lineage.snapshot
        if sides is None or snapshot is None:
            return ""
        (run_a, a), (run_b, b) = sides.before, sides.after
        here = snapshot.record.id

        def named(run: Run, session: Session) -> str:
            of = "" if run.id == here else f" of {plain(run.name, 32)}"
            segment = snapshot.segment(session.id) if run.id == here else None
            return f"session {session.ordinal}{of}" + (f" ({started_from(session, segment)})" if started else "")

        came_from = origin_of(b, snapshot) if run_b.id == here else None
        if run_a.id == run_b.id and came_from is not None and came_from.id == a.id:
            came = " before it" if b.start.kind == "fresh" else ", which it came from"
            return f"{named(run_b, b)} against session {a.ordinal}{came}"
        if (run_a.id, a.id) == (b.start.run, b.start.session):
            return f"{named(run_b, b)} against the one it was forked from"
        return f"{named(run_b, b)} against {named(run_a, a)}"

    def _counts(self) -> Content:
        if self._found is None:
            return Content("")
        found, num = self._found, self._found.num_equal
        if not found.differences:
            return toned(
                f" no difference: {plural(num, 'value')} compared, all equal" if num else " no difference", "good"
            )
        is_wide = self.size.width >= 100
        parts = [Content(" ")]
        for grade, words in (
            ("experiment", "change the experiment"),
            ("numerics", "may change numerics"),
            ("harmless", "harmless"),
        ):
            if graded := sum(one.grade == grade for one in found.differences):
                glyph = GRADE_GLYPHS[grade][self.ascii_only]
                said = f"{glyph} {graded:,} {words if is_wide else grade}"
                parts += [toned(said, GRADE_TONES[grade]), Content("   ")]
        return joined([*parts, toned(f"= {num:,} equal", "dim")])

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
            right = [*right, Fact(plural(len(self._found.differences), "difference"), "dim", 4)]
        return left, right

    # -- actions ---------------------------------------------------------------------------------------------------
    def action_jump(self, by: int) -> None:
        at = self.table.cursor
        places = [i for i, one in enumerate(self._shown) if one.grade != "harmless" and (i > at if by > 0 else i < at)]
        if places:
            self.table.select(places[0] if by > 0 else places[-1])
        else:
            self.say(f"no {'further' if by > 0 else 'earlier'} difference that matters: the others are harmless")

    def action_session(self, by: int) -> None:
        snapshot = self.lineage.snapshot
        if snapshot is None or self._sides is None:
            return
        run, now = self._sides.after
        later = [s for s in sorted(snapshot.record.sessions, key=lambda s: s.ordinal) if self._has_origin(s)]
        at = next((i for i, s in enumerate(later) if (run.id, s.id) == (snapshot.record.id, now.id)), None)
        if at is None or not 0 <= at + by < len(later):
            self.say(f"no {'later' if by > 0 else 'earlier'} session came from another")
            return
        self.show_session(later[at + by].id)

    def _has_origin(self, session: Session) -> bool:
        snapshot = self.lineage.snapshot
        return snapshot is not None and (origin_of(session, snapshot) is not None or session.start.run is not None)

    def action_against(self) -> None:
        """The next session of any open run on the other side."""
        snapshot = self.lineage.snapshot
        mine = self._after(snapshot) if snapshot is not None else None
        if snapshot is None or mine is None:
            return
        choices = [
            (run.id, other.id)
            for run in self._open()
            for other in sorted(run.sessions, key=lambda s: s.ordinal)
            if (run.id, other.id) != (snapshot.record.id, mine.id)
        ]
        sides = (self._sides.before, self._sides.after) if self._sides is not None else ()
        shown = [(run.id, session.id) for run, session in sides]
        if not set(choices) - set(shown):
            self.say(
                "there is no other session to compare it with: several runs can be selected in the list, with space"
            )
            return
        now = next((one for one in shown if one in choices), choices[-1])
        self._against = choices[(choices.index(now) + 1) % len(choices)]
        self._session = mine.id
        self._ask()

    def action_open(self) -> None:
        if not self._shown or self._sides is None:
            self.say("there is no difference to show in full")
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

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self.query_one("#diff-title", Static).update(self._title())
        self._show_values()


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
