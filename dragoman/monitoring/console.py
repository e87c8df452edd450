"""What a person reads while a run goes on: a live bar in a terminal, plain lines in a file, log.txt always."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dragoman.monitoring.buffered_file import PatientFile
from dragoman.run.summary import format_seconds

CONSOLE_VARIABLE = "DRAGOMAN_CONSOLE"
"""Set to "stderr", it keeps a worker's lines off standard output, which then is for JSON alone."""


class RunConsole:
    """Speaks to the terminal and to log.txt."""

    def __init__(self, log: Path, num_steps: int) -> None:
        self.log_file = PatientFile(log)
        stream = sys.stderr if os.environ.get(CONSOLE_VARIABLE) == "stderr" else sys.stdout
        file = cast("IO[str]", _ForgivingStream(stream))
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
        self.log_file.close()

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
        self.log_file.write(f"{text}\n".encode())


class _ForgivingStream:
    """Standard output that may be a file on a full disk: what it refuses stands in log.txt, and the run goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Writes if that is possible."""
        with _forgiving_the_disk():
            self._stream.write(text)

    def flush(self) -> None:
        """Flushes if that is possible."""
        with _forgiving_the_disk():
            self._stream.flush()


@contextmanager
def _forgiving_the_disk() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # a reader that has gone is no trouble of a disk
    except OSError:
        return
