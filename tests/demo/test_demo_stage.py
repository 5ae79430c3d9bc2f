"""The story can be read on any terminal, and by something that is none."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from lineage.demo.stage import Stage
from lineage.demo.story import Plan
from lineage.errors import UsageError


def stage(width: int, *, terminal: bool) -> tuple[Stage, io.StringIO]:
    out = io.StringIO()
    return Stage(Console(file=out, width=width, force_terminal=terminal, color_system=None, markup=False)), out


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_line_is_wider_than_the_terminal(width: int, terminal: bool) -> None:
    told, out = stage(width, terminal=terminal)
    told.act("1", "A run begins", "A GPT with a million parameters learns Python's own manual, byte by byte.")
    told.quote("verdict  path                          saved       live       why\nrefuse   x        1     2      no")
    with told.progress(240) as show:
        show(0, None, None)
        show(20, 5.5, 5.25)
        show(240, 1.875, None)
    text = "".join(part for part in out.getvalue().replace("\r", "\n").split("\x1b[2K"))
    plain = [line for line in text.splitlines() if "\x1b" not in line]
    assert max(map(cell_len, plain)) <= width


def test_without_a_terminal_there_is_a_line_for_each_evaluation_and_no_escape() -> None:
    told, out = stage(80, terminal=False)
    with told.progress(60) as show:
        for step, held_out in ((9, None), (10, 4.0), (11, 4.0), (20, 3.0)):
            show(step, 4.5, held_out)
    lines = out.getvalue().splitlines()
    assert lines == [
        "   step 10 of 60: loss 4.50, on held-out text 4.00",
        "   step 20 of 60: loss 4.50, on held-out text 3.00",
    ]


def test_a_loss_that_is_no_number_is_no_error() -> None:
    told, out = stage(80, terminal=False)
    with told.progress(60) as show:
        show(10, None, 4.0)
    assert "loss none" in out.getvalue()


def test_markup_and_escapes_in_a_report_are_shown_and_not_obeyed() -> None:
    told, out = stage(80, terminal=True)
    told.quote("[bold]loud[/bold] \x1b[31mred")
    assert "[bold]loud[/bold] \\x1b[31mred" in out.getvalue()


@pytest.mark.parametrize("steps", [60, 61, 79, 100, 119, 120, 240, 999])
@pytest.mark.parametrize("fast", [True, False])
def test_every_plan_has_room_for_its_signals(steps: int, fast: bool) -> None:
    """The kill comes 12 steps after a checkpoint and before the next; the SIGTERM between two, well before the end."""
    plan = Plan.make(steps=steps, seed=1, fast=fast)
    assert plan.kill_after % plan.checkpoint_every == 0
    assert plan.kill_after > 0
    assert plan.checkpoint_every >= 20
    assert plan.kill_after + plan.checkpoint_every < plan.preempt_at
    assert plan.preempt_at % plan.checkpoint_every
    assert plan.preempt_at + 10 <= steps


def test_a_negative_seed_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        Plan.make(steps=None, seed=-1, fast=False)
