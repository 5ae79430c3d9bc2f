"""Put a generation back: refuse everything that can be refused, hash everything, and only then change anything.

The order, which is the contract (CHECKPOINTS section 4)::

    discovery = discover(run_dir)
    candidate = discovery.newest()                        # None: this run never had a checkpoint
    plan = plan_restore(candidate, registry, context)     # compares; reads state.rNNNNN.json; raises with all findings
    restored = apply_restore(plan)                        # hashes every artifact, then changes live state
    batches = registry.loader().iterate()                 # building an iterator draws from the global generator
    restored.finish()                                     # random streams last; checks what comes next

`restore_newest` does the first four steps and goes on to the generation before when one turns out damaged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import torch
from pydantic import ValidationError

from lineage.capture.problem import describe_error
from lineage.checkpoint import compare, ledger, rng, tensorfile
from lineage.checkpoint.compare import Mode, Rule, Side
from lineage.checkpoint.components import GeneratorComponent, Problem, Saved, require_wire
from lineage.checkpoint.discover import Candidate, Discovery
from lineage.checkpoint.errors import (
    ArtifactError,
    ManifestMismatchError,
    PoisonedError,
    QuarantinedError,
    RestoreCheckError,
    ResumeRefusedError,
)
from lineage.checkpoint.loaders import LoaderComponent
from lineage.checkpoint.modules import ModuleComponent
from lineage.checkpoint.optimizers import OptimizerComponent
from lineage.checkpoint.quarantine import quarantine
from lineage.checkpoint.registry import Registry
from lineage.checkpoint.schedulers import ScalerComponent, SchedulerComponent
from lineage.checkpoint.staging import load_artifact, load_files
from lineage.checkpoint.store import STATE_FORMAT, Experiment
from lineage.checkpoint.tensors import DTYPES
from lineage.errors import FormatError, LineageError, NewerFormatError
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema
from lineage_schemas import tagged
from lineage_schemas.checkpoint import Finding
from lineage_schemas.ids import parse_generation_name

MAX_STATE_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RestoreContext(Experiment):
    """The experiment that wants to go on.

    Attributes:
        run: id of the live run; None when it does not exist yet.
        mode: `"resume"` (same run, everything must match) or `"fork"` (a new run linked to the checkpoint's).
        allow: paths or patterns of findings a person takes responsibility for (`"recipe.lr"`, `"runtime.*"`).
        rules: further rules, asked before the built-in table.
        quarantined: restore a quarantined generation all the same.
        session: id for the ledger line, where the session already has one.
        rank: whose files to load.
    """

    run: str | None = None
    mode: Mode = "resume"
    allow: Sequence[str] = ()
    rules: Sequence[Rule] = ()
    quarantined: bool = False
    session: str | None = None
    rank: int = 0


@dataclass(frozen=True)
class RestorePlan:
    """A restore that has passed every check that needs no tensor.

    Attributes:
        findings: all differences; none of them refuses.
    """

    candidate: Candidate
    registry: Registry
    context: RestoreContext
    findings: tuple[Finding, ...]
    state: Mapping[str, Any]
    streams: Mapping[str, Any]
    plan_s: float = 0.0

    @property
    def manifest(self) -> schema.Manifest:
        return self.candidate.manifest

    @property
    def forced(self) -> bool:
        """Whether a person's `allow` was needed."""
        return any(f.verdict == "allowed" and f.rule.startswith("allowed on purpose") for f in self.findings)


@dataclass
class Restored:
    """Live state as the checkpoint has it, random streams excepted until `finish`.

    Attributes:
        position: counters of the checkpoint; go on with step `position.step + 1`.
        findings: differences that were allowed, noted or forked, for the session's record.
        rejected: newer generations that could not be used, and why.
        forced: a person's `allow` was needed.
        proven: what `finish` checked and found right: `"learning rate"`, `"loader"`, `"rng"`.
        timing: seconds of `plan`, `load` (reading and hashing) and `apply`.
    """

    candidate: Candidate
    registry: Registry
    position: schema.Position
    findings: tuple[Finding, ...]
    forced: bool
    rejected: tuple[schema.RejectedCandidate, ...] = ()
    proven: tuple[str, ...] = ()
    timing: dict[str, float] = field(default_factory=dict)
    finished: bool = False
    _streams: Mapping[str, Any] = field(default_factory=dict)
    _same: bool = True
    _blames: bool = True
    _ledger: Callable[[dict[str, Any]], None] = field(default=lambda _details: None)

    @property
    def manifest(self) -> schema.Manifest:
        return self.candidate.manifest

    @property
    def name(self) -> str:
        """The generation's name."""
        return self.candidate.name

    def finish(self) -> tuple[str, ...]:
        """Put the random streams back and check what comes next; call it once the data iterator exists. Idempotent.

        Returns:
            What was proven: `"learning rate"`, `"loader"`, `"rng"`, as far as the checkpoint has them.

        Raises:
            RestoreCheckError: something differs from what the manifest expects; the registry is poisoned.
            PoisonedError: the restore had failed before.
        """
        self.registry.require_usable()
        if self.finished:
            return self.proven
        what = f"random state of {self.name} could not be restored"
        with _poisoning(self.registry, self.candidate if self._blames else None, what):
            rng.restore_streams(self._streams, self.registry.generators())
        self.proven = self._check_next()
        self.finished = True
        self._ledger({key: round(value, 6) for key, value in self.timing.items()})
        return self.proven

    def _check_next(self) -> tuple[str, ...]:
        expected = self.manifest.expected
        problems: list[str] = []
        proven: list[str] = []
        live_lr = {optimizer.name: optimizer.learning_rates() for optimizer in self.registry.optimizers()}
        if live_lr and not self._same:
            pass  # an allowed change of hyper-parameters may move the next learning rate
        elif live_lr:
            wrong = [n for n, saved in expected.lr.items() if not compare.same(saved, live_lr.get(n))]
            problems += [f"learning rates of {n}: expected {expected.lr[n]}, found {live_lr.get(n)}" for n in wrong]
            proven += [] if wrong else ["learning rate"]
        loaders = self.registry.loaders()
        if loaders and self._same:
            moved = [
                n for n, digest in expected.loader.items() if n in loaders and loaders[n].cursor_digest() != digest
            ]
            problems += [f"loader {n} does not stand where the checkpoint was made" for n in moved]
            proven += [] if moved else ["loader"]
        digests = rng.digest_streams(rng.capture_streams(self.registry.generators()))
        shifted = [n for n, digest in expected.rng.items() if digests.get(n) != digest]
        problems += [f"random stream {n} draws other values than expected" for n in shifted]
        proven += [] if shifted or not expected.rng else ["rng"]
        if problems:
            self.registry.poisoned = f"{self.name} was loaded, and {problems[0]}"
            if self._blames:
                _set_aside(self.candidate, "; ".join(problems)[:500])
            raise RestoreCheckError(
                "the restored state is not the one the checkpoint expects next: " + "; ".join(problems),
                str(self.candidate.path),
                "start a fresh process; if it happens again, this is a bug or a torch that draws differently",
            )
        return tuple(proven)


def live_side(registry: Registry, context: Experiment, run: str | None) -> Side:
    """The live experiment, flattened for `compare`."""
    description = registry.describe()
    return compare.side(
        run=run,
        components=description.components,
        tensors=description.tensors,
        optimizers=description.optimizers,
        aliases=description.aliases,
        loaders=description.loaders,
        recipe=context.recipe,
        model=context.model,
        data=context.data,
        runtime=context.runtime,
        code=context.code,
    )


def plan_restore(candidate: Candidate, registry: Registry, context: RestoreContext) -> RestorePlan:
    """Check everything about a restore that can be checked without loading a tensor; changes nothing.

    Raises:
        ResumeRefusedError: it would be another experiment; carries every finding, a table, and the way on.
        QuarantinedError: the generation is quarantined and the context does not ask for it.
        UndeclaredStateError: the registry's audit found state that nobody declared.
        ArtifactError, FormatError: the generation is damaged; an older one may be whole.
        PoisonedError: an earlier restore failed midway.
    """
    started = time.perf_counter()
    registry.require_usable()
    registry.seal()
    if candidate.quarantined is not None and not context.quarantined:
        raise QuarantinedError(
            f"{candidate.name} is quarantined: {candidate.quarantined}",
            str(candidate.path),
            "resume from an older generation, or pass quarantined=True if you know why it failed",
        )
    manifest = candidate.manifest
    live_run = manifest.run.run if context.run is None and context.mode == "resume" else context.run
    if context.mode == "fork":
        live_run = manifest.run.run  # another run is what a fork is
    findings = compare.compare(
        compare.side_of_manifest(manifest),
        live_side(registry, context, live_run),
        mode=context.mode,
        allow=context.allow,
        rules=context.rules,
    )
    state, streams = _read_state(candidate, context.rank)
    if not any(_blocks_checks(finding) for finding in findings):
        findings = compare.order([*findings, *_check_components(registry, candidate, state, findings, context)])
        findings = compare.order([*findings, *_check_streams(registry, streams, context)])
    stopping = compare.refusing(findings, context.mode)
    if stopping:
        count = "1 difference refuses" if len(stopping) == 1 else f"{len(stopping)} differences refuse"
        raise ResumeRefusedError(
            f"{candidate.name} belongs to another experiment: {count}, {stopping[0].path} first; nothing was changed",
            str(candidate.path),
            compare.way_on(findings),
            findings,
            compare.table(findings),
        )
    return RestorePlan(candidate, registry, context, tuple(findings), state, streams, time.perf_counter() - started)


def _blocks_checks(finding: Finding) -> bool:
    """Whether one side lacks what a component's own check would look at."""
    return finding.verdict == "refuse" and not compare.is_forkable(finding)


def _read_state(candidate: Candidate, rank: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    artifact = _artifact(candidate.manifest, "state", rank, candidate)
    path = candidate.path / artifact.path
    data = tensorfile.read_bytes(path, limit=MAX_STATE_BYTES, num_bytes=artifact.bytes, sha256=artifact.sha256)
    try:
        state = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ManifestMismatchError(f"the state is not JSON: {error}", str(path), kind="header") from error
    match state:
        case {"format": {"name": str(name), "version": str(version)}, "components": dict(), "rng": encoded, **rest}:
            pass
        case _:
            raise ManifestMismatchError("the state lacks its format, components or rng", str(path), kind="header")
    if name != STATE_FORMAT["name"]:
        raise FormatError(f"this is a {name!r} file", str(path))
    if version.split(".")[0] != "1":
        raise NewerFormatError(f"{name} version {version} is newer than this Lineage reads", str(path))
    streams = tagged.decode(encoded, where="rng")
    if not isinstance(streams, dict):
        raise ManifestMismatchError("rng is not a table of streams", str(path), kind="header")
    try:
        counters = schema.Position.model_validate(rest.get("counters"))
    except ValidationError as error:
        raise ManifestMismatchError("the counters are malformed", str(path), kind="header") from error
    if counters != candidate.manifest.position:
        raise ManifestMismatchError("counters and manifest disagree on the position", str(path), kind="manifest")
    return state, streams


def _artifact(manifest: schema.Manifest, component: str, rank: int, candidate: Candidate) -> schema.Artifact:
    found = [a for a in manifest.artifacts if a.component == component and a.rank == rank]
    if len(found) != 1:
        raise ManifestMismatchError(
            f"the manifest has {len(found)} files of {component!r} for rank {rank}",
            str(candidate.path),
            kind="manifest",
        )
    return found[0]


def _saved_for(
    name: str, state: Mapping[str, Any], files: Mapping[str, Mapping[str, torch.Tensor]], where: str
) -> Saved:
    pool = {**files.get("optim", {}), **files.get("extra", {})}

    def tensor(wanted: str) -> torch.Tensor:
        if wanted not in pool:
            raise FormatError(f"component {name!r} refers to tensor {wanted!r}, which no file has", where)
        return pool[wanted]

    return Saved(require_wire(state["components"], name, where), files.get(name, {}), tensor)


def _check_components(
    registry: Registry,
    candidate: Candidate,
    state: Mapping[str, Any],
    findings: Sequence[Finding],
    context: RestoreContext,
) -> list[Finding]:
    """Each component's own look at its saved state, with empty stand-ins for the tensors."""
    stand_ins: dict[str, dict[str, torch.Tensor]] = {}
    for artifact in candidate.manifest.artifacts:
        if artifact.rank == context.rank and artifact.component != "state":
            stand_ins[artifact.component] = {
                name: _stand_in(name, info, candidate) for name, info in artifact.tensors.items()
            }
    problems: list[Problem] = []
    where = str(candidate.path)
    for name, component in registry.components.items():
        if not isinstance(component, GeneratorComponent):
            problems += component.check(_saved_for(name, state, stand_ins, where))
    known = {finding.path for finding in findings}
    return [
        compare.judge(
            p.path,
            p.saved,
            p.live,
            Rule(".*", "refuse", p.rule, forkable=p.loadable),
            mode=context.mode,
            allow=context.allow,
        )
        for p in problems
        if p.path not in known
    ]


def _stand_in(name: str, info: schema.TensorInfo, candidate: Candidate) -> torch.Tensor:
    dtype = DTYPES.get(info.dtype)
    if dtype is None:
        raise ManifestMismatchError(
            f"tensor {name[:200]!r} has dtype {info.dtype!r}, which this torch does not know",
            str(candidate.path),
            kind="manifest",
        )
    return torch.empty(info.shape, dtype=dtype, device="meta")


def _check_streams(registry: Registry, streams: Mapping[str, Any], context: RestoreContext) -> list[Finding]:
    return [
        compare.judge(
            f"component.rng.{name}",
            saved,
            live,
            Rule(".*", "refuse", "a random stream cannot go on here", forkable=False),
            mode=context.mode,
            allow=(),
        )
        for name, saved, live in rng.check_streams(streams, registry.generators())
    ]


# ---- loading ---------------------------------------------------------------------------------------------------------


def apply_restore(plan: RestorePlan) -> Restored:
    """Load a generation into the live objects: model, optimizers, schedulers, scalers, loaders.

    Every artifact is read into memory of its own and hashed in the same pass; the first live byte changes only when
    all hashes were right. Random streams come last, in `Restored.finish`.

    Raises:
        ArtifactError: a file is damaged; nothing was changed, and an older generation may be whole.
        PoisonedError: it failed after the first change; the registry can be neither trained on nor saved.
    """
    plan.registry.require_usable()
    started = time.perf_counter()
    files = load_files(plan.candidate, rank=plan.context.rank)
    loaded = time.perf_counter()
    what = f"restoring {plan.candidate.name} failed midway"
    with _poisoning(plan.registry, plan.candidate if _blames(plan) else None, what):
        _mutate(plan, files)
    applied = time.perf_counter()
    run_dir = _run_of(plan.candidate)

    def note(details: dict[str, Any]) -> None:
        # Evidence only: a read-only disk must not stop a resume.
        with contextlib.suppress(OSError):
            if run_dir is None:
                return
            ledger.append(
                run_dir.ledger, "restored", plan.candidate.name, session=plan.context.session, details=details
            )

    return Restored(
        candidate=plan.candidate,
        registry=plan.registry,
        position=plan.manifest.position,
        findings=plan.findings,
        forced=plan.forced,
        timing={"plan_s": plan.plan_s, "load_s": loaded - started, "apply_s": applied - loaded},
        _streams=plan.streams,
        _same=not _kept_live(plan.findings),
        _blames=_blames(plan),
        _ledger=note,
    )


def _kept_live(findings: Sequence[Finding]) -> frozenset[str]:
    """Paths whose live value stays although the saved one differs: it was allowed or forked."""
    return frozenset(
        finding.path
        for finding in findings
        if finding.verdict in ("allowed", "fork", "noted")
        and finding.path.startswith(("component.", "optimizer.", "loader."))
    )


@contextlib.contextmanager
def _poisoning(registry: Registry, candidate: Candidate | None, what: str) -> Iterator[None]:
    """From here on live state changes: an error poisons the registry, and quarantines the family of `candidate`.

    Memory that ran out is the machine's fault, and quarantines nothing.
    """
    try:
        yield
    except BaseException as error:
        registry.poisoned = f"{what}: {error}"
        if not isinstance(error, Exception):
            raise
        if candidate is not None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            _set_aside(candidate, f"{what}: {describe_error(error)}"[:500])
        raise PoisonedError(
            f"{what}: {type(error).__name__}: {error}", hint="start a fresh process; the checkpoint is unchanged"
        ) from error


def _blames(plan: RestorePlan) -> bool:
    """Whether a failure is the generation's: not where a fork or a person's `allow` changed what it is loaded into."""
    return plan.context.mode == "resume" and not plan.forced


def _set_aside(candidate: Candidate, reason: str) -> None:
    run_dir = _run_of(candidate)
    with contextlib.suppress(OSError):  # a read-only run can still refuse
        if run_dir is not None:
            quarantine(run_dir, candidate.manifest, reason)


def _run_of(candidate: Candidate) -> RunDir | None:
    """The run whose ledger speaks of a generation; None for a folder that lies somewhere else."""
    root = candidate.path.absolute().parent
    return RunDir(root.parent) if root.name == "checkpoints" else None


def _mutate(plan: RestorePlan, files: dict[str, dict[str, torch.Tensor]]) -> None:
    registry, where = plan.registry, str(plan.candidate.path)
    kept = _kept_live(plan.findings)
    layouts = {layout.name: layout for layout in plan.manifest.optimizers}
    components = list(registry.components.values())

    def saved(name: str) -> Saved:
        found = _saved_for(name, plan.state, files, where)
        found.keep_live = kept
        return found

    # Schedulers after optimizers: some recompute the groups' learning rates from their own state.
    staged: tuple[Callable[[object], bool], ...] = (
        lambda c: isinstance(c, ModuleComponent),
        lambda c: isinstance(c, OptimizerComponent),
        lambda c: isinstance(c, SchedulerComponent),
        lambda c: isinstance(c, ScalerComponent),
        lambda c: (
            not isinstance(
                c,
                ModuleComponent
                | OptimizerComponent
                | SchedulerComponent
                | ScalerComponent
                | LoaderComponent
                | GeneratorComponent,
            )
        ),
        lambda c: isinstance(c, LoaderComponent),
    )
    for wanted in staged:
        for component in components:
            if wanted(component):
                if isinstance(component, OptimizerComponent):
                    component.restore_layout(saved(component.name), layouts[component.name])
                else:
                    component.restore(saved(component.name))


def restore_newest(discovery: Discovery, registry: Registry, context: RestoreContext) -> Restored | None:
    """Restore the newest generation that is whole, or say why none can be.

    A damaged generation is passed over for the one before it, and named in `Restored.rejected`; a refusal is not: an
    older checkpoint of another experiment is still another experiment.

    Returns:
        None when the run never had a checkpoint.

    Raises:
        NoUsableCheckpointError: there are checkpoints and none is usable.
        ResumeRefusedError and the other errors of `plan_restore` and `apply_restore`.
    """
    rejected: list[schema.RejectedCandidate] = []
    for candidate in discovery.usable(quarantined=context.quarantined):
        try:
            restored = apply_restore(plan_restore(candidate, registry, context))
        except FormatError as error:  # ArtifactError is one: damage, found before anything was changed
            if registry.poisoned is not None:
                raise
            rejected.append(schema.RejectedCandidate(name=candidate.name, reason=str(error)))
            continue
        chosen = (candidate.ordinal, candidate.step)
        restored.rejected = (
            *rejected,
            *(r for r in discovery.rejected if _order_of(r.name) > chosen),
        )
        return restored
    discovery.raise_if_lost(quarantined=context.quarantined, more=tuple(rejected))
    return None


def _order_of(name: str) -> tuple[int, int]:
    step, ordinal = parse_generation_name(name) or (0, 0)
    return ordinal, step


__all__ = [
    "ArtifactError",
    "LineageError",
    "RestoreContext",
    "RestorePlan",
    "Restored",
    "apply_restore",
    "live_side",
    "load_artifact",
    "load_files",
    "plan_restore",
    "restore_newest",
]
