"""The parts of the live view of a run, each a function from plain data to rows: a part without data has none.

Rows are single lines that fit the width. Whatever strangers wrote is cleaned before it reaches a terminal.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor
from typing import Any, Protocol

from rich.text import Text

from dragoman.run.description import format_seconds
from dragoman.run.status import number_or_none
from dragoman.run.summary import Record
from dragoman.run.units import BITS_PER_BYTE, format_rate

Points = Sequence[tuple[float, float]]
"""(step, loss), by rising steps."""

LETTERS = {
    "forward": ("F", "green"),
    "backward": ("B", "bright_blue"),
    "optimizer": ("O", "cyan"),
    "data": ("D", "yellow"),
    "exposed_communication": ("C", "red"),
    "hidden_communication": ("H", "magenta"),
    "straggler": ("S", "bright_red"),
    "evaluation": ("E", "bright_cyan"),
    "checkpoint": ("K", "bright_yellow"),
    "other": (".", "white"),
}
"""What a step's time is spent on, with the letter and the colour that mark it."""
REST = ("+", "bright_black")
SMALLEST_SHARE = 0.01
"""Smaller parts of a step are joined."""
STATE_STYLES = {"running": "green", "finished": "bold green", "failed": "bold red", "lost": "bold red"}
BITS_OF_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""How Unicode numbers the dots of a braille character: four rows of two."""
SMALLEST_CHART = (24, 4)
"""Columns and rows."""
SILENT_SECONDS = 10.0
"""A node that wrote no sample for longer is marked."""
FULL_LINK_SHARE = 0.9
"""TCP hardly gets more out of a link."""
LONGEST_TEXT = 2_000
"""More characters of one text are never shown, so they need not be cleaned either."""

_ESCAPE_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?")


class Verdict(Protocol):
    """What limits a run, as diagnosis found."""

    @property
    def bottleneck(self) -> str:
        """E.g. "network"."""

    @property
    def confidence(self) -> float:
        """From 0 to 1."""

    @property
    def why(self) -> str:
        """The whole verdict in one sentence."""


@dataclass(frozen=True)
class NodeView:
    """One machine of a run."""

    name: str
    sample: Record
    """The last line of its system.<node>.jsonl."""
    seconds_silent: float = 0.0
    busy_interfaces: Sequence[str] = ()
    """Those that carry, or lately carried, traffic worth a row, the busiest first."""

    @property
    def is_silent(self) -> bool:
        """Whether samples that should have come did not."""
        return self.seconds_silent > SILENT_SECONDS

    @property
    def gpus(self) -> list[Record]:
        """Its GPUs, as far as the sample makes sense."""
        gpus = self.sample.get("gpus")
        return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


@dataclass(frozen=True)
class RunView:
    """Everything there is to show of a run, now."""

    name: str
    state: str
    description: str
    """The state with its cause."""
    figures: dict[str, Any]
    """As `progress_figures` gives them."""
    num_restarts: int = 0
    train: Record = field(default_factory=dict)
    """The last record of this kind, as the others are."""
    prediction: Record = field(default_factory=dict)
    losses: Points = ()
    dev_losses: Points = ()
    nodes: Sequence[NodeView] = ()
    log_lines: Sequence[str] = ()
    verdict: Verdict | None = None


def clean(text: str) -> str:
    """Text that cannot command a terminal: without escape sequences, other unprintable characters marked."""
    text = _ESCAPE_SEQUENCES.sub("", text[:LONGEST_TEXT]).expandtabs(4)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def fit(width: int, *pieces: tuple[int, Text | str], between: str = "  ") -> Text:
    """A row of pieces, each with its importance: where there is no room, the least important go first."""
    kept = [(importance, Text(piece) if isinstance(piece, str) else piece) for importance, piece in pieces if piece]
    while len(kept) > 1 and sum(len(between) + piece.cell_len for _, piece in kept) - len(between) > width:
        kept.remove(min(kept, key=lambda entry: entry[0]))
    row = Text(between).join(piece for _, piece in kept)
    row.truncate(width, overflow="ellipsis")
    return row


def bar(share: float, width: int, style: str = "green") -> Text:
    """A bar that is filled by so much, to an eighth of a character."""
    num_eighths = round(min(1.0, max(0.0, share)) * width * 8)
    filled = "█" * (num_eighths // 8) + " ▏▎▍▌▋▊▉"[num_eighths % 8].strip()
    return Text.assemble((filled, style), ("░" * (width - len(filled)), "dim"))


def number_at(record: Any, *keys: str) -> float | None:
    """A number inside nested tables, if it is there and one can reckon with it."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return number_or_none(record)


