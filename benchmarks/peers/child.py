"""Runs inside a peer's environment: `python -m benchmarks.peers.child MODULE MODE FOLDER [...]`, one JSON line out.

`cost` times logging; `kill` logs in forked children and kills them; `read` gives back what the peer's reader shows;
`log` logs given values; `forever` logs until killed, for peers that cannot be forked. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import math
import mmap
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.base import Adapter, Curves, metrics_of

_SUBREAPER = 36  # prctl: orphaned helpers of a killed trainer come to this process
_HELPERS_MAY_FINISH_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


def percentile(values: list[int], q: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(q * len(ordered)))])


def descendants() -> list[int]:
    """Processes below this one, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def cpu_of(pid: int) -> float:
    """Seconds of processor time of one live process; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_mb(pid: int | str) -> float:
    """Most memory a process ever had resident; not `ru_maxrss`, which a child inherits from its parent."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def cost(adapter: Adapter, options: argparse.Namespace) -> dict[str, Any]:
    """Import, open, a paced stretch, a flat-out stretch, close."""
    clock = time.perf_counter
    began = clock()
    adapter.load()
    loaded = clock()
    adapter.open()
    opened = clock()
    rows = [metrics_of(step) for step in range(1, options.warm + options.paced + options.flat + 1)]
    step = 0

    def stretch(count: int, period_s: float) -> list[int]:
        nonlocal step
        taken = []
        due = clock()
        stop = due + options.budget
        for _ in range(count):
            if period_s:
                due = max(due + period_s, clock())
                time.sleep(max(0.0, due - clock()))
            elif clock() > stop:
                break
            if period_s and clock() > stop + count * period_s:
                break
            step += 1
            metrics = rows[step - 1]
            before = time.perf_counter_ns()
            adapter.log(step, metrics)
            taken.append(time.perf_counter_ns() - before)
        return taken

    stretch(options.warm, 0.0)
    paced = stretch(options.paced, 0.01)
    gc.collect()
    helpers = descendants()
    size = size_of(adapter.folder)
    before_cpu = time.process_time(), sum(map(cpu_of, helpers))
    flat = stretch(options.flat, 0.0)
    helper_cpu = sum(map(cpu_of, helpers)) - before_cpu[1]
    helper_mb = sum(map(peak_mb, helpers))
    closing = clock()
    adapter.close()
    closed = clock()
    cpu = time.process_time() - before_cpu[0]
    return {
        "import_s": loaded - began,
        "open_s": opened - loaded,
        "close_s": closed - closing,
        "flat_us": [percentile(flat, q) / 1e3 for q in (0.5, 0.99, 1.0)],
        "paced_us": [percentile(paced, q) / 1e3 for q in (0.5, 0.99, 1.0)],
        "flat_steps": len(flat),
        "paced_steps": len(paced),
        "cpu_us": cpu / len(flat) * 1e6,
        "helper_cpu_us": helper_cpu / len(flat) * 1e6,
        "helpers": len(helpers),
        "bytes": (size_of(adapter.folder) - size) / len(flat),
        "rss_mb": peak_mb("self"),
        "helper_rss_mb": helper_mb,
    }


def _counter_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.acknowledged")


def shared_counter(path: Path) -> ctypes.c_uint64:
    """A number that outlives the process that stores it, always with one aligned write of the machine."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, mmap.PAGESIZE)
    counter = ctypes.c_uint64.from_buffer(mmap.mmap(fd, mmap.PAGESIZE))
    os.close(fd)
    return counter


def log_forever(adapter: Adapter, acknowledged: ctypes.c_uint64) -> None:
    """Log until killed; each step that `log` returned from is acknowledged."""
    adapter.open()
    step = 0
    while True:
        step += 1
        adapter.log(step, metrics_of(step))
        acknowledged.value = step


def kill(adapter_class: type[Adapter], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a trainer, let it log for a random while, kill it; what it had acknowledged, for each."""
    if options.spawn:
        return kill_all(options, lambda folder, _: _spawn(options.module, folder))
    loader = adapter_class(options.folder)
    loader.load()
    return kill_all(options, lambda folder, counter: _fork(adapter_class, loader, folder, counter))


def _spawn(module: str, folder: Path) -> int:
    words = [sys.executable, "-m", "benchmarks.peers.child", module, "forever", str(folder)]
    return os.spawnv(os.P_NOWAIT, sys.executable, words)


def _fork(adapter_class: type[Adapter], loader: Adapter, folder: Path, counter: ctypes.c_uint64) -> int:
    child = os.fork()
    if child:
        return child
    try:
        adapter = adapter_class(folder)
        adapter.__dict__.update({name: value for name, value in loader.__dict__.items() if name != "folder"})
        log_forever(adapter, counter)
    except BaseException:  # noqa: BLE001 - whatever it is, this child may not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(1)


