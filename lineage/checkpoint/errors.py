"""What can go wrong with a checkpoint, one class per condition that a caller would treat differently."""

from __future__ import annotations

from collections.abc import Sequence

from lineage.errors import CheckpointError, DamagedError
from lineage_schemas.checkpoint import Finding, RejectedCandidate

__all__ = [
    "ArtifactError",
    "BackgroundSaveError",
    "CheckpointError",
    "DiskSpaceError",
    "LoaderRefusedError",
    "ManifestMismatchError",
    "NoUsableCheckpointError",
    "PoisonedError",
    "QuarantinedError",
    "RestoreCheckError",
    "ResumeRefusedError",
    "SaveRefusedError",
    "UndeclaredState",
    "UndeclaredStateError",
    "UnsupportedStateError",
    "WeightsOnlyError",
]


class UndeclaredStateError(CheckpointError):
    """Something stateful is reachable from what was tracked, and nobody said how it is saved.

    Attributes:
        paths: where each was found, e.g. `scheduler.optimizer` or `train_loader.sampler.generator`.
    """

    def __init__(self, what: str, where: str = "", hint: str = "", paths: Sequence[str] = ()) -> None:
        super().__init__(what, where, hint)
        self.paths = tuple(paths)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.hint, self.paths))


UndeclaredState = UndeclaredStateError
"""The name the design uses."""


class UnsupportedStateError(CheckpointError):
    """A value or tensor that the format cannot hold without loss; nothing was written."""


class LoaderRefusedError(CheckpointError):
    """A data loader whose position cannot be saved exactly; the hint is the line to write instead."""


class SaveRefusedError(CheckpointError):
    """The moment is wrong for a checkpoint (accumulation pending, a restore that failed midway, ...)."""


class DiskSpaceError(CheckpointError):
    """The disk has no room for another generation; nothing was written, and what was there is untouched."""


class BackgroundSaveError(CheckpointError):
    """The save that went on in the background failed; it is raised at the next boundary, never lost."""


class ArtifactError(DamagedError):
    """A file of a generation is not what the hash chain says; nothing live was changed.

    Attributes:
        kind: missing, extra, short, long, flipped, link, header, manifest, marker.
    """

    def __init__(self, what: str, where: str = "", hint: str = "", kind: str = "flipped") -> None:
        super().__init__(what, where, hint)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.hint, self.kind))


class ManifestMismatchError(ArtifactError):
    """A manifest contradicts itself or the files beside it, although its hash is right: forged, or a writer's bug."""


class NoUsableCheckpointError(CheckpointError):
    """Checkpoints exist and none can be used. Never a reason to start from step 0.

    Attributes:
        rejected: each generation found, and why it was rejected.
    """

    def __init__(self, what: str, where: str = "", hint: str = "", rejected: Sequence[RejectedCandidate] = ()) -> None:
        super().__init__(what, where, hint)
        self.rejected = tuple(rejected)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.hint, self.rejected))


class ResumeRefusedError(CheckpointError):
    """Going on would be another experiment. Nothing live was changed.

    Attributes:
        findings: every difference found, refusing or not.
        table: the findings as a text table, for a terminal.
    """

    def __init__(
        self, what: str, where: str = "", hint: str = "", findings: Sequence[Finding] = (), table: str = ""
    ) -> None:
        super().__init__(what, where, hint)
        self.findings = tuple(findings)
        self.table = table

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.hint, self.findings, self.table))

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.table}" if self.table else text


class WeightsOnlyError(CheckpointError):
    """A weights-only export was taken for a checkpoint; it has no optimizer, no position and no random state."""


class QuarantinedError(CheckpointError):
    """The generation's family failed a restore before; it is used only when asked for by name and flag."""


class PoisonedError(CheckpointError):
    """A restore failed after it had begun to change live state; neither train on it nor save it."""


class RestoreCheckError(PoisonedError):
    """Everything was loaded, and what comes next is not what the manifest expects."""
