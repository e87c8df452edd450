"""Reads curves from tables: CSV files of TensorBoard (one tag each), Weights & Biases, or any with a step column."""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.importing.curves import SPLIT_FOLDERS, Curves, figure_of
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import parse_number, read_lines
from dragoman.run.errors import UserError

TRAINER = "CSV"

_MAX_ROWS = 5_000_000
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
_TIME_NAMES = ("wall time", "wall_time", "timestamp", "_timestamp", "time")
_EXPORTED_NAME = re.compile(r"run-(.{0,200}?)-tag-(.{1,200})")
_EARLIEST_TIME = 1e8
"""Smaller times are seconds since the start of the run, not since 1970."""


@dataclass(frozen=True)
class _Layout:
    """The columns of a table by their meaning."""

    step: int
    time: int | None
    tags: dict[int, str]
    is_decimal_comma: bool
    has_duplicates: bool


def read_csv_curves(paths: Iterable[Path], run: ImportedRun) -> None:
    """Reads the tables of one run; unreadable rows are left out and counted in a note."""
    curves = Curves()
    if run.trainer == "unknown":
        run.trainer = TRAINER
    for path in paths:
        _read_table(path, curves, run)
    curves.write_to(run)


def _read_table(path: Path, curves: Curves, run: ImportedRun) -> None:
    lines = read_lines(path)
    header = next((line for line in lines if line.strip()), "").lstrip("\ufeff")
    delimiter = max(",;\t", key=header.count)
    names = next(_rows(iter([header]), delimiter), None) or []
    layout = _layout(path, names[:_MAX_COLUMNS], is_decimal_comma=delimiter == ";")
    if layout.has_duplicates:
        run.note(f"{path.name} has several columns of one name, perhaps of several runs: the first of each was used.")
    num_bad = 0
    for row, _ in zip(_rows(lines, delimiter), range(_MAX_ROWS), strict=False):
        num_bad += row is None or not _add_row(curves, layout, row)
    if num_bad:
        rows = "1 row" if num_bad == 1 else f"{num_bad:,} rows"
        run.note(f"Left out of {path.name}: {rows} that could not be read.")


def _rows(lines: Iterator[str], delimiter: str) -> Iterator[list[str] | None]:
    """Yields the cells of each row; None for a row that the csv module rejects."""
    for line in lines:
        if not line.strip():
            continue
        try:
            # Line by line, so that a quote that is never closed does not swallow the rest of the file.
            yield next(csv.reader([line], delimiter=delimiter), None)
        except csv.Error:
            yield None


def _layout(path: Path, names: list[str], is_decimal_comma: bool) -> _Layout:
    plain = [name.strip().lower() for name in names]
    step = next((plain.index(name) for name in _STEP_NAMES if name in plain), None)
    if step is None:
        raise UserError(f"{path} has no column of steps: name a column step, as in step,train_loss,learning_rate.")
    time = next((plain.index(name) for name in _TIME_NAMES if name in plain), None)
    if "value" in plain and len(plain) <= 3:
        tags = {plain.index("value"): _tag_of_file(path)}
    else:
        tags = {index: _tag_of_column(name) for index, name in enumerate(names) if index not in (step, time)}
    known = {index: tag for index, tag in tags.items() if figure_of(tag)}
    if not known:
        raise UserError(
            f"{path} has no known column: name the columns for example train_loss, eval_loss, bleu or learning_rate."
        )
    firsts = {tag: index for index, tag in reversed(known.items())}
    return _Layout(step, time, {i: tag for tag, i in firsts.items()}, is_decimal_comma, len(firsts) < len(known))


def _tag_of_file(path: Path) -> str:
    """Returns the tag in a name such as run-RUN-tag-TAG.csv, which TensorBoard gives, or TAG.csv."""
    stem = path.name.partition(".csv")[0].partition(".tsv")[0]
    match = _EXPORTED_NAME.search(stem)
    if not match:
        return stem
    run_name = match[1].strip("._")
    return f"{run_name}/{match[2]}" if run_name in SPLIT_FOLDERS else match[2]


def _tag_of_column(name: str) -> str:
    """Removes the name of the run and " - ", which W&B puts before the tag."""
    return name.strip().rpartition(" - ")[2]


def _add_row(curves: Curves, layout: _Layout, row: list[str]) -> bool:
    """Adds a row; returns whether it has a step, and a figure or nothing but empty cells."""
    step = _number(row, layout.step, layout.is_decimal_comma)
    if step is None or not math.isfinite(step) or step < 0:
        return False
    time = None if layout.time is None else _number(row, layout.time, layout.is_decimal_comma)
    time = time if time is not None and math.isfinite(time) and time > _EARLIEST_TIME else None
    is_good = all(not _cell(row, index) for index in layout.tags)
    for index, tag in layout.tags.items():
        value = _number(row, index, layout.is_decimal_comma)
        if value is not None:
            curves.add(tag, int(step), time, value)
            is_good = True
    return is_good


def _cell(row: list[str], index: int) -> str:
    return row[index].strip() if index < len(row) else ""


def _number(row: list[str], index: int, is_decimal_comma: bool) -> float | None:
    text = _cell(row, index)
    return parse_number(text.replace(",", ".") if is_decimal_comma else text)
