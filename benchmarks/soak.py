"""An hour of training written flat out by processes that are killed, and followed at once.

Twenty sessions of one run write 360,000 steps with phases, evaluations and fifty checkpoints' events; all but the last
are killed with SIGKILL, each resumes from the last checkpoint before, and one of them with another learning rate. The
parent follows with `RunView.refresh` all the while. In the end every acknowledged step must be there, memory of writer
and reader must have stayed flat, and the audit must say *exact* of every session but the one that was not.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Report
from benchmarks.synthetic import digest
from lineage.history.evidence import audit_view
from lineage.log.writer import LogWriter
from lineage.runs.store import RunStore, create_run, open_run
from lineage.view import RunView, read
from lineage_schemas.events import FORMAT
from lineage_schemas.ids import make_generation_name
from lineage_schemas.run import Environment, Recipe, Source, Start

TITLE = "an hour of training, written and followed at once"
PEAK_LR, OTHER_LR = 3e-4, 1e-4
WITNESSED = 400
"""Steps with a witness after a start and after a checkpoint."""

WRITER_BOUND_BYTES = 8 << 20
"""Most that one writer may grow by between its 200th step and its end, however long it trains."""


@dataclass(frozen=True)
class Scale:
    """How much is written; `steps` is the last step of the effective history."""

    steps: int
    sessions: int
    checkpoints: int
    phase_every: int = 200

    @property
    def checkpoint_every(self) -> int:
        return self.steps // self.checkpoints


WHOLE = Scale(steps=360_000, sessions=20, checkpoints=50)
TEN_HOURS = Scale(steps=3_600_000, sessions=20, checkpoints=500)
SHORT = Scale(steps=18_000, sessions=20, checkpoints=50)


def reader_bound_bytes(scale: Scale) -> int:
    """What the reader may grow by.

    Its columns (nine of eight bytes, grown by half at a time), two kilobytes for each line that is no step, and 24 MiB
    for the parser's blocks.
    """
    rows = scale.steps * 5 // 4
    rare = rows // scale.phase_every * 3 + scale.checkpoints * 3 + scale.sessions * 6
    return (24 << 20) + rows * 9 * 8 * 2 + rare * 2048


@dataclass
class Soaked:
    """What came of it.

    Attributes:
        num_acknowledged: steps whose append had returned before their process died.
        num_read: of those, how many the reader has.
        wrong_verdicts: sessions whose audit says something else than what was done.
        writer_growth_bytes: of the writer that grew most, as it said itself.
        reader_growth_bytes: of this process, from the first refresh to the last.
    """

    seconds: float = 0.0
    num_kills: int = 0
    num_acknowledged: int = 0
    num_read: int = 0
    num_damaged: int = 0
    refreshes: int = 0
    effective_steps: int = 0
    log_bytes: int = 0
    writer_growth_bytes: int = 0
    reader_growth_bytes: int = 0
    slowest_refresh_s: float = 0.0
    verdicts: list[str] = field(default_factory=list)
    wrong_verdicts: list[str] = field(default_factory=list)


def rss() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123  # two words of it are read
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Shared:
    """Two numbers a child leaves where its parent sees them, also after its death."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    def put(self, slot: int, value: int) -> None:
        struct.pack_into("<q", self._memory, 8 * slot, value)

    def get(self, slot: int) -> int:
        return int(struct.unpack_from("<q", self._memory, 8 * slot)[0])


STEP, GROWTH = 0, 1


def _begin(store: RunStore, writer: LogWriter, start: Start) -> dict[str, str]:
    nothing = digest("recipe", size=32)
    session = store.begin_session(
        recipe=Recipe(value=None, fingerprint=nothing),
        source=Source(),
        environment=Environment(python="3", implementation="CPython", platform="Linux", machine="x86_64"),
        start=start,
    )
    who = {"run": store.record.id, "session": session.id}
    writer.append(
        {"kind": "session_start", "ts": time.time(), **who, "step": start.step, "format": FORMAT.to_wire()}
        | {"ordinal": session.ordinal, "start": start.to_wire(), "pid": os.getpid()}
    )
    return who


def _train(folder: Path, scale: Scale, start: Start, shared: _Shared, *, kill_at: int | None, lr: float) -> None:
    """One session; with `kill_at` it waits there for its end, which may come sooner."""
    store = open_run(folder)
    writer = LogWriter(store.dir.log, run=store.record.id, session=store.reserve_session())
    who = _begin(store, writer, start)
    ordinal = store.session.ordinal if store.session else 0
    witnessed_to = start.step + WITNESSED
    base = 0
    for step in range(start.step + 1, (kill_at or scale.steps) + 1):
        metrics = {"loss": 2.0 + 1000.0 / (100.0 + step), "lr": lr, "grad_norm": 1.0 / step}
        event = {"kind": "step", "ts": time.time(), **who, "step": step, "metrics": metrics, "duration_s": 0.01}
        event["tokens"] = 8192
        if step <= witnessed_to:
            event["witness"] = {
                "batch": digest("batch", step, size=8),
                "rng": digest("rng", step, size=8),
                "lr": {"adamw": [lr]},
            }
        writer.append(event)
        shared.put(STEP, step)
        if step == start.step + 200:
            base = rss()
        if step % scale.phase_every == 0:
            if base:
                shared.put(GROWTH, rss() - base)
            now = {"ts": time.time(), **who, "step": step}
            writer.append({"kind": "phase_start", **now, "phase": "eval"})
            writer.append({"kind": "eval", **now, "name": "eval", "metrics": {"loss": metrics["loss"]}})
            writer.append({"kind": "phase_end", **now, "phase": "eval", "duration_s": 0.1})
        if step % scale.checkpoint_every == 0:
            name = make_generation_name(step, ordinal, step)
            writer.append(
                {"kind": "checkpoint_saved", "ts": time.time(), **who, "step": step, "checkpoint": name}
                | {"manifest_sha256": digest("manifest", step, size=32), "size_bytes": 1, "duration_s": 0.1}
            )
            store.add_checkpoint(name, step)
            witnessed_to = step + WITNESSED
    if kill_at is not None:
        signal.pause()
    writer.append({"kind": "session_end", "ts": time.time(), **who, "step": scale.steps, "status": "completed"})
    store.end_session("completed", last_step=scale.steps)
    writer.close()
    store.close()


