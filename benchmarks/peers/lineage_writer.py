"""The log of Lineage without the hook: `LogWriter.append`."""

from __future__ import annotations

import time

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        from lineage.log.writer import LogWriter

        self._writer_class = LogWriter

    def open(self, *, after: int = 0) -> None:
        self._run, self._session = "20261129-134012-bench", f"s{1 + bool(after):02d}-0a1b2c3d"
        self._writer = self._writer_class(self.folder / "metrics.jsonl", run=self._run, session=self._session)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._writer.append(
            {
                "kind": "step",
                "ts": time.time(),
                "run": self._run,
                "session": self._session,
                "step": step,
                "metrics": metrics,
                "duration_s": 0.01,
            }
        )

    def close(self) -> None:
        self._writer.close()

    def read(self) -> base.Curves:
        from lineage.log.reader import read_events
        from lineage_schemas.events import StepEvent

        curves: base.Curves = {}
        for event in read_events(self.folder / "metrics.jsonl"):
            if isinstance(event, StepEvent):
                for name, value in event.metrics.items():
                    base.put(curves, name, event.step, value)
        return curves
