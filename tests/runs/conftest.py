"""Records to make sessions of, and real processes that hold, race for and lose runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lineage_schemas.run import Environment, Recipe, Source, Start


@pytest.fixture
def facts() -> dict[str, Any]:
    """The arguments of `begin_session`, as small as they get."""
    return {
        "recipe": Recipe(value={"lr": 0.1, "seed": None}, fingerprint="0" * 64),
        "source": Source(commit="c" * 40),
        "environment": Environment(python="3.11.0", implementation="CPython", platform="Linux", machine="x86_64"),
        "start": Start(kind="fresh"),
    }


Child = subprocess.Popen[str]


@pytest.fixture
def start_child() -> Iterator[Callable[..., Child]]:
    """Run a piece of Python in a process of its own; whatever still lives at the end is killed."""
    children: list[Child] = []

    def start(code: str, *args: str | Path) -> Child:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=30)


@pytest.fixture
def wait_until() -> Callable[..., None]:
    def wait(condition: Callable[[], bool], within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.005)

    return wait
