"""Reads excerpts of other trainers' logs, for the tests of every reader."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from dragoman.importing.files.detection import LogReader
from dragoman.importing.imported_run import ImportedRun


def reading_with(*reader_classes: type[LogReader]) -> Callable[..., ImportedRun]:
    """Returns a function that reads lines with these readers into a new run."""

    def read(*lines: str) -> ImportedRun:
        return read_lines_with(reader_classes, lines)

    return read


def read_lines_with(reader_classes: Iterable[type[LogReader]], lines: Iterable[str]) -> ImportedRun:
    run = ImportedRun()
    readers = [reader_class(run) for reader_class in reader_classes]
    for line in lines:
        for reader in readers:
            reader.read(line)
    for reader in readers:
        reader.finish()
    return run


def of_kind(run: ImportedRun, kind: str) -> list[dict[str, Any]]:
    return [record for record in run.records if record["kind"] == kind]


def is_sound(run: ImportedRun) -> bool:
    """Whether all of it can be written as strict JSON, and every record has a step and a kind."""
    json.dumps([run.records, run.facts, run.settings, run.printed_config, run.notes], allow_nan=False)
    return all(isinstance(record["step"], int) and record["step"] >= 0 and record["kind"] for record in run.records)
