"""Finds out what the columns of a table are, and reads its cells."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path

from dragoman.importing.curves.curve_tags import SPLIT_FOLDERS, figure_of
from dragoman.importing.log_text import parse_number, read_lines
from dragoman.run.errors import UserError

_MAX_COLUMNS = 1_000
# The first name that a table has counts: W&B adds _step, its own count of records.
_STEP_NAMES = (
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "step",
    "steps",
    "iteration",
    "iterations",
    "iter",
    "update",
    "updates",
    "num_updates",
    "_step",
)
_EPOCH_NAMES = ("epoch", "epochs", "train/epoch")
_TIME_NAMES = ("wall time", "wall_time", "timestamp", "_timestamp", "time", "date")
_RUN_NAMES = ("run", "run_name", "run_id", "run name", "run id", "experiment", "experiment_name", "exp", "trial")
_EXPORTED_NAME = re.compile(r"run-(.{0,200}?)-tag-(.{1,200})")
_NO_FIGURE = {"", "-", "n/a", "na", "none", "null", "#n/a", "no log"}
_MAX_PREAMBLE_LINES = 1_000
"""Lines of text in which the header is sought, as above the table that a notebook or a model card shows."""
_MAX_TRIED_ROWS = 30
_RULER = re.compile(r"[-:| ]+")
"""The line below the header of a Markdown table."""
_COMMA_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,20})?", re.ASCII)
_POINT_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3}){1,5}(?:,\d{1,20})?", re.ASCII)
_SPACES = re.compile(r"(?<=\d)[ '\u00a0\u202f](?=\d{3}(?!\d))")


@dataclass(frozen=True)
class Layout:
    """The columns of a table by their meaning."""

    step: int
    step_name: str
    counts_epochs: bool
    """Whether the table has no steps, only epochs."""
    time: int | None
    run_column: int | None
    """Column with the name of the run, in a table of several."""
    tags: dict[int, str]
    runs: list[str]
    """Names of runs that have columns of their own."""
    is_decimal_comma: bool
    has_duplicates: bool
    kinds: dict[str, str] = field(default_factory=dict)
    """For each tag, train or evaluation."""


@dataclass(frozen=True)
class Row:
    """The cells of a row."""

    cells: list[str]
    layout: Layout

    def text(self, index: int) -> str:
        """Returns a cell; an empty one if the row is too short."""
        return self.cells[index].strip() if index < len(self.cells) else ""

    def is_empty(self, index: int) -> bool:
        """Whether a cell says that there is no figure."""
        return self.text(index).lower() in _NO_FIGURE

    def number(self, index: int) -> float | None:
        """Returns the number in a cell, which may be nan, and may have thousands separators."""
        text = _SPACES.sub("", self.text(index))
        if self.is_empty(index):
            return None
        if self.layout.is_decimal_comma:
            is_whole = index == self.layout.step and "," not in text
            if ("," in text or is_whole) and _POINT_THOUSANDS.fullmatch(text):
                text = text.replace(".", "")
            return parse_number(text.replace(",", "."))
        return parse_number(text.replace(",", "") if _COMMA_THOUSANDS.fullmatch(text) else text)


def layout_of(path: Path, run: str = "") -> Layout:
    """Returns the columns of a table; of a table with columns of several runs, those of one run."""
    names, delimiter, _ = _open(path)
    return _layout(path, names, delimiter == ";", run)


def open_table(path: Path) -> tuple[Layout, Iterator[Row | None]]:
    """Returns the columns of a table and its rows; None for a row that cannot be read."""
    names, delimiter, lines = _open(path)
    layout = _layout(path, names, delimiter == ";", "")
    return layout, (None if cells is None else Row(cells, layout) for cells in _rows(lines, delimiter))


def _open(path: Path) -> tuple[list[str], str, Iterator[str]]:
    above = [line for line in islice(read_lines(path), _MAX_PREAMBLE_LINES) if line.strip()]
    headers = [_split_header(line) for line in above] or [([], ",")]
    place = next((place for place, (names, _) in enumerate(headers) if _has_axis(names)), 0)
    names, delimiter = headers[place]
    lines = islice((line for line in read_lines(path) if line.strip()), place + 1, None)
    # Text may follow a table in Markdown.
    return names, delimiter, takewhile(lambda line: "|" in line, lines) if delimiter == "|" else lines


def _split_header(line: str) -> tuple[list[str], str]:
    line = line.lstrip("\ufeff")
    delimiter = max(",;\t|", key=line.count)
    return (next(_rows(iter([line]), delimiter), None) or [])[:_MAX_COLUMNS], delimiter


def _has_axis(names: list[str]) -> bool:
    plain = [name.strip().lower() for name in names]
    return len(plain) > 1 and any(name in plain for name in (*_STEP_NAMES, *_EPOCH_NAMES))


def is_table(path: Path) -> bool:
    """Whether a text file holds a table with steps or epochs and figures, such as one copied from a notebook."""
    try:
        layout, rows = open_table(path)
    except UserError:
        return False
    found = [row for row in islice(rows, _MAX_TRIED_ROWS) if row is not None and row.number(layout.step) is not None]
    return len(found) > 1


def _rows(lines: Iterator[str], delimiter: str) -> Iterator[list[str] | None]:
    """Yields the cells of each row; None for a row that the csv module rejects."""
    for line in lines:
        if not line.strip() or _RULER.fullmatch(line.strip()):
            continue
        try:
            # Line by line, so that a quote that is never closed does not swallow the rest of the file.
            yield next(csv.reader([line], delimiter=delimiter), None)
        except csv.Error:
            yield None


def _layout(path: Path, names: list[str], is_decimal_comma: bool, run: str) -> Layout:
    plain = [name.strip().lower() for name in names]
    step = _first_of(plain, _STEP_NAMES)
    epoch = _first_of(plain, _EPOCH_NAMES)
    axis = epoch if step is None else step
    if axis is None:
        raise UserError(f"{path} has no column of steps: name a column step, as in step,train_loss,learning_rate.")
    time = _first_of(plain, _TIME_NAMES)
    if "value" in plain and len(plain) <= 3:
        columns = {plain.index("value"): ("", _tag_of_file(path))}
    else:
        columns = {index: _split_name(name) for index, name in enumerate(names) if index not in (axis, time)}
    known = {index: column for index, column in columns.items() if figure_of(column[1])}
    if not known:
        raise UserError(
            f"{path} has no known column: name the columns for example train_loss, eval_loss, bleu or learning_rate."
        )
    runs = [name for name in dict.fromkeys(column[0] for column in known.values()) if name]
    if len(runs) > 1 and run in runs:
        known = {index: column for index, column in known.items() if column[0] in (run, "")}
    firsts = {tag: index for index, (_, tag) in reversed(known.items())}
    return Layout(
        step=axis,
        step_name=names[axis].strip(),
        counts_epochs=step is None,
        time=time,
        run_column=_first_of(plain, _RUN_NAMES),
        tags={index: tag for tag, index in firsts.items()},
        runs=runs if len(runs) > 1 else [],
        is_decimal_comma=is_decimal_comma,
        has_duplicates=len(firsts) < len(known) and (len(runs) < 2 or run in runs),
        kinds={tag: figure[0] for tag in firsts if (figure := figure_of(tag))},
    )


def _first_of(names: list[str], wanted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _tag_of_file(path: Path) -> str:
    """Returns the tag in a name such as run-RUN-tag-TAG.csv, which TensorBoard gives, or TAG.csv."""
    stem = path.name.partition(".csv")[0].partition(".tsv")[0]
    match = _EXPORTED_NAME.search(stem)
    if not match:
        return stem
    run_name = match[1].strip("._")
    return f"{run_name}/{match[2]}" if run_name in SPLIT_FOLDERS else match[2]


def _split_name(name: str) -> tuple[str, str]:
    """Returns the name of the run, which W&B puts before the tag and " - ", and the tag."""
    run, _, tag = name.strip().rpartition(" - ")
    return run, tag
