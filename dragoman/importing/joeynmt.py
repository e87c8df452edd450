"""Reads logs of JoeyNMT 1 and 2: train.log, validations.txt or its terminal output."""

import re
from typing import Any

from dragoman.importing.imported_run import (
    MAX_RECORDS,
    MAX_SAMPLES_PER_RECORD,
    STEP_BACK,
    ImportedRun,
    evaluation_step,
    transformer_schedule,
)
from dragoman.importing.log_text import (
    COUNT,
    NUMBER,
    LogClock,
    loss_of_perplexity,
    parse_count,
    parse_number,
    parse_time,
)

TRAINER = "JoeyNMT"

_MAX_CONFIG_KEYS = 1_000
_MAX_CONFIG_DEPTH = 8
_STEP = re.compile(r"(?:Step|Steps): *(\d{1,15})\b", re.ASCII)
_FIGURE = re.compile(rf"([A-Za-z][\w ]{{0,30}}+): *({NUMBER})(?![\w.])", re.ASCII)
_RESULT_STEP = re.compile(r"step *(\d{1,15})", re.ASCII)
_SECONDS = re.compile(rf"({NUMBER})(?:\[sec\]|s$)", re.ASCII)
_PARAMETERS = re.compile(rf"Total params: ({COUNT})", re.ASCII)
_SETTING = re.compile(r"cfg\.([\w.]{1,200}) : (.{0,500})", re.ASCII)
_CHECKPOINT = re.compile(r"(?<!\S)(\S{0,500}/)?(\d{1,15})\.ckpt", re.ASCII)
_VOCABULARY = re.compile(r"Trg (?:words \(types\)|tokens \(vocab_size\)): *(\d{1,12})", re.ASCII)
_TRAINING_PAIRS = re.compile(r"(?:^\s+train (\d{1,15}),)|(?:split=train, len=(\d{1,15}))", re.ASCII)
_DEV_PAIRS = re.compile(r"(?:^\s+valid (\d{1,15}),)|(?:split=dev, len=(\d{1,15}))", re.ASCII)
_VERSION = re.compile(r"Joey-?NMT \(version ([\w.]{1,20})\)", re.ASCII)
_SAMPLE_PARTS = {"Source:": "source", "Reference:": "reference", "Hypothesis:": "translation"}
_UNITS = {"tokens": "nats per token", "batch": "nats per sentence"}


def is_own_line(line: str) -> bool:
    """Whether only JoeyNMT writes such a line."""
    return " - INFO - joeynmt." in line or "Joey-NMT" in line or (line.startswith("Steps: ") and "LR: " in line)


class JoeyReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._num_settings = 0
        self._num_dev_pairs: int | None = None
        self._clock = LogClock()
        self._evaluation: dict[str, Any] = {}
        self._samples: list[dict[str, str]] = []
        self._evaluated: set[int] = set()
        self._is_test = False

    def read(self, line: str) -> None:
        """Reads a line."""
        if "Batch Loss:" in line:
            self._read_train(line)
        elif line.startswith("Steps: "):
            self._read_validations_file(line)
        elif "result (greedy)" in line or "result (beam)" in line:
            self._read_result(line)
        elif "cfg." in line and (match := _SETTING.search(line)):
            self._read_setting(match[1], match[2].strip())
        elif "joeynmt" in line or line.startswith(("\t", " ")) or "Joey" in line:
            self._read_message(line)

    def finish(self) -> None:
        """Adds the facts that need all lines, and the settings of the configuration."""
        run = self._run
        self._flush_evaluation()
        run.facts["loss_unit"] = self._loss_unit
        run.facts["step_time_includes_evaluation"] = True
        if self._loss_unit == "nats per sentence":
            run.note("The loss is a mean over sentences, not over tokens: it depends on how long the sentences are.")
        elif self._loss_unit == "unknown":
            run.note("The log does not say what the loss is a mean of: keep the lines of the configuration next time.")
        _add_config(run, run.printed_config)
        run.note_missing_facts()

    @property
    def _loss_unit(self) -> str:
        training = self._run.printed_config.get("training")
        if not isinstance(training, dict):
            return "unknown"
        return _UNITS.get(str(training.get("normalization", "batch")), "unknown")

    def _read_train(self, line: str) -> None:
        match = _STEP.search(line)
        if not match:
            return
        self._flush_evaluation()
        self._is_test = False
        step, now = int(match[1]), parse_time(line)
        figures = _figures_of(line)
        if self._run.is_step_back(step):
            self._run.add_restart(step, cause=STEP_BACK, time=now)
            self._clock.restart()
        self._run.add_train(
            step,
            loss=figures.get("batch loss"),
            accuracy=figures.get("batch acc"),
            learning_rate=figures.get("lr"),
            seconds_per_step=self._clock.seconds_per_step(step, now),
            target_tokens_per_second=figures.get("tokens per sec"),
            time=now,
        )

    def _read_result(self, line: str) -> None:
        """Reads "Validation result (greedy) at epoch 1, step 9: …" (version 1) or "Evaluation result (greedy): …"."""
        newest = self._run.newest_step
        if "Best validation" in line or self._is_test or newest is None:
            return
        logged_step, seconds = _RESULT_STEP.search(line), _SECONDS.search(line)
        every = _count(self._run.printed_config, "training", "validation_freq")
        step = int(logged_step[1]) if logged_step else evaluation_step(newest, every, self._clock.log_every)
        figures = _figures_of(line.partition("result (")[2])
        self._evaluation = self._evaluation | {
            "step": step,
            "loss": self._evaluation_loss(figures, is_sum="Validation result" in line),
            "seconds": (self._evaluation.get("seconds") or 0.0) + (float(seconds[1]) if seconds else 0.0) or None,
            "time": parse_time(line),
            **_scores_of(figures),
        }

    def _evaluation_loss(self, figures: dict[str, float], is_sum: bool) -> float | None:
        """Returns the loss in the unit of the training loss; version 1 prints the sum over the dev set."""
        if self._loss_unit != "nats per sentence":
            return loss_of_perplexity(figures.get("ppl"))
        loss = figures.get("loss")
        if loss is None or not is_sum:
            return loss
        return loss / self._num_dev_pairs if self._num_dev_pairs else None

    def _flush_evaluation(self) -> None:
        """Adds an evaluation with its samples: version 1 prints them before the result, version 2 after it."""
        figures, self._evaluation = self._evaluation, {}
        samples, self._samples = self._samples, []
        step = figures.pop("step", None)
        if step is None or step in self._evaluated:
            return
        if len(self._evaluated) < MAX_RECORDS:
            self._evaluated.add(step)
        self._run.add_evaluation(step, **figures, samples=samples or None)
        if "bleu" in figures:
            self._run.facts["bleu_kind"] = "unknown"

    def _read_validations_file(self, line: str) -> None:
        match = _STEP.match(line)
        if not match:
            return
        self._flush_evaluation()
        figures = {name.replace("perplexity", "ppl"): value for name, value in _figures_of(line).items()}
        loss = self._evaluation_loss(figures, is_sum="Loss:" in line)
        self._evaluation = {"step": int(match[1]), "loss": loss, **_scores_of(figures)}
        self._flush_evaluation()

    def _read_message(self, line: str) -> None:
        if "Checkpoint saved in" in line or "oading model from" in line or "Loading from" in line:
            self._read_checkpoint(line)
        elif "Training ended" in line:
            self._run.facts["is_finished"] = True
        elif "Generation took" in line and (match := _SECONDS.search(line)):
            self._evaluation["seconds"] = float(match[1])
        elif "Decoding on " in line:
            # From here on the finished model is evaluated, also on the dev set, with other search settings.
            self._is_test = True
        elif "Example #" in line:
            if len(self._samples) < MAX_SAMPLES_PER_RECORD:
                self._samples.append({})
        elif not self._read_sample(line):
            self._read_fact(line)

    def _read_sample(self, line: str) -> bool:
        text = line.partition(" - INFO - joeynmt.training - ")[2].strip()
        part, _, sentence = text.partition(" ")
        if part not in _SAMPLE_PARTS:
            return False
        if self._samples:
            self._samples[-1].setdefault(_SAMPLE_PARTS[part], sentence.strip())
        return True

    def _read_checkpoint(self, line: str) -> None:
        match, now = _CHECKPOINT.search(line), parse_time(line)
        if not match:
            return
        step, path = int(match[2]), match[0]
        if "Checkpoint saved in" in line:
            self._run.add_checkpoint(step, path=path, time=now)
        elif not self._run.facts.get("is_finished"):
            self._run.add_restart(step, cause=f"continued from {path}", time=now)
            self._run.count_attempt()
            self._clock.restart()

    def _read_fact(self, line: str) -> None:
        facts = self._run.facts
        if match := _PARAMETERS.search(line):
            facts["parameters"] = parse_count(match[1])
        elif match := _VOCABULARY.search(line):
            facts["vocab_size"] = int(match[1])
        elif match := _TRAINING_PAIRS.search(line):
            facts["num_training_pairs"] = int(match[1] or match[2])
        elif match := _DEV_PAIRS.search(line):
            self._num_dev_pairs = int(match[1] or match[2])
        elif match := _VERSION.search(line):
            facts["software"] = {"joeynmt": match[1]}
            facts.setdefault("started", parse_time(line))
        else:
            self._read_statistics(line.strip())

    def _read_statistics(self, line: str) -> None:
        """Reads a line of the block "Train stats:"."""
        name, _, value = line.partition(":")
        number = parse_count(value.strip())
        if name == "n_gpu" and number is not None:
            self._run.facts["num_ranks"] = max(1, number)
        elif name == "16-bits training":
            self._run.facts["precision"] = "fp16" if value.strip() == "True" else "fp32"
        elif name == "gradient accumulation" and number is not None:
            self._run.facts["accumulation"] = number

    def _read_setting(self, path: str, text: str) -> None:
        """Keeps a setting such as "training.learning_rate" in nested tables."""
        *folders, name = path.split(".")[:_MAX_CONFIG_DEPTH]
        self._num_settings += 1
        if self._num_settings > _MAX_CONFIG_KEYS:
            return
        table = self._run.printed_config
        for folder in folders:
            inner = table.setdefault(folder, {})
            if not isinstance(inner, dict):
                return
            table = inner
        table[name] = text


