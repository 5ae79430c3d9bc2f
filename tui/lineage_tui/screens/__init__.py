"""The screens, by the names the key table has for them; one that is not here is not offered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lineage_tui.terminal import Glyphs

if TYPE_CHECKING:
    from lineage_tui.screens.base import LineageScreen


def _runs(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.runs import RunsScreen

    return RunsScreen(glyphs)


def _run(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.run import RunScreen

    return RunScreen(glyphs)


def _sessions(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.sessions import SessionsScreen

    return SessionsScreen(glyphs)


def _diff(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.diff import DiffScreen

    return DiffScreen(glyphs)


def _checkpoints(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.checkpoints import CheckpointsScreen

    return CheckpointsScreen(glyphs)


def _tree(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.tree import TreeScreen

    return TreeScreen(glyphs)


def _events(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.events import EventsScreen

    return EventsScreen(glyphs)


def _explain(glyphs: Glyphs) -> LineageScreen:
    from lineage_tui.screens.explain import ExplainScreen

    return ExplainScreen(glyphs)


FACTORIES: Final[dict[str, Callable[[Glyphs], LineageScreen]]] = {
    "runs": _runs,
    "run": _run,
    "sessions": _sessions,
    "diff": _diff,
    "checkpoints": _checkpoints,
    "tree": _tree,
    "events": _events,
    "explain": _explain,
}
