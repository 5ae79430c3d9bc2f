"""A log of 300 MB that grows by a hundred steps a second, followed by the terminal UI: for a minute, or with `--hour` for one.

python -m benchmarks follow [--hour]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.report import Figure, Report
from benchmarks.synthetic import METRICS, write_run
from benchmarks.tui import in_a_process
from lineage.layout import RunDir

STEPS = 1_000_000
COLUMNS = len(METRICS) + 4  # and step, time, duration and tokens
BOUND_MB = 8.0
"""What the process may grow by beside the columns of what was appended."""


def run(*, quick: bool = False, hour: bool = False) -> Report:
    seconds, windows = (3600.0, 12) if hour else (6.0, 2) if quick else (60.0, 6)
    with tempfile.TemporaryDirectory(prefix="bench-follow-") as scratch:
        steps = STEPS // 20 if quick else STEPS
        growing = write_run(Path(scratch), steps=steps, sessions=3, metrics=len(METRICS), skip_every=211, live=True)
        log_mb = RunDir(growing).log.stat().st_size / 1e6
        found: list[dict[str, float]] = in_a_process("follow", growing, str(seconds), str(windows))
    rows: list[dict[str, Figure]] = [
        {
            "minutes followed": round((number + 1) * seconds / windows / 60, 2),
            "% of a core": round(one["share"] * 100, 2),
            "pictures/s": round(one["pictures_hz"], 2),
            "steps/s": round(one["steps_hz"], 1),
            "MB": round(one["mb"], 1),
        }
        for number, one in enumerate(found)
    ]
    report = Report(f"follow: the screens at 200x50 on a log of {log_mb:,.0f} MB that grows by 100 steps/s", rows)
    most = max(one["share"] for one in found)
    grown = sum(one["grown_mb"] for one in found)
    columns_mb = seconds * 100 * COLUMNS * 8 / 1e6
    bound = BOUND_MB + 3 * columns_mb
    report.goals = {
        f"under a tenth of a core, always ({most:.1%})": most < 0.1,
        f"grows by less than {bound:.0f} MB, three times the new columns and {BOUND_MB:.0f} ({grown:+.1f})": grown
        < bound,
    }
    if windows > 2:
        early, late = (sum(one["share"] for one in part) / len(part) for part in (found[:3], found[-3:]))
        report.goals[f"the last quarter costs no more than the first, and a tenth ({late:.1%}, {early:.1%})"] = (
            late <= early * 1.1
        )
    report.notes.append("processor time of the whole process, threads that read and audit included")
    return report