def _add_config(run: ImportedRun, config: dict[str, Any]) -> None:
    if folder := _value(config, "training", "model_dir"):
        run.facts["checkpoint_folder"] = folder
    for kind, fact in {"train": "training_files", "dev": "dev_files"}.items():
        stem, source, target = (_value(config, "data", name) for name in (kind, "src", "trg"))
        if stem and source and target:
            run.facts[fact] = {"source": f"{stem}.{source}", "target": f"{stem}.{target}"}
            run.facts["source_language"], run.facts["target_language"] = source, target
    if _value(config, "model", "encoder", "type") == "transformer":
        run.add_settings(
            "model",
            width=_count(config, "model", "encoder", "hidden_size"),
            feed_forward=_count(config, "model", "encoder", "ff_size"),
            heads=_count(config, "model", "encoder", "num_heads"),
            encoder_layers=_count(config, "model", "encoder", "num_layers"),
            decoder_layers=_count(config, "model", "decoder", "num_layers"),
            dropout=_number(config, "model", "encoder", "dropout"),
        )
    run.add_settings(
        "training",
        max_steps=_count(config, "training", "updates"),
        label_smoothing=_number(config, "training", "label_smoothing"),
        clip_norm=_number(config, "training", "clip_grad_norm"),
        weight_decay=_number(config, "training", "weight_decay"),
        log_every=_count(config, "training", "logging_freq"),
        **_schedule(run, config),
    )
    run.add_settings(
        "evaluation",
        evaluate_every=_count(config, "training", "validation_freq"),
        beam_size=_count(config, "testing", "beam_size"),
    )


def _schedule(run: ImportedRun, config: dict[str, Any]) -> dict[str, Any]:
    """Translates the schedule: "noam" has the same factor, the inverse square root is set by its peak."""
    name, width = _value(config, "training", "scheduling"), run.facts.get("width")
    warmup = _count(config, "training", "learning_rate_warmup")
    if name == "noam" and warmup:
        factor = _number(config, "training", "learning_rate_factor")
        return {"schedule": "transformer", "warmup_steps": warmup, "learning_rate": factor}
    rate = _number(config, "training", "learning_rate")
    if name == "warmupinversesquareroot" and warmup and rate and width:
        return transformer_schedule(rate, width, warmup)
    return {}


def _value(config: dict[str, Any], *path: str) -> str | None:
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _count(config: dict[str, Any], *path: str) -> int | None:
    return parse_count(_value(config, *path) or "")


def _number(config: dict[str, Any], *path: str) -> float | None:
    return parse_number(_value(config, *path) or "")


def _figures_of(line: str) -> dict[str, float]:
    return {name.lower(): float(text) for name, text in _FIGURE.findall(line)}


def _scores_of(figures: dict[str, float]) -> dict[str, float]:
    names = {"ppl": "perplexity", "acc": "accuracy", "bleu": "bleu", "chrf": "chrf"}
    return {ours: figures[theirs] for theirs, ours in names.items() if theirs in figures}
