"""Reads logs of fairseq 0.9 to 0.12 in its simple, tqdm and json formats."""

import math
import re
from collections import Counter
from typing import Any

from dragoman.importing.imported_run import STEP_BACK, ImportedRun, transformer_schedule
from dragoman.importing.log_text import COUNT, NUMBER, is_usable, parse_count, parse_time

TRAINER = "fairseq"

_MAX_CONFIG_KEYS = 2_000
_MAX_RANKS = 10_000
_OWN_PARTS = ("| INFO | fairseq", "| INFO | train_inner |", "| valid on '", "| done training in ", "| model params:")
# Possessive quantifiers (+): three times as fast, and no backtracking over long words.
_FIGURE = re.compile(rf'(\w{{1,40}}+)(?:=|": "?| )({NUMBER})(?![\w.])', re.ASCII)
_SUBSET = re.compile(r"valid on '([^']{1,100})' subset")
_SETTING = re.compile(
    rf"(\w{{1,60}}+)'?(?:=|: )(?:\{{'_name': )?(?:'([^']{{0,500}})'|\[?({NUMBER})(?![\w.])|(True|False))", re.ASCII
)
_CHECKPOINT = re.compile(r"(?<!\S)(\S{1,500}) \(epoch \d{1,9} @ (\d{1,15}) updates", re.ASCII)
_WRITING = re.compile(rf"writing took ({NUMBER}) s", re.ASCII)
_PARAMETERS = re.compile(rf"model params: ({COUNT})", re.ASCII)
_DEVICES = re.compile(r"training on (\d{1,7}) (?:devices|GPUs)", re.ASCII)
_BATCH = re.compile(r"max tokens per \w+ = (\d{1,12}|None) and max sentences per \w+ = (\d{1,12}|None)", re.ASCII)
_HOST = re.compile(r"initialized host (\S{1,255}) as rank (\d{1,7})", re.ASCII)
_GPU = re.compile(r"rank +\d{1,7}: capabilities .{1,200}; name = (.{1,100})", re.ASCII)
_VOCABULARY = re.compile(r"\] [Dd]ictionary: (\d{1,12}) types", re.ASCII)
_EXAMPLES = re.compile(rf"loaded ({COUNT}) examples from: (\S{{1,1000}})", re.ASCII)
_SECONDS = re.compile(rf"done training in ({NUMBER}) seconds", re.ASCII)
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
_TEXT_FACTS = {"source_lang": "source_language", "target_lang": "target_language", "save_dir": "checkpoint_folder"}
_SCHEDULES = {"fixed": "fixed", "polynomial_decay": "polynomial", "cosine": "cosine"}


def is_own_line(line: str) -> bool:
    """Whether only fairseq writes such a line."""
    return line.startswith("| epoch ") or any(part in line for part in _OWN_PARTS)


class FairseqReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._has_inner_lines = False
        self._subset: str | None = None
        self._evaluation_began: float | None = None
        self._restarted_at: int | None = None
        self._num_overflows = 0
        self._batch_tokens: float | None = None
        self._ranks: set[tuple[str, str]] = set()

    def read(self, line: str) -> None:
        """Reads a line."""
        if "Namespace(" in line or "{'_name'" in line:
            self._read_config(line)
        elif "num_updates" in line:
            self._read_figures(line)
        elif " | INFO | " in line or line.startswith("| "):
            self._read_message(line)

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        run = self._run
        if self._batch_tokens:
            run.facts["batch_tokens"] = round(self._batch_tokens)
        if self._ranks:
            run.facts["ranks_per_host"] = max(Counter(host for host, _ in self._ranks).values())
        if self._num_overflows:
            run.note(
                f"Updates skipped because gradients overflowed in fp16: {self._num_overflows:,}. "
                "A few are normal, many in a row are not."
            )
        run.facts["step_time_includes_evaluation"] = True
        run.note_missing_facts()

    def _read_figures(self, line: str) -> None:
        found = _FIGURE.findall(line, max(0, line.find("epoch")))
        figures = {name: float(text) for name, text in found}
        if "valid on '" in line or "| valid | " in line:
            self._add_evaluation(line, figures)
        elif "loss=" in line or '"loss": ' in line:
            self._has_inner_lines = True
            self._add_train(line, figures)
        elif not self._has_inner_lines:
            # Very short epochs print only their mean.
            self._add_train(line, _without_prefix(figures, "train_"))

    def _add_train(self, line: str, figures: dict[str, float]) -> None:
        step = _step_of(figures)
        if step is None:
            return
        self._watch_for_restart(step)
        loss, nll, words = (figures.get(name) for name in ("loss", "nll_loss", "wpb"))
        if is_usable(loss):
            self._run.facts["loss_unit"] = "nats per token (converted from base 2)"
        self._batch_tokens = words if is_usable(words) else self._batch_tokens
        self._run.add_train(
            step,
            loss=_in_nats(loss),
            nll_loss=_in_nats(nll),
            perplexity=figures.get("ppl"),
            learning_rate=figures.get("lr"),
            gradient_norm=figures.get("gnorm"),
            loss_scale=figures.get("loss_scale"),
            seconds_per_step=_seconds_per_step(figures),
            target_tokens_per_second=figures.get("wps") or None,
            # Some versions always print 0.
            training_seconds=figures.get("wall") or None,
            time=parse_time(line),
        )

    def _add_evaluation(self, line: str, figures: dict[str, float]) -> None:
        figures = _without_prefix(figures, "valid_") if '{"' in line else figures
        step, match = _step_of(figures), _SUBSET.search(line)
        subset = match[1] if match else None
        self._subset = self._subset or subset
        if step is None or subset != (self._subset if match else None):
            if step is not None:
                self._run.note(f"The log evaluates several dev sets; the figures are from {self._subset!r} only.")
            return
        bleu, now = figures.get("bleu"), parse_time(line)
        if bleu is not None:
            self._run.facts.setdefault("bleu_kind", "unknown")
        self._run.add_evaluation(
            step,
            loss=_in_nats(figures.get("loss")),
            nll_loss=_in_nats(figures.get("nll_loss")),
            perplexity=figures.get("ppl"),
            bleu=bleu,
            chrf=figures.get("chrf"),
            accuracy=figures.get("accuracy"),
            seconds=now - self._evaluation_began if now and self._evaluation_began else None,
            time=now,
        )
        self._evaluation_began = None

    def _read_message(self, line: str) -> None:
        facts = self._run.facts
        if "model params: " in line:
            if match := _PARAMETERS.search(line):
                facts["parameters"] = parse_count(match[1])
        elif "training on " in line:
            if match := _DEVICES.search(line):
                facts["num_ranks"] = int(match[1])
        elif "max tokens per " in line:
            if (match := _BATCH.search(line)) and match[2] != "None":
                facts["batch_sentences_per_rank"] = int(match[2])
        elif "begin validation on" in line:
            self._evaluation_began = parse_time(line)
        elif "overflow detected" in line:
            self._num_overflows += 1
        elif "done training in " in line:
            self._read_end(line)
        elif "stopping training" in line or "early stop since" in line:
            self._run.note(f"fairseq stopped the training itself: {line.rpartition(' | ')[2][:200]}.")
        else:
            self._read_place(line)

    def _read_place(self, line: str) -> None:
        """Reads messages about checkpoints, files and machines."""
        if "aved checkpoint " in line or "oaded checkpoint " in line:
            self._read_checkpoint(line)
        elif " examples from: " in line:
            self._read_examples(line)
        elif "ictionary: " in line:
            if match := _VOCABULARY.search(line):
                self._run.facts["vocab_size"] = int(match[1])
        elif "initialized host " in line:
            if match := _HOST.search(line):
                self._run.add_to_fact("hosts", match[1])
                if len(self._ranks) < _MAX_RANKS:
                    self._ranks.add((match[1], match[2]))
        elif "capabilities = " in line and (match := _GPU.search(line)):
            self._run.add_to_fact("gpus", match[1].strip())

    def _read_end(self, line: str) -> None:
        self._run.facts["is_finished"] = True
        if (match := _SECONDS.search(line)) and is_usable(float(match[1])):
            self._run.facts["training_seconds"] = float(match[1])

    def _read_checkpoint(self, line: str) -> None:
        match = _CHECKPOINT.search(line)
        if not match:
            return
        step = int(match[2])
        if "aved checkpoint " in line:
            seconds = _WRITING.search(line)
            self._run.add_checkpoint(
                step, path=match[1], seconds=float(seconds[1]) if seconds else None, time=parse_time(line)
            )
        elif step and step != self._restarted_at:
            self._restarted_at = step
            self._run.add_restart(step, cause=f"continued from {match[1]}", time=parse_time(line))

    def _watch_for_restart(self, step: int) -> None:
        newest = self._run.newest_step
        if self._run.is_step_back(step) and not (self._restarted_at and self._restarted_at <= step):
            self._run.add_restart(step, cause=STEP_BACK)
        elif newest is not None and step > newest:
            self._restarted_at = None

    def _read_examples(self, line: str) -> None:
        match = _EXAMPLES.search(line)
        if not match:
            return
        name = match[2].rpartition("/")[2]
        kind = {"train": "training_files", "valid": "dev_files"}.get(name.partition(".")[0].rstrip("0123456789"))
        if kind is None:
            return
        if kind == "training_files":
            self._run.facts["num_training_pairs"] = parse_count(match[1])
        files = self._run.facts.setdefault(kind, {})
        # fairseq loads the source side first.
        files.setdefault("target" if files.get("source", match[2]) != match[2] else "source", match[2])

    def _read_config(self, line: str) -> None:
        run, config = self._run, _config_of(line)
        run.facts["num_attempts"] = run.facts.get("num_attempts", 0) + 1
        run.printed_config = run.printed_config or config
        for name, fact in _TEXT_FACTS.items():
            if isinstance(config.get(name), str):
                run.facts[fact] = config[name]
        for name, fact in {"distributed_world_size": "num_ranks", "update_freq": "accumulation"}.items():
            if isinstance(config.get(name), int):
                run.facts[fact] = config[name]
        run.facts["precision"] = _precision(config)
        if config.get("eval_bleu") is True:
            run.facts["bleu_kind"] = _bleu_kind(config)
        _add_config_settings(run, config)


