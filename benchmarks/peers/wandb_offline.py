"""wandb in offline mode: a helper process writes the file.

There is no public reader of that file; its frames are those of LevelDB's log, its records wandb's own protobuf.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import base

_BLOCK = 32768
_FILE_HEADER = 7
_RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _LAST = 1, 4


class Adapter(base.Adapter):
    def load(self) -> None:
        self._wandb: Any = importlib.import_module("wandb")

    def load_reader(self) -> None:
        self._record: Any = importlib.import_module("wandb.proto.wandb_internal_pb2").Record

    def open(self, *, after: int = 0) -> None:
        settings = self._wandb.Settings(console="off")
        self._run = self._wandb.init(
            mode="offline",
            project="bench",
            dir=str(self.folder),
            id="bench",
            resume="allow" if after else None,
            settings=settings,
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()

    def read(self) -> base.Curves:
        curves: base.Curves = {}
        self._files = sorted((self.folder / "wandb").glob("offline-run-*/*.wandb"))
        for path in self._files:
            for data in _frames(path):
                record = self._record()
                record.ParseFromString(data)
                if record.WhichOneof("record_type") != "history":
                    continue
                items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
                step = record.history.step.num if record.history.HasField("step") else json.loads(items["_step"])
                for name, value in items.items():
                    if name in base.NAMES:
                        base.put(curves, name, step, json.loads(value))
        return curves

    def remark(self) -> str:
        return f"{len(self._files)} files" if len(self._files) > 1 else ""


def _frames(path: Path) -> Iterator[bytes]:
    """Whole records; what a kill cut off at the end is left out."""
    data = path.read_bytes()
    at, parts = _FILE_HEADER, []
    while at + _RECORD_HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD_HEADER.size:
            at += left
            continue
        _, length, kind = _RECORD_HEADER.unpack_from(data, at)
        at += _RECORD_HEADER.size
        if at + length > len(data):
            return
        parts.append(data[at : at + length])
        at += length
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
