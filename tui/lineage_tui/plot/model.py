"""What a chart shows (`ChartModel`) and how the person looks at it (`View`): plain values, no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LineKind = Literal["boundary", "death", "gap"]
MarkKind = Literal["lr_restore", "fp16_skip", "nonfinite", "alert", "checkpoint", "note"]
XKind = Literal["count", "seconds", "clock"]
Glyphs = Literal["braille", "blocks", "ascii"]


@dataclass(frozen=True, eq=False)
class SeriesData:
    """One curve.

    Attributes:
        key: stable name of the curve; what is remembered between frames (pyramid, smoothing) hangs on it.
        label: what the legend says.
        x: ascending, finite. y: same length; a non-finite value splits the line and is marked on the axis.
        hue: which of the palette's series colours; wraps after six.
        dimmed: superseded steps: the run's own hue, dimmed and dotted, never in front.
        step: the step of each sample where x is something else; readouts name it.
        breaks: ascending indices i at which no line joins sample i-1 to sample i (a gap in wall time).
        num_dropped: samples the builder left out because x was not finite; the header owns up to them.
        smooth: follow the view's smoothing; False for schedules, and for points that mean something one by one.
        lead: samples before the first one, not drawn, from which the smoothing of a branch starts.
    """

    key: str
    label: str
    x: Floats
    y: Floats
    hue: int = 0
    dimmed: bool = False
    step: Ints | None = None
    breaks: Ints | None = None
    num_dropped: int = 0
    smooth: bool = True
    lead: Floats | None = None

    def __post_init__(self) -> None:
        if self.x.shape != self.y.shape or self.x.ndim != 1:
            raise ValueError(f"{self.key}: x and y must be flat and of one length, not {self.x.shape}, {self.y.shape}")


@dataclass(frozen=True)
class Span:
    """A stretch of x with its own background: `eval`, `checkpoint`, `restore`, or the user's word for a phase."""

    x0: float
    x1: float
    kind: str
    label: str = ""


@dataclass(frozen=True)
class VLine:
    """A vertical line; the first word of `label` stays when there is no room for all (`s2` of `s2 exact`)."""

    x: float
    kind: LineKind
    label: str = ""


@dataclass(frozen=True)
class Mark:
    """Something that happened at x; drawn in the event lane, never on the curve."""

    x: float
    kind: MarkKind
    label: str = ""


@dataclass(frozen=True, eq=False)
class ChartModel:
    """Everything one chart can show, independent of size, zoom and colours.

    Attributes:
        series: bright ones first to last in legend order, superseded ones (`dimmed`) among them.
        x_kind: how x is written: counts (52,000), seconds (3 h 12 m) or the clock (14:05; x in Unix seconds).
        utc_offset_s: what to add to UTC for clock times.
        message: said in the middle of a chart without a single sample.
        has_lane: keep a row for events; a preview that knows of none does without.
    """

    title: str
    series: Sequence[SeriesData] = ()
    spans: Sequence[Span] = ()
    lines: Sequence[VLine] = ()
    marks: Sequence[Mark] = ()
    x_label: str = "step"
    x_kind: XKind = "count"
    y_unit: str = ""
    utc_offset_s: float = 0.0
    message: str = "no samples yet"
    has_lane: bool = True

    @cached_property
    def marks_by_kind(self) -> Mapping[MarkKind, Floats]:
        """Where the events of each kind are; made once a model."""
        found: dict[MarkKind, list[float]] = {}
        for mark in self.marks:
            found.setdefault(mark.kind, []).append(mark.x)
        return {kind: np.array(at, dtype=np.float64) for kind, at in found.items()}

    @cached_property
    def spans_by_kind(self) -> Mapping[str, tuple[Floats, Floats, list[str]]]:
        """Lower ends, upper ends and labels of the spans of each kind; made once a model."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.kind, []).append(span)
        return {
            kind: (
                np.array([min(span.x0, span.x1) for span in spans], dtype=np.float64),
                np.array([max(span.x0, span.x1) for span in spans], dtype=np.float64),
                [span.label for span in spans],
            )
            for kind, spans in found.items()
        }

    def share(self, other: ChartModel) -> None:
        """Take over what was worked out for another model of the very same marks and spans."""
        for name, same in (("marks_by_kind", self.marks is other.marks), ("spans_by_kind", self.spans is other.spans)):
            if same:
                vars(self)[name] = getattr(other, name)

    def shown(self, view: View) -> list[SeriesData]:
        """The series this view draws: superseded ones only if it wants them."""
        return [one for one in self.series if view.show_superseded or not one.dimmed]


@dataclass(frozen=True)
class View:
    """How a person looks at a chart.

    Attributes:
        x0, x1: the window in x; None follows the data.
        smoothing: weight of the past in the debiased exponential mean, 0 (raw) to below 1, per sample.
        clip: keep outliers (outside the 1st to 99th percentile) from flattening the rest; they are marked.
        cursor_x: where the cursor stands, in x; None hides it.
        focus: which bright series is on top and owns the noise band, counted from 0.
        range: a marked stretch of x.
    """

    x0: float | None = None
    x1: float | None = None
    log_y: bool = False
    log_x: bool = False
    smoothing: float = 0.0
    clip: bool = True
    cursor_x: float | None = None
    focus: int = 0
    show_superseded: bool = True
    range: tuple[float, float] | None = None

    def but(self, **changes: object) -> View:
        """This view with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # dataclass fields by name


@dataclass(frozen=True)
class Look:
    """What the terminal can show.

    Attributes:
        glyphs: which characters draw curves.
        tints: backgrounds may be tinted; else spans become shade characters and noise becomes dim dots.
        letters: name series by letters on the line and in the legend (no colours, or more than six series).
    """

    glyphs: Glyphs = "braille"
    tints: bool = True
    letters: bool = False


EMPTY = np.empty(0, dtype=np.float64)
NO_INDEX: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Window:
    """The stretch of x and y a frame shows; y bounds are in data units."""

    x0: float
    x1: float
    y0: float
    y1: float
    log_x: bool = False
    log_y: bool = False
    edges: Floats = field(default_factory=lambda: EMPTY, compare=False, repr=False)
