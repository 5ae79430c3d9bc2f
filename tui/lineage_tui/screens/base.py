"""What every screen shares: header, tab line and footer around a body, and how news reaches it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from lineage_tui import keys
from lineage_tui.messages import Answer, Problem, Snapshot, VerifyProgress
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, Footer, Header, Tabs
from lineage_tui.widgets.filter_line import FilterLine
from lineage_tui.widgets.panel import ProblemPanel
from lineage_tui.widgets.said import Said
from lineage_tui.widgets.table import Table
from lineage_tui.widgets.words import STATE_TONES, count, plain, plural, shortened, state_glyph

if TYPE_CHECKING:
    from lineage_tui.app import LineageApp


class LineageScreen(Screen[None]):
    """A screen of the app.

    Attributes:
        place: its name in `keys.SCREENS`.
        topics: questions to the reading thread whose answers come here.
    """

    place: ClassVar[str] = "page"
    topics: ClassVar[frozenset[str]] = frozenset()
    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init_subclass__(cls, **kwargs: object) -> None:
        if "place" in cls.__dict__:
            cls.BINDINGS = list(keys.bindings(cls.place))
        super().__init_subclass__(**kwargs)  # type: ignore[arg-type]  # Textual's own class keywords

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self.glyphs = glyphs
        self.header = Header(ascii_only=glyphs == "ascii")
        self.footer = Footer(self.place, ascii_only=glyphs == "ascii")
        self.panel = ProblemPanel(ascii_only=glyphs == "ascii")
        self.said = Said(ascii_only=glyphs == "ascii")

    @property
    def lineage(self) -> LineageApp:
        return cast("LineageApp", self.app)

    @property
    def ascii_only(self) -> bool:
        return self.glyphs == "ascii"

    def compose(self) -> ComposeResult:
        from lineage_tui.screens import FACTORIES

        yield self.header
        yield Tabs(self.place, tuple(FACTORIES))
        yield self.panel
        yield from self.compose_body()
        yield self.footer
        yield self.said

    def compose_body(self) -> Iterable[Widget]:
        """The widgets between header and footer."""
        raise NotImplementedError

    # -- news ------------------------------------------------------------------------------------------------------
    def on_screen_resume(self) -> None:
        """Come up: show what there is by now."""
        self.draw_all()

    def on_mount(self) -> None:
        self.draw_all()

    def draw_all(self) -> None:
        """Draw everything anew from the app's pictures."""
        self.problem_changed()
        if (snapshot := self.lineage.snapshot) is not None:
            self.snapshot_changed(snapshot)

    def snapshot_changed(self, snapshot: Snapshot) -> None:  # noqa: ARG002  # for those who override it
        """There is a newer picture of one of the open runs."""
        self.show_header()
        self.panel.show_problem(None)

    def problem_changed(self) -> None:
        """A run could not be read: a panel when there is nothing else to show, a word in the header otherwise."""
        self.show_header()
        main = self.lineage.main_key
        problem = self.lineage.problems.get(main) if main else None
        self.panel.show_problem(problem if self.lineage.snapshot is None else None)

    def folder_changed(self) -> None:
        """The folder of runs changed."""

    def runs_changed(self) -> None:
        """Other runs are looked at."""

    def answered(self, answer: Answer) -> None:
        """The reading thread answered a question of `topics`."""

    def progressed(self, progress: VerifyProgress) -> None:
        """A verification in the background came further."""

    def say(self, note: str) -> None:
        """Answer a key with one line, for a moment."""
        self.said.say(note)

    def step_back(self) -> bool:
        """Close the innermost thing this screen has open; False when there is none."""
        return False

    def show_step(self, step: int | None, session: str | None = None) -> None:
        """Turn to a step."""

    def show_session(self, session: str) -> None:
        """Turn to a session."""

    def session_here(self) -> str | None:
        """The session that the cursor of this screen is on; None when it is on none."""
        return None

    def on_resize(self, event: Resize) -> None:
        """The tab line comes with height."""
        self.set_class(event.size.height >= 30, "-tall")

    # -- the header ------------------------------------------------------------------------------------------------
    def show_header(self) -> None:
        left, right = self.header_facts()
        self.header.set_facts(left, right)

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        app = self.lineage
        snapshot = app.snapshot
        if snapshot is None:
            name = app.main_key.rpartition("/")[2] if app.main_key else app.folder_path.name
            return [Fact("lineage", "dim", 9), Fact(plain(name, 60), "strong")], self.problem_facts()
        record = snapshot.record
        state = snapshot.state
        skipped = snapshot.num_skipped
        left = [
            Fact("lineage", "dim", 9),
            Fact(plain(record.id, 48), "dim", 8),
            Fact(shortened(plain(record.name, 80), 32), "strong", 1),
            Fact(f"{state_glyph(state, self.glyphs)} {state}", STATE_TONES.get(state, "")),
            Fact(f"step {count(snapshot.last_step)}", "", 3),
            Fact(plural(len(record.sessions), "session"), "", 5),
            Fact(f"{skipped:,} skipped" if skipped else "", "bad", 6),
            Fact(f"+{len(app.open_keys) - 1} overlaid" if len(app.open_keys) > 1 else "", "info", 7),
        ]
        return left, self.problem_facts()

    def problem_facts(self) -> list[Fact]:
        app = self.lineage
        main = app.main_key
        facts: list[Fact] = []
        if main and main in app.problems and app.snapshot is not None:
            facts.append(Fact(f"! {app.problems[main].what}", "bad", 2))
        if app.snapshot is not None and app.snapshot.num_unread:
            newest = app.snapshot.num_unread, app.snapshot.num_bytes
            num_unread, num_bytes = app.progress.get(app.snapshot.key, newest)
            done = 1 - num_unread / max(num_bytes, 1)
            cells = min(max(round(done * 10), 0), 10)
            bar = ("#" * cells + "." * (10 - cells)) if self.ascii_only else "█" * cells + "░" * (10 - cells)
            facts.append(Fact(f"reading {bar} {done:.0%}", "info", 1))
        num_damaged = sum(len(s.damage) for s in app.snapshots.values())
        if num_damaged:
            facts.append(Fact(f"! {num_damaged:,} damaged", "bad", 2))
        if any(snapshot.torn is not None for snapshot in app.snapshots.values()):
            facts.append(Fact("! torn tail", "warn", 3))
        return facts


class ListScreen(LineageScreen):
    """A screen around a table, with a filter line and maybe something beside it.

    Attributes:
        what: what its rows are, in the plural.
        filtered_by: what the words of the filter are looked for in.
        newest_last: its rows stand in the order of time, and one begins at the end.
        filter: where they are typed.
    """

    what: ClassVar[str] = "rows"
    filtered_by: ClassVar[str] = ""
    newest_last: ClassVar[bool] = False

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self.filter_line = FilterLine(f"words in {self.filtered_by}" if self.filtered_by else "filter")
        self.filter = self.filter_line.input

    @property
    def table(self) -> Table:
        """The list that the keys move."""
        return self.query_one("#list", Table)

    # -- filter ----------------------------------------------------------------------------------------------------
    def show_count(self, num_shown: int, num_all: int) -> None:
        """How many of the rows the filter leaves."""
        self.filter_line.show_count(num_shown, num_all, self.what)

    def action_filter(self) -> None:
        self.filter_line.display = True
        self.filter.focus()
        self.said.say("enter keeps the filter, esc clears it, ↑ ↓ move in what is left", "", None)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is not self.filter:
            return
        before = self.table.row
        self.filter_changed()
        if not self.newest_last and before is not None and self.table.row and self.table.row.key != before.key:
            self.table.select(0)  # the row it was on is filtered away

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self.filter:
            self.set_focus(None)
            self.said.say("")
            self.filter_line.display = bool(self.filter.value)

    def filter_changed(self) -> None:
        """Other words in the filter line."""

    def step_back(self) -> bool:
        if self.filter_line.display:
            had = bool(self.filter.value)
            self.filter.value = ""
            self.filter_line.display = False
            self.set_focus(None)
            self.said.say("")
            if had:
                self.filter_changed()
            return True
        return False

    # -- moving ----------------------------------------------------------------------------------------------------
    def action_row(self, by: int) -> None:
        self.table.move(by)

    def action_page(self, by: int) -> None:
        self.table.move_page(by)

    def action_edge(self, to: int) -> None:
        self.table.move_edge(to)

    def side(self) -> Widget | None:
        """What stands beside or under the list and scrolls; None when nothing does."""
        return None

    def action_side(self) -> None:
        """Let the keys scroll the other pane, and back."""
        side = self.side()
        if side is not None:
            side.scroll_page_down(animate=False) if side.scroll_offset.y < side.max_scroll_y else side.scroll_home(
                animate=False
            )

    def action_scroll_side(self, by: int) -> None:
        side = self.side()
        if side is not None:
            side.scroll_relative(y=by * 3, animate=False, force=True)


def matches(text: str, *fields: str) -> bool:
    """Whether every word of the filter is in one of the fields, whatever the case."""
    hay = " ".join(fields).casefold()
    return all(word in hay for word in text.casefold().split())


__all__ = ["LineageScreen", "ListScreen", "Problem", "matches"]
