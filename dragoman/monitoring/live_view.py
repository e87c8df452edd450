"""Draws the live view of a run in a terminal, in sections that share its rows; a section without data has none.

Text from files is cleaned before it reaches the terminal.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Self

import numpy as np
from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from dragoman.diagnosis.wording import PART_NAMES, SMALLEST_SHARE, format_step
from dragoman.monitoring.live_data import Judge, NodeView, Points, RunView, VerdictTimer, ViewData
from dragoman.run.folder import RunFolder
from dragoman.run.records import CpuSample, GpuSample, InterfaceSample, PredictedSeconds, SecondsByPart
from dragoman.run.status import Observation
from dragoman.run.units import BITS_PER_BYTE, format_duration, format_figure, format_rate

LETTERS = {
    "forward": ("F", "green"),
    "backward": ("B", "bright_blue"),
    "optimizer": ("O", "cyan"),
    "data": ("D", "yellow"),
    "exposed_communication": ("N", "red"),
    "hidden_communication": ("S", "magenta"),
    "straggler": ("R", "bright_red"),
    "evaluation": ("E", "bright_cyan"),
    "checkpoint": ("C", "bright_yellow"),
    "other": (".", "white"),
}
"""Letter and colour of each part of a step."""
_REST = ("+", "bright_black")
_STATE_STYLES = {"running": "green", "finished": "bold green", "failed": "bold red", "lost": "bold red"}
_BITS_OF_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a braille character in Unicode: four rows of two."""
_LEVELS = "▁▂▃▄▅▆▇█"
_EMPTY_BAR_COLOUR = "grey23"
"""Colour of the empty part of a bar."""
_SMALLEST_CHART = (24, 4)
"""Columns and rows of the smallest loss curve that is drawn."""
_SMALLEST_DETAILS = 12
"""Columns; with fewer, the table of machines has no details."""
_FULL_LINK_SHARE = 0.9
"""Share of a link that counts as full: TCP can hardly use more."""
_NOTABLE_OTHERS = 0.5
"""Cores that other programs use; less is not shown."""
_LONGEST_TEXT = 2_000
"""Longer texts are cut: no terminal shows more."""

_ESCAPE_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?")


@dataclass(frozen=True)
class Section:
    """A part of the view that adapts to the rows it gets."""

    fit: Callable[[int], int]
    """Returns how many of the offered rows it uses."""
    draw: Callable[[int], RenderableType]
    """Draws it with this number of rows."""


def clean(text: str) -> str:
    """Returns text that cannot control a terminal: no escape sequences, other unprintable characters replaced."""
    text = _ESCAPE_SEQUENCES.sub("", text[:_LONGEST_TEXT]).expandtabs(4)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def flow(items: Iterable[Text | str], width: int) -> list[Text]:
    """Arranges items in rows without splitting them; an item wider than a row is cut."""
    rows: list[Text] = []
    for item in items:
        new = Text.assemble(item, no_wrap=True, overflow="ellipsis")
        if new and rows and rows[-1].cell_len + 2 + new.cell_len <= width:
            rows[-1].append("  ").append_text(new)
        elif new:
            rows.append(new)
    return rows


def _rows(rows: Sequence[RenderableType], at_least: int = 1) -> Section | None:
    """A section of fixed rows, the most important first."""
    if not rows:
        return None
    return Section(lambda num: min(num, len(rows)) if num >= at_least else 0, lambda num: Group(*rows[:num]))


def _percent(share: float) -> str:
    return f"{100 * share:,.0f} %"


def _place(value: float, low: float, high: float, num_places: int) -> int:
    """Returns which of several equal intervals between low and high a value falls into."""
    share = (value - low) / (high - low) if high > low else 0.5
    return min(num_places - 1, max(0, int(share * num_places)))


# Sections


def header(view: RunView, width: int) -> Section | None:
    """State, progress, quality and speed."""
    figures = view.figures
    state: list[Text | str] = [
        Text(clean(view.description), _STATE_STYLES.get(view.state, "yellow")),
        Text(clean(view.name), "bold"),
        f"restarts {view.num_restarts:,}",
        format_figure("cost {:,.2f}", figures["cost"]),
    ]
    quality = [
        format_figure("training loss {:.4g}", figures["loss"]),
        _latest_score(view),
        format_figure("{:,.0f} tokens/s", figures["target_tokens_per_second"]),
        f"{format_step(figures['seconds_per_step'])} per step" if figures["seconds_per_step"] is not None else "",
    ]
    lines = [line for line in (flow(state, width), _progress(view, width), flow(quality, width)) if line]
    return _rows([*(line[0] for line in lines), *(row for line in lines for row in line[1:])])


