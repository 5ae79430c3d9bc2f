"""From a run as it was read to the charts that show it: curves, phases, boundaries and events, on one x axis.

Pure but for the reading that `RunView` does. Long curves are kept between calls and only extended, so that following
a run of ten million points copies what was appended and nothing else.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from lineage.history.segments import Segment
from lineage_schemas.events import (
    AlertEvent,
    CheckpointSavedEvent,
    Event,
    Fp16SkipEvent,
    LogRecoveredEvent,
    LrRestoreEvent,
    NoteEvent,
    PhaseEndEvent,
    PhaseStartEvent,
)
from lineage_schemas.ids import SessionId
from lineage_schemas.run import Continuation, Session
from lineage_tui.plot.model import NO_INDEX, ChartModel, Floats, Ints, Mark, SeriesData, Span, VLine, XKind
from lineage_tui.plot.numbers import format_duration, format_short, format_value

if TYPE_CHECKING:
    from lineage.history.audit import ResumeAudit
    from lineage.view import RunView, Series, Stretch

Axis = Literal["step", "train", "wall", "tokens", "session"]
Unit = Literal["tokens", "samples"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
UNITS_OF_COUNTS: Final[tuple[Unit, ...]] = get_args(Unit)
DEFAULT_NAMES: Final = ("loss", "lr", "grad_norm")
THROUGHPUT: Final = ("tokens_per_s", "samples_per_s", "step_s")
UNITS: Final[dict[str, str]] = {"step_s": "s"}
DEATHS: Final = frozenset({"killed", "failed"})
LEAD: Final = 4096  # samples that warm up the smoothing of superseded steps
UNSETTLED: Final = 256  # of the newest events, whose steps may not have been read yet
GAP_S: Final = 60.0  # a pause between sessions shorter than this is not worth a line
_AXIS_WORDS: Final[dict[Axis, tuple[str, XKind]]] = {
    "step": ("step", "count"),
    "train": ("train", "seconds"),
    "wall": ("time", "clock"),
    "tokens": ("tokens", "count"),
    "session": ("step of its session", "count"),
}


def default_names(available: Sequence[str]) -> list[str]:
    """Loss, learning rate, gradient norm and one kind of throughput, as far as they were logged; else what was."""
    names = [name for name in DEFAULT_NAMES if name in available]
    names += [name for name in THROUGHPUT if name in available][:1]
    if len(names) < 4:
        names += [name for name in available if name not in names and name not in THROUGHPUT][: 4 - len(names)]
    return names


def chart_models(
    view: RunView,
    names: Sequence[str],
    x: Axis | str = "step",
    *,
    verdicts: Mapping[str, ResumeAudit] | None = None,
) -> list[ChartModel]:
    """A chart for each name, in this order; a name that was never logged gives an empty chart.

    Args:
        view: the run; what was made of it is kept for the next call with the same view.
        names: of `view.metrics`.
        x: one of `AXES`: steps, training time, wall time, tokens consumed (samples where no tokens were counted), or
            steps since each session's start, every session a curve of its own. Tokens and training time are those
            that the steps say they took, from the first that says so; a step that does not say has no place there, is
            left out, and counted in `num_dropped`. Where no step says it the axis is steps.
        verdicts: by session id, how each carried on according to its log (`lineage.history.evidence.audit_view`);
            they go before what the sessions recorded of themselves, and a careless restart recorded nothing.
    """
    builder = _BUILDERS.get(view)
    if builder is None:
        builder = _BUILDERS[view] = _Builder(view)
    if x not in AXES:
        raise ValueError(f"no x axis is called {x!r}; there are {', '.join(AXES)}")
    return builder.models(names, x, verdicts or {})


Number = TypeVar("Number", bound=np.generic)


class _Column(Generic[Number]):
    """An array that grows at its end; what it handed out stays as it was."""

    def __init__(self, kind: type[Number]) -> None:
        self._data: NDArray[Number] = np.empty(0, kind)
        self.size = 0

    def reserve(self, count: int) -> None:
        """Make room for `count` more values at once, so that parts of a long series are copied only once."""
        needed = self.size + count
        if needed > self._data.size:
            grown: NDArray[Number] = np.empty(
                max(needed, self._data.size + self._data.size // 2 if self.size else 0), self._data.dtype
            )
            grown[: self.size] = self._data[: self.size]
            self._data = grown

    def extend(self, values: Floats | Ints | NDArray[Number]) -> None:
        self.reserve(values.size)
        self._data[self.size : self.size + values.size] = values
        self.size += values.size

    @property
    def array(self) -> NDArray[Number]:
        return self._data[: self.size]


@dataclass(frozen=True)
class _Rows:
    """Rows of one metric: steps, x, values, and where the line breaks."""

    step: Floats | Ints
    x: Floats
    y: Floats
    breaks: Ints
    lead: Floats | None = None
    is_finite: bool | None = None  # x; None: nobody looked


class _Ruler:
    """Steps and x of rows; metrics that were logged at the same steps share one."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.x = _Column(np.float64)
        self.steps = None if axis == "step" else _Column(np.int64)  # x has them otherwise
        self.breaks: list[int] = []
        self.last_session: int | None = None
        self.is_finite = True
        self.reached = -math.inf  # the last finite x

    @property
    def size(self) -> int:
        return self.x.size

    @property
    def step(self) -> Floats | Ints:
        return self.x.array if self.steps is None else self.steps.array

    def reserve(self, count: int) -> None:
        self.x.reserve(count)
        if self.steps is not None:
            self.steps.reserve(count)

    def extend(self, step: Ints, x: Floats | Ints) -> None:
        self.x.extend(x)
        if self.steps is not None:
            self.steps.extend(step)
            good = np.isfinite(x)
            self.is_finite = self.is_finite and bool(good.all())
            if good.any():
                self.reached = float(x[-1] if good[-1] else x[good][-1])

    def has(self, parts: Sequence[Stretch], start: int) -> bool:
        """Whether its rows from `start` on are those of the parts."""
        if self.size != start + sum(len(part) for part in parts):
            return False
        steps = self.step[start:]
        for part in parts:
            if not np.array_equal(steps[: len(part)], part.step):
                return False
            steps = steps[len(part) :]
        return True

    def copy(self, size: int, last_session: int | None) -> _Ruler:
        """Its first rows, in a ruler of their own."""
        twin = _Ruler(self.axis)
        twin.extend(self.step[:size].astype(np.int64), self.x.array[:size])
        twin.breaks = [at for at in self.breaks if at < size]
        twin.last_session = last_session
        return twin


