"""Types of the records that a run writes and everybody else reads: metrics, machine samples, scores, imported facts.

Each line is parsed once, here: unknown keys are kept, a value of the wrong type refuses the whole line. None means that
the figure was not written. Readers get numbers they can compute with, so they need no checks of their own.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

LARGEST_NUMBER = 2**53
"""Larger numbers do not survive the conversion to a float; no step, byte count or time is as large."""

_ANY = Field(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
_NOT_NEGATIVE = Field(strict=True, ge=0, le=LARGEST_NUMBER)
# Whole numbers stay integers, so that a record is written as it was read.
Number = Annotated[float, _ANY] | Annotated[int, _ANY]
Seconds = Annotated[float, _NOT_NEGATIVE] | Annotated[int, _NOT_NEGATIVE]
Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_NUMBER)]
Counter = Annotated[int, Field(strict=True, ge=0)]
"""A counter of the kernel, which has 64 bits."""
Text = Annotated[str, Field(strict=True)]
SecondsByPart = dict[str, Seconds]
"""Seconds per step, by the names of `diagnosis.step_model.PARTS`."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    def values(self) -> dict[str, Any]:
        """The figures that were written, as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True)


def number_or_none(value: Any) -> float | None:
    """Returns a JSON value if it is a number one can compute with, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= LARGEST_NUMBER else None


# metrics.jsonl


class Record(_Record):
    """One line of metrics.jsonl; kinds that are not known here have this type."""

    kind: Text
    step: Count
    """Optimizer updates made so far."""
    time: Number | None = None
    """Seconds since 1970."""

    def number(self, name: str) -> float | None:
        """A figure by its name, also one that has no field here; None where it is missing or not a number."""
        return number_or_none(getattr(self, name, None))


class SlowestRank(_Record):
    """The rank with the most work of its own in an interval of steps."""

    rank: Count
    host: Text = ""
    attribution: SecondsByPart = {}


class Traffic(_Record):
    """Network traffic of one machine during an interval."""

    host: Text = ""
    interface: Text | None = None
    sent_bytes_per_second: Number | None = None
    received_bytes_per_second: Number | None = None

    @property
    def busier_direction(self) -> float | None:
        """Bytes per second in the direction that carried more."""
        rates = (self.sent_bytes_per_second, self.received_bytes_per_second)
        return max((rate for rate in rates if rate is not None), default=None)


class Utilisation(_Record):
    """Busy shares, mean over all machines."""

    cpu: Number | None = None
    gpu: Number | None = None


MAX_PROGRAMS = 3
"""Largest number of programs named for one machine, the heaviest."""


class ProgramLoad(_Record):
    """A program that is not part of the run, and the cores it used."""

    name: Text
    pid: Count
    cores: Seconds


NOTABLE_CORES = 0.1
"""A smaller load by others does not count."""


class MachineLoad(_Record):
    """Who used the cores of a machine during an interval; all figures are means, in cores."""

    host: Text = ""
    num_cores: Seconds = 0
    """Cores that the run may use; a container or job may have fewer than the machine."""
    own_cores: Seconds = 0
    """Used by the processes of the run."""
    other_cores: Seconds = 0
    """Used by other programs, among the cores that the run may use."""
    stolen_cores: Seconds = 0
    """Given to other virtual machines by the hypervisor."""
    waiting_threads: Seconds | None = None
    """Threads of the run that were ready to run but had no core; the run itself may have too many threads. None where
    the kernel does not tell it."""
    programs: list[ProgramLoad] = []
    """The other programs that used most, as far as they can be seen from here."""

    @property
    def lost_cores(self) -> float:
        """Cores that the run wanted and others had, at least; it loses stolen time in proportion to its use."""
        if max(self.other_cores, self.stolen_cores) < NOTABLE_CORES:
            return 0.0
        used = self.own_cores + self.other_cores
        stolen = self.stolen_cores * self.own_cores / used if used > 0 else 0.0
        return min(self.waiting_threads or 0.0, self.other_cores) + stolen

    @property
    def lost_share(self) -> float:
        """Share of its time that the run would save on this machine without the others, at least."""
        wanted = self.own_cores + self.lost_cores
        return self.lost_cores / wanted if wanted > 0 else 0.0


class TeacherForcedSample(_Record):
    """A training sentence, its target, and what the model predicted while it was fed the target."""

    source: Text = ""
    target: Text = ""
    prediction: Text = ""


