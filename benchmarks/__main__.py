"""`python -m benchmarks [NAME ...] [--json DIR]`: run the named benchmarks, or all of them.

Each benchmark is a module here with `run(*, quick) -> Report`; those that compare trackers take `peers` too. What it
prints is its table, ratios first; the same figures as JSON go to stdout after it, or to DIR/NAME.json.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
import time
from pathlib import Path

from benchmarks.report import Report, machine

NAMES = ("log", "kill", "read", "history", "resume", "nan", "checkpoint", "tui", "follow", "start", "soak")


def available() -> list[str]:
    """The benchmarks that are there, in the order of `NAMES`."""
    return [name for name in NAMES if Path(__file__).with_name(f"{name}.py").exists()]


def _measure(name: str, args: argparse.Namespace) -> Report:
    measure = importlib.import_module(f"benchmarks.{name}").run
    takes = inspect.signature(measure).parameters
    given = {word: getattr(args, word) for word in ("peers", "full", "hour") if word in takes}
    report: Report = measure(quick=args.quick, **given)
    return report


def main(argv: list[str]) -> int:
    """Exit status 0, or 1 when a benchmark says that one of its goals does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(available())}; all when none")
    parser.add_argument("--json", type=Path, metavar="DIR", help="write DIR/NAME.json instead of JSON on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; to see that it runs")
    parser.add_argument("--full", action="store_true", help="tui: also a run of ten million points, opened and used")
    parser.add_argument("--hour", action="store_true", help="follow: for an hour, and not for a minute")
    parser.add_argument("--peers", metavar="A,B", help="only these trackers; all that are installed when not given")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.names) - set(available()))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(available())}")
    holds, started = True, time.monotonic()
    for name in args.names or available():
        where, began = machine(), time.monotonic()
        report = _measure(name, args)
        seconds = round(time.monotonic() - began, 1)
        print(f"{report.table()}\n{name} took {seconds:.0f} s\n", flush=True)
        text = json.dumps({"benchmark": name, "machine": where, "seconds": seconds, **report.to_json()}, indent=2)
        if args.json:
            args.json.mkdir(parents=True, exist_ok=True)
            (args.json / f"{name}.json").write_text(text + "\n")
        else:
            print(text, flush=True)
        holds = holds and report.holds
    print(f"all of it took {(time.monotonic() - started) / 60:.1f} minutes", file=sys.stderr)
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
