"""A tiny trainer that lives in the test's own process: a run of thirty steps takes a fraction of a second."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lineage


class Trainer:
    """Model, optimizer, scheduler, scaler and loader, made anew from a seed as a fresh process would."""

    def __init__(self, *, lr: float = 0.05, seed: int = 0, batch_size: int = 4, init_scale: float = 1024.0) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        x = torch.randn(48, 4)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        self.loader = DataLoader(
            data, batch_size=batch_size, sampler=lineage.ResumableSampler(len(data), shuffle=True, seed=seed)
        )
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=1000)
        self.recipe = {"lr": lr, "seed": seed, "batch_size": batch_size}

    def track(self, run: lineage.Run) -> None:
        run.track(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            train_loader=self.loader,
        )

    def step(self, batch: Any, *, overflow: bool = False) -> torch.Tensor:
        inputs, targets = batch
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        self.scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return loss

    def train(
        self,
        run: lineage.Run,
        total: int,
        *,
        save_every: int = 10,
        stop_after: int | None = None,
        overflow_at: tuple[int, ...] = (),
        each: Callable[[int], None] = lambda _: None,
    ) -> list[float]:
        """Losses of the steps trained; `stop_after` leaves the loop without an end, as a kill would."""
        losses: list[float] = []
        batches = run.batches(self.loader)
        for step in run.steps(total):
            loss = self.step(next(batches), overflow=step in overflow_at)
            run.log(loss=loss, samples=4)
            losses.append(float(loss.detach()))
            if step % save_every == 0:
                run.checkpoint()
            each(step)
            if step == stop_after:
                break
        return losses


@pytest.fixture
def make() -> type[Trainer]:
    return Trainer


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., lineage.Run]]:
    """`lineage.init` in this test's folder; runs left open are let go of as a killed process lets go of them."""
    opened: list[lineage.Run] = []

    def init(**options: Any) -> lineage.Run:
        run = lineage.init(tmp_path / "runs", **{"name": "tiny", "system_interval_s": 1e9, **options})
        opened.append(run)
        return run

    yield init
    for run in opened:
        let_go(run)


@pytest.fixture
def abandon() -> Callable[[lineage.Run], None]:
    return let_go


@pytest.fixture
def events_of() -> Callable[[lineage.Run, str], list[dict[str, Any]]]:
    return lines_of


def let_go(run: lineage.Run) -> None:
    """What a SIGKILL leaves: no end, a free lock."""
    from lineage.trainer import endings

    endings.forget(run)
    run._optimizers.remove()
    run._recorder.close()


def lines_of(run: lineage.Run, kind: str) -> list[dict[str, Any]]:
    found = [orjson.loads(line) for line in (run.path / "metrics.jsonl").read_bytes().splitlines()]
    return [event for event in found if event["kind"] == kind]
