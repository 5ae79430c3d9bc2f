"""Where a command may write a file that a person named."""

from __future__ import annotations

import os
from pathlib import Path

from lineage.errors import NotFoundError, UsageError
from lineage.runs.index import run_around


def check_place(path: Path, run_dir: Path, *, force: bool) -> None:
    """Nothing is written over unasked, and nothing ever into a run: the one that is read, or any other.

    Raises:
        UsageError: the place is inside of a run, a folder, or a file that is there and not to be written over.
        NotFoundError: there is no such folder to write into.
    """
    inside, run = Path(os.path.realpath(path.parent)), Path(os.path.realpath(run_dir))
    if inside == run or run in inside.parents or run_around(inside) is not None:
        raise UsageError("that is inside of a run, which only its sessions write", str(path), "another folder")
    if path.is_dir():
        raise UsageError("that is a folder", str(path), "name a file in it")
    if not path.parent.is_dir():
        raise NotFoundError("there is no such folder to write into", str(path.parent), "make it first, or name another")
    if path.is_file() and not force:
        raise UsageError("the file is there already", str(path), "--force writes over it")
