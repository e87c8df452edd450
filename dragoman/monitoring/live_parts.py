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

from dragoman.diagnosis.wording import PART_NAMES, SMALLEST_SHARE
from dragoman.run.status import number_or_none
from dragoman.run.summary import Record, format_seconds

Points = Sequence[tuple[float, float]]
"""(step, loss), by rising steps."""

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
"""What a step's time is spent on, with the letter (of its name for people) and the colour that mark it."""
REST = ("+", "bright_black")
STATE_STYLES = {"running": "green", "finished": "bold green", "failed": "bold red", "lost": "bold red"}
BITS_OF_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""How Unicode numbers the dots of a braille character: four rows of two."""
SMALLEST_CHART = (24, 4)
"""Columns and rows."""
SILENT_SECONDS = 10.0
"""A node that wrote no sample for longer is marked."""
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


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{100 * share:,.0f} %"


def place_of(value: float, low: float, high: float, num_places: int) -> int:
    """Which of so many places from low to high a value falls into."""
    share = (value - low) / (high - low) if high > low else 0.5
    return min(num_places - 1, max(0, int(share * num_places)))


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
    done = f"{floor(1000 * share) / 10:.1f} %"  # rounded down: 100 % is for what is complete
    width_of_bar = max(4, width - len(where + done + left) - 6)
    return [fit(width, (4, where), (1, bar(share, width_of_bar)), (2, done), (3, left))]


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


def _cell_of(
    point: tuple[float, float], steps: tuple[float, float], losses: tuple[float, float], num_columns: int, num_rows: int
) -> tuple[int, int]:
    row = num_rows - 1 - place_of(point[1], *losses, num_rows)
    return row, place_of(point[0], *steps, num_columns)


def _draw_line(points: Points, num_columns: int, num_rows: int, low: float, high: float) -> list[str]:
    """Rows of braille characters."""
    cells = [[0] * num_columns for _ in range(num_rows)]
    before: int | None = None
    for x, loss in enumerate(_mean_by_column(points, num_columns * 2)):
        y = 4 * num_rows - 1 - place_of(loss, low, high, 4 * num_rows)
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
        column = place_of(step, first, last, num_columns)
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
    bar = Text.assemble(label, _stacked_bar(shares, max(1, width - len(label))))
    bar.truncate(width, overflow="ellipsis")
    return [bar, *_legend(shares, width)][:num_rows]


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
        entry = Text.assemble((letter, f"black on {colour}"), f" {PART_NAMES.get(name, name)} {percent(share)}")
        if rows[-1] and rows[-1].cell_len + 2 + entry.cell_len > width:
            rows.append(Text())
        rows[-1].append("  " if rows[-1] else "").append_text(entry)
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return rows


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
    return "as predicted" if abs(error) < 0.005 else f"{percent(abs(error))} {'slower' if error > 0 else 'faster'}"


def verdict_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """What limits the run."""
    verdict = view.verdict
    if verdict is None or not num_rows:
        return []
    confidence = number_or_none(verdict.confidence)
    is_known = verdict.bottleneck != "unknown"
    sure = f" (confidence {percent(confidence)})" if is_known and confidence is not None else ""
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
