# ruff: noqa: PTH100, PTH120  # paths are keys here, and must stay the text that was given
"""What a disk may hold after a crash, given the system calls that were made.

The model: the bytes of a file are durable only up to its last fsync; a name is durable only once its folder was
synced. Before that, a crash may leave the file's bytes full, torn or missing, and the name there or not, each on its
own. It is weaker than any real file system, so a protocol that holds here holds there.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Op:
    """One call: mkdir, create, write, fsync, fsync_dir, rename, unlink, rmdir."""

    kind: str
    path: str
    data: bytes = b""
    target: str = ""

    @property
    def is_sync(self) -> bool:
        return self.kind in ("fsync", "fsync_dir")


@contextmanager
def recorded(root: Path) -> Iterator[list[Op]]:
    """Note every call below `root` that changes the disk; the calls are really made."""
    ops: list[Op] = []
    paths: dict[int, str] = {}
    folders: set[int] = set()
    real = {
        name: getattr(os, name) for name in ("open", "close", "write", "fsync", "mkdir", "replace", "unlink", "rmdir")
    }

    def below(path: Any) -> str | None:
        text = os.fspath(path) if not isinstance(path, int) else ""
        text = os.path.abspath(text) if text else ""
        return text if text.startswith(str(root)) else None

    def fake_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        fd = real["open"](path, flags, *args, **kwargs)
        name = below(path)
        if name is not None:
            paths[fd] = name
            if flags & os.O_DIRECTORY:
                folders.add(fd)
            if flags & os.O_CREAT and flags & os.O_EXCL:
                ops.append(Op("create", name))
        return fd

    def fake_close(fd: int) -> None:
        paths.pop(fd, None)
        folders.discard(fd)
        real["close"](fd)

    def fake_write(fd: int, data: Any) -> int:
        done: int = real["write"](fd, data)
        if fd in paths:
            ops.append(Op("write", paths[fd], bytes(memoryview(data)[:done])))
        return done

    def fake_fsync(fd: int) -> None:
        real["fsync"](fd)
        if fd in paths:
            ops.append(Op("fsync_dir" if fd in folders else "fsync", paths[fd]))

    def noted(kind: str, name: str) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> None:
            real[name](path, *args, **kwargs)
            where = below(path)
            if where is not None:
                target = os.path.abspath(args[0]) if kind == "rename" else ""
                ops.append(Op(kind, where, target=target))

        return call

    os.open, os.close, os.write, os.fsync = fake_open, fake_close, fake_write, fake_fsync  # type: ignore[assignment]
    os.mkdir, os.replace = noted("mkdir", "mkdir"), noted("rename", "replace")  # type: ignore[assignment]
    os.unlink, os.rmdir = noted("unlink", "unlink"), noted("rmdir", "rmdir")  # type: ignore[assignment]
    try:
        yield ops
    finally:
        for name, function in real.items():
            setattr(os, name, function)


@dataclass
class _File:
    data: bytes = b""
    synced: bytes = b""
    name_synced: bool = False


@dataclass
class Disk:
    """The state after a prefix of the calls: what is certain, and what is open."""

    files: dict[str, _File] = field(default_factory=dict)
    folders: dict[str, bool] = field(default_factory=dict)

    def apply(self, op: Op) -> None:
        match op.kind:
            case "mkdir":
                self.folders[op.path] = False
            case "create":
                self.files[op.path] = _File()
            case "write" if op.path in self.files:
                self.files[op.path].data += op.data
            case "fsync" if op.path in self.files:
                self.files[op.path].synced = self.files[op.path].data
            case "fsync_dir":
                for path, file in self.files.items():
                    if os.path.dirname(path) == op.path:
                        file.name_synced = True
                for path in self.folders:
                    if os.path.dirname(path) == op.path:
                        self.folders[path] = True

    def outcomes(self, limit: int, seed: int = 0) -> Iterator[tuple[set[str], dict[str, bytes]]]:
        """`(folders, files)` of every state a crash may leave, or `limit` random ones where there are more."""
        open_folders = [path for path, synced in self.folders.items() if not synced]
        choices: list[list[Any]] = [[True, False] for _ in open_folders]
        for file in self.files.values():
            options: list[Any] = [file.data]
            if file.data != file.synced:
                torn = file.synced + file.data[len(file.synced) : (len(file.synced) + len(file.data)) // 2]
                scrambled = file.synced + b"\0" * (len(file.data) - len(file.synced))
                options += [file.synced, torn, scrambled]
            if not file.name_synced:
                options.append(None)
            choices.append(options)
        total = 1
        for options in choices:
            total *= len(options)
        if total <= limit:
            picks: Any = itertools.product(*choices)
        else:
            draw = random.Random(seed)
            picks = (tuple(draw.choice(options) for options in choices) for _ in range(limit))
        for pick in picks:
            lost = {path for path, there in zip(open_folders, pick, strict=False) if not there}
            folders = {path for path in self.folders if not _inside(path, lost) and path not in lost}
            files = {
                path: data
                for path, data in zip(self.files, pick[len(open_folders) :], strict=True)
                if data is not None and not _inside(path, lost)
            }
            yield folders, files


def _inside(path: str, folders: set[str]) -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)


def materialise(root: Path, base: str, folders: set[str], files: dict[str, bytes]) -> None:
    """Write one outcome below `root`; recorded paths are relative to `base`."""
    for path in sorted(folders):
        (root / os.path.relpath(path, base)).mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        target = root / os.path.relpath(path, base)
        if target.parent.is_dir():
            target.write_bytes(data)
