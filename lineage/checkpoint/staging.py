"""Read a generation's tensors into memory of their own, hashed in the same pass; nothing live is touched."""

from __future__ import annotations

import torch

from lineage.checkpoint import tensorfile
from lineage.checkpoint.discover import Candidate
from lineage.checkpoint.errors import ManifestMismatchError
from lineage.checkpoint.tensorfile import Header, TensorSpec
from lineage.checkpoint.tensors import DTYPES, bytes_of, empty_for
from lineage_schemas import checkpoint as schema


def load_files(candidate: Candidate, *, rank: int = 0) -> dict[str, dict[str, torch.Tensor]]:
    """Every tensor of a generation in fresh CPU memory, by component and name; all hashes right.

    Raises:
        ArtifactError, ManifestMismatchError: a file is not what the manifest says.
    """
    files: dict[str, dict[str, torch.Tensor]] = {}
    for artifact in candidate.manifest.artifacts:
        if artifact.rank != rank or artifact.component == "state":
            continue
        files[artifact.component] = load_artifact(candidate, artifact)
    return files


def load_artifact(candidate: Candidate, artifact: schema.Artifact) -> dict[str, torch.Tensor]:
    """The tensors of one file, read and hashed in one pass."""
    path = candidate.path / artifact.path
    tensors: dict[str, torch.Tensor] = {}

    def check(header: Header) -> None:
        found = {spec.name: (spec.dtype, list(spec.shape)) for spec in header.tensors}
        said = {name: (info.dtype, info.shape) for name, info in artifact.tensors.items()}
        if found != said:
            odd = sorted(set(found) ^ set(said)) or [n for n in said if found[n] != said[n]]
            raise ManifestMismatchError(
                f"header and manifest disagree on tensor {odd[0][:200]!r}", str(path), kind="header"
            )
        for spec in header.tensors:
            if spec.dtype not in DTYPES:
                raise ManifestMismatchError(f"this torch has no type {spec.dtype}", str(path), kind="header")
            if not spec.num_bytes:
                tensors[spec.name] = empty_for(spec)

    def destination(spec: TensorSpec) -> memoryview:
        tensors[spec.name] = empty_for(spec)
        return bytes_of(tensors[spec.name])

    tensorfile.read_tensors(
        path, num_bytes=artifact.bytes, sha256=artifact.sha256, check=check, destination=destination
    )
    return tensors
