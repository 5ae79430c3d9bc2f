"""Every path inside a run folder, in one place (docs/format.md, "The folder of a run")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    """The folder of one run; makes paths, touches nothing."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def log(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def lock(self) -> Path:
        return self.path / "run.lock"

    @property
    def source_dir(self) -> Path:
        return self.path / "source"

    def patch(self, session: str) -> Path:
        return self.source_dir / f"{session}.patch"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    def generation(self, name: str) -> Path:
        return self.checkpoints_dir / name

    @property
    def active(self) -> Path:
        return self.checkpoints_dir / "ACTIVE"

    @property
    def ledger(self) -> Path:
        return self.checkpoints_dir / "ledger.jsonl"

    @property
    def exports_dir(self) -> Path:
        return self.path / "exports"

    @property
    def cache_dir(self) -> Path:
        return self.path / ".cache"
