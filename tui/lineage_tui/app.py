"""The app: owns the followers and the pictures they post, and shows one screen at a time."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Event, InputEvent
from textual.screen import Screen
from textual.worker import Worker, WorkerState, get_current_worker

from lineage_tui import keys
from lineage_tui.follower import FolderFollower, RunFollower, verify
from lineage_tui.messages import (
    Answer,
    Folder,
    FolderFailed,
    FolderRead,
    Problem,
    ReadFailed,
    ReadProgress,
    Snapshot,
    SnapshotReady,
    VerifyProgress,
    Wanted,
)
from lineage_tui.plot.fold import Memo
from lineage_tui.screens.base import LineageScreen
from lineage_tui.screens.help import HelpPage
from lineage_tui.screens.problems import ProblemsPage
from lineage_tui.settings import Choice, Settings
from lineage_tui.terminal import Background, Glyphs
from lineage_tui.theme import depth_of, textual_theme, tones

if TYPE_CHECKING:
    from textual.driver import Driver

    from lineage.view import RunView

MAX_OPEN: Final = 32
"""Runs looked at together; each has a thread that reads it."""
MAX_THREADS: Final = MAX_OPEN + 8
"""Beside the readers of the runs: the folder's, a verification, and readers that were told to stop and have not yet."""

TIDY_S: Final = 1.0
QUIET_S: Final = 0.7
TIDY_FROM: Final = 20
"""Collections of the young generations, each of some thousand objects, since everything was collected."""
TIDY_LEISURE: Final = 100
"""A collection is followed by so many times its time without another."""


@dataclass(frozen=True)
class Options:
    """How the app meets its terminal.

    Attributes:
        max_builds_hz: pictures built in a second at most, whatever arrives.
        follow_hz: how often a live run is drawn.
        hover: a line and the readout follow the mouse over a chart; else its moves are not even asked for.
        state_dir: where choices and the log of crashes go; None keeps nothing.
    """

    glyphs: Glyphs = "braille"
    background: Background = "dark"
    max_builds_hz: float = 20.0
    follow_hz: float = 10.0
    hover: bool = True
    state_dir: Path | None = None
    clock: Callable[[], float] = field(default=time.time, compare=False)