class _Grown:
    """The effective rows of one metric on one axis."""

    def __init__(self) -> None:
        self.ruler: _Ruler | None = None
        self.y = _Column(np.float64)
        self.last_session: int | None = None

    def rows(self) -> _Rows:
        ruler = self.ruler
        if ruler is None:
            return _Rows(np.empty(0), np.empty(0), np.empty(0), NO_INDEX)
        size = self.y.size  # the ruler may have grown with another metric
        breaks = np.array([at for at in ruler.breaks if at < size], dtype=np.int64)
        return _Rows(ruler.step[:size], ruler.x.array[:size], self.y.array, breaks, is_finite=ruler.is_finite)


class _Count:
    """What was consumed up to each step of the effective history; NaN at the steps that did not say."""

    def __init__(self) -> None:
        self.ruler = _Ruler("tokens")
        self.num_known = 0

    def extend(self, parts: Sequence[tuple[Ints, Floats]]) -> None:
        self.ruler.reserve(sum(step.size for step, _ in parts))
        for step, values in parts:
            known = np.isfinite(values)
            self.num_known += int(np.count_nonzero(known))
            self.ruler.extend(step, _added_up(values, known, max(self.ruler.reached, 0.0)))


def _added_up(values: Floats, known: NDArray[np.bool_], before: float) -> Floats:
    """The sum up to each value, from `before` on; NaN where there is none."""
    total: Floats = before + np.cumsum(np.where(known, values, 0.0))
    total[~known] = math.nan
    return total