def _latest_score(view: RunView) -> str:
    """BLEU of the last evaluation, or its loss where it has no BLEU, with its step."""
    bleu, loss = (view.figures[name] for name in ("bleu", "dev_loss"))
    score = format_figure("dev loss {:.4g}", loss) if bleu is None else f"BLEU {bleu:.2f}"
    return score + format_figure(" at step {:,}", view.figures["evaluation_step"]) if score else ""


def _progress(view: RunView, width: int) -> Sequence[RenderableType]:
    step, num_steps, seconds_left = (view.figures[key] for key in ("step", "max_steps", "seconds_left"))
    if step is None:
        return []
    left = f"{format_duration(seconds_left)} left" if seconds_left is not None else ""
    if not num_steps:
        return flow([f"step {step:,.0f}", left], width)
    share = min(1.0, max(0.0, step / num_steps))
    done = f"{floor(1000 * share) / 10:.1f} %"  # rounded down: only a complete run shows 100 %
    text, *more = flow([f"step {step:,.0f} of {num_steps:,.0f}", done, left], width)
    if more or width - text.cell_len < 8:
        return [text, *more]
    grid = Table.grid("", "", padding=(0, 2, 0, 0), expand=True)
    grid.columns[1].ratio = 1
    grid.add_row(text, Bar(1.0, 0.0, share, color="green", bgcolor=_EMPTY_BAR_COLOUR))
    return [grid]


def chart(view: RunView, width: int) -> Section | None:
    """The loss curve in braille dots; losses on the dev set are diamonds."""
    if len(view.losses) < 2 or width < _SMALLEST_CHART[0]:
        return None
    return Section(
        lambda num: num if num >= _SMALLEST_CHART[1] else 0,
        lambda num: Group(*_draw_chart(view.losses, view.dev_losses, width, num)),
    )


def attribution(view: RunView, width: int) -> Section | None:
    """The parts of a step as one stacked bar with a legend."""
    shares = attribution_shares(view.train.attribution or {}) if view.train else []
    if view.train is None or not shares:
        return None
    total = view.train.wall_seconds_per_step
    label = f"{format_step(total)} a step " if total is not None else "a step "
    bar = Text.assemble(label, _stacked_bar(shares, max(1, width - len(label))), no_wrap=True, overflow="ellipsis")
    marked = [(LETTERS.get(name, _REST), PART_NAMES.get(name, name), share) for name, share in shares]
    legend = [
        Text.assemble((letter, f"black on {colour}"), f" {name} {_percent(share)}")
        for (letter, colour), name, share in marked
    ]
    return _rows([bar, *flow(legend, width)], at_least=2)


def attribution_shares(seconds: SecondsByPart) -> list[tuple[str, float]]:
    """Returns the parts of a step by falling share; small and unknown ones are summed up at the end."""
    total = sum(seconds.values())
    shares = {name: value / total for name, value in seconds.items() if value > 0}
    large = {name: share for name, share in shares.items() if name in LETTERS and share >= SMALLEST_SHARE}
    rest = [("rest", 1.0 - sum(large.values()))] if len(large) < len(shares) else []
    return sorted(large.items(), key=lambda entry: -entry[1]) + rest


def _stacked_bar(shares: list[tuple[str, float]], width: int) -> Text:
    bar = Text()
    total = 0.0
    for name, share in shares:
        letter, colour = LETTERS.get(name, _REST)
        total += share
        # The sum is rounded, not each part: otherwise the parts would not add up to the width.
        bar.append(letter * (min(width, round(total * width)) - len(bar)), f"black on {colour}")
    return bar


def prediction(view: RunView, width: int) -> Section | None:
    """Predicted and measured seconds per step."""
    expected = view.prediction.seconds_per_step if view.prediction else PredictedSeconds()
    predicted = expected.predicted or (view.train.predicted_seconds_per_step if view.train else None)
    if not predicted or predicted < 0:
        return None
    low, high, interval = expected.low, expected.high, ""
    if low is not None and high is not None:
        interval = f" ({format_step(low)} to {format_step(high)})"
    items: list[Text | str] = [f"predicted {format_step(predicted)} per step{interval}"]
    measured = view.train.seconds_per_step if view.train else None
    if measured is not None:
        is_inside = low is not None and high is not None and low <= measured <= high
        comparison = f"measured {format_step(measured)}: {_compare(measured / predicted - 1)}"
        items.append(Text(comparison, "" if is_inside else "yellow"))
    if view.prediction and view.prediction.other_load:
        items.append(Text("predicted while other programs were busy", "yellow"))
    return _rows(flow(items, width))