def describe(pattern: str, value: float | str | None) -> str:
    """A figure in words; nothing if it is not known."""
    return "" if value is None else pattern.format(value)


def header_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """Where the run is and how good and fast."""
    figures = view.figures
    state = Text(clean(view.description), STATE_STYLES.get(view.state, "yellow"))
    quality = fit(
        width,
        (9, describe("loss {:.4g}", figures.get("loss"))),
        (8, describe("BLEU {:.2f}", figures.get("bleu"))),
        (7, describe("{:,.0f} target tokens/s", figures.get("target_tokens_per_second"))),
        (6, describe("{} s per step", _three_digits(figures.get("seconds_per_step")))),
    )
    where = fit(
        width,
        (3, Text(clean(view.name), "bold")),
        (4, state),
        (2, f"restarts {view.num_restarts:,}"),
        (1, describe("cost {:,.2f}", figures.get("cost"))),
    )
    return [row for row in (where, *_step_row(figures, width), quality) if row][:num_rows]


def _step_row(figures: dict[str, Any], width: int) -> list[Text]:
    step, num_steps, seconds_left = (figures.get(key) for key in ("step", "max_steps", "seconds_left"))
    if step is None:
        return []
    left = f"{format_seconds(seconds_left)} left" if seconds_left is not None else ""
    if not num_steps:
        return [fit(width, (2, f"step {step:,.0f}"), (1, left))]
    share = min(1.0, max(0.0, step / num_steps))
    where = f"step {step:,.0f} of {num_steps:,.0f}"
    percent = f"{floor(1000 * share) / 10:.1f} %"  # rounded down: 100 % is for what is complete
    width_of_bar = max(4, width - len(where + percent + left) - 6)
    return [fit(width, (4, where), (1, bar(share, width_of_bar)), (2, percent), (3, left))]


def chart_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """The loss over the steps as a line of braille dots, losses on held-out text as diamonds, and the axes' figures."""
    if len(view.losses) < 2 or width < SMALLEST_CHART[0] or num_rows < SMALLEST_CHART[1]:
        return []
    first, last = view.losses[0][0], view.losses[-1][0]
    dev_losses = [point for point in view.dev_losses if first <= point[0] <= last]
    values = [loss for _, loss in (*view.losses, *dev_losses)]
    low, high = min(values), max(values)
    labels = _axis_labels(low, high, num_rows - 1)
    num_columns = width - len(labels[0])
    cells = _draw_line(view.losses, num_columns, num_rows - 1, low, high)
    marks = {_cell_of(point, (first, last), (low, high), num_columns, num_rows - 1) for point in dev_losses}
    rows = [
        _chart_row(label, line, [c for r, c in marks if r == row])
        for row, (label, line) in enumerate(zip(labels, cells, strict=True))
    ]
    return [*rows, _steps_axis(first, last, bool(marks), len(labels[0]), width)]


