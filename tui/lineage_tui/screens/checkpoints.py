"""The generations of a run: which are whole, which were verified, restored, pinned, and what is wrong with the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from lineage_schemas.events import CheckpointSavedEvent
from lineage_schemas.ids import parse_generation_name
from lineage_schemas.run import Run, Session
from lineage_tui.messages import Answer, Snapshot, VerifyProgress
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.screens.pages import Page
from lineage_tui.screens.sessions import started_from, verdict_text
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact, joined, toned
from lineage_tui.widgets.table import Cell, Column, LazyRows, Row, Table
from lineage_tui.widgets.words import age, ago, count, plain, plural, size, to_ascii

if TYPE_CHECKING:
    from lineage.checkpoint.generations import State
    from lineage.checkpoint.verify import Fault, VerifyReport
    from lineage.history.whence import Whence
    from lineage.layout import RunDir
    from lineage.view import RunView

COLUMNS: Final = (
    Column("step", 9, align="right", most=14),
    Column("ses", 3, align="right"),
    Column("state", 13),
    Column("size", 8, align="right"),
    Column("committed", 9, align="right", drop=3),
    Column("verified", 9, align="right", drop=4),
    Column("restored", 9, align="right", drop=5),
    Column("pin", 3),
    Column("name", 31, cut="middle"),
    Column("remark", 30, grow=1, drop=6),
)

STATES: Final[dict[State, tuple[str, str, str]]] = {
    # state: (glyph, ASCII, tone)
    "committed": ("◆", "#", "info"),
    "verified": ("✓", "+", "good"),
    "restorable": ("◈", "R", "good"),
    "quarantined": ("■", "q", "warn"),
    "damaged": ("✗", "!", "bad"),
    "gone": ("◇", "o", "dim"),
    "unfinished": ("◌", ".", "warn"),
    "export": ("▫", "e", "info"),
}
MEANINGS: Final[dict[State, str]] = {
    "committed": "whole as far as manifest, name and sizes tell; v rereads every byte",
    "verified": "every byte was reread and found right",
    "restorable": "a restore of it succeeded",
    "quarantined": "a restore of it, or of one like it, failed: no resume takes it by itself",
    "damaged": "something of it is missing or wrong",
    "gone": "no files here",
    "unfinished": "never committed: the save did not finish",
    "export": "weights only: nothing can be resumed from it",
}
PINNABLE: Final[frozenset[State]] = frozenset({"committed", "verified", "restorable", "quarantined", "damaged"})


@dataclass(frozen=True)
class Generation:
    """One generation as the list has it; times are Unix seconds."""

    name: str
    step: int
    ordinal: int
    state: State
    size_bytes: int | None = None
    committed_at: float | None = None
    verified_at: float | None = None
    restored_at: float | None = None
    pinned: bool = False
    remark: str = ""


def read_generations(view: RunView) -> tuple[list[Generation], list[str]]:
    """The generations of a run, newest first, and remarks about the folder. Reads manifests, no tensors."""
    saved = {event.checkpoint: event for event in view.events() if isinstance(event, CheckpointSavedEvent)}
    return generations_of(view.dir, view.record, saved)


def generations_of(
    run_dir: RunDir, record: Run, saved: Mapping[str, CheckpointSavedEvent]
) -> tuple[list[Generation], list[str]]:
    """What is on disk and what run.json tells of, newest first, and remarks about the folder.

    Args:
        run_dir: the run's folder.
        record: its run.json.
        saved: the log's line for each generation; size and time of those that are gone.
    """
    from lineage.checkpoint import ledger
    from lineage.checkpoint.discover import discover
    from lineage.checkpoint.generations import list_generations

    found = discover(run_dir)
    standings = ledger.standings(ledger.read(run_dir.ledger))
    rows: dict[str, Generation] = {}

    def add(name: str, state: State, remark: str, size_bytes: int | None = None, at: float | None = None) -> None:
        parsed = parse_generation_name(name)
        standing = standings.get(name, ledger.Standing())
        rows[name] = Generation(
            name=name,
            step=parsed[0] if parsed else 0,
            ordinal=parsed[1] if parsed else 0,
            state=state,
            size_bytes=size_bytes,
            committed_at=standing.committed_at or at,
            verified_at=standing.verified_at,
            restored_at=standing.restored_at,
            pinned=standing.pinned,
            remark=remark,
        )

    for one in list_generations(run_dir):
        remark = one.problem or one.quarantined or ""
        if one.state == "gone":
            remark = "its files are not here, only the manifest: nothing can be resumed from it"
        elif one.state == "export":
            remark = MEANINGS["export"]
        add(one.name, one.state, remark, one.size_bytes, one.committed_at)
    for rejected in found.rejected:
        if rejected.name not in rows:
            is_here = os.path.lexists(run_dir.checkpoints_dir / rejected.name)
            add(rejected.name, "damaged" if is_here else "gone", rejected.reason)
    for name in found.incomplete:
        add(name, "unfinished", MEANINGS["unfinished"])
    for session in record.sessions:
        for name in session.checkpoints:
            event = saved.get(name)
            if name not in rows:
                remark = "deleted by retention" if name in standings and standings[name].deleted else MEANINGS["gone"]
                add(name, "gone", remark)
            if rows[name].state == "gone" and event is not None:
                size_bytes, at = rows[name].size_bytes or event.size_bytes, rows[name].committed_at or event.ts
                rows[name] = replace(rows[name], size_bytes=size_bytes, committed_at=at)
    order = sorted(rows.values(), key=lambda one: (one.ordinal, one.step), reverse=True)
    return order, list(found.notes) + [f"unknown: {name}" for name in found.unknown[:20]]


class CheckpointsScreen(ListScreen):
    """The generations as a table."""

    place: ClassVar[str] = "checkpoints"
    what: ClassVar[str] = "checkpoints"
    filtered_by: ClassVar[str] = "name, state, step, remark"
    topics: ClassVar[frozenset[str]] = frozenset({"checkpoints", "verify", "pin", "whence"})

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._all: list[Generation] | None = None
        self._shown: list[Generation] = []
        self._notes: list[str] = []
        self._read_for: tuple[str, int] | None = None
        self._progress: VerifyProgress | None = None
        self.verified: VerifyReport | None = None
        self._faults: dict[str, list[Fault]] = {}

    @property
    def verifying(self) -> bool:
        """Whether a verification runs in the background."""
        return self._progress is not None

    def compose_body(self) -> Iterable[Widget]:
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only)
        yield self.filter_line
        yield Static(id="remark")

    def on_table_highlighted(self) -> None:
        self._show_remark()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self._show_remark()

    def _show_remark(self) -> None:
        """The one under the cursor in full: its columns may be too narrow, or not there; and what its state means."""
        one = self.generation()
        shown = self.query_one("#remark", Static)
        shown.display = one is not None
        if one is None:
            return
        now = self.lineage.options.clock()
        verified = "last verified" if one.state == "damaged" else "verified"
        times = (("committed", one.committed_at), (verified, one.verified_at), ("restored", one.restored_at))
        known = [f"{word} {ago(now - at)}" for word, at in times if at is not None]
        glyph, flat, tone = STATES[one.state]
        head = [toned(f"{plain(one.name, 80)}  ", "strong")]
        head.append(toned(f"{flat if self.ascii_only else glyph} {one.state}", tone))
        head.append(toned(f"  {', '.join(known)}", "dim"))
        head.append(toned("  pinned" if one.pinned else "", "accent"))
        remark = plain(self._remark(one) or MEANINGS[one.state], 2_000)
        shown.update(Content("\n").join([joined(head), toned(remark, tone if tone in {"warn", "bad"} else "")]))

    def _remark(self, one: Generation) -> str:
        faults = self._faults.get(one.name, [])
        return "; ".join(f"{fault.path}: {fault.message}" for fault in faults) or one.remark

    def runs_changed(self) -> None:
        self._all = self.verified = None
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
        elif answer.topic == "verify":
            self._progress = None
            if answer.problem is not None:
                self.say(answer.problem.what)
            else:
                self.verified = answer.value
                self._faults = {report.name: report.faults for report in answer.value.generations}
            self.reread()
            self._list()
        elif answer.problem is not None:
            self.say(answer.problem.what)
        elif answer.topic == "pin":
            self.say(answer.value)
            self.reread()
        elif answer.topic == "whence":
            self.app.push_screen(Page("whence", answer.value, ascii_only=self.ascii_only))

    def progressed(self, progress: VerifyProgress) -> None:
        """The verification came a piece further."""
        self._progress = progress
        self.show_header()

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
            self.table.empty = "no checkpoint fits the filter" if self._all else _none_yet(self.lineage.snapshot)
        now = self.lineage.options.clock()
        keep = self.table.row.key if self.table.row else None
        self.table.set_rows(LazyRows(self._shown, lambda one: self._row(one, now), lambda one: one.name), keep=keep)
        self.show_count(len(self._shown), len(self._all or ()))
        self._show_remark()
        self.show_header()

    def _row(self, one: Generation, now: float) -> Row:
        glyph, flat, tone = STATES[one.state]
        remark = self._remark(one)

        def since(at: float | None) -> Cell:
            return Cell(age(now - at) if at is not None else "", "dim")

        return Row(
            one.name,
            (
                Cell(count(one.step), "strong"),
                Cell(str(one.ordinal), "dim"),
                Cell(f"{flat if self.ascii_only else glyph} {one.state}", tone),
                Cell(size(one.size_bytes)),
                since(one.committed_at),
                since(one.verified_at),
                since(one.restored_at),
                Cell("pin" if one.pinned else "", "accent"),
                Cell(plain(one.name, 80)),
                Cell(plain(remark, 300), tone if remark else ""),
            ),
        )

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        if self._progress is not None:
            done = self._progress.done / max(self._progress.total, 1)
            cells = min(max(round(done * 12), 0), 12)
            bar = "#" * cells + "." * (12 - cells) if self.ascii_only else "█" * cells + "░" * (12 - cells)
            right = [*right, Fact(f"verifying {bar} {done:.0%}", "info", 1)]
        elif self.verified is not None:
            num, good = len(self.verified.generations), sum(one.ok for one in self.verified.generations)
            rate = f" at {size(int(self.verified.bytes_per_s))}/s" if self.verified.num_bytes else ""
            words = f"all verified{rate}" if good == num else f"{good:,} of {num:,} verified"
            right = [*right, Fact(words, "bad" if good < num else "good", 2)]
        if self._all is not None:
            shown = f"{len(self._shown):,} of " if len(self._shown) != len(self._all) else ""
            right = [*right, Fact(f"{shown}{plural(len(self._all), 'checkpoint')}", "dim", 4)]
            if any(one.state != "gone" for one in self._all):
                right += [Fact(f"! {plain(note, 80)}", "warn", 5) for note in self._notes[:1]]
        return left, right

    def session_here(self) -> str | None:
        one, snapshot = self.generation(), self.lineage.snapshot
        maker = _maker(snapshot.record, one.name) if one is not None and snapshot is not None else None
        return maker.id if maker is not None else None

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

    def action_verify(self) -> None:
        """Hash every file of every generation, in a thread of its own; the ledger keeps the result."""
        key = self.lineage.main_key
        if self._all is not None and not self._all:
            self.say("there is no checkpoint to verify")
        elif key is not None and self._progress is None:
            self._progress = VerifyProgress(key, 0, 0)
            self.lineage.verify(key)
            self.show_header()

    def action_pin(self) -> None:
        one = self.generation()
        if one is None:
            self.say("there is no checkpoint to pin")
            return
        if one.state not in PINNABLE and not one.pinned:
            self.say(f"{one.name} is {one.state}: nothing of it is to be kept by a pin")
            return
        self.lineage.ask("pin", partial(pin_generation, name=one.name, pinned=not one.pinned))

    def action_whence(self) -> None:
        one = self.generation()
        if one is None:
            self.say("there is no checkpoint to ask about")
        else:
            self.lineage.ask("whence", partial(chain_of, one=one, ascii_only=self.ascii_only))


def _none_yet(snapshot: Snapshot | None) -> str:
    """Why there is nothing in the list."""
    return "no checkpoint yet" if snapshot is not None and snapshot.live else "this run saved no checkpoint"


def pin_generation(view: RunView, name: str, *, pinned: bool) -> str:
    """Keep a generation through every prune, or no longer; what to say of it."""
    from lineage.checkpoint.retention import pin

    pin(view.dir, name, pinned=pinned)
    return f"pinned {name}: no prune deletes it" if pinned else f"unpinned {name}"


def chain_of(view: RunView, one: Generation, *, ascii_only: bool = False) -> Content:
    """From a checkpoint back to where it all began: session by session, across forks as far as the runs are here.

    What is on disk says by its manifest who made it, as `lineage whence` tells; a checkpoint that is gone, or damaged,
    is known from run.json and its name alone, and that is said.
    """
    from lineage_tui.screens.tree import read_family

    family = {id_: run for id_, (_, run) in read_family(view).items()}
    lines = [joined([toned(plain(one.name, 80), "strong"), toned(f"  step {one.step:,}", "dim")])]
    found = _whence(view, one)
    if found is not None and found.matches:
        match = found.matches[0]
        lines.append(toned(f"  recognised by {HOW_WORDS[match.how]}", "dim"))
        facts = (("recipe", match.recipe), ("commit", match.commit))
        lines += [joined([toned(f"  {word}  ", "dim"), Content(plain(fact, 80))]) for word, fact in facts if fact]
        links = [(link.run, link.session, link.checkpoint) for link in found.ancestry]
    else:
        lines.append(toned("  not on disk as it was saved: told from run.json alone", "warn"))
        links = _recorded_links(view.record, one.name, family)
    for number, (run_id, session_id, name) in enumerate(links):
        if number:
            lines.append(joined([toned("  restored   ", "dim"), Content(plain(name or "", 80))]))
        lines.append(_link_line(family.get(run_id), run_id, session_id, view.record.id))
    last_run = family.get(links[-1][0]) if links else None
    last = next((s for s in last_run.sessions if s.id == links[-1][1]), None) if last_run is not None else None
    if not links:
        lines.append(toned(f"  no session of {plain(view.record.name, 60)} says that it saved it", "warn"))
    elif last is not None and last.start.checkpoint is None:
        lines.append(toned("  where it began", "dim"))
    elif last is not None and last.start.run is not None and last.start.run not in family:
        lines.append(toned(f"  which forked from {plain(last.start.run, 60)}, not in this folder", "warn"))
    text = Content("\n").join(lines)
    return Content(to_ascii(text.plain)) if ascii_only else text


HOW_WORDS: Final = {
    "manifest": "its own manifest",
    "artifact": "the hash of the file",
    "tensors": "its tensors",
    "some tensors": "a part of the checkpoint's tensors",
}


def _whence(view: RunView, one: Generation) -> Whence | None:
    """What `lineage whence` says of the folder; None when there is none that can be read."""
    from lineage.errors import LineageError
    from lineage.history.whence import whence

    folder = (view.dir.exports_dir / one.name) if one.state == "export" else view.dir.generation(one.name)
    try:
        return whence(folder, [view.dir.path.parent])
    except (LineageError, OSError, ValueError):
        return None


def _link_line(run: Run | None, run_id: str, session_id: str, here: str) -> Content:
    """Whose session it was, how it started, and how it carried on."""
    session = next((s for s in run.sessions if s.id == session_id), None) if run is not None else None
    if run is None or session is None:
        return joined([toned("  saved by   ", "dim"), Content(f"{plain(run_id, 60)}, session {plain(session_id, 20)}")])
    verdict, tone = verdict_text(session)
    elsewhere = f" ({plain(run_id, 60)})" if run_id != here else ""
    words = f"{plain(run.name, 60)}{elsewhere}, session {session.ordinal}, {started_from(session)}  "
    return joined([toned("  saved by   ", "dim"), Content(words), toned(verdict, tone)])


def _recorded_links(record: Run, name: str, family: Mapping[str, Run]) -> list[tuple[str, str, str | None]]:
    """Run, session and generation on the way back, as far as run.json of the runs that are here tells."""
    links: list[tuple[str, str, str | None]] = []
    run: Run | None = record
    wanted: str | None = name
    while run is not None and wanted is not None:
        session = _maker(run, wanted)
        if session is None or (run.id, session.id, wanted) in links:
            break
        links.append((run.id, session.id, wanted))
        wanted = session.start.checkpoint
        run = family.get(session.start.run) if session.start.run is not None else run
    return links


def _maker(run: Run, name: str) -> Session | None:
    """The session that saved a generation: the one that lists it, else the one its name says."""
    parsed = parse_generation_name(name)
    named = [session for session in run.sessions if name in session.checkpoints]
    named += [session for session in run.sessions if parsed is not None and session.ordinal == parsed[1]]
    return named[0] if named else None
