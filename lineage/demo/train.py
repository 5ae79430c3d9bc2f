"""Train a tiny GPT on the text inside Python, on a CPU, through whatever may happen to the process.

This is the example to read: a plain training script, in which every line that is there for Lineage is marked. Start it,
kill it, and start it again; it goes on where its last checkpoint stands.

    python -m lineage.demo.train --steps 180 --runs runs

The first line it prints is the folder of the run.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F  # noqa: N812 - the name that every PyTorch script uses
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import lineage
from lineage.demo.data import Blocks, fingerprint, read_text, split_text
from lineage.demo.model import GPT, ModelConfig


@dataclass(frozen=True)
class Config:
    """Everything that determines this training; it becomes the recipe of the run.

    Attributes:
        max_steps: steps of the whole run, over all its sessions; the learning rate comes to its end there.
        batch_size: blocks in a microbatch; a step takes `accumulation` microbatches.
        block_size: bytes in a block: the sequence length.
        init_scale: so large that float16 gradients overflow and the first steps are skipped, as at many a real start.
        growth_interval: updates after which the loss scale doubles; short, so that it overflows later, too.
        eval_blocks: blocks of held-out text that an evaluation reads.
    """

    max_steps: int = 180
    seed: int = 1
    batch_size: int = 8
    accumulation: int = 2
    block_size: int = 64
    n_layer: int = 3
    n_head: int = 5
    n_embd: int = 160
    dropout: float = 0.05
    adamw_lr: float = 0.01
    muon_lr: float = 0.04
    warmup_steps: int = 10
    grad_clip: float = 1.0
    init_scale: float = 2.0**24
    growth_interval: int = 20
    eval_every: int = 15
    eval_blocks: int = 64
    checkpoint_every: int = 30
    threads: int = 2


class Trainer:
    """Model, optimizers, schedules, scaler and data of one configuration, all fresh."""

    def __init__(self, config: Config) -> None:
        torch.manual_seed(config.seed)
        torch.set_num_threads(config.threads)
        torch.use_deterministic_algorithms(mode=True)
        self.config = config

        self.text = read_text()
        train_text, val_text = split_text(self.text)
        train_data, self.val_data = Blocks(train_text, config.block_size), Blocks(val_text, config.block_size)
        sampler = lineage.ResumableSampler(train_data, shuffle=True, seed=config.seed)  # lineage
        self.loader = DataLoader(train_data, batch_size=config.batch_size, sampler=sampler, drop_last=True)

        shape = ModelConfig(
            block_size=config.block_size,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            dropout=config.dropout,
        )
        self.model = GPT(shape)
        # Muon for the matrices inside the blocks, AdamW for the rest: embeddings and norms.
        matrices = {name: p for name, p in self.model.named_parameters() if name.startswith("blocks") and p.ndim == 2}
        others = [p for name, p in self.model.named_parameters() if name not in matrices]
        self.adamw = AdamW(others, lr=config.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.muon = Muon(matrices.values(), lr=config.muon_lr, weight_decay=0.01)
        self.adamw_schedule = self.warmup_and_cosine(self.adamw)
        self.muon_schedule = self.warmup_and_cosine(self.muon)
        self.scaler = GradScaler("cpu", init_scale=config.init_scale, growth_interval=config.growth_interval)

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def warmup_and_cosine(self, optimizer: Optimizer) -> LambdaLR:
        """Linear warm-up, then a cosine down to a tenth; counts updates, so that a skipped step does not use it up."""
        warmup, total = self.config.warmup_steps, self.config.max_steps

        def factor(update: int) -> float:
            if update < warmup:
                return (update + 1) / warmup
            done = (update - warmup) / max(1, total - warmup)
            return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))

        return LambdaLR(optimizer, factor)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the batch, nats per byte."""
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(inputs)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def step(self, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float, Tensor]:
        """One step over `accumulation` microbatches: `(loss, learning rate of Muon, gradient norm before clipping)`."""
        total = 0.0
        for _ in range(self.config.accumulation):
            inputs, targets = next(batches)
            loss = self.loss(inputs, targets) / self.config.accumulation
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch
            total += loss.item()

        self.scaler.unscale_(self.adamw)
        self.scaler.unscale_(self.muon)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        lr = float(self.muon_schedule.get_last_lr()[0])
        if norm.isfinite():  # the scaler judges each optimizer alone; what overflowed in one must stop both
            self.scaler.step(self.adamw)
            self.scaler.step(self.muon)
            self.adamw_schedule.step()
            self.muon_schedule.step()
        self.scaler.update()
        self.adamw.zero_grad()
        self.muon.zero_grad()
        return total, lr, norm

    @torch.no_grad()
    def evaluate(self) -> float:
        """Loss on the same held-out blocks each time; draws no random number."""
        self.model.eval()
        chosen = torch.linspace(0, len(self.val_data) - 1, self.config.eval_blocks).long().tolist()
        inputs, targets = zip(*(self.val_data[i] for i in chosen), strict=True)
        loss = self.loss(torch.stack(inputs), torch.stack(targets)).item()
        self.model.train()
        return loss


