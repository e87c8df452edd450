"""The settings of a run: defaults <- TOML file <- `--set section.key=value`, checked once, then frozen.

The text under a field is its documentation; docs/write_configuration.py writes docs/configuration.md from it.
"""

import os
import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.errors import UsageError
from dragoman.run.tables import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Positive,
    SettingsTable,
    dump_toml,
    first_problem,
    known_keys,
    parse_value,
    read_toml,
    unknown_key,
)

Schedule = Literal[
    "transformer",
    "fixed",
    "piecewise_constant",
    "exponential",
    "polynomial",
    "cosine",
    "inverse_polynomial",
    "plateau",
]
ModelPart = Literal["embeddings", "encoder", "decoder"]
Strategy = Literal["every_step", "auto", "hierarchical", "fp16", "bf16", "int8", "powersgd", "local", "diloco"]

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "swish", "swiglu"]
Embeddings = Literal["tied", "untied"]
Positions = Literal["tensor2tensor", "marian"]
Metric = Literal["bleu", "chrf", "loss"]
ScoreTokenizer = Literal["auto", "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "none"]
MAX_BEAM_SIZE = 1_000
MAX_LENGTH_PENALTY = 100.0
BeamSize = Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE, strict=True)]
LengthPenalty = Annotated[float, Field(ge=0, le=MAX_LENGTH_PENALTY, allow_inf_nan=False, strict=True)]


class StageSettings(SettingsTable):
    """[[data.stages]]: weights that apply from a step on."""

    from_step: CountOrZero
    """Number of steps after which the stage starts; must increase from stage to stage."""
    weights: dict[str, NotNegative]
    """Weights by corpus name; other corpora keep their weight from data.weights or from `dragoman prepare`."""


class DataSettings(SettingsTable):
    """[data]: the training data."""

    prepared: Path
    """Folder written by `dragoman prepare`; relative to the current folder or to the config file. The config.toml of a
    run names it relative to the run folder if both are in one project, so that the project can be moved."""
    max_tokens: Annotated[int, Field(ge=2, le=1_000_000, strict=True)] = 256
    """Longest sentence in subwords (end mark included); longer pairs are left out of training and counted."""
    weights: dict[str, NotNegative] = Field(default={})
    """How often each pair is used per epoch, by corpus name: 2 is twice, 0.5 a random half. Default: as prepared."""
    stages: tuple[StageSettings, ...] = ()
    """[[data.stages]] tables, a curriculum: after `from_step` steps a new epoch starts with these `weights`."""

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        steps = [stage.from_step for stage in self.stages]
        if steps != sorted(set(steps)):
            raise ValueError("data.stages must have a from_step that increases from stage to stage")
        return self


class ModelSettings(SettingsTable):
    """[model]: a preset, and changes to it."""

    preset: str = "small"
    """Name of a preset; `dragoman presets` lists them."""
    width: Count | None = None
    """Width of embeddings and layers (d_model)."""
    feed_forward: Count | None = None
    """Width inside the feed-forward layer."""
    heads: Count | None = None
    """Number of attention heads; must divide the width."""
    encoder_layers: Count | None = None
    """Number of encoder layers."""
    decoder_layers: Count | None = None
    """Number of decoder layers."""
    dropout: Fraction | None = None
    """Dropout on residual connections and embeddings."""
    attention_dropout: Fraction | None = None
    """Dropout on attention weights."""
    relu_dropout: Fraction | None = None
    """Dropout after the activation of the feed-forward layer."""
    norm: Norm | None = None
    """Where layers normalise: "pre" (default) trains steadily at any depth. "post", as in the paper of 2017 and in
    Marian, is worth a try for large corpora and at most 6 layers, with a longer warm-up."""
    activation: Activation | None = None
    """Function inside the feed-forward layer: "relu" (default, fastest), "gelu", "swish", or "swiglu", a gated one with
    a third matrix: worth it for large corpora if feed_forward is lowered to two thirds, for as many weights."""
    embeddings: Embeddings | None = None
    """"tied" (default): target and softmax share one matrix, the source too where the vocabulary is joint. "untied":
    each has its own; worth it only for millions of pairs and languages with different scripts."""
    positions: Positions | None = None
    """Wavelengths of the sinusoids that mark positions: "tensor2tensor" (default), or "marian" for models that are
    exchanged with Marian and Hugging Face."""
    attention_bias: Annotated[bool, Field(strict=True)] | None = None
    """Whether the matrices of attention have biases. Default: no; imported models may have them."""
    output_bias: Annotated[bool, Field(strict=True)] | None = None
    """Whether the softmax has a bias. Default: no; imported models may have it."""
    norm_epsilon: Positive | None = None
    """Small number that keeps norms from dividing by zero. Default: 1e-6; imported models may have another."""


