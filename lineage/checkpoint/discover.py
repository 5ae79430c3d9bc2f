"""Find the generations of a run that are whole as far as their chain of hashes says, newest first.

Nothing is guessed: a folder without COMMIT was never published; a committed one whose manifest or sizes are wrong is
rejected with the reason; and when generations exist but none can be used, that is an error, never step 0. Artifact
hashes are not computed here but in the pass that loads them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from lineage.checkpoint import ledger, tensorfile
from lineage.checkpoint.errors import (
    ArtifactError,
    ManifestMismatchError,
    NoUsableCheckpointError,
    WeightsOnlyError,
)
from lineage.checkpoint.quarantine import quarantine_of, quarantined_families
from lineage.errors import FormatError, NewerFormatError, NotFoundError
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema
from lineage_schemas.base import check_format
from lineage_schemas.ids import parse_generation_name

MAX_MANIFEST_BYTES: Final = 512 << 20
READER_VERSION: Final = (1, 0)


@dataclass(frozen=True)
class Candidate:
    """A committed generation whose manifest is right and whose files have the right sizes.

    Attributes:
        manifest_sha256: what COMMIT names.
        quarantined: why a restore of it needs a flag; None when it needs none.
    """

    name: str
    path: Path
    step: int
    ordinal: int
    manifest: schema.Manifest
    manifest_sha256: str
    quarantined: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(artifact.bytes for artifact in self.manifest.artifacts)


@dataclass(frozen=True)
class Discovery:
    """What lies in a run's `checkpoints/`.

    Attributes:
        candidates: newest first: by session, then by step within it.
        rejected: committed once, and not usable now, with the reason.
        incomplete: folders without COMMIT: saves that never finished.
        unknown: names that are neither a generation nor one of the files that belong there.
        notes: what is odd but hinders nothing, e.g. an ACTIVE that points at an older generation.
    """

    path: Path
    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[schema.RejectedCandidate, ...] = ()
    incomplete: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def newest(self, *, quarantined: bool = False) -> Candidate | None:
        """The newest candidate, or None when this run never had a checkpoint.

        Args:
            quarantined: take quarantined ones too.

        Raises:
            NoUsableCheckpointError: generations exist and none can be used; lists why.
        """
        usable = self.usable(quarantined=quarantined)
        if usable:
            return usable[0]
        self.raise_if_lost(quarantined=quarantined)
        return None

    def usable(self, *, quarantined: bool = False) -> tuple[Candidate, ...]:
        """Candidates newest first, without quarantined ones unless asked for."""
        return tuple(c for c in self.candidates if quarantined or c.quarantined is None)

    def raise_if_lost(self, *, quarantined: bool = False, more: tuple[schema.RejectedCandidate, ...] = ()) -> None:
        """Raise when something was found although nothing is usable.

        Raises:
            NoUsableCheckpointError: it was.
        """
        held = () if quarantined else tuple(c for c in self.candidates if c.quarantined is not None)
        rejected = (
            *more,
            *self.rejected,
            *(schema.RejectedCandidate(name=c.name, reason=f"quarantined: {c.quarantined}") for c in held),
        )
        if rejected:
            listed = "".join(f"\n  {r.name}: {r.reason}" for r in rejected)
            raise NoUsableCheckpointError(
                f"{len(rejected)} checkpoints were found and none can be used{listed}",
                str(self.path),
                "`lineage verify` says what is damaged; nothing starts from step 0 by itself",
                rejected,
            )


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a run's `checkpoints/` or `exports/`, by name; nothing when there is no such folder.

    Raises:
        ArtifactError: it is a link, or may not be read. Never "nothing": that would start a run from step 0.
    """
    if folder.is_symlink():
        raise ArtifactError(
            f"{folder.name} is a symbolic link; it must be a folder of the run's own",
            str(folder),
            "move what it points at here, or put the whole folder of runs on the other disk",
            kind="link",
        )
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArtifactError(f"{folder.name} cannot be read: {error.strerror}", str(folder), kind="link") from error


