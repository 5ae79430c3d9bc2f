"""run.json: who worked on a run, from what, and with what."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from lineage_schemas.base import ClosedRecord, Digest, Format, Number, Record, Sha256
from lineage_schemas.checkpoint import Finding, RejectedCandidate
from lineage_schemas.ids import GENERATION_PATTERN, MAX_ORDINAL, MAX_STEP, RUN_ID_PATTERN, SESSION_ID_PATTERN

FORMAT_NAME: Final = "lineage-run"
FORMAT_MAJOR: Final = 1
FORMAT: Final = Format(name=FORMAT_NAME, version="1.0")

RunIdField = Annotated[str, Field(pattern=RUN_ID_PATTERN)]
SessionIdField = Annotated[str, Field(pattern=SESSION_ID_PATTERN)]
GenerationField = Annotated[str, Field(pattern=GENERATION_PATTERN)]

SessionStatus = Literal["running", "completed", "failed", "interrupted", "preempted", "killed"]
Verdict = Literal["exact", "within_tolerance", "diverged", "unproven"]


class Recipe(Record):
    """Everything that determines training, fully resolved.

    Attributes:
        value: the configuration in tagged JSON (`lineage_schemas.tagged`); secrets replaced by masks.
        fingerprint: SHA-256 over the canonical form of `value` (sorted keys, compact, UTF-8).
        masked: dotted paths of the fields whose values were masked.
    """

    value: Any = None
    fingerprint: Sha256
    masked: list[str] = []


class Source(Record):
    """The revision the session ran from.

    Attributes:
        commit: full hash, None outside of git or before a first commit.
        dirty: whether tracked files differ from `commit`.
        patch: path of the diff inside the run folder; None when clean or larger than the limit.
        patch_sha256: digest of the diff, also when it was too large to keep.
        patch_bytes: size of the diff.
        remote: fetch URL with credentials removed.
        root: name of the working tree's top folder (not its path).
        num_untracked: untracked files that git does not ignore.
        problem: why something above is missing.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    patch: str | None = None
    patch_sha256: Sha256 | None = None
    patch_bytes: int | None = None
    remote: str | None = None
    root: str | None = None
    num_untracked: int | None = None
    problem: str | None = None


class Gpu(Record):
    name: str
    memory_bytes: int | None = None
    capability: str | None = None


class Environment(Record):
    """Where the session ran, as far as it can change numerics or be needed to rebuild it.

    Attributes:
        packages: installed distribution to version.
        variables: allow-listed environment variables.
        threads: intra-op, inter-op and OMP thread counts by name.
        determinism: flags such as deterministic_algorithms, cudnn_benchmark, float32_matmul_precision.
    """

    python: str
    implementation: str
    platform: str
    machine: str
    libc: str | None = None
    cpu: str | None = None
    num_cpus: int | None = None
    memory_bytes: int | None = None
    packages: dict[str, str] = {}
    torch: str | None = None
    torch_git: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    driver: str | None = None
    gpus: list[Gpu] = []
    blas: str | None = None
    threads: dict[str, int] = {}
    determinism: dict[str, bool | int | str | None] = {}
    variables: dict[str, str] = {}


class DataIdentity(Record):
    """What a split is made of.

    Attributes:
        fingerprint: the user's own words, or a digest made by `lineage.fingerprint_files`.
        method: `given`, `sampled` (names, sizes, sampled content) or `content` (every byte).
    """

    fingerprint: str
    method: Literal["given", "sampled", "content"] = "given"
    num_files: int | None = None
    size_bytes: int | None = None
    num_samples: int | None = None


class Start(Record):
    """What a session began from.

    Attributes:
        kind: `fresh` (step 0), `resume` (a checkpoint of this run), `fork` (of another run).
        step: steps complete at the start; the first step trained is `step + 1`.
        checkpoint: generation restored; None for fresh.
        run: run that made it; None when this one.
        session: session that made it.
        findings: the comparison of saved and live, except what was identical.
        rejected: newer candidates that could not be used, with the reason.
        forced: findings the user overrode on purpose.
    """

    kind: Literal["fresh", "resume", "fork"]
    step: int = Field(default=0, ge=0, le=MAX_STEP)
    checkpoint: GenerationField | None = None
    run: RunIdField | None = None
    session: SessionIdField | None = None
    findings: list[Finding] = []
    rejected: list[RejectedCandidate] = []
    forced: bool = False


