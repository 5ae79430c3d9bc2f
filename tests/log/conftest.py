"""A real log, and disks that fail on demand."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lineage.log.writer import Disk, LogWriter

RUN = "20261129-134012-tiny-gpt"
SESSION = "s01-0a1b2c3d"


def make_step(step: int, **metrics: Any) -> dict[str, Any]:
    return {
        "kind": "step",
        "ts": 1_700_000_000.25 + step,
        "run": RUN,
        "session": SESSION,
        "step": step,
        "metrics": metrics or {"loss": 2.5 / step, "lr": 3e-4},
        "duration_s": 0.125,
        "tokens": 8192,
    }


def make_event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "ts": 1_700_000_000.5, "run": RUN, "session": SESSION, **fields}


@pytest.fixture(scope="session")
def step_event() -> Callable[..., dict[str, Any]]:
    return make_step


@pytest.fixture(scope="session")
def event() -> Callable[..., dict[str, Any]]:
    return make_event


@pytest.fixture
def open_writer() -> Iterator[Callable[..., LogWriter]]:
    """Open writers that are closed at the end, on a disk that syncs in no time unless told otherwise."""
    writers: list[LogWriter] = []

    def open_writer(path: Path, *, disk: Disk | None = None, **options: Any) -> LogWriter:
        disk = disk or Disk(fdatasync=lambda fd: None)
        writer = LogWriter(path, run=RUN, session=SESSION, disk=disk, **options)
        writers.append(writer)
        return writer

    yield open_writer
    for writer in writers:
        writer.close()


@pytest.fixture(scope="session")
def real_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A short log with every way a line can be unusual, written by the writer itself."""
    path = tmp_path_factory.mktemp("real") / "metrics.jsonl"
    with LogWriter(path, run=RUN, session=SESSION) as writer:
        writer.append(
            make_event(
                "session_start",
                format={"name": "lineage-log", "version": "1.0"},
                ordinal=1,
                start={"kind": "fresh", "step": 0},
                pid=4711,
                host="node-7",
            )
        )
        writer.append(make_step(1) | {"witness": {"batch": "0123456789abcdef", "lr": {"optimizer": [3e-4, 1e-3]}}})
        writer.append(make_step(2, loss=float("nan"), grad_norm=float("inf"), lr=3e-4))
        writer.append(make_event("phase_start", phase="eval", step=2))
        writer.append(make_event("eval", step=2, name="eval", metrics={"loss": 2.75}, duration_s=0.5))
        writer.append(make_event("phase_end", phase="eval", step=2, duration_s=0.625, ok=True))
        writer.append(make_event("note", step=2, text='naïve "quotes", \\ backslash,\nnewline, 日本'))
        writer.append(make_event("alert", step=2, code="non_finite", message="loss is nan", details={"step": 2}))
        writer.append(make_step(3))
        writer.append(make_event("session_end", step=3, status="completed"))
    return path.read_bytes()


@dataclass
class FaultyDisk:
    """System calls on a real file that fail while told to.

    Attributes:
        fault: errno that `write` raises; None for none.
        shorts: for each coming write how many bytes it takes; it takes all when this is empty.
        fault_after_shorts: what becomes `fault` once `shorts` is used up.
        cut_fault, sync_fault: errno that `ftruncate` and `fdatasync` raise.
        syncs: ids of the threads that synced, in order.
    """

    fault: int | None = None
    shorts: list[int] = field(default_factory=list)
    fault_after_shorts: int | None = None
    cut_fault: int | None = None
    sync_fault: int | None = None
    num_writes: int = 0
    syncs: list[int] = field(default_factory=list)

    def write(self, fd: int, data: bytes) -> int:
        self.num_writes += 1
        if self.fault is not None:
            raise OSError(self.fault, os.strerror(self.fault))
        if self.shorts:
            num_bytes = self.shorts.pop(0)
            if not self.shorts:
                self.fault = self.fault_after_shorts
            return os.write(fd, bytes(data)[:num_bytes])
        return os.write(fd, data)

    def ftruncate(self, fd: int, size: int) -> None:
        if self.cut_fault is not None:
            raise OSError(self.cut_fault, os.strerror(self.cut_fault))
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self.syncs.append(threading.get_ident())
        if self.sync_fault is not None:
            raise OSError(self.sync_fault, os.strerror(self.sync_fault))

    @property
    def calls(self) -> Disk:
        return Disk(write=self.write, ftruncate=self.ftruncate, fdatasync=self.fdatasync)


@pytest.fixture
def faulty() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture(scope="session")
def make_faulty() -> Callable[[], FaultyDisk]:
    return FaultyDisk


@dataclass
class FullDisk:
    """A folder on a filesystem with `size_bytes` of room, and a way to make room."""

    folder: Path
    size_bytes: int
    free: Callable[[], None]
    errno: int


@pytest.fixture(params=["tmpfs", "size-limited file"])
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    """A real tmpfs where this process may mount one; a file whose size the kernel limits everywhere."""
    size = 256 * 1024
    if request.param == "tmpfs":
        folder = tmp_path / "small"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={2 * size}", "none", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a tmpfs needs root; the size-limited file is tested in its place")
        filler = folder / "filler"
        try:
            filler.write_bytes(bytes(size))
            yield FullDisk(folder, size, filler.unlink, errno.ENOSPC)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield FullDisk(tmp_path, size, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)), errno.EFBIG)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
