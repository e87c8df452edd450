"""Evidence for a report: all files of a run, read once, checked and put in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dragoman.model.shape import ModelShape, count_parameters, resolve_shape, shape_from_dict
from dragoman.report.machines import sampled_span
from dragoman.report.record_reading import (
    RefusedLines,
    Restart,
    last_of_each_step,
    read_lines,
    read_run_records,
    thin_out,
    train_intervals,
    without_repetitions,
)
from dragoman.report.run_tables import (
    CorpusFacts,
    ImportedFile,
    RecordedConfig,
    read_corpus_facts,
    read_imported,
    read_model_table,
)
from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.config import ModelSettings
from dragoman.run.errors import UserError
from dragoman.run.files import read_toml_table
from dragoman.run.folder import RunFolder
from dragoman.run.records import (
    CheckpointRecord,
    EvaluationRecord,
    ImportedFacts,
    ImportedFailure,
    ImportedLaunch,
    PredictionRecord,
    Record,
    RefusedLineError,
    RestartRecord,
    ScoreRecord,
    TrainRecord,
    number_or_none,
    parse_object,
    records_of,
    validate,
)
from dragoman.run.status import observe_run

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Steps and values."""
MAX_SCORES = 1_000
_FEWEST_FOR_GAP = 10
_GAP_FACTOR = 20
"""So many times the usual number of steps between two records is a gap, not an interval of logging."""
_SMALLEST_GAP = 0.05
"""Share of the run below which a gap does not matter."""
_STEP_NOUNS = {"checkpoints": "checkpoint", "epochs": "epoch", "log lines": "log line"}
"""Names of what one step of the records is where it is not an update."""


