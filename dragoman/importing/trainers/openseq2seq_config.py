"""Reads the configuration that OpenSeq2Seq prints into its log; no code in it is run."""

import re
from pathlib import PurePosixPath
from typing import Any

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import clean_text
from dragoman.run.records import LARGEST_NUMBER

MAX_CHARACTERS = 200_000
MAX_DEPTH = 20
_MAX_OTHER_LINES = 50
"""After this many lines of other processes in a row the dict counts as ended."""
_MAX_NAME_CHARACTERS = 300

_CLOSING = {"{": "}", "[": "]", "(": ")"}
_CONSTANTS: dict[str, Any] = {"True": True, "False": False, "None": None}
_QUOTED_NAME = re.compile(r"'([^']*)'")
# A string or an object that is not closed ends with its line, so that no line is searched twice.
_TOKEN = re.compile(
    r"[bBuUrR]{0,2}(?:"
    r"'(?P<single>(?:[^'\\\n]|\\[^\n])*+)(?:'|\\?$)"
    r"|\"(?P<double>(?:[^\"\\\n]|\\[^\n])*+)(?:\"|\\?$))"
    r"|<(?P<object>(?:[^<>\n]|<[^<>\n]*+>)*+)>?"
    r"|(?P<word>[-+]?[\w.][\w.+-]*)"
    r"|(?P<sign>[{}\[\](),:])",
    re.MULTILINE,
)


def parse_printed_dict(text: str) -> dict[str, Any]:
    """Parses the first dict of the text; returns an empty one if there is none."""
    start = text.find("{", 0, MAX_CHARACTERS)
    if start < 0:
        return {}
    value = _Parser(text[start:MAX_CHARACTERS]).parse_value(0)
    return value if isinstance(value, dict) else {}