class TrainRecord(Record):
    """An interval of training steps."""

    kind: Literal["train"]
    loss: Number | None = None
    negative_log_likelihood: Number | None = None
    """Loss without label smoothing."""
    learning_rate: Number | None = None
    gradient_norm: Number | None = None
    loss_scale: Number | None = None
    skipped_steps: Count | None = None
    epoch: Number | None = None
    seconds_per_step: Number | None = None
    """Without evaluations and checkpoints."""
    wall_seconds_per_step: Number | None = None
    steps_per_second: Number | None = None
    target_tokens_per_second: Number | None = None
    padding_share: Number | None = None
    batch_share: Number | None = None
    """Mean size of the global batch as a share of its full size; below 1 only where it is still growing."""
    training_seconds: Number | None = None
    """What led to this step: evaluations and checkpoints included, repeated steps and restarts not."""
    spent_seconds: Number | None = None
    """What the run has taken in all, which its budgets limit."""
    cost: Number | None = None
    predicted_seconds_per_step: Number | None = None
    prediction_error: Number | None = None
    attribution: SecondsByPart | None = None
    num_machines: Count | None = None
    gradient_bytes: Count | None = None
    """Bytes of the gradient that the ranks sum up at every step."""
    synchronisation: Text | None = None
    """How workers agree on weights; None for exact sums of gradients at every step."""
    replica_bytes_per_step: Number | None = None
    """Bytes that one replica sends to one other, mean over steps, where `synchronisation` is given."""
    slowest: SlowestRank | None = None
    work_seconds_by_rank: list[Number] | None = None
    fixed_share: Number | None = None
    """Share of forward and backward that does not depend on the number of tokens."""
    traffic: Traffic | None = None
    utilisation: Utilisation | None = None
    load: list[MachineLoad] | None = None
    """The machines with the largest load by others first; None where nothing was sampled."""
    sample: TeacherForcedSample | None = None

    @property
    def seconds_per_full_step(self) -> float | None:
        """Seconds per step, where smaller batches of a growing batch count in proportion to their tokens."""
        return self.seconds_per_step and self.seconds_per_step / (self.batch_share or 1.0)


class TranslatedSample(_Record):
    """A sentence of the dev set, its reference and its translation."""

    source: Text = ""
    reference: Text = ""
    translation: Text = ""


class EvaluationRecord(Record):
    """One evaluation on the dev set."""

    kind: Literal["evaluation"]
    loss: Number | None = None
    negative_log_likelihood: Number | None = None
    """Loss without label smoothing."""
    bleu: Number | None = None
    """BLEU of real translations, 0 to 100."""
    teacher_forced_bleu: Number | None = None
    """Score of predictions that were fed the reference, 0 to 1; not the BLEU of translations."""
    chrf: Number | None = None
    ter: Number | None = None
    perplexity: Number | None = None
    accuracy: Number | None = None
    learning_rate: Number | None = None
    """The rate at that step, where another trainer tells it with its scores."""
    other_scores: dict[str, Number] | None = None
    """Further scores of another trainer, by the names it gives them."""
    train_sample_loss: Number | None = None
    """Loss of training sentences, computed without dropout like that of the dev set."""
    signature: Text | None = None
    seconds: Number | None = None
    samples: list[TranslatedSample] | None = None
    weights: Literal["trained", "averaged"] | None = None
    """Which weights were better and have these figures; None where there is no average."""
    other_weights: dict[str, Number | Text | None] | None = None
    """Loss and scores of the other weights."""


class CheckpointRecord(Record):
    """A checkpoint was saved."""

    kind: Literal["checkpoint"]
    path: Text | None = None
    bytes: Number | None = None
    seconds: Number | None = None


class RestartRecord(Record):
    """The run continued from the checkpoint of this step."""

    kind: Literal["restart"]
    cause: Text | None = None
    workers: Count | None = None


class PredictedSeconds(_Record):
    """Seconds per step, with the interval they are expected in."""

    predicted: Number | None = None
    low: Number | None = None
    high: Number | None = None


class PredictionRecord(Record):
    """How long steps were expected to take, before or early in the run."""

    kind: Literal["prediction"]
    seconds_per_step: PredictedSeconds = PredictedSeconds()
    parts: SecondsByPart = {}
    bottleneck: Text | None = None
    share: Number | None = None
    basis: Text | None = None
    workers: Count | None = None
    advice: list[Text] = []
    """What would make steps quicker, the most effective first."""
    other_load: Text = ""
    """Who else used the cores meanwhile; empty where nobody did."""


RECORD_TYPES: dict[Any, type[Record]] = {
    "train": TrainRecord,
    "evaluation": EvaluationRecord,
    "checkpoint": CheckpointRecord,
    "restart": RestartRecord,
    "prediction": PredictionRecord,
}
AnyRecord = TypeVar("AnyRecord", bound=Record)


class RefusedLineError(ValueError):
    """A line that is JSON but not a record; the message says what is wrong with it."""


def parse_record(line: str | bytes) -> Record | None:
    """Parses a line of metrics.jsonl; None where it is not a JSON object, as a line cut off by a kill.

    Raises RefusedLineError for an object with a missing or wrong value.
    """
    values = parse_object(line)
    if values is None:
        return None
    kind = values.get("kind")
    record_type = RECORD_TYPES.get(kind, Record) if isinstance(kind, str) else Record
    return validate(record_type, values)


