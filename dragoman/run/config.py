"""The settings of a run: defaults <- TOML file <- `--set section.key=value`, checked once, then frozen.

The text under a field is its documentation; docs/write_configuration.py makes docs/configuration.md of it.
"""

import os
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dragoman.run.errors import UsageError
from dragoman.run.tables import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Positive,
    Section,
    dump_toml,
    first_problem,
    known_keys,
    parse_value,
    read_toml,
    unknown_key,
)

Schedule = Literal[
    "transformer", "fixed", "piecewise_constant", "exponential", "polynomial", "cosine", "inverse_polynomial"
]


class StageSettings(Section):
    """[[data.stages]]: other weights from a step on."""

    from_step: CountOrZero
    """Begins when this many steps have been made; must rise from stage to stage."""
    weights: dict[str, NotNegative]
    """By corpus name; corpora that are not named have their weight of data.weights or as recorded."""


class DataSettings(Section):
    """[data]: what to learn from."""

    prepared: Path
    """Folder that `dragoman prepare` wrote; relative to where you are, or else to the config file."""
    max_tokens: Annotated[int, Field(ge=2, strict=True)] = 256
    """Pairs with a side of more pieces (end mark included) are left out of training, and counted."""
    weights: dict[str, NotNegative] = Field(default={})
    """Overrides the weights recorded by prepare, by corpus name: 2 is each pair twice an epoch, 0.5 a random half."""
    stages: tuple[StageSettings, ...] = ()
    """[[data.stages]] tables, a curriculum: after `from_step` steps a new epoch begins, with these `weights`."""

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        steps = [stage.from_step for stage in self.stages]
        if steps != sorted(set(steps)):
            raise ValueError("data.stages must have a from_step that rises from stage to stage")
        return self


class ModelSettings(Section):
    """[model]: a preset, and what to change in it."""

    preset: str = "small"
    """One of `dragoman presets`."""
    width: Count | None = None
    """Of embeddings and layers (d_model)."""
    feed_forward: Count | None = None
    """Width inside the feed-forward part."""
    heads: Count | None = None
    """Attention heads; must divide the width."""
    encoder_layers: Count | None = None
    """Layers over the source."""
    decoder_layers: Count | None = None
    """Layers over the target."""
    dropout: Fraction | None = None
    """On the residual stream and the embeddings."""
    attention_dropout: Fraction | None = None
    """On attention weights."""
    relu_dropout: Fraction | None = None
    """After the ReLU of the feed-forward part."""


class TrainingSettings(Section):
    """[training]: how to learn."""

    seed: CountOrZero = 1
    """Decides the initial weights, the order of sentences and every dropout mask."""
    max_steps: CountOrZero = 100_000
    """Optimizer updates after which the run ends."""
    max_hours: Positive | None = None
    """Hours of training, over all restarts, after which the run ends."""
    max_cost: Positive | None = None
    """Money after which the run ends; needs price_per_hour."""
    price_per_hour: Positive | None = None
    """What an hour of the whole cluster costs."""
    global_batch_tokens: Count = 16_384
    """Budget of one step: padded tokens of the longer side, over all virtual workers."""
    virtual_workers: Count = 4
    """Fixed slices of the global batch; ranks share them, so at most this many workers can take part."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the matrix products; weights and their sums stay fp32. fp16 scales the loss dynamically."""
    label_smoothing: Fraction = 0.1
    """Share of the target's probability spread over the whole vocabulary."""
    clip_norm: NotNegative = 1.0
    """Longest gradient allowed, of the mean loss; 0 switches clipping off."""
    learning_rate: Positive = 2.0
    """Of the schedule: for "transformer" a factor (2.0 peaks at 9.9e-4 for base), otherwise the rate itself."""
    schedule: Schedule = "transformer"
    """transformer, fixed, piecewise_constant, exponential, polynomial, cosine or inverse_polynomial."""
    warmup_steps: CountOrZero = 8_000
    """Steps of linear rise; for "transformer" the step of the peak."""
    decay_steps: Count | None = None
    """exponential: steps per decay; polynomial, cosine: steps to the minimum. Default: what is left after warm-up."""
    decay_rate: Positive = 0.5
    """exponential: factor per decay_steps."""
    decay_power: Positive = 1.0
    """polynomial and inverse_polynomial: the exponent."""
    boundaries: tuple[Count, ...] = ()
    """piecewise_constant: steps at which the rate changes…"""
    multipliers: tuple[Positive, ...] = ()
    """piecewise_constant: …and the factors on learning_rate from there on."""
    minimum_learning_rate: NotNegative = 0.0
    """Where polynomial and cosine end."""
    maximum_learning_rate: Positive | None = None
    """Cap over any schedule."""
    beta1: Fraction = 0.9
    """Adam's memory of gradients."""
    beta2: Fraction = 0.997
    """Adam's memory of their squares."""
    epsilon: Positive = 1e-9
    """Adam's guard against division by zero."""
    weight_decay: NotNegative = 0.0
    """Decoupled (AdamW), on matrices only; 0 makes it Adam."""
    log_every: Count = 50
    """Steps between records in metrics.jsonl, TensorBoard and log.txt."""
    sample_every: Count = 1_000
    """Steps between samples of source, target and teacher-forced prediction in the log."""

    @model_validator(mode="after")
    def _check_across_fields(self) -> Self:
        if self.max_cost is not None and self.price_per_hour is None:
            raise ValueError("training.max_cost needs training.price_per_hour")
        if self.global_batch_tokens < self.virtual_workers:
            raise ValueError("training.global_batch_tokens must be at least training.virtual_workers")
        if self.schedule == "transformer" and self.warmup_steps == 0:
            raise ValueError("training.schedule transformer needs training.warmup_steps of at least 1")
        if len(self.boundaries) != len(self.multipliers):
            raise ValueError("training.boundaries and training.multipliers must have the same length")
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError("training.boundaries must rise")
        if self.schedule == "piecewise_constant" and not self.boundaries:
            raise ValueError("training.schedule piecewise_constant needs training.boundaries")
        return self