def _fork(folder: Path, scale: Scale, start: Start, shared: _Shared, *, kill_at: int | None, lr: float) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    try:
        _train(folder, scale, start, shared, kill_at=kill_at, lr=lr)
    except BaseException:  # noqa: BLE001  # told, and then this process ends whatever it was
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _start_after(view: RunView) -> Start:
    """What the next session resumes from: the newest checkpoint recorded."""
    made = [(name, session.id) for session in view.sessions for name in session.checkpoints]
    if not made:
        return Start(kind="fresh")
    name, session_id = max(made, key=lambda pair: (int(pair[0].split("-")[1]), pair[1]))
    return Start(kind="resume", step=int(name.split("-")[1]), checkpoint=name, session=session_id)


def soak(folder: Path, scale: Scale, *, seed: int = 0) -> Soaked:
    """Write, kill, resume and follow; raises when a child fails by itself."""
    found = Soaked()
    dice = random.Random(seed)
    began = time.monotonic()
    store = create_run(folder, "soak")
    path = store.dir.path
    store.close()
    view = read(path, cache=False)
    shared = _Shared()
    base = 0
    acknowledged: list[tuple[int, int]] = []
    other = scale.sessions // 2
    for number in range(1, scale.sessions + 1):
        is_last = number == scale.sessions
        start = _start_after(view)
        kill_at = None if is_last else scale.steps * number // scale.sessions + dice.randrange(20, 120)
        shared.put(STEP, start.step)
        shared.put(GROWTH, 0)
        lr = OTHER_LR if number == other else PEAK_LR
        child = _fork(path, scale, start, shared, kill_at=kill_at, lr=lr)
        early = dice.randrange(0, 15)  # a kill in the middle of writing, or while the child waits
        while True:
            then = time.monotonic()
            view.refresh()
            found.refreshes += 1
            found.slowest_refresh_s = max(found.slowest_refresh_s, time.monotonic() - then)
            base = base or rss()
            if kill_at is not None and shared.get(STEP) >= kill_at - early:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                found.num_kills += 1
                break
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if status or not is_last:
                    raise RuntimeError(f"session {number} ended by itself with status {status}")
                break
            time.sleep(0.005)
        acknowledged.append((start.step, shared.get(STEP)))
        found.writer_growth_bytes = max(found.writer_growth_bytes, shared.get(GROWTH))
        view.refresh()
    found.reader_growth_bytes = rss() - base
    found.seconds = time.monotonic() - began
    _look(found, view, acknowledged, other)
    return found


def _look(found: Soaked, view: RunView, acknowledged: list[tuple[int, int]], other: int) -> None:
    found.log_bytes = view.size_bytes
    found.num_damaged = len(view.damage)
    found.effective_steps = len(view.series("loss"))
    for session, (start, last) in zip(view.sessions, acknowledged, strict=True):
        found.num_acknowledged += last - start
        there = view.logged_steps(session.id)
        found.num_read += int(((there > start) & (there <= last)).sum())
    for resume in audit_view(view):
        # The session after the odd one resumed from one of its checkpoints, and differs from it in turn.
        expected = {other: "diverged"}.get(resume.ordinal, "exact")
        first = resume.first_difference
        if resume.ordinal == other + 1 and first is not None and first.field == "lr":
            expected = "diverged"
        found.verdicts.append(resume.verdict)
        if resume.verdict != expected or (expected == "diverged" and (first is None or first.field != "lr")):
            found.wrong_verdicts.append(f"{resume.session}: {resume.verdict}, not {expected}: {resume.reason}")


def run(*, quick: bool = False) -> Report:
    """The whole soak, or its short form."""
    scale = SHORT if quick else WHOLE
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), scale)
    report = Report(TITLE)
    report.rows = [
        {
            "steps": scale.steps,
            "sessions": scale.sessions,
            "seconds": found.seconds,
            "log MB": found.log_bytes / 1e6,
            "refreshes": found.refreshes,
            "slowest refresh s": found.slowest_refresh_s,
            "writer grew MB": found.writer_growth_bytes / 1e6,
            "reader grew MB": found.reader_growth_bytes / 1e6,
        }
    ]
    report.goals = {
        "no acknowledged step is lost": found.num_read == found.num_acknowledged,
        f"the writer grows by less than {WRITER_BOUND_BYTES >> 20} MiB": found.writer_growth_bytes < WRITER_BOUND_BYTES,
        f"the reader grows by less than {reader_bound_bytes(scale) >> 20} MiB, its columns included": (
            found.reader_growth_bytes < reader_bound_bytes(scale)
        ),
        "the effective history has every step once": found.effective_steps == scale.steps,
        "the audit is right about every resume": not found.wrong_verdicts and bool(found.verdicts),
        "nothing is damaged": found.num_damaged == 0,
    }
    report.notes = ["the writer's checkpoints are events and records; no tensor is saved"]
    with suppress(OSError):
        report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    return report
