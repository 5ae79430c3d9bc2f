"""Reread and rehash every generation of a run (tier 1 of CHECKPOINTS section 6); needs no torch."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lineage.checkpoint import discover, ledger, tensorfile
from lineage.checkpoint.errors import ArtifactError
from lineage.errors import FormatError, LineageError, NewerFormatError, NotFoundError
from lineage.layout import RunDir
from lineage.runs.lock import probe
from lineage_schemas import checkpoint as schema
from lineage_schemas.ids import parse_generation_name

_NOTED_ALONE: Final = 5

Progress = Callable[[str, int, int], None]
"""`(path, bytes hashed just now, bytes of all generations to hash)`."""


@dataclass(frozen=True)
class Fault:
    """One thing that is not as the chain of hashes says.

    Attributes:
        kind: missing, extra, short, long, flipped, link, header, manifest, marker, newer_format, stale_active.
        path: file inside the generation's folder, or `ACTIVE`.
    """

    kind: str
    path: str
    message: str


@dataclass
class GenerationReport:
    """What verification found about one generation; `name` is `ACTIVE` for faults of the pointer itself."""

    name: str
    step: int | None
    faults: list[Fault] = field(default_factory=list)
    num_bytes: int = 0
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass
class VerifyReport:
    """All generations, newest first, and what was noticed beside them.

    Attributes:
        notes: saves that never finished, files nobody knows: odd, and no fault.
    """

    generations: list[GenerationReport]
    notes: list[str] = field(default_factory=list)
    num_bytes: int = 0
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return all(generation.ok for generation in self.generations)

    @property
    def bytes_per_s(self) -> float:
        """Throughput of reading and hashing together; 0 when nothing was hashed."""
        return self.num_bytes / self.duration_s if self.duration_s > 0 else 0.0


def verify_run(
    run_dir: RunDir | Path, *, newest: bool = False, progress: Progress | None = None, record: bool = True
) -> VerifyReport:
    """Check COMMIT, manifest, presence, size and hash of every file of every committed generation.

    Args:
        run_dir: the run's folder.
        newest: only the newest committed generation.
        progress: told about every chunk.
        record: write a `verified` line per generation into the ledger, where the disk allows it.

    Raises:
        NotFoundError: there is no such run, or it has no generation to verify.
    """
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    if not layout.path.is_dir():
        raise NotFoundError("there is no such run", str(layout.path))
    started = time.perf_counter()
    standings = ledger.standings(ledger.read(layout.ledger))
    folders, incomplete, unknown = _folders(layout, standings)
    lost = [n for n, s in standings.items() if s.committed_at is not None and not s.deleted and n not in folders]
    if not folders and not lost and not incomplete:
        raise NotFoundError("the run has no checkpoint to verify", str(layout.path))
    chosen = folders[:1] if newest else folders
    report = VerifyReport([])
    total = sum(_size(layout.generation(name)) for name in chosen)

    def told(path: str, done: int) -> None:
        report.num_bytes += done
        if progress is not None:
            progress(path, done, total)

    for name in chosen:
        found = verify_generation(layout.generation(name), progress=told)
        if not found.ok and name in ledger.deleted_since(layout.ledger):
            report.notes.append(f"{name}: half gone, and deleted as the ledger says")
            continue
        report.generations.append(found)
        if record:
            _record(layout, found)
    if not newest:
        deleted = ledger.deleted_since(layout.ledger) if lost else frozenset()
        for name in sorted(set(lost) - deleted, reverse=True):
            step = (parse_generation_name(name) or (None, 0))[0]
            fault = Fault("missing", name, "the folder is gone, and Lineage did not delete it")
            report.generations.append(GenerationReport(name, step, [fault]))
        report.notes += _each_or_merged(incomplete, "a save that never finished (no COMMIT); it is never restored")
        report.notes += _each_or_merged(unknown, "not a generation, left alone")
    for stale in _verify_active(layout, folders, report.generations):
        if _is_being_written(layout):
            # Between a commit and the new ACTIVE, or a prune and the look at it, a live writer has a moment's work.
            report.notes += [f"ACTIVE: {fault.message}; a session is writing just now" for fault in stale.faults]
        else:
            report.generations.append(stale)
    report.duration_s = time.perf_counter() - started
    return report


def _folders(layout: RunDir, standings: dict[str, ledger.Standing]) -> tuple[list[str], list[str], list[str]]:
    """Committed generations newest first (or ones the ledger says were), unfinished ones, and unknown names."""
    committed: list[str] = []
    incomplete: list[str] = []
    unknown: list[str] = []
    for entry in discover.scan_folder(layout.checkpoints_dir):
        if entry.name in ("ACTIVE", "ledger.jsonl") or (entry.name.startswith(".") and entry.name.endswith(".tmp")):
            continue
        if parse_generation_name(entry.name) is None or not entry.is_dir(follow_symlinks=False):
            unknown.append(entry.name)
        elif os.path.lexists(layout.generation(entry.name) / "COMMIT"):
            committed.append(entry.name)
        else:
            standing = standings.get(entry.name)
            claimed = standing is not None and standing.committed_at is not None and not standing.deleted
            (committed if claimed else incomplete).append(entry.name)
    committed.sort(key=_order, reverse=True)
    return committed, incomplete, unknown


def _each_or_merged(names: list[str], text: str) -> list[str]:
    """A note for each name, or where they are many one for all: a folder may hold any number of them."""
    if len(names) <= _NOTED_ALONE:
        return [f"{name}: {text}" for name in names]
    return [f"{names[0]} and {len(names) - 1:,} more, {names[-1]} the last: each {text}"]


def _is_being_written(layout: RunDir) -> bool:
    try:
        return probe(layout) is not None
    except OSError:
        return False


def _order(name: str) -> tuple[int, int]:
    step, ordinal = parse_generation_name(name) or (0, 0)
    return ordinal, step


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # a prune may be at it
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def verify_generation(folder: Path, *, progress: Callable[[str, int], None] | None = None) -> GenerationReport:
    """Every fault of one generation, all at once."""
    started = time.perf_counter()
    parsed = parse_generation_name(folder.name)
    report = GenerationReport(folder.name, parsed[0] if parsed else None)
    try:
        manifest, _ = discover.read_manifest(folder)
    except NewerFormatError as error:
        report.faults.append(Fault("newer_format", "manifest.json", error.what))
        return report
    except ArtifactError as error:
        name = "COMMIT" if error.kind == "marker" else "manifest.json"
        kind = error.kind if error.kind in ("marker", "manifest") else "manifest"
        report.faults.append(Fault(kind, name, error.what))
        return report
    except FormatError as error:
        report.faults.append(Fault("marker", "COMMIT", error.what))
        return report
    report.step = manifest.position.step
    report.faults += _verify_identity(folder, manifest)
    for artifact in manifest.artifacts:
        fault, num_bytes = _verify_artifact(folder, artifact, progress)
        report.num_bytes += num_bytes
        if fault is not None:
            report.faults.append(fault)
    expected = {artifact.path for artifact in manifest.artifacts} | {"manifest.json", "COMMIT"}
    try:
        names = set(os.listdir(folder))  # noqa: PTH208  # names, not paths
    except OSError as error:
        report.faults.append(Fault("missing", folder.name, f"the folder cannot be read: {error.strerror}"))
        names = set()
    for name in sorted(names - expected):
        report.faults.append(Fault("extra", name, "the manifest does not name this file"))
    report.duration_s = time.perf_counter() - started
    return report


def _verify_identity(folder: Path, manifest: schema.Manifest) -> Iterator[Fault]:
    if manifest.kind == "training":
        if manifest.name != folder.name:
            yield Fault("manifest", "manifest.json", f"it names {manifest.name}, the folder is {folder.name}")
        parsed = parse_generation_name(manifest.name)
        if parsed is None or parsed[0] != manifest.position.step:
            yield Fault("manifest", "manifest.json", f"name {manifest.name} and step {manifest.position.step} disagree")
    paths = [artifact.path for artifact in manifest.artifacts]
    for path in sorted(path for path, count in Counter(paths).items() if count > 1):
        yield Fault("manifest", "manifest.json", f"it names {path} more than once")
    for path in paths:
        if path in ("manifest.json", "COMMIT"):
            yield Fault("manifest", "manifest.json", f"it names {path} as an artifact")


def _verify_artifact(
    folder: Path, artifact: schema.Artifact, progress: Callable[[str, int], None] | None
) -> tuple[Fault | None, int]:
    path = folder / artifact.path

    def told(done: int) -> None:
        if progress is not None:
            progress(f"{folder.name}/{artifact.path}", done)

    try:
        num_bytes, sha256 = tensorfile.hash_file(path, told)
    except ArtifactError as error:
        return Fault(error.kind, artifact.path, error.what), 0
    except OSError as error:
        return Fault("flipped", artifact.path, f"it cannot be read: {error.strerror}"), 0
    if num_bytes != artifact.bytes:
        kind = "short" if num_bytes < artifact.bytes else "long"
        return Fault(kind, artifact.path, f"{num_bytes} bytes, the manifest says {artifact.bytes}"), num_bytes
    if sha256 != artifact.sha256:
        text = f"expected SHA-256 {artifact.sha256}, found {sha256}"
        return Fault("flipped", artifact.path, text), num_bytes
    if artifact.path.endswith(".safetensors"):
        try:
            header = tensorfile.read_header(path)
        except ArtifactError as error:
            return Fault("header", artifact.path, error.what), num_bytes
        found = {spec.name: (spec.dtype, list(spec.shape)) for spec in header.tensors}
        said = {name: (info.dtype, info.shape) for name, info in artifact.tensors.items()}
        if found != said:
            return Fault("header", artifact.path, "its header lists other tensors than the manifest"), num_bytes
    return None, num_bytes


def _verify_active(layout: RunDir, folders: list[str], reports: list[GenerationReport]) -> Iterator[GenerationReport]:
    broken = {report.name for report in reports if not report.ok}

    def fault(step: int | None, message: str) -> GenerationReport:
        return GenerationReport("ACTIVE", step, [Fault("stale_active", "ACTIVE", message)])

    try:
        active = discover.read_active(layout)
    except ArtifactError as error:
        yield fault(None, f"{error.what}; it is advice only, and the next save writes it anew")
        return
    if active is None:
        return
    if active.name not in folders:
        yield fault(active.step, f"it points at {active.name}, which is not there")
    elif folders[0] != active.name:
        yield fault(active.step, f"it points at {active.name}, and {folders[0]} is newer; the next save sets it right")
    elif active.name not in broken:
        with contextlib.suppress(LineageError):
            manifest, sha256 = discover.read_manifest(layout.generation(active.name))
            if (sha256, manifest.position.step) != (active.manifest_sha256, active.step):
                yield fault(active.step, f"it names another manifest or step of {active.name} than is there")


def _record(layout: RunDir, report: GenerationReport) -> None:
    details = {
        "bytes": report.num_bytes,
        "verify_s": round(report.duration_s, 6),
        "faults": [f"{fault.kind}: {fault.path}" for fault in report.faults],
    }
    with contextlib.suppress(OSError):  # a run on a read-only disk can be verified all the same
        ledger.append(layout.ledger, "verified", report.name, ok=report.ok, details=details)


__all__ = ["Fault", "GenerationReport", "Progress", "VerifyReport", "verify_generation", "verify_run"]
