"""Which run, session and step made this file: from a folder, an artifact, or any file with the same tensors.

A generation's own folder says so itself, wherever it was moved. An artifact copied out of it is recognised by its
SHA-256. A `.safetensors` or `.pt` file, whatever its name, is recognised by its tensors: every manifest keeps a digest
per tensor over type, shape and bytes, and neither file name nor key prefixes take part. Nothing in the file is run.

What the runs hold is indexed in each run's `.cache/`; a missing or stale index costs time, never the answer.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from lineage import fs
from lineage.checkpoint import discover, tensorfile
from lineage.errors import DamagedError, FormatError, LineageError, NotFoundError
from lineage.history.torchfile import is_torch_file, read_torch_file
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema
from lineage_schemas.ids import parse_generation_name

How = Literal["manifest", "artifact", "tensors", "some tensors"]
_INDEX_VERSION: Final = 1
_MAX_INDEX_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Known:
    """One generation or export as the index has it.

    Attributes:
        artifacts: SHA-256 of each file to its name.
        tensors: digests of the modules' tensors.
    """

    name: str
    run: str
    session: str
    step: int
    kind: str
    parent: str | None
    recipe: str
    commit: str | None
    folder: Path
    artifacts: dict[str, str]
    tensors: frozenset[str]


@dataclass(frozen=True)
class Match:
    """One answer.

    Attributes:
        how: `manifest` (its own folder), `artifact` (same file, byte for byte), `tensors` (all the same tensors),
            `some tensors` (a part of the file's tensors, and all that are there match).
        recipe: fingerprint of the recipe it was trained by.
        commit: source revision, None when it was not known.
    """

    run: str
    session: str
    step: int
    checkpoint: str
    how: How
    kind: str = "training"
    recipe: str | None = None
    commit: str | None = None
    parent: str | None = None


@dataclass(frozen=True)
class Ancestor:
    """One link of the chain, newest first: the generation, and the session that made it."""

    run: str
    session: str
    checkpoint: str | None
    step: int


@dataclass(frozen=True)
class Whence:
    """What is known about a path; `ancestry` belongs to the first match, back to the session that began fresh."""

    path: Path
    matches: tuple[Match, ...]
    ancestry: tuple[Ancestor, ...] = ()
    notes: tuple[str, ...] = field(default=())


def whence(path: Path, runs_dirs: Sequence[Path]) -> Whence:
    """Find who made a checkpoint, an artifact of one, or a file with the same tensors.

    Args:
        path: a folder or a file; it is read, never run, never changed.
        runs_dirs: folders of runs, or runs themselves, to look in.

    Raises:
        NotFoundError: there is nothing at `path`.
        FormatError: a file that is neither ours, nor safetensors, nor of `torch.save`, or a damaged one.
    """
    if not path.exists():
        raise NotFoundError("there is no such file or folder", str(path))
    own = [parent for parent in path.absolute().parents[:4] if (parent / "run.json").is_file()]
    runs = list(_runs([*runs_dirs, *own]))
    notes: list[str] = []
    matches = [_match_of_folder(path)] if path.is_dir() else list(_matches_of_file(path, runs, notes))
    matches.sort(key=lambda m: (_HOWS.index(m.how), m.kind != "training", -m.step))
    ancestry = tuple(_ancestry(matches[0], runs)) if matches else ()
    return Whence(path, tuple(matches), ancestry, tuple(notes))


_HOWS: Final[tuple[How, ...]] = ("manifest", "artifact", "tensors", "some tensors")


def _match_of_folder(folder: Path) -> Match:
    for inside in (folder, folder.parent if folder.name == "COMMIT" else folder):
        if (inside / "COMMIT").exists() or (inside / "manifest.json").exists():
            manifest, _ = discover.read_manifest(inside)
            return _match(_known_of(manifest, inside), "manifest")
    raise NotFoundError(
        "this folder is no checkpoint", str(folder), "name a generation's folder, or a .safetensors or .pt file"
    )


def _match(known: Known, how: How) -> Match:
    return Match(
        known.run,
        known.session,
        known.step,
        known.name,
        how,
        known.kind,
        known.recipe,
        known.commit,
        known.parent,
    )


def _matches_of_file(path: Path, runs: Sequence[RunDir], notes: list[str]) -> Iterator[Match]:
    beside = _beside(path)
    if path.name in ("manifest.json", "COMMIT") and beside is not None:
        yield _match(beside, "manifest")
        return
    known = [entry for run in runs for entry in read_index(run)]
    known += [beside] if beside is not None and all(k.name != beside.name for k in known) else []
    _, sha256 = tensorfile.hash_file(path)
    same_file = [entry for entry in known if sha256 in entry.artifacts]
    if same_file:
        yield from (_match(entry, "artifact") for entry in same_file)
        return
    digests = frozenset(tensor_digests(path))
    if not digests:
        notes.append("the file holds no tensors")
        return
    found = False
    for entry in known:
        how = _compare(digests, entry.tensors)
        if how is not None:
            found = True
            yield _match(entry, how)
    if not found:
        where = f"{len(known)} generations of {len(runs)} runs"
        notes.append(f"no known generation has these tensors (looked at {where})")


def _beside(path: Path) -> Known | None:
    """The generation whose folder a file lies in, when its manifest names the file with this size."""
    if not (path.parent / "manifest.json").is_file():
        return None
    with contextlib.suppress(LineageError, OSError):
        manifest, _ = discover.read_manifest(path.parent)
        return _known_of(manifest, path.parent)
    return None


def _compare(file: frozenset[str], generation: frozenset[str]) -> How | None:
    """All of a generation's tensors are in the file, or all of the file's are in the generation."""
    if not generation:
        return None
    if generation <= file:
        return "tensors"
    return "some tensors" if file <= generation else None


def tensor_digests(path: Path) -> Iterator[str]:
    """Digest of every tensor of a `.safetensors` or `.pt` file, whatever its name says.

    Raises:
        FormatError: it is neither, or damaged.
    """
    if is_torch_file(path):
        for tensor in read_torch_file(path):
            yield tensorfile.tensor_digest(tensor.dtype, tensor.shape, tensor.data)
        return
    try:
        header = tensorfile.read_header(path)
    except DamagedError as error:
        raise FormatError(
            f"this is neither a safetensors file nor one of torch.save: {error.what}", str(path)
        ) from error
    with path.open("rb") as file:
        for spec in header.tensors:
            file.seek(header.data_start + spec.start)
            data = file.read(spec.num_bytes)
            if len(data) != spec.num_bytes:
                raise FormatError(f"tensor {spec.name[:100]!r} ends early", str(path))
            yield tensorfile.tensor_digest(spec.dtype, spec.shape, memoryview(data))


# ---- the index -------------------------------------------------------------------------------------------------------


def _runs(folders: Iterable[Path]) -> Iterator[RunDir]:
    seen: set[Path] = set()
    for folder in folders:
        for candidate in (folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())):
            run = RunDir(candidate)
            try:
                resolved = candidate.resolve()
            except (OSError, RuntimeError):  # a loop of links
                continue
            if resolved not in seen and (fs.is_own_folder(run.checkpoints_dir) or fs.is_own_folder(run.exports_dir)):
                seen.add(resolved)
                yield run


def read_index(run: RunDir) -> list[Known]:
    """Every committed generation and export of a run; from `.cache/whence.json` where that is still true."""
    cache_path = run.cache_dir / "whence.json"
    cached = _read_cache(cache_path)
    fresh: dict[str, Any] = {}
    known: list[Known] = []
    for folder in _folders(run):
        key = f"{folder.parent.name}/{folder.name}"
        try:
            found = (folder / "manifest.json").stat()
        except OSError:
            continue
        identity = [found.st_mtime_ns, found.st_size, found.st_ino]
        entry = cached.get(key)
        if not isinstance(entry, dict) or entry.get("stat") != identity:
            try:
                entry = _entry(folder) | {"stat": identity}
            except (FormatError, OSError):
                continue
        fresh[key] = entry
        with contextlib.suppress(KeyError, TypeError):
            known.append(_from_entry(entry, folder))
    if fresh != cached:
        # Derived and advisory: a read-only or full disk only costs the next search its time.
        with contextlib.suppress(OSError):
            run.cache_dir.mkdir(exist_ok=True)
            if fs.is_own_folder(run.cache_dir):
                fs.write_atomic(cache_path, orjson.dumps({"version": _INDEX_VERSION, "generations": fresh}))
    return known


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(fs.read_plain(path, _MAX_INDEX_BYTES)) if fs.is_own_folder(path.parent) else None
    except (OSError, orjson.JSONDecodeError):
        return {}
    if not isinstance(data, dict) or data.get("version") != _INDEX_VERSION:
        return {}
    generations = data.get("generations")
    return generations if isinstance(generations, dict) else {}


def _folders(run: RunDir) -> Iterator[Path]:
    for root in (run.checkpoints_dir, run.exports_dir):
        if fs.is_own_folder(root):
            for folder in sorted(root.iterdir()):
                wanted = root == run.exports_dir or parse_generation_name(folder.name) is not None
                if wanted and not folder.is_symlink() and (folder / "COMMIT").is_file():
                    yield folder


def _entry(folder: Path) -> dict[str, Any]:
    """What the index keeps of a manifest. Only the hash chain is checked here; nothing is restored from it."""
    marker = tensorfile.read_bytes(folder / "COMMIT", limit=4096)
    expected = schema.parse_commit(marker, str(folder))
    data = tensorfile.read_bytes(folder / "manifest.json", limit=discover.MAX_MANIFEST_BYTES)
    if hashlib.sha256(data).hexdigest() != expected:
        raise FormatError("the manifest is not the one COMMIT names", str(folder))
    try:
        manifest = orjson.loads(data)
        modules = {c["name"] for c in manifest["components"] if c.get("state", "present") == "present"}
        return {
            "name": manifest["name"],
            "run": manifest["run"]["run"],
            "session": manifest["run"]["session"],
            "parent": manifest["run"].get("parent"),
            "step": manifest["position"]["step"],
            "kind": manifest["kind"],
            "recipe": manifest["recipe"]["fingerprint"],
            "commit": manifest.get("code", {}).get("commit"),
            "artifacts": {a["sha256"]: a["path"] for a in manifest["artifacts"]},
            "tensors": sorted(
                {
                    info["digest"]
                    for a in manifest["artifacts"]
                    if a["component"] in modules
                    for info in a.get("tensors", {}).values()
                    if info.get("digest")
                }
            ),
        }
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"the manifest is malformed: {error}", str(folder)) from error


def _from_entry(entry: dict[str, Any], folder: Path) -> Known:
    return Known(
        name=entry["name"],
        run=entry["run"],
        session=entry["session"],
        step=entry["step"],
        kind=entry["kind"],
        parent=entry["parent"],
        recipe=entry["recipe"],
        commit=entry["commit"],
        folder=folder,
        artifacts=entry["artifacts"],
        tensors=frozenset(entry["tensors"]),
    )


def _known_of(manifest: schema.Manifest, folder: Path) -> Known:
    return Known(
        name=manifest.name,
        run=manifest.run.run,
        session=manifest.run.session,
        step=manifest.position.step,
        kind=manifest.kind,
        parent=manifest.run.parent,
        recipe=manifest.recipe.fingerprint,
        commit=manifest.code.get("commit"),
        folder=folder,
        artifacts={artifact.sha256: artifact.path for artifact in manifest.artifacts},
        tensors=frozenset(
            info.digest for a in manifest.artifacts for info in a.tensors.values() if info.digest is not None
        ),
    )


# ---- ancestry --------------------------------------------------------------------------------------------------------


def _ancestry(match: Match, runs: Sequence[RunDir]) -> Iterator[Ancestor]:
    """From the match back to the first session, as run.json tells; as far as manifests tell where it is not at hand."""
    run, session, checkpoint, step = match.run, match.session, match.checkpoint, match.step
    parent: str | None = match.parent
    seen: set[tuple[str, str]] = set()
    while (run, session) not in seen:
        seen.add((run, session))
        yield Ancestor(run, session, checkpoint, step)
        start = _start_of(run, session, runs)
        if start is not None:
            if start.checkpoint is None:
                return
            run, checkpoint, step = start.run or run, start.checkpoint, start.step
            found = _session_of(checkpoint, run, runs) or start.session
            if found is None:
                return
            session, parent = found, None
        elif parent is not None:
            known = _find(parent, runs)
            if known is None:
                return
            run, session, checkpoint, step, parent = known.run, known.session, known.name, known.step, known.parent
        else:
            return


def _start_of(run: str, session: str, runs: Sequence[RunDir]) -> Any:
    """How a session began, from its run's record; None where the record is not at hand."""
    from lineage.runs.store import read_run

    for folder in runs:
        if folder.path.name != run and not folder.run_json.is_file():
            continue
        try:
            record = read_run(folder.path)
        except LineageError:
            continue
        if record.id == run:
            return next((s.start for s in record.sessions if s.id == session), None)
    return None


def _find(name: str, runs: Sequence[RunDir]) -> Known | None:
    return next((entry for run in runs for entry in read_index(run) if entry.name == name), None)


def _session_of(name: str, run: str, runs: Sequence[RunDir]) -> str | None:
    known = _find(name, runs)
    return known.session if known is not None and known.run == run else None