class LineageApp(App[int]):
    """A run, or a folder of runs, on the screen.

    Args:
        run_dir: the run to open; None starts with the folder.
        folder: the folder that the runs screen lists.
        options: what the terminal can do.
    """

    CSS_PATH = "lineage.tcss"
    TITLE = "lineage"
    ENABLE_COMMAND_PALETTE = True
    # Quitting, the palette and everything else come from the key table, through the screens' bindings.
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(self, run_dir: Path | None, folder: Path, options: Options | None = None) -> None:
        self.options = options or Options()
        super().__init__()
        self.folder_path = folder
        self.folder: Folder | None = None
        self.folder_problem: Problem | None = None
        self.snapshots: dict[str, Snapshot] = {}
        self.problems: dict[str, Problem] = {}
        self.progress: dict[str, tuple[int, int]] = {}  # bytes unread, and in all, of logs still being read
        self.memo = Memo(limit=512)
        self._touched_at = 0.0
        self._tidy_from = 0.0
        self.settings = Settings.read(None if self.options.state_dir is None else self.options.state_dir / "tui.json")
        self._followers: dict[str, RunFollower] = {}
        self._folder_follower: FolderFollower | None = None
        self._open: tuple[str, ...] = ()
        self._trail: list[str] = []
        self._made: dict[str, LineageScreen] = {}
        self._first = run_dir
        self._first_step: int | None = None
        depth = depth_of(self.console.color_system)
        if depth == "16" and not self.current_theme.ansi:
            # Sixteen colours are the terminal's own: by name, since no shade of ours would arrive.
            self.theme = f"ansi-{self.options.background}"
        elif not self.current_theme.ansi:
            for dark in (True, False):
                self.register_theme(textual_theme(depth, dark=dark))
            self.theme = f"lineage-{self.options.background}"

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        if self.options.hover or not found.__module__.endswith(".linux_driver"):
            return found
        from lineage_tui.driver import NoMotionDriver

        return NoMotionDriver

    # -- themes ----------------------------------------------------------------------------------------------------
    def get_theme_variable_defaults(self) -> dict[str, str]:
        theme = self.current_theme
        return tones("ansi" if theme.ansi else "dark" if theme.dark else "light")

    @property
    def ascii_only(self) -> bool:
        return self.options.glyphs == "ascii"

    # -- life ------------------------------------------------------------------------------------------------------
    def on_mount(self) -> None:
        if self.ascii_only:
            self.add_class("-ascii")
        self.set_interval(TIDY_S, self._tidy)
        # Every reader holds its thread for good. The loop's own pool has four more than cores; the rest would wait.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_THREADS, "lineage"))
        self._follow_folder()
        if self._first is not None:
            self.open_runs([self._first])
            if self._first_step is not None:
                self.go_to_step(self._first_step)
        else:
            self.action_show("runs")

    async def on_event(self, event: Event) -> None:
        if isinstance(event, InputEvent):
            self._touched_at = time.monotonic()
        await super().on_event(event)

    def _tidy(self) -> None:
        """Collect garbage between two keys rather than in the middle of a frame, where 60 ms are seen.

        Not at once again: whatever a collection costs, all of them cost a hundredth of a core.
        """
        now = time.monotonic()
        if now - self._touched_at > QUIET_S and now >= self._tidy_from and gc.get_count()[2] > TIDY_FROM:
            gc.collect()
            self._tidy_from = now + TIDY_LEISURE * (time.monotonic() - now)

    def _on_exit_app(self) -> Any:
        self._stop_all()
        return super()._on_exit_app()

    def on_unmount(self) -> None:
        self._stop_all()

    def _stop_all(self) -> None:
        for follower in self._followers.values():
            follower.stop()
        if self._folder_follower is not None:
            self._folder_follower.stop()

    @work(thread=True, group="folder", exit_on_error=False)
    def _run_folder(self, follower: FolderFollower) -> None:
        follower.run()

    @work(thread=True, group="runs", exit_on_error=False)
    def _run_follower(self, follower: RunFollower) -> None:
        follower.run()

    def _follow_folder(self) -> None:
        self._folder_follower = FolderFollower(self.folder_path, self.post_message)
        self._run_folder(self._folder_follower)

    # -- the runs that are looked at -------------------------------------------------------------------------------
    @property
    def open_keys(self) -> tuple[str, ...]:
        """Keys of the runs looked at, the main one first."""
        return self._open

    @property
    def main_key(self) -> str | None:
        return self._open[0] if self._open else None

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest picture of the main run."""
        return self.snapshots.get(self._open[0]) if self._open else None

    def choice(self) -> Choice:
        return self.settings.of(self._open[0]) if self._open else Choice()

    def open_runs(self, paths: Iterable[Path]) -> None:
        """Look at these runs: the first is the main one, the others are laid over its curves; at most `MAX_OPEN`."""
        chosen = list(dict.fromkeys(paths))
        wanted_paths = chosen[:MAX_OPEN]
        self._open = tuple(str(path) for path in wanted_paths)
        self.memo.clear()
        choice = self.choice()
        for key in [key for key in self._followers if key not in self._open]:
            self._followers.pop(key).stop()
            self.snapshots.pop(key, None)
            self.progress.pop(key, None)
            self.problems.pop(key, None)
        for path in wanted_paths:
            if str(path) not in self._followers:
                follower = RunFollower(
                    path,
                    self.post_message,
                    interval_s=1.0 / self.options.follow_hz,
                    wanted=Wanted(choice.metrics, choice.x, choice.smoothing),
                )
                self._followers[str(path)] = follower
                self._run_follower(follower)
        self.action_show("run")
        for screen in self._made.values():
            screen.runs_changed()
        if len(chosen) > MAX_OPEN:
            self.say(f"the first {MAX_OPEN} of {len(chosen)} runs are shown")

    def want(self, wanted: Wanted) -> None:
        """Have the curves built for other metrics or another x axis."""
        for key in self._open:
            self._followers[key].want(wanted)

    def ask(self, topic: str, job: Callable[[RunView], Any], key: str | None = None) -> None:
        """Have the main run's reading thread do something; its `Answer` goes to the screens."""
        follower = self._followers.get(key or (self.main_key or ""))
        if follower is not None:
            follower.ask(topic, job)

    def verify(self, key: str) -> None:
        """Have every checkpoint of a run verified, in a thread of its own; an `Answer` on `verify` follows."""
        self._verify(Path(key))

    @work(thread=True, group="verify", exclusive=True, exit_on_error=False)
    def _verify(self, run_dir: Path) -> None:
        verify(run_dir, self.post_message, get_current_worker())

    # -- what the threads say --------------------------------------------------------------------------------------
    def on_snapshot_ready(self, message: SnapshotReady) -> None:
        key = message.snapshot.key
        if key not in self._open:
            return
        self.snapshots[key] = message.snapshot
        self.progress.pop(key, None)
        if message.snapshot.warm is not None:
            self.memo.take(message.snapshot.warm, f"{key}/" if len(self._open) > 1 else "")
        self.problems.pop(key, None)
        self._tell(lambda screen: screen.snapshot_changed(message.snapshot))

    def on_read_progress(self, message: ReadProgress) -> None:
        if message.key == self.main_key:
            self.progress[message.key] = (message.num_unread, message.num_bytes)
            self._tell(lambda screen: screen.show_header())

    def on_read_failed(self, message: ReadFailed) -> None:
        if message.key not in self._open:
            return
        self.problems[message.key] = message.problem
        self._tell(lambda screen: screen.problem_changed())

    def on_answer(self, message: Answer) -> None:
        if message.key not in self._open:
            return
        for screen in self._made.values():
            if message.topic.partition(":")[0] in screen.topics:
                screen.answered(message)

    def on_verify_progress(self, message: VerifyProgress) -> None:
        screen = self._made.get("checkpoints")
        if message.key in self._open and screen is not None:
            screen.progressed(message)

    def on_folder_read(self, message: FolderRead) -> None:
        self.folder = message.folder
        self.folder_problem = None
        self._tell(lambda screen: screen.folder_changed())

    def on_folder_failed(self, message: FolderFailed) -> None:
        self.folder_problem = message.problem
        self._tell(lambda screen: screen.folder_changed())

    def _tell(self, how: Callable[[LineageScreen], None]) -> None:
        """Tell the screen that is seen; the others look when they come up again."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, LineageScreen) and screen.is_mounted:
                how(screen)
                return

    def say(self, note: str) -> None:
        """Answer with one line of the screen that is seen; nothing floats over what is read."""
        screens = [screen for screen in self.screen_stack if isinstance(screen, LineageScreen)]
        if screens:
            screens[-1].call_later(screens[-1].say, note)  # in its own queue: it may just be coming up

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A reading thread never raises by design; if one does, the person learns it and the app lives on."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            self._log_crash(event.worker.error)
            self.say(str(Problem.of(event.worker.error).what))

    # -- actions of the key table ----------------------------------------------------------------------------------
    def action_show(self, name: str) -> None:
        """Go to a screen by name."""
        from lineage_tui.screens import FACTORIES

        if name not in FACTORIES:
            return
        if name != "runs" and not self._open:
            self.say("open a run first: enter on one of the list")
            return
        while len(self.screen_stack) > 1 and not isinstance(self.screen, LineageScreen):
            self.pop_screen()
        present = self.screen
        if isinstance(present, LineageScreen) and present.place == name:
            return
        seen = self._session_seen(present) if name == "diff" else None
        screen = self._made.get(name)
        if screen is None:
            screen = self._made[name] = FACTORIES[name](self.options.glyphs)
            self.install_screen(screen, name)
        if isinstance(present, LineageScreen):
            self._trail = [*[place for place in self._trail if place != name], present.place]
            self.switch_screen(name)
        else:
            self.push_screen(name)
        if seen is not None:
            screen.show_session(seen)

    def _session_seen(self, screen: Screen[Any]) -> str | None:
        """The session that a person is looking at: the diff is first of that one."""
        from lineage_tui.screens.diff import session_on_line
        from lineage_tui.screens.run import RunScreen

        if isinstance(screen, RunScreen):
            step = screen.cursor_step() if screen.line_x is not None else None
            return session_on_line(self.snapshot, step) if step is not None and self.snapshot is not None else None
        return screen.session_here() if isinstance(screen, LineageScreen) else None

    def made(self, name: str) -> LineageScreen | None:
        """A screen that was shown before, or None."""
        return self._made.get(name)

    def go_to_step(self, step: int, session: str | None = None) -> None:
        """The curves, with the cursor on a step."""
        self.action_show("run")
        screen = self._made.get("run")
        if screen is not None:
            screen.show_step(step, session)

    def start_at(self, step: int) -> None:
        """Put the cursor there when the first run is open."""
        self._first_step = step

    def open_diff(self, session: str) -> None:
        """The diff of a session with the one it came from."""
        self.action_show("diff")
        screen = self._made.get("diff")
        if screen is not None:
            screen.show_session(session)

    def open_explain(self, step: int | None) -> None:
        """What happened around a step; all abrupt changes when there is none."""
        self.action_show("explain")
        screen = self._made.get("explain")
        if screen is not None:
            screen.show_step(step)

    async def action_back(self) -> None:
        """One layer back: what is over the screen, then what the screen has open, then the screen before."""
        screen = self.screen
        if not isinstance(screen, LineageScreen):
            if len(self.screen_stack) > 1:
                self.pop_screen()
            return
        if screen.step_back():
            return
        if self._trail:
            place = self._trail.pop()
            trail = list(self._trail)
            self.action_show(place)
            self._trail = trail
        elif screen.place != "runs":
            self.action_show("runs")
            self._trail = []

    def action_help(self) -> None:
        place = self.screen.place if isinstance(self.screen, LineageScreen) else "page"
        if not isinstance(self.screen, HelpPage):
            self.push_screen(HelpPage(place, ascii_only=self.ascii_only))

    def action_problems(self) -> None:
        if not isinstance(self.screen, ProblemsPage):
            of_folder = isinstance(self.screen, LineageScreen) and self.screen.place == "runs"
            problems = self.all_problems() if of_folder or not self._open else self.open_problems()
            self.push_screen(ProblemsPage(problems, ascii_only=self.ascii_only))

    def open_problems(self) -> list[Problem]:
        """Everything that is wrong with the runs looked at."""
        found = [self.problems[key] for key in self._open if key in self.problems]
        for key in self._open:
            if (snapshot := self.snapshots.get(key)) is not None:
                found.extend(snapshot.damage)
                found.extend([snapshot.torn] if snapshot.torn is not None else [])
        return found

    def all_problems(self) -> list[Problem]:
        """Everything that is wrong with the runs looked at, and with the folder."""
        found = self.open_problems()
        if self.folder_problem is not None:
            found.append(self.folder_problem)
        if self.folder is not None:
            found.extend(self.folder.problems)
        return found

    def action_light(self) -> None:
        if self.current_theme.ansi:
            self.say("the terminal's own colours are used here")
            return
        self.theme = "lineage-light" if self.current_theme.dark else "lineage-dark"

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every action of the key table, for the palette: those of this screen, then the others under their names."""
        place = screen.place if isinstance(screen, LineageScreen) else "page"
        labels = {name: label for _, name, label in keys.SCREENS}
        for where, bound, entry in keys.offered(place):
            title = bound.command if where == place else f"{labels[where]}: {bound.command}"
            text = f"{keys.key_sign(bound.key)}  {entry.help}"
            yield SystemCommand(str(title), text, partial(self._run_command, screen, where, bound.action))

    async def _run_command(self, screen: Screen[Any], place: str, action: str) -> None:
        if place in ("page", screen.place if isinstance(screen, LineageScreen) else "page"):
            await self.run_action(action, screen)
            return
        self.action_show(place)
        made = self._made.get(place)
        if made is not None and self.screen is made:
            await self.run_action(action, made)

    # -- crashes ---------------------------------------------------------------------------------------------------
    def _fatal_error(self) -> None:
        """An error nobody foresaw: into the log, one sentence to the person, the terminal put back."""
        error = sys.exc_info()[1]
        where = self._log_crash(error) if error is not None else None
        self._crash_text = f"lineage tui stopped on an internal error ({type(error).__name__})" + (
            f"; the details are in {where}" if where else ""
        )
        self._close_messages_no_wait()

    _crash_text: str | None = None

    @property
    def crash_text(self) -> str | None:
        """What to say on stderr after the terminal was put back; None when nothing crashed."""
        return self._crash_text

    def _log_crash(self, error: BaseException) -> Path | None:
        if self.options.state_dir is None:
            return None
        path = self.options.state_dir / "tui.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as log:
                log.write(f"-- {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
                log.write("".join(traceback.format_exception(error)))
        except OSError:
            return None
        return path
