"""Every generation of a run with what is known of it, for `lineage checkpoints` and the TUI; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lineage.checkpoint import discover, ledger
from lineage.checkpoint.quarantine import quarantine_of, quarantined_families
from lineage.checkpoint.retention import generation_names
from lineage.errors import FormatError
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema
from lineage_schemas.ids import parse_generation_name


@dataclass(frozen=True)
class Generation:
    """One line of `lineage checkpoints`; times are Unix seconds, None for never.

    Attributes:
        kind: training, or weights for an export.
        quarantined: why, None when it is not.
        problem: what is wrong as far as manifest and sizes tell, None when nothing is.
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
        quarantined=quarantine_of(manifest, standing, held),
        problem=problem,
        manifest=manifest,
    )