def _compare(error: float) -> str:
    return "as predicted" if abs(error) < 0.005 else f"{_percent(abs(error))} {'slower' if error > 0 else 'faster'}"


def verdict(view: RunView, width: int) -> Section | None:
    """The verdict about what limits the run."""
    found = view.verdict
    if found is None:
        return None
    confidence = f" (confidence {_percent(found.confidence)})" if found.is_known else ""
    text = clean(f"Verdict{confidence}: {found.why}")
    style = "bold" if found.is_known else "dim"

    def wrap(num_rows: int) -> list[str]:
        # At least as wide as the mark that the rest is missing; narrower terminals cut the rows.
        return textwrap.wrap(text, max(8, width), max_lines=num_rows, placeholder=" …", break_on_hyphens=False)

    def draw(num_rows: int) -> Group:
        return Group(*(Text(row, style, no_wrap=True, overflow="ellipsis") for row in wrap(num_rows)))

    return Section(lambda num: len(wrap(num)) if num else 0, draw)


def log(view: RunView, _width: int) -> Section | None:
    """The last lines of the log."""
    rows = [Text(clean(line) or " ", "dim", no_wrap=True, overflow="ellipsis") for line in view.log_lines]
    return Section(lambda num: min(num, len(rows)), lambda num: Group(*rows[-num:])) if rows else None


# Machines


@dataclass(frozen=True)
class DeviceRow:
    """A row of the table of machines."""

    name: str
    device: str
    share: float | None
    details: Sequence[Text | str]
    colour: str = "green"


def nodes(view: RunView, width: int) -> Section | None:
    """The machines: a row for each device, or one row for each machine where there is little room."""
    # Counted before they are drawn: a hundred machines take long to draw.
    num_devices = sum(1 + len(node.sample.gpus) + len(node.busy_interfaces) for node in view.nodes)

    def fit(num_rows: int) -> int:
        return next((rows for rows in (num_devices, len(view.nodes)) if rows <= num_rows), num_rows)

    def draw(num_rows: int) -> RenderableType:
        if num_rows >= num_devices:
            return _device_table([row for node in view.nodes for row in _device_rows(node)], width)
        if num_rows >= len(view.nodes):
            return _device_table(list(map(_summary_row, view.nodes)), width)
        # Not all fit; silent machines are shown first.
        shown = sorted(view.nodes, key=lambda node: not node.is_silent)[: num_rows - 1]
        more = Text(f"and {len(view.nodes) - len(shown):,} more machines", "dim", no_wrap=True, overflow="ellipsis")
        return Group(*([_device_table(list(map(_summary_row, shown)), width)] if shown else []), more)

    return Section(fit, draw) if view.nodes else None


