"""The restart this project is about, as it is often done: the latest weights, and everything else from the beginning.

Same model, same data, same configuration as `lineage.demo.train`. Every so often the weights and the step are saved;
after a crash they are loaded again, and the loss looks reasonable. But the optimizers have forgotten their moments, the
learning rate warms up once more, the loss scale overflows once more, and the data begins at its first page.

Lineage only watches here: the objects are tracked, so that the log says what each step was trained with, and
`run.steps(..., start=N)` goes on counting. Nothing is restored by it, and nobody is warned (`continuation="off"`). The
evidence is in the log all the same: steps that were trained twice, another way the second time.

    python -m lineage.demo.careless --steps 180 --runs runs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

import lineage
from lineage.demo.data import fingerprint
from lineage.demo.train import Config, Trainer, parse


def train(config: Config, *, runs: str, name: str, resume: str) -> None:
    """Train from the step of the saved weights, or from none, to `config.max_steps`."""
    t = Trainer(config)
    data = {"text": fingerprint(t.text)}
    run = lineage.init(
        runs,
        name=name,
        recipe=config,
        resume=resume,
        data=data,
        continuation="off",
        witness_steps=config.max_steps,  # every step says what it was trained with
    )
    run.track(model=t.model, adamw=t.adamw, muon=t.muon, scaler=t.scaler, train_loader=t.loader)
    run.track(adamw_schedule=t.adamw_schedule, muon_schedule=t.muon_schedule)

    start = 0
    weights = run.path / "latest.pt"
    if weights.exists():
        saved = torch.load(weights, weights_only=True)
        t.model.load_state_dict(saved["model"])  # and that is all
        start = saved["step"]
    print(run.path, flush=True)  # noqa: T201 - a script for people

    batches = run.batches(t.loader)
    tokens = config.accumulation * config.batch_size * config.block_size
    for step in run.steps(config.max_steps, start=start):
        loss, lr, norm = t.step(batches)
        run.log(loss=loss, lr=lr, grad_norm=norm, tokens=tokens)
        if step % config.eval_every == 0:
            with run.phase("eval"):
                run.log_eval(loss=t.evaluate())
        if step % config.checkpoint_every == 0:
            with run.phase("checkpoint"):
                torch.save({"step": step, "model": t.model.state_dict()}, weights)
    run.finish()


def main(argv: Sequence[str] | None = None) -> int:
    config, args = parse(argv, "Train the same tiny GPT, and restart it carelessly.", name="tiny-gpt-careless")
    train(config, runs=args.runs, name=args.name, resume=args.resume)
    return 0


if __name__ == "__main__":
    sys.exit(main())
