"""trackio with its local SQLite store; a thread of its own writes every half second."""

from __future__ import annotations

import importlib
import os
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        os.environ["TRACKIO_DIR"] = str(self.folder / "trackio")
        self._trackio: Any = importlib.import_module("trackio")
        self._storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage

    def open(self, *, after: int = 0) -> None:
        self._trackio.init(project="bench", name="run", resume="allow" if after else "never")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._trackio.log(metrics, step=step)

    def close(self) -> None:
        self._trackio.finish()

    def read(self) -> base.Curves:
        curves: base.Curves = {}
        self._runs = self._storage.get_run_records("bench")
        for record in self._runs:
            name, run_id = record.get("name") or record.get("run_name"), record.get("id") or record.get("run_id")
            for entry in self._storage.get_logs("bench", name, run_id=run_id):
                for metric, value in entry.items():
                    base.put(curves, metric, entry["step"], value)
        return curves

    def remark(self) -> str:
        return f"{len(self._runs)} runs" if len(self._runs) > 1 else ""
