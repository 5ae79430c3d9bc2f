"""What users hold in a training loop.

The order of things at a restart is the point of this module: `lineage.init` takes the lock and looks at what is there,
`restore` refuses or puts everything back, and only then does the new session exist, in `run.json` and in the log. A
start that was refused leaves no trace.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from lineage.errors import LineageError, UsageError
from lineage.trainer import endings
from lineage.trainer.continuity import Proof, look_back
from lineage.trainer.machine import machine_figures
from lineage.trainer.marks import OptimizerWatch, ScalerWatch
from lineage.trainer.numbers import count, merged, plain_metrics
from lineage.trainer.phases import TrainClock
from lineage.trainer.progress import Progress
from lineage.trainer.signals import Preemption
from lineage.trainer.witness import BatchDigest, rng_digest
from lineage_schemas.base import nonfinite_name
from lineage_schemas.checkpoint import Position
from lineage_schemas.ids import MAX_STEP
from lineage_schemas.run import Start

if TYPE_CHECKING:
    from lineage.checkpoint.background import PendingSave
    from lineage.checkpoint.store import SavedGeneration
    from lineage.trainer.keeper import Keeper, Restored
    from lineage.trainer.recorder import Recorder
    from lineage.trainer.start import ContinuationPolicy

EndStatus = Literal["completed", "failed", "interrupted", "preempted"]

_LOSS: Final = "loss"
_SEVERITIES: Final = ("info", "warning", "error")


class Run:
    """One process at work on a run: logging, marks, phases, checkpoints.

    Made by `lineage.init`. Usable as a context manager: leaving it by an exception records `failed` (or `interrupted`
    for Ctrl-C), leaving it otherwise calls `finish`.

    Attributes:
        step: steps complete.
        num_updates, num_skipped: of those, the ones that changed the weights and the ones a scaler skipped.
        num_tokens: tokens given to `log` so far.
    """

    def __init__(
        self,
        recorder: Recorder,
        keeper: Keeper,
        *,
        continuation: ContinuationPolicy = "warn",
        log_every: int = 1,
        witness_steps: int = 64,
        system_interval_s: float = 30.0,
    ) -> None:
        self._progress = Progress()
        self.num_updates = 0
        self.num_skipped = 0
        self.num_tokens = 0
        self._recorder = recorder
        self._keeper = keeper
        self._policy = continuation
        self._proof: Proof | None = None
        self._log_every = max(1, log_every)
        self._witness_steps = witness_steps
        self._witness_left = witness_steps
        self._system_interval_s = system_interval_s
        self._system_due = 0.0  # the first step has them, so that even a short session does
        self._clock = TrainClock()
        self._preemption = Preemption()
        self._optimizers = OptimizerWatch(self._note_update)
        self._scalers = ScalerWatch()
        self._optimizers.before_wanted_step = self._scalers.note_used
        self._batch = BatchDigest()
        self._scales: Mapping[str, float] = {}
        self._logged_steps = 0
        self._data_checked = False
        self._steps_known = False
        self._steps_done = False
        self._ended: EndStatus | None = None
        self._raised_before = sys.exc_info()[1]  # a training may be what an `except` clause does
        self._alerted: set[str] = set()
        self._base: dict[str, Any] = {}
        if recorder.is_new:
            endings.watch(self)

    # -- identity --------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The run's id; the same across its sessions."""
        return self._recorder.run_id

    @property
    def step(self) -> int:
        """Steps complete since the run began, over all its sessions."""
        return self._progress.step

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._recorder.dir.path

    @property
    def session(self) -> str | None:
        """This process's session id; None until the session began (at `restore`, the first step or event)."""
        return self._recorder.session_id

    @property
    def preempted(self) -> bool:
        """Whether the process was asked to leave (SIGTERM, SIGUSR1); `steps` stops at the next boundary."""
        return self._preemption.asked

    @property
    def ended(self) -> EndStatus | None:
        """How this session ended; None while it runs."""
        return self._ended

    # -- state -----------------------------------------------------------------------------------------------------

    def track(self, **objects: Any) -> None:
        """Register everything that could change the next step, by name: `model=`, `optimizer=`, `scheduler=`, ...

        Names are the user's; what an object is, is told from the object. Lists and dicts of objects are registered
        one by one (`schedulers=[a, b]`). Tracking alone already gives marks for learning rates, skipped steps and
        restores; together with `checkpoint` and `restore` it is the whole training state.

        Raises:
            UsageError: a name is taken, or an object of a kind that needs an adapter (the message says which).
            LineageError: PyTorch is not installed; a run that tracks nothing needs none.
        """
        for name, obj, family in self._keeper.track(objects):
            if family == "optimizer":
                self._optimizers.add(name, obj)
            elif family == "scaler":
                self._scalers.add(name, obj)

    def track_as(self, family: str, **objects: Any) -> None:
        """Register objects as of a family that cannot be told from them: `track_as("loader", stream=my_stream)`.

        Args:
            family: `"loader"` for one with `state_dict`, `load_state_dict` and an absolute sample count, `"ema"` for a
                module that averages another, or a word of your own.
            objects: by name, as for `track`.

        Raises:
            UsageError, CheckpointError: as `track`.
        """
        for _ in self._keeper.track(objects, family):
            pass

    def absent(self, what: str, reason: str) -> None:
        """Declare that something has no state to save here, and why; the reason is stored in every manifest.

        Args:
            what: a family (`"loader"`), or the path that `UndeclaredStateError` names (`"model.cache"`,
                `"<in memory>.StepLR"`): one such object is excused, not its family.
            reason: why nothing of it could change the next step.
        """
        self._keeper.absent(what, reason)

    def restore(self) -> Restored | None:
        """Put the whole training state back, or start fresh where there is nothing to put back.

        Everything that can be refused is refused before the first change: a refused restore leaves model, optimizer,
        loader and generators bit for bit as they were, and leaves no trace in the run. Random generators are restored
        last, after the iterators of the tracked loaders were built.

        Returns:
            What was restored, or None for a fresh start.

        Raises:
            CheckpointError: refused, with every finding at once; or candidates exist and none is usable.
        """
        self._recorder.check_ours("restore()")
        if self._recorder.begun:
            raise UsageError(
                "restore() came after the session had begun",
                f"run {self.id}",
                "call it once, after track() and before the first step, log or phase",
            )
        lr_before = self._optimizers.current()
        started = time.monotonic()
        try:
            restored = self._keeper.restore()
        except BaseException:
            self._recorder.discard()
            endings.forget(self)
            raise
        if restored is None:
            self._keeper.seal()
            self._begin()
            return None
        position = restored.position
        self._progress.step = position.step
        self.num_updates = position.num_updates
        self.num_skipped = position.num_skipped
        self.num_tokens = position.num_tokens or 0
        self._scalers.refresh()
        self._begin(self._keeper.start_of(restored))
        self._event("phase_start", phase="restore")
        self._event(
            "checkpoint_restored",
            checkpoint=restored.name,
            from_run=restored.run,
            from_session=restored.session,
            manifest_sha256=restored.manifest_sha256,
            discovery_s=restored.discovery_s,
            load_s=restored.load_s,
            lost_steps=self._recorder.lost_steps(restored.session, position.step),
        )
        self._note_lr_restore(lr_before, restored.expected_lr)
        self._event("phase_end", phase="restore", duration_s=time.monotonic() - started, ok=True)
        self._clock.lap()
        return restored

    def checkpoint(self, *, background: bool | None = None) -> SavedGeneration | PendingSave | None:
        """Publish one generation of the whole training state after the last completed step.

        Durable when it returns, unless it goes on in the background: then the state was copied, the write goes on
        beside the training, and what became of it is recorded at the next step boundary. A disk that fails is reported
        once, as an alert and on stderr, and training goes on; the generation before stays whole.

        Args:
            background: write beside the training; None does so where parameters are on an accelerator, since on a
                CPU the writer takes its cores from the training.

        Returns:
            The generation, the save in flight, or None when the disk failed.

        Raises:
            UndeclaredStateError: something reachable from the tracked objects is stateful and was never declared.
            SaveRefusedError: inside a step whose batch was taken and that has no update and no log yet: the data would
                go on behind a batch that no state was trained on.
            CheckpointError: the state is not at a completed step, or an earlier background save failed.
        """
        self._recorder.check_ours("checkpoint()")
        self._begin()
        step = self._completed_step()
        if (current := self._progress.current) is not None and self._progress.is_between:
            from lineage.checkpoint.errors import SaveRefusedError

            raise SaveRefusedError(
                f"checkpoint() inside step {current}: its batch was taken, with no update and no log since",
                f"run {self.id}",
                "call it after the optimizer's step, after run.log(), or before the step's first next(batches)",
            )
        return self._save(step, background=background)

    def _save(self, step: int, *, background: bool | None) -> SavedGeneration | PendingSave | None:
        if self._progress.is_ahead:
            self._alert(
                "batch_ahead",
                f"a batch was taken ahead of the checkpoint after step {step}: a resume goes on behind it and would "
                "skip it; take the batches of a step inside that step",
                details={"step": step},
            )
        with self.phase("checkpoint"):
            self._settle(wait=True)
            with self._disk_may_fail(step):
                started = time.monotonic()
                saved = self._keeper.save(self._position(step), background=background)
                from lineage.checkpoint.background import PendingSave  # after what says that torch is missing

                if not isinstance(saved, PendingSave):
                    self._note_saved(saved, time.monotonic() - started)
                self._witness_left = self._witness_steps
                self._optimizers.wanted = True
                return saved
        return None

    def export(self, name: str) -> SavedGeneration | None:
        """Write the weights alone to the run's `exports/<name>`, for inference or transfer; no resume takes it.

        Raises:
            UsageError: the name is malformed or taken, or no module is tracked.
        """
        self._recorder.check_ours("export()")
        self._begin()
        step = self._completed_step()
        with self.phase("export"), self._disk_may_fail(step):
            return self._keeper.export(name, self._position(step))
        return None

    def fix_batch(self, loader: Any) -> None:
        """Train on one batch for ever (overfitting): the one at the cursor of a tracked loader.

        Call it before `restore`; a resume rereads the same batch and refuses when its content has changed.
        """
        self._keeper.fix_batch(loader)

    # -- the loop --------------------------------------------------------------------------------------------------

    def steps(self, total: int, *, start: int | None = None) -> Iterator[int]:
        """Step numbers from the one after the last completed to `total`.

        SIGTERM and SIGUSR1 are heard while the loop runs: at the next boundary the state is checkpointed (when
        anything is tracked), the session ends as `preempted`, and the loop stops.

        Args:
            total: steps of the whole run, not of this session.
            start: steps already complete, for training code that restores by its own means. The session then claims no
                checkpoint as its start, and the audit of the run compares what it trained with what was trained before.

        Raises:
            UsageError: `start` together with a restore by Lineage, or no whole number.
        """
        if start is not None:
            if self._keeper.restored is not None:
                raise UsageError(
                    f"steps(start={start}) after a restore to step {self.step}",
                    f"run {self.id}",
                    "leave `start` away: the loop goes on from the restored step",
                )
            number = count(start)
            if number is None:
                raise UsageError(
                    f"steps(start={str(start)[:100]}) is no count of complete steps",
                    hint="a whole number from 0 to 2^53",
                )
            self._progress.step = number
        self._begin()
        self._steps_known, self._steps_done = True, False
        if self._recorder.facts.world == 1:
            # One rank that leaves alone would have the others wait for it; with several, signals keep their meaning.
            self._preemption.install()
        self._clock.lap()
        progress = self._progress
        progress.put_ahead()
        try:
            while progress.step < total and self._ended is None:
                number = progress.enter()
                yield number
                if not self._data_checked:
                    self._keeper.check_loaders()
                    self._data_checked = True
                if not progress.observed:
                    self._observe(number)
                progress.complete()
                if self._keeper.is_saving:
                    self._settle()
                if self._preemption.asked and progress.step < total:
                    self._leave()
                    return
            self._steps_done = True
        finally:
            progress.leave()
            self._preemption.restore()

    def batches(self, loader: Any, *, epochs: int | None = None) -> Iterator[Any]:
        """Batches of a tracked loader, epoch after epoch, from where the restored state left off.

        What the loop has taken is what counts as consumed, however much a loader's workers have prefetched. With
        `epochs`, stops after that many, counted from the run's beginning over all calls and sessions; without, never.

        Raises:
            UsageError: the loader is not tracked.
        """
        num_taken = 0
        for batch in self._keeper.iterate(loader, epochs):
            num_taken += 1
            if self._witness_left > 0:
                self._batch.add(batch)
            if not self._progress.taken:
                self._progress.taken = not self._clock.is_paused and _records_gradients()
            yield batch
        if num_taken == 0 and self._ended is None:
            self._begin()
            self._alert(
                "no_batch",
                f"run.batches(..., epochs={epochs}) had no batch to give: epochs are counted from the run's beginning, "
                "over all calls and sessions, and so many are complete",
            )

    def log(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        tokens: int | None = None,
        samples: int | None = None,
        **more: Any,
    ) -> None:
        """Record one completed step; when this returns, the line survives a SIGKILL of the process.

        Never raises for the disk. A value that is no number is left out, with one alert. Reading a tensor on a device
        waits for the device; `lineage.init(log_every=N)` pays that on every Nth step only.

        Args:
            metrics: name to number, for names that are no Python identifiers; `more` is the short form.
            step: the step's number, counted from 1, outside of `steps`; by default one more than the last.
            tokens: tokens this step consumed; throughput is drawn from them. What is no count is left out, with one
                alert.
            samples: samples this step consumed, likewise.
            more: name to number.

        Raises:
            UsageError: `step` is no whole number from 1 to 2^53.
        """
        ts = time.time()
        if not self._base:
            self._begin()
        progress = self._progress
        number = progress.current
        if number is None:
            if step is None:
                number = progress.step + 1
                if self._steps_known:
                    self._alert(
                        "log_outside_steps",
                        f"log() outside of the loop over steps counts as step {number}; log_eval() is for the rest",
                    )
            else:
                number = step if type(step) is int and 0 < step <= MAX_STEP else _numbered(step)
            progress.observed = False
            progress.step = number
        progress.trained()
        if not progress.observed:
            self._observe(number)
        if tokens is not None and (type(tokens) is not int or not 0 <= tokens <= MAX_STEP):
            tokens = self._counted("tokens", tokens)
        if samples is not None and (type(samples) is not int or not 0 <= samples <= MAX_STEP):
            samples = self._counted("samples", samples)
        if tokens is not None:
            self.num_tokens += tokens
        self._logged_steps += 1
        if self._log_every > 1 and number % self._log_every:
            self._batch.take()
            return
        values = more if metrics is None else merged(metrics, more)
        if "lr" not in values and (lr := self._optimizers.first_lr) is not None:
            values["lr"] = lr
        for value in values.values():
            if type(value) is not float:
                self._make_plain(values)
                break
        event = self._base.copy()
        event["ts"] = ts
        event["step"] = number
        event["metrics"] = values
        event["duration_s"] = self._clock.lap() / self._logged_steps
        self._logged_steps = 0
        if tokens is not None:
            event["tokens"] = tokens
        if samples is not None:
            event["samples"] = samples
        if self._witness_left > 0:
            witness = self._take_witness()
            if witness is not None:
                event["witness"] = witness
        self._recorder.append(event)
        loss = values.get(_LOSS)
        if loss is not None and loss - loss != 0.0:
            self._note_nonfinite(number, loss)
        if self._proof is not None:
            if self._recorder.is_ours:
                self._proof.watch(event, self._optimizers.taken_with if progress.attempted else None)
            if self._proof.is_done or not self._recorder.is_ours:
                self._proof = None
        if time.monotonic() >= self._system_due:
            self._log_system()

    def log_eval(self, metrics: Mapping[str, Any] | None = None, /, *, name: str = "eval", **more: Any) -> None:
        """Record the result of an evaluation after the current step; `name` is the split or suite."""
        self._begin()
        values = merged(metrics, more)
        self._make_plain(values)
        self._event("eval", name=str(name), metrics=values)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time that is no training: `eval`, `checkpoint`, `restore`, or a word of the user's.

        The clock of training stands still inside; an exception passes through and the phase is marked as not ok.
        """
        self._begin()
        name = str(name)
        self._event("phase_start", phase=name)
        entered = self._clock.pause()
        ok = False
        try:
            yield
            ok = True
        finally:
            duration = self._clock.resume(entered)
            self._event("phase_end", phase=name, duration_s=duration, ok=ok)
            self._recorder.request_sync()

    def note(self, text: str) -> None:
        """Write a remark into the log, at the current step."""
        self._begin()
        self._event("note", text=str(text))

    def alert(
        self, message: str, *, code: str = "user", severity: Literal["info", "warning", "error"] = "warning"
    ) -> None:
        """Record something a person should know; also one line on stderr. An unknown severity counts as an error."""
        self._begin()
        self._alert(str(code), str(message), severity=severity if severity in _SEVERITIES else "error")

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the session as `completed` (or leave it as it already ended) and let go of the run.

        While an exception is under way, as in `finally: run.finish()`, it ends as that says (`end_on_exception`),
        unless the loop over `steps` came to its end before.
        """
        error = sys.exc_info()[1]
        is_end = isinstance(error, StopIteration) or (isinstance(error, SystemExit) and error.code in (None, 0))
        if error is None or error is self._raised_before or self._steps_done or is_end:
            self._end("completed", None)
        else:
            self.end_on_exception(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end("completed", None)
        else:
            with endings.told():
                self.end_on_exception(error)

    def end_on_exception(self, error: BaseException) -> None:
        """End the session as the exception says: Ctrl-C is `interrupted`, `sys.exit(0)` as usual, others `failed`."""
        if isinstance(error, KeyboardInterrupt):
            self._end("interrupted", "KeyboardInterrupt")
        elif isinstance(error, SystemExit) and error.code in (None, 0):
            self.end_at_exit()
        else:
            from lineage.capture.problem import describe_error

            self._end("failed", describe_error(error))

    def end_at_exit(self) -> None:
        """End the session when the interpreter leaves without `finish`."""
        if self._steps_known and not self._steps_done:
            self._end("failed", f"the process left at step {self.step} without finish()")
        else:
            self._end("completed", "the process left without finish()")

    def __del__(self) -> None:
        """A run that nobody holds any more, as after a function that trained and returned, ends as at the exit."""
        recorder = getattr(self, "_recorder", None)
        if recorder is not None and recorder.begun and recorder.is_ours:
            with endings.told():
                self.end_at_exit()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _begin(self, start: Start | None = None) -> None:
        if self._recorder.begun:
            return
        self._recorder.check_ours("a call")
        if start is None:
            start = Start(kind="fresh", step=self.step)
        self._recorder.begin(start, self._keeper.runtime(), parent=self._keeper.parent)
        self._base = self._recorder.step_base()
        self._begin_proof()
        self._witness_left = self._witness_steps
        self._optimizers.wanted = True
        endings.watch(self)

    def _begin_proof(self) -> None:
        """Read from the log what the steps to come are compared with."""
        session = self._recorder.store.session
        if self._policy == "off" or session is None:
            return
        from_scratch = session.start.kind == "fresh" and session.start.step == 0
        if from_scratch and not self._keeper.can_save():
            return  # a script that only logs claims to continue nothing
        restored = self._keeper.restored
        proven = list(restored.proven) if restored else []
        try:
            before = look_back(self._recorder.dir.log, self._recorder.store.record, session, proven)
        except (LineageError, OSError) as error:
            self._recorder.warn(f"the continuation is not compared while training: {error}")
            return
        if before is not None:
            alert = None if from_scratch else self._alert
            self._proof = Proof(before, self._recorder, self._policy, alert)
            scheduled = restored is not None and self._keeper.has_schedule()
            expected_lr = restored.expected_lr if restored and scheduled else None
            self._proof.begin(self.step, expected_lr, every_step=self._log_every == 1)

    def _completed_step(self) -> int:
        current = self._progress.current
        if current is not None and not self._progress.observed:
            self._observe(current)
        return self._progress.last

    @contextlib.contextmanager
    def _disk_may_fail(self, step: int) -> Iterator[None]:
        """A failing disk becomes an alert: training is worth more than one checkpoint."""
        from lineage.checkpoint.errors import BackgroundSaveError, DiskSpaceError

        try:
            yield
        except (OSError, DiskSpaceError, BackgroundSaveError) as error:
            cause = error.__cause__ if isinstance(error, BackgroundSaveError) else error
            if not isinstance(cause, OSError | DiskSpaceError):
                raise
            from lineage.capture.problem import error_text

            said = error_text(cause)
            self._alert(
                f"checkpoint_failed.{step}",
                f"the checkpoint after step {step} failed: {said}; training goes on",
                severity="error",
                details={"step": step, "error": said},
            )

    def _settle(self, *, wait: bool = False) -> None:
        """Record what became of a save in the background.

        Raises:
            BackgroundSaveError: it failed, and not for the disk.
        """
        with self._disk_may_fail(self.step):
            saved = self._keeper.saved_beside(wait=wait)
            if saved is not None:
                self._note_saved(saved, saved.timing.snapshot_s + saved.timing.write_s + saved.timing.fsync_s)

    def _note_saved(self, saved: SavedGeneration, duration_s: float) -> None:
        step = saved.manifest.position.step
        self._recorder.event(
            "checkpoint_saved",
            step=step,
            checkpoint=saved.name,
            manifest_sha256=saved.manifest_sha256,
            size_bytes=saved.size_bytes,
            duration_s=duration_s,
        )
        self._recorder.add_checkpoint(saved.name, step)
        if not saved.log_synced:
            self._alert(
                f"log_unsynced.{step}",
                f"the checkpoint after step {step} is whole, but the log could not be synced before it: after a power "
                "loss steps that led to it may be missing from the log; training goes on",
                severity="error",
                details={"step": step, "checkpoint": saved.name},
            )

    def _position(self, step: int) -> Position:
        return Position(
            step=step, num_updates=self.num_updates, num_skipped=self.num_skipped, num_tokens=self.num_tokens
        )

    def _note_update(self) -> None:
        self._progress.updated()

    def _observe(self, number: int) -> None:
        """Count the step as an update or a skip, once, after its training is done."""
        progress = self._progress
        skips, self._scales = self._scalers.observe() if self._scalers.scalers else ((), {})
        if not skips:
            if progress.attempted or not self._optimizers.optimizers:
                self.num_updates += 1
                progress.observed = True
            elif progress.advanced:
                progress.observed = True
            return
        progress.observed = True
        progress.trained()
        self.num_skipped += 1
        for skip in skips:
            self._recorder.event(
                "fp16_skip",
                step=number,
                scaler=skip.scaler,
                scale_before=skip.before,
                scale_after=skip.after,
                num_updates=self.num_updates,
                num_skipped=self.num_skipped,
            )

    def _take_witness(self) -> dict[str, Any] | None:
        """What a second attempt is compared with; None, with one alert, where a generator cannot be looked at."""
        try:
            return self._look_at_step()
        except Exception as error:  # noqa: BLE001  # a proof that cannot be had later ends no training now
            from lineage.capture.problem import describe_error

            self._witness_left = 0
            self._alert("witness_failed", f"steps carry no witness any more: {describe_error(error, 200)}")
            return None

    def _look_at_step(self) -> dict[str, Any]:
        witness: dict[str, Any] = {}
        batch = self._batch.take()
        if batch is not None:
            witness["batch"] = batch
        witness["rng"] = rng_digest(self._keeper.generators())
        if self._optimizers.optimizers:
            witness["lr"] = self._optimizers.taken_with()
        if self._scales:
            witness["scale"] = dict(self._scales)
        self._witness_left -= 1
        self._optimizers.wanted = self._witness_left > 0
        return witness

    def _note_lr_restore(self, before: Mapping[str, list[float]], expected: Mapping[str, list[float]]) -> None:
        groups = []
        ok = True
        for name, after in self._optimizers.current().items():
            olds = before.get(name, [])
            wanted = expected.get(name, [])
            for i, (new, old, want) in enumerate(itertools.zip_longest(after, olds, wanted)):
                groups.append({"optimizer": name, "group": i, "before": old, "after": new, "expected": want})
                ok = ok and (want is None or want == new)
        if groups:
            self._event("lr_restore", groups=groups, ok=ok)

    def _note_nonfinite(self, number: int, loss: float) -> None:
        if "non_finite" not in self._alerted:
            self._alert(
                "non_finite",
                f"the loss is {nonfinite_name(loss)} since step {number}",
                severity="error",
                details={"metric": _LOSS, "step": number, "value": nonfinite_name(loss)},
            )

    def _counted(self, what: str, value: Any) -> int | None:
        """A count as a plain int; None and one alert for what is none."""
        number = count(value)
        if number is None:
            self._alert(f"bad_count.{what}", f"{what}={str(value)[:100]} is no count and was left out")
        return number

    def _make_plain(self, values: dict[str, Any]) -> None:
        for name in plain_metrics(values):
            self._alert(f"bad_metric.{name}", f"metric {name!r} is no number and was left out")

    def _alert(
        self, code: str, message: str, *, severity: str = "warning", details: dict[str, Any] | None = None
    ) -> None:
        """One alert per code and session; codes with a dot are reported by their first part."""
        if code in self._alerted and code != "user":
            return
        self._alerted.add(code)
        self._event("alert", code=code.partition(".")[0], message=message, severity=severity, details=details or {})
        self._recorder.warn(message)

    def _log_system(self) -> None:
        self._system_due = time.monotonic() + self._system_interval_s
        with contextlib.suppress(Exception):  # a driver that is asked for its memory may fail in ways of its own
            self._event("system", metrics=machine_figures())

    def _event(self, kind: str, **fields: Any) -> None:
        self._recorder.event(kind, step=self._progress.last, **fields)

    def _leave(self) -> None:
        name = self._preemption.signal_name or "a signal"
        saved: object = None
        if self._recorder.is_ours and self._keeper.can_save():
            self._settle(wait=True)
            saved = self._keeper.last_saved_at(self.step) or self._save(self.step, background=False)
        reason = f"{name}; checkpointed after step {self.step}" if saved else f"{name}; no checkpoint was made"
        self._end("preempted", reason)

    def _end(self, status: EndStatus, reason: str | None) -> None:
        if self._ended is not None or not self._recorder.is_ours:
            return  # a child forked from this process has no part in the run's end
        if not self._recorder.begun:
            if not self._recorder.is_new or status == "completed":
                self._ended = status
                self._recorder.discard()
                endings.forget(self)
                return
            self._begin()
        try:
            self._settle(wait=True)
        except LineageError as error:
            self._recorder.warn(str(error))
        self._ended = status
        step = self._progress.last
        if self._proof is not None:
            self._proof.conclude(step)
        self._recorder.end(status, reason, step)
        self._optimizers.remove()
        endings.forget(self)


def _records_gradients() -> bool:
    """Whether what is computed now could train; False inside `torch.no_grad` and the like, where loops evaluate."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def _numbered(step: Any) -> int:
    """A step's number as a plain int.

    Raises:
        UsageError: it is none.
    """
    number = count(step)
    if not number:
        raise UsageError(
            f"step={str(step)[:100]} is no step's number",
            hint="steps are counted from 1 to 2^53: in a loop that counts from 0, log(step=i + 1)",
        )
    return number
