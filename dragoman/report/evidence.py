"""Evidence for a report: all files of a run, read once, checked and put in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dragoman.model.shape import ModelShape, count_parameters, resolve_shape, shape_from_dict
from dragoman.report.machines import sampled_span
from dragoman.report.run_tables import (
    CorpusFacts,
    ImportedFile,
    RecordedConfig,
    read_config,
    read_corpus_facts,
    read_imported,
    read_model_table,
)
from dragoman.run.config import ModelSettings
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.folder import RunFolder
from dragoman.run.records import (
    CheckpointRecord,
    EvaluationRecord,
    ImportedFacts,
    PredictionRecord,
    Record,
    RefusedLineError,
    RestartRecord,
    ScoreRecord,
    TrainRecord,
    number_or_none,
    parse_object,
    parse_record,
    records_of,
    steps_covered,
    validate,
)
from dragoman.run.status import observe_run

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Steps and values."""
MAX_TRAIN_RECORDS = 100_000
"""More are thinned out: a curve needs no more points, and a report must fit into memory."""
_MAX_RECORD_CHARACTERS = 1_000_000
MAX_SCORES = 1_000
_MIDWAY_FACTOR = 3
"""A log of another trainer begins midway if its first step is larger than this many of its longest intervals."""
_MAX_REFUSED_SHOWN = 3


