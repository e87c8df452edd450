"""Shows the progress of long work outside training on standard error: bars in a terminal, a few lines elsewhere.

Rates and the time left are those of the last half minute. Items reported right after a stage begins may have been done
by an earlier, interrupted command; they count as done, but not for the rate.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dragoman.run.interruption import signals_as_keyboard_interrupt
from dragoman.run.units import format_duration

Show = Callable[[str, int, int | None], None]
"""(stage, number of items done, number of all items if known)"""
Clock = Callable[[], float]

_WINDOW_SECONDS = 30.0
"""A rate is measured over this time, as soon as the stage has taken that long."""
_SETTLING_SECONDS = 2.0
"""Items reported within this time after the first report of a stage may have been done before."""
_LINE_EVERY_SECONDS = 30.0
_SHORT_STAGE_SECONDS = 5.0
"""Shorter stages print no line."""


@dataclass
class StageProgress:
    """Progress of one stage, as it was reported."""

    name: str
    begin: float
    num_done: int = 0
    num_total: int | None = None
    end: float | None = None
    _reports: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, items done) within the window."""
    _settled_at: float | None = None

    def report(self, now: float, num_done: int, num_total: int | None) -> None:
        """Adds a report."""
        self.num_done, self.num_total, self.end = num_done, num_total, None
        if self._settled_at is None:
            self._settled_at = now + _SETTLING_SECONDS
        # Until then only the last report is kept: the rate is measured from there.
        if now <= self._settled_at or (self._reports and num_done < self._reports[-1][1]):
            self._reports.clear()
        self._reports.append((now, num_done))
        while len(self._reports) > 2 and self._reports[1][0] <= now - _WINDOW_SECONDS:
            self._reports.popleft()

    def close(self, now: float) -> float:
        """Ends the stage with its last item, or now if it did not report that; returns when."""
        if self.end is None:
            is_complete = self.num_total is not None and self.num_done >= self.num_total and self._reports
            self.end = self._reports[-1][0] if is_complete else now
        return self.end

    @property
    def seconds(self) -> float:
        """Duration of a stage that has ended."""
        return (self.begin if self.end is None else self.end) - self.begin

    @property
    def rate(self) -> float | None:
        """Items per second lately, if known."""
        if len(self._reports) < 2:
            return None
        (first, num_first), (last, num_last) = self._reports[0], self._reports[-1]
        return (num_last - num_first) / (last - first) if last > first and num_last > num_first else None

    @property
    def seconds_left(self) -> float | None:
        """Time for the remaining items at this rate, if known."""
        if self.num_total is None or self.rate is None:
            return None
        return max(0, self.num_total - self.num_done) / self.rate


class _Display(Protocol):
    """A place where progress is shown."""

    def update(self, stage: StageProgress, now: float) -> None:
        """Shows the progress of a stage."""

    def close(self, stage: StageProgress) -> None:
        """Shows that a stage has ended."""


@contextmanager
def progress_bars(unit: str = "pairs", clock: Clock = time.monotonic, file: TextIO | None = None) -> Iterator[Show]:
    """Yields a function that shows the progress of each stage; a stage ends when another begins."""
    file = file or sys.stderr
    console = Console(file=file, soft_wrap=True)  # messages printed above the bars keep their lines
    # Not console.is_terminal, which is also true where only colours are requested (FORCE_COLOR).
    if file.isatty() and not console.is_dumb_terminal:
        # Any other end of the process would leave a bar and no cursor behind.
        with signals_as_keyboard_interrupt(), _open_bars(console, clock) as bars:
            yield from _follow(_Bars(bars, unit), clock)
    else:
        yield from _follow(_Lines(file, unit), clock)


def _follow(display: _Display, clock: Clock) -> Iterator[Show]:
    """Yields `show` once, and closes the last stage if the work did not fail."""
    stages: dict[str, StageProgress] = {}
    current: StageProgress | None = None
    begin = clock()

    def show(name: str, num_done: int, num_total: int | None) -> None:
        nonlocal current, begin
        now = clock()
        if current is not None and current.name != name:
            begin = current.close(now)
            display.close(current)
        # A stage whose first report already has items done began when the previous stage ended.
        current = stages.setdefault(name, StageProgress(name, begin if num_done else now))
        current.report(now, num_done, num_total)
        display.update(current, now)

    yield show
    if current is not None:
        current.close(clock())
        display.close(current)


