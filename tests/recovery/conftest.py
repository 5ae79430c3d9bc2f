"""The small trainer, as a module in this process and as sessions in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "small_trainer.py"


@pytest.fixture(scope="session")
def small() -> ModuleType:
    """`small_trainer`, imported by path: tests are no package."""
    spec = importlib.util.spec_from_file_location("small_trainer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["small_trainer"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def exact() -> Iterator[None]:
    """Deterministic kernels and one thread, as the restart equivalence is promised under."""
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


class Session:
    """One process that runs one session of each experiment."""

    def __init__(self, configs: Sequence[dict[str, Any]]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(configs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def results(self) -> list[dict[str, Any]]:
        out, err = self.process.communicate(timeout=220)
        assert self.process.returncode == 0, err
        found: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="session")
def sessions() -> Iterator[Any]:
    """Starts processes; ends what a failed test left behind."""
    started: list[Session] = []

    def start(configs: Sequence[dict[str, Any]]) -> Session:
        started.append(Session(configs))
        return started[-1]

    yield start
    for session in started:
        session.stop()
