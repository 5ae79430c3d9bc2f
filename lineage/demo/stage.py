"""Where the story is told: progress bars on a terminal, plain lines elsewhere. Everything goes to stderr."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from lineage.cli.output import clean

Show = Callable[[int, float | None, float | None], None]
"""`(step, loss, held-out loss)` as far as they are known."""


class Stage:
    """Tells the story on a rich console; texts are taken literally, never as markup."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def act(self, number: str, title: str, text: str) -> None:
        self.console.print()
        self.console.print(Text(f"{number}. {title}", style="bold"))
        self.say(text)

    def say(self, text: str) -> None:
        self._print(text, indent=3)

    def quote(self, text: str) -> None:
        """Somebody else's words, set off; of lines that are too long, wide gaps between columns are closed first."""
        for line in text.splitlines():
            is_long = len(line) > self.console.width - 6
            self._print(clean(re.sub(" {3,}", "  ", line) if is_long else line), indent=6, hanging=2, style="dim")

    def _print(self, text: str, *, indent: int, hanging: int = 0, style: str = "") -> None:
        """Wrap by words only: a path stays whole, so that it can be copied."""
        lines = textwrap.wrap(
            text,
            max(20, self.console.width),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hanging),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self.console.print(Text(line), style=style, soft_wrap=True)

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner on a terminal; nothing elsewhere."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(text):
            yield

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Show]:
        """A bar that stays where it stopped; elsewhere a line for each evaluation."""
        if not self.console.is_terminal:
            yield self._lines(total)
            return
        columns = (
            TextColumn("  "),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}"),
        )
        with Progress(*columns, console=self.console, expand=True, refresh_per_second=8) as bars:
            task = bars.add_task("", total=total, figures="starting")

            def show(step: int, loss: float | None, eval_loss: float | None) -> None:
                figures = "starting" if loss is None else f"loss {figure(loss)}"
                if eval_loss is not None and self.console.width >= 60:
                    figures += f", held out {figure(eval_loss)}"
                bars.update(task, completed=step, figures=figures)

            yield show

    def _lines(self, total: int) -> Show:
        last: float | None = None

        def show(step: int, loss: float | None, eval_loss: float | None) -> None:
            nonlocal last
            if eval_loss is not None and eval_loss != last:
                last = eval_loss
                self.say(f"step {step} of {total}: loss {figure(loss)}, on held-out text {figure(eval_loss)}")

        return show


def figure(value: float | None) -> str:
    """A loss as people read it; a non-finite one travels through the log as None."""
    return "none" if value is None else f"{value:.2f}"