def _config_of(line: str) -> dict[str, Any]:
    """Reads the settings of a printed Namespace(...) or nested dict, flat; the first value that is not None counts."""
    config: dict[str, Any] = {}
    for name, text, number, truth in _SETTING.findall(line):
        if name in config or len(config) >= _MAX_CONFIG_KEYS:
            continue
        config[name] = _plain_number(number) if number else truth == "True" if truth else text
    return config


def _plain_number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _add_config_settings(run: ImportedRun, config: dict[str, Any]) -> None:
    numbers = {name: value for name, value in config.items() if type(value) in (int, float)}
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
    run.add_settings("evaluation", evaluate_every=numbers.get("validate_interval_updates") or None)


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


def _without_prefix(figures: dict[str, float], prefix: str) -> dict[str, float]:
    """Removes the prefix of the json format, which writes train_loss and even train_train_wall."""
    if f"{prefix}num_updates" not in figures:
        return figures
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def _step_of(figures: dict[str, float]) -> int | None:
    step = figures.get("num_updates", math.nan)
    return int(step) if math.isfinite(step) else None


def _in_nats(bits: float | None) -> float | None:
    return None if bits is None else bits * math.log(2)


def _seconds_per_step(figures: dict[str, float]) -> float | None:
    """Computes it from words per batch and per second: updates per second have only two decimals."""
    per_batch, per_second, updates = (figures.get(name, 0.0) for name in ("wpb", "wps", "ups"))
    if per_batch > 0 and per_second > 0:
        return per_batch / per_second
    return 1 / updates if updates > 0 else None
