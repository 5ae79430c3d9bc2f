"""The processes of the story: started, followed through their log, signalled, and never left behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

import orjson

import lineage
from lineage.errors import LineageError, NotFoundError
from lineage.log.reader import read_lines
from lineage.log.scan import Damage

_TAIL_LINES: Final = 30


@dataclass
class Seen:
    """What one act's part of the log says so far.

    Attributes:
        step: of the last step event, or of the restore.
        checkpoint: step of the last one that was saved, by Lineage or by the training code in a phase of that name.
        phase: the one that is open.
    """

    first_step: int | None = None
    step: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    first_eval_loss: float | None = None
    checkpoint: int | None = None
    restored: int | None = None
    phase: str | None = None
    skipped: list[int] = field(default_factory=list)
    discarded_bytes: int = 0
    lr: Mapping[str, Any] | None = None
    continuation: Mapping[str, Any] | None = None
    status: str | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Fold one event in."""
        step = event.get("step")
        match event["kind"]:
            case "step":
                self.first_step = self.first_step or step
                self.step = step or 0
                self.loss = event["metrics"].get("loss")
            case "eval":
                self.eval_loss = event["metrics"].get("loss")
                self.first_eval_loss = self.first_eval_loss or self.eval_loss
            case "phase_start":
                self.phase = event["phase"]
            case "phase_end":
                self.phase = None
                if event["phase"] == "checkpoint":
                    self.checkpoint = step
            case "checkpoint_saved":
                self.checkpoint = step
            case "checkpoint_restored":
                self.restored = self.step = step or 0
            case "fp16_skip":
                self.skipped.append(step or 0)
            case "log_recovered":
                self.discarded_bytes = event["discarded_bytes"]
            case "lr_restore":
                self.lr = event
            case "continuation":
                self.continuation = event
            case "session_end":
                self.status = event["status"]


class LogTail:
    """What is appended to a log, as plain dicts; a file that is not there yet has nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Events since the last call.

        Raises:
            DamagedError: never in this story; a damaged line would make everything told after it a guess.
        """
        with contextlib.suppress(NotFoundError):
            for item in read_lines(self.path, self.offset):
                if isinstance(item, Damage):
                    raise LineageError(f"the log is damaged: {item}", str(self.path))
                self.offset = item.offset + len(item.data) + 1
                yield orjson.loads(item.data)


class Child:
    """One child process; leaving the `with` block ends it, whatever happened.

    Args:
        module: what `python -m` runs, with its first arguments.
        argv: further arguments.
    """

    def __init__(self, module: Sequence[str], argv: Sequence[str]) -> None:
        # Not under the folder the demo is started in: a user's `random.py` there must not reach the child.
        isolate = [] if Path(lineage.__file__).parents[1] == Path.cwd() else ["-P"]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - likewise
        self.process = subprocess.Popen(
            [sys.executable, *isolate, "-m", *module, *argv],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            process_group=0,  # Ctrl-C reaches the story alone, which then ends the child
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)  # so that the session is recorded as interrupted
            try:
                self.process.wait(timeout=5)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                self.process.kill()
                self.process.wait()
        self._out.close()
        self._err.close()

    def run_path(self) -> Path | None:
        """The folder of the run, which is the first line the trainer prints; None before that."""
        line, newline, _ = os.pread(self._out.fileno(), 4096, 0).partition(b"\n")
        return Path(os.fsdecode(line)) if newline else None

    def stderr(self) -> str:
        """The last lines it wrote to stderr."""
        size = os.fstat(self._err.fileno()).st_size
        data = os.pread(self._err.fileno(), 65_536, max(0, size - 65_536))
        return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-_TAIL_LINES:])

    def freeze(self) -> bool:
        """Stop the process where it stands; False when it had ended."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return False

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def digest_files(run_dir: Path) -> dict[str, str]:
    """SHA-256 of every file of a run, by its path in there; the lock and what is derived are left out."""
    return {
        str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run_dir.rglob("*"))
        if path.is_file() and path.name != "run.lock" and ".cache" not in path.parts
    }


@contextlib.contextmanager
def hang_up_is_an_exit() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise SystemExit, so that the child is ended, too."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