def kill_all(options: argparse.Namespace, start: Callable[[Path, ctypes.c_uint64], int]) -> list[dict[str, Any]]:
    """Start and kill `options.kills` trainers, each in a folder of its own; only the trainer is killed."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    moments = random.Random(options.seed)
    killed = []
    for number in range(options.kills):
        folder = options.folder / f"kill-{number:03d}"
        folder.mkdir()
        counter = shared_counter(_counter_path(folder))
        child = start(folder, counter)
        deadline = time.monotonic() + 90
        while counter.value == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moments.uniform(options.least, options.most))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError("the trainer ended by itself; its traceback is above")
        killed.append({"folder": folder.name, "acknowledged": counter.value, "helpers": _let_helpers_finish()})
    return killed


def _let_helpers_finish() -> int:
    """Wait for what the killed trainer left behind, then end it; how many there were."""
    most = 0
    deadline = time.monotonic() + _HELPERS_MAY_FINISH_S
    while alive := descendants():
        most = max(most, len(alive))
        if time.monotonic() > deadline:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()
    _reap()
    return most


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def read_back(adapter: Adapter) -> dict[str, Any]:
    """The curves, with NaN and infinities as words."""
    try:
        curves: Curves = adapter.read()
    except Exception as error:  # noqa: BLE001 - a reader that fails is a finding, not the end of the benchmark
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:200], "curves": {}, "remark": ""}
    plain = {
        name: [[int(step) for step in steps], [_plain(value) for value in values]]
        for name, (steps, values) in curves.items()
    }
    return {"curves": plain, "remark": adapter.remark()}


def lost_in(curves: Curves, acknowledged: int) -> int:
    """Acknowledged steps that are missing from at least one curve."""
    wanted = set(range(1, acknowledged + 1))
    if not curves:
        return acknowledged
    return max(len(wanted - set(steps)) for steps, _ in curves.values())


def _plain(value: object) -> float | str | None:
    if value is None:
        return None
    number = float(value)  # type: ignore[arg-type]  # whatever the reader gave, it is a number or raises
    return number if math.isfinite(number) else repr(number)


def log_values(adapter: Adapter, values: list[list[Any]], after: int) -> dict[str, Any]:
    """Log `[step, loss]` pairs; what went wrong."""
    refused: list[str] = []
    adapter.open(after=after)
    for step, value in values:
        try:
            adapter.log(step, {"loss": float(value), "lr": 0.1})
        except Exception as error:  # noqa: BLE001 - a refusal is the finding
            refused.append(f"step {step}: {type(error).__name__}")
    adapter.close()
    return {"refused": refused}


def main(argv: list[str]) -> int:
    """Do one thing and print one line of JSON; everything else that is printed goes to stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("mode", choices=("cost", "kill", "forever", "lost", "read", "log"))
    parser.add_argument("folder", type=Path)
    for name, default in (("warm", 50), ("paced", 300), ("flat", 5000), ("kills", 20), ("seed", 1), ("after", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, seconds in (("budget", 4.0), ("least", 0.1), ("most", 0.6)):
        parser.add_argument(f"--{name}", type=float, default=seconds)
    parser.add_argument("--spawn", action="store_true", help="for a peer that cannot be forked")
    parser.add_argument("--given", type=json.loads, default=[])
    options = parser.parse_args(argv)
    out = os.dup(1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    adapter_class = importlib.import_module(f"benchmarks.peers.{options.module}").Adapter
    os.chdir(options.folder)
    adapter = adapter_class(options.folder)
    result: object
    if options.mode == "cost":
        result = cost(adapter, options)
    elif options.mode == "kill":
        result = kill(adapter_class, options)
    elif options.mode == "forever":
        adapter.load()
        log_forever(adapter, shared_counter(_counter_path(options.folder)))
    elif options.mode == "lost":
        if not options.spawn:
            adapter.load_reader()
        result = lost(adapter_class, adapter, options)
    elif options.mode == "read":
        adapter.load_reader()
        result = read_back(adapter)
    else:
        adapter.load()
        result = log_values(adapter, options.given, options.after)
    os.write(out, json.dumps(result).encode() + b"\n")
    return 0


def lost(adapter_class: type[Adapter], reader: Adapter, options: argparse.Namespace) -> list[dict[str, Any]]:
    """For each `[folder, acknowledged]`: how many of the acknowledged steps the peer's reader does not give back."""
    found = []
    for name, acknowledged in options.given:
        adapter = adapter_class(options.folder / name)
        if options.spawn:
            adapter.load_reader()
        else:
            adapter.__dict__.update({key: value for key, value in reader.__dict__.items() if key != "folder"})
        try:
            curves = adapter.read()
        except Exception as error:  # noqa: BLE001 - a reader that fails after a kill is a finding
            traceback.print_exc()
            found.append({"lost": acknowledged, "error": type(error).__name__, "remark": ""})
            continue
        found.append({"lost": lost_in(curves, acknowledged), "error": "", "remark": adapter.remark()})
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