class _Lines:
    """Writes plain lines, few enough for a log."""

    def __init__(self, file: TextIO, unit: str) -> None:
        self._file, self._unit = file, unit
        self._last_lines: dict[str, float] = {}
        self._closed: set[str] = set()

    def update(self, stage: StageProgress, now: float) -> None:
        """Writes a line if enough time has passed since the last one or since the stage began."""
        if now - self._last_lines.get(stage.name, stage.begin) < _LINE_EVERY_SECONDS:
            return
        self._last_lines[stage.name] = now
        total = f" of {stage.num_total:,}" if stage.num_total is not None else ""
        rest = f"{format_duration(stage.seconds_left)} left" if stage.seconds_left else ""
        figures = [f"{stage.num_done:,}{total} {self._unit}", _describe_rate(stage, self._unit), rest]
        self._write(f"{stage.name}: {', '.join(filter(None, figures))}")

    def close(self, stage: StageProgress) -> None:
        """Writes a line if the stage took long, once."""
        if stage.seconds <= _SHORT_STAGE_SECONDS or stage.name in self._closed:
            return
        self._closed.add(stage.name)
        what = f"{stage.num_done:,} {self._unit}" if stage.num_done else "done"
        self._write(f"{stage.name}: {what} in {format_duration(stage.seconds)}")

    def _write(self, line: str) -> None:
        print(line, file=self._file, flush=True)


class _Bars:
    """Shows a bar for each stage; all disappear when the work is done."""

    def __init__(self, bars: Progress, unit: str) -> None:
        self._bars, self._unit = bars, unit
        self._tasks: dict[str, TaskID] = {}

    def update(self, stage: StageProgress, _now: float) -> None:
        """Updates the bar."""
        if stage.name not in self._tasks:
            self._tasks[stage.name] = self._bars.add_task(stage.name, total=None, amount="", rate="", rest="")
        total = f"/{_abbreviate(stage.num_total)}" if stage.num_total is not None else ""
        self._bars.update(
            self._tasks[stage.name],
            completed=stage.num_done,
            total=stage.num_total,
            amount=f"{_abbreviate(stage.num_done)}{total} {self._unit}" if stage.num_done or total else "",
            rate=_describe_rate(stage, self._unit),
            rest=f"{_minutes(stage.seconds_left)} left" if stage.seconds_left else "",
        )

    def close(self, stage: StageProgress) -> None:
        """Fills the bar, so that it does not seem to wait."""
        num_done = max(1, stage.num_done)
        self._bars.update(self._tasks[stage.name], completed=num_done, total=num_done, rest="")


def _open_bars(console: Console, clock: Clock) -> Progress:
    # File names may contain what rich takes for markup.
    texts = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[amount]", "fields[rate]")]
    rest = TextColumn("{task.fields[rest]}", markup=False)
    columns = (texts[0], BarColumn(bar_width=20), *texts[1:], TimeElapsedColumn(), rest)
    # Output to a file or a pipe must not appear above the bars instead.
    is_output_shown = sys.stdout is not None and sys.stdout.isatty()
    return Progress(*columns, console=console, transient=True, get_time=clock, redirect_stdout=is_output_shown)


def _describe_rate(stage: StageProgress, unit: str) -> str:
    """Formats the rate with three digits, e.g. "14,000 pairs/s"; empty if it is unknown."""
    if stage.rate is None:
        return ""
    if stage.rate < 10:
        return f"{stage.rate:.1f} {unit}/s"
    num_digits = 3 - len(str(int(stage.rate)))
    return f"{round(stage.rate, min(0, num_digits)):,.0f} {unit}/s"


def _abbreviate(number: int) -> str:
    """Shortens a number, e.g. "4.50M" or "154k", so that a bar fits in 80 columns."""
    if number >= 1_000_000:
        return f"{number / 1e6:,.{1 if number >= 10_000_000 else 2}f}M"
    return f"{number // 1000}k" if number >= 100_000 else f"{number:,}"


def _minutes(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"