class TrainingSettings(SettingsTable):
    """[training]: optimisation, batches and budgets."""

    seed: CountOrZero = 1
    """Random seed of the initial weights, the order of sentences and every dropout mask."""
    start_from: str = ""
    """Run whose weights training starts from, for fine-tuning, with the same vocabulary: RUN (its best checkpoint),
    RUN@latest, RUN@500 or RUN@average:last:5. The same as --from. Settings of [model] come from there unless given."""
    freeze: tuple[ModelPart, ...] = ()
    """Parts whose weights do not change: "embeddings", "encoder", "decoder". For fine-tuning on little text."""
    max_steps: Count = 100_000
    """Optimizer updates after which the run ends."""
    max_hours: Positive | None = None
    """Hours that the run may take at most, over all restarts. Counted from the start of the launcher (under torchrun,
    mpirun and srun: of each process): starting, hanging, crashes and waiting for hosts count too. The run ends early
    enough to evaluate and save, but a new run makes at least one step. The report and the scores of a test set after
    training do not count."""
    max_cost: Positive | None = None
    """Cost of the run at most: the hours that max_hours counts times price_per_hour, which it needs."""
    price_per_hour: Positive | None = None
    """Price of one hour of the whole cluster."""
    global_batch_tokens: Annotated[int, Field(ge=1, le=100_000_000, strict=True)] = 16_384
    """Size of the global batch: padded tokens of the longer side, over all virtual workers."""
    initial_batch_tokens: CountOrZero = 0
    """Size of the global batch at the start; it then doubles until it is global_batch_tokens, and each time a new epoch
    begins. Small batches make more updates from the same text, which early in training teach more than exact ones.
    Worth it on CPUs of one machine, where a small step costs little more per token. 0: always global_batch_tokens."""
    batch_doubling_steps: Count = 1_000
    """initial_batch_tokens: steps until the batch doubles, and from each doubling to the next."""
    virtual_workers: Count = 4
    """Number of fixed slices of the global batch. Workers share them, so there can be at most as many workers."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """Precision of matrix products; weights and gradient sums stay fp32. fp16 scales the loss dynamically. auto: bf16
    where every device of the run computes it in hardware (CPUs are timed), fp16 on older GPUs, otherwise fp32; decided
    before step 1 and kept."""
    tf32: Annotated[bool, Field(strict=True)] = True
    """fp32 on NVIDIA GPUs since 2020: products keep 10 bits of each factor's fraction instead of 23 and are several
    times as fast; sums stay fp32. false: all bits."""
    compile: Annotated[bool, Field(strict=True)] = False
    """Let torch.compile make kernels for this model; needs a C++ compiler. Batches are padded to a few fixed sizes, and
    each takes a minute to compile when it first occurs: for long runs on GPUs. Measure first: dragoman check."""
    label_smoothing: Fraction = 0.1
    """Share of the target's probability that is spread over the whole vocabulary."""
    clip_norm: NotNegative = 1.0
    """Gradients of the mean loss are clipped to this norm; 0 switches clipping off."""
    learning_rate: Positive = 2.0
    """For the schedule "transformer" a factor (2.0 peaks at 9.9e-4 for transformer-base), otherwise the peak rate."""
    schedule: Schedule = "transformer"
    """transformer, fixed, piecewise_constant, exponential, polynomial, cosine, inverse_polynomial or plateau. plateau
    keeps the rate and lowers it where evaluation.metric does not get better: for runs whose length is not known."""
    warmup_steps: CountOrZero = 8_000
    """Steps of linear warm-up; for "transformer" the step of the peak."""
    decay_steps: Count | None = None
    """exponential: steps per decay; polynomial, cosine: steps to the minimum. Default: what is left after warm-up.
    Where the batch grows, smaller steps count in proportion to their tokens."""
    decay_rate: Positive = 0.5
    """exponential: factor per decay_steps; plateau: factor each time."""
    decay_power: Positive = 1.0
    """polynomial and inverse_polynomial: the exponent."""
    boundaries: tuple[Count, ...] = ()
    """piecewise_constant: steps at which the rate changes…"""
    multipliers: tuple[Positive, ...] = ()
    """piecewise_constant: …and the factors on learning_rate from there on."""
    plateau_patience: Count = 3
    """plateau: evaluations in a row without a better value, after which the rate is lowered. Those during warm-up do
    not count."""
    minimum_learning_rate: NotNegative = 0.0
    """Final rate of polynomial and cosine, lowest rate of plateau."""
    maximum_learning_rate: Positive | None = None
    """Upper limit of any schedule."""
    beta1: Fraction = 0.9
    """Adam: decay rate of the mean of gradients."""
    beta2: Fraction = 0.997
    """Adam: decay rate of the mean of squared gradients."""
    epsilon: Positive = 1e-9
    """Adam: small number that prevents division by zero."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay (AdamW), on matrices only; 0 is plain Adam."""
    log_every: Count = 50
    """Steps between records in metrics.jsonl, TensorBoard and log.txt."""
    sample_every: Count = 1_000
    """Steps between samples of source, target and teacher-forced prediction in the log."""

    @property
    def batch_growth(self) -> BatchGrowth:
        """The size of the global batch at every step."""
        first = min(self.initial_batch_tokens or self.global_batch_tokens, self.global_batch_tokens)
        return BatchGrowth(first, self.global_batch_tokens, self.batch_doubling_steps)

    @model_validator(mode="after")
    def _check_across_fields(self) -> Self:
        if self.max_cost is not None and self.price_per_hour is None:
            raise ValueError("training.max_cost needs training.price_per_hour")
        if self.global_batch_tokens < self.virtual_workers:
            raise ValueError("training.global_batch_tokens must be at least training.virtual_workers")
        if 0 < self.initial_batch_tokens < self.virtual_workers:
            raise ValueError("training.initial_batch_tokens must be 0, or at least training.virtual_workers")
        if self.schedule == "transformer" and self.warmup_steps == 0:
            raise ValueError("training.schedule transformer needs training.warmup_steps of at least 1")
        if len(self.boundaries) != len(self.multipliers):
            raise ValueError("training.boundaries and training.multipliers must have the same length")
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError("training.boundaries must increase")
        if self.schedule == "piecewise_constant" and not self.boundaries:
            raise ValueError("training.schedule piecewise_constant needs training.boundaries")
        if self.schedule == "plateau" and self.decay_rate >= 1:
            raise ValueError("training.schedule plateau needs a training.decay_rate below 1")
        if len(set(self.freeze)) == len(get_args(ModelPart)):
            raise ValueError("training.freeze must leave at least one part of the model to train")
        return self


