"""How a run is looked at, and what follows from it: pure, so that it is tested without a screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lineage_tui.messages import Snapshot
from lineage_tui.plot import navigate
from lineage_tui.plot.model import ChartModel, SeriesData, View
from lineage_tui.settings import DEFAULT_SMOOTHING


@dataclass(frozen=True)
class Looking:
    """How the person looks at the run; one for all charts of the screen.

    Attributes:
        x0, x1: the window, None follows the data.
        top: which series is on top, counted over the bright ones.
        range: a marked stretch; `marking` while its end still moves with the cursor.
        following: a window that was zoomed moves along with the end of a live run.
    """

    x0: float | None = None
    x1: float | None = None
    cursor: float | None = None
    smoothing: float = DEFAULT_SMOOTHING
    log_x: bool = False
    log_y: frozenset[str] = frozenset()
    unclipped: frozenset[str] = frozenset()
    superseded: bool = True
    top: int = 0
    range: tuple[float, float] | None = None
    marking: bool = False
    following: bool = False

    def view(self, name: str) -> View:
        """This, for one chart."""
        return View(
            x0=self.x0,
            x1=self.x1,
            log_y=name in self.log_y,
            log_x=self.log_x,
            # A learning rate is what it was set to: there is no noise to take away.
            smoothing=0.0 if name.rpartition("/")[2].startswith("lr") else self.smoothing,
            clip=name not in self.unclipped,
            cursor_x=self.cursor,
            focus=self.top,
            show_superseded=self.superseded,
            range=self.range,
        )

    def seen(self, view: View) -> Looking:
        """This, with what a person changed in one chart: window and cursor are everyone's."""
        return replace(self, x0=view.x0, x1=view.x1, cursor=view.cursor_x, range=view.range)


@dataclass(frozen=True)
class Shape:
    """How the screen is divided at a size: charts in columns and rows, and where the sessions stand."""

    columns: int
    rows: int
    beside: bool
    below: int

    @property
    def panes(self) -> int:
        return self.columns * self.rows


def shape_of(width: int, height: int, num_charts: int, num_sessions: int = 1) -> Shape:
    """One chart at 80 columns, two at 120, a grid with the sessions beside it at 200; never more than there are."""
    beside = width >= 170 and height >= 20
    if beside:
        columns, rows = 2, 2 if height >= 30 else 1
    elif width >= 110:
        columns, rows = (1, 2) if height >= 28 else (2, 1)
    else:
        columns, rows = 1, 2 if height >= 44 else 1
    if num_charts <= columns:
        columns, rows = max(num_charts, 1), 1
    elif num_charts <= columns * (rows - 1):
        rows = math.ceil(num_charts / columns)
    below = min(num_sessions, 4) + 1 if not beside and height >= 36 and width >= 60 else 0
    return Shape(columns, rows, beside, below)


def step_of(series: SeriesData, index: int) -> int:
    return int(series.step[index]) if series.step is not None else round(float(series.x[index]))


def x_of_step(model: ChartModel, step: int) -> float | None:
    """Where a step is on the x axis: the effective sample nearest to it."""
    best: tuple[int, float] | None = None
    for series in model.series:
        if not series.x.size:
            continue
        steps = series.step if series.step is not None else series.x
        order = steps.searchsorted(step)
        for index in (order - 1, order):
            if 0 <= index < series.x.size:
                away = abs(int(steps[index]) - step) * 2 + series.dimmed
                if best is None or away < best[0]:
                    best = (away, float(series.x[index]))
    return None if best is None else best[1]


def overlay(snapshots: Sequence[Snapshot], names: Sequence[str], x: str) -> dict[str, ChartModel]:
    """A model per metric: the main run's, with the curves of the others laid over it, each in its own hue."""
    if not snapshots:
        return {}
    main = snapshots[0]
    if main.wanted.x != x:
        return {}
    models: dict[str, ChartModel] = {}
    labels = run_labels(snapshots)
    for name in names:
        model = main.models.get(name)
        if model is None:
            continue
        if len(snapshots) > 1:
            series: list[SeriesData] = []
            for index, snapshot in enumerate(snapshots):
                other = snapshot.models.get(name)
                if other is None or snapshot.wanted.x != x:
                    continue
                # Of the others only what they reached: evaluations and lost steps of each would hide all of them.
                series += [
                    replace(one, key=f"{snapshot.key}/{one.key}", label=labels[index], hue=index)
                    for one in other.series
                    if not one.key.endswith("/eval") and (index == 0 or not one.dimmed)
                ]
            model = replace(model, series=tuple(series))
        models[name] = model
    return models


def run_labels(snapshots: Sequence[Snapshot]) -> list[str]:
    """Names that tell the runs apart: the run's name where that is enough, else its id."""
    names = [snapshot.record.name for snapshot in snapshots]
    return [
        snapshot.record.name if names.count(snapshot.record.name) == 1 else snapshot.record.id for snapshot in snapshots
    ]


def attempts(
    model: ChartModel, cursor: float | None
) -> tuple[tuple[ChartModel, ChartModel], tuple[float, float]] | None:
    """Two charts over the superseded stretch at (or nearest to) the cursor, and that stretch; None without one.

    The first has both attempts, the second what the later one differs by, step for step.
    """
    dimmed = [one for one in model.series if one.dimmed and one.x.size]
    bright = navigate.bright_series(model)
    if not dimmed or not bright:
        return None

    def away(one: SeriesData) -> float:
        at = cursor if cursor is not None else float(one.x[-1])
        return max(float(one.x[0]) - at, at - float(one.x[-1]), 0.0)

    first = min(dimmed, key=away)
    x0, x1 = float(first.x[0]), float(first.x[-1])
    steps_first = first.step if first.step is not None else np.rint(first.x).astype(np.int64)
    after = next((one for one in bright if one.hue == first.hue), bright[0])
    steps_after = after.step if after.step is not None else np.rint(after.x).astype(np.int64)
    shared, in_first, in_after = np.intersect1d(steps_first, steps_after, return_indices=True)
    if not shared.size:
        return None
    difference = after.y[in_after] - first.y[in_first]
    largest = float(np.nanmax(np.abs(difference))) if np.isfinite(difference).any() else math.nan
    same = bool(shared.size and not np.any(difference != 0))
    pad = max((x1 - x0) * 0.02, 0.5 if model.x_kind == "count" else 1e-9)
    both = replace(model, title=f"{model.title}, both attempts")
    below = replace(
        model,
        title=f"{model.title}: later minus earlier" + (", exactly equal" if same else f", at most {largest:.3g}"),
        series=(
            SeriesData(
                key=f"{first.key}/difference",
                label="difference",
                x=first.x[in_first],
                y=difference,
                hue=first.hue + 1,
                step=shared.astype(np.int64),
            ),
        ),
        spans=(),
        marks=(),
    )
    return (both, below), (x0 - pad, x1 + pad)
