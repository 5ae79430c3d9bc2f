"""Whole-state checkpoints against raw file calls, torch.save, safetensors and DCP: CPU seconds, walls, ratios.

    python -m benchmarks checkpoint                   # 192 MB of state, about a minute
    python -m benchmarks.checkpoint --mb 1000         # the size the goals are stated for

The state is a stack of linear layers with AdamW's two moments, after one step. Everything is written to the same
folder, synced, and read back with a warm page cache; all rows of a repetition run one after another, so that a busy
machine slows them alike, and figures are medians. CPU seconds are of all threads of the process.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Figure, Report, machine

if TYPE_CHECKING:
    import torch

    from lineage.checkpoint.registry import Registry

MB = 1_000_000
WIDTH = 1024


class State:
    """A model and its optimizer of about `num_mb` in all, with the registry that tracks them."""

    def __init__(self, num_mb: int, *, trained: bool) -> None:
        import torch

        from lineage.checkpoint.registry import Registry

        layers = max(1, round(num_mb * MB / (3 * 4 * WIDTH * WIDTH)))
        self.model: torch.nn.Module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        if trained:
            for parameter in self.model.parameters():
                parameter.grad = torch.randn_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.registry: Registry = Registry()
        self.registry.track("model", self.model)
        self.registry.track("optimizer", self.optimizer)
        self.registry.absent("loader", "a benchmark")
        self.registry.seal()

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state[parameter].items():
                found[f"optim.{name}.{slot}"] = value
        return found

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors().values())


def measured(act: Callable[[], object]) -> tuple[float, float]:
    """`(CPU seconds, wall seconds)` of one call."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    return time.process_time() - cpu, time.perf_counter() - wall


def _views(state: State) -> list[memoryview]:
    from lineage.checkpoint.tensors import bytes_of

    return [bytes_of(tensor) for tensor in state.tensors().values()]


def _raw_write(path: Path, views: list[memoryview], *, hashed: bool) -> None:
    digest = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for view in views:
        for at in range(0, view.nbytes, 1 << 20):
            chunk = view[at : at + (1 << 20)]
            if hashed:
                digest.update(chunk)
            os.write(fd, chunk)
    os.fsync(fd)
    os.close(fd)


def _raw_read(path: Path, sizes: list[int], *, hashed: bool) -> None:
    import torch

    digest, kept = hashlib.sha256(), []
    with path.open("rb", buffering=0) as file:
        for size in sizes:
            tensor: Any = torch.empty(size, dtype=torch.uint8)  # memory of its own, as every loader needs
            kept.append(tensor)
            view: Any = memoryview(tensor.numpy())
            for at in range(0, size, 1 << 20):
                chunk = view[at : at + (1 << 20)]
                file.readinto(chunk)
                if hashed:
                    digest.update(chunk)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Rig:
    """One repetition's folder, and the calls that are measured in it."""

    def __init__(self, folder: Path, source: State, target: State) -> None:
        self.folder, self.source, self.target = folder, source, target
        self.views = _views(source)
        (folder / "run").mkdir()

    def saves(self) -> dict[str, Callable[[], object]]:
        return {
            "raw write": lambda: _raw_write(self.folder / "raw", self.views, hashed=False),
            "raw write + SHA-256": lambda: _raw_write(self.folder / "hashed", self.views, hashed=True),
            "Lineage": self._save,
            "torch.save": self._torch_save,
            "safetensors": self._safetensors_save,
            "DCP": self._dcp_save,
        }

    def loads(self) -> dict[str, Callable[[], object]]:
        sizes = [view.nbytes for view in self.views]
        return {
            "raw read": lambda: _raw_read(self.folder / "raw", sizes, hashed=False),
            "raw read + SHA-256": lambda: _raw_read(self.folder / "hashed", sizes, hashed=True),
            "Lineage": self._load,
            "torch.load": self._torch_load,
            "safetensors": self._safetensors_load,
            "DCP": self._dcp_load,
        }

    def _save(self) -> None:
        from lineage.checkpoint.store import CheckpointStore
        from lineage_schemas.checkpoint import Position

        CheckpointStore(self.folder / "run", self.source.registry).save(Position(step=1, num_updates=1), _context())

    def _load(self) -> None:
        from lineage.checkpoint.discover import discover
        from lineage.checkpoint.restore import RestoreContext, apply_restore, plan_restore

        candidate = discover(self.folder / "run").newest()
        assert candidate is not None
        context = RestoreContext(run="bench", recipe=_context().recipe)
        apply_restore(plan_restore(candidate, self.target.registry, context)).finish()

    def _torch_save(self) -> None:
        import torch

        path = self.folder / "torch.pt"
        torch.save({"model": self.source.model.state_dict(), "optim": self.source.optimizer.state_dict()}, path)
        _sync(path)

    def _torch_load(self) -> None:
        import torch

        found = torch.load(self.folder / "torch.pt", weights_only=True)
        self.target.model.load_state_dict(found["model"])
        self.target.optimizer.load_state_dict(found["optim"])

    def _safetensors_save(self) -> None:
        from safetensors.torch import save_file

        save_file(self.source.tensors(), self.folder / "st.safetensors")
        _sync(self.folder / "st.safetensors")

    def _safetensors_load(self) -> None:
        from safetensors.torch import load_file

        found = load_file(self.folder / "st.safetensors")
        names = dict(self.target.model.named_parameters())
        self.target.model.load_state_dict({name: found[f"model.{name}"] for name in names})
        for name, parameter in names.items():
            slots = ("step", "exp_avg", "exp_avg_sq")
            self.target.optimizer.state[parameter] = {slot: found[f"optim.{name}.{slot}"] for slot in slots}

    def _dcp_save(self) -> None:
        import torch.distributed.checkpoint as dcp

        writer = dcp.FileSystemWriter(str(self.folder / "dcp"), sync_files=True)
        dcp.save(dict(self.source.tensors()), storage_writer=writer, no_dist=True)

    def _dcp_load(self) -> None:
        import torch
        import torch.distributed.checkpoint as dcp

        tensors: dict[str, Any] = {name: torch.empty_like(t) for name, t in self.source.tensors().items()}
        dcp.load(tensors, checkpoint_id=str(self.folder / "dcp"), no_dist=True)


def _context() -> Any:
    from lineage.checkpoint.store import SaveContext
    from lineage_schemas.checkpoint import RecipePoint

    return SaveContext(run="bench", session="s01-00000000", ordinal=1, recipe=RecipePoint(fingerprint="0" * 64))


def background(folder: Path, source: State, repetitions: int) -> tuple[float, float]:
    """Median seconds that a background save holds the training up, and of one copy of the state into used memory."""
    import torch

    from lineage.checkpoint.background import BackgroundSaver
    from lineage.checkpoint.store import CheckpointStore
    from lineage_schemas.checkpoint import Position

    saver = BackgroundSaver(CheckpointStore(folder, source.registry))
    tensors = list(source.tensors().values())
    buffers = [torch.empty_like(t) for t in tensors]
    held, copied = [], []
    for repetition in range(repetitions + 1):
        wall = measured(lambda: [b.copy_(t) for b, t in zip(buffers, tensors, strict=True)])[1]
        gc.collect()
        started = time.perf_counter()
        saver.save(Position(step=repetition + 1, num_updates=1), _context())
        blocked = time.perf_counter() - started
        saver.wait()
        if repetition:  # the first fills new memory
            held.append(blocked)
            copied.append(wall)
        shutil.rmtree(folder / "checkpoints")
    return statistics.median(held), statistics.median(copied)


def measure(num_mb: int, repetitions: int) -> Report:
    source, target = State(num_mb, trained=True), State(num_mb, trained=False)
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP's, about running without a process group
        for repetition in range(repetitions + 1):
            folder = Path(place) / str(repetition)
            folder.mkdir()
            rig = Rig(folder, source, target)
            for kind, calls in (("save", rig.saves()), ("load", rig.loads())):
                for name, call in calls.items():
                    found = measured(call)
                    if repetition:  # the first warms imports and allocators
                        figures.setdefault((kind, name), []).append(found)
            shutil.rmtree(folder)
        held, copied = background(Path(place), source, repetitions)
    gigabytes = source.num_bytes / 1e9
    report = Report(f"checkpoint: {source.num_bytes / MB:.0f} MB of model and AdamW state, {repetitions} repetitions")
    base = {"save": "raw write + SHA-256", "load": "raw read + SHA-256"}
    ratio: dict[tuple[str, str], float] = {}
    for (kind, name), pairs in figures.items():
        reference = figures[kind, base[kind]]
        # Ratio within each repetition, then the median: what slows one slows its neighbour.
        ratio[kind, name] = statistics.median(a[0] / b[0] for a, b in zip(pairs, reference, strict=True))
        row: dict[str, Figure] = {"what": f"{kind} {name}", "x raw + SHA-256": ratio[kind, name]}
        row["CPU s/GB"] = statistics.median([pair[0] for pair in pairs]) / gigabytes
        row["wall s/GB"] = statistics.median([pair[1] for pair in pairs]) / gigabytes
        report.rows.append(row)
    blocking: Report = Report("checkpoint: how long a background save holds up the training")
    blocking.rows.append({"what": "one copy of the state", "x copy": 1.0, "s/GB": copied / gigabytes})
    blocking.rows.append({"what": "background save", "x copy": held / copied, "s/GB": held / gigabytes})
    report.more.append(blocking)
    report.goals = {
        "a save costs at most 1.15x the CPU of a raw write with SHA-256": ratio["save", "Lineage"] <= 1.15,
        "a verified load costs at most 1.3x the CPU of a read with SHA-256": ratio["load", "Lineage"] <= 1.3,
        "a save costs less CPU than DCP's": ratio["save", "Lineage"] < ratio["save", "DCP"],
        "a load costs less CPU than DCP's": ratio["load", "Lineage"] < ratio["load", "DCP"],
    }
    blocking.goals = {"a background save blocks at most 1.5x one copy of the state": held / copied <= 1.5}
    report.notes.append("torch.save, safetensors and DCP compute no hash; their loads verify nothing")
    return report


def run(*, quick: bool = False) -> Report:
    """About a minute, or less with `quick`; the goals are stated for 1 GB (`--mb 1000`)."""
    return measure(48, 2) if quick else measure(192, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=192, help="size of the state in MB")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    report = measure(args.mb, args.repetitions)
    print(report.table())
    print(json.dumps({"benchmark": "checkpoint", "machine": machine(), **report.to_json()}, indent=2))


if __name__ == "__main__":
    main()
