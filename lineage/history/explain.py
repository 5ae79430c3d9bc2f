"""What happened around a step, likeliest cause first; and the changes of a run that ask for an explanation.

Four questions a reader has when a curve changes abruptly: is this a new session? did the learning rate restore? were
updates skipped? did eval or checkpointing take the time? Each answer is a `Cause` with the event it was read from.
When nothing recorded explains a change, there is no cause, and the caller says so.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from lineage.history.audit import DATA_STARTED_OVER
from lineage.history.diff import SessionSide, count_by_grade, describe, diff_sessions
from lineage_schemas.events import (
    AlertEvent,
    Fp16SkipEvent,
    LogRecoveredEvent,
    LrRestoreEvent,
    NoteEvent,
    PhaseEndEvent,
)
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage.history.audit import ResumeAudit
    from lineage.history.changes import Curve, Shift
    from lineage.history.diff import Difference, Grade
    from lineage.history.segments import Gap, Segment
    from lineage_schemas.events import Event
    from lineage_schemas.run import Run

CauseKind = Literal[
    "session", "continuation", "data", "difference", "lr", "fp16_skip", "phase", "non_finite", "alert", "note", "log"
]
Metric = Literal["loss", "throughput"]

WINDOW: Final = 10
"""Steps on each side in which something may have caused a change."""

EXPLAINING: Final = ("phase_end", "fp16_skip", "lr_restore", "alert", "note", "log_recovered")
"""Kinds of event that a cause may be read from."""

NOTHING: Final = "nothing recorded explains this"

_GRADE_WORDS: Final[Mapping[Grade, str]] = {
    "experiment": "changes the experiment",
    "numerics": "may change numerics",
    "harmless": "harmless",
}

WEIGHTS: Final[Mapping[tuple[str, Metric], float]] = {
    # how much each kind of thing says about a change of the metric; closeness scales it
    ("diverged", "loss"): 100,
    ("diverged", "throughput"): 20,
    ("lr_wrong", "loss"): 95,
    ("lr_wrong", "throughput"): 5,
    ("lr_jump", "loss"): 80,
    ("lr_jump", "throughput"): 5,
    ("lr_restored", "loss"): 30,
    ("lr_restored", "throughput"): 5,
    ("non_finite", "loss"): 90,
    ("non_finite", "throughput"): 30,
    ("session", "loss"): 55,
    ("session", "throughput"): 75,
    ("experiment", "loss"): 85,
    ("experiment", "throughput"): 80,
    ("numerics", "loss"): 60,
    ("numerics", "throughput"): 85,
    ("fp16_skip", "loss"): 70,
    ("fp16_skip", "throughput"): 10,
    ("phase", "loss"): 10,
    ("phase", "throughput"): 70,
    ("alert", "loss"): 50,
    ("alert", "throughput"): 30,
    ("note", "loss"): 40,
    ("note", "throughput"): 40,
    ("log", "loss"): 10,
    ("log", "throughput"): 20,
}


@dataclass(frozen=True)
class Cause:
    """Something recorded that may be why.

    Attributes:
        step: where it happened.
        weight: likelihood, on a scale of its own; causes come heaviest first.
        event: what it was read from; None where it follows from several.
        session: the session it belongs to.
    """

    kind: CauseKind
    step: int
    message: str
    weight: float
    event: Event | None = None
    session: str | None = None

    def to_wire(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "step": self.step,
            "message": self.message,
            "session": self.session,
            "event": self.event.to_wire() if self.event is not None else None,
        }


@dataclass(frozen=True)
class Change:
    """An abrupt change, or a step asked about, with what explains it.

    Attributes:
        metric: `loss`, or the throughput that was logged; of a step asked about, what the causes were weighed for.
        shift: what was found in the curve; None for a step where nothing was.
        causes: likeliest first; empty when nothing recorded explains it.
        diverged: a resume that became another experiment here, though its curve did not jump.
    """

    step: int
    metric: str
    shift: Shift | None
    causes: tuple[Cause, ...]
    diverged: bool = False

    def to_wire(self) -> dict[str, object]:
        """One entry of `lineage explain --json`."""
        shift = self.shift
        return {
            "step": self.step,
            "metric": self.metric,
            "change": shift.kind if shift else "diverged" if self.diverged else None,
            "before": shift.before if shift else None,
            "after": shift.after if shift else None,
            "causes": [cause.to_wire() for cause in self.causes],
            "summary": self.causes[0].message if self.causes else NOTHING,
        }


@dataclass(frozen=True)
class Account:
    """All that is known of a run when something in it is to be explained.

    Attributes:
        events: those of `EXPLAINING`, in any order; others do no harm.
        loss: over the effective history; None when none was logged.
        throughput: likewise, tokens, samples or steps per second.
        throughput_name: what `throughput` counts.
        lr: the learning rate as logged.
        resumes: the audit's rows.
        gaps: wall time between sessions.
    """

    run: Run
    segments: Sequence[Segment]
    events: Sequence[Event]
    loss: Curve | None = None
    throughput: Curve | None = None
    lr: Curve | None = None
    loss_name: str = "loss"
    throughput_name: str = "steps_per_s"
    resumes: Sequence[ResumeAudit] = ()
    gaps: Sequence[Gap] = ()
    _diffs: dict[tuple[str, str], list[Difference]] = field(default_factory=dict, repr=False)
    _by_step: list[tuple[int, int, Event]] = field(default_factory=list, repr=False)

    def near(self, step: int, window: int) -> Iterator[Event]:
        """Events of the effective history within `window` steps: a superseded line explains nothing."""
        if not self._by_step and self.events:
            reach = {s.session: (s.start_step, s.effective_to) for s in self.segments}
            for number, event in enumerate(self.events):
                low, high = reach.get(SessionId(event.session), (0, -1))
                if event.step is not None and event.kind in EXPLAINING and low <= event.step <= high:
                    self._by_step.append((event.step, number, event))
            self._by_step.sort(key=lambda entry: entry[:2])
        first = bisect_left(self._by_step, step - window, key=lambda entry: entry[0])
        last = bisect_right(self._by_step, step + window, key=lambda entry: entry[0])
        for _, _, event in self._by_step[first:last]:
            yield event

    def differences(self, before: str, after: str) -> list[Difference]:
        """What differs between two sessions of the run."""
        key = (before, after)
        if key not in self._diffs:
            sides = [SessionSide.of(self.run, s) for id_ in key for s in self.run.sessions if s.id == id_]
            self._diffs[key] = diff_sessions(*sides) if len(sides) == 2 else []
        return self._diffs[key]


def find_changes(account: Account, *, window: int = WINDOW) -> list[Change]:
    """The abrupt changes of loss and throughput (`lineage.history.changes`), by step, each with its causes.

    A resume that diverged is among them although its curve may not jump: a schedule that begins again, say, moves the
    loss slowly.
    """
    from lineage.history.changes import SLOW_WINDOWS, find_shifts

    begun = [s.start_step + 1 for s in account.segments if s.num_effective and s.start_step > 0]
    found: list[Change] = []
    if account.loss is not None:
        shifts = find_shifts(account.loss, known=begun)
        found += [_explained(account, account.loss_name, "loss", shift, window) for shift in shifts]
    if account.throughput is not None:
        name = account.throughput_name
        shifts = find_shifts(account.throughput, known=begun, min_ratio=0.25, windows=SLOW_WINDOWS, spikes=False)
        found += [_explained(account, name, "throughput", s, window) for s in shifts if s.kind != "non_finite"]
    for step in _diverged_steps(account):
        if all(abs(change.step - step) > window for change in found):
            causes = tuple(explain(account, step, window=window))
            found.append(Change(step, account.loss_name, None, causes, diverged=True))
    return sorted(found, key=lambda change: change.step)


def _diverged_steps(account: Account) -> Iterator[int]:
    trained = {s.session for s in account.segments if s.num_effective}
    for row in account.resumes:
        if row.verdict == "diverged" and row.first_difference is not None and row.session in trained:
            yield max(row.from_step + 1, row.first_difference.step)


def explain_step(account: Account, step: int, *, window: int = WINDOW) -> list[Change]:
    """What happened within `window` steps of `step`: the changes found there, or the step itself with its causes."""
    near = [change for change in find_changes(account, window=window) if abs(change.step - step) <= window]
    return near or [Change(step, account.loss_name, None, tuple(explain(account, step, window=window)))]


def _explained(account: Account, name: str, metric: Metric, shift: Shift, window: int) -> Change:
    causes = explain(account, shift.step, window=window, metric=metric, shift=shift)
    return Change(shift.step, name, shift, tuple(causes))


def explain(
    account: Account, step: int, *, window: int = WINDOW, metric: Metric = "loss", shift: Shift | None = None
) -> list[Cause]:
    """What was recorded within `window` steps of `step`, likeliest first.

    A cause comes before its effect: what was recorded after `step` counts little when a change begins at `step`
    (`shift`), and as much as what came before it when a person asks about a step.
    """
    causes = [
        *_sessions(account, metric, changed=shift is not None),
        *_rates(account, metric, step, window),
        *_skips(account, metric, step, window),
        *_marks(account, metric, step, window),
    ]
    near: list[Cause] = []
    for cause in causes:
        distance = step - cause.step
        if abs(distance) > window:
            continue
        # Where a jump is placed is uncertain by a step or two.
        late = shift is not None and distance < -2
        weight = cause.weight / (1 + abs(distance) / window) * (0.2 if late else 1.0)
        near.append(Cause(cause.kind, cause.step, cause.message, weight, cause.event, cause.session))
    if metric == "loss" and account.loss is not None:
        near += _nonfinite(account, step, window)
    if shift is not None:
        near = [cause for cause in near if _may_cause(cause, metric, shift)]
    return sorted(near, key=lambda cause: -cause.weight)


def _may_cause(cause: Cause, metric: Metric, shift: Shift) -> bool:
    """Whether such a thing can be why a curve changes at all: an evaluation does not move the training loss."""
    if cause.kind == "non_finite" and shift.kind == "non_finite":
        return False  # that is the change itself
    if cause.kind in ("phase", "log"):
        return metric == "throughput"
    if cause.kind in ("lr", "fp16_skip"):
        return metric == "loss"
    if cause.kind == "alert" and isinstance(cause.event, AlertEvent):
        # These alerts tell of the change, they are not why.
        return cause.event.code not in ("loss_jump", "non_finite")
    return True


# -- sessions --------------------------------------------------------------------------------------------------------


def _sessions(account: Account, metric: Metric, *, changed: bool) -> Iterator[Cause]:
    """Where a session of the effective history took over, and what was other in it.

    A boundary that is proven exact is an answer to a question, but hardly why a loss `changed`.
    """
    rows = {row.session: row for row in account.resumes}
    gap_before = {gap.after: gap for gap in account.gaps}
    for segment in account.segments:
        if segment.num_effective == 0 or (segment.start_step == 0 and segment.origin == "fresh"):
            continue
        step = segment.start_step + 1
        row = rows.get(segment.session)
        if row is not None and row.verdict == "diverged" and row.first_difference is not None:
            first = row.first_difference
            kind: CauseKind = _KIND_OF_FIELD.get(first.field, "continuation")
            said = f"session {segment.ordinal} did not carry on the same experiment: {row.reason}"
            yield Cause(kind, first.step, said, WEIGHTS["diverged", metric], session=segment.session)
            if first.step != step:  # a wrong restore shows later than it happens
                yield Cause(kind, step, said, WEIGHTS["diverged", metric] - 1, session=segment.session)
        elif row is not None and row.verdict == "unproven" and DATA_STARTED_OVER in row.reason:
            yield Cause("data", step, row.reason, WEIGHTS["lr_wrong", metric], session=segment.session)
        differences = account.differences(segment.parent, segment.session) if segment.parent else []
        yield from _differing(segment, differences, metric)
        said = _how_it_began(account.run, segment)
        gap = gap_before.get(segment.session)
        if gap is not None and gap.duration_s is not None:
            said += f", {_duration(gap.duration_s)} after the one before it"
        if row is not None and row.verdict in ("exact", "within_tolerance"):
            words = "exactly" if row.verdict == "exact" else "within the declared tolerance"
            said += f"; it carried on {words} ({row.compared_steps} steps compared)"
        elif differences:
            counts = ", ".join(f"{n} {_GRADE_WORDS[g]}" for g, n in count_by_grade(differences).items())
            said += f"; what differs: {counts}"
        proven = row is not None and row.verdict == "exact"
        weight = WEIGHTS["session", metric] * (0.5 if proven and metric == "loss" and changed else 1.0)
        yield Cause("session", step, said, weight, session=segment.session)


_KIND_OF_FIELD: Final[Mapping[str, CauseKind]] = {"batch": "data", "lr": "lr", "scale": "fp16_skip"}


def _differing(segment: Segment, differences: Sequence[Difference], metric: Metric) -> Iterator[Cause]:
    """One cause for each weighty difference at the boundary, five of a grade at most."""
    for grade in ("experiment", "numerics"):
        graded = [d for d in differences if d.grade == grade]
        for difference in graded[:5]:
            said = f"{difference.section} differs in session {segment.ordinal}: {describe(difference)}"
            more = f" (and {len(graded) - 5} more)" if len(graded) > 5 and difference is graded[4] else ""
            yield Cause(
                "difference",
                segment.start_step + 1,
                f"{said} ({_GRADE_WORDS[grade]}){more}",
                WEIGHTS[grade, metric],
                session=segment.session,
            )


def _how_it_began(run: Run, segment: Segment) -> str:
    session = next(s for s in run.sessions if s.id == segment.session)
    start = session.start
    what = f"session {segment.ordinal} begins here"
    if start.kind == "fork":
        return f"{what}: a fork of {start.run} from {start.checkpoint}"
    if start.checkpoint is not None:
        return f"{what}: resumed from {start.checkpoint}"
    if segment.origin == "fresh":
        return f"{what}: started over from step 0"
    return f"{what}: no checkpoint was restored"


# -- learning rate and scale -----------------------------------------------------------------------------------------


def _rates(account: Account, metric: Metric, step: int, window: int) -> Iterator[Cause]:
    for event in account.near(step, window + 1):
        if isinstance(event, LrRestoreEvent):
            yield from _restored(event, metric)
    if account.lr is None:
        return
    import numpy as np

    low, high = np.searchsorted(account.lr.step, [step - window - 2, step + window + 1])
    steps, values = account.lr.step[low:high].tolist(), account.lr.value[low:high].tolist()
    begun = {s.start_step + 1: s for s in account.segments if s.num_effective and s.start_step > 0}
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    moves = [b - a for a, b in pairwise(values)]
    for i in range(2, len(steps)):
        before, after, move = values[i - 1], values[i], moves[i - 1]
        at = begun.get(steps[i])
        # Beyond what the schedule did a step before: warm-up and decay change by little more each step.
        if not math.isfinite(move - moves[i - 2]) or abs(move - moves[i - 2]) <= 0.05 * largest:
            continue
        # A schedule that skipped updates hold back moves in steps, each about as large as the others.
        usual = any(other * move > 0 and abs(other) > 0.6 * abs(move) for j, other in enumerate(moves) if j != i - 1)
        if abs(move) <= 0.1 * largest or (usual and at is None):
            continue
        where = f" as session {at.ordinal} begins" if at else ""
        said = f"the learning rate jumps from {before:.6g} to {after:.6g} at step {steps[i]}{where}"
        weight = WEIGHTS["lr_wrong" if at else "lr_jump", metric]
        yield Cause("lr", steps[i], said, weight, session=at.session if at else None)


def _restored(event: LrRestoreEvent, metric: Metric) -> Iterator[Cause]:
    step = (event.step or 0) + 1
    wrong = [g for g in event.groups if g.expected is not None and g.expected != g.after]
    shown = (wrong or [g for g in event.groups if g.before != g.after] or event.groups)[:1]
    if not shown:
        return
    group = shown[0]
    name = f"{group.optimizer}[{group.group}]"
    if wrong or not event.ok:
        said = f"the learning rate of {name} is {group.after:.6g} after the restore, the checkpoint expects "
        said += f"{group.expected:.6g}" if group.expected is not None else "another"
        yield Cause("lr", step, said, WEIGHTS["lr_wrong", metric], event, event.session)
        return
    said = f"the restore put the learning rate of {name} back from {group.before:.6g} to {group.after:.6g}, as expected"
    yield Cause("lr", step, said, WEIGHTS["lr_restored", metric], event, event.session)


def _skips(account: Account, metric: Metric, step: int, window: int) -> Iterator[Cause]:
    """The skipped steps around `step`, together: one overflow is a chain of skips."""
    skips = [event for event in account.near(step, window) if isinstance(event, Fp16SkipEvent)]
    if not skips:
        return
    steps = [event.step for event in skips if event.step is not None]
    nearest = min(skips, key=lambda event: abs((event.step or 0) - step))
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    said = f"{_count(len(steps), 'update')} skipped at {where}: gradients overflowed, the loss scale went from "
    said += f"{_number(skips[0].scale_before)} to {_number(skips[-1].scale_after)}"
    yield Cause("fp16_skip", nearest.step or 0, said, WEIGHTS["fp16_skip", metric], nearest, nearest.session)


# -- everything else with a mark -------------------------------------------------------------------------------------


def _marks(account: Account, metric: Metric, around: int, window: int) -> Iterator[Cause]:
    for event in account.near(around, window + 1):
        step = event.step or 0
        after = step + 1  # what happens after a step is completed shows in the next one
        match event:
            case PhaseEndEvent():
                failed = "" if event.ok else ", left by an exception"
                said = f"{event.phase} took {_duration(event.duration_s)} after step {step}{failed}"
                share = min(1.0, 0.3 + event.duration_s / 10)
                yield Cause("phase", after, said, WEIGHTS["phase", metric] * share, event, event.session)
            case NoteEvent():
                yield Cause("note", step, f"note: {event.text}", WEIGHTS["note", metric], event, event.session)
            case AlertEvent() if event.code != "diverged":
                yield Cause("alert", step, f"alert: {event.message}", WEIGHTS["alert", metric], event, event.session)
            case LogRecoveredEvent():
                said = f"{event.discarded_bytes} bytes of a torn line were cut from the log when it was opened"
                yield Cause("log", after, said, WEIGHTS["log", metric], event, event.session)
            case _:
                pass  # of checkpoints and evaluations their phases tell how long they took


def _nonfinite(account: Account, step: int, window: int) -> Iterator[Cause]:
    """The first non-finite loss of the neighbourhood."""
    import numpy as np

    curve = account.loss
    assert curve is not None  # noqa: S101  the caller asked
    low, high = np.searchsorted(curve.step, [step - window, step + window + 1])
    bad = np.flatnonzero(~np.isfinite(curve.value[low:high]))
    if bad.size:
        at = int(curve.step[low + bad[0]])
        said = f"the loss is {curve.value[low + bad[0]]} at step {at}"
        weight = WEIGHTS["non_finite", "loss"] / (1 + abs(at - step) / window)
        yield Cause("non_finite", at, said, weight)


def _number(value: float) -> str:
    """A loss scale as it is written in events: whole ones in full."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def tell(changes: Iterable[Change]) -> Iterator[str]:
    """Lines for people: each change, then its causes."""
    for change in changes:
        yield _headline(change)
        for cause in change.causes:
            yield f"  {cause.message}"
        if not change.causes:
            yield f"  {NOTHING}"


def _headline(change: Change) -> str:
    shift = change.shift
    if shift is None:
        return f"step {change.step}" + (": another experiment from here on" if change.diverged else "")
    if shift.kind == "non_finite":
        return f"step {change.step}: {change.metric} is {shift.after} for {_count(shift.num_rows, 'logged step')}"
    verb = {"jump": "jumps", "drop": "drops", "spike": "spikes"}[shift.kind]
    return f"step {change.step}: {change.metric} {verb} from {shift.before:.5g} to {shift.after:.5g}"
