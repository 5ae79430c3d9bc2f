"""Kill a saving process with SIGKILL at each of its system calls, for `test_kill_sweep`.

    python kill_sweep.py FOLDER

Imports torch once, and forks: each child saves generation 2 of a copy of a run that has generation 1, and kills itself
before, in the middle of, or after its Nth mkdir, open, write, fsync, rename or unlink. The parent then restores. Prints
JSON: one entry per kill, with the step that was restored and whether it was bit for bit the right state.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from lineage.checkpoint.discover import discover
from lineage.checkpoint.restore import restore_newest
from lineage.checkpoint.store import CheckpointStore
from lineage_schemas.checkpoint import Position

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Tiny, restore_context, save_context

CALLS = ("mkdir", "open", "write", "fsync", "replace", "unlink")


def arm(kill_at: int, when: str) -> list[str]:
    """Make the process die around its `kill_at`-th call; with -1 only note the calls."""
    made: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            made.append(name)
            mine = len(made) - 1 == kill_at
            if mine and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if mine and when == "during" and name == "write":
                real(args[0], memoryview(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*args, **kwargs)
            finally:
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)
    return made


def save(tiny: Tiny, run_dir: Path, step: int) -> None:
    CheckpointStore(run_dir, tiny.registry).save(Position(step=step, num_updates=step), save_context())


def killed_save(tiny: Tiny, run_dir: Path, kill_at: int, when: str) -> int:
    """Fork a child that saves step 2 and dies; its exit as `os.waitpid` says."""
    pid = os.fork()
    if pid == 0:
        try:
            arm(kill_at, when)
            save(tiny, run_dir, 2)
        except BaseException:  # noqa: BLE001  # a forked child must never run the parent's code
            os._exit(3)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    base = folder / "base"
    base.mkdir(parents=True)
    tiny = Tiny(seed=1)
    tiny.step()
    save(tiny, base, 1)
    right = {1: tiny.digest()}
    tiny.step()
    right[2] = tiny.digest()
    stream = torch.get_rng_state()  # the global one, which every restore below moves

    counted = folder / "count"
    shutil.copytree(base, counted)
    made = _count(tiny, counted)
    results = []
    fresh = Tiny(seed=2)
    for index, name in enumerate(made):
        for when in ("before", "during", "after") if name == "write" else ("before", "after"):
            run_dir = folder / "run"
            shutil.copytree(base, run_dir)
            torch.set_rng_state(stream)
            status = killed_save(tiny, run_dir, index, when)
            restored = restore_newest(discover(run_dir), fresh.registry, restore_context())
            assert restored is not None
            restored.finish()
            step = restored.position.step
            results.append(
                {
                    "call": name,
                    "index": index,
                    "when": when,
                    "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
                    "step": step,
                    "right": fresh.digest() == right[step],
                }
            )
            shutil.rmtree(run_dir)
    sys.stdout.write(json.dumps({"calls": made, "kills": results}) + "\n")


def _count(tiny: Tiny, run_dir: Path) -> list[str]:
    """The calls of one whole save, noted in a child so that this process keeps its own functions."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        made = arm(-1, "never")
        save(tiny, run_dir, 2)
        data = json.dumps(list(made)).encode()
        os.write(writer, data)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        made = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
