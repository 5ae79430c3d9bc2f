"""What a person chose, kept for the next time: metrics, axis and smoothing per run.

It lives in the user's state folder and never in a run's, which may be read-only or somebody else's. Losing it costs
nothing, so nothing here fails: an unreadable file is an empty one, an unwritable folder forgets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

FILE_VERSION: Final = 1
MAX_RUNS: Final = 200
DEFAULT_SMOOTHING: Final = 0.9


@dataclass(frozen=True)
class Choice:
    """How one run was last looked at."""

    metrics: tuple[str, ...] = ()
    x: str = "step"
    smoothing: float = DEFAULT_SMOOTHING
    log_x: bool = False
    log_y: tuple[str, ...] = ()
    unclipped: tuple[str, ...] = ()
    superseded: bool = True


def state_dir(env: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/lineage`, or `~/.local/state/lineage`."""
    base = env.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "lineage"


@dataclass
class Settings:
    """Choices by run, the last looked at last; `path` None keeps them in memory only."""

    path: Path | None = None
    choices: dict[str, Choice] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> Settings:
        """The kept choices; entries that make no sense are dropped."""
        choices: dict[str, Choice] = {}
        if path is not None:
            try:
                document = json.loads(path.read_bytes())
            except (OSError, ValueError, RecursionError):
                document = None
            runs = document.get("runs") if isinstance(document, dict) else None
            for key, value in runs.items() if isinstance(runs, dict) else ():
                if (choice := _choice(value)) is not None:
                    choices[key] = choice
        return cls(path, choices)

    def of(self, run: str) -> Choice:
        """The choice for a run (by its resolved path); the defaults when there is none."""
        return self.choices.get(run, Choice())

    def keep(self, run: str, choice: Choice) -> bool:
        """Remember a choice; False when the disk did not take it."""
        if self.choices.get(run) == choice:
            return True
        self.choices.pop(run, None)
        self.choices[run] = choice
        while len(self.choices) > MAX_RUNS:
            del self.choices[next(iter(self.choices))]
        return self._write()

    def _write(self) -> bool:
        if self.path is None:
            return True
        document = {"version": FILE_VERSION, "runs": {key: asdict(choice) for key, choice in self.choices.items()}}
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(document), encoding="utf-8")
            beside.replace(self.path)
        except OSError:
            return False
        return True


def _choice(value: object) -> Choice | None:
    """A choice from JSON, field by field; a field of the wrong type keeps its default."""
    if not isinstance(value, dict):
        return None
    default = Choice()
    kept: dict[str, object] = {}
    for entry in fields(Choice):
        found = value.get(entry.name)
        known = getattr(default, entry.name)
        if isinstance(known, tuple) and isinstance(found, list):
            kept[entry.name] = tuple(item for item in found if isinstance(item, str))[:32]
        elif isinstance(known, bool):
            if isinstance(found, bool):
                kept[entry.name] = found
        elif isinstance(known, float):
            if isinstance(found, int | float) and not isinstance(found, bool):
                kept[entry.name] = min(max(float(found), 0.0), 0.999)
        elif isinstance(found, str):
            kept[entry.name] = found
    return Choice(**kept)  # type: ignore[arg-type]  # each field was checked against its default's type
