"""A run folder of any size without any training: kills, overlaps, skips, evals, checkpoints and a NaN.

`python -m benchmarks.synthetic DIR --steps N --sessions K --seed S` writes one into the folder of runs DIR. The same
arguments give the same bytes; only the values are invented, every line is what the hook would write.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from lineage_schemas import events, ids
from lineage_schemas import run as schema

START = 1_764_423_612.0
"""2025-11-29 13:40:12 UTC."""
METRICS = ("loss", "lr", "grad_norm", "aux_loss", "z_loss")
_BLOCK = 8192
_NEWLINE = orjson.OPT_APPEND_NEWLINE


@dataclass
class Plan:
    """What to write.

    Attributes:
        steps: last step of the effective history.
        sessions: processes; all but the last die, the second by a clean preemption.
        overlap: steps a killed session trained after its last checkpoint.
        metrics: how many of `METRICS` each step has.
        nan_at: step whose loss is NaN; 0 for none.
        diverged: by how much, relatively, the loss of a resumed session differs from a first attempt at the same step;
            0 is an exact resume.
        skip_every: one FP16 skip about every so many steps; 0 for none.
        live: leave the last session without an end.
    """

    steps: int = 600
    sessions: int = 3
    seed: int = 0
    name: str = "synthetic"
    overlap: int = 37
    metrics: int = 3
    checkpoint_every: int = 100
    eval_every: int = 100
    nan_at: int = -1
    diverged: float = 0.0
    skip_every: int = 97
    live: bool = False
    step_s: float = 0.12
    tokens: int = 8192
    started_at: float = START


@dataclass
class _Writer:
    plan: Plan
    run_id: str
    out: Any
    now: float = 0.0
    lines: int = 0
    session: str = ""
    buffer: list[bytes] = field(default_factory=list)

    def event(self, kind: str, step: int | None = None, **fields: Any) -> None:
        event = {"kind": kind, "ts": round(self.now, 6), "run": self.run_id, "session": self.session}
        if step is not None:
            event["step"] = step
        self.buffer.append(orjson.dumps(event | fields, option=_NEWLINE))
        if len(self.buffer) >= 4096:
            self.flush()

    def flush(self) -> None:
        self.out.write(b"".join(self.buffer))
        self.buffer.clear()


def digest(*parts: object, size: int = 16) -> str:
    """A hex digest that depends on `parts` alone."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=size).hexdigest()


