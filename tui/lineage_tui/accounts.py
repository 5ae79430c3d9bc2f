"""What the reading thread works out of a view for the explain screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lineage.history.explain import Change
    from lineage.view import RunView


def changes_of(view: RunView, step: int | None) -> list[Change]:
    """The abrupt changes of a run, or what happened around one step."""
    from lineage.history.evidence import account_of
    from lineage.history.explain import explain_step, find_changes

    account = account_of(view)
    return find_changes(account) if step is None else explain_step(account, step)
