"""How a process ends, told apart without the user's help: exception, Ctrl-C, or leaving without `finish()`.

One exception hook and one exit hook for the whole process, installed with the first run. The exception hook only takes
note and passes the exception on to the hook that was there before.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Protocol


class Ending(Protocol):
    """A run that can be told how the process ends."""

    def end_on_exception(self, error: BaseException) -> None: ...
    def end_at_exit(self) -> None: ...


_live: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_state: Final[dict[str, Any]] = {"pid": None, "previous": None}


def watch(run: Ending) -> None:
    """Have `run` told how this process ends, unless it ends before."""
    _live.add(run)
    if _state["pid"] != os.getpid():
        _state["pid"] = os.getpid()
        if sys.excepthook is not _on_exception:  # a forked child has it from its parent
            _state["previous"] = sys.excepthook
            sys.excepthook = _on_exception
        atexit.register(_at_exit, os.getpid())


# A forked child has no part in its parent's runs.
os.register_at_fork(after_in_child=_live.clear)


def forget(run: Ending) -> None:
    _live.discard(run)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Around what records an end: if that fails, a line on stderr says so, and the training's own exception goes on."""
    try:
        yield
    except Exception as problem:  # noqa: BLE001  # whatever it is, it must not stand in for how the training ended
        from lineage.capture.problem import describe_error
        from lineage.trainer.recorder import warn

        warn(f"how the session ended was not recorded: {describe_error(problem)}")


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for run in list(_live):
        with told():
            run.end_on_exception(error)
    (_state["previous"] or sys.__excepthook__)(kind, error, trace)


def _at_exit(pid: int) -> None:
    if pid != os.getpid():  # a forked child leaves by sys.exit: the run is not its own
        return
    for run in list(_live):
        with told():
            run.end_at_exit()
