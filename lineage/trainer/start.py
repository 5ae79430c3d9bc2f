"""`lineage.init`: which run this process works on, and whether it may."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from lineage.errors import NotFoundError, UsageError
from lineage.trainer.facts import capture_facts, rank_and_world
from lineage.trainer.numbers import count
from lineage.trainer.options import check_options, tolerance_of, words
from lineage.trainer.run import Run
from lineage.trainer.silent import SilentRun
from lineage_schemas.ids import parse_generation_name
from lineage_schemas.run import DataIdentity, Tolerance

if TYPE_CHECKING:
    from lineage.runs.store import RunStore

ContinuationPolicy = Literal["warn", "stop", "off"]


def init(
    runs_dir: str | os.PathLike[str] = "runs",
    *,
    name: str | None = None,
    recipe: Any = None,
    resume: str | os.PathLike[str] = "auto",
    fork: bool = False,
    allow: Sequence[str] = (),
    quarantined: bool = False,
    keep: int | None = None,
    keep_every: int | None = None,
    tags: Sequence[str] = (),
    notes: str = "",
    data: Mapping[str, DataIdentity | str] | None = None,
    accumulation: int = 1,
    precision: str | None = None,
    continuation: ContinuationPolicy = "warn",
    tolerance: Tolerance | float | None = None,
    writer_rank: int = 0,
    log_every: int = 1,
    witness_steps: int = 64,
    sync_interval_s: float = 5.0,
    system_interval_s: float = 30.0,
) -> Run:
    """Open a run for this process: a new one, or one to go on with.

    Takes the run's lock; writes nothing into an existing run until `Run.restore` (or the first step) succeeded.

    Args:
        runs_dir: folder of runs; made when missing.
        name: what people call the experiment; part of a new run's id. Default: the name of the current folder.
        recipe: the effective, fully resolved configuration: a dict, dataclass, Pydantic model, argparse Namespace, or
            anything like a mapping. Secrets in it are masked.
        resume: `"auto"` goes on with the newest unfinished run of that name, else starts one; `"must"` goes on or fails
            and, where all are completed, takes the newest of them; `"never"` starts one; else a run's id or path, or
            the path of a checkpoint: of a run in `runs_dir`, the run goes on from there; of any other run, or under
            another `name`, a new run is linked to it.
        fork: start a new run, linked to the checkpoint that `resume` finds; its recipe may differ.
        allow: paths or patterns of differences you take responsibility for, as the refusal of a restore names them
            (`"recipe.lr"`, `"runtime.*"`); the session records them.
        quarantined: restore a quarantined generation all the same.
        keep: newest generations to keep after each checkpoint, beside what is pinned, verified or was restored; None
            keeps every generation.
        keep_every: keep generations whose step is a multiple of this, too.
        tags: words to find the run by; of a new run only.
        notes: a remark; of a new run only.
        data: identity of each split: your own words, or what `lineage.fingerprint_files` returned.
        accumulation: microbatches to a step, where the recipe does not say it; a resume with another number is refused.
        precision: the word for how the loop computes (`"float16"`, `"bf16-mixed"`), likewise.
        continuation: what to do when a resumed session trains a step another way than it was trained before:
            `"warn"` (an alert), `"stop"` (raise at that step), `"off"` (do not compare).
        tolerance: what the continuation may differ by, declared before it trains: a relative tolerance, or a
            `Tolerance`. None is exact on a CPU and a thousandth on an accelerator; the session says which.
        writer_rank: the rank that writes; on every other rank the run is a no-op.
        log_every: write every Nth step only; the others cost no device sync.
        witness_steps: steps after a start and after each checkpoint that carry a witness.
        sync_interval_s: the log is synced to disk at least this often.
        system_interval_s: how often figures of the machine are logged.

    Raises:
        NotFoundError: `"must"` and there is nothing to go on with, or no such run or checkpoint.
        LockedError: another live process works on the run.
        UsageError: arguments that contradict each other, or mean nothing; every problem at once.
    """
    rank, world = rank_and_world()
    if count(writer_rank) is None or writer_rank >= world:
        raise UsageError(
            f"writer_rank={writer_rank!r:.100} is none of {world} ranks, so nothing would be written",
            hint=f"ranks are counted from 0; the last one is {world - 1}",
        )
    if rank != writer_rank:
        return SilentRun(rank=rank, world=world)
    if continuation not in ("warn", "stop", "off"):
        raise UsageError(f"continuation={continuation!r}", hint='use "warn", "stop" or "off"')
    tags, allow = words(tags), words(allow)
    check_options(
        texts={"notes": notes} if name is None else {"name": name, "notes": notes},
        lists={"tags": tags, "allow": allow},
        counts={
            "keep": (1 if keep is None else keep, 1),
            "keep_every": (1 if keep_every is None else keep_every, 1),
            "accumulation": (accumulation, 1),
            "log_every": (log_every, 1),
            "witness_steps": (witness_steps, 0),
        },
        sync_interval_s=sync_interval_s,
        data=data,
    )
    from lineage.trainer.keeper import Keeper
    from lineage.trainer.recorder import Recorder

    runs_dir = Path(runs_dir).absolute()  # a script may go elsewhere later
    target = Target.find(runs_dir, name or Path.cwd().name, resume, fork=fork, named=name is not None)
    facts = capture_facts(recipe=recipe, data=data, tolerance=tolerance_of(tolerance), rank=rank, world=world)
    store = target.open(runs_dir, tags=tags, notes=notes)
    recorder = Recorder(store, facts, is_new=target.is_new, sync_interval_s=sync_interval_s)
    keeper = Keeper(
        recorder,
        target,
        allow=allow,
        quarantined=quarantined,
        keep=keep,
        keep_every=keep_every,
        accumulation=accumulation,
        precision=precision,
    )
    return Run(
        recorder,
        keeper,
        continuation=continuation,
        log_every=log_every,
        witness_steps=witness_steps,
        system_interval_s=system_interval_s,
    )


@dataclass(frozen=True)
class Target:
    """What a start goes on with.

    Attributes:
        name: of a new run.
        run_dir: the existing run that is resumed, or whose checkpoint is forked; None for a new run.
        checkpoint: the one generation asked for; None for the newest usable one.
        must: whether a run without any checkpoint is an error.
        fork: whether a new run is made, linked to the checkpoint.
    """

    name: str
    run_dir: Path | None = None
    checkpoint: Path | None = None
    must: bool = False
    fork: bool = False

    @property
    def is_new(self) -> bool:
        return self.run_dir is None or self.fork

    @classmethod
    def find(
        cls, runs_dir: Path, name: str, resume: str | os.PathLike[str], *, fork: bool = False, named: bool = True
    ) -> Self:
        """Decide what to go on with; looks, and changes nothing.

        Raises:
            NotFoundError, UsageError, FormatError: see `init`.
        """
        from lineage.runs.index import newest_unfinished

        wanted = os.fspath(resume)
        if wanted == "never":
            if fork:
                raise UsageError('fork=True with resume="never"', hint="name the run or checkpoint to fork from")
            return cls(name)
        if wanted in ("auto", "must"):
            entry = newest_unfinished(runs_dir, name, or_completed=wanted == "must")
            if entry is not None:
                return cls(name, entry.dir.path, must=wanted == "must", fork=fork)
            if wanted == "must" or fork:
                raise NotFoundError(
                    f"no run to go on with is called {name!r}", str(runs_dir), 'start one with resume="auto" or "never"'
                )
            return cls(name)
        path = Path(wanted).absolute()
        if parse_generation_name(path.name) is not None or (path / "manifest.json").exists():
            return cls._from_checkpoint(runs_dir, name, path, fork=fork, named=named)
        return cls._from_run(runs_dir, name, wanted, fork=fork)

    @classmethod
    def _from_checkpoint(cls, runs_dir: Path, name: str, path: Path, *, fork: bool, named: bool) -> Self:
        from lineage.runs.store import read_run

        if not path.is_dir():
            raise NotFoundError("there is no such checkpoint", str(path), "lineage checkpoints RUN lists them")
        run_dir = path.resolve().parent.parent
        home = (run_dir / "run.json").exists() and run_dir.parent == runs_dir.resolve()
        other = not home or (named and read_run(run_dir).name != name)
        return cls(name, run_dir if home else None, path, must=True, fork=fork or other)

    @classmethod
    def _from_run(cls, runs_dir: Path, name: str, wanted: str, *, fork: bool) -> Self:
        from lineage.runs.index import resolve

        found = resolve(wanted, runs_dir)
        if found.session is not None:
            raise UsageError(
                f"resume={wanted!r} names a session",
                hint="name its run, or the path of one of its checkpoints",
            )
        return cls(name, found.run_dir.path.absolute(), must=fork, fork=fork)

    def open(self, runs_dir: Path, *, tags: Sequence[str], notes: str) -> RunStore:
        """Take the lock of the run to write: the existing one, or a new one.

        Raises:
            LockedError: another live process holds it.
        """
        from lineage.runs.store import create_run, open_run

        if self.run_dir is not None and not self.fork:
            return open_run(self.run_dir)
        return create_run(runs_dir, self.name, tags=tags, notes=notes)