class ConfigCollector:
    """Collects the lines of one printed dict from the lines after its heading."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._num_characters = 0
        self._num_other_lines = 0
        self.is_open = True

    def add(self, line: str) -> bool:
        """Adds a line; returns whether it belongs to the dict. The last line closes the collector."""
        if not line.startswith(("{", " ", "'", '"', "}")):
            self._num_other_lines += 1
            self.is_open = self._num_other_lines <= _MAX_OTHER_LINES
            return False
        self._num_other_lines = 0
        self._lines.append(line)
        self._num_characters += len(line)
        for token in _TOKEN.finditer(line):
            self._depth += (token["sign"] in _CLOSING) - (token["sign"] in _CLOSING.values())
        self.is_open = self._depth > 0 and self._num_characters <= MAX_CHARACTERS
        return True

    def parse(self) -> dict[str, Any]:
        """Parses the lines collected so far."""
        return parse_printed_dict("\n".join(self._lines))


class _Parser:
    """Parses a text in one pass; every call moves forward, so the time is bounded by the length of the text."""

    def __init__(self, text: str) -> None:
        self._tokens = [(token.lastgroup, token[token.lastgroup or 0]) for token in _TOKEN.finditer(text)]
        self._at = 0

    def parse_value(self, depth: int) -> Any:
        """Parses the value that begins here; returns None at the end of the text and if there is no value."""
        kind, text = self._peek()
        if kind is None or (kind == "sign" and text not in _CLOSING):
            return None
        self._at += 1
        match kind:
            case "sign":
                return self._skip_to(_CLOSING[text]) if depth >= MAX_DEPTH else self._parse_items(text, depth + 1)
            case "object":
                return _object_name(text[:_MAX_NAME_CHARACTERS])
            case "word":
                return self._parse_word(text, depth)
            case _:
                return self._parse_strings(text)

    def _parse_items(self, opening: str, depth: int) -> Any:
        """Parses the inside of brackets into a dict or a list."""
        pairs: dict[str, Any] = {}
        items: list[Any] = []
        while (token := self._peek()) not in (("sign", _CLOSING[opening]), (None, "")):
            if token[0] == "sign" and token[1] not in _CLOSING:
                self._at += 1
                continue
            value = self.parse_value(depth)
            if opening == "{" and self._peek() == ("sign", ":"):
                self._at += 1
                pairs[str(value)] = self.parse_value(depth)
            else:
                items.append(value)
        self._at += 1
        return pairs if opening == "{" and (pairs or not items) else items

    def _parse_strings(self, text: str) -> str:
        """Parses a string, or several in a row: Python prints a long string that way."""
        while self._peek()[0] in ("single", "double"):
            text += self._peek()[1]
            self._at += 1
        return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text, flags=re.DOTALL)

    def _parse_word(self, word: str, depth: int) -> Any:
        """Parses a number, a constant or a call; only calls that make a dict keep their arguments."""
        if self._peek() != ("sign", "(") or depth >= MAX_DEPTH:
            return _plain_value(word)
        self._at += 1
        arguments = self._parse_items("(", depth + 1)
        return _as_dict(arguments) if word.lower().endswith("dict") else word[:_MAX_NAME_CHARACTERS]

    def _skip_to(self, closing: str) -> None:
        while self._peek() not in (("sign", closing), (None, "")):
            self._at += 1
        self._at += 1

    def _peek(self) -> tuple[str | None, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else (None, "")


def _object_name(text: str) -> str:
    """Returns a.B for `<class 'a.B'>`, f for `<function f at 0x7f>` and float32 for `<dtype: 'float32'>`."""
    if quoted := _QUOTED_NAME.search(text):
        return quoted[1]
    words = text.split()
    return words[1] if len(words) > 1 and words[0] in ("function", "class") else text


def _plain_value(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    for number in (int, float):
        try:
            value = number(word)
        except ValueError:
            continue
        if abs(value) <= LARGEST_NUMBER:
            return value
    return word[:_MAX_NAME_CHARACTERS]


def _as_dict(arguments: Any) -> dict[str, Any]:
    """Makes a dict from the arguments of OrderedDict([('a', 1), …]) or defaultdict(<class 'int'>, {…})."""
    for argument in arguments if isinstance(arguments, list) else ():
        if isinstance(argument, dict):
            return argument
        if isinstance(argument, list):
            return {str(pair[0]): pair[1] for pair in argument if isinstance(pair, list) and len(pair) == 2}
    return {}


_SCHEDULES = {
    "transformer_policy": "transformer",
    "fixed_lr": "fixed",
    "piecewise_constant": "piecewise_constant",
    "exp_decay": "exponential",
    "poly_decay": "polynomial",
    "cosine_decay": "cosine",
    "inv_poly_decay": "inverse_polynomial",
}
_PRECISIONS = {"mixed": "mixed", "float32": "fp32", "float16": "fp16"}
_SMOOTHED_CROSS_ENTROPY = "PaddedCrossEntropyLossWithSmoothing"
_LONGEST_LANGUAGE_NAME = 3

NO_LOSS_SCALING = (
    "Mixed precision was used without loss_scaling, so gradients may overflow to NaN or vanish: set loss_scaling to "
    "'Backoff'."
)
_NO_CHECKPOINTS = (
    "Checkpoints were planned every {every:,} of {planned:,} steps, so a run that is killed keeps only its best_models "
    "folder: set save_checkpoint_steps to a few thousand."
)


def apply_training_config(config: dict[str, Any], run: ImportedRun) -> None:
    """Adds the facts and settings of the training configuration."""
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
        run.note(_NO_CHECKPOINTS.format(every=every, planned=planned))


def apply_evaluation_config(config: dict[str, Any], run: ImportedRun) -> None:
    """Adds the files of the dev set from the evaluation configuration."""
    run.printed_config["evaluation"] = config
    if files := _files(config):
        run.facts["dev_files"] = files


def _add_facts(config: dict[str, Any], run: ImportedRun) -> None:
    encoder, decoder = _table(config, "encoder_params"), _table(config, "decoder_params")
    files = _files(config)
    is_per_token = str(config.get("loss", "")).endswith(_SMOOTHED_CROSS_ENTROPY)
    facts = {
        "batch_sentences_per_rank": _count(config, "batch_size_per_gpu"),
        "accumulation": _count(config, "iter_size"),
        "steps_planned": _count(config, "max_steps"),
        "evaluate_every": _count(config, "eval_steps"),
        "log_every": _count(config, "print_loss_steps"),
        "checkpoint_folder": _text(config, "logdir"),
        "precision": _PRECISIONS.get(str(config.get("dtype")).removesuffix("_ref")),
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
    if policy not in _SCHEDULES or rate is None:
        return {}
    settings = {"schedule": _SCHEDULES[policy], "maximum_learning_rate": _number(parameters, "max_lr")}
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
    """Corrects the learning rate if the schedule has another width than the model: dragoman uses one for both."""
    coefficient = _number(parameters, "coefficient") or 1.0
    schedule_width, width = _count(parameters, "d_model"), facts.get("width")
    return float(coefficient * (width / schedule_width) ** 0.5) if schedule_width and width else coefficient


def _files(config: dict[str, Any]) -> dict[str, str]:
    layer = _table(config, "data_layer_params")
    files = {"source": _text(layer, "source_file"), "target": _text(layer, "target_file")}
    return {side: name for side, name in files.items() if name}


def _languages(files: dict[str, str]) -> dict[str, str]:
    """Reads the languages from two file names that differ only in the language, e.g. train.clean.en.tok."""
    parts = [PurePosixPath(files.get(side, "")).name.split(".") for side in ("source", "target")]
    different = [pair for pair in zip(*parts, strict=False) if pair[0] != pair[1]]
    if len(different) != 1 or not all(_is_language(name) for name in different[0]):
        return {}
    return {"source_language": different[0][0], "target_language": different[0][1]}


def _is_language(name: str) -> bool:
    # .src and .ref are sides, not languages.
    return 1 < len(name) <= _LONGEST_LANGUAGE_NAME and name.isalpha() and name not in ("src", "ref", "trg", "tgt")


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
