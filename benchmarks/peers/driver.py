"""Runs `child` in a peer's environment: offline, without telemetry, with a home of its own, and with a time limit."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT, Peer, environments_dir

OFFLINE = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LIGHTNING_DISABLE_VERSION_CHECK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TRACKIO_DISABLE_LOGS_CACHE": "1",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "__AIM_DISABLE_TELEMETRY__": "1",
}

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "TZ", "OMP_NUM_THREADS")


class PeerError(Exception):
    """A peer's process failed; the message ends with what it said."""


@functools.cache
def isolation() -> list[str]:
    """The words before a command that leave it no network but loopback; none where the system does not allow it."""
    if sys.platform != "linux" or shutil.which("unshare") is None or shutil.which("ip") is None:
        return []
    words = ["unshare", "--net" if os.geteuid() == 0 else "--map-root-user", "--net"]
    words = [*dict.fromkeys(words), "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else []


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder for what the peers write, on the disk of the environments; gone afterwards."""
    environments_dir().parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=environments_dir().parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(peer: Peer, mode: str, folder: Path, *words: str, timeout_s: float = 180) -> Any:
    """What `child` printed for `mode` in `folder`, which is made.

    Raises:
        PeerError: it failed, or took longer than `timeout_s`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder.with_name(f"{folder.name}.home")
    home.mkdir(exist_ok=True)
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= OFFLINE | {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    command = [*isolation(), str(peer.python), "-m", "benchmarks.peers.child", peer.module, mode, str(folder), *words]
    errors = home / f"{mode}.stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment,
            cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{peer.title}, {mode}: no answer in {timeout_s:.0f} s") from error
        finally:
            # Its helpers are of the same session, and may not go on while the next peer is measured.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        return json.loads(out.splitlines()[-1])
    except (IndexError, ValueError) as error:
        said = errors.read_text(errors="replace").strip()[-400:]
        raise PeerError(f"{peer.title}, {mode}: exit {process.returncode}: {said}") from error
