"""`python -m benchmarks.page [DIR]`: put the latest results into docs/benchmarks.md.

Between `<!-- NAME -->` and `<!-- end -->` of that page stands what `python -m benchmarks NAME --json DIR` measured, and
nothing else; what people wrote around it stays. A benchmark without a result keeps what it had.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT
from benchmarks.report import cell

PAGE = ROOT / "docs" / "benchmarks.md"
_PLACE = re.compile(r"(<!-- (?P<name>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(report: dict[str, Any]) -> str:
    """The tables, goals and notes of one report and of those under it."""
    rows = report["rows"]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    lines = [f"**{report['title'][0].upper()}{report['title'][1:]}**", ""]
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + "|".join("---" if index == 0 else "--:" for index in range(len(columns))) + "|")
    lines += ["| " + " | ".join(_escaped(cell(row.get(name))) for name in columns) + " |" for row in rows]
    lines.append("")
    lines += [f"- {'holds' if holds else '**does not hold**'}: {goal}" for goal, holds in report["goals"].items()]
    lines += [f"- {note}" for note in report["notes"]]
    return "\n".join(lines) + "\n" + "".join("\n" + markdown(more) for more in report.get("more", []))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def made_on(machine: dict[str, Any]) -> str:
    """Where and when, in a sentence."""
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cpus']} CPUs, {machine['system']}, "
        f"Python {machine['python']}, load {machine['load_1m']} at the start.\n"
    )


def fill(page: str, results: Path) -> str:
    """The page with every result of the folder in its place."""

    def put(place: re.Match[str]) -> str:
        path = results / f"{place['name']}.json"
        if not path.exists():
            return place[0]
        found = json.loads(path.read_text())
        took = f"Took {found['seconds']:.0f} s. " if "seconds" in found else ""
        return f"{place[1]}\n{markdown(found)}\n{took}{made_on(found['machine'])}\n{place[3]}"

    return _PLACE.sub(put, page)


def main(argv: list[str]) -> int:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("dir", type=Path, nargs="?", default=ROOT / "benchmarks" / "results" / "latest")
    results = parser.parse_args(argv).dir
    PAGE.write_text(fill(PAGE.read_text(), results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
