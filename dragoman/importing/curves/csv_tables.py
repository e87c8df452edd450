"""Reads curves from tables: CSV files of TensorBoard (one tag each), Weights & Biases, or any with a step column.

A table may hold several runs, in its columns (W&B: "run a - train/loss") or its rows (a column "run"): `runs_in`
lists them. `read_csv_curves` reads one of them if it gets its name, and refuses a table of several without one.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from dragoman.importing.curves.curve_collection import Curves
from dragoman.importing.curves.table_layout import Layout, Row, layout_of, open_table
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import parse_time
from dragoman.run.errors import UserError

TRAINER = "CSV"

_MAX_ROWS = 5_000_000
_MAX_RUNS = 200
_EARLIEST_TIME = 1e8
"""Smaller times are seconds since the start of the run, not since 1970."""
_PARTS_OF_EPOCH = 100


def runs_in(path: Path) -> list[str]:
    """Returns the names of the runs in a table; one name, maybe empty, for a table of one run."""
    layout, rows = open_table(path)
    if layout.runs:
        return layout.runs
    names: dict[str, None] = {}
    if layout.run_column is not None:
        for row in _first(rows):
            if row is not None and (name := row.text(layout.run_column)) and len(names) < _MAX_RUNS:
                names[name] = None
    return list(names) or [""]


def read_csv_curves(paths: Iterable[Path], run: ImportedRun, name: str | None = None) -> None:
    """Reads the tables of one run; unreadable rows are left out and counted in a note."""
    if run.trainer == "unknown":
        run.trainer = TRAINER
    curves, columns, has_steps = Curves(), set[str](), True
    for path in paths:
        runs = runs_in(path)
        if len(runs) > 1 and name not in runs:
            raise UserError(_several_runs(path, runs))
        layout = layout_of(path, name if name in runs else runs[0])
        columns |= set(layout.tags.values()) | {layout.step_name}
        has_steps = has_steps and not layout.counts_epochs
        _TableReader(path, layout, name if name in runs else runs[0]).read(curves, run)
    curves.write_to(run, columns, has_steps)


def _several_runs(path: Path, runs: list[str]) -> str:
    names = ", ".join(runs[:10]) + (" and more" if len(runs) > 10 else "")
    return f"{path} holds {len(runs)} runs ({names}): keep the columns or rows of one run in a file of its own."


def _first(rows: Iterator[Row | None]) -> Iterator[Row | None]:
    return (row for row, _ in zip(rows, range(_MAX_ROWS), strict=False))


class _TableReader:
    """Reads the rows of one run from a table."""

    def __init__(self, path: Path, layout: Layout, name: str) -> None:
        self._path, self._layout, self._name = path, layout, name
        self._has_parts = layout.counts_epochs and any(
            epoch is not None and epoch % 1 for epoch in (row.number(layout.step) for row in self._rows() if row)
        )
        self._gaps = self._tags_with_gaps()

    def read(self, curves: Curves, run: ImportedRun) -> None:
        """Adds all rows to the curves."""
        if self._layout.has_duplicates:
            run.note(f"{self._path.name} has several columns of one name: the first of each was used.")
        num_bad = sum(row is None or not self._add(curves, row) for row in self._rows())
        if num_bad:
            rows = "1 row" if num_bad == 1 else f"{num_bad:,} rows"
            run.note(f"Left out of {self._path.name}: {rows} that could not be read.")
        if self._layout.counts_epochs:
            run.facts["step_unit"] = "hundredths of an epoch" if self._has_parts else "epochs"
            run.note(f"{self._path.name} has no steps: the steps on this page are {run.facts['step_unit']}.")

    def _rows(self) -> Iterator[Row | None]:
        column = self._layout.run_column
        for row in _first(open_table(self._path)[1]):
            if row is None or column is None or row.text(column) == self._name:
                yield row

    def _tags_with_gaps(self) -> set[str]:
        """Returns the tags whose cells say "nan" where there is no figure, in rows of an evaluation or of training."""
        suspects: set[str] = set()
        gaps: set[str] = set()
        for row in self._rows():
            values = {} if row is None else self._values(row)
            absent = self._absent(values)
            gaps |= {tag for tag in suspects if tag in values and tag not in absent and math.isfinite(values[tag])}
            suspects |= absent
        return gaps

    def _absent(self, values: dict[str, float]) -> set[str]:
        """Returns the tags of one kind (training or evaluation) that are all nan in a row of the other kind."""
        kinds = {tag: self._layout.kinds[tag] for tag in values}
        finite = {kinds[tag] for tag, value in values.items() if math.isfinite(value)}
        return {tag for tag, value in values.items() if math.isnan(value) and finite and kinds[tag] not in finite}

    def _values(self, row: Row) -> dict[str, float]:
        found = {tag: row.number(index) for index, tag in self._layout.tags.items()}
        return {tag: value for tag, value in found.items() if value is not None}

    def _add(self, curves: Curves, row: Row) -> bool:
        """Adds a row; returns whether it has a step, and a figure or nothing but empty cells."""
        step = row.number(self._layout.step)
        if step is None or not 0 <= step < math.inf:
            return False
        values = self._values(row)
        absent = self._absent(values) & self._gaps
        for tag, value in values.items():
            if tag not in absent:
                curves.add(tag, round(step * _PARTS_OF_EPOCH) if self._has_parts else int(step), self._time(row), value)
        return bool(values) or all(row.is_empty(index) for index in self._layout.tags)

    def _time(self, row: Row) -> float | None:
        if self._layout.time is None:
            return None
        time = row.number(self._layout.time)
        time = parse_time(row.text(self._layout.time).replace("T", " ")) if time is None else time
        return time if time is not None and _EARLIEST_TIME < time < math.inf else None
