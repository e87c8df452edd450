"""Chooses settings for a corpus by its size and by the machine, and explains each choice."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.tables import dump_toml


@dataclass(frozen=True)
class Machine:
    """Properties of the machine that settings depend on."""

    num_cores: int
    num_gpus: int
    num_workers: int = 1
    """Worker processes the user asked for."""
    has_other_hosts: bool = False
    """Whether steps wait for a network between machines."""

    def __str__(self) -> str:
        if self.num_gpus:
            return f"{self.num_gpus} GPU{'s' if self.num_gpus > 1 else ''}"
        return f"{self.num_cores} CPU core{'s' if self.num_cores > 1 else ''}"


@dataclass(frozen=True)
class CorpusSize:
    """Properties of the corpus that settings depend on."""

    num_pairs: int
    num_target_tokens: int

    @classmethod
    def of(cls, corpus: PreparedCorpus) -> "CorpusSize":
        """Returns the size of the training split."""
        train = corpus.manifest.splits["train"]
        return cls(train.num_pairs, train.target.num_tokens + train.num_pairs)


@dataclass(frozen=True)
class Choice:
    """Settings with the reason for choosing them."""

    values: dict[str, dict[str, Any]]
    reason: str


Tables = dict[str, dict[str, Any]]


def choose_settings(
    size: CorpusSize, machine: Machine, prepared: Path, asked: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[Tables, list[str]]:
    """Returns settings as tables of a TOML file, and one reason per choice; what the user asked for comes first."""
    model, training = asked.get("model", {}), asked.get("training", {})
    choices = [_choose_model(size, machine, model)]
    preset = choices[0].values["model"]["preset"]
    choices.append(_choose_growing_batch(size, machine, training))
    choices.append(_choose_steps(size, choices[-1].values["training"], training))
    choices.append(_choose_schedule(preset, choices[-1].values["training"]["max_steps"], training))
    choices.append(_choose_precision(training))
    return _join(choices, prepared, asked)


def _join(choices: list[Choice], prepared: Path, asked: Mapping[str, Mapping[str, Any]]) -> tuple[Tables, list[str]]:
    tables: Tables = {"data": {"prepared": str(prepared)}}
    for values in [*(choice.values for choice in choices), asked]:
        for section, table in values.items():
            tables.setdefault(section, {}).update(table)
    return tables, [choice.reason for choice in choices]


_FINE_TUNING_SHARE = 0.2
"""Peak learning rate of fine-tuning, as a share of the peak that the weights were trained with."""
_FINE_TUNING_PATIENCE = 4


def choose_fine_tuning(
    size: CorpusSize,
    machine: Machine,
    prepared: Path,
    start: str,
    peak_rate: float,
    asked: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[Tables, list[str]]:
    """Returns settings to continue with other text from the weights that `start` names, and the reasons for them."""
    training = asked.get("training", {})
    choices = [
        Choice(
            {"training": {"start_from": start}, "evaluation": {"evaluate_at_start": True}},
            f"Model, vocabulary and weights of {start}; it is evaluated before the first step too, to show the gain.",
        ),
        _choose_batch(size, machine, training),
    ]
    batch_tokens = choices[-1].values["training"]["global_batch_tokens"]
    choices.append(_choose_fine_tuning_steps(size, batch_tokens, training, asked.get("evaluation", {})))
    choices.append(_choose_fine_tuning_rate(peak_rate, choices[-1].values["training"]["max_steps"], training))
    choices.append(_choose_precision(training))
    return _join(choices, prepared, asked)


def _choose_fine_tuning_steps(
    size: CorpusSize, batch_tokens: int, asked: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> Choice:
    epochs = 10 if size.num_pairs < 20_000 else 5 if size.num_pairs < 200_000 else 2
    steps = asked.get("max_steps", min(20_000, max(100, epochs * size.num_target_tokens // batch_tokens)))
    interval = max(10, steps // 10)
    patience = evaluation.get("patience", _FINE_TUNING_PATIENCE)
    return Choice(
        {
            "training": {"max_steps": steps, "log_every": max(5, min(50, interval // 5)), "sample_every": interval},
            "evaluation": {"evaluate_every": interval, "patience": patience},
            "checkpoints": {"save_every": interval},
        },
        f"At most {steps:,} steps, about {steps * batch_tokens / size.num_target_tokens:.0f} epochs; evaluated on the "
        f"dev set every {interval:,} steps, and ended after {patience} evaluations without a better score.",
    )


def _choose_fine_tuning_rate(peak_rate: float, steps: int, asked: Mapping[str, Any]) -> Choice:
    rate = asked.get("learning_rate", float(f"{_FINE_TUNING_SHARE * peak_rate:.2g}"))
    warmup = asked.get("warmup_steps", max(1, min(100, steps // 10)))
    return Choice(
        {"training": {"schedule": "cosine", "learning_rate": rate, "warmup_steps": warmup, "beta2": 0.98}},
        f"Learning rate {rate:g} (the weights were trained with {peak_rate:.2g}), so that little is forgotten; reached "
        f"after {warmup:,} steps, then falling to 0 along a cosine.",
    )


def _choose_model(size: CorpusSize, machine: Machine, asked: Mapping[str, Any]) -> Choice:
    preset = "tiny" if size.num_pairs < 5_000 else "small"
    if machine.num_gpus and size.num_pairs >= 100_000:
        preset = "transformer-base"
    preset = asked.get("preset", preset)
    dropout = 0.3 if size.num_pairs < 20_000 else 0.2 if size.num_pairs < 200_000 else 0.1
    dropout = asked.get("dropout", dropout)
    return Choice(
        {"model": {"preset": preset, "dropout": dropout}},
        f"Model {preset} with dropout {dropout}: {size.num_pairs:,} training pairs on {machine}.",
    )


def _choose_batch(size: CorpusSize, machine: Machine, asked: Mapping[str, Any]) -> Choice:
    tokens = 2_048 if size.num_pairs < 5_000 else 4_096 if size.num_pairs < 100_000 else 8_192
    if machine.num_gpus and size.num_pairs >= 100_000:
        tokens = 32_768
    tokens = asked.get("global_batch_tokens", tokens)
    virtual_workers = max(4, machine.num_gpus, machine.num_workers)
    return Choice(
        {"training": {"global_batch_tokens": tokens, "virtual_workers": virtual_workers}},
        f"Batches of {tokens:,} tokens: about {max(1, size.num_target_tokens // tokens):,} steps per epoch.",
    )


_FIRST_BATCH_TOKENS = 1_024
_FIRST_SLICE_TOKENS = 256
"""Tokens of a virtual worker at first: as many as the longest sentence may have."""
_SMALLEST_GROWTH = 2
_GROWING_SHARE = 0.6
"""Share of all text that is read while batches still grow."""


def _choose_growing_batch(size: CorpusSize, machine: Machine, asked: Mapping[str, Any]) -> Choice:
    """Lets batches begin small where a small step takes little more time per token than a large one."""
    full = _choose_batch(size, machine, asked)
    tokens, num_slices = (full.values["training"][name] for name in ("global_batch_tokens", "virtual_workers"))
    smallest = max(_FIRST_BATCH_TOKENS, _FIRST_SLICE_TOKENS * asked.get("virtual_workers", num_slices))
    is_worth_it = not machine.num_gpus and not machine.has_other_hosts and tokens >= _SMALLEST_GROWTH * smallest
    first = asked.get("initial_batch_tokens", smallest if is_worth_it else 0)
    if not 0 < first < tokens:
        return full
    return Choice(
        {"training": full.values["training"] | {"initial_batch_tokens": first}},
        f"Batches of {first:,} tokens at first, which grow to {tokens:,} (then about "
        f"{max(1, size.num_target_tokens // tokens):,} steps per epoch): early in training, many small updates teach "
        "more than a few exact ones.",
    )


def _choose_steps(size: CorpusSize, batch: Mapping[str, Any], asked: Mapping[str, Any]) -> Choice:
    """Chooses a number of epochs, as steps of full size, and the growth of the batch with it."""
    tokens, epochs = batch["global_batch_tokens"], 40 if size.num_pairs < 20_000 else 20
    if size.num_pairs >= 200_000:
        epochs = 8
    full_steps = min(100_000, max(300, epochs * size.num_target_tokens // tokens))
    growth = _plan_growth(batch, full_steps, asked)
    steps = asked.get("max_steps", growth.steps_within(full_steps))
    num_epochs = growth.full_steps(0, steps) * tokens / size.num_target_tokens
    interval = max(50, steps // 10)
    training = {"max_steps": steps, "log_every": max(10, min(50, interval // 5)), "sample_every": interval}
    growing = ""
    if growth.full_from_step:
        training["batch_doubling_steps"] = growth.doubling_steps
        is_once = growth.full_from_step == growth.doubling_steps
        when = "after" if is_once else f"every {growth.doubling_steps:,} steps until"
        growing = f"; batches {'grow' if is_once else 'double'} {when} step {growth.full_from_step:,}"
    return Choice(
        {
            "training": training,
            "evaluation": {"evaluate_every": interval},
            "checkpoints": {"save_every": interval},
        },
        f"{steps:,} steps, about {num_epochs:.0f} epochs{growing}; "
        f"evaluated on the dev set and saved every {interval:,} steps; the best checkpoint is kept.",
    )


def _plan_growth(batch: Mapping[str, Any], full_steps: int, asked: Mapping[str, Any]) -> BatchGrowth:
    """Returns a growth that ends when `_GROWING_SHARE` of the text is read, of all steps or of those asked for."""
    tokens = batch["global_batch_tokens"]
    growth = BatchGrowth(min(batch.get("initial_batch_tokens") or tokens, tokens), tokens)
    num_doublings = growth.full_from_step
    if not num_doublings:
        return growth
    full_steps_growing = growth.full_steps(0, num_doublings)  # with one step of each size
    if "max_steps" in asked:
        later_steps = full_steps_growing * (1 - _GROWING_SHARE) / _GROWING_SHARE
        doubling_steps = asked["max_steps"] / (num_doublings + later_steps)
    else:
        doubling_steps = _GROWING_SHARE * full_steps / full_steps_growing
    chosen = max(1, round(doubling_steps))
    return replace(growth, doubling_steps=asked.get("batch_doubling_steps", chosen))


def _choose_schedule(preset: str, steps: int, asked: Mapping[str, Any]) -> Choice:
    rate = asked.get("learning_rate", {"tiny": 3e-3, "small": 2e-3}.get(preset, 7e-4))
    warmup = asked.get("warmup_steps", min(4_000, max(50, steps // 20), max(1, steps // 3)))
    return Choice(
        {"training": {"schedule": "cosine", "learning_rate": rate, "warmup_steps": warmup, "beta2": 0.98}},
        f"Learning rate {rate:g}, reached after {warmup:,} steps, then falling to 0 along a cosine by the last step.",
    )


def _choose_precision(asked: Mapping[str, Any]) -> Choice:
    precision = asked.get("precision", "auto")
    why = "bf16 where this machine multiplies it much faster than fp32" if precision == "auto" else "as asked for"
    return Choice({"training": {"precision": precision}}, f"Precision {precision}: {why}.")


def describe_choices(tables: dict[str, dict[str, Any]], reasons: list[str]) -> str:
    """Returns the chosen settings as a config file to copy and edit."""
    head = ["# Chosen by `dragoman train --source … --target …`; copy and edit, then: dragoman train COPY.toml"]
    return "\n".join(head + [f"# {reason}" for reason in reasons]) + "\n\n" + dump_toml(tables)
