"""What the printed configuration of OpenSeq2Seq says, as facts and as settings of ours."""

from pathlib import PurePosixPath
from typing import Any

from dragoman.diagnosis.importing.foreign_run import LARGEST_NUMBER, ForeignRun
from dragoman.diagnosis.importing.log_text import clean_text

SCHEDULES = {
    "transformer_policy": "transformer",
    "fixed_lr": "fixed",
    "piecewise_constant": "piecewise_constant",
    "exp_decay": "exponential",
    "poly_decay": "polynomial",
    "cosine_decay": "cosine",
    "inv_poly_decay": "inverse_polynomial",
}
PRECISIONS = {"mixed": "mixed", "float32": "fp32", "float16": "fp16"}
SMOOTHED_CROSS_ENTROPY = "PaddedCrossEntropyLossWithSmoothing"
LONGEST_LANGUAGE_NAME = 3

NO_LOSS_SCALING = (
    "Mixed precision was used without loss_scaling: nothing guards against gradients that overflow to NaN or vanish. "
    "Set loss_scaling to 'Backoff'."
)
NO_CHECKPOINTS = (
    "Checkpoints were planned every {every:,} of {planned:,} steps: a run that is killed keeps nothing but its "
    "best_models folder. Set save_checkpoint_steps to a few thousand."
)


def apply_training_config(config: dict[str, Any], run: ForeignRun) -> None:
    """Takes over what the training configuration is certain about."""
    run.printed_config["training"] = config
    _add_facts(config, run)
    for table, settings in _settings(config, run.facts).items():
        known = {name: value for name, value in settings.items() if value is not None}
        if known:
            run.settings.setdefault(table, {}).update(known)
    if run.facts.get("precision") == "mixed" and "loss_scaling" not in config:
        run.facts["loss_scaling"] = "none"
        run.note(NO_LOSS_SCALING)
    every, planned = _count(config, "save_checkpoint_steps"), _count(config, "max_steps")
    if every and planned and every > planned / 2:
        run.note(NO_CHECKPOINTS.format(every=every, planned=planned))


def apply_evaluation_config(config: dict[str, Any], run: ForeignRun) -> None:
    """Takes over which files the model is judged on."""
    run.printed_config["evaluation"] = config
    if files := _files(config):
        run.facts["dev_files"] = files


def _add_facts(config: dict[str, Any], run: ForeignRun) -> None:
    encoder, decoder = _table(config, "encoder_params"), _table(config, "decoder_params")
    files = _files(config)
    is_per_token = str(config.get("loss", "")).endswith(SMOOTHED_CROSS_ENTROPY)
    facts = {
        "batch_sentences_per_rank": _count(config, "batch_size_per_gpu"),
        "accumulation": _count(config, "iter_size"),
        "steps_planned": _count(config, "max_steps"),
        "evaluate_every": _count(config, "eval_steps"),
        "log_every": _count(config, "print_loss_steps"),
        "checkpoint_folder": _text(config, "logdir"),
        "precision": PRECISIONS.get(str(config.get("dtype")).removesuffix("_ref")),
        "training_files": files or None,
        "width": _count(encoder, "hidden_size") or _count(decoder, "hidden_size"),
        "encoder_layers": _count(encoder, "encoder_layers"),
        "decoder_layers": _count(decoder, "num_hidden_layers"),
        "feed_forward": _count(encoder, "filter_size"),
        "heads": _count(encoder, "num_heads"),
        "dropout": _number(encoder, "layer_postprocess_dropout"),
        "label_smoothing": _number(_table(config, "loss_params"), "label_smoothing"),
        "loss_unit": "nats per token" if is_per_token else "unknown",
        "num_ranks": None if config.get("use_horovod") else _count(config, "num_gpus"),
    }
    run.facts.update({name: value for name, value in facts.items() if value is not None})
    run.facts.update(_languages(files))