@dataclass(frozen=True)
class StatedFacts:
    """Facts that the user states because the files of the run lack them."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    link: str | None = None
    price_per_hour: float | None = None


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


@dataclass(frozen=True)
class MachinesUsed:
    """The machines of a run."""

    num_last: int
    """Number of machines at the end; 0 where it is not known."""
    num_at_once: int
    """Largest number at the same time; 0 where it is not known."""
    names: list[str]
    """All that were sampled."""

    def describe(self) -> str:
        """Says how many there were, and whether others took part earlier."""
        now = f"{self.num_last:,} machine{'s' if self.num_last > 1 else ''}"
        if len(self.names) <= self.num_last:
            return now
        if self.num_at_once == 1:
            return f"{len(self.names):,} machines, one after the other"
        return f"{now} at the end, and {len(self.names):,} in all"


@dataclass
class RefusedLines:
    """Lines of metrics.jsonl that are JSON but not records."""

    number: int = 0
    first: list[str] = field(default_factory=list)
    """The first few, each with its line number and what is wrong with it."""

    def add(self, line_number: int, error: RefusedLineError) -> None:
        """Counts a line and keeps its description if it is among the first."""
        self.number += 1
        if len(self.first) < _MAX_REFUSED_SHOWN:
            self.first.append(f"line {line_number:,} was skipped: {error}")


@dataclass(frozen=True)
class Evidence:
    """Content of the files of a run."""

    run: RunFolder
    known: StatedFacts
    config: dict[str, Any]
    """All of config.toml, for display; `settings` has the values that the report uses."""
    settings: RecordedConfig
    imported: ImportedFile | None
    """None for our own runs."""
    train: list[TrainRecord]
    """Logged intervals of steps; steps that were trained again after a restart are there once."""
    train_steps: list[int]
    """Number of steps of each of these intervals."""
    unseen_steps: int
    """Steps before the first interval, of a log that begins in the middle of a run."""
    evaluations: list[EvaluationRecord]
    checkpoints: list[CheckpointRecord]
    restarts: list[Restart]
    predictions: list[PredictionRecord]
    records: list[Record] = field(repr=False)
    """All records, in the order they were written."""
    refused: RefusedLines
    state: str = "unknown"

    @cached_property
    def scores(self) -> list[ScoreRecord]:
        """Scores on test sets by `dragoman evaluate`; the last of each step and test set."""
        found = {}
        for _, line in zip(range(MAX_SCORES), _lines(self.run.scores), strict=False):
            try:
                score = validate(ScoreRecord, parse_object(line))
            except RefusedLineError:
                continue
            found[score.step, score.judged_on] = score
        return list(found.values())

    @property
    def is_imported(self) -> bool:
        """Whether another trainer made the run."""
        return self.imported is not None

    @property
    def trainer(self) -> str:
        """Name of the program that trained."""
        return "dragoman" if self.imported is None else self.imported.trainer

    @property
    def facts(self) -> ImportedFacts:
        """Facts from the log of another trainer; all None for our own runs."""
        return ImportedFacts() if self.imported is None else self.imported.facts

    @cached_property
    def shape(self) -> ModelShape | None:
        """Shape of the model, from a checkpoint, or else from the settings and the vocabulary."""
        for step in reversed(self.run.checkpoint_steps()):
            try:
                shape = shape_from_dict(read_model_table(self.run, step))
            except (ValueError, TypeError, ArithmeticError, UserError):
                continue
            if _is_valid(shape):
                return shape
        return self._shape_from_settings()

    def _shape_from_settings(self) -> ModelShape | None:
        tokenizer = self.corpus.tokenizer
        if self.is_imported or tokenizer.num_source_pieces is None or tokenizer.num_target_pieces is None:
            return None
        padded = [-(-size // 8) * 8 for size in (tokenizer.num_source_pieces, tokenizer.num_target_pieces)]
        try:
            settings = ModelSettings.model_validate(self.config.get("model", {}))
            shape = resolve_shape(settings, padded[0], padded[1], tokenizer.is_joint)
        except (ValidationError, UserError):
            return None
        return shape if _is_valid(shape) else None

    @cached_property
    def parameters(self) -> int | None:
        """Number of trainable parameters."""
        if self.facts.parameters is not None and self.facts.parameters >= 1:
            return int(self.facts.parameters)
        return None if self.shape is None else count_parameters(self.shape)

    @cached_property
    def corpus(self) -> CorpusFacts:
        """Figures of the prepared corpus."""
        return read_corpus_facts(self.run, None if self.is_imported else self.settings.data.prepared)

    @cached_property
    def num_ranks(self) -> int | None:
        """Number of workers, by the log or by the last record; else by what the user states."""
        number = self.facts.num_ranks
        if number is None and self.train and self.train[-1].work_seconds_by_rank is not None:
            number = len(self.train[-1].work_seconds_by_rank)
        if number is None and self.num_nodes and self.known.gpus_per_node:
            number = self.num_nodes * self.known.gpus_per_node
        return number or None

    @property
    def num_nodes(self) -> int | None:
        """Number of machines: measured, else by a log that names them all, else as stated, else by any log."""
        num_hosts = len(self.facts.hosts or [])
        is_complete = num_hosts * (self.facts.ranks_per_host or 0) == self.facts.num_ranks
        measured = self.machines.num_last
        return measured or (num_hosts if is_complete else None) or self.known.nodes or num_hosts or None

    @cached_property
    def machines(self) -> "MachinesUsed":
        """The machines that took part; a run that moved to another machine used one at a time."""
        recorded = [record.num_machines for record in self.train if record.num_machines]
        files = self.run.system_files()
        spans = dict(filter(None, map(sampled_span, files)))
        began = max((record.time or 0.0 for record in records_of(self.records, RestartRecord)), default=0.0)
        # Clocks of machines may differ a little; a machine without any later sample was left behind.
        last = [name for name, (_, end) in spans.items() if end > began] or list(spans)
        num_at_once = max(recorded, default=0) or _most_at_once(list(spans.values()))
        num_last = recorded[-1] if recorded else len(last) or len(files)
        return MachinesUsed(num_last, num_at_once, sorted(spans))

    @property
    def num_steps(self) -> int | None:
        """Number of different steps that the records are about."""
        return None if self.last_step is None else max(0, self.last_step - self.unseen_steps)

    @property
    def price_per_hour(self) -> float | None:
        """Price of the whole cluster, as stated or as configured."""
        stated = self.known.price_per_hour
        return self.settings.training.price_per_hour if stated is None else stated

    @property
    def first_step(self) -> int | None:
        """The earliest step with a record."""
        return min((record.step for record in (*self.train, *self.evaluations)), default=None)

    @property
    def last_step(self) -> int | None:
        """The latest step with a record."""
        return max((record.step for record in (*self.train, *self.evaluations)), default=None)

    @cached_property
    def step_seconds(self) -> Floats:
        """Seconds per step of every logged interval that has them."""
        return curve(self.train, "seconds_per_step")[1]


def read_evidence(run: RunFolder, known: StatedFacts | None = None) -> Evidence:
    """Reads a run folder; damaged or missing files are left out."""
    refused = RefusedLines()
    records = list(_thin_out(_read_records(run, refused)))
    kept, restarts = _without_repetitions(records)
    config, imported = read_config(run), read_imported(run)
    train, train_steps, unseen_steps = _train_intervals(records, kept, imported is not None)
    return Evidence(
        run=run,
        known=known or StatedFacts(),
        config=config,
        settings=RecordedConfig.model_validate(config),
        imported=imported,
        train=train,
        train_steps=train_steps,
        unseen_steps=unseen_steps,
        evaluations=_last_of_each_step(records_of(kept, EvaluationRecord)),
        checkpoints=records_of(kept, CheckpointRecord),
        restarts=restarts,
        predictions=records_of(kept, PredictionRecord),
        records=records,
        refused=refused,
        state=_state(run, imported),
    )


def timed_records(evidence: Evidence) -> list[TrainRecord]:
    """Returns the logged intervals with a time, in the order of `Evidence.step_seconds`."""
    return [record for record in evidence.train if record.seconds_per_step is not None]


def curve(records: Sequence[Record], name: str) -> Curve:
    """Returns the steps and values of the records that have a figure."""
    found = [(record.step, value) for record in records if (value := record.number(name)) is not None]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64)


def _is_valid(shape: ModelShape) -> bool:
    """Whether all sizes are numbers to compute with; a checkpoint may hold anything."""
    dropouts = (shape.dropout, shape.attention_dropout, shape.relu_dropout)
    sizes = [value for name, value in vars(shape).items() if not name.endswith(("dropout", "shares_vocabulary"))]
    return all(number_or_none(value) is not None for value in dropouts) and all(
        isinstance(size, int) and number_or_none(int(size)) is not None and size >= 1 for size in sizes
    )


def _state(run: RunFolder, imported: ImportedFile | None) -> str:
    if imported is not None:
        return "finished" if imported.facts.is_finished else "stopped"
    try:
        return observe_run(run).state
    except UserError:
        return "unknown"


def _read_records(run: RunFolder, refused: RefusedLines) -> Iterator[Record]:
    for number, line in enumerate(_lines(run.metrics), start=1):
        try:
            record = parse_record(line)
        except RefusedLineError as error:
            refused.add(number, error)
        else:
            if record is not None:
                yield record


def _thin_out(records: Iterable[Record]) -> Iterator[Record]:
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


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while line := file.readline(_MAX_RECORD_CHARACTERS):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None


def _without_repetitions(records: Sequence[Record]) -> tuple[list[Record], list[Restart]]:
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


def _train_intervals(
    records: Sequence[Record], kept: Sequence[Record], is_imported: bool
) -> tuple[list[TrainRecord], list[int], int]:
    """Returns the kept train records, the steps of each, and how many steps came before the first record of all."""
    covered = zip(records_of(records, TrainRecord), steps_covered(records), strict=True)
    by_record = {id(record): num_steps for record, num_steps in covered}
    train = records_of(kept, TrainRecord)
    steps = [by_record[id(record)] for record in train]
    # A run that moved to a host without its earlier records begins with a restart.
    unseen = records[0].step if records and isinstance(records[0], RestartRecord) else 0
    if is_imported and len(steps) > 1 and steps[0] > _MIDWAY_FACTOR * max(steps[1:]):
        # Other trainers do not say where their log begins: the first interval is taken to be as long as the others.
        first = int(np.median(steps[1:]))
        unseen, steps[0] = train[0].step - first, first
    return train, steps, unseen


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


def _most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The largest number of spans that hold the same moment."""
    return max((sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans), default=0)


def _last_of_each_step(evaluations: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
    """Returns one evaluation per step, in order of steps: a resumed run may evaluate a step again."""
    return [record for _, record in sorted({record.step: record for record in evaluations}.items())]
