"""The run that every rank but the writer holds: the loop goes on, nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from lineage.errors import UsageError
from lineage.trainer.progress import Progress
from lineage.trainer.run import EndStatus, Run


class SilentRun(Run):
    """A no-op with the same methods as `Run`.

    Checkpoints of several ranks are not saved yet: `checkpoint` raises here as it does on the writer, so that no rank
    believes in a state that only one of them kept.
    """

    def __init__(self, *, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self._progress = Progress()
        self.num_updates = self.num_skipped = self.num_tokens = 0
        self._over: EndStatus | None = None

    @property
    def id(self) -> str:
        return ""

    @property
    def path(self) -> Path:
        raise UsageError(f"rank {self.rank} writes nothing, so its run has no folder")

    @property
    def session(self) -> str | None:
        return None

    @property
    def preempted(self) -> bool:
        return False

    @property
    def ended(self) -> EndStatus | None:
        return self._over

    def track(self, **objects: Any) -> None:
        pass

    def track_as(self, family: str, **objects: Any) -> None:
        pass

    def absent(self, what: str, reason: str) -> None:
        pass

    def restore(self) -> None:
        return None

    def checkpoint(self, *, background: bool | None = None) -> None:  # noqa: ARG002 - the public name
        from lineage.trainer.keeper import several_ranks

        raise several_ranks(self.world)

    def export(self, name: str) -> None:
        pass

    def fix_batch(self, loader: Any) -> None:
        pass

    def steps(self, total: int, *, start: int | None = None) -> Iterator[int]:
        progress = self._progress
        progress.step = progress.step if start is None else start
        while progress.step < total:
            yield progress.enter()
            progress.complete()

    def batches(self, loader: Any, *, epochs: int | None = None) -> Iterator[Any]:
        done = 0
        while epochs is None or done < epochs:
            yield from loader
            done += 1

    def log(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        tokens: int | None = None,
        samples: int | None = None,
        **more: Any,
    ) -> None:
        pass

    def log_eval(self, metrics: Mapping[str, Any] | None = None, /, *, name: str = "eval", **more: Any) -> None:
        pass

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:  # noqa: ARG002 - the public name
        yield

    def note(self, text: str) -> None:
        pass

    def alert(
        self, message: str, *, code: str = "user", severity: Literal["info", "warning", "error"] = "warning"
    ) -> None:
        pass

    def finish(self) -> None:
        self._over = self._over or "completed"

    def end_on_exception(self, error: BaseException) -> None:
        self._over = self._over or ("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")

    def end_at_exit(self) -> None:
        pass
