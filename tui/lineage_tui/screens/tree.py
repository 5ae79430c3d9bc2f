"""Where everything came from: runs, their sessions and checkpoints, and the forks between runs, as one tree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual.widget import Widget

from lineage.errors import LineageError
from lineage_schemas.ids import parse_generation_name
from lineage_schemas.run import Run, Session
from lineage_tui.messages import Answer, Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.screens.checkpoints import STATES, generations_of
from lineage_tui.screens.diff import origin_of
from lineage_tui.screens.sessions import started_from, verdict_text
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact
from lineage_tui.widgets.table import Cell, Column, Row, Table
from lineage_tui.widgets.words import DASH, STATE_TONES, clock, plain, plural, state_glyph

if TYPE_CHECKING:
    from lineage.checkpoint.generations import State
    from lineage.view import RunView

COLUMNS: Final = (
    Column("what", 31, grow=3),
    Column("state", 13),
    Column("steps", 13, align="right", most=25),
    Column("continued", 14, grow=1, drop=2),
    Column("when", 19, drop=3),
    Column("from", 20, grow=2, drop=4),
)


@dataclass(frozen=True)
class Node:
    """One line of the tree.

    Attributes:
        kind: run, session or checkpoint.
        depth: how far inside.
        rails: for each level above whether more follows there; for the lines on the left.
        path: folder of the run it belongs to; None when the run is not here.
        step: the step it stands at.
        state: of a checkpoint, the word for it (docs/checkpoints.md, "States").
    """

    key: str
    kind: str
    label: str
    depth: int
    rails: tuple[bool, ...]
    path: Path | None
    step: int = 0
    session: Session | None = None
    run: Run | None = None
    is_here: bool = False
    state: State = "committed"


def read_tree(view: RunView) -> list[Node]:
    """The run's family as lines, each checkpoint with the state it has on disk."""
    from lineage.layout import RunDir

    family = read_family(view)
    states: dict[tuple[str, str], State] = {}
    for id_, (path, run) in family.items():
        with contextlib.suppress(LineageError, OSError):
            found, _ = generations_of(RunDir(path), run, {})
            states |= {(id_, one.name): one.state for one in found}
    return [
        replace(node, state=states.get((node.run.id, node.label), "gone"))
        if node.kind == "checkpoint" and node.run is not None
        else node
        for node in nodes(family, view.record.id)
    ]


def read_family(view: RunView) -> dict[str, tuple[Path, Run]]:
    """The runs of the same folder that belong to this run's family, by id: ancestors, and all their descendants."""
    from lineage.runs.index import list_runs

    known: dict[str, tuple[Path, Run]] = {view.record.id: (view.dir.path, view.record)}
    try:
        entries = list_runs(view.dir.path.parent)
    except Exception:  # noqa: BLE001  # the folder above may be unreadable; the run itself is known
        return known
    found = {entry.record.id: (entry.dir.path, entry.record) for entry in entries if entry.record is not None}
    found.update(known)
    root = view.record.id
    seen = {root}
    while (parent := found[root][1].parent) is not None and parent.run in found and parent.run not in seen:
        root = parent.run
        seen.add(root)
    family = {root}
    grown = True
    while grown:
        children = {id_ for id_, (_, run) in found.items() if run.parent is not None and run.parent.run in family}
        grown = not children <= family
        family |= children
    family.add(view.record.id)
    return {id_: found[id_] for id_ in sorted(family)}


def nodes(family: Mapping[str, tuple[Path, Run]], here: str) -> list[Node]:
    """The tree as lines: runs at the left, sessions in them, under each what it saved and what was forked from that."""
    forks: dict[tuple[str, str], list[str]] = {}
    roots: list[str] = []
    for id_, (_, run) in family.items():
        if run.parent is not None and run.parent.run in family:
            forks.setdefault((run.parent.run, run.parent.checkpoint), []).append(id_)
        else:
            roots.append(id_)
    lines: list[Node] = []
    done: set[str] = set()

    def add_run(id_: str, rails: tuple[bool, ...]) -> None:
        if id_ in done:  # a run that would be its own ancestor
            return
        done.add(id_)
        path, run = family[id_]
        step = run.parent.step if run.parent is not None else 0
        lines.append(Node(id_, "run", run.name, len(rails), rails, path, step, run=run, is_here=id_ == here))
        placed = {name for session in run.sessions for name in session.checkpoints}
        lost = [fork for (parent, name), all_ in forks.items() if parent == id_ and name not in placed for fork in all_]
        ordered = sorted(run.sessions, key=lambda session: session.ordinal)
        for index, session in enumerate(ordered):
            more = index + 1 < len(ordered) or bool(lost)
            inside = (*rails, more)
            lines.append(
                Node(
                    f"{id_}@{session.id}", "session", f"session {session.ordinal}", len(inside), inside, path,
                    session.start.step, session, run, is_here=id_ == here,
                )
            )  # fmt: skip
            for at, name in enumerate(session.checkpoints):
                follows = at + 1 < len(session.checkpoints)
                parsed = parse_generation_name(name)
                lines.append(
                    Node(
                        f"{id_}/{name}", "checkpoint", name, len(inside) + 1, (*inside, follows), path,
                        parsed[0] if parsed else 0, session, run, is_here=id_ == here,
                    )
                )  # fmt: skip
                children = forks.get((id_, name), [])
                for fork in children:
                    add_run(fork, (*inside, follows, fork != children[-1]))
        for fork in lost:
            add_run(fork, (*rails, fork != lost[-1]))

    for root in roots or sorted(family):
        add_run(root, ())
    return lines


