"""dvclive without a DVC experiment: one TSV per metric."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._dvclive: Any = importlib.import_module("dvclive")
        # It makes a DVC repository of whatever git repository the folder lies in, unless there is one on the way.
        if not Path(".dvc").exists():
            importlib.import_module("dvc.repo").Repo.init(no_scm=True)

    def load_reader(self) -> None:
        pass

    def open(self, *, after: int = 0) -> None:
        folder = str(self.folder / "dvclive")
        self._live = self._dvclive.Live(folder, resume=bool(after), save_dvc_exp=False, report=None, dvcyaml=None)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._live.step = step
        for name, value in metrics.items():
            self._live.log_metric(name, value)
        self._live.make_summary()

    def close(self) -> None:
        self._live.end()

    def read(self) -> base.Curves:
        curves: base.Curves = {}
        for name in base.NAMES:
            path = self.folder / "dvclive" / "plots" / "metrics" / f"{name}.tsv"
            if not path.exists():
                continue
            with path.open(newline="") as rows:
                for row in csv.DictReader(rows, delimiter="\t"):
                    if row.get("step") and row.get(name):
                        base.put(curves, name, int(row["step"]), float(row[name]))
        return curves
