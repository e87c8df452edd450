"""Reads logs of Marian 1.5 to 1.12: train.log, valid.log or its terminal output."""

import re
from pathlib import PurePosixPath
from typing import Any

from dragoman.importing.imported_run import LOSS_IS_LOG_PERPLEXITY, ImportedRun, transformer_schedule
from dragoman.importing.log_text import COUNT, NUMBER, loss_of_perplexity, parse_count, parse_number, parse_time

TRAINER = "Marian"

_MAX_CONFIG_KEYS = 1_000
_MAX_LIST_ITEMS = 50
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: mpi:\d{1,6})?\] ", re.ASCII)
_NUMBER = re.compile(NUMBER, re.ASCII)
_ITERATION = re.compile(r"\.iter(\d{1,15})\.npz", re.ASCII)
_PROCESSES = re.compile(r"processed as (\d{1,6}) process\(es\) x (\d{1,6}) devices", re.ASCII)
_DEVICES = re.compile(r"\[training\] Using (\d{1,6}) (?:GPUs|CPUs|devices)", re.ASCII)
_PARAMETERS = re.compile(rf"(?:[Tt]otal|[Nn]umber of)(?: \w{{1,20}})? parameters:? ({COUNT})", re.ASCII)
_BLEU_KINDS = {
    "bleu-detok": "detokenised",
    "bleu": "tokenised",
    "bleu-segmented": "tokenised",
    "translation": "unknown",
}
"""Metrics that are a BLEU, the most reliable first."""


def is_own_line(line: str) -> bool:
    """Whether only Marian writes such a line."""
    return (" : Up. " in line and "Ep. " in line) or "] [marian] " in line or "] [config] " in line


class MarianReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._list_name: str | None = None
        self._num_launches = 0
        self._is_new_launch = False
        self._previous_step: int | None = None
        self._checkpoint_step: int | None = None
        self._evaluation: dict[str, float] = {}
        self._evaluation_step = 0
        self._evaluation_time: float | None = None
        self._is_loss_per_token: bool | None = None

    def read(self, line: str) -> None:
        """Reads a line."""
        if "] " not in line or not (stamp := _STAMP.search(line, 0, 200)):
            return
        text, time = line[stamp.end() :], parse_time(stamp[1])
        if text.startswith("[config] "):
            self._read_config(text.removeprefix("[config] "))
        elif text.startswith("[valid] Ep. "):
            self._read_evaluation(text, time)
        elif text.startswith("Ep. "):
            self._read_train(text, time)
        else:
            self._read_message(text, time)

    def finish(self) -> None:
        """Adds the facts that need all lines, and the settings of the configuration."""
        run = self._run
        self._flush_evaluation()
        units = {True: "nats per token", False: "nats per sentence", None: "unknown"}
        run.facts["loss_unit"] = units[self._is_loss_per_token]
        run.facts["step_time_includes_evaluation"] = True
        if self._num_launches:
            run.facts["num_attempts"] = self._num_launches
        _add_config_facts(run, run.printed_config)
        _add_config_settings(run, run.printed_config)
        run.note_missing_facts()

    def _read_train(self, text: str, time: float | None) -> None:
        self._flush_evaluation()
        parts = text.split(" : ", 20)
        named = {part.partition(" ")[0]: part for part in parts}
        step = _count(named.get("Up.", ""), "Up. ")
        if step is None:
            return
        self._watch_for_restart(step, time)
        speed = next((part for part in parts if part.endswith(" words/s")), "")
        seconds, previous = _number(named.get("Time", ""), "Time "), self._previous_step
        self._run.add_train(
            step,
            loss=self._loss_of(named.get("Cost", "")),
            seconds_per_step=seconds / (step - previous)
            if seconds and previous is not None and previous < step
            else None,
            target_tokens_per_second=_number(speed),
            gradient_norm=_number(named.get("gNorm", ""), "gNorm "),
            learning_rate=_number(named.get("L.r.", ""), "L.r. "),
            time=time,
        )
        self._previous_step = step

    def _loss_of(self, part: str) -> float | None:
        """Reads "Cost 5.12 * 1,234 @ 12 after 1,234": a cost with a number of labels is a mean over tokens."""
        cost = _number(part, "Cost ")
        cost_type = self._run.printed_config.get("cost-type")
        if self._is_loss_per_token is None and cost is not None:
            if " * " in part or cost_type in ("ce-mean-words", "perplexity"):
                self._is_loss_per_token = True
            elif cost_type in ("ce-mean", "cross-entropy"):
                self._is_loss_per_token = False
        return loss_of_perplexity(cost) if cost_type == "perplexity" else cost

    def _watch_for_restart(self, step: int, time: float | None) -> None:
        newest = self._run.newest_step
        if newest is not None and (step < newest or self._is_new_launch):
            restarted_at = min(newest if self._checkpoint_step is None else self._checkpoint_step, step)
            self._run.add_restart(restarted_at, cause="Marian was started again", time=time)
            self._previous_step = None if self._checkpoint_step is None else restarted_at
        self._is_new_launch = False

    def _read_evaluation(self, text: str, time: float | None) -> None:
        parts = text.split(" : ", 6)
        step = _count(parts[1], "Up. ") if len(parts) > 3 else None
        value = _number(parts[3]) if len(parts) > 3 else None
        if step is None or value is None:
            return
        if step != self._evaluation_step:
            self._flush_evaluation()
        self._evaluation_step, self._evaluation_time = step, time
        if len(self._evaluation) < 20:
            self._evaluation[parts[2].strip()] = value

    def _flush_evaluation(self) -> None:
        """Adds one record for all metrics of a step: Marian prints each on its own line."""
        figures, self._evaluation = self._evaluation, {}
        if not figures:
            return
        bleu_name = next((name for name in _BLEU_KINDS if name in figures), None)
        if bleu_name:
            self._run.facts["bleu_kind"] = _BLEU_KINDS[bleu_name]
        if bleu_name == "translation":
            self._run.note("The BLEU is what the validation script printed; the log does not say how it was computed.")
        self._run.add_evaluation(
            self._evaluation_step,
            loss=self._evaluation_loss(figures),
            perplexity=figures.get("perplexity"),
            bleu=figures.get(bleu_name) if bleu_name else None,
            chrf=figures.get("chrf"),
            time=self._evaluation_time,
        )

    def _evaluation_loss(self, figures: dict[str, float]) -> float | None:
        """Returns the loss in the unit of the training loss, so that the two can be compared."""
        if self._is_loss_per_token is False:
            return figures.get("cross-entropy")
        if "ce-mean-words" in figures:
            return figures["ce-mean-words"]
        loss = loss_of_perplexity(figures.get("perplexity"))
        if loss is not None:
            self._run.note(LOSS_IS_LOG_PERPLEXITY)
        return loss

    def _read_message(self, text: str, time: float | None) -> None:
        facts = self._run.facts
        if text.startswith("[marian] Marian v"):
            self._num_launches += 1
            self._is_new_launch = self._num_launches > 1
            facts["software"] = facts.get("software", {}) | {"marian": text.split(" ", 3)[2][:40]}
            facts.setdefault("started", time)
        elif text.startswith("[marian] Running on "):
            self._run.add_to_fact("hosts", text.split(" ", 4)[3][:255])
        elif text.startswith("Training started"):
            if self._run.newest_step is None:
                self._previous_step = 0
        elif text.startswith("Training finished"):
            facts["is_finished"] = True
        elif text.startswith("Saving model weights"):
            self._read_checkpoint(text, time)
        elif text.startswith(("[training] ", "[data] ", "[comm] ")) or " parameters" in text:
            self._read_fact(text)

    def _read_fact(self, text: str) -> None:
        facts = self._run.facts
        if match := _PROCESSES.search(text):
            facts["num_ranks"], facts["ranks_per_host"] = int(match[1]) * int(match[2]), int(match[2])
        elif match := _DEVICES.match(text):
            facts.setdefault("num_ranks", int(match[1]))
        elif text.startswith("[data] Setting vocabulary size for input "):
            facts["vocab_size"] = _count(text.rpartition(" to ")[2])
        elif text.startswith("[data] Done reading "):
            facts["num_training_pairs"] = _count(text, "[data] Done reading ")
        elif text.startswith("[comm] Using NCCL "):
            facts["software"] = facts.get("software", {}) | {"nccl": text.split(" ", 4)[3][:20]}
        elif "checkpoint" in text or "reloaded" in text:
            self._is_new_launch = self._run.newest_step is not None
            # The log does not say its step, so the time per step up to the next line is unknown.
            self._previous_step = None if self._run.newest_step is None else self._previous_step
        elif match := _PARAMETERS.search(text):
            facts["parameters"] = parse_count(match[1])

    def _read_checkpoint(self, text: str, time: float | None) -> None:
        path = text.rpartition(" to ")[2]
        match = _ITERATION.search(path)
        step = int(match[1]) if match else self._run.newest_step
        if step is None or step == self._checkpoint_step or path.endswith(".orig.npz"):
            return
        self._checkpoint_step = step
        self._run.add_checkpoint(step, path=path, time=time)

    def _read_config(self, text: str) -> None:
        """Reads a line of YAML: "key: value", "key:", or an item of the key before it."""
        config = self._run.printed_config
        if text.startswith("  "):
            self._read_item(config.get(self._list_name or ""), text.strip())
            return
        name, colon, value = text.partition(":")
        if not colon or " " in name or (name not in config and len(config) >= _MAX_CONFIG_KEYS):
            return
        self._list_name = name
        config[name] = value.strip().strip('"')[:500] if value.strip() else []

    def _read_item(self, items: Any, text: str) -> None:
        if isinstance(items, list) and text.startswith("- ") and len(items) < _MAX_LIST_ITEMS:
            items.append(text.removeprefix("- ").strip('"')[:500])


