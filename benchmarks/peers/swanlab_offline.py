"""swanlab in offline mode, read back with the reader that its `sync` uses."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers import base

_RUN_ID = "bench0000000000000000"


class Adapter(base.Adapter):
    def load(self) -> None:
        self._swanlab: Any = importlib.import_module("swanlab")

    def load_reader(self) -> None:
        self._store: Any = importlib.import_module("swanlab.sdk.internal.core_python.store")
        self._record: Any = importlib.import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record

    def open(self, *, after: int = 0) -> None:
        resume = "allow" if after else "never"
        self._swanlab.init(
            project="bench", mode="offline", logdir=str(self.folder / "swanlab"), id=_RUN_ID, resume=resume
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._swanlab.log(metrics, step=step)

    def close(self) -> None:
        self._swanlab.finish()

    def read(self) -> base.Curves:
        curves: base.Curves = {}
        self._files = sorted((self.folder / "swanlab").glob("run-*/*.swanlab"))
        for path in self._files:
            reader = self._store.DataStoreReader()
            reader.open(str(path))
            for data in reader:
                record = self._record()
                record.ParseFromString(data)
                if record.HasField("scalar"):
                    base.put(curves, record.scalar.key, record.scalar.step, record.scalar.value.number)
            reader.close()
        return curves

    def remark(self) -> str:
        return f"{len(self._files)} files" if len(self._files) > 1 else ""
