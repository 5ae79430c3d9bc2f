"""The story of `lineage demo`: a training that is killed, goes on, is preempted, goes on, and is not fooled at the end.

Each act is a real process, `python -m lineage.demo.train`; this module starts it, follows its log, sends the signals a
bad night would bring, and tells in plain words what the log says happened. It never looks at the clock to decide
anything: a slow machine plays the same story.
"""

from __future__ import annotations

import importlib.util
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lineage.demo.process import Child, LogTail, Seen, digest_files, hang_up_is_an_exit
from lineage.demo.stage import Stage, figure
from lineage.errors import LineageError, NotFoundError, UsageError
from lineage.layout import RunDir
from lineage.runs.index import run_around
from lineage.runs.store import read_run

MIN_STEPS: Final = 60
MAX_SEED: Final = (1 << 32) - 1
_LOST_STEPS: Final = 12  # trained after the last checkpoint before the SIGKILL comes; at least ten, says the story
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class Plan:
    """What the acts train, and at which steps the signals come.

    Attributes:
        steps: of the whole run.
        fast: a quarter of the work, the same story.
    """

    steps: int
    seed: int = 1
    fast: bool = False

    @classmethod
    def make(cls, *, steps: int | None, seed: int, fast: bool) -> Plan:
        """A plan, 180 steps long unless said otherwise (60 when fast).

        Raises:
            UsageError: too few steps for the story, or a negative seed.
        """
        if steps is None:
            steps = MIN_STEPS if fast else 180
        if steps < MIN_STEPS:
            raise UsageError(f"{steps} steps are too few for the story", hint=f"give --steps {MIN_STEPS} or more")
        if seed < 0:
            raise UsageError(f"the seed {seed} is negative", hint="give --seed 0 or more")
        return cls(steps, seed, fast)

    @property
    def checkpoint_every(self) -> int:
        return max(20, self.steps // 6)

    @property
    def kill_after(self) -> int:
        """The checkpoint that the SIGKILL waits for."""
        return max(1, self.steps // 3 // self.checkpoint_every) * self.checkpoint_every

    @property
    def preempt_at(self) -> int:
        """Past two thirds, and between two checkpoints, so that the preempted process has one to make."""
        return self.steps * 2 // 3 // self.checkpoint_every * self.checkpoint_every + self.checkpoint_every // 4

    def argv(self) -> list[str]:
        """Arguments for `lineage.demo.train`."""
        flags = {
            "steps": self.steps,
            "seed": self.seed,
            "checkpoint-every": self.checkpoint_every,
            "eval-every": self.checkpoint_every // 2,
            "batch-size": 4 if self.fast else 8,
        }
        return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


class Story:
    """Plays the acts in order; `play` gives the folder of the run.

    Args:
        runs_dir: folder of runs.
        plan: what is trained and when the signals come.
        stage: who is told.
        module: what `python -m` runs as the trainer.
    """

    def __init__(
        self, runs_dir: Path, plan: Plan, stage: Stage, *, module: Sequence[str] = ("lineage.demo.train",)
    ) -> None:
        self.module = module
        self.runs_dir = runs_dir
        self.plan = plan
        self.stage = stage
        self.run_path: Path | None = None
        self.tail: LogTail | None = None

    def play(self) -> Path:
        """Play the story.

        Raises:
            LineageError: torch or the folder is not there, a process did not do what the story tells, or the story's
                own checks failed.
        """
        check_torch()
        check_folder(self.runs_dir)
        with hang_up_is_an_exit():
            first = self.killed()
            self.tear_the_log()
            self.preempted(lost=first)
            self.completed()
            self.refused()
        run_path = self.found()
        states = [session.status for session in read_run(run_path).sessions]
        if states != ["killed", "preempted", "completed"]:
            raise LineageError(f"the sessions ended as {states}, which is not the story", str(run_path))
        return run_path

    def found(self) -> Path:
        if self.run_path is None:
            raise LineageError("the trainer never said which run it works on", str(self.runs_dir))
        return self.run_path

    # -- the acts --------------------------------------------------------------------------------------------------

    def killed(self) -> Seen:
        self.stage.act("1", "A run begins", "A GPT with a million parameters learns Python's own manual, byte by byte.")
        seen = self.train_until_killed()
        lost = f"Steps {(seen.checkpoint or 0) + 1} to {seen.step} are in the log and in no checkpoint."
        self.stage.say(
            f"SIGKILL at step {seen.step}, {seen.step - (seen.checkpoint or 0)} steps after the last checkpoint. {lost}"
        )
        self.stage.say(f"Float16 overflowed on {_count(seen.skipped)}: such a step is counted, and changes no weight.")
        return seen

    def tear_the_log(self) -> None:
        """Append half a line, which a power cut can do and a SIGKILL of this writer cannot."""
        log = RunDir(self.found()).log
        line = log.read_bytes().splitlines()[-1]
        torn = line[: len(line) // 2]
        with log.open("ab") as file:
            file.write(torn)
        self.stage.say(
            "A power cut can also tear the last line of a log. "
            f"The demo now does that by hand: {len(torn)} bytes of half a line."
        )

    def preempted(self, lost: Seen) -> None:
        self.stage.act("2", "The same command again", "A new process finds the newest whole checkpoint and goes on.")
        seen = Seen()
        with self.trainer("--resume", self.found().name) as child:

            def terminate(seen: Seen) -> bool:
                if seen.step < self.plan.preempt_at:
                    return False
                child.process.terminate()
                return True

            self._follow(child, seen, terminate, expected=0)
        if seen.status != "preempted":
            raise LineageError(
                f"the trainer ended as {seen.status} before the SIGTERM reached it",
                str(self.found()),
                "the machine is too slow or too fast for so few steps: give more --steps",
            )
        self.stage.say(
            f"It cut the torn {seen.discarded_bytes} bytes, and restored the state after step {seen.restored}."
        )
        self._say_verdict(seen, lost)
        self.stage.say(
            "SIGTERM, as from a machine that is taken away: "
            f"it completed step {seen.step}, made a checkpoint there, and left."
        )

    def completed(self) -> None:
        self.stage.act("3", "And again", "A third process goes on to the end.")
        seen = self.train_to_the_end()
        if seen.continuation and not seen.continuation["compared_steps"]:
            proven = ", ".join(seen.continuation.get("proven", [])) or "nothing"
            self.stage.say(
                "Nothing was lost this time, so no step was trained twice and there is nothing to compare. "
                f"Lineage says so: {seen.continuation['verdict']}, beyond what the checkpoint proves ({proven})."
            )
        self.stage.say(
            f"It went on after step {seen.restored} and finished at step {seen.step}; "
            f"loss on text it never learned from: {figure(seen.eval_loss)} nats a byte (5.55 is a blind guess)."
        )

    def refused(self) -> None:
        """Start with another sequence length, which would be another experiment under the same name."""
        self.stage.act(
            "4",
            "A careless start",
            "The same run once more, with sequences of 128 bytes instead of 64: another experiment.",
        )
        before = digest_files(self.found())
        with self.trainer("--resume", self.found().name, "--block-size", "128") as child:
            with self.stage.waiting("starting"):
                child.process.wait()
            report = child.stderr()
            if child.process.returncode != 1 or "block_size" not in report:
                raise self._unexpected(child, expected=1)
        if digest_files(self.found()) != before:
            raise LineageError("the refused start changed the run", str(self.found()))
        self.stage.say("Refused, before anything was changed. What it said:")
        self.stage.quote(report)
        self.stage.say(f"All {len(before)} files of the run have the SHA-256 they had before.")

    # -- what the acts share ---------------------------------------------------------------------------------------

    def train_until_killed(self) -> Seen:
        """Start a new run and kill its process, enough steps after a checkpoint."""
        seen = Seen()
        with self.trainer("--resume", "never") as child:

            def kill(seen: Seen) -> bool:
                """Only a process that stands still can be killed at a chosen step."""
                if not self._may_die(seen) or not child.freeze():
                    return False
                self._catch_up(seen)
                if not self._may_die(seen):
                    child.thaw()
                    return False
                child.process.kill()
                return True

            self._follow(child, seen, kill, expected=-signal.SIGKILL)
        return seen

    def train_to_the_end(self) -> Seen:
        """Go on with the run until the process ends by itself."""
        seen = Seen()
        with self.trainer("--resume", self.found().name) as child:
            self._follow(child, seen, lambda _: False, expected=0)
        return seen

    def trainer(self, *argv: str) -> Child:
        return Child(self.module, ["--runs", str(self.runs_dir), *self.plan.argv(), *argv])

    def _follow(self, child: Child, seen: Seen, act: Callable[[Seen], bool], *, expected: int) -> None:
        """Follow the child to its end; `act` sees the state after each look and says when it has sent its signal."""
        acted = False
        with self.stage.progress(self.plan.steps) as show:
            while child.process.poll() is None:
                self._look(child, seen)
                show(seen.step, seen.loss, seen.eval_loss)
                acted = acted or act(seen)
                time.sleep(_POLL_S)
            self._look(child, seen)
            show(seen.step, seen.loss, seen.eval_loss)
        if child.process.returncode != expected:
            raise self._unexpected(child, expected=expected)

    def _look(self, child: Child, seen: Seen) -> None:
        if self.run_path is None:
            self.run_path = child.run_path()
        if self.run_path is not None and self.tail is None:
            self.tail = LogTail(RunDir(self.run_path).log)
        self._catch_up(seen)

    def _catch_up(self, seen: Seen) -> None:
        for event in self.tail.read() if self.tail else ():
            seen.take(event)

    def _may_die(self, seen: Seen) -> bool:
        """Enough steps after a checkpoint, and none being written: its COMMIT may be there before its event is."""
        if seen.checkpoint is None or seen.phase is not None:
            return False
        return self.plan.kill_after <= seen.checkpoint <= seen.step - _LOST_STEPS

    def _say_verdict(self, seen: Seen, lost: Seen) -> None:
        found = seen.continuation
        if found is None:
            raise LineageError("the resumed session gave no verdict on its continuation", str(self.found()))
        again = f"It trained steps {(seen.restored or 0) + 1} to {lost.step} again"
        if found["verdict"] == "exact":
            self.stage.say(
                f"{again}, and compared each with the dead session's: batch, random numbers, learning rates, "
                f"loss scale, loss and gradient norm are equal to the last bit on all {found['compared_steps']}. "
                "It is the same experiment."
            )
        else:
            self.stage.say(
                f"{again}; the verdict is {found['verdict']}: {found.get('reason') or found.get('first_difference')}"
            )

    def _unexpected(self, child: Child, *, expected: int) -> LineageError:
        self.stage.say("The trainer did not do what it should. The end of what it said:")
        self.stage.quote(child.stderr() or "(nothing)")
        return LineageError(
            f"the trainer {_ending(child.process.returncode)}; it should have {_ending(expected)}",
            str(self.run_path or self.runs_dir),
        )


def check_torch() -> None:
    """Refuse early, and say what to install.

    Raises:
        NotFoundError: there is no torch.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotFoundError(
            "the demo trains with PyTorch, which is not installed",
            hint="pip install 'lineage-tracker[torch]' (everything else in Lineage works without it)",
        )


def check_folder(runs_dir: Path) -> None:
    """Make the folder of runs, and see that files can be made in it.

    Raises:
        UsageError: they cannot, or the folder is a run or inside of one.
    """
    run = run_around(runs_dir)
    if run is not None:
        raise UsageError(
            "that is inside of a run, which only its sessions write",
            str(runs_dir),
            f"lineage demo {shlex.quote(str(run.parent))} makes one beside it",
        )
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs_dir):
            pass
    except OSError as error:
        raise UsageError(
            f"no run can be made there: {error.strerror or error}",
            str(runs_dir),
            "give another folder: lineage demo DIR",
        ) from error


def _count(steps: list[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:8]) + (", ..." if len(steps) > 8 else "")
    return f"{len(steps)} steps ({shown})"


def _ending(code: int) -> str:
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return "finished" if code == 0 else f"ended with exit code {code}"
