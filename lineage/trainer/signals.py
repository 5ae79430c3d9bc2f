"""Preemption: SIGTERM and SIGUSR1 ask the loop to leave at its next step boundary.

Handlers are installed only while `run.steps()` is iterating, because only there is a boundary to leave at; elsewhere
the signals keep their meaning. A second signal, of either kind, gets its old meaning back and is raised again: a
loop that hangs can still be ended.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Final

PREEMPTION_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)


class Preemption:
    """Whether the process was asked to leave, and by which signal."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.signal_name is not None

    def install(self) -> None:
        """Start listening; does nothing outside the main thread, where Python allows no handlers."""
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in PREEMPTION_SIGNALS:
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
        if self.asked:
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.signal_name = signal.Signals(number).name
        if callable(previous):  # the training code has a handler of its own: it goes on working
            previous(number, frame)
