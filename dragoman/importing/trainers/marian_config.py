"""Reads the configuration that Marian prints as [config] lines, and translates it."""

import re
from pathlib import PurePosixPath
from typing import Any

from dragoman.importing.imported_run import ImportedRun, transformer_schedule
from dragoman.importing.log_text import parse_number

_MAX_CONFIG_KEYS = 1_000
_MAX_LIST_ITEMS = 50
_AMOUNT = re.compile(r"(\d{1,15}(?:,\d{3}){0,6}(?:\.\d{1,15})?)([kKMGT]?)([ute]?)", re.ASCII)
_FACTORS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class ConfigReader:
    """Reads lines of YAML into the printed configuration of a run."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._list_name = ""

    def read(self, text: str) -> None:
        """Reads "key: value", "key:", or an item of the key before it."""
        if text.startswith("  "):
            items, item = self._config.get(self._list_name), text.strip()
            if isinstance(items, list) and item.startswith("- ") and len(items) < _MAX_LIST_ITEMS:
                items.append(item.removeprefix("- ").strip('"')[:500])
            return
        name, colon, value = text.partition(":")
        if not colon or " " in name or (name not in self._config and len(self._config) >= _MAX_CONFIG_KEYS):
            return
        self._list_name = name
        self._config[name] = value.strip().strip('"')[:500] if value.strip() else []


def parse_amount(value: Any) -> tuple[float, str] | None:
    """Reads an amount with its unit: updates (u, the default), target labels (t) or epochs (e), e.g. "300Ku"."""
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    return float(match[1].replace(",", "")) * _FACTORS[match[2]], match[3] or "u"


def num_updates(value: Any) -> int | None:
    """Returns a number of updates, also from "5000u"; None for epochs and labels ("5e", "1Mt")."""
    amount = parse_amount(value)
    return int(amount[0]) if amount and amount[1] == "u" and amount[0] <= 1e15 else None


def planned_amounts(config: dict[str, Any]) -> dict[str, float]:
    """Returns when the training is to end, by unit: updates (u), target labels (t) or epochs (e)."""
    plan: dict[str, float] = {}
    after = str(config.get("after", ""))
    for part in (*after.split(","), f"{config.get('after-batches', 0)}u", f"{config.get('after-epochs', 0)}e"):
        amount = parse_amount(part)
        if amount and amount[0] > 0:
            plan[amount[1]] = min(amount[0], plan.get(amount[1], amount[0]))
    return plan


def list_of(value: Any) -> list[str]:
    """Returns the items of a list; a single value is a list of one."""
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, str) and value else []


def add_config(run: ImportedRun) -> None:
    """Adds the facts and settings of the printed configuration."""
    _add_facts(run, run.printed_config)
    _add_settings(run, run.printed_config)


def _add_facts(run: ImportedRun, config: dict[str, Any]) -> None:
    for name, fact in {"train-sets": "training_files", "valid-sets": "dev_files"}.items():
        files = config.get(name)
        if isinstance(files, list) and len(files) == 2:
            run.facts[fact] = {"source": files[0], "target": files[1]}
    if isinstance(config.get("model"), str):
        run.facts["checkpoint_folder"] = str(PurePosixPath(config["model"]).parent)
    if (delay := num_updates(config.get("optimizer-delay"))) is not None:
        run.facts["accumulation"] = delay
    if warmup := num_updates(config.get("lr-warmup")):
        run.facts["warmup_steps"] = warmup
    precision = _first(config.get("precision"))
    if precision in ("float16", "float32"):
        run.facts["precision"] = "mixed" if precision == "float16" else "fp32"
        run.add_settings("training", precision="fp16" if precision == "float16" else "fp32")


def _add_settings(run: ImportedRun, config: dict[str, Any]) -> None:
    if config.get("type") == "transformer":
        run.add_settings(
            "model",
            width=num_updates(config.get("dim-emb")),
            feed_forward=num_updates(config.get("transformer-dim-ffn")),
            heads=num_updates(config.get("transformer-heads")),
            encoder_layers=num_updates(config.get("enc-depth")),
            decoder_layers=num_updates(config.get("dec-depth")),
            dropout=_fraction(config.get("transformer-dropout")),
            attention_dropout=_fraction(config.get("transformer-dropout-attention")),
            relu_dropout=_fraction(config.get("transformer-dropout-ffn")),
        )
    adam = config.get("optimizer-params")
    betas = [_fraction(value) for value in adam] if isinstance(adam, list) else []
    run.add_settings(
        "training",
        max_steps=planned_amounts(config).get("u"),
        label_smoothing=_fraction(config.get("label-smoothing")),
        clip_norm=_fraction(config.get("clip-norm")),
        log_every=num_updates(config.get("disp-freq")),
        **dict(zip(("beta1", "beta2", "epsilon"), betas, strict=False)),
        **_schedule(config),
    )
    evaluate_every, beam_size = num_updates(config.get("valid-freq")), num_updates(config.get("beam-size"))
    run.add_settings("evaluation", evaluate_every=evaluate_every, beam_size=beam_size)


def _schedule(config: dict[str, Any]) -> dict[str, Any]:
    """Translates the schedule; warm-up and inverse square root together only if one begins where the other ends."""
    rate, width = _fraction(config.get("learn-rate")), num_updates(config.get("dim-emb"))
    warmup, decay_from = num_updates(config.get("lr-warmup")), num_updates(_first(config.get("lr-decay-inv-sqrt")))
    if rate and width and warmup and warmup == decay_from:
        return transformer_schedule(rate, width, warmup)
    if rate and not decay_from and _fraction(config.get("lr-decay")) == 0:
        return {"schedule": "fixed", "warmup_steps": warmup, "learning_rate": rate}
    return {}


def _first(value: Any) -> Any:
    if isinstance(value, list):
        return value[0] if value else None
    return value


def _fraction(value: Any) -> float | None:
    return parse_number(value) if isinstance(value, str) else None
