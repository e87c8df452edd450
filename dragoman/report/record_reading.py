"""Reads metrics.jsonl for a report: thinned out, without steps that were trained twice, with restarts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from statistics import median_low

from dragoman.report.run_tables import ImportedFile
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.folder import RunFolder
from dragoman.run.records import (
    EvaluationRecord,
    Record,
    RefusedLineError,
    RestartRecord,
    TrainRecord,
    number_or_none,
    parse_object,
    parse_record,
    records_of,
    steps_covered,
)

MAX_TRAIN_RECORDS = 100_000
"""More are thinned out: a curve needs no more points, and a report must fit into memory."""
_MAX_RECORD_CHARACTERS = 1_000_000
_MIDWAY_FACTOR = 3
"""A log of another trainer begins midway if its first step is larger than this many of its longest intervals."""
_MAX_REFUSED_SHOWN = 3


@dataclass(frozen=True)
class Restart:
    """One restart of the run from a checkpoint."""

    step: int
    cause: str
    repeated_steps: int
    """Steps that were trained again because the checkpoint was older."""
    repeated_seconds: float
    silent_seconds: float | None
    """Time from the last record to the restart; None where the records have no times."""


@dataclass
class RefusedLines:
    """Lines of metrics.jsonl that are JSON but not records."""

    number: int = 0
    first: list[str] = field(default_factory=list)
    """The first few, each with its line number and what is wrong with it."""
    nan_step: int | None = None
    """First step since which the training loss has not been a finite number."""

    def add(self, line_number: int, line: str, error: RefusedLineError) -> None:
        """Counts a line and keeps its description if it is among the first."""
        self.number += 1
        if len(self.first) < _MAX_REFUSED_SHOWN:
            self.first.append(f"line {line_number:,} was skipped: {error}")
        values = parse_object(line) or {}
        step, loss = values.get("step"), values.get("loss")
        is_infinite = isinstance(loss, float) and not math.isfinite(loss)
        if values.get("kind") == "train" and is_infinite and number_or_none(step) is not None and self.nan_step is None:
            self.nan_step = int(step or 0)

    def note_good(self, record: Record) -> None:
        """Forgets an earlier NaN if the loss is a number again."""
        if isinstance(record, TrainRecord) and record.loss is not None:
            self.nan_step = None


def read_run_records(run: RunFolder, refused: RefusedLines) -> Iterator[Record]:
    """Yields the records of metrics.jsonl; lines that are not records are counted."""
    for number, line in enumerate(read_lines(run.metrics), start=1):
        try:
            record = parse_record(line)
        except RefusedLineError as error:
            refused.add(number, line, error)
        else:
            if record is not None:
                refused.note_good(record)
                yield record


def thin_out(records: Iterable[Record]) -> Iterator[Record]:
    """Yields every n-th training record and all other records; the first and the last are always among them."""
    train: list[tuple[int, Record]] = []
    others: list[tuple[int, Record]] = []
    ends: list[tuple[int, Record]] = []
    stride, num_seen = 1, 0
    for numbered in enumerate(records):
        if not isinstance(numbered[1], TrainRecord):
            others.append(numbered)
            continue
        num_seen += 1
        ends = [*ends[:1], numbered]
        if num_seen % stride == 0:
            train.append(numbered)
        if len(train) > MAX_TRAIN_RECORDS:
            train, stride = train[1::2], stride * 2
    by_number = dict([*train, *ends, *others[-MAX_TRAIN_RECORDS:]])
    yield from (by_number[number] for number in sorted(by_number))


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file, none longer than a record may be; nothing where the file is missing."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while line := file.readline(_MAX_RECORD_CHARACTERS):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None


def without_repetitions(records: Sequence[Record]) -> tuple[list[Record], list[Restart]]:
    """Drops records of steps that were trained again after a restart; returns the others and the restarts."""
    restarts: list[Restart] = []
    dropped: set[int] = set()
    # A heap, highest step first: thousands of restarts in a long run must not take minutes.
    by_step: list[tuple[int, int]] = []
    for number, record in enumerate(records):
        if isinstance(record, RestartRecord):
            repeated = []
            while by_step and -by_step[0][0] > record.step:
                repeated.append(heappop(by_step)[1])
            dropped.update(repeated)
            before = records[max(0, number - 1)]
            restarts.append(_restart(record, records_of((records[each] for each in repeated), TrainRecord), before))
        heappush(by_step, (-record.step, number))
    return [record for number, record in enumerate(records) if number not in dropped], restarts


def train_intervals(
    records: Sequence[Record], kept: Sequence[Record], imported: ImportedFile | None
) -> tuple[list[TrainRecord], list[int], int]:
    """Returns the kept train records, the steps of each, and how many steps came before the first record of all."""
    covered = zip(records_of(records, TrainRecord), steps_covered(records), strict=True)
    by_record = {id(record): num_steps for record, num_steps in covered}
    train = records_of(kept, TrainRecord)
    steps = [by_record[id(record)] for record in train]
    # A run that moved to a host without its earlier records begins with a restart.
    unseen = records[0].step if records and isinstance(records[0], RestartRecord) else 0
    begins_midway = False if imported is None else imported.facts.begins_midway
    if steps and begins_midway is not False and steps[0] > _longest_first(steps[1:], is_midway=bool(begins_midway)):
        # Other trainers do not say where their log begins: the first interval is taken to be as long as the others.
        first = median_low(steps[1:]) if steps[1:] else 0
        unseen, steps[0] = train[0].step - first, first
    return train, steps, unseen


def _longest_first(others: Sequence[int], is_midway: bool) -> float:
    """The largest first interval of a log that shows the beginning of its run."""
    if not others:
        return 0.0 if is_midway else math.inf
    return median_low(others) if is_midway else _MIDWAY_FACTOR * max(others)


def _restart(record: RestartRecord, repeated: Sequence[TrainRecord], before: Record) -> Restart:
    is_timed = before.time is not None and record.time is not None
    num_steps = max((each.step for each in repeated), default=record.step) - record.step
    seconds = [each.seconds_per_step for each in repeated if each.seconds_per_step is not None]
    return Restart(
        step=record.step,
        cause=record.cause or "",
        repeated_steps=num_steps,
        repeated_seconds=num_steps * (sum(seconds) / len(seconds)) if seconds else 0.0,
        silent_seconds=max(0.0, (record.time or 0.0) - (before.time or 0.0)) if is_timed else None,
    )


def last_of_each_step(evaluations: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
    """Returns one evaluation per step, in order of steps: a resumed run may evaluate a step again."""
    return [record for _, record in sorted({record.step: record for record in evaluations}.items())]
