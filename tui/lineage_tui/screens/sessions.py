"""The sessions of a run: what each started from, how it ended, which of its steps count, how it continued."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from lineage_schemas.run import Session
from lineage_tui.messages import Snapshot
from lineage_tui.screens.base import ListScreen, matches
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import joined, toned
from lineage_tui.widgets.table import Cell, Column, Row, Table
from lineage_tui.widgets.words import (
    DASH,
    STATE_TONES,
    VERDICT_GLYPHS,
    VERDICT_TONES,
    clock,
    count,
    duration,
    number,
    plain,
    plural,
    size,
    state_glyph,
)

if TYPE_CHECKING:
    from lineage.history.audit import ResumeAudit
    from lineage.history.segments import Segment

COLUMNS: Final = (
    Column("ses", 3, align="right"),
    Column("state", 13),
    Column("started from", 18, grow=1),
    Column("steps", 13, align="right", drop=2, most=25),
    Column("counted", 9, align="right", drop=3, most=14),
    Column("superseded", 10, align="right", drop=4, most=14),
    Column("continuation", 14, grow=1),
    Column("lasted", 10, align="right", drop=5),
    Column("began", 19, drop=6),
    Column("host", 10, grow=1, drop=7),
    Column("ended with", 14, grow=3, drop=8),
)

COMPACT: Final = (
    Column("ses", 3, align="right"),
    Column("state", 11),
    Column("from", 9, grow=1),
    Column("steps", 11, align="right", most=21),
    Column("continued", 16, grow=1),
)
"""For the list beside the curves."""

MAX_LINES: Final = 5
"""Lines that one fact may take."""
MAX_NAMES: Final = 16
"""Blocks whose names are no longer than this have their values in the same column."""


def started_from(session: Session, segment: Segment | None = None) -> str:
    """fresh, resume @400, fork of <run> @400; the log knows better when a session went on without a checkpoint."""
    start = session.start
    if start.kind == "fresh":
        begin = segment.start_step if segment is not None else start.step
        return "fresh" if not begin else f"nothing restored @{begin:,}"
    if start.kind == "fork":
        return f"fork @{start.step:,} of {plain(start.run or '?', 48)}"
    return f"resume @{start.step:,}" + (" forced" if start.forced else "")


def verdict_text(session: Session, row: ResumeAudit | None = None) -> tuple[str, str]:
    """The verdict of a session's continuation as words, and their tone; `row` is the audit's, where there is one."""
    found = row if row is not None else session.continuation
    if found is None:
        return ("", "") if session.start.kind == "fresh" else ("? not compared", "dim")
    word = found.verdict.replace("_", " ")
    if found.first_difference is not None and found.verdict == "diverged":
        word = f"diverged @{found.first_difference.step:,}"
    return f"{VERDICT_GLYPHS[found.verdict]} {word}", VERDICT_TONES[found.verdict]


def lasted(session: Session, now: float, *, live: bool, last_event_at: float | None = None) -> float | None:
    """Seconds from start to end; to now for a live one."""
    end = session.ended_at.timestamp() if session.ended_at else (now if live else last_event_at)
    return None if end is None else max(end - session.started_at.timestamp(), 0.0)


def session_rows(snapshot: Snapshot, glyphs: Glyphs, now: float, *, compact: bool = False, fits: str = "") -> list[Row]:
    """A row per session, oldest first."""
    rows = []
    for session in sorted(snapshot.record.sessions, key=lambda s: s.ordinal):
        segment = snapshot.segment(session.id)
        state = snapshot.session_states.get(session.id, session.status)
        verdict, tone = verdict_text(session, snapshot.resumes.get(session.id))
        steps = DASH
        if segment is not None and segment.last_step > segment.start_step:
            steps = f"{segment.start_step + 1:,}{DASH}{segment.last_step:,}"
        shown_state = Cell(f"{state_glyph(state, glyphs)} {state}", STATE_TONES.get(state, ""))
        if compact:
            start = session.start
            begin = segment.start_step if segment is not None else start.step
            fresh = f"none @{begin:,}" if begin else "fresh"
            origin = {"fresh": fresh, "resume": f"@{start.step:,}", "fork": f"fork @{start.step:,}"}[start.kind]
            cells: tuple[Cell, ...] = (
                Cell(str(session.ordinal), "strong"),
                shown_state,
                Cell(origin, "dim"),
                Cell(steps),
                Cell(verdict, tone),
            )  # fmt: skip
        else:
            superseded = segment.num_superseded if segment else 0
            is_live = state in {"running", "stalled"}
            seconds = lasted(session, now, live=is_live, last_event_at=snapshot.last_seen.get(session.id))
            cells = (
                Cell(str(session.ordinal), "strong"),
                shown_state,
                Cell(started_from(session, segment)),
                Cell(steps),
                Cell(count(segment.num_effective) if segment else DASH),
                Cell(count(superseded) if superseded else "", "warn"),
                Cell(verdict, tone),
                Cell(duration(seconds)),
                Cell(clock(session.started_at), "dim"),
                Cell(plain(session.host, 40), "dim"),
                Cell(plain(session.reason or "", 200), "dim"),
            )
        if not fits or matches(fits, *(cell.text for cell in cells)):
            rows.append(Row(session.id, cells))
    return rows


class SessionsScreen(ListScreen):
    """The sessions as a table, and the one under the cursor in full."""

    place: ClassVar[str] = "sessions"
    what: ClassVar[str] = "sessions"
    filtered_by: ClassVar[str] = "state, start, steps, verdict, host, reason"

    def compose_body(self) -> Iterable[Widget]:
        yield Table(COLUMNS, id="list", ascii_only=self.ascii_only, empty="no session yet", classes="short")
        yield self.filter_line
        yield VerticalScroll(Static(id="detail-text"), id="detail", can_focus=False)

    def side(self) -> Widget:
        return self.query_one("#detail")

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        super().snapshot_changed(snapshot)
        main = self.lineage.snapshot
        if main is None:
            return
        keep = self.table.row.key if self.table.row else None
        rows = session_rows(main, self.glyphs, self.lineage.options.clock(), fits=self.filter.value)
        first = not self.table.rows and not self.filter.value
        self.table.empty = "no session fits the filter" if self.filter.value else "no session yet"
        self.table.set_rows(rows, keep=keep)
        self.show_count(len(rows), len(main.record.sessions))
        self.table.styles.height = min(max(len(rows), 1) + 2, max(self.size.height // 2, 4))
        if first and rows:
            self.table.select(len(rows) - 1)
        self._show_detail()

    def session_here(self) -> str | None:
        found = self._session()
        return found.id if found is not None else None

    def select_session(self, session: str) -> None:
        """Put the cursor on a session."""
        for index, row in enumerate(self.table.rows):
            if row.key == session:
                self.table.select(index)

    def filter_changed(self) -> None:
        if (snapshot := self.lineage.snapshot) is not None:
            self.snapshot_changed(snapshot)

    def on_table_highlighted(self) -> None:
        self._show_detail()

    def on_table_chosen(self) -> None:
        self.action_open()

    def _session(self) -> Session | None:
        row, snapshot = self.table.row, self.lineage.snapshot
        if row is None or snapshot is None:
            return None
        return next((session for session in snapshot.record.sessions if session.id == row.key), None)

    def _show_detail(self) -> None:
        session, snapshot = self._session(), self.lineage.snapshot
        self.side().display = session is not None
        if session is None or snapshot is None:
            return
        self.query_one("#detail-text", Static).update(session_detail(session, snapshot, self.size.width))

    # -- actions ---------------------------------------------------------------------------------------------------
    def action_open(self) -> None:
        session = self._session()
        if session is not None:
            self.lineage.go_to_step(session.start.step, session=session.id)

    def action_diff(self) -> None:
        session = self._session()
        if session is not None:
            self.lineage.open_diff(session.id)

    def action_explain(self) -> None:
        session = self._session()
        if session is not None:
            self.lineage.open_explain(session.start.step + 1)


def session_detail(session: Session, snapshot: Snapshot, width: int) -> Content:
    """A session in full, in two columns of facts."""
    segment = snapshot.segment(session.id)
    state = snapshot.session_states.get(session.id, session.status)
    environment = snapshot.record.environments.get(session.environment)
    continuation = snapshot.resumes.get(session.id) or session.continuation
    blocks: list[tuple[str, list[tuple[str, str, str]]]] = []
    start = session.start
    blocks.append((
        f"session {session.ordinal}",
        [
            ("id", session.id, ""),
            ("state", state + (f": {session.reason}" if session.reason else ""), STATE_TONES.get(state, "")),
            ("began", clock(session.started_at), ""),
            ("ended", clock(session.ended_at) if session.ended_at else "no end recorded", ""),
            ("process", f"pid {session.pid} on {session.host}, rank {session.rank} of {session.world}", ""),
            ("argv", " ".join(session.argv), "dim"),
        ],
    ))  # fmt: skip
    blocks.append((
        "start",
        [
            ("from", started_from(session, segment), ""),
            ("checkpoint", start.checkpoint or "none", "" if start.checkpoint else "dim"),
            *[("finding", f"{f.path}: {f.saved!s} -> {f.live!s} ({f.verdict})", "warn") for f in start.findings[:12]],
            *[("passed over", f"{r.name}: {r.reason}", "warn") for r in start.rejected[:6]],
        ],
    ))  # fmt: skip
    if segment is not None:
        trained = f"{segment.start_step + 1:,} to {segment.last_step:,}" if segment.num_steps else "none"
        superseded = f", {segment.num_superseded:,} superseded" if segment.num_superseded else ""
        blocks.append((
            "steps",
            [
                ("trained", trained, ""),
                ("counted", f"{segment.num_effective:,}{superseded}", "warn" if superseded else ""),
                ("checkpoints", f"{len(session.checkpoints):,}" if session.checkpoints else "none", ""),
            ],
        ))  # fmt: skip
    if continuation is not None:
        verdict, tone = verdict_text(session, snapshot.resumes.get(session.id))
        facts = [
            ("verdict", verdict, tone),
            ("compared", f"{plural(continuation.compared_steps, 'step')} from {continuation.from_step:,}", ""),
        ]
        if (first := continuation.first_difference) is not None:
            facts.append(
                ("first", f"step {first.step:,} {first.field}: {_value(first.before)} -> {_value(first.after)}", "bad")
            )
        if continuation.proven:
            facts.append(("proven", ", ".join(continuation.proven), ""))
        if continuation.reason:
            facts.append(("because", continuation.reason, ""))
        blocks.append(("continuation", facts))
    source = session.source
    tree = {True: "dirty", False: "clean", None: "unknown"}[source.dirty]
    tree += f", patch of {size(source.patch_bytes)}" if source.patch_bytes else ""
    blocks.append((
        "source",
        [
            ("commit", (source.commit or "none")[:12] + (f" on {source.branch}" if source.branch else ""), ""),
            ("tree", tree, "warn" if source.dirty else ""),
            *([("remote", source.remote, "dim")] if source.remote else []),
            *([("problem", source.problem, "warn")] if source.problem else []),
        ],
    ))  # fmt: skip
    if environment is not None:
        gpus = ", ".join(gpu.name for gpu in environment.gpus) or "none"
        blocks.append((
            "environment",
            [
                ("python", f"{environment.python} {environment.implementation}, {environment.platform}", ""),
                ("torch", f"{environment.torch or 'none'}, CUDA {environment.cuda or 'none'}", ""),
                ("gpus", gpus, ""),
                ("cpu", f"{environment.cpu or 'unknown'}, {environment.num_cpus or '?'} cores", ""),
            ],
        ))  # fmt: skip
    recipe = _flat(session.recipe.value)
    if recipe:
        blocks.append((f"recipe {session.recipe.fingerprint[:12]}", [(key, value, "") for key, value in recipe[:200]]))
    for split, identity in list(session.data.items())[:8]:
        blocks.append(
            (f"data: {plain(split, 40)}", [("fingerprint", identity.fingerprint, ""), ("by", identity.method, "")])
        )
    return _columns(blocks, width)


def _value(value: object) -> str:
    return number(value, 7) if isinstance(value, float) else plain(value, 60)


def _flat(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """A recipe as dotted paths and values."""
    if isinstance(value, dict) and value and not any(str(key).startswith("$") for key in value):
        return [line for key, item in value.items() for line in _flat(item, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix or "value", str(value))]


def _columns(blocks: Sequence[tuple[str, Sequence[tuple[str, str, str]]]], width: int) -> Content:
    """Blocks one under the other, or in two columns where there is room."""
    columns = 2 if width >= 110 else 1
    cells = max((width - 2) // columns - 2, 20)
    own = [max((len(plain(name, 32)) for name, _, _ in facts), default=0) for _, facts in blocks]
    names = max((width for width in own if width <= MAX_NAMES), default=0)
    rendered = [_block(*block, max(names, width), cells) for block, width in zip(blocks, own, strict=True)]
    if columns == 1:
        return Content("\n\n").join([Content("\n").join(block) for block in rendered])
    left: list[Content] = []
    right: list[Content] = []
    for block in rendered:
        shorter = left if len(left) <= len(right) else right
        shorter += [*block, Content("")]
    lines = []
    for index in range(max(len(left), len(right))):
        one = left[index] if index < len(left) else Content("")
        other = right[index] if index < len(right) else Content("")
        lines.append(joined([one, Content(" " * max(cells + 2 - one.cell_length, 1)), other]))
    return Content("\n").join(lines)


def _block(title: str, facts: Sequence[tuple[str, str, str]], names: int, cells: int) -> list[Content]:
    """A title and its facts, their values in one line under each other; `names` is the room for what they are."""
    lines = [toned(f" {plain(title, cells)}", "accent", "bold")]
    for name, value, tone in facts:
        room = max(cells - names - 4, 8)
        first, *more = textwrap.wrap(plain(value, room * MAX_LINES), room, break_on_hyphens=False) or [""]
        lines.append(joined([toned(f"  {plain(name, 32):<{names}}  ", "dim"), toned(first, tone)]))
        lines += [joined([Content(" " * (names + 4)), toned(rest, tone)]) for rest in more[:MAX_LINES]]
    return lines
