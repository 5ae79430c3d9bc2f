"""What the reading thread works out of a view for the explain screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lineage_tui.widgets.words import number, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lineage.history.changes import Curve
    from lineage.history.explain import Change
    from lineage.view import RunView


@dataclass(frozen=True)
class Explained:
    """The changes of a run, or around one step.

    Attributes:
        calm: what can be said where no change was found, of the step or of the run: a few words, and a sentence.
    """

    changes: tuple[Change, ...]
    calm: tuple[str, str] = ("", "")


def changes_of(view: RunView, step: int | None) -> Explained:
    """The abrupt changes of a run, or what happened around one step."""
    from lineage.history.evidence import account_of
    from lineage.history.explain import explain_step, find_changes

    account = account_of(view)
    if step is None:
        looked = looked_words({account.loss_name: account.loss, account.throughput_name: account.throughput})
        return Explained(tuple(find_changes(account)), ("", looked))
    return Explained(tuple(explain_step(account, step)), calm_words(account.loss, account.loss_name, step))


def looked_words(curves: Mapping[str, Curve | None]) -> str:
    """In which curves no abrupt change was found, and where there were too few values to find one."""
    from lineage.history.changes import WINDOWS

    least = 3 * min(WINDOWS)
    nums = {name: int(np.isfinite(curve.value).sum()) if curve is not None else 0 for name, curve in curves.items()}
    enough = [f"{plural(num, 'value')} of {name}" for name, num in nums.items() if num >= least]
    few = [f"{plural(num, 'value')} of {name}" for name, num in nums.items() if num < least]
    looked = f"no abrupt change in {' and '.join(enough)}" if enough else ""
    short = f"{' and '.join(few)}: a jump is told from {least} or more" if few else ""
    return "; ".join(part for part in (looked, short) if part)


def calm_words(curve: Curve | None, name: str, step: int) -> tuple[str, str]:
    """Why no jump of a curve is told of at a step: there is none, or nothing that one could be told from."""
    from lineage.history.changes import WINDOWS
    from lineage.history.explain import WINDOW

    least = min(WINDOWS)
    steps = curve.step[np.isfinite(curve.value)] if curve is not None else np.zeros(0, dtype=np.int64)
    values = curve.value[np.isfinite(curve.value)] if curve is not None else np.zeros(0)
    if not steps.size:
        return "never logged", f"no {name} was logged in what counts of this run, so no jump can be seen in it"
    nearest = int(np.abs(steps - step).argmin())
    if abs(int(steps[nearest]) - step) > WINDOW:
        return (
            "not logged near it",
            f"{name} was not logged within {WINDOW} steps of it; the nearest value is that of step {steps[nearest]:,}",
        )
    if steps.size < 3 * least:
        words = f"{plural(int(steps.size), 'value')} of {name}: a jump is told from {3 * least} or more"
        return "too few to tell", words
    before, after = int((steps < step).sum()), int((steps >= step).sum())
    if min(before, after) < least:
        end = "before" if before < least else "from"
        words = f"a jump is told from {least} values on each side; there are {min(before, after)} {end} it"
        return "too near the end to tell" if end == "from" else "too near the beginning", words
    if int(steps[nearest]) == step:
        return "no jump", f"{name} is {number(float(values[nearest]))} here, and does not jump within {WINDOW} steps"
    return "no jump", f"{name} was not logged at this step; what was logged within {WINDOW} steps does not jump"