class EvaluationSettings(SettingsTable):
    """[evaluation]: evaluation on the dev set during training."""

    evaluate_every: Count = 1_000
    """Steps between evaluations; there is one more at the end of training."""
    evaluate_at_start: Annotated[bool, Field(strict=True)] = False
    """Also evaluate the untrained model."""
    max_sentences: Count | None = None
    """Number of dev sentences translated for BLEU, from the first; the loss always uses all."""
    beam_size: BeamSize = 4
    """Beam size of the search."""
    length_penalty: LengthPenalty = 0.6
    """Exponent alpha of the length penalty ((5 + length) / 6)^alpha."""
    metric: Metric = "bleu"
    """Figure by which evaluations are compared: bleu, chrf or loss. Equal ones are ordered by loss, then the later."""
    patience: CountOrZero = 0
    """Evaluations in a row without a better value of the metric, after which the run ends as finished; 0: never. An
    equal value with a lower loss counts as better."""
    tokenizer: ScoreTokenizer = "auto"
    """How sacreBLEU cuts text into words: 13a, intl, char, zh, ja-mecab, ko-mecab, flores200 or none. auto chooses by
    the target language, or by its script where no language is known; the run's config.toml holds the choice."""


class CheckpointSettings(SettingsTable):
    """[checkpoints]: when to save, and what to keep."""

    save_every: Count = 1_000
    """Steps between checkpoints; there is one more at the start, at the end and on SIGTERM or Ctrl-C."""
    keep_last: Count = 3
    """Number of newest checkpoints to keep."""
    keep_best: CountOrZero = 1
    """Number of best checkpoints to keep in addition."""
    best_by: Metric | None = None
    """Figure that decides which checkpoint is the best, instead of evaluation.metric: bleu, chrf or loss."""
    ema_decay: Fraction = 0.0
    """Keeps an exponential moving average of the weights with this decay, e.g. 0.999; 0: none. Each evaluation judges
    both, and translators use the better one. Costs the memory of one more model and a second evaluation."""
    average: str = ""
    """At the end of training, averages the weights of the last or the best checkpoints, as "last:5" or "best:5", and
    uses the average where it scores higher on the dev set; "": no average. Enough checkpoints are kept for it."""

    @model_validator(mode="after")
    def _check_average(self) -> Self:
        if self.average and not re.fullmatch(r"(best|last):[1-9]\d{0,3}", self.average, re.ASCII):
            raise ValueError(f'checkpoints.average {self.average!r} must be "best:N" or "last:N", for example "best:5"')
        if self.average and self.ema_decay:
            raise ValueError("checkpoints.average and checkpoints.ema_decay cannot be used together: choose one")
        return self