def _ascending(x: Floats | Ints, before: float = -math.inf) -> Floats:
    """X that never goes back; what is NaN stays NaN."""
    kept: Floats = np.fmax.accumulate(np.fmax(x, before)) if x.size else np.empty(0)
    bad = np.isnan(x)
    if bad.any():
        kept[bad] = math.nan
    return kept


def _at_steps(steps: Floats | Ints, xs: Floats, wanted: Floats | Ints) -> Floats:
    """The x of the rows of these very steps; NaN where there is no such row. `steps` ascend."""
    if not steps.size:
        return np.full(wanted.size, math.nan)
    at = np.minimum(np.searchsorted(steps, wanted), steps.size - 1)
    return np.where(steps[at] == wanted, xs[at], math.nan)


class _Clock:
    """Where on the x axis a step of a session is."""

    def __init__(self, axis: Axis, segments: Sequence[Segment]) -> None:
        self.axis = axis
        self.segments = {segment.session: segment for segment in segments}
        self.by_ordinal = {segment.ordinal: segment for segment in segments}
        self.effective: tuple[Floats | Ints, Floats] = (np.empty(0), np.empty(0))
        self.of_session: dict[SessionId, tuple[Floats | Ints, Floats]] = {}
        self.untimed: frozenset[int] = frozenset()  # steps that do not say how long they took

    def at(self, session: SessionId, step: float, ts: float) -> float:
        """X of a moment of a session; nan where nobody knows."""
        if self.axis == "step":
            return step
        if self.axis == "wall":
            return ts
        segment = self.segments.get(session)
        if segment is None:
            return math.nan
        if self.axis == "session":
            return step - segment.start_step
        steps, xs = self.effective
        if step > segment.effective_to and session in self.of_session:
            steps, xs = self.of_session[session]
        return _lookup(steps, xs, step)


def _lookup(steps: Floats | Ints, xs: Floats, step: float) -> float:
    """X of the last row at or before a step; of the first row for an earlier one."""
    if not steps.size:
        return math.nan
    return float(xs[max(int(np.searchsorted(steps, step, side="right")) - 1, 0)])


