"""What a person reads while a run goes on: a live bar in a terminal, plain lines in a file, log.txt always."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

CONSOLE_VARIABLE = "DRAGOMAN_CONSOLE"
"""Set to "stderr", it keeps a worker's lines off standard output, which then is for JSON alone."""


class RunConsole:
    """Speaks to the terminal and to log.txt."""

    def __init__(self, log: Path, num_steps: int) -> None:
        self._log = log.open("a", encoding="utf-8", newline="\n")
        file = sys.stderr if os.environ.get(CONSOLE_VARIABLE) == "stderr" else sys.stdout
        self._console = Console(file=file, highlight=False, soft_wrap=True, markup=False, emoji=False)
        self._is_terminal = self._console.is_terminal
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            expand=True,
            disable=not self._is_terminal,
        )
        self._task = self._progress.add_task("training", total=num_steps, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._log.close()

    def say(self, text: str) -> None:
        """Something the person should read wherever they look."""
        self._console.print(text)
        self._write_log(text)

    def log(self, text: str) -> None:
        """A regular line: kept in log.txt, and shown where there is no live bar to show the same."""
        if not self._is_terminal:
            self._console.print(text)
        self._write_log(text)

    def show_progress(
        self, step: int, loss: float | None, bleu: float | None, tokens_per_second: float, seconds_left: float
    ) -> None:
        """Moves the bar; does nothing in a file."""
        parts = [
            f"loss {loss:.3f}" if loss is not None else "",
            f"BLEU {bleu:.1f}" if bleu is not None else "",
            f"{tokens_per_second:,.0f} tokens/s" if tokens_per_second else "",
            f"{format_seconds(seconds_left)} left" if tokens_per_second else "",
        ]
        self._progress.update(self._task, completed=step, figures="  ".join(filter(None, parts)))

    def _write_log(self, text: str) -> None:
        self._log.write(text + "\n")
        self._log.flush()


def format_seconds(seconds: float) -> str:
    """A duration as people say it: 0:04:31, or 2 days, 1:00:00."""
    return str(timedelta(seconds=round(seconds)))