NUM_PORTS = 64
"""Number of ports from a given first one on."""
_MIN_PORT, _MAX_PORT = 1_024, 65_535
_PORT_EXAMPLES = f'for example 29500 (the first of {NUM_PORTS}), "29500-29531", or 0 for any free ports'


def _parse_ports(text: int | str) -> range | None:
    """Parses cluster.port; None for any free ports, and a ValueError that says what is wrong."""
    match = re.fullmatch(r"(\d{1,9})(?:\s*[-:]\s*(\d{1,9}))?", str(text).strip(), re.ASCII)
    if match is None:
        raise ValueError(f"cluster.port {text!r} is not a range of ports; {_PORT_EXAMPLES}")
    first = int(match[1])
    if match[2] is None and first == 0:
        return None
    last = first + NUM_PORTS - 1 if match[2] is None else int(match[2])
    if first < _MIN_PORT or last > _MAX_PORT:
        limits = f"ports must lie between {_MIN_PORT} and {_MAX_PORT}"
        raise ValueError(f"cluster.port {text!r} is the range {first} to {last}, but {limits}; {_PORT_EXAMPLES}")
    if last <= first:
        raise ValueError(f"cluster.port {text!r} must be a range of at least 2 ports, the lower one first")
    return range(first, last + 1)


class ClusterSettings(SettingsTable):
    """[cluster]: timeouts, restarts and checks of workers and hosts."""

    hang_timeout: NotNegative = 300.0
    """Seconds without a heartbeat from a worker, after which its stack is saved and the run restarts; 0: never."""
    host_timeout: Annotated[float, Field(ge=5, allow_inf_nan=False)] = 6.0
    """Seconds without a message from a host, after which the run continues without it and the host ends its workers."""
    max_restarts: CountOrZero = 10
    """Restarts in a row without progress, after which the run fails; others are not limited."""
    port: int | str = 0
    """Ports that hosts use between each other, to be opened in a firewall: the first of 64, as 29500, or a range, as
    "29500-29531"; 0: any free ports."""
    check: Literal["machines", "always", "never"] = "machines"
    """What to measure before step 1. "machines": steps and links with several machines, a few steps on one machine, for
    the expected duration; "always": everything, on one machine too; "never": nothing."""

    @field_validator("port", mode="before")
    @classmethod
    def _check_port(cls, port: Any) -> int | str:
        if isinstance(port, bool) or not isinstance(port, int | str):
            raise ValueError(f"cluster.port must be a port or a range of ports; {_PORT_EXAMPLES}")
        _parse_ports(port)
        return port

    @property
    def port_range(self) -> range | None:
        """The ports that hosts may use between each other; None for any."""
        return _parse_ports(self.port)