def train(config: Config, *, runs: str, name: str, resume: str) -> None:
    """Train from wherever the run stands to `config.max_steps`."""
    t = Trainer(config)
    data = {"text": fingerprint(t.text)}
    run = lineage.init(  # lineage
        runs, name=name, recipe=config, resume=resume, data=data, accumulation=config.accumulation, precision="float16"
    )
    run.track(model=t.model, adamw=t.adamw, muon=t.muon, scaler=t.scaler, train_loader=t.loader)  # lineage
    run.track(adamw_schedule=t.adamw_schedule, muon_schedule=t.muon_schedule)  # lineage
    run.restore()  # lineage
    run.note(f"{t.num_parameters:,} parameters, {len(t.text):,} bytes of text")  # lineage, optional
    print(run.path, flush=True)  # noqa: T201 - a script for people

    batches = run.batches(t.loader)  # lineage: instead of iter(t.loader), and goes on for ever
    tokens = config.accumulation * config.batch_size * config.block_size
    for step in run.steps(config.max_steps):  # lineage: instead of range(1, config.max_steps + 1)
        loss, lr, norm = t.step(batches)
        run.log(loss=loss, lr=lr, grad_norm=norm, tokens=tokens)  # lineage
        if step == 3 and run.num_updates == 0:
            run.alert("three steps and no update: the loss scale began too high", code="no_update")  # lineage, optional
        if step % config.eval_every == 0:
            with run.phase("eval"):  # lineage
                run.log_eval(loss=t.evaluate())  # lineage
        if step % config.checkpoint_every == 0:
            run.checkpoint()  # lineage
    run.finish()  # lineage


def parse(argv: Sequence[str] | None, description: str, name: str = "tiny-gpt") -> tuple[Config, argparse.Namespace]:
    """The configuration, one flag for each field (`max_steps` is `--steps`), and where to record."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--runs", default="runs", help="folder of runs")
    parser.add_argument("--name", default=name, help="name of the run")
    parser.add_argument("--resume", default="auto", help="auto, must, never, or a run's id")
    for field in fields(Config):
        flag = "--steps" if field.name == "max_steps" else f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, dest=field.name, type=type(field.default), default=field.default, help=" ")
    args = parser.parse_args(argv)
    return Config(**{field.name: getattr(args, field.name) for field in fields(Config)}), args


def main(argv: Sequence[str] | None = None) -> int:
    config, args = parse(argv, "Train a tiny GPT on the text inside Python.")
    try:
        train(config, runs=args.runs, name=args.name, resume=args.resume)
    except lineage.LineageError as error:
        print("error:", error, file=sys.stderr)  # noqa: T201 - likewise
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
