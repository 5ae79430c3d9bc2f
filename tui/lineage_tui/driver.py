"""What is asked of the terminal's mouse."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class NoMotionDriver(LinuxDriver):
    """Clicks, the wheel and drags, but not every move of the pointer: over ssh each would be a packet."""

    def _enable_mouse_support(self) -> None:
        if self._mouse:
            # 1002 (moves while a button is down) instead of Textual's 1003 (all moves).
            self.write("\x1b[?1000h\x1b[?1002h\x1b[?1015h\x1b[?1006h")
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write("\x1b[?1002l")
        super()._disable_mouse_support()
