"""`lineage show --tree` and `lineage whence` tell the same ancestry."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import lineage
from lineage.history.evidence import read_family
from lineage.history.tree import render_tree


def train(runs: Path, steps: int, **options: object) -> lineage.Run:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=4, sampler=lineage.ResumableSampler(32, shuffle=True, seed=0))
    run = lineage.init(runs, **{"name": "a", **options})
    run.track(model=model, optimizer=optimizer, train_loader=loader)
    run.restore()
    batches = run.batches(loader)
    for step in run.steps(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step % 4 == 0:
            run.checkpoint()
    run.finish()
    return run


def test_the_tree_and_whence_agree_on_every_generation_of_a_family(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = train(runs, 8)
    train(runs, 12, resume=first.id)
    newest = max((first.path / "checkpoints").glob("step-*"))
    fork = train(runs, 16, name="b", resume=str(newest), fork=True)
    records, leaves = read_family(runs)
    text = "\n".join(render_tree(records, leaves))
    from lineage.history.whence import whence

    for generation in [*(first.path / "checkpoints").glob("step-*"), *(fork.path / "checkpoints").glob("step-*")]:
        found = whence(generation, [runs])
        (match,) = found.matches
        assert (match.run, match.checkpoint) == (generation.parent.parent.name, generation.name)
        chain = [(point.run, point.checkpoint) for point in found.ancestry]
        # In the tree a child stands below its parent and further in: the chain read upwards is the way to the root.
        rows = text.splitlines()
        at = next(i for i, row in enumerate(rows) if generation.name in row)
        assert chain[0] == (match.run, generation.name)
        if match.run == fork.id:
            assert chain[-1][0] == first.id
            assert any(newest.name in row for row in rows[:at]), "the fork hangs below the checkpoint it came from"
            assert (first.id, newest.name) in chain