def _axis_labels(low: float, high: float, num_rows: int) -> list[str]:
    """Figures at the top, the middle and the bottom, all of one width."""
    figures = {0: high, num_rows - 1: low}
    if num_rows % 2 and num_rows >= 5:
        figures[num_rows // 2] = (low + high) / 2
    texts = {row: f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}" for row, value in figures.items()}
    width = max(map(len, texts.values()))
    return [f"{texts.get(row, ''):>{width}} {'┤' if row in texts else '│'}" for row in range(num_rows)]


def _steps_axis(first: float, last: float, has_marks: bool, indent: int, width: int) -> Text:
    begin, end = f"step {first:,.0f}", f"{last:,.0f}"
    legend = Text.assemble(("⠤⠤", "cyan"), " loss")
    if has_marks:
        legend.append("  ◆", "bold magenta").append(" dev loss")
    gap = max(0, width - indent - len(begin + end) - legend.cell_len)
    row = Text.assemble(" " * indent, begin, " " * (gap // 2), legend, " " * (gap - gap // 2), end)
    row.truncate(width)
    return row


def _chart_row(label: str, line: str, mark_columns: Iterable[int]) -> Text:
    characters = list(line)
    for column in mark_columns:
        characters[column] = "◆"
    row = Text.assemble((label, "dim"), ("".join(characters), "cyan"))
    for column in mark_columns:
        row.stylize("bold magenta", len(label) + column, len(label) + column + 1)
    return row


def _place(value: float, low: float, high: float, num_places: int) -> int:
    """Which of so many places from low to high a value falls into."""
    share = (value - low) / (high - low) if high > low else 0.5
    return min(num_places - 1, max(0, int(share * num_places)))


def _cell_of(
    point: tuple[float, float], steps: tuple[float, float], losses: tuple[float, float], num_columns: int, num_rows: int
) -> tuple[int, int]:
    row = num_rows - 1 - _place(point[1], *losses, num_rows)
    return row, _place(point[0], *steps, num_columns)


def _draw_line(points: Points, num_columns: int, num_rows: int, low: float, high: float) -> list[str]:
    """Rows of braille characters."""
    cells = [[0] * num_columns for _ in range(num_rows)]
    before: int | None = None
    for x, loss in enumerate(_mean_by_column(points, num_columns * 2)):
        y = 4 * num_rows - 1 - _place(loss, low, high, 4 * num_rows)
        # From the height of the column before, so that the line has no gaps where it is steep.
        start = y if before is None or before == y else before + (1 if before < y else -1)
        for dot in range(min(start, y), max(start, y) + 1):
            cells[dot // 4][x // 2] |= BITS_OF_DOTS[dot % 4][x % 2]
        before = y
    # A space where there are no dots: some fonts draw the empty braille character as eight rings.
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


def _mean_by_column(points: Points, num_columns: int) -> list[float]:
    """The mean loss in each column; where no point fell, on the straight line between its neighbours."""
    first, last = points[0][0], points[-1][0]
    sums, counts = [0.0] * num_columns, [0] * num_columns
    for step, loss in points:
        column = _place(step, first, last, num_columns)
        sums[column] += loss
        counts[column] += 1
    known = [column for column in range(num_columns) if counts[column]]
    means = [total / max(1, count) for total, count in zip(sums, counts, strict=True)]
    for left, right in pairwise(known):
        slope = (means[right] - means[left]) / (right - left)
        for column in range(left + 1, right):
            means[column] = means[left] + slope * (column - left)
    return means[: known[-1] + 1]


def attribution_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """What the steps of the last interval were spent on: one stacked bar, and what its letters mean."""
    seconds = view.train.get("attribution")
    shares = attribution_shares(seconds if isinstance(seconds, dict) else {})
    if not shares or num_rows < 2:
        return []
    total = number_at(view.train, "wall_seconds_per_step")
    label = f"{_three_digits(total)} s a step " if total is not None else "a step "
    return [Text.assemble(label, _stacked_bar(shares, max(1, width - len(label)))), *_legend(shares, width)][:num_rows]


def attribution_shares(seconds: dict[str, Any]) -> list[tuple[str, float]]:
    """Parts of a step by falling share; small ones and those of unknown names are joined at the end."""
    parts = {name: number for name, value in seconds.items() if (number := number_or_none(value)) and number > 0}
    total = sum(parts.values())
    shares = {name: number / total for name, number in parts.items()}
    large = {name: share for name, share in shares.items() if name in LETTERS and share >= SMALLEST_SHARE}
    rest = 1.0 - sum(large.values())
    joined = [("rest", rest)] if len(large) < len(shares) else []
    return sorted(large.items(), key=lambda entry: -entry[1]) + joined


def _stacked_bar(shares: list[tuple[str, float]], width: int) -> Text:
    text = Text()
    total, num_drawn = 0.0, 0
    for name, share in shares:
        letter, colour = LETTERS.get(name, REST)
        total += share
        # To where the sum belongs: rounded one by one, the parts would not add up to the width.
        num_cells = min(width, round(total * width)) - num_drawn
        text.append(letter * num_cells, f"black on {colour}")
        num_drawn += num_cells
    return text


def _legend(shares: list[tuple[str, float]], width: int) -> list[Text]:
    rows = [Text()]
    for name, share in shares:
        letter, colour = LETTERS.get(name, REST)
        entry = Text.assemble((letter, f"black on {colour}"), f" {name.replace('_', ' ')} {_percent(share)}")
        if rows[-1] and rows[-1].cell_len + 2 + entry.cell_len > width:
            rows.append(Text())
        rows[-1].append("  " if rows[-1] else "").append_text(entry)
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return rows


def node_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """The machines of the run, in as much detail as there is room for."""
    # Counted before they are made: a hundred nodes would take too long to draw in vain.
    if sum(1 + len(node.gpus) + len(node.busy_interfaces) for node in view.nodes) <= num_rows:
        return [row for node in view.nodes for row in _full_node(node, width)]
    if sum(1 + bool(node.gpus) + bool(node.busy_interfaces) for node in view.nodes) <= num_rows:
        return [row for node in view.nodes for row in _brief_node(node, width)]
    if len(view.nodes) <= num_rows:
        return [_node_in_one_row(node, width) for node in view.nodes]
    # Not all can be shown; those in trouble must be.
    nodes = sorted(view.nodes, key=lambda node: not node.is_silent)[: max(0, num_rows - 1)]
    more = fit(width, (1, Text(f"and {len(view.nodes) - len(nodes):,} more nodes", "dim")))
    return [*(_node_in_one_row(node, width) for node in nodes), more][:num_rows]


def _full_node(node: NodeView, width: int) -> list[Text]:
    head = fit(width, *_head_pieces(node, width))
    return [head, *(_gpu_row(gpu, width) for gpu in node.gpus), *_network_rows(node, width)]


def _brief_node(node: NodeView, width: int) -> list[Text]:
    """All GPUs in one row, and the busiest interface alone."""
    head = fit(width, *_head_pieces(node, width))
    if len(node.gpus) > 1:
        what, *figures = _gpu_summary(node)
        gpus = [fit(width, (9, Text.assemble("  ", what)), *zip((8, 6, 7), figures, strict=True))]
    else:
        gpus = [_gpu_row(gpu, width) for gpu in node.gpus]
    return [head, *gpus, *_network_rows(node, width)[:1]]


def _node_in_one_row(node: NodeView, width: int) -> Text:
    """With the traffic of the busiest interface, in the direction that has more."""
    ways = {"in": "received_bytes_per_second", "out": "sent_bytes_per_second"}
    rates = [
        (rate, f"{name} {way} {format_rate(rate)}")
        for name in node.busy_interfaces[:1]
        for way, key in ways.items()
        if (rate := number_at(node.sample, "network", name, key)) is not None
    ]
    traffic = clean(max(rates)[1]) if rates else ""
    return fit(
        width,
        *_head_pieces(node, width, has_bar=False),
        *zip((8, 3, 2, 1), _gpu_summary(node), strict=False),
        (7, traffic),
    )


def _head_pieces(node: NodeView, width: int, has_bar: bool = True) -> list[tuple[int, Text | str]]:
    """Name, whether it is silent, CPU and memory."""
    cpu = number_at(node.sample, "cpu", "share")
    used, total = (number_at(node.sample, "memory", key) for key in ("used_bytes", "total_bytes"))
    silent = f"silent for {format_seconds(node.seconds_silent)}" if node.is_silent else ""
    cpu_bar = Text.assemble("CPU ", bar(cpu, width // 5)) if cpu is not None and has_bar else Text("CPU")
    return [
        (10, Text(clean(node.name), "bold")),
        (11, Text(silent, "bold red")),
        (9, Text.assemble(cpu_bar, f" {_percent(cpu):>5}") if cpu is not None else ""),
        (5, describe("memory {}", _of_total(used, total))),
    ]


def _of_total(used: float | None, total: float | None) -> str | None:
    if used is None:
        return None
    return f"{used / 1e9:.1f}" + describe(" of {:.1f}", None if total is None else total / 1e9) + " GB"


def _gpu_row(gpu: Record, width: int) -> Text:
    utilisation = number_at(gpu, "utilisation")
    used, total = number_at(gpu, "memory_used_bytes"), number_at(gpu, "memory_total_bytes")
    width_of_bar = width // 6
    return fit(
        width,
        (10, describe("  GPU {:.0f}", number_at(gpu, "index")) or "  GPU"),
        (6, bar(utilisation, width_of_bar) if utilisation is not None else ""),
        (9, describe("{:>5}", None if utilisation is None else _percent(utilisation))),
        (3, Text.assemble("memory ", bar(used / total, width_of_bar // 2)) if used is not None and total else ""),
        (8, _of_total(used, total) or ""),
        (5, describe("{:.0f} W", number_at(gpu, "power_watts"))),
        (7, describe("{:.0f} °C", number_at(gpu, "temperature_celsius"))),
    )


def _gpu_summary(node: NodeView) -> list[Text | str]:
    """All GPUs of a node in a few words: how busy each, memory, power, and the hottest."""
    if not node.gpus:
        return []
    busy = [share for gpu in node.gpus if (share := number_at(gpu, "utilisation")) is not None]
    levels = "".join("▁▂▃▄▅▆▇█"[_place(share, 0.0, 1.0, 8)] for share in busy)
    mean = _percent(sum(busy) / len(busy)) if busy else ""
    used, total, watts = (
        sum(number_at(gpu, key) or 0.0 for gpu in node.gpus)
        for key in ("memory_used_bytes", "memory_total_bytes", "power_watts")
    )
    hottest = max((number_at(gpu, "temperature_celsius") or 0.0 for gpu in node.gpus), default=0.0)
    return [
        Text.assemble(f"{len(node.gpus)} GPUs " if len(node.gpus) > 1 else "GPU ", (levels, "green"), f" {mean}"),
        _of_total(used, total or None) or "",
        describe("{:,.0f} W", watts or None),
        describe("up to {:.0f} °C", hottest or None),
    ]


def _network_rows(node: NodeView, width: int) -> list[Text]:
    width_of_name = max((len(clean(name)) for name in node.busy_interfaces), default=0)
    return [_network_row(node, name, width_of_name, width) for name in node.busy_interfaces]


def _network_row(node: NodeView, name: str, width_of_name: int, width: int) -> Text:
    speed = number_at(node.sample, "network", name, "speed_megabits_per_second")
    if speed is not None and speed <= 0:
        speed = None  # how Linux says that it does not know
    pieces: list[tuple[int, Text | str]] = [(10, f"  {clean(name):<{width_of_name}}")]
    width_of_bar = max(4, (width - width_of_name - 64) // 2)
    for label, key in (("in", "received_bytes_per_second"), ("out", "sent_bytes_per_second")):
        rate = number_at(node.sample, "network", name, key)
        if rate is not None:
            pieces += [(9, label), (3, _traffic_bar(rate, speed, width_of_bar)), (8, f"{format_rate(rate):>25}")]
    return fit(width, *pieces, (1, describe("of {:,.0f} Mbit/s", speed)), between=" ")


def _traffic_bar(bytes_per_second: float, speed_megabits_per_second: float | None, width: int) -> Text:
    """How much of an interface's speed is used; blank where that is not known."""
    if speed_megabits_per_second is None:
        return Text(" " * width)
    share = bytes_per_second * BITS_PER_BYTE / 1e6 / speed_megabits_per_second
    return bar(share, width, "red" if share >= FULL_LINK_SHARE else "yellow")


def prediction_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """How long a step was to take, and how long it takes."""
    foretold = view.prediction.get("seconds_per_step")
    predicted = number_at(foretold, "predicted") or number_at(view.train, "predicted_seconds_per_step")
    measured = number_at(view.train, "seconds_per_step")
    if not predicted or predicted < 0 or not num_rows:
        return []
    low, high = number_at(foretold, "low"), number_at(foretold, "high")
    interval = f" ({_three_digits(low)} to {_three_digits(high)})" if low is not None and high is not None else ""
    comparison = Text()
    if measured is not None:
        is_inside = low is not None and high is not None and low <= measured <= high
        text = f", measured {_three_digits(measured)} s: {_compare(measured / predicted - 1)}"
        comparison = Text(text, "" if is_inside else "yellow")
    return [fit(width, (3, f"predicted {_three_digits(predicted)} s"), (1, interval), (2, comparison), between="")]


def _compare(error: float) -> str:
    return "as predicted" if abs(error) < 0.005 else f"{_percent(abs(error))} {'slower' if error > 0 else 'faster'}"


def verdict_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """What limits the run."""
    verdict = view.verdict
    if verdict is None or not num_rows:
        return []
    confidence = number_or_none(verdict.confidence)
    is_known = verdict.bottleneck != "unknown"
    sure = f" (confidence {_percent(confidence)})" if is_known and confidence is not None else ""
    sentence = clean(f"Verdict{sure}: {verdict.why}")
    # Narrower than any terminal, it could not even hold the sign that something is missing.
    rows = textwrap.wrap(sentence, max(8, width), max_lines=num_rows, placeholder=" …", break_on_hyphens=False)
    return [fit(width, (1, Text(row, "bold" if is_known else "dim"))) for row in rows]


def log_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """The last lines of the log."""
    lines = view.log_lines[max(0, len(view.log_lines) - num_rows) :]
    return [fit(width, (1, Text(clean(line) or " ", "dim"))) for line in lines]


def _three_digits(value: float | None) -> str | None:
    """Seconds with as many decimals as say something: 1.95, 29.6, 0.0123."""
    if value is None:
        return None
    if not 0.01 <= abs(value) < 100_000:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 3 - len(str(int(abs(value))))) if abs(value) >= 1 else 3}f}"


def _percent(share: float) -> str:
    return f"{100 * share:,.0f} %"
