"""Other trackers, each logging the same steps from a virtual environment of its own.

`python -m benchmarks.peers.install` makes the environments; every one is optional. `child` runs inside of them and may
import nothing but the standard library and the peer; `driver` runs them. A peer is one small module: how it is opened,
given a step, closed, and read back with its own reader.

Environments live under `benchmarks/results/peers`, or where `LINEAGE_BENCH_PEERS` says.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

REQUIREMENTS: Final[dict[str, tuple[str, ...]]] = {
    "readers": ("duckdb~=2.0.1", "polars~=2.1.0", "numpy~=2.4", "orjson~=3.13"),
    "wandb": ("wandb~=0.31.0",),
    "trackio": ("trackio~=0.43.0",),
    "dvclive": ("dvclive~=3.49.1",),
    "swanlab": ("swanlab~=0.10.3",),
    "aim": ("aim~=3.29.1",),
    "mlflow": ("mlflow~=3.17.2",),
    # One pinned CPU build: an unpinned torch pulls gigabytes of CUDA.
    "torch": ("torch==2.13.0", "tensorboard~=2.21.0", "lightning~=2.6.6"),
}
"""What each environment is made of."""


@dataclass(frozen=True)
class Peer:
    """One row of the tables.

    Attributes:
        name: on the command line.
        title: in the tables.
        module: of this package; it defines `Adapter`.
        environment: key of `REQUIREMENTS`; None for the interpreter that runs the benchmark.
        forks: whether a process that has imported it can be forked and log in the child.
    """

    name: str
    title: str
    module: str
    environment: str | None = None
    forks: bool = True

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.environment is None else environment_python(self.environment)

    @property
    def is_installed(self) -> bool:
        return self.environment is None or (environment_dir(self.environment) / ".made").exists()


OURS: Final = "lineage"

PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer("bare", "bare orjson + write", "bare"),
        Peer("writer", "lineage, the log alone", "lineage_writer"),
        Peer(OURS, "lineage, the hook", "lineage_hook"),
        Peer("csv", "Lightning CSVLogger", "lightning_csv", "torch"),
        Peer("trackio", "trackio", "trackio_local", "trackio", forks=False),
        Peer("swanlab", "swanlab offline", "swanlab_offline", "swanlab"),
        Peer("wandb", "wandb offline", "wandb_offline", "wandb"),
        Peer("tensorboard", "torch SummaryWriter", "torch_tensorboard", "torch"),
        Peer("aim", "aim", "aim_local", "aim"),
        Peer("dvclive", "dvclive", "dvclive_local", "dvclive"),
        Peer("mlflow", "mlflow sqlite", "mlflow_sqlite", "mlflow"),
    )
}
"""Every row, ours and the bare write included."""


def environments_dir() -> Path:
    """Where the environments are."""
    told = os.environ.get("LINEAGE_BENCH_PEERS")
    return Path(told).resolve() if told else ROOT / "benchmarks" / "results" / "peers"


def environment_dir(name: str) -> Path:
    return environments_dir() / name


def environment_python(name: str) -> Path:
    return environment_dir(name) / "bin" / "python"


def chosen(names: str | None) -> list[Peer]:
    """The installed peers among `names` (commas between), all of the installed ones when None.

    Raises:
        ValueError: a name that is no peer.
    """
    wanted = list(PEERS) if names is None else [name for name in names.split(",") if name]
    unknown = sorted(set(wanted) - set(PEERS))
    if unknown:
        raise ValueError(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return [peer for name, peer in PEERS.items() if name in wanted and peer.is_installed]


def missing(names: str | None) -> list[str]:
    """Titles of the wanted peers that are not installed."""
    wanted = set(PEERS) if names is None else set(names.split(","))
    return [peer.title for name, peer in PEERS.items() if name in wanted and not peer.is_installed]