def learning_rate(step: int, steps: int, peak: float = 3e-4) -> float:
    """Warm-up over 5 % of the run, then a cosine."""
    warm = max(1, steps // 20)
    if step <= warm:
        return peak * step / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _split_points(plan: Plan) -> list[int]:
    """The step each session but the first starts from: checkpoints, about evenly apart."""
    points: list[int] = []
    for index in range(1, plan.sessions):
        step = plan.steps * index // plan.sessions // plan.checkpoint_every * plan.checkpoint_every
        points.append(max(step, (points[-1] if points else 0) + 1))
    return points


def write_run(runs_dir: Path, plan: Plan | None = None, **changes: Any) -> Path:
    """Write one run and return its folder; `changes` are fields of `Plan`.

    Raises:
        FileExistsError: the folder is there already.
    """
    plan = plan or Plan(**changes)
    created = datetime.fromtimestamp(plan.started_at, UTC)
    run_id = ids.make_run_id(plan.name, created)
    folder = runs_dir / run_id
    folder.mkdir(parents=True)
    nan_at = plan.steps * 2 // 5 if plan.nan_at < 0 else plan.nan_at
    starts = [0, *_split_points(plan)]
    sessions: list[schema.Session] = []
    environment = schema.Environment(
        python="3.11.9", implementation="CPython", platform="Linux-6.1", machine="x86_64", packages={"torch": "2.13.0"}
    )
    environment_digest = digest("environment", size=32)
    with (folder / "metrics.jsonl").open("wb", 1 << 20) as out:
        writer = _Writer(plan, run_id, out, now=plan.started_at)
        for index, start in enumerate(starts):
            is_last = index == len(starts) - 1
            preempted = index == 1 and not is_last
            end = plan.steps if is_last else starts[index + 1] + (0 if preempted else plan.overlap)
            sessions.append(
                _write_session(
                    writer, index + 1, start, end, sessions, nan_at=nan_at, is_last=is_last, preempted=preempted
                )
            )
            writer.now += 240.0 + 60.0 * index
        writer.flush()
    record = schema.Run(
        id=run_id,
        name=plan.name,
        created_at=created,
        tags=["synthetic"],
        sessions=[s.model_copy(update={"environment": environment_digest}) for s in sessions],
        environments={environment_digest: environment},
    )
    (folder / "run.json").write_bytes(orjson.dumps(record.to_wire(), option=orjson.OPT_INDENT_2 | _NEWLINE))
    return folder


def _recipe(plan: Plan) -> schema.Recipe:
    value = {"model": {"layers": 4, "width": 128}, "lr": 3e-4, "steps": plan.steps, "seed": plan.seed}
    fingerprint = hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return schema.Recipe(value=value, fingerprint=fingerprint)


def _write_session(
    writer: _Writer,
    ordinal: int,
    start: int,
    end: int,
    earlier: list[schema.Session],
    *,
    nan_at: int,
    is_last: bool,
    preempted: bool,
) -> schema.Session:
    plan = writer.plan
    nonce = int(digest(plan.seed, ordinal, size=4), 16)
    writer.session = ids.make_session_id(ordinal, nonce)
    started_at = datetime.fromtimestamp(writer.now, UTC)
    began = schema.Start(kind="fresh")
    if earlier:
        made_by = next(s for s in reversed(earlier) if s.start.step < start or s is earlier[0])
        checkpoint = ids.make_generation_name(start, made_by.ordinal, int(digest(plan.seed, start, size=4), 16))
        began = schema.Start(kind="resume", step=start, checkpoint=checkpoint, session=made_by.id)
    host = f"node-{ordinal}"
    writer.event(
        "session_start",
        start,
        format=events.FORMAT.to_wire(),
        ordinal=ordinal,
        start=began.to_wire(),
        pid=4000 + ordinal,
        host=host,
    )
    if earlier:
        lr = learning_rate(start + 1, plan.steps)
        writer.event(
            "checkpoint_restored",
            start,
            checkpoint=began.checkpoint,
            from_run=writer.run_id,
            from_session=began.session,
            manifest_sha256=digest("manifest", start, size=32),
            discovery_s=0.004,
            load_s=0.31,
        )
        group = {"optimizer": "adamw", "group": 0, "before": 3e-4, "after": lr, "expected": lr}
        writer.event("lr_restore", start, groups=[group], ok=True)
    checkpoints = _write_steps(writer, ordinal, start, end, nan_at)
    continuation: schema.Continuation | None = None
    if earlier:
        overlap = max(0, (earlier[-1].last_step or 0) - start)
        continuation = schema.Continuation(
            verdict="unproven" if not overlap else "diverged" if plan.diverged else "exact",
            from_step=start,
            compared_steps=overlap,
            against=earlier[-1].id,
            reason="" if overlap else "no step was trained twice",
        )
        writer.event("continuation", end, **continuation.to_wire(), final=True)
    status: schema.SessionStatus = "completed" if is_last else "preempted" if preempted else "killed"
    if is_last and plan.live:
        status = "running"
    if status in {"completed", "preempted"}:
        writer.event("session_end", end, status=status, **({"reason": "SIGTERM"} if preempted else {}))
    return schema.Session(
        id=writer.session,
        ordinal=ordinal,
        started_at=started_at,
        ended_at=datetime.fromtimestamp(writer.now, UTC) if status not in {"running", "killed"} else None,
        status=status,
        reason={"preempted": "SIGTERM", "killed": "no end recorded"}.get(status),
        pid=4000 + ordinal,
        host=host,
        argv=["train.py", "--steps", str(plan.steps)],
        recipe=_recipe(plan),
        source=schema.Source(commit=digest("commit", size=20), branch="main", dirty=False),
        environment="0" * 64,
        start=began,
        checkpoints=checkpoints,
        continuation=continuation,
        last_step=end if end > start else None,
    )


def _blocks(start: int, end: int) -> Iterator[range]:
    """The steps after `start` up to `end`, cut at multiples of `_BLOCK`."""
    step = start + 1
    while step <= end:
        stop = min(end + 1, (step // _BLOCK + 1) * _BLOCK)
        yield range(step, stop)
        step = stop


def _noise(seed: int, steps: range) -> npt.NDArray[np.float64]:
    """Four columns of noise that depend on the step alone, so that a second attempt at it has the same."""
    block, first = divmod(steps[0], _BLOCK)
    return np.random.default_rng([seed, block]).standard_normal((_BLOCK, 4))[first : first + len(steps)]


def _write_steps(writer: _Writer, ordinal: int, start: int, end: int, nan_at: int) -> list[str]:
    """The steps `start + 1 .. end` with what happens around them; the names of the generations saved."""
    plan = writer.plan
    checkpoints: list[str] = []
    names = METRICS[: plan.metrics]
    num_skipped = 0
    witness_until = start + 20
    for steps in _blocks(start, end):
        at = np.array(steps)
        noise = _noise(plan.seed, steps)
        pace = np.random.default_rng([plan.seed, ordinal, steps[0]]).standard_normal(len(steps))
        durations = (plan.step_s * (1 + 0.05 * np.abs(pace))).round(6).tolist()
        drift = plan.diverged if ordinal > 1 else 0.0
        columns = {
            "loss": (2.0 + 8.0 * np.exp(-at / (plan.steps / 5)) + 0.1 * noise[:, 1]) * (1 + drift),
            "lr": np.array([learning_rate(s, plan.steps) for s in steps]),
            "grad_norm": np.exp(0.2 * noise[:, 2]),
            "aux_loss": 0.01 + 0.001 * noise[:, 3],
            "z_loss": 1e-4 * np.exp(noise[:, 0]),
        }
        rows = zip(*(columns[name].tolist() for name in names), strict=True)
        for step, duration, row in zip(steps, durations, rows, strict=True):
            writer.now += duration
            metrics: dict[str, float | None] = dict(zip(names, row, strict=True))
            fields: dict[str, Any] = {"metrics": metrics}
            if step == nan_at:
                metrics["loss"] = None
                fields["nonfinite"] = {"loss": "nan"}
            fields |= {"duration_s": duration, "tokens": plan.tokens}
            if step <= witness_until:
                fields["witness"] = {
                    "batch": digest("batch", step, size=8),
                    "rng": digest("rng", step, size=8),
                    "lr": {"adamw": [metrics.get("lr", 1e-3)]},
                }
            writer.event("step", step, **fields)
            if step == nan_at:
                message = f"loss is nan at step {step}"
                writer.event("alert", step, code="non_finite", message=message, severity="error", details={})
            if plan.skip_every and step % plan.skip_every == 0:
                num_skipped += 1
                updates = {"num_updates": step - num_skipped, "num_skipped": num_skipped}
                writer.event("fp16_skip", step, scale_before=65536.0, scale_after=32768.0, **updates)
            if step % plan.eval_every == 0:
                writer.event("phase_start", step, phase="eval")
                writer.now += 1.5
                value = {"loss": 2.1 + 8.0 * math.exp(-step / (plan.steps / 5))}
                writer.event("eval", step, name="eval", metrics=value, duration_s=1.5)
                writer.event("phase_end", step, phase="eval", duration_s=1.5)
            if step % plan.checkpoint_every == 0:
                nonce = int(digest(plan.seed, step, size=4), 16)
                name = ids.make_generation_name(step, ordinal, nonce)
                checkpoints.append(name)
                writer.event("phase_start", step, phase="checkpoint")
                writer.now += 0.4
                sha = digest("manifest", step, size=32)
                saved = {"checkpoint": name, "manifest_sha256": sha, "size_bytes": 5_000_000, "duration_s": 0.4}
                writer.event("checkpoint_saved", step, **saved)
                writer.event("phase_end", step, phase="checkpoint", duration_s=0.4)
                witness_until = step + 20
    return checkpoints


def main(argv: list[str]) -> int:
    """Write a run and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic", description=__doc__)
    parser.add_argument("dir", type=Path)
    for name, kind in (("steps", int), ("sessions", int), ("seed", int), ("name", str), ("metrics", int)):
        parser.add_argument(f"--{name}", type=kind, default=getattr(Plan, name))
    for name in ("overlap", "checkpoint-every", "eval-every", "skip-every"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Plan, name.replace("-", "_")))
    parser.add_argument("--diverged", type=float, default=Plan.diverged)
    parser.add_argument("--live", action="store_true")
    options = vars(parser.parse_args(argv))
    folder = options.pop("dir")
    sys.stdout.write(f"{write_run(folder, Plan(**options))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
