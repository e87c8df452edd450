"""Bars for long work outside training: on standard error, in a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Show = Callable[[str, int, int | None], None]
"""(stage, how many are done, how many there are if known)"""


@contextmanager
def progress_bars() -> Iterator[Show]:
    """Gives a function that shows how far each stage of the work is; silent where nobody watches."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        stages = {}

        def show(stage: str, num_done: int, num_total: int | None) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage)
            bars.update(stages[stage], completed=num_done, total=num_total)

        yield show