class SynchronisationSettings(SettingsTable):
    """[synchronisation]: how workers agree on weights; docs/slow-networks.md says what each way costs and brings."""

    strategy: Strategy = "every_step"
    """every_step (default): exact sums of gradients at every step; the same loss curve on any number of workers.
    hierarchical: the same, summed inside each machine first. fp16, bf16, int8, powersgd: sums of gradients in fewer
    bytes. local: replicas learn by themselves and average their weights every few steps; diloco: the same with momentum
    between averages. auto: measures the links before step 1 and chooses; the run says why. Stays for the whole run."""
    replicas: CountOrZero = 0
    """Number of replicas: groups of virtual workers that exchange gradients exactly among themselves. Belongs to the
    run like virtual_workers, which it must divide. 0: as many as machines at the start of the run."""
    interval: Count = 16
    """local, diloco: steps between two averages of weights while the learning rate is at its peak."""
    max_interval: Count = 64
    """local, diloco: the interval grows as 1 / learning rate², up to this number of steps."""
    together_steps: CountOrZero | None = None
    """local, diloco: number of first steps that exchange gradients exactly. Default: training.warmup_steps, at most a
    tenth of training.max_steps."""
    wire: Literal["fp32", "fp16", "bf16", "int8", "int4"] = "int8"
    """local, diloco: number type in which differences of weights are sent; what int8 and int4 lose is sent the next
    time."""
    fragments: Count = 1
    """local, diloco: parts of the weights that are averaged in turn, spread evenly over the interval. As many as the
    interval has steps, with overlap: streamed, so that a step rarely waits."""
    overlap: Annotated[bool, Field(strict=True)] = False
    """local, diloco: weights travel while the following steps compute, and count when the next exchange begins."""
    powersgd_rank: Count = 8
    """powersgd: rank of the factors that stand for the gradient of a matrix."""
    rate_factor: Positive | None = None
    """local, diloco: factor on the learning rate while replicas learn apart. Default: the square root of the number of
    replicas, because Adam makes smaller steps from the noisier gradients of smaller batches."""
    outer_learning_rate: Positive = 0.7
    """diloco: factor on the mean difference of weights."""
    outer_momentum: Fraction = 0.9
    """diloco: Nesterov momentum between averages."""
    guard: Annotated[bool, Field(strict=True)] = True
    """local, diloco: average more often, or at every step, where the dev loss shows that replicas hurt each other."""

    @field_validator("strategy", mode="before")
    @classmethod
    def _accept_hyphens(cls, strategy: Any) -> Any:
        return strategy.strip().lower().replace("-", "_") if isinstance(strategy, str) else strategy

    @model_validator(mode="after")
    def _check_intervals(self) -> Self:
        if self.max_interval < self.interval:
            raise ValueError(
                f"synchronisation.max_interval {self.max_interval} is below synchronisation.interval {self.interval}"
            )
        if self.fragments > self.interval:
            raise ValueError(
                f"synchronisation.fragments {self.fragments} is more than the steps of synchronisation.interval "
                f"{self.interval}: each part needs a step of its own"
            )
        return self


class MonitoringSettings(SettingsTable):
    """[monitoring]: measurements during the run; together they cost less than 1 % of its time."""

    attribution: Annotated[bool, Field(strict=True)] = True
    """Record what the time of each step is spent on."""
    sample_seconds: NotNegative = 1.0
    """Seconds between samples of cores, memory, disk, network and GPUs of each machine; 0 switches them off."""
    report: Annotated[bool, Field(strict=True)] = True
    """Write report.html, report.md and report.json when training ends."""


class Settings(SettingsTable):
    """All settings of a run."""

    data: DataSettings
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    cluster: ClusterSettings = ClusterSettings()
    synchronisation: SynchronisationSettings = SynchronisationSettings()
    monitoring: MonitoringSettings = MonitoringSettings()

    @property
    def best_by(self) -> Metric:
        """The figure that decides which checkpoint is the best."""
        return self.checkpoints.best_by or self.evaluation.metric


