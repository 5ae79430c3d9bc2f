"""The files of one checkpoint generation: manifest, commit marker, ledger, receipts."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field

from lineage_schemas.base import Digest, Format, Number, Record, Sha256
from lineage_schemas.errors import FormatError, NewerFormatError
from lineage_schemas.ids import GENERATION_PATTERN, MAX_STEP, RUN_ID_PATTERN, SESSION_ID_PATTERN

FORMAT_NAME: Final = "lineage-checkpoint"
FORMAT_MAJOR: Final = 1
FORMAT: Final = Format(name=FORMAT_NAME, version="1.0")

Family = str
"""model, optimizer, scheduler, scaler, loader, rng, counters, or a family of the user's own."""

RuleVerdict = Literal["identical", "allowed", "noted", "fork", "refuse"]


class Finding(Record):
    """One line of the comparison between a saved experiment and the live one."""

    path: str
    saved: Any = None
    live: Any = None
    rule: str
    verdict: RuleVerdict


class RejectedCandidate(Record):
    """A generation that was found and not used."""

    name: str
    reason: str


class TensorInfo(Record):
    """dtype as safetensors writes it (`F32`, `BF16`, `I64`), shape, and the digest of the tensor's bytes."""

    dtype: str
    shape: list[Annotated[int, Field(ge=0)]]
    digest: Digest | None = None


class Artifact(Record):
    """One file of a generation; `path` is a plain file name inside its folder."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")]
    component: str
    rank: int = Field(default=0, ge=0)
    bytes: int = Field(ge=0)
    sha256: Sha256
    tensors: dict[str, TensorInfo] = {}


class Component(Record):
    """One registered piece of state, or the declared absence of a family with its reason."""

    name: str
    family: Family
    scope: Literal["global", "rank"] = "global"
    version: int = 1
    state: Literal["present", "absent"] = "present"
    reason: str | None = None
    details: dict[str, Any] = {}


class OptimizerGroup(Record):
    """One parameter group.

    Attributes:
        params: canonical names, in the group's order.
        hyper: values at the checkpoint, in tagged JSON; a restore puts them back.
        declared: values when the optimizer was tracked, before any step; a resume compares them.
    """

    params: list[str]
    hyper: dict[str, Any]
    declared: dict[str, Any] = {}


class OptimizerLayout(Record):
    name: str
    type: str
    groups: list[OptimizerGroup]


class Position(Record):
    """Where the generation stands; `semantics: completed` says that every counter counts finished things.

    Attributes:
        gradients: None on every parameter, zero tensors on some, or left over from the completed step (never saved:
            a loop that clears them before its next backward pass does not miss them).
    """

    step: int = Field(ge=0, le=MAX_STEP)
    num_updates: int = Field(ge=0)
    num_skipped: int = Field(default=0, ge=0)
    microbatch: int = 0
    num_tokens: int | None = None
    epoch: int | None = None
    gradients: Literal["cleared", "zeroed", "left over"] = "cleared"
    semantics: Literal["completed"] = "completed"


class ExpectedNext(Record):
    """What a right restore shows before its first step.

    Attributes:
        lr: learning rate per group, by optimizer.
        loader: digest of each loader's cursor, by name.
        rng: digest of the first draw of each stream, by stream, taken without advancing it.
    """

    lr: dict[str, list[Number]] = {}
    loader: dict[str, Digest] = {}
    rng: dict[str, Digest] = {}


class RunPoint(Record):
    """Who made the generation."""

    run: Annotated[str, Field(pattern=RUN_ID_PATTERN)]
    session: Annotated[str, Field(pattern=SESSION_ID_PATTERN)]
    parent: Annotated[str, Field(pattern=GENERATION_PATTERN)] | None = None


class RecipePoint(Record):
    fingerprint: Sha256
    value: Any = None


class Timing(Record):
    snapshot_s: float = Field(default=0.0, ge=0)
    write_s: float = Field(default=0.0, ge=0)
    fsync_s: float = Field(default=0.0, ge=0)


class Writer(Record):
    host: str
    pid: int


class ManifestFormat(Format):
    """Format of a manifest; `min_reader` is the oldest major.minor that understands this one."""

    min_reader: str = "1.0"


class Manifest(Record):
    """Everything a reader must know before it opens an artifact."""

    format: ManifestFormat = ManifestFormat(name=FORMAT_NAME, version="1.0")
    kind: Literal["training", "weights"]
    name: str
    created_at: AwareDatetime
    run: RunPoint
    position: Position
    expected: ExpectedNext = ExpectedNext()
    artifacts: list[Artifact]
    components: list[Component]
    optimizers: list[OptimizerLayout] = []
    aliases: dict[str, str] = {}
    recipe: RecipePoint
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    loaders: dict[str, dict[str, Any]] = {}
    runtime: dict[str, Any] = {}
    code: dict[str, Any] = {}
    writer: Writer
    timing: Timing = Timing()


class Receipt(Record):
    """What one rank of several wrote; rank 0's manifest needs exactly one per rank."""

    rank: int = Field(ge=0)
    world: int = Field(ge=1)
    name: str
    artifacts: list[Artifact]


class LedgerLine(Record):
    """One fact about a generation in `ledger.jsonl`: evidence, never needed to restore.

    Attributes:
        ts: Unix seconds, UTC.
        details: figures and reasons of the action (durations in `_s`, a fault's text, ...).
    """

    ts: float
    action: Literal["committed", "verified", "restored", "drilled", "pinned", "unpinned", "quarantined", "deleted"]
    checkpoint: str
    session: str | None = None
    ok: bool = True
    details: dict[str, Any] = {}


class Active(Record):
    """The content of ACTIVE: advice on where to look first, never truth."""

    name: Annotated[str, Field(pattern=GENERATION_PATTERN)]
    step: int = Field(ge=0, le=MAX_STEP)
    manifest_sha256: Sha256


_COMMIT = re.compile(rb"\Alineage-checkpoint (\d{1,6}) ([0-9a-f]{64})\n\Z")


def format_commit(manifest_sha256: str) -> bytes:
    """The bytes of COMMIT: one line that names the manifest's hash."""
    return f"lineage-checkpoint {FORMAT_MAJOR} {manifest_sha256}\n".encode("ascii")


def parse_commit(data: bytes, where: str) -> str:
    """The manifest's SHA-256 that a COMMIT names.

    Raises:
        NewerFormatError: the marker's version is above this reader's.
        FormatError: anything but the one line, torn or damaged.
    """
    found = _COMMIT.match(data)
    if not found:
        raise FormatError("the commit marker is damaged or torn", where, "an older generation may be whole")
    if int(found[1]) > FORMAT_MAJOR:
        raise NewerFormatError(
            f"{FORMAT_NAME} version {int(found[1])} is newer than this Lineage reads ({FORMAT_MAJOR})",
            where,
            "install a newer lineage-tracker to use this checkpoint",
        )
    return found[2].decode("ascii")
