"""A problem as a panel: what, where, what next."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from lineage_tui.messages import Problem
from lineage_tui.widgets.bars import joined, toned
from lineage_tui.widgets.words import plain, to_ascii


def problem_content(problem: Problem, *, ascii_only: bool = False) -> Content:
    """The three facts of a problem, one under the other."""

    def clean(text: str) -> str:
        shown = plain(text, 1_000)
        return to_ascii(shown) if ascii_only else shown

    lines = [joined([toned("! ", "bad", "bold"), toned(clean(problem.what), "strong")])]
    if problem.where:
        lines.append(joined([toned("  where  ", "dim"), Content(clean(problem.where))]))
    if problem.hint:
        lines.append(joined([toned("  next   ", "dim"), Content(clean(problem.hint))]))
    return Content("\n").join(lines)


class ProblemPanel(Static):
    """In place of what cannot be shown; takes no room while there is no problem."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__(id="problem")
        self._ascii = ascii_only
        self.display = False

    def show_problem(self, problem: Problem | None) -> None:
        self.display = problem is not None
        if problem is not None:
            self.update(problem_content(problem, ascii_only=self._ascii))
