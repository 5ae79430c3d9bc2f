"""Every generation of a run with what is known of it, for `lineage checkpoints` and the TUI; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, get_args

from lineage.checkpoint import discover, ledger
from lineage.checkpoint.quarantine import quarantine_of, quarantined_families
from lineage.checkpoint.retention import generation_names
from lineage.errors import FormatError
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema
from lineage_schemas.ids import parse_generation_name

State = Literal["committed", "verified", "restorable", "quarantined", "damaged", "gone", "unfinished", "export"]
STATES: Final[tuple[State, ...]] = get_args(State)
"""The one word for how a generation stands, wherever one is shown (docs/checkpoints.md, "States")."""


@dataclass(frozen=True)
class Generation:
    """One line of `lineage checkpoints`; times are Unix seconds, None for never.

    Attributes:
        kind: training, or weights for an export.
        quarantined: why, None when it is not.
        problem: what is wrong as far as manifest, sizes and the last verification tell, None when nothing is.
        state: the word for all of it.
    """

    name: str
    path: Path
    step: int
    session: str | None
    size_bytes: int
    kind: str
    committed_at: float | None
    verified_at: float | None = None
    restored_at: float | None = None
    drilled_at: float | None = None
    pinned: bool = False
    quarantined: str | None = None
    problem: str | None = None
    state: State = "committed"
    manifest: schema.Manifest | None = None


def list_generations(run_dir: RunDir | Path) -> list[Generation]:
    """Committed generations newest first, then weights-only exports; damaged ones too, with the problem."""
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    lines = ledger.read(layout.ledger)
    standings = ledger.standings(lines)
    held = quarantined_families(lines)
    found = [
        _read(layout.generation(name), standings.get(name, ledger.Standing()), held)
        for name in generation_names(layout)
    ]
    exports = discover.scan_folder(layout.exports_dir)
    found += [
        _read(Path(entry.path), ledger.Standing(), {})
        for entry in exports
        if entry.is_dir(follow_symlinks=False) and (Path(entry.path) / "COMMIT").is_file()
    ]
    if any(generation.problem for generation in found):
        deleted = ledger.deleted_since(layout.ledger)
        found = [generation for generation in found if not (generation.problem and generation.name in deleted)]
    return found


def _read(folder: Path, standing: ledger.Standing, held: Mapping[str, str]) -> Generation:
    manifest, problem = None, None
    try:
        manifest, _ = discover.read_manifest(folder)
        if manifest.kind == "training":
            discover.check_name(folder, manifest)
        discover.check_files(folder, manifest)
    except FormatError as error:
        problem = error.what
    is_gone = problem is not None and manifest is not None and not _has_artifacts(folder, manifest)
    if problem is None and standing.damaged:
        problem = "the last verification found a fault; lineage verify says which"
    quarantined = quarantine_of(manifest, standing, held)
    parsed = parse_generation_name(folder.name)
    created: datetime | None = manifest.created_at if manifest else None
    return Generation(
        name=folder.name,
        path=folder,
        step=manifest.position.step if manifest else parsed[0] if parsed else 0,
        session=manifest.run.session if manifest else None,
        size_bytes=sum(a.bytes for a in manifest.artifacts) if manifest else 0,
        kind=manifest.kind if manifest else "training",
        committed_at=standing.committed_at or (created.timestamp() if created else None),
        verified_at=standing.verified_at,
        restored_at=standing.restored_at,
        drilled_at=standing.drilled_at,
        pinned=standing.pinned,
        quarantined=quarantined,
        problem=problem,
        state=_state(
            is_gone=is_gone,
            is_damaged=problem is not None,
            is_export=manifest is not None and manifest.kind == "weights",
            is_quarantined=quarantined is not None,
            standing=standing,
        ),
        manifest=manifest,
    )


def _state(
    *, is_gone: bool, is_damaged: bool, is_export: bool, is_quarantined: bool, standing: ledger.Standing
) -> State:
    """What speaks against a generation comes first, then the most that was ever shown of it."""
    if is_gone:
        return "gone"
    if is_damaged:
        return "damaged"
    if is_export:
        return "export"
    if is_quarantined:
        return "quarantined"
    if standing.restored_at is not None or standing.drilled_at is not None:
        return "restorable"
    return "verified" if standing.verified_at is not None else "committed"


def _has_artifacts(folder: Path, manifest: schema.Manifest) -> bool:
    """Whether any file of a generation is there; samples and backups may keep the manifests alone."""
    return any(os.path.lexists(folder / artifact.path) for artifact in manifest.artifacts)
