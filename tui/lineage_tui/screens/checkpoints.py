"""The generations of a run: which are whole, which were verified, restored, pinned, and what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from textual.widget import Widget

from lineage_schemas.ids import parse_generation_name
from lineage_tui.messages import Answer, Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact
from lineage_tui.widgets.table import Cell, Column, LazyRows, Row, Table
from lineage_tui.widgets.words import age, clock, count, plain, plural, size

if TYPE_CHECKING:
    from lineage.view import RunView

COLUMNS: Final = (
    Column("step", 9, align="right"),
    Column("ses", 3, align="right"),
    Column("state", 13),
    Column("size", 8, align="right"),
    Column("committed", 9, align="right", drop=3),
    Column("verified", 9, align="right", drop=4),
    Column("restored", 9, align="right", drop=5),
    Column("pin", 3, drop=2),
    Column("name", 31),
    Column("remark", 12, grow=1, drop=1),
)
REREAD_S: Final = 3.0


@dataclass(frozen=True)
class Generation:
    """One generation as the list has it; times are Unix seconds.

    Attributes:
        state: whole, quarantined, damaged, unusable, unfinished, gone, or recorded (no folder here).
    """

    name: str
    step: int
    ordinal: int
    state: str
    size_bytes: int | None = None
    committed_at: float | None = None
    verified_at: float | None = None
    restored_at: float | None = None
    pinned: bool = False
    remark: str = ""


STATES: Final = {
    "whole": ("◆", "#", "good"),
    "verified": ("◆", "#", "good"),
    "recorded": ("◇", "o", "dim"),
    "deleted": ("◇", "o", "dim"),
    "quarantined": ("■", "q", "warn"),
    "unfinished": ("◌", ".", "warn"),
    "damaged": ("✗", "!", "bad"),
    "unusable": ("✗", "!", "bad"),
}


def read_generations(view: RunView) -> tuple[list[Generation], list[str]]:
    """The generations of a run, newest first, and remarks about the folder. Reads manifests, no tensors."""
    from lineage.checkpoint import ledger
    from lineage.checkpoint.discover import discover

    found = discover(view.dir)
    standings = ledger.standings(ledger.read(view.dir.ledger))
    rows: dict[str, Generation] = {}

    def add(name: str, state: str, *, size_bytes: int | None = None, remark: str = "", at: float | None = None) -> None:
        parsed = parse_generation_name(name)
        standing = standings.get(name, ledger.Standing())
        if standing.damaged and state == "whole":
            state = "damaged"
        rows[name] = Generation(
            name=name,
            step=parsed[0] if parsed else 0,
            ordinal=parsed[1] if parsed else 0,
            state="verified" if state == "whole" and standing.verified_at is not None else state,
            size_bytes=size_bytes,
            committed_at=standing.committed_at or at,
            verified_at=standing.verified_at,
            restored_at=standing.restored_at,
            pinned=standing.pinned,
            remark=remark,
        )

    for one in found.candidates:
        state = "quarantined" if one.quarantined is not None else "whole"
        at = one.manifest.created_at.timestamp()
        add(one.name, state, size_bytes=one.size_bytes, remark=one.quarantined or "", at=at)
    for rejected in found.rejected:
        add(rejected.name, "unusable", remark=rejected.reason)
    for name in found.incomplete:
        add(name, "unfinished", remark="never committed: the save did not finish")
    saved = {getattr(event, "checkpoint", ""): event for event in view.events("checkpoint_saved")}
    for session in view.record.sessions:
        for name in session.checkpoints:
            if name not in rows:
                event = saved.get(name)
                gone = standings.get(name, ledger.Standing()).deleted
                add(
                    name,
                    "deleted" if gone else "recorded",
                    size_bytes=getattr(event, "size_bytes", None),
                    remark="deleted by retention" if gone else "no files here",
                    at=event.ts if event is not None else None,
                )
    order = sorted(rows.values(), key=lambda one: (one.ordinal, one.step), reverse=True)
    return order, list(found.notes) + [f"unknown: {name}" for name in found.unknown[:20]]


class CheckpointsScreen(ListScreen):
    """The generations as a table."""

    place: ClassVar[str] = "checkpoints"
    topics: ClassVar[frozenset[str]] = frozenset({"checkpoints", "verify", "pin", "whence"})

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._all: list[Generation] | None = None
        self._shown: list[Generation] = []
        self._notes: list[str] = []
        self._read_for: tuple[str, int] | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only)
        yield self.filter

    def runs_changed(self) -> None:
        self._all = None
        self._read_for = None

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        super().snapshot_changed(snapshot)
        main = self.lineage.snapshot
        if main is None:
            return
        num = sum(event.kind.startswith("checkpoint") for event in main.events)
        if self._read_for != (main.key, num):
            self._read_for = (main.key, num)
            self.reread()
        self._list()

    def reread(self) -> None:
        """Look at the folder again, in the reading thread."""
        self.lineage.ask("checkpoints", read_generations)

    def answered(self, answer: Answer) -> None:
        if answer.topic == "checkpoints":
            if answer.problem is not None:
                self.panel.show_problem(answer.problem)
                return
            self._all, self._notes = answer.value
            self._list()

    def filter_changed(self) -> None:
        self._list()

    def _list(self) -> None:
        if not self.is_mounted:
            return
        words = self.filter.value
        self._shown = [one for one in self._all or () if matches(words, one.name, one.state, one.remark, str(one.step))]
        if self._all is None:
            self.table.empty = "looking at the checkpoints"
        else:
            self.table.empty = "no checkpoint fits the filter" if self._all else "no checkpoint yet"
        now = self.lineage.options.clock()
        keep = self.table.row.key if self.table.row else None
        self.table.set_rows(LazyRows(self._shown, lambda one: self._row(one, now)), keep=keep)
        self.show_header()

    def _row(self, one: Generation, now: float) -> Row:
        glyph, flat, tone = STATES[one.state]

        def ago(at: float | None) -> Cell:
            return Cell(age(now - at) if at is not None else "", "dim")

        return Row(
            one.name,
            (
                Cell(count(one.step), "strong"),
                Cell(str(one.ordinal), "dim"),
                Cell(f"{flat if self.ascii_only else glyph} {one.state}", tone),
                Cell(size(one.size_bytes)),
                ago(one.committed_at),
                ago(one.verified_at),
                ago(one.restored_at),
                Cell("pin" if one.pinned else "", "info"),
                Cell(plain(one.name, 80)),
                Cell(plain(one.remark, 300), tone if one.remark else ""),
            ),
        )

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        if self._all is not None:
            right = [*right, Fact(plural(len(self._all), "checkpoint"), "dim", 4)]
            right += [Fact(f"! {plain(note, 80)}", "warn", 5) for note in self._notes[:1]]
        return left, right

    # -- actions ---------------------------------------------------------------------------------------------------
    def generation(self) -> Generation | None:
        """The one under the cursor."""
        return self._shown[self.table.cursor] if self._shown and self.table.row else None

    def action_open(self) -> None:
        one = self.generation()
        if one is not None:
            self.lineage.go_to_step(one.step)

    def on_table_chosen(self) -> None:
        self.action_open()


def when(at: float | None) -> str:
    """A time in full, for a page."""
    return clock(at) if at is not None else "never"
