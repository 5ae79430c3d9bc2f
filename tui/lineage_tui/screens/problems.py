"""Everything that is damaged or missing, with its place."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from lineage_tui.messages import Problem
from lineage_tui.screens.pages import Page
from lineage_tui.widgets.bars import toned
from lineage_tui.widgets.panel import problem_content
from lineage_tui.widgets.words import plural

LIMIT = 200


class ProblemsPage(Page):
    """The problems of the runs looked at."""

    def __init__(self, problems: Sequence[Problem], *, ascii_only: bool = False) -> None:
        shown = [problem_content(problem, ascii_only=ascii_only) for problem in problems[:LIMIT]]
        if len(problems) > LIMIT:
            shown.append(toned(f"and {len(problems) - LIMIT:,} more", "dim"))
        if not shown:
            shown = [Content("Nothing is damaged, and nothing is missing.")]
        super().__init__(plural(len(problems), "problem"), Content("\n\n").join(shown), ascii_only=ascii_only)
