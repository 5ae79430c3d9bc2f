"""Publish one generation (docs/format.md, "Publication"): every byte durable and hashed before the marker names it.

The order is the point. Artifacts, each synced; the manifest with their hashes, synced; COMMIT with the manifest's
hash, synced; the folder, synced; its parent, synced. Only then ACTIVE and the ledger. Whatever a crash leaves behind,
a generation is whole exactly when the chain of hashes from COMMIT holds: hashes give safety, fsyncs give durability.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import torch

from lineage import fs
from lineage.checkpoint import ledger, tensorfile
from lineage.checkpoint.errors import ArtifactError, DiskSpaceError, SaveRefusedError
from lineage.checkpoint.registry import Registry, Snapshot
from lineage.checkpoint.retention import Policy, apply_retention, plan_retention
from lineage.checkpoint.tensorfile import TensorSpec
from lineage.checkpoint.tensors import bytes_of, spec_of
from lineage.clock import utc_now
from lineage.errors import CheckpointError
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema
from lineage_schemas import tagged
from lineage_schemas.ids import make_generation_name

STATE_FORMAT: Final = {"name": "lineage-state", "version": "1.0"}
SPARE_BYTES: Final = 16 << 20
"""Room asked for beyond the generation itself, for the manifest, the log and the file system's own needs."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What determines training beside the tracked objects; stored in the manifest and compared by a resume.

    Attributes:
        recipe: the captured recipe (tagged value and fingerprint).
        model: the model's identity where the recipe does not say it (class, config, tokenizer).
        data: identity of each split, `{"train": {"fingerprint": ...}}`.
        runtime: what changes execution (torch, device kind, precision, determinism flags, threads, world).
        code: `{"commit": ..., "dirty": digest or null}`.
    """

    recipe: schema.RecipePoint
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SaveContext(Experiment):
    """Who saves, and with what.

    Attributes:
        run, session, ordinal: ids of the run and of the session, and its ordinal from 1.
        parent: generation this session started from; None when it began fresh.
        before_commit: called when all but COMMIT is durable; the hook syncs the log here, so that no checkpoint is
            newer than the log that leads to it. False says that the log could not be synced: the generation is
            committed all the same, and says so (docs/decisions/037). An exception aborts the save.
    """

    run: str
    session: str
    ordinal: int
    parent: str | None = None
    before_commit: Callable[[], bool | None] | None = None


@dataclass(frozen=True)
class SavedGeneration:
    """A generation that is durable and committed.

    Attributes:
        log_synced: whether the log that leads to it was durable before it was; False where the disk refused that.
    """

    name: str
    path: Path
    size_bytes: int
    manifest_sha256: str
    timing: schema.Timing
    manifest: schema.Manifest
    log_synced: bool = True


@dataclass(frozen=True)
class PlannedFile:
    """One tensor file: what is to be written, known before the first byte is."""

    path: str
    component: str
    specs: tuple[TensorSpec, ...]
    tensors: Mapping[str, torch.Tensor]
    digests: bool

    @property
    def num_bytes(self) -> int:
        return sum(spec.num_bytes for spec in self.specs)


class CheckpointStore:
    """Saves generations of one run; one save at a time.

    Args:
        run_dir: the run's folder (a path or a `RunDir`); the caller holds the run's lock.
        registry: what to save.
        rank: this process's rank; its files carry it in their names.
        retention: what to keep after each save; None keeps every generation.
    """

    def __init__(
        self, run_dir: RunDir | Path, registry: Registry, *, rank: int = 0, retention: Policy | None = None
    ) -> None:
        self.dir = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
        self.registry = registry
        self.rank = rank
        self.retention = retention

    def save(self, position: schema.Position, context: SaveContext) -> SavedGeneration:
        """Save the whole state after `position.step` completed steps; durable and committed on return.

        Raises:
            SaveRefusedError: accumulation is pending (`position.microbatch` is not 0, or the scaler waits for its
                update); nothing was written.
            PoisonedError: a restore failed midway; nothing was written.
            UndeclaredStateError: the audit found state that nobody declared (first save only).
            UnsupportedStateError: a value that the format cannot hold; nothing was written.
            DiskSpaceError: no room; what was there is untouched.
            OSError: the disk failed; the unfinished folder was removed, older generations are untouched.
        """
        self.require_boundary(position)
        started = time.perf_counter()
        snapshot = self.registry.capture()
        files = plan_files(snapshot, self.rank)
        snapshot_s = time.perf_counter() - started
        saved = publish(self.dir, snapshot, files, position, context, snapshot_s=snapshot_s, rank=self.rank)
        self.retain(context)
        return saved

    def require_boundary(self, position: schema.Position) -> None:
        """Raise between two steps' microbatches.

        Raises:
            SaveRefusedError: accumulation is pending.
        """
        if position.microbatch:
            raise SaveRefusedError(
                f"{position.microbatch} microbatches of the next step are already accumulated",
                hint="save between steps, after optimizer.step() and zero_grad()",
            )

    def retain(self, context: SaveContext) -> list[str]:
        """Delete what the retention policy no longer keeps; nothing without a policy. Called after each commit.

        A disk that refuses is no reason to fail a save that is committed: what could not go is tried again next time.
        """
        if self.retention is None:
            return []
        with contextlib.suppress(OSError):
            return apply_retention(self.dir, plan_retention(self.dir, self.retention), session=context.session)
        return []


def plan_files(snapshot: Snapshot, rank: int) -> list[PlannedFile]:
    """Names, types and shapes of every tensor file, checked before a folder exists."""
    planned = []
    modules = set(snapshot.description.tensors)
    for component, tensors in snapshot.files.items():
        if tensors or component in modules:
            specs = tuple(spec_of(name, tensor) for name, tensor in tensors.items())
            path = f"{component}.r{rank:05d}.safetensors"
            planned.append(PlannedFile(path, component, specs, tensors, digests=component in modules))
    return planned


def encode_state(snapshot: Snapshot, position: schema.Position) -> bytes:
    """The bytes of state.rNNNNN.json."""
    state = {
        "format": STATE_FORMAT,
        "components": snapshot.values,
        "rng": tagged.encode(snapshot.streams, where="rng"),
        "counters": position.to_wire(),
    }
    return orjson.dumps(state)


def publish(
    run_dir: RunDir,
    snapshot: Snapshot,
    files: Sequence[PlannedFile],
    position: schema.Position,
    context: SaveContext,
    *,
    snapshot_s: float,
    rank: int = 0,
) -> SavedGeneration:
    """Write, sync and commit a snapshot as a new generation; see `CheckpointStore.save` for errors."""
    position = position.model_copy(update={"gradients": snapshot.gradients})
    state = encode_state(snapshot, position)
    need = sum(f.num_bytes for f in files) + len(state)
    made_root = make_folder(run_dir.checkpoints_dir)
    require_space(run_dir.checkpoints_dir, need)
    name = make_generation_name(position.step, context.ordinal, secrets.randbits(32))
    folder = run_dir.generation(name)
    os.mkdir(folder, 0o755)  # noqa: PTH102  # exclusive by nature: an existing folder is never reused
    saved = write_folder(
        run_dir,
        folder,
        snapshot,
        files,
        position=position,
        context=context,
        state=state,
        snapshot_s=snapshot_s,
        made_root=made_root,
        rank=rank,
    )
    _announce(run_dir, saved, context)
    return saved


def write_folder(
    run_dir: RunDir,
    folder: Path,
    snapshot: Snapshot,
    files: Sequence[PlannedFile],
    *,
    position: schema.Position,
    context: SaveContext,
    state: bytes | None,
    snapshot_s: float,
    made_root: bool,
    rank: int = 0,
) -> SavedGeneration:
    """Fill and commit an empty folder that the caller just made; on any error it is taken away again.

    Without `state` it is a weights-only export. `made_root`: its parent is new too, and has to be made durable.
    """
    try:
        clock = _Clock()
        artifacts = [_write_file(folder, planned, context, clock, rank=rank) for planned in files]
        if state is not None:
            artifacts.append(_write_state(folder, state, clock, rank))
        timing = schema.Timing(snapshot_s=snapshot_s, write_s=clock.write_s, fsync_s=clock.fsync_s)
        kind: Literal["training", "weights"] = "weights" if state is None else "training"
        manifest = make_manifest(folder.name, snapshot, artifacts, position, context, timing=timing, kind=kind)
        manifest_sha256, log_synced = _commit(run_dir, folder, manifest, context, made_root=made_root)
    except BaseException:
        _abandon(folder)
        raise
    return SavedGeneration(
        name=folder.name,
        path=folder,
        size_bytes=sum(a.bytes for a in artifacts),
        manifest_sha256=manifest_sha256,
        timing=manifest.timing,
        manifest=manifest,
        log_synced=log_synced,
    )


def make_folder(path: Path) -> bool:
    """Make a folder unless it is there; True when it was made, and its own name still has to be synced.

    Raises:
        CheckpointError: there is a link in its place: readers would refuse what is saved behind it.
    """
    try:
        os.mkdir(path, 0o755)  # noqa: PTH102  # one call whose outcome is wanted
    except FileExistsError:
        if path.is_symlink():
            raise CheckpointError(
                f"{path.name} is a symbolic link; it must be a folder of the run's own",
                str(path),
                "put the whole folder of runs on the other disk",
            ) from None
        return False
    return True


def require_space(path: Path, need: int) -> None:
    """Raise before a single byte is written when the disk cannot hold `need` bytes.

    Raises:
        DiskSpaceError: with what is free and what is needed.
    """
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    if free < need + need // 50 + SPARE_BYTES:
        raise DiskSpaceError(
            f"a checkpoint needs {need / 1e6:.1f} MB and {SPARE_BYTES / 1e6:.0f} MB to spare, "
            f"{free / 1e6:.1f} MB are free",
            str(path),
            "free space, or `lineage checkpoints RUN prune`; nothing was written",
        )


@dataclass
class _Clock:
    write_s: float = 0.0
    fsync_s: float = 0.0

    def add(self, written: tensorfile.Written) -> None:
        self.write_s += written.write_s
        self.fsync_s += written.fsync_s


def _write_file(
    folder: Path, planned: PlannedFile, context: SaveContext, clock: _Clock, *, rank: int
) -> schema.Artifact:
    digests: dict[str, str] = {}

    def data_of(spec: TensorSpec) -> memoryview:
        view = bytes_of(planned.tensors[spec.name])
        if planned.digests:
            digests[spec.name] = tensorfile.tensor_digest(spec.dtype, spec.shape, view)
        return view

    metadata = {
        "format": "pt",
        "lineage.run": context.run,
        "lineage.session": context.session,
        "lineage.checkpoint": folder.name,
        "lineage.component": planned.component,
    }
    path = folder / planned.path
    written = tensorfile.write_tensors(path, planned.specs, data_of, metadata)
    clock.add(written)
    _check_written(path, planned.specs, written)
    return schema.Artifact(
        path=planned.path,
        component=planned.component,
        rank=rank,
        bytes=written.num_bytes,
        sha256=written.sha256,
        tensors={
            spec.name: schema.TensorInfo(dtype=spec.dtype, shape=list(spec.shape), digest=digests.get(spec.name))
            for spec in planned.specs
        },
    )


def _check_written(path: Path, specs: Sequence[TensorSpec], written: tensorfile.Written) -> None:
    """Size and header against the plan, from the file itself: the last look before it is vouched for."""
    if path.stat().st_size != written.num_bytes:
        raise ArtifactError(f"{path.stat().st_size} bytes on disk, {written.num_bytes} were written", str(path))
    header = tensorfile.read_header(path)
    if {(s.name, s.dtype, s.shape) for s in header.tensors} != {(s.name, s.dtype, s.shape) for s in specs}:
        raise ArtifactError("the header on disk is not the one that was planned", str(path), kind="header")


def _write_state(folder: Path, state: bytes, clock: _Clock, rank: int) -> schema.Artifact:
    path = folder / f"state.r{rank:05d}.json"
    written = tensorfile.write_bytes(path, state)
    clock.add(written)
    return schema.Artifact(path=path.name, component="state", rank=rank, bytes=written.num_bytes, sha256=written.sha256)


def make_manifest(
    name: str,
    snapshot: Snapshot,
    artifacts: list[schema.Artifact],
    position: schema.Position,
    context: SaveContext,
    *,
    timing: schema.Timing,
    kind: Literal["training", "weights"] = "training",
) -> schema.Manifest:
    description = snapshot.description
    return schema.Manifest(
        kind=kind,
        name=name,
        created_at=utc_now(),
        run=schema.RunPoint(run=context.run, session=context.session, parent=context.parent),
        position=position,
        expected=snapshot.expected,
        artifacts=artifacts,
        components=description.components,
        optimizers=description.optimizers,
        aliases=description.aliases,
        recipe=context.recipe,
        model=dict(context.model),
        data=dict(context.data),
        loaders=description.loaders,
        runtime=dict(context.runtime),
        code=dict(context.code),
        writer=schema.Writer(host=socket.gethostname() or platform.node(), pid=os.getpid()),
        timing=timing,
    )


def _commit(
    run_dir: RunDir, folder: Path, manifest: schema.Manifest, context: SaveContext, *, made_root: bool
) -> tuple[str, bool]:
    """Hash of the manifest, and whether the log was synced before the marker was written."""
    data = orjson.dumps(manifest.to_wire(), option=orjson.OPT_INDENT_2) + b"\n"
    tensorfile.write_bytes(folder / "manifest.json", data)
    log_synced = context.before_commit is None or context.before_commit() is not False
    sha256 = hashlib.sha256(data).hexdigest()
    tensorfile.write_bytes(folder / "COMMIT", schema.format_commit(sha256))
    fs.fsync_dir(folder)
    fs.fsync_dir(folder.parent)
    if made_root:
        fs.fsync_dir(run_dir.path)
    return sha256, log_synced


def _abandon(folder: Path) -> None:
    """Take back an unfinished folder that this process made; the marker goes first, so that it never looks whole."""
    with contextlib.suppress(OSError):
        for entry in sorted(folder.iterdir(), key=lambda path: path.name != "COMMIT"):
            entry.unlink()
        folder.rmdir()


def _announce(run_dir: RunDir, saved: SavedGeneration, context: SaveContext) -> None:
    """ACTIVE and the ledger: advice and evidence. The generation is committed; a full disk here changes nothing."""
    active = schema.Active(name=saved.name, step=saved.manifest.position.step, manifest_sha256=saved.manifest_sha256)
    with contextlib.suppress(OSError):
        fs.write_atomic(run_dir.active, orjson.dumps(active.to_wire()) + b"\n")
    with contextlib.suppress(OSError):
        ledger.append(
            run_dir.ledger,
            "committed",
            saved.name,
            session=context.session,
            details={
                "bytes": saved.size_bytes,
                "step": saved.manifest.position.step,
                "snapshot_s": round(saved.timing.snapshot_s, 6),
                "write_s": round(saved.timing.write_s, 6),
                "fsync_s": round(saved.timing.fsync_s, 6),
                **({} if saved.log_synced else {"log_synced": False}),
            },
        )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of a save says that the disk (or the quota) is full."""
    return isinstance(error, DiskSpaceError) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )
