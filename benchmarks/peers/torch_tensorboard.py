"""torch's SummaryWriter with its defaults, one `add_scalar` per metric, read with TensorBoard's accumulator."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._tensorboard: Any = importlib.import_module("torch.utils.tensorboard")

    def load_reader(self) -> None:
        name = "tensorboard.backend.event_processing.event_accumulator"
        self._accumulator: Any = importlib.import_module(name)

    def open(self, *, after: int = 0) -> None:
        del after
        self._writer = self._tensorboard.SummaryWriter(str(self.folder / "logs"))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()

    def read(self) -> base.Curves:
        reader = self._accumulator.EventAccumulator(str(self.folder / "logs"), size_guidance={"scalars": 0})
        reader.Reload()
        curves: base.Curves = {}
        for name in reader.Tags()["scalars"]:
            for event in reader.Scalars(name):
                base.put(curves, name, event.step, event.value)
        return curves
