"""One good run for all, and commands run in this process under watch."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import hostile_corpus as corpus
from hostile_watch import Watch, interrupted


@pytest.fixture(scope="session")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never changed: entries get copies."""
    return corpus.make_good_run(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="session")
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.close()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell starts jobs in the background with SIGINT ignored, and then nothing that follows a log would end."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, interrupted)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LINEAGE_RUNS", "COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