class EvaluationSettings(Section):
    """[evaluation]: judging during training, on the dev set."""

    evaluate_every: Count = 1_000
    """Steps between evaluations; one more is made at the end of training."""
    evaluate_at_start: Annotated[bool, Field(strict=True)] = False
    """Also judge the untrained model."""
    max_sentences: Count | None = None
    """Translate only the first so many dev sentences for BLEU; the loss always takes all."""
    beam_size: Count = 4
    """Hypotheses kept while searching."""
    length_penalty: NotNegative = 0.6
    """Exponent alpha of ((5 + length) / 6)^alpha."""


class CheckpointSettings(Section):
    """[checkpoints]: what is kept."""

    save_every: Count = 1_000
    """Steps between checkpoints; one more is made at the start, at the end and on SIGTERM or Ctrl-C."""
    keep_last: Count = 3
    """Newest checkpoints kept."""
    keep_best: CountOrZero = 1
    """Best checkpoints kept besides, by evaluation."""
    best_by: Literal["loss", "bleu"] = "loss"
    """What makes a checkpoint the best: evaluation loss or BLEU."""


class ClusterSettings(Section):
    """[cluster]: how patient the launcher is with workers and hosts."""

    hang_timeout: Positive = 300.0
    """Seconds without any sign of life from a worker, after which its stack is saved and the run started again."""
    host_timeout: Annotated[float, Field(ge=5, allow_inf_nan=False)] = 15.0
    """Seconds without a word from a host, after which the run goes on without it; the host then ends its workers."""
    max_restarts: CountOrZero = 10
    """Restarts in a row that bring no new step, after which the run fails; any number of others is allowed."""
    port: Annotated[int, Field(ge=0, le=65535, strict=True)] = 0
    """Where the first host listens for the others; 0 is any free port."""
    check: Literal["machines", "always", "never"] = "machines"
    """Measure steps and links before step 1 and say what holds them back: on several machines, always or never."""


class MonitoringSettings(Section):
    """[monitoring]: watching the run; all of it together costs less than a hundredth of its time."""

    attribution: Annotated[bool, Field(strict=True)] = True
    """Note what the time of every step is spent on."""
    sample_seconds: NotNegative = 1.0
    """Between two samples of processors, memory, disk, network and GPUs of every machine; 0 switches them off."""
    report: Annotated[bool, Field(strict=True)] = True
    """Write report.html, report.md and report.json when training ends."""


class Settings(Section):
    """All settings of a run."""

    data: DataSettings
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    cluster: ClusterSettings = ClusterSettings()
    monitoring: MonitoringSettings = MonitoringSettings()


PROVENANCE = "provenance"
"""Table of config.toml that records versions and the like; written, never read back as a setting."""
NOT_OF_A_RUN = (PROVENANCE, "prepare")
"""Tables that may stand in a config file without concerning the run; `dragoman prepare` reads the second."""


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Reads a TOML file, applies `section.key=value` overrides, checks everything."""
    values = read_toml(path)
    for table in NOT_OF_A_RUN:
        values.pop(table, None)
    return _find_prepared(build_settings(values, overrides, where=str(path)), beside=path.parent)


def _find_prepared(settings: Settings, beside: Path) -> Settings:
    """Takes data.prepared as relative to the config file where that is where it is."""
    prepared = settings.data.prepared
    if os.path.exists(prepared) or not os.path.exists(beside / prepared):  # noqa: PTH110 - False for impossible names
        return settings
    return settings.model_copy(update={"data": settings.data.model_copy(update={"prepared": beside / prepared})})


def build_settings(values: dict[str, Any], overrides: Sequence[str] = (), where: str = "settings") -> Settings:
    """Checks nested values (as TOML gives them) after applying overrides."""
    try:
        return Settings.model_validate(apply_overrides(values, overrides))
    except ValidationError as error:
        raise UsageError(f"{where}: {first_problem(error, Settings)}") from None


def dump_settings(settings: Settings, provenance: dict[str, Any] | None = None) -> str:
    """The settings as TOML, every default spelled out; keys that are not set are left out."""
    tables = settings.model_dump(mode="json", exclude_none=True)
    return dump_toml(tables | ({PROVENANCE: provenance} if provenance else {}))


def known_settings() -> list[str]:
    """Every `section.key` that may be set."""
    return [key for key in known_keys(Settings) if key.count(".") == 1]


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The values with each `section.key=value` set; the given ones stay as they are."""
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
