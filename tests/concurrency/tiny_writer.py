"""Train a tiny model until killed or told to stop: `python tiny_writer.py RUNS`."""

import sys
import time

import torch
from torch import nn

import lineage


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 1000))
    run = lineage.init(sys.argv[1], name="watched", recipe={"lr": 0.01}, resume="auto", keep=3)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    run.absent("loader", "every batch is drawn from the random stream, which is saved")
    run.restore()
    for step in run.steps(10_000_000):
        inputs = torch.randn(8, 16)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss.item(), lr=scheduler.get_last_lr()[0], samples=8)
        if step % 20 == 0:
            with run.phase("eval"):
                run.log_eval(loss=loss.item())
        if step % 25 == 0:
            run.checkpoint()
            print(step, flush=True)
        time.sleep(0.004)
    run.finish()


if __name__ == "__main__":
    main()