class TreeScreen(ListScreen):
    """The family of the run."""

    place: ClassVar[str] = "tree"
    what: ClassVar[str] = "lines"
    filtered_by: ClassVar[str] = "name, kind, run id"
    topics: ClassVar[frozenset[str]] = frozenset({"family"})

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._all: list[Node] | None = None
        self._shown: list[Node] = []
        self._asked_for: tuple[object, ...] | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only, empty="looking for relatives")
        yield self.filter_line

    def runs_changed(self) -> None:
        self._all = None
        self._asked_for = None
        self._shown = []

    def draw_all(self) -> None:
        self._asked_for = None  # what a verification or a prune changed is told nowhere else
        super().draw_all()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        super().snapshot_changed(snapshot)
        main = self.lineage.snapshot
        if main is None:
            return
        sessions = tuple((s.id, s.status, len(s.checkpoints)) for s in main.record.sessions)
        stamp = (main.key, sessions, len(self.lineage.folder.runs) if self.lineage.folder else 0)
        if stamp != self._asked_for:
            self._asked_for = stamp
            self.lineage.ask("family", read_tree)
        self._list()

    def answered(self, answer: Answer) -> None:
        if answer.problem is not None:
            self.panel.show_problem(answer.problem)
            return
        self._all = answer.value
        self._list()

    def filter_changed(self) -> None:
        self._list()

    def _list(self) -> None:
        main = self.lineage.snapshot
        if not self.is_mounted or main is None or self._all is None:
            return
        words = self.filter.value
        first = not self._shown
        self._shown = [
            node for node in self._all if matches(words, node.label, node.kind, node.run.id if node.run else "")
        ]
        keep = main.record.id if first else (self.table.row.key if self.table.row else None)
        self.table.empty = "nothing fits the filter"
        self.table.set_rows([self._row(node, main) for node in self._shown], keep=keep)
        self.show_count(len(self._shown), len(self._all))
        self.show_header()

    def _row(self, node: Node, main: Snapshot) -> Row:
        label = f"{self._rails(node)}{plain(node.label, 80)}"
        tone = "accent" if node.kind == "run" and node.is_here else "strong" if node.kind == "run" else ""
        if node.kind == "run" and node.run is not None:
            fork = f"fork @{node.step:,} of {plain(node.run.parent.run, 60)}" if node.run.parent else ""
            state = main.state if node.is_here else (node.run.sessions[-1].status if node.run.sessions else "")
            reached = max((s.last_step or 0 for s in node.run.sessions), default=0)
            if node.is_here:
                reached = main.last_step or reached
            return Row(
                node.key,
                (
                    Cell(label, tone),
                    Cell(f"{state_glyph(state, self.glyphs)} {state}" if state else "", STATE_TONES.get(state, "")),
                    Cell(f"{reached:,}"),
                    Cell(plural(len(node.run.sessions), "session"), "dim"),
                    Cell(clock(node.run.created_at), "dim"),
                    Cell(fork, "info"),
                ),
            )
        session = node.session
        if node.kind == "session" and session is not None:
            state = main.session_states.get(session.id, session.status) if node.is_here else session.status
            segment = main.segment(session.id) if node.is_here else None
            first = segment.start_step if segment else session.start.step
            last = segment.last_step if segment else (session.last_step or first)
            verdict, verdict_tone = verdict_text(session, main.resumes.get(session.id) if node.is_here else None)
            before = origin_of(session, main) if node.is_here else None
            origin = started_from(session, segment) + (
                f" of s{before.ordinal}" if before and session.start.kind == "resume" else ""
            )
            return Row(
                node.key,
                (
                    Cell(label),
                    Cell(f"{state_glyph(state, self.glyphs)} {state}", STATE_TONES.get(state, "")),
                    Cell(f"{first + 1:,}{DASH}{last:,}" if last > first else "none"),
                    Cell(verdict, verdict_tone),
                    Cell(clock(session.started_at), "dim"),
                    Cell(origin, "dim"),
                ),
            )
        glyph, flat, tone = STATES[node.state]
        return Row(
            node.key,
            (
                Cell(label, "dim"),
                Cell(f"{flat if self.ascii_only else glyph} {node.state}", tone),
                Cell(f"{node.step:,}", "dim"),
                Cell(""),
                Cell(""),
                Cell(""),
            ),
        )

    def _rails(self, node: Node) -> str:
        if not node.rails:
            return ""
        bar, tee, end = ("| ", "+ ", "` ") if self.ascii_only else ("│ ", "├ ", "└ ")
        return "".join(bar if more else "  " for more in node.rails[:-1]) + (tee if node.rails[-1] else end)

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        num = sum(node.kind == "run" for node in self._all or ())
        if num > 1:
            right = [*right, Fact(plural(num, "related run"), "dim", 4)]
        return left, right

    def session_here(self) -> str | None:
        node = self._shown[self.table.cursor] if self._shown else None
        return node.session.id if node is not None and node.is_here and node.session is not None else None

    def action_open(self) -> None:
        if not self._shown:
            return
        node = self._shown[self.table.cursor]
        if node.path is None:
            return
        if not node.is_here:
            self.lineage.open_runs([node.path])
        if node.kind == "run":
            self.lineage.action_show("run")
        else:
            self.lineage.go_to_step(node.step, session=node.session.id if node.session else None)

    def on_table_chosen(self) -> None:
        self.action_open()
