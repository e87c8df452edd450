"""Reads the configuration that JoeyNMT prints at its start, and makes facts and settings of it."""

import re
from typing import Any

from dragoman.importing.imported_run import ImportedRun, transformer_schedule
from dragoman.importing.log_text import parse_count, parse_number

_MAX_KEYS = 1_000
_MAX_DEPTH = 8
SETTING = re.compile(r"cfg\.([\w.]{1,200}) {0,60}: (.{0,500})", re.ASCII)
"""Line such as "cfg.training.epochs      : 200": version 1.3 puts spaces behind the name, others before it."""
FIGURE_NAMES = {"ppl": "perplexity", "acc": "accuracy"}
"""Names of JoeyNMT's figures that have another name here."""


class JoeyConfig:
    """The printed configuration, as nested tables of text."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._num_settings = 0

    def add(self, path: str, text: str) -> None:
        """Keeps a setting such as "training.learning_rate" in nested tables."""
        *folders, name = path.split(".")[:_MAX_DEPTH]
        self._num_settings += 1
        if self._num_settings > _MAX_KEYS:
            return
        table = self._run.printed_config
        for folder in folders:
            inner = table.setdefault(folder, {})
            if not isinstance(inner, dict):
                return
            table = inner
        table[name] = text

    def value(self, *path: str) -> str | None:
        """Returns a setting as text; None where it was not printed."""
        value: Any = self._run.printed_config
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, str) else None

    def count(self, *path: str) -> int | None:
        """Returns a setting that is a whole number."""
        return parse_count(self.value(*path) or "")

    def number(self, *path: str) -> float | None:
        """Returns a setting that is a number."""
        return parse_number(self.value(*path) or "")

    @property
    def normalization(self) -> str | None:
        """What the training loss is divided by: tokens, batch (sentences) or none; None without a configuration."""
        if not isinstance(self._run.printed_config.get("training"), dict):
            return None
        return (self.value("training", "normalization") or "batch").lower()

    def metric(self, announced: str | None, eval_metric: str | None) -> str | None:
        """Returns the figure that the best checkpoint is chosen by; version 1 calls its score "eval_metric"."""
        name = announced or self.value("training", "early_stopping_metric")
        if name == "eval_metric":
            name = self.value("training", "eval_metric") or eval_metric
        return FIGURE_NAMES.get(name, name) if name else None

    def add_facts(self) -> None:
        """Adds the facts of the run that only its configuration tells."""
        run = self._run
        if folder := self.value("training", "model_dir") or self.value("model_dir"):
            run.facts["checkpoint_folder"] = folder
        if epochs := self.count("training", "epochs"):
            run.facts["epochs_planned"] = epochs
        if self.value("training", "batch_type") == "sentence" and (size := self.count("training", "batch_size")):
            run.facts["batch_sentences_per_rank"] = max(1, size // (run.facts.get("num_ranks") or 1))
        self._add_files()
        self._add_model()
        self._add_training()

    def _add_files(self) -> None:
        source, target = (self.value("data", side) or self.value("data", side, "lang") for side in ("src", "trg"))
        if not (source and target):
            return
        for kind, fact in {"train": "training_files", "dev": "dev_files"}.items():
            if stem := self.value("data", kind):
                self._run.facts[fact] = {"source": f"{stem}.{source}", "target": f"{stem}.{target}"}
        self._run.facts |= {"source_language": source, "target_language": target}

    def _add_model(self) -> None:
        if self.value("model", "encoder", "type") != "transformer":
            return
        self._run.add_settings(
            "model",
            width=self.count("model", "encoder", "hidden_size"),
            feed_forward=self.count("model", "encoder", "ff_size"),
            heads=self.count("model", "encoder", "num_heads"),
            encoder_layers=self.count("model", "encoder", "num_layers"),
            decoder_layers=self.count("model", "decoder", "num_layers"),
            dropout=self.number("model", "encoder", "dropout"),
        )

    def _add_training(self) -> None:
        self._run.add_settings(
            "training",
            max_steps=self.count("training", "updates"),
            label_smoothing=self.number("training", "label_smoothing"),
            clip_norm=self.number("training", "clip_grad_norm"),
            weight_decay=self.number("training", "weight_decay"),
            log_every=self.count("training", "logging_freq"),
            **self._schedule(),
        )
        self._run.add_settings(
            "evaluation",
            evaluate_every=self.count("training", "validation_freq"),
            beam_size=self.count("testing", "beam_size"),
        )

    def _schedule(self) -> dict[str, Any]:
        """Translates the schedule: "noam" has the same factor, the inverse square root is set by its peak."""
        name, width = self.value("training", "scheduling"), self._run.facts.get("width")
        warmup = self.count("training", "learning_rate_warmup")
        if not warmup or name not in ("noam", "warmupinversesquareroot", "warmupexponentialdecay"):
            return {}
        self._run.facts["warmup_steps"] = warmup
        rate = self.number("training", "learning_rate")
        if name == "noam":
            factor = self.number("training", "learning_rate_factor")
            return {"schedule": "transformer", "warmup_steps": warmup, "learning_rate": factor}
        if name == "warmupinversesquareroot" and rate and width:
            return transformer_schedule(rate, width, warmup)
        return {}
