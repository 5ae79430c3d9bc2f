"""Weights-only exports: parameters and buffers for inference or transfer, and nothing that a resume could take.

An export has the protocol of a generation (manifest, COMMIT, hashes) and kind `weights`; it lies in `exports/`, where
resume never looks, and says what it is when somebody tries.
"""

from __future__ import annotations

import os
import re
import time
from typing import Final

import torch

from lineage.checkpoint.components import FAMILIES
from lineage.checkpoint.registry import Description, Registry, Snapshot
from lineage.checkpoint.store import (
    PlannedFile,
    SaveContext,
    SavedGeneration,
    make_folder,
    require_space,
    write_folder,
)
from lineage.checkpoint.tensors import spec_of
from lineage.errors import UsageError
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema

_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")
_REASON: Final = "weights-only export"


def export_weights(
    run_dir: RunDir, registry: Registry, name: str, position: schema.Position, context: SaveContext
) -> SavedGeneration:
    """Write every tracked module's tensors to `exports/<name>/<module>.safetensors`; durable on return.

    Raises:
        UsageError: the name is malformed or taken, or no module is tracked.
        UnsupportedStateError, DiskSpaceError, OSError: as for a save.
    """
    registry.require_usable()
    if not _NAME.match(name):
        raise UsageError(f"{name!r} cannot name an export", hint="use letters, digits, ., _ and -")
    modules = list(registry.modules())
    if not modules:
        raise UsageError("no module is tracked, so there are no weights to export", hint="run.track(model=...)")
    started = time.perf_counter()
    components = [
        schema.Component(name=m.name, family=m.family, scope=m.scope, version=m.version, details=m.describe())
        for m in modules
    ]
    components += [
        schema.Component(name=family, family=family, state="absent", reason=_REASON)
        for family in FAMILIES
        if family != "model"
    ]
    tensors: dict[str, dict[str, torch.Tensor]] = {module.name: module.tensors() for module in modules}
    aliases = {module.prefix + a: module.prefix + n for module in modules for a, n in module.aliases().items()}
    files = [
        PlannedFile(
            f"{module}.safetensors", module, tuple(spec_of(n, t) for n, t in table.items()), table, digests=True
        )
        for module, table in tensors.items()
    ]
    snapshot = Snapshot(
        files=tensors,
        values={},
        streams={},
        description=Description(components, {}, [], aliases, {}),
        expected=schema.ExpectedNext(),
    )
    root = run_dir.exports_dir
    made_root = make_folder(root)
    require_space(root, sum(f.num_bytes for f in files))
    folder = root / name
    try:
        os.mkdir(folder, 0o755)  # noqa: PTH102  # exclusive by nature
    except FileExistsError:
        raise UsageError(f"there is an export named {name!r}", str(folder), "choose another name") from None
    return write_folder(
        run_dir,
        folder,
        snapshot,
        files,
        position=position,
        context=context,
        state=None,
        snapshot_s=time.perf_counter() - started,
        made_root=made_root,
    )
