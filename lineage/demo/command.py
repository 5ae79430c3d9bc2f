"""`lineage demo`: the story of lineage.demo.story, from the command line."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from lineage.cli import ENTRY_POINTS, VERBS
from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode
from lineage.cli.output import Output
from lineage.cli.values import whole


class DemoCommand(Command):
    """Train a tiny GPT through a bad night, and see what is left of it.

    A real model of a million parameters learns real text, on the CPU, in real processes: the first is killed, the
    second goes on from the last checkpoint and is preempted, the third finishes, and a fourth, which would quietly
    train something else, is refused. It takes about a minute on two cores and needs PyTorch.

    The story is told on stderr; the run's folder is the one line on stdout.
    """

    name = "demo"
    summary = "train a tiny GPT through a kill, a resume and a preemption"
    examples = (("lineage demo --fast", "the whole story in half a minute, recorded in ./runs"),)

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        from lineage.demo.story import MAX_SEED, MIN_STEPS

        parser.add_argument("dir", nargs="?", metavar="DIR", help="folder of runs (default: that of --runs)")
        parser.add_argument(
            "--steps", type=whole(MIN_STEPS), metavar="N", help="steps of the whole run, at least 60 (default: 180)"
        )
        parser.add_argument(
            "--seed", type=whole(0, MAX_SEED), default=1, metavar="S", help="of weights, dropout and data (default: 1)"
        )
        parser.add_argument("--fast", action="store_true", help="the same story with a quarter of the training")

    def run(self, args: argparse.Namespace) -> ExitCode:
        from importlib.metadata import entry_points

        from rich.console import Console

        from lineage.demo.stage import Stage
        from lineage.demo.story import Plan, Story

        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        plan = Plan.make(steps=args.steps, seed=args.seed, fast=args.fast)
        run_path = Story(Path(args.dir or args.runs), plan, Stage(console)).play()
        ref = shlex.quote(str(run_path))
        console.print()
        console.print("Worth typing:", style="bold")
        for verb, arguments, says in (
            ("tui", ref, "the curves, with everything that happened drawn on them"),
            ("show", ref, "its three sessions: how each began and ended"),
            ("log", f"{ref} --kind fp16_skip", "the steps that changed no weight"),
            ("audit", ref, "whether each resume carried on the same experiment"),
            ("explain", f"{ref} --step {plan.kill_after + 1}", "what happened around the first resume"),
        ):
            if verb in VERBS or verb in entry_points(group=ENTRY_POINTS).names:
                console.print(f"   lineage {verb} {arguments}", style="cyan", soft_wrap=True)
                console.print(f"      {says}", style="dim")
        console.print("\nThe run:")
        console.file.flush()
        Output().text(str(run_path))
        return ExitCode.OK
