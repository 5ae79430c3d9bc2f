"""Lineage as users have it: `lineage.init(...).log`, read back with `lineage.read`."""

from __future__ import annotations

from pathlib import Path

import lineage
from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._init = lineage.init  # names load when they are first used

    def load_reader(self) -> None:
        self._read = lineage.read

    def open(self, *, after: int = 0) -> None:
        resume = str(self._run_dir()) if after else "never"
        self._run = self._init(self.folder / "runs", name="bench", recipe={"lr": 3e-4}, resume=resume)
        self._steps = self._run.steps(1_000_000_000, start=after) if after else None

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if self._steps is not None:
            next(self._steps)
            self._run.log(metrics)
        else:
            self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()

    def read(self) -> base.Curves:
        self._view = self._read(self._run_dir())
        curves: base.Curves = {}
        for name in base.NAMES:
            if name in self._view.metrics:
                series = self._view.series(name)
                curves[name] = series.step.tolist(), series.value.tolist()
        return curves

    def remark(self) -> str:
        every = self._view.series("loss", superseded=True)
        kept = len(every.step) - len(self._view.series("loss").step)
        return f"{kept} superseded points kept apart, {len(self._view.record.sessions)} sessions" if kept else ""

    def _run_dir(self) -> Path:
        return next(path.parent for path in (self.folder / "runs").glob("*/run.json"))