def _device_table(rows: Sequence[DeviceRow], width: int) -> Table:
    name_width = min(width // 3, max(len(row.name) for row in rows))
    device_width = max(len(row.device) for row in rows)
    bar_width = width // 6 if width >= 60 else 0
    details_width = width - name_width - device_width - bar_width - len("100 %") - 4 * 2
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=name_width, no_wrap=True, overflow="ellipsis", style="bold")
    table.add_column(width=device_width, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", min_width=len("100 %"), no_wrap=True)
    for row in rows:
        cells: list[RenderableType] = [row.name, row.device, "" if row.share is None else _percent(row.share)]
        if bar_width:
            bar = Bar(1.0, 0.0, row.share or 0.0, width=bar_width, color=row.colour, bgcolor=_EMPTY_BAR_COLOUR)
            cells.append(bar if row.share is not None else "")
        if details_width >= _SMALLEST_DETAILS:
            cells += flow(row.details, details_width)[:1]
        table.add_row(*cells)
    return table


def _device_rows(node: NodeView) -> list[DeviceRow]:
    memory = _memory(node.sample.memory.used_bytes, node.sample.memory.total_bytes)
    machine = _machine_row(node, f"memory {memory}" if memory else "")
    return [machine, *map(_gpu_row, node.sample.gpus), *(_interface_row(node, name) for name in node.busy_interfaces)]


def _machine_row(node: NodeView, *details: Text | str) -> DeviceRow:
    silent = Text(f"silent for {format_duration(node.seconds_silent)}" if node.is_silent else "", "bold red")
    others = Text(_describe_others(node.sample.cpu), "yellow")
    return DeviceRow(clean(node.name), "CPU", node.sample.cpu.share, [silent, others, *details])


def _describe_others(cpu: CpuSample) -> str:
    """The cores that other programs use, if that is worth a look."""
    if not cpu.num_cores or (cpu.other_cores or 0.0) < _NOTABLE_OTHERS:
        return ""
    return f"others {cpu.other_cores:.1f} of {cpu.num_cores:g} cores"


def _summary_row(node: NodeView) -> DeviceRow:
    """One row for a machine: CPU, its GPUs together, and the busier direction of the busiest interface."""
    traffic = [
        f"{row.device} {row.details[0]}"
        for row in (_interface_row(node, name) for name in node.busy_interfaces[:1])
        if row.details
    ]
    load, *others = _describe_gpus(node.sample.gpus) if node.sample.gpus else [""]
    return _machine_row(node, load, *traffic, *others)


def _gpu_row(gpu: GpuSample) -> DeviceRow:
    details = [
        _memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        format_figure("{:.0f} W", gpu.power_watts),
        format_figure("{:.0f} °C", gpu.temperature_celsius),
    ]
    return DeviceRow("", f"GPU {gpu.index}", gpu.utilisation, details)


def _describe_gpus(gpus: Sequence[GpuSample]) -> list[Text | str]:
    """Load of each GPU and their mean, sums of memory and power, and the highest temperature."""
    busy = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    levels = "".join(_LEVELS[_place(share, 0.0, 1.0, len(_LEVELS))] for share in busy)
    used = sum(gpu.memory_used_bytes or 0.0 for gpu in gpus)
    total = sum(gpu.memory_total_bytes or 0.0 for gpu in gpus)
    watts = sum(gpu.power_watts or 0.0 for gpu in gpus)
    hottest = max(gpu.temperature_celsius or 0.0 for gpu in gpus)
    mean = f" {_percent(sum(busy) / len(busy))}" if busy else ""
    return [
        Text.assemble(f"{len(gpus)} GPUs " if len(gpus) > 1 else "GPU ", (levels, "green"), mean),
        _memory(used, total or None),
        format_figure("{:,.0f} W", watts or None),
        format_figure("up to {:.0f} °C", hottest or None),
    ]


def _interface_row(node: NodeView, name: str) -> DeviceRow:
    """Traffic of an interface, the busier direction first, and the share of its speed if that is known."""
    interface = node.sample.network.get(name, InterfaceSample())
    directions = {"in": interface.received_bytes_per_second, "out": interface.sent_bytes_per_second}
    rates = sorted(((rate, label) for label, rate in directions.items() if rate is not None), reverse=True)
    speed = interface.speed_megabits_per_second
    details = [f"{label} {format_rate(rate)}" for rate, label in rates]
    if speed is None or speed <= 0 or not rates:  # Linux reports -1 for an unknown speed
        return DeviceRow("", clean(name), None, details)
    share = rates[0][0] * BITS_PER_BYTE / 1e6 / speed
    colour = "red" if share >= _FULL_LINK_SHARE else "yellow"
    return DeviceRow("", clean(name), share, [*details, f"of {speed:,.0f} Mbit/s"], colour)


def _memory(used: float | None, total: float | None) -> str:
    if used is None:
        return ""
    return f"{used / 1e9:.1f}" + format_figure(" of {:.1f}", None if total is None else total / 1e9) + " GB"


# The loss curve


def _draw_chart(losses: Points, dev_losses: Points, width: int, num_rows: int) -> list[RenderableType]:
    """Draws the curve with the figures of both axes; the last row is the axis of steps."""
    first, last = losses[0][0], losses[-1][0]
    marks = [point for point in dev_losses if first <= point[0] <= last]
    values = [loss for _, loss in (*losses, *marks)]
    low, high = min(values), max(values)
    labels = _loss_labels(low, high, num_rows - 1)
    indent = len(labels[0])
    rows = [
        Text.assemble((label, "dim"), (line, "cyan"))
        for label, line in zip(labels, _draw_line(losses, width - indent, num_rows - 1, low, high), strict=True)
    ]
    for step, loss in marks:
        row = num_rows - 2 - _place(loss, low, high, num_rows - 1)
        column = indent + _place(step, first, last, width - indent)
        rows[row] = Text.assemble(rows[row][:column], ("◆", "bold magenta"), rows[row][column + 1 :])
    return [*rows, _step_axis(first, last, bool(marks), indent, width)]


def _loss_labels(low: float, high: float, num_rows: int) -> list[str]:
    """Returns figures at the top, the middle and the bottom, all of one width."""
    figures = {0: high, num_rows - 1: low}
    if num_rows % 2 and num_rows >= 5:
        figures[num_rows // 2] = (low + high) / 2
    texts = {row: f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}" for row, value in figures.items()}
    width = max(map(len, texts.values()))
    return [f"{texts.get(row, ''):>{width}} {'┤' if row in texts else '│'}" for row in range(num_rows)]


def _step_axis(first: float, last: float, has_marks: bool, indent: int, width: int) -> Table:
    legend = Text.assemble(
        ("⠤⠤", "cyan"), " training loss", *(("  ", ("◆", "bold magenta"), " dev loss") if has_marks else ())
    )
    axis = Table.grid("", "", "", padding=(0, 1, 0, 0), expand=True)
    axis.columns[1].ratio, axis.columns[1].justify, axis.columns[1].no_wrap = 1, "center", True
    axis.add_row(f"{' ' * indent}step {first:,.0f}", legend, f"{last:,.0f}")
    return axis


def _draw_line(points: Points, num_columns: int, num_rows: int, low: float, high: float) -> list[str]:
    """Returns rows of braille characters."""
    cells = [[0] * num_columns for _ in range(num_rows)]
    before: int | None = None
    for x, loss in enumerate(_mean_by_column(points, num_columns * 2)):
        y = 4 * num_rows - 1 - _place(loss, low, high, 4 * num_rows)
        # Begins at the height of the column before, so that a steep line has no gaps.
        start = y if before is None or before == y else before + (1 if before < y else -1)
        for dot in range(min(start, y), max(start, y) + 1):
            cells[dot // 4][x // 2] |= _BITS_OF_DOTS[dot % 4][x % 2]
        before = y
    # A space where there are no dots: some fonts draw the empty braille character as eight rings.
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


def _mean_by_column(points: Points, num_columns: int) -> list[float]:
    """Returns the mean loss of each column; columns without points are interpolated."""
    columns = [_place(step, points[0][0], points[-1][0], num_columns) for step, _ in points]
    counts = np.bincount(columns)
    sums = np.bincount(columns, [loss for _, loss in points])
    known = counts.nonzero()[0]
    means: list[float] = np.interp(range(len(counts)), known, sums[known] / counts[known]).tolist()
    return means


# The whole view

Build = Callable[[RunView, int], Section | None]
_TOP_TO_BOTTOM: tuple[Build, ...] = (header, chart, attribution, nodes, prediction, verdict, log)
_ROWS_BY_IMPORTANCE: tuple[tuple[Build, int], ...] = (
    # Rows that each section needs to be useful, the most important first.
    (header, 3),
    (verdict, 1),
    (attribution, 2),
    (nodes, 2),
    (prediction, 1),
    (chart, 5),
    (log, 3),
    # Rows that each section can use if there are more.
    (attribution, 3),
    (verdict, 2),
    (nodes, 100),
    (prediction, 2),
    (attribution, 5),
    (verdict, 4),
    (header, 8),
    (log, 100),
    (chart, 20),
)
"""Sections and the rows they may have, in the order in which they get them."""


@dataclass(frozen=True)
class RunScreen:
    """The whole view as a rich renderable of at most this height."""

    view: RunView
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Gives every section its rows and draws it once."""
        width = options.max_width
        sections = {build: section for build in _TOP_TO_BOTTOM if (section := build(self.view, width)) is not None}
        rows = dict.fromkeys(sections, 0)
        free = self.height
        for build, most in _ROWS_BY_IMPORTANCE:
            if build in sections:
                free += rows[build]
                rows[build] = sections[build].fit(min(most, free))
                free -= rows[build]
        lines: list[list[Segment]] = []
        for number, build in enumerate(build for build in sections if rows[build]):
            lines += [[]] if 0 < number <= free else []  # an empty row between sections, if there is room
            drawn = console.render_lines(sections[build].draw(rows[build]), options.reset_height(), pad=False)
            lines += drawn[: rows[build]]
        yield SegmentLines(lines, new_lines=True)


class LiveView:
    """Shows the view on a terminal inside a `with` block; the last state stays on the screen."""

    def __init__(self, run: RunFolder, num_log_lines: int, judge: Judge | None, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._size = self._console.size
        self._data = ViewData(run, num_log_lines)
        self._verdict = VerdictTimer(run, judge)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._data.close()

    def show(self, observation: Observation) -> None:
        """Draws the run as it is now."""
        view = self._data.read(observation)
        self._draw(view)
        # After drawing, so that the first view does not wait for the verdict.
        if self._verdict.renew(is_last=observation.has_ended):
            self._draw(view)

    def _draw(self, view: RunView) -> None:
        if self._console.size != self._size:
            # The terminal has wrapped the old rows, so their position is unknown.
            self._size = self._console.size
            self._console.clear()
        # One row is left for the messages after the view.
        screen = RunScreen(replace(view, verdict=self._verdict.verdict), self._size.height - 1)
        self._live.update(screen, refresh=True)