def _add_config_facts(run: ImportedRun, config: dict[str, Any]) -> None:
    for name, fact in {"train-sets": "training_files", "valid-sets": "dev_files"}.items():
        files = config.get(name)
        if isinstance(files, list) and len(files) == 2:
            run.facts[fact] = {"source": files[0], "target": files[1]}
    if isinstance(config.get("model"), str):
        run.facts["checkpoint_folder"] = str(PurePosixPath(config["model"]).parent)
    if (delay := _updates(config.get("optimizer-delay"))) is not None:
        run.facts["accumulation"] = delay
    precision = _first(config.get("precision"))
    if precision in ("float16", "float32"):
        run.facts["precision"] = "mixed" if precision == "float16" else "fp32"
        run.add_settings("training", precision="fp16" if precision == "float16" else "fp32")


def _add_config_settings(run: ImportedRun, config: dict[str, Any]) -> None:
    if config.get("type") == "transformer":
        run.add_settings(
            "model",
            width=_updates(config.get("dim-emb")),
            feed_forward=_updates(config.get("transformer-dim-ffn")),
            heads=_updates(config.get("transformer-heads")),
            encoder_layers=_updates(config.get("enc-depth")),
            decoder_layers=_updates(config.get("dec-depth")),
            dropout=_fraction(config.get("transformer-dropout")),
            attention_dropout=_fraction(config.get("transformer-dropout-attention")),
            relu_dropout=_fraction(config.get("transformer-dropout-ffn")),
        )
    adam = config.get("optimizer-params")
    betas = [_fraction(value) for value in adam] if isinstance(adam, list) else []
    run.add_settings(
        "training",
        max_steps=_updates(config.get("after-batches")) or _updates(config.get("after")) or None,
        label_smoothing=_fraction(config.get("label-smoothing")),
        clip_norm=_fraction(config.get("clip-norm")),
        log_every=_updates(config.get("disp-freq")),
        **dict(zip(("beta1", "beta2", "epsilon"), betas, strict=False)),
        **_schedule(config),
    )
    evaluate_every, beam_size = _updates(config.get("valid-freq")), _updates(config.get("beam-size"))
    run.add_settings("evaluation", evaluate_every=evaluate_every, beam_size=beam_size)


def _schedule(config: dict[str, Any]) -> dict[str, Any]:
    """Translates the schedule; warm-up and inverse square root together only if one begins where the other ends."""
    rate, width = _fraction(config.get("learn-rate")), _updates(config.get("dim-emb"))
    warmup, decay_from = _updates(config.get("lr-warmup")), _updates(_first(config.get("lr-decay-inv-sqrt")))
    if rate and width and warmup and warmup == decay_from:
        return transformer_schedule(rate, width, warmup)
    if rate and not decay_from and _fraction(config.get("lr-decay")) == 0:
        return {"schedule": "fixed", "warmup_steps": warmup, "learning_rate": rate}
    return {}


def _first(value: Any) -> Any:
    if isinstance(value, list):
        return value[0] if value else None
    return value


def _updates(value: Any) -> int | None:
    """Returns a number of updates, also from "5000u"; None for epochs and labels ("5e", "1Mt")."""
    return parse_count(value.removesuffix("u")) if isinstance(value, str) else None


def _fraction(value: Any) -> float | None:
    return parse_number(value) if isinstance(value, str) else None


def _count(text: str, prefix: str = "") -> int | None:
    """Returns the count that follows the prefix."""
    return parse_count(text.removeprefix(prefix).partition(" ")[0])


def _number(text: str, prefix: str = "") -> float | None:
    """Returns the number that follows the prefix; a unit may follow it."""
    match = _NUMBER.match(text.removeprefix(prefix))
    return float(match[0]) if match else None