PROVENANCE = "provenance"
"""Table of a run's config.toml with versions and the like; not settings."""
_PROJECT_LEVELS = 2
_NOT_OF_A_RUN = (PROVENANCE, "prepare")
"""Tables of a config file that are not settings of the run; `dragoman prepare` reads the second."""


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Reads a TOML file, applies `section.key=value` overrides and checks everything."""
    values = read_toml(path)
    if isinstance(provenance := values.get(PROVENANCE), dict):
        _anchor_prepared(values, path.parent, provenance.get("prepared"))
    for table in _NOT_OF_A_RUN:
        values.pop(table, None)
    return _find_start(_find_prepared(build_settings(values, overrides, where=str(path)), path.parent), path.parent)


def _anchor_prepared(values: dict[str, Any], folder: Path, first_place: Any) -> None:
    """Makes the path in a run's own config absolute: it never means a folder that happens to be in the current one.

    If only the run was moved, the data is where it was when the run started.
    """
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("prepared"), str):
        places = [os.path.normpath(folder.resolve() / data["prepared"]), str(first_place)]
        data["prepared"] = next(filter(os.path.isabs, filter(os.path.exists, places)), places[0])


def relative_to_run(prepared: Path, folder: Path) -> Path:
    """Returns the prepared folder as the config of a run names it: relative if both will be moved together.

    That is the case inside the run folder and in its project, which is taken to be at most two levels above it, as in
    PROJECT/runs/NAME. The root of all files is no project.
    """
    folder = folder.resolve()
    projects = [parent for parent in (folder, *folder.parents[:_PROJECT_LEVELS]) if parent != Path(parent.anchor)]
    is_in_project = any(prepared.is_relative_to(project) for project in projects)
    return Path(os.path.relpath(prepared, folder)) if is_in_project else prepared


def _find_prepared(settings: Settings, beside: Path) -> Settings:
    """Resolves data.prepared relative to the config file if it exists only there."""
    prepared = settings.data.prepared
    if os.path.exists(prepared) or not os.path.exists(beside / prepared):  # noqa: PTH110 - False for impossible names
        return settings
    return settings.model_copy(update={"data": settings.data.model_copy(update={"prepared": beside / prepared})})


def _find_start(settings: Settings, beside: Path) -> Settings:
    """Resolves training.start_from relative to the config file if that run exists only there."""
    start = settings.training.start_from
    run = start if os.path.exists(start) else start.rpartition("@")[0] or start  # noqa: PTH110
    if not start or os.path.exists(run) or not os.path.exists(beside / run):  # noqa: PTH110
        return settings
    training = settings.training.model_copy(update={"start_from": str(beside / start)})
    return settings.model_copy(update={"training": training})


def build_settings(values: dict[str, Any], overrides: Sequence[str] = (), where: str = "settings") -> Settings:
    """Builds settings from nested values, as TOML gives them, after applying overrides."""
    try:
        return Settings.model_validate(apply_overrides(values, overrides))
    except ValidationError as error:
        raise UsageError(f"{where}: {first_problem(error, Settings)}") from None


def dump_settings(settings: Settings, provenance: dict[str, Any] | None = None) -> str:
    """Writes settings as TOML with every default; keys without a value are left out."""
    tables = settings.model_dump(mode="json", exclude_none=True)
    return dump_toml(tables | ({PROVENANCE: provenance} if provenance else {}))


def known_settings() -> list[str]:
    """Lists every `section.key` that may be set."""
    return [key for key in known_keys(Settings) if key.count(".") == 1]


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns a copy of the values with each `section.key=value` set."""
    values = deepcopy(values)
    for override in overrides:
        _apply_override(values, override)
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise UsageError(f"--set takes section.key=value, not {override!r}; for example --set training.max_steps=500.")
    if f"{section}.{name}" not in known_settings():
        raise UsageError(f"--set {override}: {unknown_key(f'{section}.{name}', known_settings())}")
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        raise UsageError(f"--set {override}: {section!r} is not a table in the config file.")
    value = parse_value(text.strip())
    is_path = f"{section}.{name}" == "data.prepared"
    table[name] = text.strip() if is_path and not isinstance(value, str) else value