def discover(run_dir: RunDir | Path) -> Discovery:
    """Look at every generation of a run; reads manifests, no tensors, and changes nothing."""
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    root = layout.checkpoints_dir
    entries = scan_folder(root)
    if not entries:
        return Discovery(root)
    lines = ledger.read(layout.ledger)
    standings, held = ledger.standings(lines), quarantined_families(lines)
    candidates: list[Candidate] = []
    rejected: list[schema.RejectedCandidate] = []
    incomplete: list[str] = []
    unknown: list[str] = []
    for entry in entries:
        if entry.name in ("ACTIVE", "ledger.jsonl") or (entry.name.startswith(".") and entry.name.endswith(".tmp")):
            continue
        if parse_generation_name(entry.name) is None or not entry.is_dir(follow_symlinks=False):
            unknown.append(entry.name)
            continue
        standing = standings.get(entry.name, ledger.Standing())
        if not (root / entry.name / "COMMIT").exists():
            if standing.committed_at is not None and not standing.deleted:
                rejected.append(
                    schema.RejectedCandidate(
                        name=entry.name, reason="COMMIT is missing, and the ledger says it was there"
                    )
                )
            else:
                incomplete.append(entry.name)
            continue
        try:
            candidate = read_candidate(root / entry.name)
            reason = quarantine_of(candidate.manifest, standing, held)
            candidates.append(dataclasses.replace(candidate, quarantined=reason))
        except (FormatError, WeightsOnlyError) as error:
            rejected.append(schema.RejectedCandidate(name=entry.name, reason=str(error)))
    candidates.sort(key=lambda c: (c.ordinal, c.step, c.manifest.created_at), reverse=True)
    seen = {entry.name for entry in entries}
    for name, standing in standings.items():
        if standing.committed_at is not None and not standing.deleted and name not in seen:
            rejected.append(
                schema.RejectedCandidate(name=name, reason="the folder is gone, and was not deleted by Lineage")
            )
    notes, stale = _look_at_active(layout, candidates)
    rejected += [r for r in stale if r.name not in {known.name for known in rejected}]
    if rejected:
        deleted = ledger.deleted_since(layout.ledger)
        rejected = [r for r in rejected if r.name not in deleted or os.path.lexists(root / r.name / "COMMIT")]
    rejected.sort(key=lambda r: parse_generation_name(r.name) or (0, 0), reverse=True)
    return Discovery(root, tuple(candidates), tuple(rejected), tuple(incomplete), tuple(unknown), tuple(notes))


def read_active(layout: RunDir) -> schema.Active | None:
    """What ACTIVE says; None when there is none.

    Raises:
        ArtifactError: it is damaged.
    """
    if not os.path.lexists(layout.active):
        return None
    data = tensorfile.read_bytes(layout.active, limit=1 << 16)
    try:
        return schema.Active.model_validate_json(data)
    except ValidationError as error:
        raise ArtifactError("ACTIVE is damaged", str(layout.active), "it is advice only", kind="active") from error


def _look_at_active(layout: RunDir, candidates: list[Candidate]) -> tuple[list[str], list[schema.RejectedCandidate]]:
    try:
        active = read_active(layout)
    except ArtifactError as error:
        return [str(error)], []
    if active is None:
        return [], []
    for candidate in candidates:
        if candidate.name == active.name:
            if candidate.manifest_sha256 != active.manifest_sha256:
                return [f"ACTIVE names {active.name} with another manifest's hash"], []
            if candidate is not candidates[0]:
                return [f"ACTIVE points at {active.name}, and {candidates[0].name} is newer"], []
            return [], []
    reason = "ACTIVE points at it, and it is not usable"
    return [f"ACTIVE points at {active.name}, which is not usable"], [
        schema.RejectedCandidate(name=active.name, reason=reason)
    ]


def read_candidate(folder: Path, *, moved: bool = False) -> Candidate:
    """Check COMMIT, manifest and sizes of one generation.

    Args:
        folder: the generation's folder.
        moved: accept a folder whose name is not the manifest's (`whence` does, resume does not).

    Raises:
        NotFoundError: no such folder.
        WeightsOnlyError: it is an export.
        NewerFormatError: a newer Lineage wrote it.
        ArtifactError, FormatError: damaged, forged or never ours.
    """
    if not folder.is_dir():
        raise NotFoundError("there is no such checkpoint", str(folder))
    if folder.is_symlink() and not moved:
        raise ArtifactError(
            "the checkpoint is a symbolic link, not a folder of the run's own", str(folder), kind="link"
        )
    manifest, sha256 = read_manifest(folder)
    if manifest.kind != "training":
        raise WeightsOnlyError(
            f"{folder.name} is a weights-only export: it has no optimizer, no data position and no random state",
            str(folder),
            "load it with the safetensors library, or resume from a generation in checkpoints/",
        )
    step, ordinal = check_name(folder, manifest, moved=moved)
    check_files(folder, manifest)
    return Candidate(manifest.name, folder, step, ordinal, manifest, sha256)