@dataclass(frozen=True)
class StatedFacts:
    """Facts that the user states because the files of the run lack them."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    link: str | None = None
    price_per_hour: float | None = None
    parameters: int | None = None


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
    """How the run ended: finished, stopped, failed, unknown, or a state of `dragoman status`."""
    message: str = ""
    """Why our own run failed, as its launcher reported it."""

    @cached_property
    def scores(self) -> list[ScoreRecord]:
        """Scores on test sets by `dragoman evaluate`; the last of each step and test set."""
        found = {}
        for _, line in zip(range(MAX_SCORES), read_lines(self.run.scores), strict=False):
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

    @property
    def first_nan_step(self) -> int | None:
        """The step since which the training loss has not been a finite number; None where it is one at the end."""
        return self.refused.nan_step if self.facts.first_nan_step is None else self.facts.first_nan_step

    @property
    def is_excerpt(self) -> bool:
        """Whether the files show only a part of the run: what they lack may have happened all the same."""
        said = self.imported.notes if self.imported else []
        is_part = self.facts.is_cut or self.facts.begins_midway or self.unseen_steps > 0
        return bool(is_part) or any("excerpt" in note.lower() for note in said)

    @property
    def missing_steps(self) -> str:
        """Says that there is no step, as surely as the files show it."""
        if self.facts.has_unread_steps:
            return "No step could be read: the log may hold steps in a format that is not known."
        if self.is_excerpt:
            return "This excerpt shows no step of training; the rest may hold some."
        if self.facts.has_begun_training:
            return "No step was logged, although training had begun."
        return "No step was trained."

    @property
    def may_have_steps(self) -> bool:
        """Whether steps may have been trained that the files do not show."""
        return self.is_excerpt or bool(self.facts.has_unread_steps)

    @property
    def failures(self) -> list[ImportedFailure]:
        """What went wrong in the launch that trained; other launches have their own list."""
        launch = self.trained_launch
        found = self.imported.failures if self.imported else []
        return [each for each in found if launch is None or each.launch in (None, launch.number)]

    @property
    def launches(self) -> list[ImportedLaunch]:
        """All starts of another trainer that its log shows."""
        return self.imported.launches if self.imported else []

    @property
    def trained_launch(self) -> ImportedLaunch | None:
        """The last launch that made a step, else the last one; None where the log shows no launch."""
        with_steps = [launch for launch in self.launches if launch.last_step is not None]
        return next(iter((with_steps or self.launches)[-1:]), None)

    @property
    def fatal_failure(self) -> ImportedFailure | None:
        """What ended the launch that trained; None where nothing is known to have ended it."""
        return next((each for each in self.failures if each.is_fatal), None)

    @property
    def step_noun(self) -> str:
        """Name of what one step of the records is: "step", or for example "epoch" in files without updates."""
        return _STEP_NOUNS.get(self.facts.step_unit or "", "step")

    @property
    def steps_planned(self) -> int | None:
        """Steps after which the run was to end; None where that is not known."""
        planned = self.facts.steps_planned or self.settings.training.max_steps
        return int(planned) if planned and planned >= 1 else None

    @property
    def batch_growth(self) -> BatchGrowth:
        """The size of the global batch at every step."""
        return BatchGrowth.planned(self.settings.training.model_dump(exclude_none=True))

    @property
    def is_batch_growing(self) -> bool:
        """Whether the first batches were smaller than the last; times of steps are then those of full batches."""
        return self.batch_growth.full_from_step > 0

    @property
    def start_from(self) -> str:
        """The run whose weights this one started from; empty where they were random."""
        training = self.config.get("training")
        start = training.get("start_from") if isinstance(training, dict) else None
        return start if isinstance(start, str) else ""

    @property
    def warmup_steps(self) -> float | None:
        """Steps in which the learning rate rises; None where that is not known."""
        recorded = self.settings.training.warmup_steps
        return self.facts.warmup_steps if recorded is None else recorded

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
        return self.known.parameters if self.shape is None else count_parameters(self.shape)

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
        launch = self.trained_launch
        # A run that was resumed on other hosts did not use all of them at once.
        num_hosts = len(launch.hosts if launch and launch.hosts else self.facts.hosts or [])
        is_complete = num_hosts * (self.facts.ranks_per_host or 0) == self.facts.num_ranks
        measured = self.machines.num_last
        if not num_hosts and self.facts.num_ranks and self.facts.ranks_per_host == self.facts.num_ranks:
            num_hosts, is_complete = 1, True  # the log names no machine, but says that it was only one
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

    @cached_property
    def gap(self) -> tuple[int, int] | None:
        """The steps around the longest part that a log leaves out in the middle; None where it leaves out none."""
        steps = sorted({record.step for record in self.train} | {self.last_step or 0})
        length, begin, end = max(((b - a, a, b) for a, b in pairwise(steps)), default=(0, 0, 0))
        return (begin, end) if self.is_gap(length) and length > _SMALLEST_GAP * end else None

    def is_gap(self, num_steps: float) -> bool:
        """Whether so many steps without a record show that a part of the log is missing."""
        return num_steps > self._longest_interval

    @cached_property
    def _longest_interval(self) -> float:
        is_known = self.is_imported and len(self.train_steps) >= _FEWEST_FOR_GAP
        return _GAP_FACTOR * float(np.median(self.train_steps)) if is_known else np.inf

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
        """The latest step with a record, or a later one that the trainer names."""
        steps = [record.step for record in (*self.train, *self.evaluations)]
        return max([*steps, *([self.facts.steps_done] if self.facts.steps_done else [])], default=None)

    @cached_property
    def step_seconds(self) -> Floats:
        """Seconds per step of every logged interval that has them."""
        return curve(self.train, "seconds_per_step")[1]


def read_evidence(run: RunFolder, known: StatedFacts | None = None) -> Evidence:
    """Reads a run folder; damaged or missing files are left out."""
    refused = RefusedLines()
    records = list(thin_out(read_run_records(run, refused)))
    kept, restarts = without_repetitions(records)
    config, imported = read_toml_table(run.config), read_imported(run)
    train, train_steps, unseen_steps = train_intervals(records, kept, imported)
    evidence = Evidence(
        run=run,
        known=known or StatedFacts(),
        config=config,
        settings=RecordedConfig.model_validate(config),
        imported=imported,
        train=train,
        train_steps=train_steps,
        unseen_steps=unseen_steps,
        evaluations=last_of_each_step(records_of(kept, EvaluationRecord)),
        checkpoints=records_of(kept, CheckpointRecord),
        restarts=restarts,
        predictions=records_of(kept, PredictionRecord),
        records=records,
        refused=refused,
    )
    state, message = _own_state(run) if imported is None else (_imported_state(evidence), "")
    return replace(evidence, state=state, message=message)


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
    layers = (shape.width, shape.feed_forward, shape.heads, shape.encoder_layers, shape.decoder_layers)
    sizes = (*layers, shape.source_vocab_size, shape.target_vocab_size)
    return all(number_or_none(value) is not None for value in dropouts) and all(
        isinstance(size, int) and number_or_none(int(size)) is not None and size >= 1 for size in sizes
    )


def _own_state(run: RunFolder) -> tuple[str, str]:
    try:
        observation = observe_run(run)
    except UserError:
        return "unknown", ""
    return observation.state, (observation.status.message or "") if observation.status else ""


def _imported_state(evidence: Evidence) -> str:
    """Judges how a run of another trainer ended; "unknown" where its log does not tell."""
    facts, launch = evidence.facts, evidence.trained_launch
    if facts.is_finished or (launch is not None and launch.end == "finished"):
        return "finished"
    if evidence.fatal_failure is not None or (launch is not None and launch.end == "failed"):
        return "failed"
    last, planned = evidence.last_step, evidence.steps_planned
    if planned is not None and last is not None and last >= planned:
        return "finished"
    if facts.is_cut:
        return "unknown"
    is_early = planned is not None and last is not None and last + max(evidence.train_steps, default=0) < planned
    # The last epoch may have begun without its end being logged.
    is_early = is_early or (facts.epochs_done or 0.0) + 1 < (facts.epochs_planned or 0.0)
    is_stopped = facts.is_finished is False or is_early or (launch is not None and launch.end == "stopped")
    return "stopped" if is_stopped else "unknown"


def _most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The largest number of spans that hold the same moment."""
    return max((sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans), default=0)
