"""Which generations stay, and how the others go: pin, unpin, plan, prune.

Kept are the newest committed ones, the newest verified, the newest that was really restored, the newest that is not
quarantined, the pinned, the one ACTIVE points at, and every Nth. Only committed generations count. What is damaged or
cannot be classified is reported and left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lineage import fs
from lineage.checkpoint import discover, ledger
from lineage.checkpoint.discover import scan_folder
from lineage.checkpoint.errors import ArtifactError
from lineage.errors import NotFoundError, UsageError
from lineage.layout import RunDir
from lineage_schemas.ids import parse_generation_name


@dataclass(frozen=True)
class Policy:
    """How much to keep.

    Attributes:
        last: newest committed generations; at least 1, so that a prune never takes the last one.
        every: keep generations whose step is a multiple of this too; None for none.
    """

    last: int = 2
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last < 1 or (self.every is not None and self.every < 1):
            raise UsageError(
                "a retention policy keeps at least the newest generation", hint="last and every are from 1"
            )


@dataclass(frozen=True)
class RetentionPlan:
    """What would stay and what would go; made by `plan_retention`, which touches nothing.

    Attributes:
        keep: generation to the reasons it stays.
        delete: generations to delete, oldest first.
        unfinished: folders of saves that never finished and may go too.
        reported: name to why it is left alone.
        freed_bytes: what deleting frees.
    """

    keep: Mapping[str, tuple[str, ...]]
    delete: tuple[str, ...]
    unfinished: tuple[str, ...] = ()
    reported: Mapping[str, str] = field(default_factory=dict)
    freed_bytes: int = 0


def plan_retention(run_dir: RunDir | Path, policy: Policy, *, unfinished: bool = False) -> RetentionPlan:
    """Decide by name what stays; reads manifests and the ledger, deletes nothing.

    Args:
        run_dir: the run's folder.
        policy: how much to keep.
        unfinished: also plan to delete folders of saves that never finished; only right when no writer is alive.
    """
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    found = discover.discover(layout)
    standings = ledger.standings(ledger.read(layout.ledger))
    keep: dict[str, list[str]] = {}

    def stays(name: str, why: str) -> None:
        keep.setdefault(name, []).append(why)

    candidates = found.candidates
    for candidate in candidates[: policy.last]:
        stays(candidate.name, f"one of the newest {policy.last}")
    for what, chosen in (
        (
            "verified",
            [c for c in candidates if _of(standings, c.name).verified_at and not _of(standings, c.name).damaged],
        ),
        ("restored", [c for c in candidates if _of(standings, c.name).restored_at]),
        ("not quarantined", [c for c in candidates if c.quarantined is None]),
    ):
        if chosen:
            stays(chosen[0].name, f"the newest {what}")
    active = None
    with contextlib.suppress(ArtifactError):
        active = discover.read_active(layout)
    for candidate in candidates:
        if _of(standings, candidate.name).pinned:
            stays(candidate.name, "pinned")
        if active is not None and active.name == candidate.name:
            stays(candidate.name, "ACTIVE points at it")
        if policy.every is not None and candidate.step % policy.every == 0:
            stays(candidate.name, f"every {policy.every} steps")
    going = [c for c in reversed(candidates) if c.name not in keep]
    reported = {r.name: r.reason for r in found.rejected}
    reported |= dict.fromkeys(found.unknown, "not a generation")
    if not unfinished:
        reported |= dict.fromkeys(found.incomplete, "a save that never finished, or is under way")
    return RetentionPlan(
        keep={name: tuple(reasons) for name, reasons in keep.items()},
        delete=tuple(c.name for c in going),
        unfinished=found.incomplete if unfinished else (),
        reported=reported,
        freed_bytes=sum(c.size_bytes for c in going),
    )


def _of(standings: Mapping[str, ledger.Standing], name: str) -> ledger.Standing:
    return standings.get(name, ledger.Standing())


def apply_retention(run_dir: RunDir | Path, plan: RetentionPlan, *, session: str | None = None) -> list[str]:
    """Delete what a plan says; the names of what is gone.

    The ledger is told first; then COMMIT is unlinked and the folder synced, so that a crash at any point leaves
    either a whole generation or one that no reader takes for whole.

    Raises:
        OSError: the disk refused; what was begun is no longer committed, the rest is untouched.
    """
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    gone = []
    for name in (*plan.delete, *plan.unfinished):
        delete_generation(layout, name, session=session)
        gone.append(name)
    return gone


def delete_generation(layout: RunDir, name: str, *, session: str | None = None) -> None:
    """Take one generation out of the run, marker first; files that are not ours stay, and so does their folder.

    Raises:
        NotFoundError: there is no such generation.
    """
    folder = layout.generation(name)
    if parse_generation_name(name) is None or folder.is_symlink() or not folder.is_dir():
        raise NotFoundError(f"there is no generation {name}", str(layout.checkpoints_dir))
    ours = {"COMMIT", "manifest.json"}
    with contextlib.suppress(Exception):  # of an unfinished or damaged one, the names tell what is ours
        ours |= {artifact.path for artifact in discover.read_manifest(folder)[0].artifacts}
    with contextlib.suppress(OSError):
        ledger.append(layout.ledger, "deleted", name, session=session, sync=True)
    with contextlib.suppress(FileNotFoundError):
        (folder / "COMMIT").unlink()
    fs.fsync_dir(folder)
    for entry in sorted(folder.iterdir()):
        if entry.name in ours or _is_artifact_name(entry.name):
            entry.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
    fs.fsync_dir(folder.parent)


def _is_artifact_name(name: str) -> bool:
    stem, _, suffix = name.rpartition(".")
    rank = stem.rpartition(".")[2]
    return suffix in ("safetensors", "json") and len(rank) == 6 and rank[0] == "r" and rank[1:].isdigit()


def pin(run_dir: RunDir | Path, name: str, *, pinned: bool = True) -> None:
    """Keep a generation through every prune, or no longer.

    Raises:
        NotFoundError: there is no such generation.
    """
    layout = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    ledger.append(layout.ledger, "pinned" if pinned else "unpinned", resolve(layout, name), sync=True)


def resolve(layout: RunDir, text: str) -> str:
    """The generation a person means: its name, a unique part of it, `newest`, or a step.

    Digits alone are a step; when no generation was saved there, they may be the token that ends a name, in full.

    Raises:
        NotFoundError: none, or several.
    """
    names = generation_names(layout)
    if text == "newest" and names:
        return names[0]
    if text in names:
        return text
    if text.isascii() and text.isdigit():
        step = text.lstrip("0") or "0"
        found = [name for name in names if str((parse_generation_name(name) or (-1, 0))[0]) == step]
        found = found or [name for name in names if name.endswith(f"-{text}")]
    else:
        found = [name for name in names if text and text in name]
    if len(found) == 1:
        return found[0]
    what = "no generation" if not found else f"{len(found)} generations"
    raise NotFoundError(f"{what} of this run match {text!r}", str(layout.checkpoints_dir), "lineage checkpoints RUN")


def generation_names(layout: RunDir) -> Sequence[str]:
    """Names of all committed generations, newest first, whole or not."""
    found = [
        (parsed[1], parsed[0], entry.name)
        for entry in scan_folder(layout.checkpoints_dir)
        if (parsed := parse_generation_name(entry.name))
        and entry.is_dir(follow_symlinks=False)
        and (layout.generation(entry.name) / "COMMIT").is_file()
    ]
    return [name for *_, name in sorted(found, reverse=True)]