def check_name(folder: Path, manifest: schema.Manifest, *, moved: bool = False) -> tuple[int, int]:
    """Step and session ordinal of a training generation, on which folder, manifest and name agree.

    Raises:
        ManifestMismatchError: they do not; `moved` as for `read_candidate`.
    """
    parsed = parse_generation_name(manifest.name)
    if parsed is None:
        raise ManifestMismatchError(f"the manifest's name {manifest.name!r} is no generation's", str(folder))
    if manifest.name != folder.name and not moved:
        raise ManifestMismatchError(
            f"the folder is named {folder.name} and its manifest {manifest.name}", str(folder), kind="manifest"
        )
    if parsed[0] != manifest.position.step:
        raise ManifestMismatchError(
            f"the name says step {parsed[0]}, the position {manifest.position.step}", str(folder), kind="manifest"
        )
    return parsed


def read_manifest(folder: Path) -> tuple[schema.Manifest, str]:
    """The manifest that COMMIT vouches for, and its hash.

    Raises:
        NewerFormatError: a newer Lineage wrote it.
        ArtifactError, FormatError: marker or manifest missing, damaged or not ours.
    """
    try:
        marker = tensorfile.read_bytes(folder / "COMMIT", limit=4096)
    except ArtifactError as error:
        raise ArtifactError(error.what, error.where, "it was never committed", kind="marker") from error
    expected = schema.parse_commit(marker, str(folder / "COMMIT"))
    path = folder / "manifest.json"
    data = tensorfile.read_bytes(path, limit=MAX_MANIFEST_BYTES)
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise ArtifactError(
            f"SHA-256 of the manifest is {found}, COMMIT says {expected}",
            str(path),
            "the manifest or its marker was changed after the commit",
            "manifest",
        )
    try:
        manifest = schema.Manifest.model_validate_json(data)
    except ValidationError as error:
        newer = _newer_format(data)
        if newer:
            raise NewerFormatError(newer, str(path), "install a newer lineage-tracker to use it") from error
        first = error.errors(include_url=False, include_input=False)[0]
        place = f" at {'.'.join(map(str, first['loc']))}" if first["loc"] else ""
        raise ManifestMismatchError(
            f"the manifest is malformed{place}: {first['msg']}",
            str(path),
            kind="manifest",
        ) from error
    check_format(manifest.format, name=schema.FORMAT_NAME, major=schema.FORMAT_MAJOR, where=str(path))
    stated = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", manifest.format.min_reader)
    if stated is None:
        raise ManifestMismatchError("the manifest's min_reader is no version", str(path), kind="manifest")
    if (int(stated[1]), int(stated[2])) > READER_VERSION:
        raise NewerFormatError(
            f"the manifest needs a reader of version {manifest.format.min_reader}, this one is 1.0",
            str(path),
            "install a newer lineage-tracker to use it",
        )
    return manifest, found


def _newer_format(data: bytes) -> str | None:
    """The reason when an unreadable manifest says that a newer Lineage wrote it."""
    import orjson

    try:
        version = str(orjson.loads(data)["format"]["version"])
        major = int(version.split(".", maxsplit=1)[0])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return f"manifest version {version} is newer than this Lineage reads (1.x)" if major > schema.FORMAT_MAJOR else None


def check_files(folder: Path, manifest: schema.Manifest) -> None:
    """Every artifact is a plain file of its stated size inside the folder, and named once.

    Raises:
        ManifestMismatchError: a name twice, or names that belong to the protocol.
        ArtifactError: missing, short, long, or a link.
    """
    counts = Counter(artifact.path for artifact in manifest.artifacts)
    for path, count in counts.items():
        if count > 1 or path in ("manifest.json", "COMMIT"):
            raise ManifestMismatchError(f"the manifest names {path!r} twice or wrongly", str(folder), kind="manifest")
    for artifact in manifest.artifacts:
        path_on_disk = folder / artifact.path
        try:
            found = path_on_disk.lstat()
        except FileNotFoundError as error:
            raise ArtifactError(f"{artifact.path} is missing", str(folder), kind="missing") from error
        if not stat.S_ISREG(found.st_mode):
            raise ArtifactError(f"{artifact.path} is not a plain file", str(folder), kind="link")
        if found.st_size != artifact.bytes:
            kind = "short" if found.st_size < artifact.bytes else "long"
            raise ArtifactError(
                f"{artifact.path} has {found.st_size} bytes, its manifest says {artifact.bytes}", str(folder), kind=kind
            )
