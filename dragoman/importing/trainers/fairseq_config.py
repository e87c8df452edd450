"""Reads the configuration that fairseq prints when it starts: Namespace(...), or a nested dict since 0.10."""

import re
from typing import Any

from dragoman.importing.imported_run import ImportedRun, transformer_schedule
from dragoman.importing.log_text import NUMBER

_MAX_CONFIG_KEYS = 2_000
_SETTING = re.compile(
    rf"(\w{{1,60}}+)'?(?:=|: )(?:\{{'_name': )?(?:'([^']{{0,500}})'|\[?({NUMBER})(?![\w.])|(True|False))", re.ASCII
)
_BETAS = re.compile(rf"\(? *({NUMBER}), *({NUMBER})", re.ASCII)

_MODEL_NAMES = {
    "encoder_embed_dim": "width",
    "encoder_ffn_embed_dim": "feed_forward",
    "encoder_attention_heads": "heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "relu_dropout",
}
_TRAINING_NAMES = {
    "label_smoothing": "label_smoothing",
    "clip_norm": "clip_norm",
    "adam_eps": "epsilon",
    "weight_decay": "weight_decay",
    "log_interval": "log_every",
}
_TEXT_FACTS = {
    "source_lang": "source_language",
    "target_lang": "target_language",
    "save_dir": "checkpoint_folder",
    "best_checkpoint_metric": "metric",
}
_SCHEDULES = {"fixed": "fixed", "polynomial_decay": "polynomial", "cosine": "cosine"}


def is_training_config(text: str) -> bool:
    """Whether the text is the configuration of a training, not of fairseq-preprocess or fairseq-generate."""
    return ("Namespace(" in text or text.startswith("{'_name'")) and "max_update" in text


def read_config(text: str) -> dict[str, Any]:
    """Returns the settings, flat; the first value of a name that is not None counts."""
    config: dict[str, Any] = {}
    for name, words, number, truth in _SETTING.findall(text):
        if name in config or len(config) >= _MAX_CONFIG_KEYS:
            continue
        config[name] = _plain_number(number) if number else truth == "True" if truth else words
    return config


def _plain_number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def add_config(run: ImportedRun, config: dict[str, Any]) -> None:
    """Adds the settings and facts that a configuration holds."""
    numbers = {name: value for name, value in config.items() if type(value) in (int, float)}
    for name, fact in _TEXT_FACTS.items():
        if isinstance(config.get(name), str):
            run.facts[fact] = config[name]
    for name, fact in {"distributed_world_size": "num_ranks", "update_freq": "accumulation"}.items():
        if isinstance(numbers.get(name), int):
            run.facts[fact] = config[name]
    for name, fact in {"max_epoch": "epochs_planned", "warmup_updates": "warmup_steps"}.items():
        if 0 < numbers.get(name, 0) < 1e9:
            run.facts[fact] = numbers[name]
    run.facts["precision"] = _precision(config)
    if config.get("eval_bleu") is True:
        run.facts["bleu_kind"] = _bleu_kind(config)
    _add_settings(run, config, numbers)


def _add_settings(run: ImportedRun, config: dict[str, Any], numbers: dict[str, float]) -> None:
    betas = _BETAS.match(str(config.get("adam_betas", "")))
    run.add_settings("model", **{ours: numbers.get(theirs) for theirs, ours in _MODEL_NAMES.items()})
    run.add_settings("training", **{ours: numbers.get(theirs) for theirs, ours in _TRAINING_NAMES.items()})
    run.add_settings(
        "training",
        max_steps=numbers.get("max_update") or None,
        precision=_precision(config),
        beta1=float(betas[1]) if betas else None,
        beta2=float(betas[2]) if betas else None,
    )
    run.add_settings("training", **_schedule(config, numbers))
    every = numbers.get("validate_interval_updates") or numbers.get("save_interval_updates")
    run.add_settings("evaluation", evaluate_every=every or None)


def _schedule(config: dict[str, Any], numbers: dict[str, float]) -> dict[str, Any]:
    rate, warmup, width = (numbers.get(name) for name in ("lr", "warmup_updates", "encoder_embed_dim"))
    name = config.get("lr_scheduler")
    if rate and name == "inverse_sqrt" and warmup and warmup > 0 and width and width > 0:
        return transformer_schedule(rate, width, warmup)
    if rate and name in _SCHEDULES:
        return {"schedule": _SCHEDULES[name], "warmup_steps": warmup, "learning_rate": rate}
    return {}


def _precision(config: dict[str, Any]) -> str:
    if config.get("bf16") is True or config.get("memory_efficient_bf16") is True:
        return "bf16"
    return "fp16" if config.get("fp16") is True or config.get("memory_efficient_fp16") is True else "fp32"


def _bleu_kind(config: dict[str, Any]) -> str:
    if config.get("eval_tokenized_bleu") is True:
        return "tokenised"
    return "detokenised" if config.get("eval_bleu_detok") == "moses" else "unknown"
