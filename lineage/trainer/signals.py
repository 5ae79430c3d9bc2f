"""Preemption: SIGTERM and SIGUSR1 ask the loop to leave at its next step boundary.

Handlers are installed only while `run.steps()` is iterating, because only there is a boundary to leave at; elsewhere
the signals keep their meaning. A second signal, of either kind, gets its old meaning back and is raised again: a
loop that hangs can still be ended.

A signal that is ignored stays ignored: whoever started the process said so, as `nohup` says it of SIGHUP. In a process
forked while the loop runs there is no boundary to leave at, so SIGTERM ends it as if nobody listened. SIGUSR1 does not:
sent to a whole group it is a notice for the trainer, and a loader's worker that died of it would end the trainer too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

PREEMPTION_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)


@contextlib.contextmanager
def children_survive_a_notice() -> Iterator[None]:
    """Around what forks workers before the loop listens: a SIGUSR1 to the group ends this process alone, as ever."""
    number, pid = signal.SIGUSR1, os.getpid()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() == pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(pid, number)

    signal.signal(number, handle)
    try:
        yield
    finally:
        if signal.getsignal(number) is handle:
            signal.signal(number, signal.SIG_DFL)


class Preemption:
    """Whether the process was asked to leave, and by which signal."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.signal_name is not None

    def install(self) -> None:
        """Start listening; does nothing outside the main thread, where Python allows no handlers."""
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        self._pid = os.getpid()
        for number in PREEMPTION_SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put back what was there, unless somebody else put in a handler of their own since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous.get(number)
        is_ours = os.getpid() == self._pid
        if self.asked if is_ours else number == signal.SIGTERM:
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if is_ours:
            self.signal_name = signal.Signals(number).name
        if callable(previous):  # the training code has a handler of its own: it goes on working
            previous(number, frame)
