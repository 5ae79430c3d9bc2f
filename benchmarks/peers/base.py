"""What a peer's module provides, and the steps that all of them log. Standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

NAMES = ("loss", "lr", "grad_norm", "accuracy", "perplexity", "memory_gib")

Curves: TypeAlias = dict[str, tuple[list[int], list[float]]]
"""Metric to its steps and values, in the order in which the peer's reader gives them."""


def metrics_of(step: int) -> dict[str, float]:
    """The six numbers of a step; every float with all its digits, as in training."""
    noise = (step * 2654435761 % 1000003) / 1000003
    values = (2.3 + noise, 3e-4 * (1 - noise / 7), 1.1 + noise / 3, noise / 1.7, 10.4 + noise * 3, 11.3 + noise / 9)
    return dict(zip(NAMES, values, strict=True))


class Adapter:
    """One peer, as its documentation tells people to use it, without any network.

    Attributes:
        folder: where everything it writes goes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> None:
        """Import what logging needs."""

    def load_reader(self) -> None:
        """Import what reading back needs."""
        self.load()

    def open(self, *, after: int = 0) -> None:
        """Begin to log; `after` > 0 goes on with the run in the folder after that step."""
        raise NotImplementedError

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record one step; when it returns, the training loop takes the step for recorded."""
        raise NotImplementedError

    def close(self) -> None:
        """End as a script that ran to its end."""

    def read(self) -> Curves:
        """What the peer's own reader, or the plainest one its format allows, gives back."""
        raise NotImplementedError

    def remark(self) -> str:
        """What else a person would see; after `read`."""
        return ""


def put(curves: Curves, name: str, step: int, value: float) -> None:
    """Add one point."""
    if name in NAMES:
        steps, values = curves.setdefault(name, ([], []))
        steps.append(step)
        values.append(value)
