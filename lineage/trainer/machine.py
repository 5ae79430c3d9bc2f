"""A few figures of the process and its machine, cheap enough to take inside a training loop."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path


def machine_figures() -> dict[str, float | int]:
    """Resident memory, CPU seconds, load, and memory of the current CUDA device where torch has initialised one."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures: dict[str, float | int] = {"cpu_s": usage.ru_utime + usage.ru_stime, "rss_bytes": _resident_bytes(usage)}
    with contextlib.suppress(OSError):
        figures["load_1m"] = os.getloadavg()[0]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        figures["gpu_allocated_bytes"] = torch.cuda.memory_allocated()
        figures["gpu_reserved_bytes"] = torch.cuda.memory_reserved()
    return figures


def _resident_bytes(usage: resource.struct_rusage) -> int:
    """Resident now where the kernel says (Linux), else the peak so far (KiB on Linux, bytes on macOS)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
