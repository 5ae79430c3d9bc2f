"""The curves of a run: charts in a grid, one cursor and one window for all, and what happened under the cursor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import ClassVar, Final, Literal

from textual import on
from textual.containers import Container, Vertical
from textual.events import Key, Resize
from textual.timer import Timer
from textual.widget import Widget

from lineage_schemas.events import Event
from lineage_tui.build import AXES
from lineage_tui.follower import WARM_FROM
from lineage_tui.messages import Snapshot, Wanted
from lineage_tui.plot import navigate
from lineage_tui.plot.model import ChartModel, View
from lineage_tui.screens.base import LineageScreen
from lineage_tui.screens.curves import Looking, Shape, attempts, overlay, shape_of, step_of, x_of_step
from lineage_tui.screens.picker import MetricPicker
from lineage_tui.screens.sessions import COMPACT, session_rows
from lineage_tui.settings import Choice
from lineage_tui.terminal import Glyphs
from lineage_tui.widgets.bars import Fact
from lineage_tui.widgets.chart import Chart
from lineage_tui.widgets.readout import Readout, ReadoutLine, Story, happened, statistics
from lineage_tui.widgets.table import Table
from lineage_tui.widgets.words import plain

ZOOM: Final = 0.5
PAN: Final = 0.25
SMOOTHINGS: Final = (0.0, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
MAX_PANES: Final = 4
LATE_S: Final = 2.0
"""What changes no dot is drawn this late: the last value, the axis."""
TOLD_S: Final = 0.5
"""Counts in the header and the list of sessions change this often, when nothing else does."""
SAID_S: Final = 3.0
"""So long an answer stands."""
HOVER_HZ: Final = 20.0
KEYS_AT_THE_LINE: Final = frozenset({"e", "d", "v", "a"})
"""They are about the line that is seen: under the mouse they put the cursor there first, as a click does."""
Where = Literal["left", "right", "up", "down"]


class RunScreen(LineageScreen):
    """The main screen."""

    place: ClassVar[str] = "run"

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self.looking = Looking()
        self.names: tuple[str, ...] = ()
        self.x: str = AXES[0]
        self.pane = 0
        self.alone = False
        self.charts: list[Chart] = []
        self._models: Mapping[str, ChartModel] = {}
        self._loaded_for: tuple[str, ...] = ()
        self._pending_step: tuple[int, str | None] | None = None
        self._drawn_at = 0.0
        self._told_at = 0.0
        self._timer: Timer | None = None
        self._late: Timer | None = None
        self._drawn_stamp: tuple[object, ...] = ()
        self._drawn_end: float | None = None
        self._save_timer: Timer | None = None
        self._extra: tuple[ChartModel, ...] = ()
        self._pointer: tuple[Chart, int] | None = None
        self._pointer_x: float | None = None
        self._note = ""
        self._note_timer: Timer | None = None

    # -- parts -----------------------------------------------------------------------------------------------------
    def compose_body(self) -> Iterable[Widget]:
        self.charts = [self.make_chart(index) for index in range(MAX_PANES)]
        self.readout = Readout(ascii_only=self.ascii_only)
        self.story = Story(ascii_only=self.ascii_only)
        yield Container(
            Vertical(
                Container(*self.charts, id="charts"),
                Table(COMPACT, id="sessions-below", ascii_only=self.ascii_only, empty="no session yet"),
                id="main",
            ),
            Vertical(
                Table(COMPACT, id="sessions-beside", ascii_only=self.ascii_only, empty="no session yet"),
                self.story,
                id="beside",
            ),
            id="run-body",
        )
        yield self.readout

    def on_mount(self) -> None:
        super().on_mount()
        self.watch(self.app, "app_focus", self._focus_changed, init=False)

    def _focus_changed(self) -> None:
        """The mouse is elsewhere when the terminal is: no line stays under a pointer that left."""
        if not self.app.app_focus and self._pointer is not None:
            self._pointer = self._pointer_x = None
            self.request_draw()

    def make_chart(self, index: int) -> Chart:
        return Chart(glyphs=self.glyphs, memo=self.lineage.memo, id=f"chart-{index}")

    # -- news ------------------------------------------------------------------------------------------------------
    def runs_changed(self) -> None:
        """Other runs: their own choice of metrics and axis, the whole of x."""
        choice = self.lineage.choice()
        self.looking = Looking(
            smoothing=choice.smoothing,
            log_x=choice.log_x,
            log_y=frozenset(choice.log_y),
            unclipped=frozenset(choice.unclipped),
            superseded=choice.superseded,
        )
        self.x = choice.x if choice.x in AXES else AXES[0]
        self.names = ()
        self.pane = 0
        self.alone = False
        self._models = {}
        self._extra = ()
        self._loaded_for = self.lineage.open_keys
        self.request_draw()

    def problem_changed(self) -> None:
        """Where nothing of the run can be read, the panel is all there is: no empty chart, no words on cursors."""
        super().problem_changed()
        unreadable = self.lineage.snapshot is None and self.lineage.main_key in self.lineage.problems
        for part in (self.query_one("#run-body"), self.readout):
            part.display = not unreadable

    def draw_all(self) -> None:
        if self._loaded_for != self.lineage.open_keys:
            self.runs_changed()
        super().draw_all()
        self.request_draw()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        main = self.lineage.snapshot
        if main is None:
            return
        if not self.names:
            self.names = main.wanted.names
        before = self._end()
        self._models = overlay(
            [found for key in self.lineage.open_keys if (found := self.lineage.snapshots.get(key)) is not None],
            self.names,
            self.x,
        )
        self._slide(before)
        if self._pending_step is not None and self._models:
            step, session = self._pending_step
            self._pending_step = None
            self.show_step(step, session)
        if not self.readout.display:
            self.problem_changed()
        visible = self._is_visible()
        if visible or monotonic() - self._told_at >= TOLD_S:
            self._told_at = monotonic()
            super().snapshot_changed(snapshot)
            self._show_sessions(main)
        if visible:
            self.request_draw()
        elif self._late is None:
            self._late = self.set_timer(LATE_S, self._draw_late)

    def _draw_late(self) -> None:
        if self.lineage.snapshot is not None:
            self._show_sessions(self.lineage.snapshot)
        self.request_draw()

    def _stamp(self) -> tuple[object, ...]:
        """What of the pictures is drawn beside the curves."""
        found = [self.lineage.snapshots.get(key) for key in self.lineage.open_keys]
        return tuple(
            (
                *(s.key, s.state, s.wanted, len(s.events), len(s.damage), s.torn, s.session_states, s.num_unread),
                tuple((row.verdict, row.first_difference) for row in s.resumes.values()),
            )
            for s in found
            if s is not None
        )

    def _is_visible(self) -> bool:
        """Whether the newest picture would change the charts by as much as a column of dots.

        A hundred steps at the end of a million change nothing that can be seen: ten drawings a second of them would
        cost a quarter of a core.
        """
        if self._stamp() != self._drawn_stamp or self._drawn_end is None:
            return True
        end, model, chart = self._end(), self.model, self.chart
        if end is None or model is None or chart is None or chart.frame is None:
            return True
        x0, x1, _ = navigate.x_window(model, self.looking.view(self.focused_name or ""))
        if x1 < self._drawn_end:
            return False
        return end - self._drawn_end >= (x1 - x0) / max(chart.frame.plot.width * chart.frame.dots_x, 1)

    def _end(self) -> float | None:
        """The last x there is."""
        models = [model for model in self._models.values() if model.series]
        ends = [float(one.x[-1]) for model in models for one in model.series if one.x.size]
        return max(ends, default=None)

    def _slide(self, before: float | None) -> None:
        """Move a zoomed window along with the end, when following."""
        looking, after = self.looking, self._end()
        if not looking.following or looking.x1 is None or before is None or after is None or after == before:
            return
        by = after - looking.x1
        self.looking = replace(looking, x0=None if looking.x0 is None else looking.x0 + by, x1=after)

    # -- layout ----------------------------------------------------------------------------------------------------
    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self.request_draw()

    @property
    def shape(self) -> Shape:
        sessions = len(self.lineage.snapshot.record.sessions) if self.lineage.snapshot else 1
        shape = shape_of(self.size.width, self.size.height, max(len(self.names), 1), sessions)
        if self._extra:
            return replace(shape, columns=1, rows=2)
        return replace(shape, columns=1, rows=1) if self.alone else shape

    def page(self) -> tuple[str, ...]:
        """The metrics in sight: the page of the grid that holds the focused one."""
        per = self.shape.panes
        first = self.pane // per * per
        first = max(min(first, len(self.names) - per), 0)
        return self.names[first : first + per]

    @property
    def focused_name(self) -> str | None:
        return self.names[self.pane] if 0 <= self.pane < len(self.names) else None

    @property
    def model(self) -> ChartModel | None:
        """The model of the focused chart."""
        return self._models.get(self.focused_name or "")

    @property
    def chart(self) -> Chart | None:
        """The focused chart, when it is in sight."""
        page = self.page()
        name = self.focused_name
        return self.charts[page.index(name)] if name in page else None

    # -- drawing ---------------------------------------------------------------------------------------------------
    def request_draw(self, most_hz: float | None = None) -> None:
        """Draw soon: at once when the last drawing is long enough ago, else when it is."""
        if self._timer is not None or not self.is_mounted:
            return
        wait = self._drawn_at + 1.0 / (most_hz or self.lineage.options.max_builds_hz) - monotonic()
        if wait <= 0:
            self.draw()
        else:
            self._timer = self.set_timer(wait, self.draw)

    def draw(self) -> None:
        """Hand models and views to the charts in sight."""
        self._timer = None
        self._drawn_at = monotonic()
        self._drawn_stamp, self._drawn_end = self._stamp(), self._end()
        if self._late is not None:
            self._late.stop()
            self._late = None
        if not self.charts or not self.charts[0].is_attached or self.lineage.main_key is None:
            return  # nothing to draw, or the app is closing
        shape = self.shape
        page = self.page()
        grid = self.query_one("#charts", Container)
        grid.styles.grid_size_columns = shape.columns
        grid.styles.grid_size_rows = shape.rows
        self.query_one("#beside").display = shape.beside
        below = self.query_one("#sessions-below", Table)
        below.display = bool(shape.below)
        below.styles.height = shape.below or 1
        shown = self._shown_models(page)
        looking = self._now_looking()
        self._pointer_x = self._find_pointer_x(shown, looking)
        for index, chart in enumerate(self.charts):
            chart.display = index < shape.panes and index < max(len(shown), 1)
            if index < len(shown):
                name, model = shown[index]
                chart.set_class(name == self.focused_name and len(shown) > 1, "-focused")
                chart.show(model, looking.view(name), self._pointer_x)
            elif index == 0:
                reading = self.lineage.snapshot is None or bool(self.names)
                chart.show(ChartModel("", message="reading the log" if reading else "no metric yet"), View())
        self.show_readout()
        self.show_header()

    def _find_pointer_x(self, shown: Sequence[tuple[str, ChartModel]], looking: Looking) -> float | None:
        """What x is now under the mouse, which may rest while the data go on."""
        if self._pointer is None:
            return None
        chart, column = self._pointer
        index = self.charts.index(chart)
        if not index < len(shown):
            return None
        name, model = shown[index]
        return chart.x_under(column, model, looking.view(name))

    def _pointed_name(self) -> str | None:
        """The metric of the chart under the mouse."""
        page = self.page()
        index = self.charts.index(self._pointer[0]) if self._pointer is not None and not self._extra else len(page)
        return page[index] if index < len(page) else None

    @property
    def line_x(self) -> float | None:
        """Where the line is that is seen: under the mouse, else the cursor."""
        return self.looking.cursor if self._pointer_x is None else self._pointer_x

    def _now_looking(self) -> Looking:
        """How to draw now: with the smoothing before, while the reading thread still smooths long curves anew."""
        looking, main = self.looking, self.lineage.snapshot
        if main is None or main.wanted.smoothing == looking.smoothing:
            return looking
        longest = max((one.y.size for model in self._models.values() for one in model.series), default=0)
        return looking if longest < WARM_FROM else replace(looking, smoothing=main.wanted.smoothing)

    def _wanted(self) -> Wanted:
        return Wanted(self.names, self.x, self.looking.smoothing)

    def _shown_models(self, page: Sequence[str]) -> list[tuple[str, ChartModel]]:
        if self._extra:
            return [(f"extra {index}", model) for index, model in enumerate(self._extra)]
        return [(name, self._models[name]) for name in page if name in self._models]

    def _show_sessions(self, snapshot: Snapshot) -> None:
        rows = session_rows(snapshot, self.glyphs, self.lineage.options.clock(), compact=True)
        for selector in ("#sessions-below", "#sessions-beside"):
            table = self.query_one(selector, Table)
            if list(table.rows) != rows:
                table.set_rows(rows)
        self.query_one("#sessions-beside").styles.height = min(len(rows) + 2, max(self.size.height // 3, 4))

    def show_readout(self) -> None:
        """Values and events at the cursor, or what the range holds."""
        snapshot, looking, model = self.lineage.snapshot, self._now_looking(), self.model
        name = self.focused_name
        lines: list[ReadoutLine] = []
        events: list[Event] = []
        stats = None
        line_x = self.line_x
        if snapshot is not None and model is not None and name is not None:
            if line_x is not None:
                lines = [
                    ReadoutLine.of(key, navigate.readings(found, looking.view(key), line_x, self.lineage.memo))
                    for key, found in self._models.items()
                ]
            frame = self.chart.frame if self.chart is not None else None
            x0, x1, _ = navigate.x_window(model, looking.view(name))
            reach = (x1 - x0) / max(frame.plot.width if frame is not None else 40, 1)
            events = happened(snapshot, model, line_x, reach, self.x)
            top = navigate.focused(model, looking.view(name))
            if looking.range is not None and top is not None:
                label = f"{name} {top.label}" if len(self.lineage.open_keys) > 1 else name
                stats = statistics(top, looking.range, marking=looking.marking, label=label)
        session = self._session_at_cursor() if lines else None
        self.readout.show(
            lines=lines,
            events=events,
            stats=stats,
            session=session,
            names=self.names,
            focused=name,
            page=self.page(),
            overlaid=len(self.lineage.open_keys) > 1,
            first=self._pointed_name(),
            note=self._note,
        )
        if snapshot is not None:
            self.story.show(snapshot.events, events if lines else (), self.cursor_step() if lines else None)
        for selector in ("#sessions-below", "#sessions-beside"):
            table = self.query_one(selector, Table)
            if table.show_cursor != (session is not None):
                table.show_cursor = session is not None
                table.refresh()
            for index, row in enumerate(table.rows):
                if row.cells[0].text == str(session) and table.cursor != index:
                    table.select(index)

    def say(self, note: str) -> None:
        """Answer a key that could do nothing, under the charts and for a moment: a toast would cover what is read."""
        self._note = note
        if self._note_timer is not None:
            self._note_timer.stop()
        self._note_timer = self.set_timer(SAID_S, partial(self.say, "")) if note else None
        self.show_readout()

    def _session_at_cursor(self) -> int | None:
        snapshot, step = self.lineage.snapshot, self.cursor_step()
        if snapshot is None or step is None:
            return None
        found = snapshot.session_at(step)
        return found.ordinal if found is not None else None

    # -- steps and x -----------------------------------------------------------------------------------------------
    def cursor_step(self) -> int | None:
        """The step under the line that is seen; the last one without a line."""
        model = self.model
        if model is None:
            return None
        series = navigate.focused(model, self.looking.view(self.focused_name or ""))
        if series is None or not series.x.size:
            return None
        if self.line_x is None:
            return step_of(series, series.x.size - 1)
        index = navigate.nearest_sample(series, self.line_x)
        return None if index is None else step_of(series, index)

    def show_step(self, step: int | None, session: str | None = None) -> None:
        """Put the cursor on a step, moving the window there when it is elsewhere."""
        model = self.model
        if step is None:
            return
        if model is None:
            self._pending_step = (step, session)
            return
        x = x_of_step(model, step)
        if x is not None:
            self.put_cursor(x)

    def put_cursor(self, x: float) -> None:
        model = self.model
        if model is None:
            return
        x0, x1 = navigate.x_extent(model, self.looking.view(self.focused_name or ""))
        x = min(max(x, x0), x1)
        view = navigate.shown_around(model, self.looking.view(self.focused_name or ""), x)
        looking = replace(self.looking, x0=view.x0, x1=view.x1, cursor=x, following=False)
        if looking.marking and looking.range is not None:
            looking = replace(looking, range=(looking.range[0], x))
        self.looking = looking
        self.request_draw()

    # -- actions: cursor and window --------------------------------------------------------------------------------
    def action_cursor(self, by: int) -> None:
        model, chart = self.model, self.chart
        if model is None or chart is None or chart.frame is None:
            return
        frame = chart.frame
        cursor = self.looking.cursor
        if cursor is None:
            x0, x1, _ = navigate.x_window(model, self.looking.view(self.focused_name or ""))
            self.put_cursor(x1 if by < 0 else x0)
            return
        column = frame.column_of(cursor)
        if column is None:
            self.put_cursor(frame.x_at(frame.plot.x + (frame.plot.width - 1 if by < 0 else 0)))
            return
        target = column + by
        if not frame.plot.x <= target < frame.plot.x + frame.plot.width:
            view = navigate.panned(model, self.looking.view(self.focused_name or ""), by / max(frame.plot.width, 1))
            moved = self.looking.seen(view)
            self.looking = replace(moved, cursor=cursor, range=self.looking.range)
            self.put_cursor(cursor + by * (frame.window.x1 - frame.window.x0) / max(frame.plot.width, 1))
            return
        self.put_cursor(frame.x_at(target))

    def action_sample(self, by: int) -> None:
        model = self.model
        if model is None:
            return
        view = self.looking.view(self.focused_name or "")
        x0, x1, _ = navigate.x_window(model, view)
        at = self.looking.cursor if self.looking.cursor is not None else (x1 if by < 0 else x0)
        self.put_cursor(navigate.next_sample(model, view, at, 1 if by > 0 else -1))

    def action_zoom(self, by: int) -> None:
        model = self.model
        if model is None:
            return
        view = navigate.zoomed(model, self.looking.view(self.focused_name or ""), ZOOM**by)
        self.looking = replace(self.looking, x0=view.x0, x1=view.x1)
        self.request_draw()

    def action_pan(self, by: int) -> None:
        model = self.model
        if model is None:
            return
        view = navigate.panned(model, self.looking.view(self.focused_name or ""), PAN * by)
        self.looking = replace(self.looking, x0=view.x0, x1=view.x1, following=False)
        self.request_draw()

    def action_reset(self) -> None:
        self.looking = replace(self.looking, x0=None, x1=None, cursor=None, range=None, marking=False)
        self._extra = ()
        self.request_draw()

    def action_event(self, by: int) -> None:
        """Cursor to the next thing that happened: a mark, a line, or the start of a phase."""
        model = self.model
        if model is None:
            return
        found = sorted(
            {mark.x for mark in model.marks} | {line.x for line in model.lines} | {s.x0 for s in model.spans}
        )
        self._jump(found, by, "event", none="nothing happened in this run yet")

    def action_session(self, by: int) -> None:
        """Cursor to where the next session began; the first one has no line, and is only met going back."""
        model = self.model
        if model is not None:
            found = {line.x for line in model.lines if line.kind == "boundary"}
            if by < 0 and found:
                found.add(navigate.x_extent(model, self.looking.view(self.focused_name or ""))[0])
            self._jump(sorted(found), by, "session", none="this run has one session")

    def _jump(self, found: Sequence[float], by: int, what: str, none: str) -> None:
        if not found:
            self.say(none)
            return
        at = self.looking.cursor
        if at is None:
            at = -math.inf if by > 0 else math.inf
        ahead = [x for x in found if (x > at if by > 0 else x < at)]
        if ahead:
            self.put_cursor(ahead[0] if by > 0 else ahead[-1])
        else:
            self.say(f"that was the {'last' if by > 0 else 'first'} {what}")

    def action_range(self) -> None:
        looking = self.looking
        if looking.range is not None and looking.marking:
            same = looking.range[0] == looking.range[1]
            self.looking = replace(looking, marking=False, range=None if same else looking.range)
        elif looking.range is not None:
            self.looking = replace(looking, range=None, marking=False)
        else:
            if looking.cursor is None:
                self.action_cursor(1)
            if (cursor := self.looking.cursor) is not None:
                self.looking = replace(self.looking, range=(cursor, cursor), marking=True)
        self.request_draw()

    def action_follow(self) -> None:
        following = not self.looking.following
        looking = replace(self.looking, following=following)
        end = self._end()
        if following and end is not None:
            if looking.x1 is not None and looking.x0 is not None:
                looking = replace(looking, x0=looking.x0 + end - looking.x1, x1=end)
            looking = replace(looking, cursor=None)
        self.looking = looking
        self.request_draw()

    # -- actions: what is drawn ------------------------------------------------------------------------------------
    def action_pane(self, by: int) -> None:
        if self.names:
            self.pane = (self.pane + by) % len(self.names)
            self.request_draw()

    def action_move(self, where: Where) -> None:
        """To the neighbour in the grid; over the rim to the next page."""
        columns = self.shape.columns
        by = {"left": -1, "right": 1, "up": -columns, "down": columns}[where]
        if 0 <= self.pane + by < len(self.names):
            self.pane += by
        elif not self.alone and abs(by) == 1:
            self.pane = (self.pane + by) % max(len(self.names), 1)
        self.request_draw()

    def action_maximise(self) -> None:
        self.alone = not self.alone
        self.request_draw()

    def action_axis(self) -> None:
        """The next x axis; the cursor stays on its step, the window opens."""
        step = self.cursor_step() if self.looking.cursor is not None else None
        axes: list[str] = list(AXES)
        self.x = axes[(axes.index(self.x) + 1) % len(axes)]
        self.looking = replace(self.looking, x0=None, x1=None, cursor=None, range=None, marking=False)
        self._extra = ()
        self._pending_step = (step, None) if step is not None else None
        self._models = {}
        self._changed()
        self.lineage.want(self._wanted())

    def action_log_x(self) -> None:
        self.looking = replace(self.looking, log_x=not self.looking.log_x)
        self._changed()

    def action_log_y(self) -> None:
        name = self.focused_name
        if name is not None:
            self.looking = replace(self.looking, log_y=self.looking.log_y ^ {name})
            self._changed()

    def action_clip(self) -> None:
        name = self.focused_name
        if name is not None:
            self.looking = replace(self.looking, unclipped=self.looking.unclipped ^ {name})
            self._changed()

    def action_smooth(self, by: int) -> None:
        near = min(range(len(SMOOTHINGS)), key=lambda i: abs(SMOOTHINGS[i] - self.looking.smoothing))
        self.looking = replace(self.looking, smoothing=SMOOTHINGS[max(min(near + by, len(SMOOTHINGS) - 1), 0)])
        self._changed()
        self.lineage.want(self._wanted())

    def action_superseded(self) -> None:
        self.looking = replace(self.looking, superseded=not self.looking.superseded)
        self._changed()

    def action_on_top(self) -> None:
        model = self.model
        if model is not None:
            bright = len(navigate.bright_series(model))
            self.looking = replace(self.looking, top=(self.looking.top + 1) % max(bright, 1))
            self.request_draw()

    def action_metrics(self) -> None:
        snapshot = self.lineage.snapshot
        if snapshot is None:
            return

        def picked(names: tuple[str, ...] | None) -> None:
            if names:
                self.names = names
                self.pane = min(self.pane, len(names) - 1)
                self._changed()
                self.lineage.want(self._wanted())

        self.app.push_screen(MetricPicker(snapshot.metrics, self.names, ascii_only=self.ascii_only), picked)

    def action_attempts(self) -> None:
        """Both attempts of the superseded stretch at the cursor, and their difference below."""
        if self._extra:
            self._extra = ()
            self.looking = replace(self.looking, x0=None, x1=None)
            self.request_draw()
            return
        model, name = self.model, self.focused_name
        if model is None or name is None:
            return
        found = attempts(model, self.looking.cursor)
        if found is None:
            self.say(f"no step of {plain(name, 24)} was trained twice")
            return
        self._extra = found[0]
        x0, x1 = found[1]
        cursor = self.looking.cursor
        if cursor is not None and not x0 <= cursor <= x1:
            cursor = None
        self.looking = replace(self.looking, x0=x0, x1=x1, range=None, marking=False, cursor=cursor, superseded=True)
        self.request_draw()

    # -- actions: other screens ------------------------------------------------------------------------------------
    def action_explain(self) -> None:
        step = self.cursor_step() if self.looking.cursor is not None else None
        self.lineage.open_explain(step)

    def action_diff(self) -> None:
        snapshot, step = self.lineage.snapshot, self.cursor_step()
        if snapshot is None or step is None:
            return
        # On a boundary a person means the session that begins there, not the last step of the one before.
        begun = [s.session for s in snapshot.segments if s.ordinal > 1 and s.start_step == step]
        found = snapshot.session_at(step)
        if begun or found is not None:
            self.lineage.open_diff(str(begun[-1]) if begun else found.id if found is not None else "")

    def step_back(self) -> bool:
        looking = self.looking
        if looking.range is not None:
            self.looking = replace(looking, range=None, marking=False)
        elif self._extra:
            self.action_attempts()
        elif self.alone:
            self.alone = False
        elif looking.cursor is not None:
            self.looking = replace(looking, cursor=None)
        elif looking.x0 is not None or looking.x1 is not None:
            self.looking = replace(looking, x0=None, x1=None)
        else:
            return False
        self.request_draw()
        return True

    # -- the mouse -------------------------------------------------------------------------------------------------
    @on(Chart.ViewChanged)
    def chart_moved(self, event: Chart.ViewChanged) -> None:
        """A wheel, a click or a drag in one chart moves all."""
        event.stop()
        sender = event.chart
        page = self.page()
        index = self.charts.index(sender) if sender in self.charts else -1
        if not self._extra and 0 <= index < len(page):
            self.pane = self.names.index(page[index])
        before, view = self.looking, event.view
        looking = replace(before.seen(view), following=False)
        if view.range != before.range:  # a drag
            looking = replace(looking, marking=False)
        elif before.marking and view.range is not None and view.cursor_x is not None:
            looking = replace(looking, range=(view.range[0], view.cursor_x))
        self.looking = looking
        self.request_draw()

    @on(Chart.Pointed)
    def chart_pointed(self, event: Chart.Pointed) -> None:
        """The line and the readout follow the mouse; the cursor, the window and what is followed stay as they are."""
        event.stop()
        if not self.lineage.options.hover:
            return
        if event.column is not None:
            pointer = (event.chart, event.column)
        elif self._pointer is None or self._pointer[0] is not event.chart:
            return  # it is in another chart by now
        else:
            pointer = None
        if pointer != self._pointer:
            self._pointer = pointer
            self.request_draw(HOVER_HZ)

    def on_key(self, event: Key) -> None:
        """A key is about the cursor, and the mouse that rests on a chart waits until it is moved again."""
        if self._pointer is None:
            return
        line_x, self._pointer, self._pointer_x = self._pointer_x, None, None
        if event.key in KEYS_AT_THE_LINE and line_x is not None:
            self.put_cursor(line_x)
        self.request_draw()

    @on(Table.Chosen)
    @on(Table.Highlighted)
    def session_clicked(self, event: Table.Highlighted) -> None:
        event.stop()
        if isinstance(event, Table.Chosen) and self.lineage.snapshot is not None:
            for session in self.lineage.snapshot.record.sessions:
                if session.id == event.key:
                    self.show_step(session.start.step, session.id)

    # -- what stays ------------------------------------------------------------------------------------------------
    def _changed(self) -> None:
        """Something that is remembered per run changed."""
        self.request_draw()
        if self._save_timer is not None:
            self._save_timer.stop()
        self._save_timer = self.set_timer(0.5, self.save)

    def save(self) -> None:
        """Remember the choice for this run."""
        key = self.lineage.main_key
        if key is None or not self.names:
            return
        looking = self.looking
        self.lineage.settings.keep(
            key,
            Choice(
                metrics=self.names,
                x=self.x,
                smoothing=looking.smoothing,
                log_x=looking.log_x,
                log_y=tuple(sorted(looking.log_y)),
                unclipped=tuple(sorted(looking.unclipped)),
                superseded=looking.superseded,
            ),
        )

    def header_facts(self) -> tuple[list[Fact], list[Fact]]:
        left, right = super().header_facts()
        snapshot = self.lineage.snapshot
        if snapshot is not None:
            if snapshot.live or self.looking.following:
                zoomed = self.looking.x1 is not None
                word = "following" if self.looking.following or not zoomed else "holding the view"
                right.append(Fact(word, "good" if word == "following" else "warn", 4))
            if self.looking.range is not None and self.looking.marking:
                right.append(Fact("marking a range", "info", 3))
        return left, right
