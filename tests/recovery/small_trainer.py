"""The small experiment of the recovery tests, as a script, so that every session is a process of its own.

    python small_trainer.py '[{"run_dir": ..., "session": 2, "until": 12, "save_at": [5], "resume": true, ...}, ...]'

Runs one session of each experiment named, and prints for each, as one JSON list, what every step did and digests of
the whole state at the end. AdamW and Muon, two schedulers,
a scaler that really skips, accumulation 2, dropout, tied weights, a buffer that changes in every forward pass, and
random numbers drawn from Python, NumPy and torch inside the loop.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lineage.checkpoint.discover import discover
from lineage.checkpoint.registry import Registry
from lineage.checkpoint.restore import RestoreContext, restore_newest
from lineage.checkpoint.sampler import ResumableSampler
from lineage.checkpoint.store import CheckpointStore, SaveContext
from lineage_schemas.checkpoint import Position, RecipePoint

ACCUMULATION = 2
RECIPE: dict[str, Any] = {"lr": 0.01, "max_steps": 12, "optimizer": {"betas": [0.9, 0.99]}, "log_every": 1}


class Tokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """103 short sequences: no multiple of the batch size, so that epochs end on a partial batch."""

    def __init__(self, length: int = 103) -> None:
        generator = torch.Generator().manual_seed(99)
        self.rows = torch.randint(0, 32, (length, 9), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index, :-1], self.rows[index, 1:]


class OwnLoader:
    """A loader of a user's own: state_dict, load_state_dict, an absolute sample count."""

    def __init__(self, data: Tokens, batch_size: int) -> None:
        self.data, self.batch_size, self.num_samples = data, batch_size, 0

    def state_dict(self) -> dict[str, int]:
        return {"num_samples": self.num_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_samples = state["num_samples"]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Any:
        while True:
            rows = [self.data[(self.num_samples + i) % len(self.data)] for i in range(self.batch_size)]
            self.num_samples += self.batch_size
            yield torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


class SmallModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.mix = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("load", torch.zeros(16))
        self.register_buffer("noise", torch.randn(8, 1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.embed(tokens)) + 0.1 * self.noise[: tokens.shape[1]]
        hidden = self.norm(hidden + torch.tanh(self.mix(hidden)))
        self.load.mul_(0.9).add_(hidden.detach().float().abs().mean((0, 1)), alpha=0.1)
        return self.head(hidden + self.load)


@dataclasses.dataclass
class Experiment:
    model: SmallModel
    adamw: torch.optim.Optimizer
    muon: torch.optim.Optimizer
    warmup: Any
    decay: Any
    scaler: torch.amp.GradScaler
    loader: Any
    registry: Registry


def build(seed: int, loader: str = "sampler", workers: int = 0, *, fixed: bool = False, **changes: Any) -> Experiment:
    """Everything new; `seed` only decides what a restore has to overwrite. `changes` are other recipes."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = SmallModel()
    weights = [model.mix.weight]
    others = [p for p in model.parameters() if p is not model.mix.weight]
    adamw = torch.optim.AdamW(others, lr=changes.get("lr", 0.01), betas=(0.9, 0.99), weight_decay=0.1)
    muon = torch.optim.Muon(weights, lr=0.02)
    schedulers = torch.optim.lr_scheduler
    t_max = changes.get("t_max", 20)
    warmup = schedulers.SequentialLR(
        adamw,
        [schedulers.LinearLR(adamw, 0.1, 1.0, 4), schedulers.CosineAnnealingLR(adamw, t_max)],
        milestones=[4],
    )
    decay = schedulers.LambdaLR(muon, lambda step: 1 / (1 + 0.1 * step))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=2)
    data: Any = Tokens(changes.get("length", 103))
    batch_size = changes.get("batch_size", 10)
    made: Any
    if loader == "sampler":
        sampler = ResumableSampler(data, shuffle=True, seed=5)
        made = DataLoader(data, batch_size=batch_size, sampler=sampler, num_workers=workers)
    elif loader == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        made = StatefulDataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers)
    else:
        made = OwnLoader(data, batch_size)
    registry = Registry()
    registry.track("model", model)
    registry.track("adamw", adamw)
    registry.track("muon", muon)
    registry.track("warmup", warmup)
    registry.track("decay", decay)
    registry.track("scaler", scaler)
    registry.track("train_loader", made, "loader")
    if fixed:
        registry.loader().fix_batch()
    return Experiment(model, adamw, muon, warmup, decay, scaler, made, registry)


def train_step(experiment: Experiment, batches: Any) -> dict[str, Any]:
    """One step of two microbatches; what it did, exactly."""
    losses = []
    for _ in range(ACCUMULATION):
        tokens, targets = next(batches)
        with torch.autocast("cpu", torch.float16):
            logits = experiment.model(tokens)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        experiment.scaler.scale(loss / ACCUMULATION).backward()
        losses.append(loss.item())
    scale = experiment.scaler.get_scale()
    for optimizer in (experiment.adamw, experiment.muon):
        experiment.scaler.step(optimizer)
    experiment.scaler.update()
    for optimizer in (experiment.adamw, experiment.muon):
        optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a first step that the scaler skipped looks to torch like a wrong order
        experiment.warmup.step()
        experiment.decay.step()
    return {
        "loss": [value.hex() for value in losses],
        "scale": scale,
        "skipped": experiment.scaler.get_scale() < scale,
        "lr": [group["lr"] for opt in (experiment.adamw, experiment.muon) for group in opt.param_groups],
        "draws": [random.random().hex(), float(np.random.rand()).hex(), torch.rand(1).item().hex()],
    }


def digest(value: Any) -> str:
    """Over every bit of nested state."""
    found = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            found.update(f"{item.dtype}{tuple(item.shape)}".encode())
            found.update(
                item.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if item.numel() else b""
            )
        elif isinstance(item, dict):
            for key, inner in item.items():
                found.update(repr(key).encode())
                add(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                add(inner)
        else:
            found.update(repr(item).encode())

    add(value)
    return found.hexdigest()


def digests(experiment: Experiment) -> dict[str, str]:
    """One digest per family: equal exactly when that part of the state is equal to the last bit."""
    registry = experiment.registry
    return {
        "model": digest({**experiment.model.state_dict(), "noise": experiment.model.noise}),
        "adamw": digest(experiment.adamw.state_dict()),
        "muon": digest(experiment.muon.state_dict()),
        "warmup": digest(experiment.warmup.state_dict()),
        "decay": digest({k: v for k, v in experiment.decay.state_dict().items() if k != "lr_lambdas"}),
        "scaler": digest(experiment.scaler.state_dict()),
        "loader": registry.loader().cursor_digest(),
        "python": digest(random.getstate()),
        "numpy": digest([np.random.get_state()[1].tolist(), *np.random.get_state()[2:]]),
        "torch": digest(torch.get_rng_state()),
    }


def contexts(session: int = 1, recipe: dict[str, Any] | None = None, **more: Any) -> tuple[SaveContext, RestoreContext]:
    value = RECIPE | (recipe or {})
    point = RecipePoint(fingerprint=hashlib.sha256(json.dumps(value).encode()).hexdigest(), value=value)
    save = SaveContext(run="small", session=f"s{session:02d}-0000000{session}", ordinal=session, recipe=point)
    return save, RestoreContext(run="small", recipe=point, **more)


def run_session(config: dict[str, Any]) -> dict[str, Any]:
    """One session: from nothing or from the newest checkpoint, to `until`, saving where asked."""
    session = config.get("session", 1)
    kind = {"loader": config.get("loader", "sampler"), "workers": config.get("workers", 0)}
    experiment = build(config.get("seed", session), fixed=config.get("fixed", False) and session == 1, **kind)
    registry = experiment.registry
    run_dir = Path(config["run_dir"])
    run_dir.mkdir(parents=True, exist_ok=True)
    save_context, restore_context = contexts(session)
    step, updates, skipped = 0, 0, 0
    proven: tuple[str, ...] = ()
    if config.get("resume"):
        restored = restore_newest(discover(run_dir), registry, restore_context)
        assert restored is not None
        batches = registry.loader().iterate()
        proven = restored.finish()
        position = restored.position
        step, updates, skipped = position.step, position.num_updates, position.num_skipped
    else:
        batches = registry.loader().iterate()
    trace: dict[str, Any] = {}
    store = CheckpointStore(run_dir, registry)
    while step < config["until"]:
        did = train_step(experiment, batches)
        step += 1
        skipped += did["skipped"]
        updates += not did["skipped"]
        trace[str(step)] = did | {"updates": updates, "num_skipped": skipped}
        if step in config.get("save_at", ()):
            store.save(Position(step=step, num_updates=updates, num_skipped=skipped), save_context)
    following = [random.random().hex(), float(np.random.rand()).hex(), torch.rand(1).item().hex()]
    ids = [digest(list(next(batches))) for _ in range(2)]
    return {
        "trace": trace,
        "state": digests(experiment),
        "counters": [step, updates, skipped],
        "next_draws": following,
        "next_batches": ids,
        "proven": list(proven),
        "finite": all(math.isfinite(float.fromhex(v)) for t in trace.values() for v in t["loss"]),
    }


def main() -> None:
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([run_session(config) for config in json.loads(sys.argv[1])]) + "\n")


if __name__ == "__main__":
    main()
