"""aim with a repository in a folder; system tracking and the capture of output are off."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._aim: Any = importlib.import_module("aim")

    def open(self, *, after: int = 0) -> None:
        kept = self.folder / "hash"
        self._run = self._aim.Run(
            run_hash=kept.read_text() if after else None,
            repo=str(self.folder),
            system_tracking_interval=None,
            log_system_params=False,
            capture_terminal_logs=False,
        )
        kept.write_text(self._run.hash)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.track(metrics, step=step)

    def close(self) -> None:
        self._run.close()

    def read(self) -> base.Curves:
        self._seen = len(list(self._aim.Repo(str(self.folder)).iter_runs()))
        # A run that was killed is invisible to a new Repo until it is indexed.
        command = [str(Path(sys.executable).with_name("aim")), "storage", "--repo", str(self.folder), "reindex"]
        subprocess.run(command, input=b"y\n", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        curves: base.Curves = {}
        for run in self._aim.Repo(str(self.folder)).iter_runs():
            for metric in run.metrics():
                metric.preload()
                steps, (values, *_) = metric.data.items_list()  # what its `dataframe` does, without pandas
                for step, value in zip(steps, values, strict=True):
                    base.put(curves, metric.name, step, value)
        return curves

    def remark(self) -> str:
        return "" if self._seen else "invisible until reindexed"
