"""What the terminal can do, found out before Textual is imported.

Light or dark is asked for (OSC 11), because nothing else knows. The question is followed by one that every terminal
answers (DA1): once that answer is here, the first will not come any more, and nothing is left in the input that the
app would take for keys.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Background = Literal["dark", "light"]
Glyphs = Literal["braille", "blocks", "ascii"]

QUERY_S: Final = 0.15
SSH_QUERY_S: Final = 0.6
"""Over ssh one round trip may take longer; with DA1 behind the question it costs no more than that round trip."""

_REPLY = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_DA1 = re.compile(rb"\x1b\[\?[0-9;]*c")


@dataclass(frozen=True)
class Terminal:
    """What was found; every field can be overruled by an option.

    Attributes:
        refusal: why there can be no app here, or None.
        glyphs: the finest set of marks that the terminal shows reliably.
        background: light or dark.
        no_color: NO_COLOR is set and not empty.
        ssh: the terminal is at the other end of an ssh connection.
    """

    refusal: str | None
    glyphs: Glyphs
    background: Background
    no_color: bool
    ssh: bool


def detect(env: Mapping[str, str], *, is_tty: bool, ask: bool = True) -> Terminal:
    """Look at the environment, and ask the terminal for its background where that can be answered.

    Args:
        env: environment variables.
        is_tty: whether stdin and stdout both are a terminal.
        ask: False never touches the terminal.
    """
    refusal = refuse(env, is_tty=is_tty)
    ssh = bool(env.get("SSH_CONNECTION") or env.get("SSH_TTY"))
    background = None
    if ask and refusal is None and answers_queries(env):
        background = query_background(SSH_QUERY_S if ssh else QUERY_S)
    return Terminal(
        refusal=refusal,
        glyphs=glyphs_of(env),
        background=background or background_of_colorfgbg(env.get("COLORFGBG", "")) or "dark",
        no_color=bool(env.get("NO_COLOR")),
        ssh=ssh,
    )


def refuse(env: Mapping[str, str], *, is_tty: bool) -> str | None:
    """Why no full-screen app can run here, or None."""
    if not is_tty:
        return "stdin and stdout are no terminal"
    if env.get("TERM", "") in {"", "dumb", "unknown"}:
        return f"the terminal cannot place text (TERM={env.get('TERM', '') or 'unset'})"
    return None


def glyphs_of(env: Mapping[str, str]) -> Glyphs:
    """Braille where a Unicode font is likely, half blocks on the Linux console, ASCII outside of UTF-8."""
    locale = (env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "").lower().replace("-", "")
    # No locale at all (a bare container) is the C locale by name, but the terminal is nearly always UTF-8 there.
    if locale and "utf8" not in locale and locale not in {"c", "posix"}:
        return "ascii"
    if locale in {"c", "posix"} and sys.getfilesystemencoding().lower() not in {"utf-8", "utf8"}:
        return "ascii"
    return "blocks" if env.get("TERM", "") in {"linux", "vt220", "vt100"} else "braille"


def answers_queries(env: Mapping[str, str]) -> bool:
    """Whether it is safe to ask: the Linux console and GNU screen print or swallow the question."""
    term = env.get("TERM", "")
    return not (term in {"linux", "vt100", "vt220"} or (term.startswith("screen") and "TMUX" not in env))


def background_of_colorfgbg(value: str) -> Background | None:
    """Light or dark from COLORFGBG (`fg;bg` or `fg;other;bg`, ANSI indices), None when it says nothing."""
    last = value.rpartition(";")[2]
    if not last.isdigit():
        return None
    return "light" if int(last) in {7, 15} else "dark"


def parse_reply(data: bytes) -> Background | None:
    """Light or dark from the reply to OSC 11, by luma; None when there is no whole reply in `data`."""
    found = _REPLY.search(data)
    if not found:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return "light" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "dark"


def query_background(timeout_s: float) -> Background | None:
    """Ask the controlling terminal for its background colour; None when it does not say within `timeout_s`.

    The terminal is put back as it was; what arrives late is thrown away.
    """
    try:
        import termios
        import tty
    except ImportError:  # no POSIX terminal here
        return None
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd, termios.TCSANOW)
        try:
            os.write(fd, b"\x1b]11;?\x1b\\\x1b[c")
            reply = _read_reply(fd, timeout_s)
        finally:
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)
    except (OSError, termios.error):
        return None
    finally:
        os.close(fd)
    return parse_reply(reply)


def _read_reply(fd: int, timeout_s: float) -> bytes:
    """What the terminal says until its DA1 answer is complete or the time is over."""
    data = b""
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0 and not _DA1.search(data):
        if select.select([fd], [], [], left)[0]:
            data += os.read(fd, 1024)
    return data