def _settings(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    encoder, decoder = _table(config, "encoder_params"), _table(config, "decoder_params")
    model = {name: facts.get(name) for name in ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers")}
    return {
        "model": model
        | {
            "dropout": facts.get("dropout"),
            "attention_dropout": _number(encoder, "attention_dropout"),
            "relu_dropout": _number(encoder, "relu_dropout"),
        },
        "training": _optimizer_settings(config, facts) | _schedule_settings(config, facts),
        "evaluation": {
            "evaluate_every": facts.get("evaluate_every"),
            "beam_size": _count(decoder, "beam_size"),
            "length_penalty": _number(decoder, "alpha"),
        },
        "checkpoints": {"save_every": _count(config, "save_checkpoint_steps")},
    }


def _optimizer_settings(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    adam = _table(config, "optimizer_params")
    precision = facts.get("precision")
    return {
        "max_steps": facts.get("steps_planned"),
        "log_every": facts.get("log_every"),
        "sample_every": _count(config, "print_samples_steps"),
        "label_smoothing": facts.get("label_smoothing"),
        "precision": "fp16" if precision == "mixed" else precision,
        "clip_norm": _number(config, "max_grad_norm") or 0.0,
        "beta1": _number(adam, "beta1"),
        "beta2": _number(adam, "beta2"),
        "epsilon": _number(adam, "epsilon"),
    }


def _schedule_settings(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    policy = str(config.get("lr_policy", "")).rpartition(".")[2]
    parameters = _table(config, "lr_policy_params")
    rate = _number(parameters, "learning_rate")
    if policy not in SCHEDULES or rate is None:
        return {}
    settings = {"schedule": SCHEDULES[policy], "maximum_learning_rate": _number(parameters, "max_lr")}
    settings["warmup_steps"] = _count(parameters, "warmup_steps") or 0
    if policy == "transformer_policy":
        return settings | {"learning_rate": rate * _transformer_factor(parameters, facts)}
    return settings | {
        "learning_rate": rate,
        "decay_steps": _count(parameters, "decay_steps"),
        "decay_rate": _number(parameters, "decay_rate"),
        "decay_power": _number(parameters, "power"),
        "minimum_learning_rate": _number(parameters, "min_lr"),
        "boundaries": _numbers(parameters, "boundaries"),
        "multipliers": _numbers(parameters, "decay_rates"),
    }


def _transformer_factor(parameters: dict[str, Any], facts: dict[str, Any]) -> float:
    """Their width of the schedule may differ from that of the model; ours is one and the same."""
    coefficient = _number(parameters, "coefficient") or 1.0
    schedule_width, width = _count(parameters, "d_model"), facts.get("width")
    return float(coefficient * (width / schedule_width) ** 0.5) if schedule_width and width else coefficient


def _files(config: dict[str, Any]) -> dict[str, str]:
    layer = _table(config, "data_layer_params")
    files = {"source": _text(layer, "source_file"), "target": _text(layer, "target_file")}
    return {side: name for side, name in files.items() if name}


def _languages(files: dict[str, str]) -> dict[str, str]:
    """From two file names that differ in the names of the languages only, e.g. train.clean.en.tok."""
    parts = [PurePosixPath(files.get(side, "")).name.split(".") for side in ("source", "target")]
    different = [pair for pair in zip(*parts, strict=False) if pair[0] != pair[1]]
    if len(different) != 1 or not all(_is_language(name) for name in different[0]):
        return {}
    return {"source_language": different[0][0], "target_language": different[0][1]}


def _is_language(name: str) -> bool:
    # .src and .ref name the sides, not languages.
    return 1 < len(name) <= LONGEST_LANGUAGE_NAME and name.isalpha() and name not in ("src", "ref", "trg", "tgt")


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _text(config: dict[str, Any], name: str) -> str | None:
    value = config.get(name)
    return clean_text(value) if isinstance(value, str) and value else None


def _number(config: dict[str, Any], name: str) -> float | None:
    value = config.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST_NUMBER
    return float(value) if is_number and value is not None else None


def _count(config: dict[str, Any], name: str) -> int | None:
    value = _number(config, name)
    return int(value) if value is not None and value >= 1 and value == int(value) else None


def _numbers(config: dict[str, Any], name: str) -> list[float] | None:
    values = config.get(name)
    is_list = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    return values if is_list else None
