"""Reading excerpts of other trainers' logs, as the tests of every reader do."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from dragoman.importing.finding import LogReader
from dragoman.importing.foreign_run import ForeignRun


def reading_with(reader_class: type[LogReader]) -> Callable[..., ForeignRun]:
    """A function that reads lines with this reader and gives the run."""
    return partial(_read, reader_class)


def _read(reader_class: type[LogReader], *lines: str) -> ForeignRun:
    run = ForeignRun()
    reader = reader_class(run)
    for line in lines:
        reader.read(line)
    reader.finish()
    return run


def of_kind(run: ForeignRun, kind: str) -> list[dict[str, Any]]:
    return [record for record in run.records if record["kind"] == kind]


def is_sound(run: ForeignRun) -> bool:
    """Whether all of it can be written as strict JSON, and every record is one."""
    json.dumps([run.records, run.facts, run.settings, run.printed_config, run.notes], allow_nan=False)
    return all(isinstance(record["step"], int) and record["step"] >= 0 and record["kind"] for record in run.records)
