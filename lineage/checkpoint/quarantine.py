"""Families of generations set aside after a failed restore; needs no torch.

One failed restore says that its like may fail the same way: same format, code, recipe, runtime and ranks. Saving goes
on; resume takes none of the family without being asked to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from lineage.checkpoint import ledger
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema


def family_of(manifest: schema.Manifest) -> str:
    """Digest of what makes checkpoints alike enough to fail alike: format, code, recipe, runtime, topology."""
    facts: dict[str, Any] = {
        "format": manifest.format.version,
        "code": manifest.code,
        "recipe": manifest.recipe.fingerprint,
        "runtime": manifest.runtime,
        "ranks": sorted({artifact.rank for artifact in manifest.artifacts}),
    }
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def quarantine(run_dir: RunDir | Path, manifest: schema.Manifest, reason: str, *, session: str | None = None) -> None:
    """Put a generation and its family aside: resume takes none of them without being asked to.

    Raises:
        OSError: the ledger could not be written.
    """
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    details = {"reason": reason, "family": family_of(manifest)}
    ledger.append(layout.ledger, "quarantined", manifest.name, session=session, details=details, sync=True)


def release(run_dir: RunDir | Path, manifest: schema.Manifest, reason: str, *, session: str | None = None) -> None:
    """Take a family out of quarantine, with the reason it is trusted again."""
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    details = {"reason": reason, "family": family_of(manifest)}
    ledger.append(layout.ledger, "quarantined", manifest.name, session=session, ok=False, details=details, sync=True)


def quarantined_families(lines: list[schema.LedgerLine]) -> dict[str, str]:
    """Family to the reason it is quarantined, as the ledger's last word on each."""
    held: dict[str, str] = {}
    for line in lines:
        family = line.details.get("family")
        if line.action == "quarantined" and isinstance(family, str):
            if line.ok:
                held[family] = f"{line.details.get('reason', 'no reason recorded')} ({line.checkpoint})"
            else:
                held.pop(family, None)
    return held


def quarantine_of(manifest: schema.Manifest | None, standing: ledger.Standing, held: Mapping[str, str]) -> str | None:
    """Why a generation is quarantined, itself or by its family; None when it is not."""
    return (held.get(family_of(manifest)) if manifest is not None and held else None) or standing.quarantined