def parse_records(lines: Iterable[str]) -> Iterator[Record]:
    """Yields the records among lines; others are skipped."""
    for line in lines:
        try:
            record = parse_record(line)
        except RefusedLineError:
            continue
        if record is not None:
            yield record


def records_of(records: Iterable[Record], record_type: type[AnyRecord]) -> list[AnyRecord]:
    """The records of one type, in order."""
    return [record for record in records if isinstance(record, record_type)]


def steps_covered(records: Iterable[Record]) -> list[int]:
    """The number of steps that each train record is about; a restart goes back to the step of its checkpoint."""
    covered, before = [], 0
    for record in records:
        if isinstance(record, TrainRecord):
            covered.append(max(0, record.step - before))
        if isinstance(record, TrainRecord | RestartRecord):
            before = record.step
    return covered


def parse_object(line: str | bytes) -> dict[str, Any] | None:
    """Parses a JSON object; None for anything else."""
    try:
        values = from_json(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


AnyModel = TypeVar("AnyModel", bound=BaseModel)


def validate(model: type[AnyModel], values: Any) -> AnyModel:
    """Builds a record from JSON values; raises RefusedLineError with the first wrong value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RefusedLineError(_describe_problem(error)) from None


def _describe_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False)[0]
    # A number is a float or an int: pydantic names which of the two it tried.
    tried = ("constrained-float", "constrained-int")
    name = ".".join(str(key) for key in problem["loc"] if key not in tried) or "it"
    if problem["type"] == "missing":
        return f"{name} is missing"
    shown = repr(problem["input"])
    reason = problem["msg"].lower()
    if problem["type"].endswith("than_equal") and isinstance(problem["input"], float):
        reason = "not a finite number of a usable size"
    return f"{name} is {shown if len(shown) <= 40 else shown[:39] + '…'}: {reason}"


def validate_known(model: type[AnyModel], values: Any) -> AnyModel:
    """Builds a record from JSON values without those that are wrong; every field of the model needs a default."""
    kept = dict(values) if isinstance(values, dict) else {}
    while True:
        try:
            return model.model_validate(kept)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False):
                kept.pop(problem["loc"][0] if problem["loc"] else None, None)


# system.<node>.jsonl


class CpuSample(_Record):
    """Busy shares of the cores, and who used the cores that the run may use (see MachineLoad)."""

    share: Number | None = None
    cores: list[Number | None] = []
    num_cores: Seconds | None = None
    own_cores: Seconds | None = None
    other_cores: Seconds | None = None
    stolen_cores: Seconds | None = None
    waiting_threads: Seconds | None = None


class MemorySample(_Record):
    """Main memory."""

    used_bytes: Number | None = None
    total_bytes: Number | None = None


class DiskSample(_Record):
    """Traffic of all disks together."""

    read_bytes_per_second: Number | None = None
    written_bytes_per_second: Number | None = None


class InterfaceSample(_Record):
    """Traffic of one network interface; counters since it came up, rates since the last sample."""

    received_bytes: Counter | None = None
    sent_bytes: Counter | None = None
    received_dropped: Counter | None = None
    sent_dropped: Counter | None = None
    received_bytes_per_second: Number | None = None
    sent_bytes_per_second: Number | None = None
    is_up: bool | None = None
    speed_megabits_per_second: Number | None = None


class GpuSample(_Record):
    """One GPU, as NVML reports it."""

    index: Count
    name: Text | None = None
    utilisation: Number | None = None
    memory_used_bytes: Number | None = None
    memory_total_bytes: Number | None = None
    power_watts: Number | None = None
    temperature_celsius: Number | None = None
    sm_clock_mhz: Number | None = None
    memory_clock_mhz: Number | None = None
    pcie_received_bytes_per_second: Number | None = None
    pcie_sent_bytes_per_second: Number | None = None
    nvlink_received_bytes_per_second: Number | None = None
    nvlink_sent_bytes_per_second: Number | None = None
    activity: dict[str, Number | None] | None = None
    """Busy shares of its units, by the names of `monitoring.sampling.gpu.ACTIVITIES`; None where NVML gives none."""


class MachineSample(_Record):
    """One line of system.<node>.jsonl: a machine during one second."""

    time: Number
    node: Text
    cpu: CpuSample = CpuSample()
    memory: MemorySample = MemorySample()
    disk: DiskSample = DiskSample()
    network: dict[str, InterfaceSample] = {}
    gpus: list[GpuSample] = []
    programs: list[ProgramLoad] | None = None
    """Other programs that used the cores most; looked up every few seconds, None in the samples between."""
    notes: list[Text] = []
    """Problems of the sampler, in the first sample after they occurred."""


def parse_sample(line: str | bytes) -> MachineSample | None:
    """Parses a line of system.<node>.jsonl; None where it is cut off or not a sample."""
    try:
        # Not pydantic's own parser, which refuses names with bytes that are not UTF-8.
        return MachineSample.model_validate(json.loads(line))
    except (ValueError, RecursionError):
        return None


# scores.jsonl


class ScoreRecord(_Record):
    """One line of scores.jsonl: a test set that `dragoman evaluate` scored."""

    judged_on: Text
    """The test set."""
    bleu: Number
    step: Count | None = None
    time: Number | None = None
    signature: Text | None = None
    chrf: Number | None = None
    sentences: Number | None = None


# imported.json


class ImportedFacts(_Record):
    """What the log of another trainer says about its run."""

    parameters: Number | None = None
    are_parameters_estimated: bool | None = None
    """Whether their number follows from the memory they take, and is not exact."""
    num_ranks: Count | None = None
    ranks_per_host: Count | None = None
    hosts: list[Text] | None = None
    gpus: list[Text] | None = None
    interface: Text | None = None
    transport: Text | None = None
    software: dict[str, Text] | None = None
    """Versions by program."""
    precision: Text | None = None
    loss_scaling: Any = None
    loss_unit: Text | None = None
    bleu_kind: Text | None = None
    """teacher_forced, tokenised, detokenised or unknown."""
    clock: Text | None = None
    """"log", or "reconstructed" where times were added up from step times."""
    started: Number | None = None
    last_dated: Number | None = None
    training_seconds: Number | None = None
    mean_seconds_per_step: Number | None = None
    timed_steps: Count | None = None
    """Number of the last steps that this mean is of, where it is not of all."""
    objects_per_second: Number | None = None
    """Source and target tokens per second, over all ranks."""
    step_time_includes_evaluation: bool | None = None
    is_train_loss_of_one_rank: bool | None = None
    is_finished: bool | None = None
    """True or False only where the log leaves no doubt."""
    begins_midway: bool | None = None
    """Whether the log shows only the later part of a run."""
    is_cut: bool | None = None
    """Whether the end of the file is missing: a cut archive, or an excerpt."""
    has_unread_steps: bool | None = None
    """Whether lines look like steps of training, but are in a format that is not known."""
    has_unread_evaluations: bool | None = None
    """Whether a log without the result of any evaluation shows that there were some."""
    has_begun_training: bool | None = None
    """Whether a log without any step says that the first one had begun."""
    step_unit: Text | None = None
    """What the steps of the records count where they are not updates: checkpoints or epochs."""
    steps_done: Count | None = None
    """The last step by the trainer's own word, which may be later than the last logged one."""
    epochs_done: Number | None = None
    epochs_planned: Number | None = None
    warmup_steps: Number | None = None
    metric: Text | None = None
    """Name of the figure by which the trainer chooses its best checkpoint, e.g. bleu, chrf or loss."""
    num_attempts: Count | None = None
    first_nan_step: Count | None = None
    steps_planned: Number | None = None
    log_every: Number | None = None
    evaluate_every: Number | None = None
    batch_tokens: Number | None = None
    batch_sentences_per_rank: Number | None = None
    accumulation: Number | None = None
    vocab_size: Number | None = None
    num_training_pairs: Number | None = None
    training_files: dict[str, Text] | None = None
    """Names of files by side, source and target."""
    dev_files: dict[str, Text] | None = None
    dev_set: Text | None = None
    """Name of the dev set that the evaluations are of, where the trainer evaluated several."""
    checkpoint_folder: Text | None = None
    source_language: Text | None = None
    target_language: Text | None = None
    width: Number | None = None
    feed_forward: Number | None = None
    heads: Number | None = None
    encoder_layers: Number | None = None
    decoder_layers: Number | None = None
    dropout: Number | None = None
    label_smoothing: Number | None = None


class ImportedFailure(_Record):
    """Something that went wrong in a run of another trainer."""

    what: Text = ""
    cause: Text = ""
    evidence: Text = ""
    step: Count | None = None
    launch: Count | None = None
    """Number of the launch that it belongs to, from 1."""
    is_fatal: bool | None = None
    """Whether it ended its launch."""


class ImportedLaunch(_Record):
    """One start of another trainer, as its log shows it; a log may hold several."""

    number: Count
    source: Text = ""
    """File in which it begins."""
    line: Count | None = None
    time: Number | None = None
    first_step: Count | None = None
    last_step: Count | None = None
    """None where it made no step."""
    end: Literal["finished", "failed", "stopped", "unknown"] = "unknown"
    reason: Text = ""
    """Why it ended, as a message; empty where the log does not say."""
    hosts: list[Text] = []
