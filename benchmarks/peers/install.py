"""`python -m benchmarks.peers.install [NAME ...]`: make the peers' virtual environments, one after another.

An environment that was made with the same requirements is left alone. One that cannot be made, or has grown beyond
`MOST_GB`, is removed again and said so: the benchmarks skip its peer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

from benchmarks.peers import REQUIREMENTS, environment_dir, environment_python, environments_dir

MOST_GB = 1.5
LEAST_FREE_GB = 5.0


def size_gb(folder: Path) -> float:
    """Bytes of its regular files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e9


def make(name: str) -> str:
    """Make one environment; what happened, in a sentence."""
    folder, wanted = environment_dir(name), "\n".join(REQUIREMENTS[name])
    made = folder / ".made"
    if made.exists() and made.read_text() == wanted:
        return "was there"
    if shutil.disk_usage(environments_dir()).free < LEAST_FREE_GB * 1e9:
        return f"left out: less than {LEAST_FREE_GB:.0f} GB are free"
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=True)
    command = [str(environment_python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *REQUIREMENTS[name]], capture_output=True, text=True, env=_environment())
    if done.returncode:
        shutil.rmtree(folder)
        return f"left out: pip said {done.stderr.strip()[-300:]!r}"
    size = size_gb(folder)
    if size > MOST_GB:
        shutil.rmtree(folder)
        return f"left out: it has {size:.1f} GB"
    made.write_text(wanted)
    return f"{size:.2f} GB in {time.monotonic() - began:.0f} s"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def main(argv: list[str]) -> int:
    """Exit status 0, or 1 when one could not be made."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.install", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(REQUIREMENTS)}; all when none")
    names = parser.parse_args(argv).names or list(REQUIREMENTS)
    unknown = sorted(set(names) - set(REQUIREMENTS))
    if unknown:
        parser.error(f"there is no environment {', '.join(unknown)}")
    environments_dir().mkdir(parents=True, exist_ok=True)
    complete = True
    for name in names:
        outcome = make(name)
        complete = complete and not outcome.startswith("left out")
        print(f"{name}: {outcome}", flush=True)
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
