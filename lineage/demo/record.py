"""Record `sample_runs/` again: the demo's own story, and a careless restart that went unnoticed at the time.

    python -m lineage.demo.record sample_runs

The real trainers train, from a clone of this repository at HEAD, under names of a host and of a system that are
nobody's; nothing is written over afterwards, since the manifests are held by their hashes. What is left out at the end
is weight: tensors and states of the checkpoints stay behind, their manifests and commit markers are kept.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from lineage.demo.stage import Stage
from lineage.demo.story import Plan, Story

HOST: Final = "spot-worker"
SYSTEM: Final = "Linux-x86_64"
_KEPT_OF_A_GENERATION: Final = frozenset({"COMMIT", "manifest.json"})


class LatePlan(Plan):
    """A plan whose crash comes late, when the learning rate is low: a warm-up that begins again stands out."""

    @property
    def kill_after(self) -> int:
        return self.steps * 5 // 6 // self.checkpoint_every * self.checkpoint_every


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--as"]:
        return run_disguised(words[1], words[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dir", type=Path, help="where the samples go; runs of the same ids are replaced")
    parser.add_argument("--steps", type=int, default=300, help="steps of each run")
    args = parser.parse_args(words)
    samples = args.dir.resolve()
    stage = Stage(Console(stderr=True, markup=False, emoji=False, highlight=False))
    plan = Plan.make(steps=args.steps, seed=1, fast=False)
    with tempfile.TemporaryDirectory() as folder:
        clone = clone_head(Path(__file__).parents[2], Path(folder) / "lineage")
        os.chdir(clone)
        # The children train with the very code that their sessions name as their source.
        os.environ["PYTHONPATH"] = os.pathsep.join(str(clone / part) for part in (".", "schemas", "tui"))
        disguise = ("lineage.demo.record", "--as")
        demo = Story(Path("runs"), plan, stage, module=(*disguise, "train")).play()
        late = LatePlan(plan.steps, plan.seed)
        careless = play_careless(Story(Path("runs"), late, stage, module=(*disguise, "careless")))
        for run_path in (demo, careless):
            export(run_path, samples / run_path.name)
            stage.say(f"recorded {samples / run_path.name}")
    return 0


def run_disguised(module: str, argv: list[str]) -> int:
    """Run a trainer of the demo as if on a machine called `HOST`, started by a path relative to the repository."""
    socket.gethostname = lambda: HOST
    platform.platform = lambda aliased=False, terse=False: SYSTEM  # noqa: ARG005 - as the standard library's
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/torchinductor"  # noqa: S108 - torch would put the user's name there
    sys.argv = [f"lineage/demo/{module}.py", *argv]
    return int(importlib.import_module(f"lineage.demo.{module}").main(argv))


def clone_head(repository: Path, target: Path) -> Path:
    """A clone of the repository's last commit, without a way back to where it came from."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(repository), str(target)], check=True)
    subprocess.run(["git", "-C", str(target), "remote", "remove", "origin"], check=True)
    return target.resolve()


def play_careless(story: Story) -> Path:
    """Kill a run, and go on with its weights alone."""
    story.stage.act("1", "A run begins", "Its script saves the weights now and then.")
    story.train_until_killed()
    story.stage.act("2", "The weights are loaded", "The loss looks reasonable.")
    story.train_to_the_end()
    return story.found()


def export(run_path: Path, target: Path) -> None:
    """Copy what a sample keeps of a run."""
    if target.exists():
        shutil.rmtree(target)
    for path in sorted(run_path.rglob("*")):
        inside = path.relative_to(run_path)
        in_generation = inside.parts[0] == "checkpoints" and len(inside.parts) == 3
        if not path.is_file() or path.name == "run.lock" or path.suffix == ".pt" or ".cache" in inside.parts:
            continue
        if in_generation and path.name not in _KEPT_OF_A_GENERATION:
            continue
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / inside)


if __name__ == "__main__":
    sys.exit(main())
