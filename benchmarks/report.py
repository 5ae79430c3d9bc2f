"""What every benchmark hands back: rows of figures, ratios first, and goals that hold or do not."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

Figure: TypeAlias = float | int | str | bool | None


@dataclass
class Report:
    """One benchmark's outcome.

    Attributes:
        title: what was measured, in a line.
        rows: one dict per row; the first one's keys are the table's columns.
        goals: sentence to whether it holds.
        notes: what the numbers do not say.
        more: further tables of the same benchmark.
    """

    title: str
    rows: list[dict[str, Figure]] = field(default_factory=list)
    goals: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    more: list[Report] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(self.goals.values()) and all(report.holds for report in self.more)

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {"title": self.title, "rows": self.rows, "goals": self.goals, "notes": self.notes}
        return found | ({"more": [report.to_json() for report in self.more]} if self.more else {})

    def table(self) -> str:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [columns, *([cell(row.get(name)) for name in columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
        lines = [self.title, ""]
        for line in cells:
            padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
            lines.append("  ".join(padded))
        lines += ["", *(f"{'holds' if ok else 'FAILS'}: {goal}" for goal, ok in self.goals.items())]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines) + "\n" + "".join(f"\n{report.table()}" for report in self.more)


def cell(value: Figure) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def percentile(values: Sequence[int], q: float) -> int:
    """The value below which the share `q` of them lies; `values` need not be sorted."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def machine() -> dict[str, Figure]:
    """Where this ran, without its name."""
    cpu = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - one word of it is read
            cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        cpu = platform.processor()
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "date": datetime.now(UTC).date().isoformat(),
        "load_1m": round(os.getloadavg()[0], 1),
    }
