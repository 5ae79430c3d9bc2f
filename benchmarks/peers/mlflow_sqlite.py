"""mlflow with a SQLite store in the folder, one `log_metrics` a step."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")

    def open(self, *, after: int = 0) -> None:
        self._connect()
        kept = self.folder / "run_id"
        self._run = self._mlflow.start_run(run_id=kept.read_text() if after else None, log_system_metrics=False)
        kept.write_text(self._run.info.run_id)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._mlflow.log_metrics(metrics, step=step)

    def close(self) -> None:
        self._mlflow.end_run()

    def read(self) -> base.Curves:
        self._connect()
        client, run_id = self._mlflow.MlflowClient(), (self.folder / "run_id").read_text()
        curves: base.Curves = {}
        for name in base.NAMES:
            for metric in client.get_metric_history(run_id, name):
                base.put(curves, name, metric.step, metric.value)
        return curves

    def _connect(self) -> None:
        self._mlflow.set_tracking_uri(f"sqlite:///{self.folder / 'mlflow.db'}")
        if self._mlflow.get_experiment_by_name("bench") is None:
            self._mlflow.create_experiment("bench", artifact_location=str(self.folder / "artifacts"))
        self._mlflow.set_experiment("bench")
