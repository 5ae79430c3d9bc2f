"""Lightning's CSVLogger with its defaults: rows are written every 100 steps."""

from __future__ import annotations

import csv
import importlib
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._module: Any = importlib.import_module("lightning.pytorch.loggers")

    def load_reader(self) -> None:
        pass

    def open(self, *, after: int = 0) -> None:
        del after
        self._logger = self._module.CSVLogger(self.folder, name="run", version=0)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._logger.log_metrics(metrics, step)

    def close(self) -> None:
        self._logger.finalize("success")

    def read(self) -> base.Curves:
        curves: base.Curves = {}
        with (self.folder / "run" / "version_0" / "metrics.csv").open(newline="") as rows:
            for row in csv.DictReader(rows):
                for name, value in row.items():
                    if name != "step" and value:
                        base.put(curves, name, int(row["step"]), float(value))
        return curves
