"""What is recorded about a process before it trains: taken once, under a second in total."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineage.log.wire import text
from lineage_schemas.run import DataIdentity, Environment, Recipe, Tolerance


@dataclass(frozen=True)
class Facts:
    """The identity of a session, apart from where it starts."""

    recipe: Recipe
    environment: Environment
    argv: list[str]
    data: dict[str, DataIdentity]
    tolerance: Tolerance | None
    rank: int
    world: int


def capture_facts(
    *,
    recipe: Any,
    data: Mapping[str, DataIdentity | str] | None,
    tolerance: Tolerance | None,
    rank: int,
    world: int,
) -> Facts:
    """Capture everything; what cannot be had (no torch, no GPU) is absent.

    Raises:
        TypeError: the recipe holds something that cannot be recorded, with the path to it.
    """
    from lineage.capture.argv import capture_argv
    from lineage.capture.environment import capture_environment
    from lineage.capture.recipe import capture_recipe
    from lineage.capture.redact import redact_text

    return Facts(
        recipe=capture_recipe({} if recipe is None else recipe),
        environment=capture_environment(),
        argv=capture_argv(sys.argv),
        data={
            split: identity
            if isinstance(identity, DataIdentity)
            else DataIdentity(fingerprint=redact_text(text(identity)))
            for split, identity in (data or {}).items()
        },
        tolerance=tolerance,
        rank=rank,
        world=world,
    )


def rank_and_world() -> tuple[int, int]:
    """Rank and number of ranks: from torch.distributed where it is initialised, else from RANK and WORLD_SIZE.

    Variables that are no numbers, or of a launcher that never set them, mean a single process.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)
