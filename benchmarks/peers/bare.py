"""The floor: `orjson.dumps` and one `write` a step."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from benchmarks.peers import base


class Adapter(base.Adapter):
    def load(self) -> None:
        self._orjson: Any = importlib.import_module("orjson")

    def open(self, *, after: int = 0) -> None:
        del after
        self._fd = os.open(self.folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        line = self._orjson.dumps({"step": step, "time": time.time(), **metrics}, None, self._orjson.OPT_APPEND_NEWLINE)
        os.write(self._fd, line)

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> base.Curves:
        curves: base.Curves = {}
        with (self.folder / "log.jsonl").open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                event = self._orjson.loads(line)
                for name, value in event.items():
                    base.put(curves, name, event["step"], value)
        return curves
