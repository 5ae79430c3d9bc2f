"""Lineage: sessions, whole-state checkpoints and proven resumes for PyTorch training.

Names load when they are first used: `import lineage` costs a training script nothing, and neither torch nor Textual is
imported by it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lineage.capture.data import fingerprint_files
    from lineage.checkpoint.sampler import ResumableSampler
    from lineage.errors import (
        CheckpointError,
        DamagedError,
        FormatError,
        LineageError,
        LockedError,
        NewerFormatError,
        NotFoundError,
        RefError,
        UsageError,
    )
    from lineage.trainer.continuity import ContinuationDivergedError
    from lineage.trainer.run import Run
    from lineage.trainer.start import init
    from lineage.view import RunView, Series, read

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ContinuationDivergedError",
    "DamagedError",
    "FormatError",
    "LineageError",
    "LockedError",
    "NewerFormatError",
    "NotFoundError",
    "RefError",
    "ResumableSampler",
    "Run",
    "RunView",
    "Series",
    "UsageError",
    "fingerprint_files",
    "init",
    "read",
]

_HOMES: Final = {
    "ContinuationDivergedError": "lineage.trainer.continuity",
    "ResumableSampler": "lineage.checkpoint.sampler",
    "Run": "lineage.trainer.run",
    "RunView": "lineage.view",
    "Series": "lineage.view",
    "fingerprint_files": "lineage.capture.data",
    "init": "lineage.trainer.start",
    "read": "lineage.view",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES.get(name, "lineage.errors")), name)
    except ModuleNotFoundError as error:
        from lineage.errors import without_torch

        raise without_torch(error, f"lineage.{name}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