class _Builder:
    """What was made of one view so far."""

    def __init__(self, view: RunView) -> None:
        # The table of builders holds the view weakly; a builder that held it would keep it alive.
        self._view = weakref.ref(view)
        self._version = -1
        self._axis: Axis | None = None
        self._drawn: tuple[Axis, str] | None = None
        self._grown: dict[str, _Grown] = {}
        self._counts: dict[Unit, _Count] = {}
        self._count: _Count | None = None  # the one that is the axis
        self._num_timed = 0  # rows whose durations were looked for
        self._untimed = _Column(np.int64)  # steps of those that have none
        self._old: dict[tuple[str, SessionId], _Rows] = {}  # rows of sessions that will get no more
        self._kept_evals: dict[str, tuple[tuple[int, int], SeriesData | None]] = {}
        self._settled = _Happenings()
        self._known: (
            tuple[tuple[int, int, int, str, int], tuple[tuple[Mark, ...], tuple[Span, ...], Mapping[str, float]]] | None
        ) = None
        self._index = ChartModel("")
        self._last_seen: dict[tuple[str, str], float] = {}  # by session and state

    def models(self, names: Sequence[str], axis: Axis, verdicts: Mapping[str, ResumeAudit]) -> list[ChartModel]:
        view = self._view()
        if view is None or not names:
            return []
        if (view.history_version, axis) != (self._version, self._axis):
            self._version, self._axis, self._drawn = view.history_version, axis, None
            self._counts.clear()
            self._num_timed, self._untimed = 0, _Column(np.int64)
            self._last_seen.clear()
        axis, label, kind = self._choose_axis(view, axis)
        if (axis, label) != self._drawn:  # counts may begin late in a run: nothing of another axis may stay
            self._drawn = (axis, label)
            self._grown.clear()
            self._old.clear()
            self._kept_evals.clear()
            self._settled = _Happenings()
            self._known = None
        clock = _Clock(axis, view.segments)
        if axis == "train":
            clock.untimed = frozenset(self._untimed.array.tolist())
        available = view.metrics
        ruler = names[0] if names[0] in available else next(iter(available), None)
        if ruler is not None and axis in {"train", "tokens"}:
            self._set_clock(view, clock, ruler)
        marks, spans, last_ts = self._happened(view, clock)
        last_seen = self._find_last_seen(view, dict(last_ts))
        gaps = _gaps(view, last_seen)
        if axis == "wall" and gaps:
            spans = (*spans, *(Span(gap.x, gap.x_end, "gap", gap.label) for gap in gaps))
        lines = _lines(view, clock, gaps, last_seen, verdicts)
        offset = _utc_offset_s(view) if axis == "wall" else 0.0
        made: list[ChartModel] = []
        for name in names:
            series: list[SeriesData] = []
            if name in available:
                series = self._session_curves(view, name) if axis == "session" else self._curves(view, name, clock)
            made.append(
                ChartModel(
                    title=name,
                    series=tuple(series),
                    spans=spans,
                    lines=lines,
                    marks=marks,
                    x_label=label,
                    x_kind=kind,
                    y_unit=UNITS.get(name, ""),
                    utc_offset_s=offset,
                    message="no samples yet" if name in available else "never logged",
                )
            )
        index = self._index
        if index.marks is not marks or index.spans is not spans:
            index = self._index = ChartModel("", marks=marks, spans=spans)
        for model in made:
            model.share(index)
        return made

    def _happened(self, view: RunView, clock: _Clock) -> tuple[tuple[Mark, ...], tuple[Span, ...], Mapping[str, float]]:
        """Marks, phases, and the last event of each session: the very same objects while nothing happened."""
        # Where x is in the event itself, only a session that run.json does not have yet can leave it open.
        open_end = clock.axis in {"train", "tokens"}
        reached = (view.last_step or 0) if open_end else 0
        stamp = (view.history_version, view.num_events, len(view.segments), clock.axis, reached)
        if self._known is None or self._known[0] != stamp:
            events = view.events()
            self._settled.take(events, clock, max(len(events) - (UNSETTLED if open_end else UNSETTLED // 16), 0))
            found = self._settled.copy()
            found.take(events, clock, len(events))
            self._known = (stamp, (tuple(found.marks), found.all_spans(clock), found.last_ts))
        return self._known[1]

    # Curves

    def _curves(self, view: RunView, name: str, clock: _Clock) -> list[SeriesData]:
        """The effective history, what was superseded of each session, and the evaluations of the same name."""
        rows = self._effective(view, name, clock.axis)
        curves = [_series(name, name, view.record.name or name, rows, clock.axis)]
        curves += [
            replace(
                _series(name, f"{name}/{segment.session}", f"s{segment.ordinal} superseded", found, clock.axis),
                dimmed=True,
            )
            for segment in view.segments
            if segment.num_superseded and (found := self._superseded(view, name, segment, clock)).x.size
        ]
        if (evals := self._evals(view, name, clock)) is not None:
            curves.append(evals)
        return curves

    def _evals(self, view: RunView, name: str, clock: _Clock) -> SeriesData | None:
        """The evaluations of this metric; made anew only when there are more of them."""
        logged = view.events("eval")
        reached = min(view.last_step or 0, max((event.step or 0 for event in logged[-UNSETTLED:]), default=0))
        stamp = (len(logged), reached)
        if (kept := self._kept_evals.get(name)) is not None and kept[0] == stamp:
            return kept[1]
        curve: SeriesData | None = None
        evals = view.evals(metric=name)
        if len(evals):
            steps = evals.step.astype(np.float64)
            x = np.array([_eval_x(clock, row, steps, evals) for row in range(len(evals))], dtype=np.float64)
            order = np.argsort(x, kind="stable")
            order = order[np.isfinite(x[order])]
            turns = np.flatnonzero(np.diff(evals.session[order])) + 1 if clock.axis == "wall" else NO_INDEX
            eval_rows = _Rows(steps[order], x[order], evals.value[order], turns.astype(np.int64))
            curve = replace(
                _series(name, f"{name}/eval", "eval", eval_rows, clock.axis),
                hue=1,
                smooth=False,
                num_dropped=int(x.size - order.size),
            )
        self._kept_evals[name] = (stamp, curve)
        return curve

    def _effective(self, view: RunView, name: str, axis: Axis) -> _Rows:
        grown = self._grown.setdefault(name, _Grown())
        start = grown.y.size
        parts = list(view.stretches(name, start=start))
        if parts:
            grown.ruler = self._ruler_of(grown, parts, axis)
            grown.last_session = parts[-1].session
            grown.y.reserve(sum(len(part) for part in parts))
            for part in parts:
                grown.y.extend(part.value)
        return grown.rows()

    def _ruler_of(self, grown: _Grown, parts: Sequence[Stretch], axis: Axis) -> _Ruler:
        """Steps and x of the rows of `grown` and of the new ones: those of another metric where they are the same."""
        start, own = grown.y.size, grown.ruler
        rulers = {id(other.ruler): other.ruler for other in self._grown.values() if other.ruler is not None}
        for ruler in [own] if own is not None else rulers.values():
            if ruler.has(parts, start):
                return ruler
        if own is None:
            own = _Ruler(axis)
        elif own.size != start:  # another metric went on without this one
            own = own.copy(start, grown.last_session)
        own.reserve(sum(len(part) for part in parts))
        for part in parts:
            if axis == "wall" and own.last_session not in {None, part.session}:
                own.breaks.append(own.size)
            own.last_session = part.session
            x = self._positions(part, axis)
            if axis in {"wall", "train"}:
                x = _ascending(x, own.reached)  # a clock that was set back must not fold the line
            own.extend(part.step, x)
        return own

    def _positions(self, part: Stretch, axis: Axis) -> Floats | Ints:
        if axis == "train":
            x, untimed = part.train_time, self._untimed.array
            return np.where(np.isin(part.step, untimed), math.nan, x) if untimed.size else x
        if axis == "wall":
            return part.time
        if axis == "tokens" and self._count is not None:
            return _at_steps(self._count.ruler.step, self._count.ruler.x.array, part.step)
        return part.step

    def _superseded(self, view: RunView, name: str, segment: Segment, clock: _Clock) -> _Rows:
        """The rows of a session that a later one trained again, from the last row both share."""
        if (kept := self._old.get((name, segment.session))) is not None:
            return kept
        found = next(view.stretches(name, session=segment.ordinal), None)
        if found is None:
            return _Rows(np.empty(0), np.empty(0), np.empty(0), NO_INDEX)
        # Sessions are long and what was lost of them is short: nothing before it is copied.
        order = NO_INDEX if bool((np.diff(found.step) > 0).all()) else np.argsort(found.step, kind="stable")
        sorted_step, value = (found.step[order], found.value[order]) if order.size else (found.step, found.value)
        first = max(int(np.searchsorted(sorted_step, segment.effective_to, side="right")) - 1, 0)
        lead = value[max(first - LEAD, 0) : first]
        step, tail = sorted_step[first:].astype(np.float64), order[first:] if order.size else slice(first, None)
        if clock.axis == "tokens":
            x = self._superseded_tokens(view, segment, step)
        elif clock.axis == "wall":
            x = found.time[tail]
        elif clock.axis == "train":
            x = found.train_time[tail]
            logged, took = next(view.counted("duration_s", segment.ordinal))
            if (untimed := logged[np.isnan(took)]).size:
                x = np.where(np.isin(step, untimed), math.nan, x)
        else:
            x = step
        x = _ascending(x)
        rows = _Rows(step, x, value[first:], NO_INDEX, lead)
        self._old[name, segment.session] = rows
        return rows

    def _superseded_tokens(self, view: RunView, segment: Segment, wanted: Floats) -> Floats:
        """What had been consumed at steps of a session, counted on from where it began."""
        count = self._count
        unit: Unit = "tokens" if count is self._counts.get("tokens") else "samples"
        if count is None:
            return wanted
        logged, values = next(view.counted(unit, segment.ordinal))
        order = np.argsort(logged, kind="stable")
        order = order[np.append(np.diff(logged[order]) > 0, True)]  # of each step the last attempt
        steps, values = logged[order], values[order]
        before = count.ruler.x.array[: np.searchsorted(count.ruler.step, segment.start_step, side="right")]
        begun = before[np.isfinite(before)][-1:].tolist() or [0.0]
        return _at_steps(steps, _added_up(values, np.isfinite(values), begun[0]), wanted)

    def _session_curves(self, view: RunView, name: str) -> list[SeriesData]:
        """Every session from its own start."""
        curves: list[SeriesData] = []
        for number, segment in enumerate(view.segments):
            rows = self._old.get((name, segment.session))
            if rows is None:
                found = view.series(name, session=segment.ordinal)
                step = found.step.astype(np.float64)
                order = np.argsort(step, kind="stable")
                step = step[order]
                rows = _Rows(step, step - segment.start_step, found.value[order], np.empty(0, dtype=np.int64))
                if number + 1 < len(view.segments):
                    self._old[name, segment.session] = rows
            if rows.x.size:
                curve = _series(name, f"{name}/{segment.session}", f"s{segment.ordinal}", rows, "session")
                curves.append(replace(curve, hue=number))
        return curves

    # Axes

    def _choose_axis(self, view: RunView, axis: Axis) -> tuple[Axis, str, XKind]:
        """The axis that is possible, its label and kind; what it is made of is brought up to date."""
        self._count = None
        if axis == "tokens":
            for unit in UNITS_OF_COUNTS:
                count = self._counts.setdefault(unit, _Count())
                count.extend(list(view.counted(unit, start=count.ruler.size)))
                if count.num_known:
                    self._count = count
                    return axis, unit, "count"
            axis = "step"
        elif axis == "train":
            for step, took in view.counted("duration_s", start=self._num_timed):
                self._num_timed += step.size
                self._untimed.extend(step[np.isnan(took)])
            if self._untimed.size == self._num_timed:
                axis = "step"
        return axis, *_AXIS_WORDS[axis]

    def _find_last_seen(self, view: RunView, last: dict[str, float]) -> dict[str, float]:
        """Unix seconds of the last sign of life of each session, those of its events given."""
        ruler = next(iter(view.metrics), None)
        for session in view.sessions:
            if session.ended_at is not None:
                last[session.id] = session.ended_at.timestamp()
                continue
            state = str(view.session_states.get(SessionId(session.id), ""))
            if ruler is None or state not in DEATHS:
                continue
            key = (session.id, state)
            if key not in self._last_seen:
                rows = list(view.stretches(ruler, session=session.ordinal))
                self._last_seen[key] = float(rows[-1].time[-1]) if rows else -math.inf
            last[session.id] = max(last.get(session.id, -math.inf), self._last_seen[key])
        return last

    def _set_clock(self, view: RunView, clock: _Clock, ruler: str) -> None:
        """Let events find their x among the rows of one metric."""
        if clock.axis == "tokens" and self._count is not None:
            clock.effective = (self._count.ruler.step, self._count.ruler.x.array)
        else:
            rows = self._effective(view, ruler, clock.axis)
            clock.effective = (rows.step, rows.x)
        for segment in view.segments:
            if segment.num_superseded:
                found = self._superseded(view, ruler, segment, clock)
                if found.x.size:
                    clock.of_session[segment.session] = (found.step, found.x)


_BUILDERS: Final[weakref.WeakKeyDictionary[RunView, _Builder]] = weakref.WeakKeyDictionary()


def _series(name: str, key: str, label: str, rows: _Rows, axis: Axis) -> SeriesData:
    """Rows as a curve; rows without an x are counted, not drawn."""
    step = None if axis == "step" else rows.step.astype(np.int64, copy=False)
    x, y, breaks = rows.x, rows.y, rows.breaks
    dropped = 0
    if not rows.is_finite:
        good = np.isfinite(x)
        dropped = int(x.size - np.count_nonzero(good))
    if dropped:
        x, y, step = x[good], y[good], None if step is None else step[good]
        breaks = np.searchsorted(np.flatnonzero(good), breaks)
    smooth = not _is_schedule(name)
    return SeriesData(key, label, x, y, step=step, breaks=breaks, num_dropped=dropped, smooth=smooth, lead=rows.lead)


def _is_schedule(name: str) -> bool:
    """Whether a metric is set rather than measured: smoothing a learning rate would only delay it."""
    return name == "lr" or name.startswith(("lr/", "lr_")) or name.endswith(("/lr", "_lr"))


def _eval_x(clock: _Clock, row: int, steps: Floats, evals: Series) -> float:
    if clock.axis == "step":
        return float(steps[row])
    if clock.axis == "wall":
        return float(evals.time[row])
    if clock.axis == "train":
        return math.nan if int(steps[row]) in clock.untimed else float(evals.train_time[row])
    segment = clock.by_ordinal.get(int(evals.session[row]))
    return math.nan if segment is None else clock.at(segment.session, float(steps[row]), float(evals.time[row]))


def _utc_offset_s(view: RunView) -> float:
    """What local clocks were ahead of UTC when the run began, as far as this machine knows."""
    try:
        return float(time.localtime(view.record.created_at.timestamp()).tm_gmtoff)
    except (OverflowError, OSError, ValueError):
        return 0.0


# What happened


class _Happenings:
    """Marks, phases and signs of life of the events so far; those that cannot change any more are looked at once."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.spans: list[Span] = []
        self.open_phases: dict[tuple[str, str], list[Event]] = {}
        self.last_ts: dict[str, float] = {}
        self.num_seen = 0

    def copy(self) -> _Happenings:
        twin = _Happenings()
        twin.marks, twin.spans, twin.last_ts = list(self.marks), list(self.spans), dict(self.last_ts)
        twin.open_phases = {key: list(begun) for key, begun in self.open_phases.items()}
        twin.num_seen = self.num_seen
        return twin

    def take(self, events: Sequence[Event], clock: _Clock, upto: int) -> None:
        """Take in the events from the first new one up to `upto`."""
        for event in events[self.num_seen : upto]:
            self.last_ts[event.session] = max(self.last_ts.get(event.session, -math.inf), event.ts)
            if isinstance(event, PhaseStartEvent):
                self.open_phases.setdefault((event.session, event.phase), []).append(event)
            elif isinstance(event, PhaseEndEvent):
                begun = self.open_phases.get((event.session, event.phase), [])
                self.spans += _span(clock, event.phase, begun.pop() if begun else event, event)
            elif (mark := _mark(event)) is not None and math.isfinite(x := _x(clock, event)):
                self.marks.append(replace(mark, x=x))
        self.num_seen = max(self.num_seen, upto)

    def all_spans(self, clock: _Clock) -> tuple[Span, ...]:
        """Phases, the open ones up to the last event."""
        found = list(self.spans)
        for (session, phase), begun in self.open_phases.items():
            for start in begun:  # the process died in it, or is in it now
                found += _span(clock, phase, start, _moved(start, self.last_ts[session]))
        return tuple(found)


@dataclass(frozen=True)
class _Moment:
    """A step and a time of a session."""

    session: str
    step: int | None
    ts: float


def _moved(event: Event, ts: float) -> _Moment:
    """The same step at another time."""
    return _Moment(event.session, event.step, ts)


def _span(clock: _Clock, phase: str, start: Event | _Moment, end: Event | _Moment) -> list[Span]:
    x0 = _x(clock, start)
    x1 = _x(clock, end)
    return [Span(x0, max(x0, x1), phase)] if math.isfinite(x0) and math.isfinite(x1) else []


def _x(clock: _Clock, event: Event | _Moment) -> float:
    segment = clock.segments.get(SessionId(event.session))
    step = event.step if event.step is not None else (segment.start_step if segment is not None else None)
    if step is None and clock.axis != "wall":
        return math.nan
    return clock.at(SessionId(event.session), float(step or 0), event.ts)


@dataclass(frozen=True)
class _Gap:
    """A stretch of wall time without a session, and the session it ended with."""

    x: float
    x_end: float
    label: str
    after: SessionId


def _gaps(view: RunView, last: Mapping[str, float]) -> list[_Gap]:
    """Pauses between sessions, by the last sign of life of each and the start of the next."""
    found: list[_Gap] = []
    sessions = view.sessions
    for earlier, later in pairwise(sessions):
        end = last.get(earlier.id)
        begin = later.started_at.timestamp()
        if end is not None and begin - end >= GAP_S:
            found.append(_Gap(end, begin, f"gap {format_duration(begin - end)}", SessionId(later.id)))
    return found


def verdict_words(continuation: Continuation | ResumeAudit | None) -> str:
    """A verdict in a chart's words: exact, within tolerance, diverged @401, unproven; empty while there is none."""
    if continuation is None:
        return ""
    if continuation.verdict == "diverged" and continuation.first_difference is not None:
        return f"diverged @{continuation.first_difference.step}"
    return continuation.verdict.replace("_", " ")


def _lines(
    view: RunView,
    clock: _Clock,
    gaps: Sequence[_Gap],
    last_seen: Mapping[str, float],
    verdicts: Mapping[str, ResumeAudit],
) -> tuple[VLine, ...]:
    """Where sessions began and died, and on axes that hide it, where time passed in between."""
    if clock.axis == "session":
        return ()
    sessions = {SessionId(session.id): session for session in view.sessions}
    found: list[VLine] = []
    for segment in view.segments:
        session = sessions.get(segment.session)
        if session is None:
            continue
        started = session.started_at.timestamp()
        if segment.ordinal > 1 or segment.start_step > 0:
            x = _boundary_x(clock, segment, started)
            found.append(VLine(x, "boundary", _boundary_label(segment, session, verdicts.get(session.id))))
        state = str(view.session_states.get(segment.session, ""))
        if state in DEATHS:
            x = clock.at(segment.session, float(segment.last_step), last_seen.get(segment.session, started))
            found.append(VLine(x, "death", f"s{segment.ordinal} {state}"))
    if clock.axis != "wall":
        by_id = clock.segments
        found += [
            VLine(_boundary_x(clock, by_id[gap.after], gap.x_end), "gap", gap.label)
            for gap in gaps
            if gap.after in by_id
        ]
    return tuple(line for line in found if math.isfinite(line.x))


def _boundary_x(clock: _Clock, segment: Segment, ts: float) -> float:
    if clock.axis in {"train", "tokens"}:
        x = _lookup(*clock.effective, segment.start_step)
        # Where the one before did not count, the first step of this one may.
        return x if math.isfinite(x) else _lookup(*clock.effective, segment.start_step + 1)
    return clock.at(segment.session, float(segment.start_step), ts)


def _boundary_label(segment: Segment, session: Session, audited: ResumeAudit | None) -> str:
    found = audited or session.continuation
    words = verdict_words(found)
    proven = found is not None and found.verdict != "unproven"
    if not proven and session.start.kind == "fresh":  # says more than that nothing could be compared
        words = "fresh start" if segment.ordinal > 1 else ""
    elif not words and session.start.kind == "fork":
        words = "fork"
    return f"s{segment.ordinal} {words}".strip()


def _mark(event: Event) -> Mark | None:
    """The sign of an event and its words, its place still open; None for events that have no sign."""
    match event:
        case Fp16SkipEvent():
            scales = f"{format_value(float(event.scale_before))} to {format_value(float(event.scale_after))}"
            return Mark(0.0, "fp16_skip", f"FP16 step skipped, scale {scales}")
        case LrRestoreEvent():
            return Mark(0.0, "lr_restore", _lr_words(event))
        case AlertEvent():
            return Mark(0.0, "nonfinite" if event.code == "non_finite" else "alert", event.message)
        case CheckpointSavedEvent():
            return Mark(0.0, "checkpoint", f"checkpoint {event.checkpoint}")
        case NoteEvent():
            return Mark(0.0, "note", event.text)
        case LogRecoveredEvent():
            return Mark(0.0, "note", f"torn end of the log cut, {event.discarded_bytes} bytes")
        case _:
            return None


def _lr_words(event: LrRestoreEvent) -> str:
    group = event.groups[0] if event.groups else None
    if group is None:
        return "learning rate restored"
    words = f"learning rate {format_short(float(group.before))} to {format_short(float(group.after))}"
    if not event.ok and group.expected is not None:
        words += f", expected {format_short(float(group.expected))}"
    return words
