"""The hook's side of checkpoints: what is tracked, what was restored, what is saved. Loads torch on first use only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lineage.errors import LineageError, NotFoundError, UsageError, without_torch
from lineage.trainer.signals import children_survive_a_notice
from lineage_schemas.checkpoint import Position, RecipePoint
from lineage_schemas.run import Parent, Start

if TYPE_CHECKING:
    from lineage.checkpoint.background import BackgroundSaver, PendingSave
    from lineage.checkpoint.discover import Discovery
    from lineage.checkpoint.loaders import LoaderIterator
    from lineage.checkpoint.registry import Registry
    from lineage.checkpoint.store import CheckpointStore, Experiment, SaveContext, SavedGeneration
    from lineage.trainer.recorder import Recorder
    from lineage.trainer.start import Target
    from lineage_schemas.checkpoint import Finding, RejectedCandidate


def several_ranks(world: int) -> LineageError:
    """The refusal to checkpoint or restore one rank of several as if it were the whole state."""
    return UsageError(
        f"checkpoints of {world} ranks are not supported yet, and one rank's state is not the whole",
        hint="save with your own means, and hand the steps already complete to run.steps(total, start=N)",
    )


@dataclass(frozen=True)
class Restored:
    """What a restore put back.

    Attributes:
        name: the generation.
        run: id of the run that made it; another one's for a fork.
        session: the session that made it.
        position: steps, updates, skips and tokens complete.
        expected_lr: learning rate of the next step per group, by optimizer, as the manifest expects it.
        proven: what was checked against the manifest's expectations and holds.
        findings: differences between the saved experiment and this one that were allowed or noted.
        rejected: newer generations that could not be used, with the reason.
        forced: whether a person's `allow` was needed.
        discovery_s: seconds spent finding and comparing.
        load_s: seconds spent reading, hashing and putting back.
    """

    name: str
    run: str
    session: str
    position: Position
    manifest_sha256: str
    expected_lr: Mapping[str, list[float]] = field(default_factory=dict)
    proven: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    rejected: tuple[RejectedCandidate, ...] = ()
    forced: bool = False
    discovery_s: float = 0.0
    load_s: float = 0.0


class Keeper:
    """Registry and store of one run, made when the first object is tracked.

    Attributes:
        restored: what was put back; None for a fresh start.
    """

    def __init__(
        self,
        recorder: Recorder,
        target: Target,
        *,
        allow: Sequence[str] = (),
        quarantined: bool = False,
        keep: int | None = None,
        keep_every: int | None = None,
        accumulation: int = 1,
        precision: str | None = None,
    ) -> None:
        self.restored: Restored | None = None
        self._recorder = recorder
        self._target = target
        self._allow = tuple(allow)
        self._quarantined = quarantined
        self._registry: Registry | None = None
        self._store: CheckpointStore | None = None
        self._saver: BackgroundSaver | None = None
        self._retention = (keep, keep_every)
        self._execution = (precision, accumulation)
        self._absent: list[tuple[str, str]] = []
        self._prepared: dict[str, LoaderIterator] = {}
        self._last_saved: tuple[int, SavedGeneration] | None = None
        self._taken: set[str] = set()

    # -- declaring -------------------------------------------------------------------------------------------------

    def track(self, objects: Mapping[str, Any], family: str | None = None) -> Iterator[tuple[str, Any, str]]:
        """Register objects; (name, object, family) of each, containers taken apart. None values are passed over."""
        self._recorder.check_ours("track()")
        registry = self._opened()
        for given, value in objects.items():
            for name, obj in _flat(given, value):
                component = registry.track(name, obj, family)
                yield name, obj, component.family

    def absent(self, what: str, reason: str) -> None:
        self._opened().absent(what, reason)

    def seal(self) -> None:
        """Close the set of what is tracked and audit it, if anything is: now, and not at the first save hours later.

        Raises:
            UndeclaredStateError: stateful objects that nobody declared, with the paths to them.
        """
        if self._registry is not None and self._registry.components and self._recorder.facts.world == 1:
            self._registry.seal()

    def generators(self) -> list[Any]:
        """Random generators beside the global ones."""
        return [] if self._registry is None else list(self._registry.generators().values())

    def has_schedule(self) -> bool:
        """Whether the learning rates are set by a tracked scheduler, and so known before each step."""
        return self._registry is not None and any(
            component.family == "scheduler" for component in self._registry.components.values()
        )

    def runtime(self) -> dict[str, Any]:
        """Flags that change execution, now; of the device the first tracked module is on."""
        from lineage.capture.runtime import capture_runtime

        facts = self._recorder.facts
        precision, accumulation = self._execution
        return capture_runtime(self._device(), precision, accumulation, rank=facts.rank, world=facts.world)

    def _opened(self) -> Registry:
        if self._registry is None:
            try:
                from lineage.checkpoint.background import BackgroundSaver
                from lineage.checkpoint.registry import Registry
                from lineage.checkpoint.retention import Policy
                from lineage.checkpoint.store import CheckpointStore
            except ModuleNotFoundError as error:
                raise without_torch(error, "tracking and checkpointing") from error

            keep, every = self._retention
            policy = None if keep is None else Policy(last=keep, every=every)
            self._registry = Registry()
            self._store = CheckpointStore(self._recorder.dir, self._registry, retention=policy)
            self._saver = BackgroundSaver(self._store)
        return self._registry

    def _device(self) -> Any:
        for module in self._registry.modules() if self._registry is not None else ():
            for parameter in module.obj.parameters():
                return parameter.device
        return None

    # -- data ------------------------------------------------------------------------------------------------------

    def iterate(self, loader: Any, epochs: int | None) -> Iterator[Any]:
        """Batches of a tracked loader from its cursor on.

        Raises:
            UsageError: it is not tracked.
        """
        component = self._opened().loader(loader)
        self._taken.add(component.name)
        prepared = self._prepared.pop(component.name, None)
        if prepared is not None:
            return prepared.until(epochs)
        with children_survive_a_notice():
            return component.iterate(epochs)

    def check_loaders(self) -> None:
        """Raise when loaders are tracked and none of their batches came through `Run.batches`.

        Raises:
            UsageError: the position of the data is not known, so no checkpoint could go on from it.
        """
        if self._registry is None or self._taken:
            return
        names = list(self._registry.loaders())
        if names:
            raise UsageError(
                f"{' and '.join(names)} is tracked, but a step was trained without taking a batch from it",
                f"run {self._recorder.run_id}",
                f"take batches by `batches = run.batches({names[0]})` and `next(batches)`, or do not track it",
            )

    # -- restoring -------------------------------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """Put back the generation that the target names, or the newest usable one; None when there is none.

        Raises:
            CheckpointError: see `Run.restore`.
            NotFoundError: the run was to be gone on with and never had a checkpoint.
        """
        target, facts = self._target, self._recorder.facts
        if target.run_dir is None and target.checkpoint is None:
            return None
        started = time.perf_counter()
        discovery = self._discover()
        if discovery is None:
            return None
        if facts.world > 1:
            raise several_ranks(facts.world)
        registry = self._opened()
        if not registry.components:
            raise UsageError(
                f"there is a checkpoint to restore ({discovery.candidates[0].name}) and nothing is tracked",
                f"run {self._recorder.run_id}",
                "call run.track(model=..., optimizer=..., ...) first, or run.steps(total, start=N) with state you "
                "restored by your own means",
            )
        from lineage.checkpoint.restore import RestoreContext, restore_newest

        found = time.perf_counter()
        experiment = self._experiment()
        context = RestoreContext(
            recipe=experiment.recipe,
            data=experiment.data,
            runtime=experiment.runtime,
            code=experiment.code,
            run=self._recorder.run_id,
            mode="fork" if target.is_new else "resume",
            allow=self._allow,
            quarantined=self._quarantined,
        )
        back = restore_newest(discovery, registry, context)
        if back is None:
            return None
        # Building an iterator draws from the global generator: build them all, and put random state back after that.
        with children_survive_a_notice():
            self._prepared = {name: loader.iterate() for name, loader in registry.loaders().items()}
        proven = back.finish()
        self.restored = Restored(
            name=back.name,
            run=back.manifest.run.run,
            session=back.manifest.run.session,
            position=back.position,
            manifest_sha256=back.candidate.manifest_sha256,
            expected_lr=dict(back.manifest.expected.lr),
            proven=proven,
            findings=back.findings,
            rejected=back.rejected,
            forced=back.forced,
            discovery_s=found - started,
            load_s=time.perf_counter() - found,
        )
        return self.restored

    def _discover(self) -> Discovery | None:
        """What can be restored; None when the run may start from nothing."""
        from lineage.checkpoint.discover import Discovery, discover, read_candidate

        target = self._target
        if target.checkpoint is not None:
            return Discovery(target.checkpoint.parent, (read_candidate(target.checkpoint),))
        if target.run_dir is None:
            return None
        discovery = discover(target.run_dir)
        if not discovery.candidates and not discovery.rejected:
            if target.must:
                raise NotFoundError(
                    "the run has no checkpoint to go on from",
                    str(target.run_dir),
                    'resume="auto" starts it again from step 0',
                )
            return None
        return discovery

    def start_of(self, restored: Restored) -> Start:
        """What the session record says of a restore."""
        is_fork = self._target.is_new
        return Start(
            kind="fork" if is_fork else "resume",
            step=restored.position.step,
            checkpoint=restored.name,
            run=restored.run if is_fork else None,
            session=restored.session,
            findings=[finding for finding in restored.findings if finding.verdict != "identical"],
            rejected=list(restored.rejected),
            forced=restored.forced,
        )

    @property
    def parent(self) -> Parent | None:
        """Where a forked run comes from; None for any other."""
        if self.restored is None or not self._target.is_new:
            return None
        return Parent(
            run=self.restored.run,
            session=self.restored.session,
            checkpoint=self.restored.name,
            step=self.restored.position.step,
        )

    # -- saving ----------------------------------------------------------------------------------------------------

    def can_save(self) -> bool:
        """Whether there is state to save, and this process has all of it."""
        return self._registry is not None and bool(self._registry.components) and self._recorder.facts.world == 1

    def save(self, position: Position, *, background: bool | None = None) -> SavedGeneration | PendingSave:
        """Publish a generation; see `CheckpointStore.save` and `BackgroundSaver.save` for what they raise.

        Args:
            position: counters after the last completed step.
            background: copy the state and write it beside the training; None does so where there is an accelerator.
        """
        store, saver, registry = self._ready("checkpoint()")
        from lineage.checkpoint.background import wants_background  # after what says that torch is missing

        session = self._recorder.store.session
        if session is None or position.step > session.start.step:  # before that, no batch was due
            self.check_loaders()
        for loader in registry.loaders().values():
            position = position.model_copy(update={"epoch": loader.epoch})
            break
        if wants_background(registry) if background is None else background:
            return saver.save(position, self._context())
        saver.wait()
        saved = store.save(position, self._context())
        self._last_saved = (position.step, saved)
        return saved

    @property
    def is_saving(self) -> bool:
        """Whether a save was begun in the background and its outcome not yet asked for."""
        return self._saver is not None and self._saver.pending is not None

    def saved_beside(self, *, wait: bool = False) -> SavedGeneration | None:
        """The generation that a background save has made durable since the last call, if one has.

        Raises:
            BackgroundSaveError: the save failed.
        """
        if self._saver is None:
            return None
        saved = self._saver.wait() if wait else self._saver.poll()
        if saved is not None:
            self._last_saved = (saved.manifest.position.step, saved)
        return saved

    def export(self, name: str, position: Position) -> SavedGeneration:
        """Write the weights alone to `exports/<name>`; see `export_weights` for what it raises."""
        _, _, registry = self._ready("export()")
        from lineage.checkpoint.export import export_weights  # after what says that torch is missing

        return export_weights(self._recorder.dir, registry, name, position, self._context())

    def fix_batch(self, loader: Any) -> None:
        """Repeat the batch at the loader's cursor for ever."""
        self._opened().loader(loader).fix_batch()

    def last_saved_at(self, step: int) -> SavedGeneration | None:
        """The generation this session saved after exactly `step` steps, if it did."""
        return self._last_saved[1] if self._last_saved and self._last_saved[0] == step else None

    def _ready(self, what: str) -> tuple[CheckpointStore, BackgroundSaver, Registry]:
        world = self._recorder.facts.world
        if world > 1:
            raise several_ranks(world)
        registry = self._opened()
        if not registry.components or self._store is None or self._saver is None:
            raise UsageError(
                f"{what}: nothing is tracked, so there is nothing to put into it", hint="run.track(model=..., ...)"
            )
        return self._store, self._saver, registry

    def _context(self) -> SaveContext:
        from lineage.checkpoint.store import SaveContext

        session = self._recorder.store.session
        if session is None:
            raise UsageError("a checkpoint before the session began", f"run {self._recorder.run_id}")
        experiment = self._experiment()
        return SaveContext(
            recipe=experiment.recipe,
            data=experiment.data,
            runtime=experiment.runtime,
            code=experiment.code,
            run=self._recorder.run_id,
            session=session.id,
            ordinal=session.ordinal,
            parent=self.restored.name if self.restored else None,
            before_commit=self._recorder.sync,
        )

    def _experiment(self) -> Experiment:
        from lineage.checkpoint.store import Experiment

        recorder = self._recorder
        source = recorder.source
        return Experiment(
            recipe=RecipePoint(fingerprint=recorder.facts.recipe.fingerprint, value=recorder.facts.recipe.value),
            data={split: identity.to_wire() for split, identity in recorder.facts.data.items()},
            runtime=self.runtime(),
            code={"commit": source.commit, "dirty": source.patch_sha256},
        )


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """One object under its name; the members of a list, tuple or dict under `name.index` or `name.key`."""
    if value is None:
        return
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _flat(f"{name}.{i}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    else:
        yield name, value