class Tolerance(ClosedRecord):
    """What a continuation may differ by, declared before the session trains.

    A field agrees when |after - before| <= atol + rtol * |before|. Batch identity, RNG digests and the start step
    are always exact.
    """

    rtol: float = Field(default=0.0, ge=0)
    atol: float = Field(default=0.0, ge=0)
    reason: str = ""


class FirstDifference(Record):
    """The first field, in causal order, that two attempts at one step do not share.

    Attributes:
        field: `start_step`, `batch`, `rng`, `lr`, `scale`, `loss`, `grad_norm`, or a metric named beforehand.
        part: which one of several, such as an optimizer's group (`adamw[0]`) or a scaler.
        before: what the earlier attempt recorded.
        after: what the resumed session recorded.
    """

    step: int = Field(ge=-MAX_STEP, le=MAX_STEP)
    field: str
    part: str | None = None
    before: Number | str | None = None
    after: Number | str | None = None


class Continuation(Record):
    """Whether a resume carried on the same experiment, and how that is known.

    Attributes:
        compared_steps: steps trained by both sessions and compared.
        against: session whose attempts were compared.
        proven: what the manifest's expectations proved at restore (e.g. "learning rate", "batch", "rng").
    """

    verdict: Verdict
    from_step: int = Field(ge=0, le=MAX_STEP)
    compared_steps: int = Field(ge=0, le=MAX_STEP)
    against: SessionIdField | None = None
    first_difference: FirstDifference | None = None
    proven: list[str] = []
    reason: str = ""


class Session(Record):
    """One process working on a run, from start to end or death.

    Attributes:
        status: as last written by the session itself or by its successor; a reader derives the state from it and
            the lock (docs/format.md, "State").
        reason: for `failed` the exception, for `preempted` the signal, for `killed` what is known.
        runtime: flags and shapes that change execution (device kind, precision, world, accumulation).
        argv: redacted command line.
        checkpoints: generations this session committed, in order.
        last_step: last completed step it logged, None when none.
    """

    id: SessionIdField
    ordinal: int = Field(ge=1, le=MAX_ORDINAL)
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    status: SessionStatus = "running"
    reason: str | None = None
    pid: int
    host: str
    rank: int = 0
    world: int = 1
    argv: list[str] = []
    recipe: Recipe
    source: Source
    environment: Digest
    runtime: dict[str, Any] = {}
    data: dict[str, DataIdentity] = {}
    start: Start
    checkpoints: list[GenerationField] = []
    continuation: Continuation | None = None
    last_step: int | None = Field(default=None, ge=0, le=MAX_STEP)
    tolerance: Tolerance | None = None


class Parent(Record):
    """Where a forked run came from."""

    run: RunIdField
    session: SessionIdField | None = None
    checkpoint: GenerationField
    step: int = Field(ge=0, le=MAX_STEP)


class Run(Record):
    """The whole of run.json.

    Attributes:
        environments: by digest, each once, however many sessions share it.
    """

    format: Format = FORMAT
    id: RunIdField
    name: str
    created_at: AwareDatetime
    tags: list[str] = []
    notes: str = ""
    parent: Parent | None = None
    sessions: list[Session] = []
    environments: dict[Digest, Environment] = {}

    @model_validator(mode="after")
    def _tell_sessions_apart(self) -> Self:
        """No two sessions share an id or an ordinal: a history of such ones could go in a circle."""
        for name in ("id", "ordinal"):
            values = [getattr(session, name) for session in self.sessions]
            if len(set(values)) != len(values):
                raise ValueError(f"two sessions have the same {name}")
        return self
