"""The progress line of a run: a bar with figures that fits any terminal width, without wrapping or cutting a figure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dragoman.run.units import format_duration

_SMALLEST_BAR = 5
_GAP = "  "


@dataclass(frozen=True)
class ProgressFigures:
    """The figures of a progress line; those that are not known are left out."""

    loss: float | None = None
    score: str = ""
    """The last evaluation, e.g. "BLEU 26.4"."""
    tokens_per_second: float | None = None
    seconds_left: float | None = None

    def texts(self) -> list[str]:
        """Returns the figures in the order of the line."""
        return [
            f"loss {self.loss:.3f}" if self.loss is not None else "",
            self.score,
            f"{self.tokens_per_second:,.0f} tokens/s" if self.tokens_per_second else "",
            f"{format_duration(self.seconds_left)} left" if self.seconds_left is not None else "",
        ]


_FIRST_TO_GO = (2, 1, 0, 3)
"""Places of the texts in the order in which a narrow terminal loses them: speed, score, loss, time left."""


def fit_texts(texts: Sequence[str], width: int) -> str:
    """Joins as many texts as fit, and leaves out the least important ones."""
    kept = list(texts)
    for place in _FIRST_TO_GO:
        if len(_join(kept)) <= width:
            break
        kept[place] = ""
    return _join(kept)


def _join(texts: Sequence[str]) -> str:
    return _GAP.join(filter(None, texts))


@dataclass(frozen=True)
class ProgressLine:
    """Draws one line: the step, a bar where there is room for one, and the figures."""

    step: int
    num_steps: int
    figures: ProgressFigures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the line for the width of the terminal."""
        step = f"step {self.step}/{self.num_steps}"
        figures = fit_texts(self.figures.texts(), options.max_width - len(step) - 1)
        bar_width = options.max_width - len(step) - len(figures) - 2
        cells: list[RenderableType] = [Text(step, no_wrap=True)]
        if bar_width >= _SMALLEST_BAR:
            cells.append(ProgressBar(total=self.num_steps, completed=self.step, width=bar_width))
        if figures:
            cells.append(Text(figures, no_wrap=True))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells)
        yield line


class ProgressLines(Progress):
    """Rich's progress display with our own line for each task."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yields the line of every task."""
        yield from (_line(task) for task in self.tasks)


def _line(task: Task) -> ProgressLine:
    return ProgressLine(int(task.completed), int(task.total or 0), task.fields["figures"])
