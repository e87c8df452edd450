"""Reads runs of the Hugging Face Trainer: trainer_state.json or its terminal output."""

import json
import math
import re
from pathlib import Path
from typing import Any

from dragoman.importing.imported_run import MAX_RECORDS, ImportedRun
from dragoman.importing.log_text import COUNT, NUMBER, LogClock, parse_count, parse_number
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.records import LARGEST_NUMBER

TRAINER = "HF Trainer"
MAX_STATE_BYTES = 200 * 10**6

_FIGURE = re.compile(rf"'(\w{{1,60}})': '?({NUMBER})'?(?=[,}}])", re.ASCII)
_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]{0,300}\| (\d{1,15})/(\d{1,15}) \[((?:\d{1,6}:)?\d{1,3}:\d\d)[<\]]", re.ASCII)
_COUNT = re.compile(rf" = ({COUNT})\s*$", re.ASCII)
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})(?!\d)", re.ASCII)
_CONTINUED = re.compile(r"global step (\d{1,15})", re.ASCII)
_ANNOUNCED = {
    "Num examples": "num_training_pairs",
    "Num Epochs": "_epochs",
    "Instantaneous batch size per device": "batch_sentences_per_rank",
    "Total train batch size": "_batch",
    "Gradient Accumulation steps": "accumulation",
    "Total optimization steps": "steps_planned",
    "Number of trainable parameters": "parameters",
}
_TRAIN_NAMES = {"loss": "loss", "grad_norm": "gradient_norm", "learning_rate": "learning_rate"}
_EVALUATION_NAMES = {
    "eval_loss": "loss",
    "eval_bleu": "bleu",
    "eval_sacrebleu": "bleu",
    "eval_chrf": "chrf",
    "eval_accuracy": "accuracy",
    "eval_perplexity": "perplexity",
    "eval_runtime": "seconds",
}
_STATE_SETTINGS = {
    "max_steps": ("training", "max_steps"),
    "logging_steps": ("training", "log_every"),
    "eval_steps": ("evaluation", "evaluate_every"),
}
_LOSS_NOTE = "The loss is what the model's own code returned: most likely the mean over the tokens of one batch."


def is_own_line(line: str) -> bool:
    """Whether only the HF Trainer writes such a line."""
    if "{'" in line:
        return "'epoch': " in line and ("{'loss': " in line or "{'eval_loss': " in line or "'train_runtime': " in line)
    return "***** Running training *****" in line or "  Total optimization steps = " in line


def read_trainer_state(path: Path, run: ImportedRun) -> None:
    """Reads a trainer_state.json, which the Trainer writes into its output folder and each checkpoint."""
    state = _load_state(path)
    run.trainer = TRAINER
    history = [entry for entry in state["log_history"] if isinstance(entry, dict)]
    for entry in history:
        _add_entry(run, _whole(entry.get("step")), _numbers(entry))
    _add_state_facts(run, state)
    _finish(run)
    run.note("trainer_state.json holds no times, so the time per step is unknown: import the TensorBoard files too.")


def _load_state(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            raise UserError(f"{path} is larger than {MAX_STATE_BYTES // 10**6} MB, which no trainer_state.json is.")
        state = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None
    except (ValueError, RecursionError):
        raise UserError(
            f"{path} is not valid JSON and may have been cut off: use the one of an earlier checkpoint."
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise UserError(f"{path} has no list log_history: it is not a trainer_state.json of the HF Trainer.")
    return state


def _add_state_facts(run: ImportedRun, state: dict[str, Any]) -> None:
    for name, (section, ours) in _STATE_SETTINGS.items():
        value = _whole(state.get(name))
        run.add_settings(section, **{ours: value or None})
    if (batch := _whole(state.get("train_batch_size"))) is not None:
        run.facts["batch_sentences_per_rank"] = batch
    newest, planned = _whole(state.get("global_step")), _whole(state.get("max_steps"))
    if newest is not None and planned:
        run.facts["is_finished"] = newest >= planned


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    found = {name: _number(value) for name, value in entry.items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    """Returns a figure of an entry; some versions write it as text."""
    if isinstance(value, str):
        return parse_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON may hold an integer that is too large for a float.
    return float(value) if isinstance(value, float) or abs(value) < 2**1000 else None


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and abs(value) <= LARGEST_NUMBER else None


def _add_entry(run: ImportedRun, step: int | None, figures: dict[str, float], **clock: float | None) -> None:
    """Adds one entry of the history: a training step, an evaluation, or the summary at the end."""
    if step is None:
        return
    if "train_runtime" in figures:
        _add_summary(run, step, figures)
    elif any(name in figures for name in _EVALUATION_NAMES):
        run.add_evaluation(step, **{ours: figures[name] for name, ours in _EVALUATION_NAMES.items() if name in figures})
    elif "loss" in figures:
        if run.is_step_back(step):
            run.add_restart(step, cause="the history goes back to an earlier step")
        run.add_train(step, **{ours: figures[name] for name, ours in _TRAIN_NAMES.items() if name in figures}, **clock)


def _add_summary(run: ImportedRun, step: int, figures: dict[str, float]) -> None:
    run.facts["is_finished"] = True
    seconds = figures["train_runtime"]
    # After a restart the runtime covers only the last attempt, but the steps cover all.
    if 0 < seconds < math.inf and step > 0 and not any(record["kind"] == "restart" for record in run.records):
        run.facts["mean_seconds_per_step"] = seconds / step
        run.facts["step_time_includes_evaluation"] = True


def _finish(run: ImportedRun) -> None:
    evaluated = [record for record in run.records if record["kind"] == "evaluation" and "bleu" in record]
    if evaluated:
        run.facts["bleu_kind"] = "unknown"
        if 0 < max(record["bleu"] for record in evaluated) <= 1:
            run.note("The BLEU is at most 1: it was taken as a fraction and multiplied by 100.")
            for record in evaluated:
                record["bleu"] *= 100
    run.facts["loss_unit"] = "nats per token"
    run.note(_LOSS_NOTE)
    run.note_missing_facts()


class HfReader:
    """Reads the terminal output of one run; only the progress bar shows the step."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._announced: dict[str, int] = {}
        self._bar: tuple[int, float] | None = None
        self._num_steps: int | None = None
        self._clock = LogClock()
        self._unnumbered: list[dict[str, float]] = []

    def read(self, line: str) -> None:
        """Reads a line."""
        if "%|" in line:
            self._read_bar(line)
        if "{'" in line:
            self._read_entry(line)
        elif " = " in line:
            self._read_fact(line)
        elif "checkpoint" in line or "global step" in line:
            self._read_checkpoint(line)
        elif "Training completed" in line:
            self._run.facts["is_finished"] = True

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        run, announced = self._run, self._announced
        self._number_entries()
        per_rank = announced.get("batch_sentences_per_rank", 0) * announced.get("accumulation", 1)
        if per_rank and announced.get("_batch", 0) % per_rank == 0 and announced.get("_batch"):
            run.facts["num_ranks"] = announced["_batch"] // per_rank
        _finish(run)

    def _read_bar(self, line: str) -> None:
        match = _BAR.match(line)
        if not match:
            return
        step, num_steps = int(match[1]), int(match[2])
        planned = self._run.facts.get("steps_planned", self._num_steps)
        # The bar of an evaluation counts batches of the dev set: its total differs.
        if planned is None or num_steps == planned:
            self._num_steps = num_steps
            self._bar = (step, _seconds_of(match[3]))

    def _read_entry(self, line: str) -> None:
        figures = {name: float(text) for name, text in _FIGURE.findall(line)}
        if not figures or not ("epoch" in figures or "loss" in figures):
            return
        step = self._step_of(figures)
        if step is None:
            if len(self._unnumbered) < MAX_RECORDS:
                self._unnumbered.append(figures)
            return
        if self._bar is None or "loss" not in figures:
            _add_entry(self._run, step, figures)
            return
        elapsed = self._bar[1]
        seconds = self._clock.seconds_per_step(step, elapsed)
        _add_entry(self._run, step, figures, seconds_per_step=seconds, training_seconds=elapsed)
        self._run.facts["step_time_includes_evaluation"] = True

    def _step_of(self, figures: dict[str, float]) -> int | None:
        """Returns the step of the bar, else the step of the epoch if the number of steps is known."""
        if self._bar is not None:
            return self._bar[0]
        planned, epochs = self._run.facts.get("steps_planned"), self._announced.get("_epochs")
        epoch = figures.get("epoch")
        if planned and epochs and epoch is not None and 0 <= epoch <= epochs:
            return round(epoch / epochs * int(planned))
        return None

    def _number_entries(self) -> None:
        """Numbers entries without a step: by their epochs if the summary has the number of steps, else by counting."""
        summary = next((figures for figures in self._unnumbered if "train_runtime" in figures), {})
        num_steps = summary.get("train_runtime", 0.0) * summary.get("train_steps_per_second", 0.0)
        last_epoch = summary.get("epoch", 0.0)
        has_steps = 0 < last_epoch < math.inf and 1 <= num_steps <= LARGEST_NUMBER
        num_counted = 0
        for figures in self._unnumbered:
            epoch = figures.get("epoch")
            if has_steps and epoch is not None and 0 <= epoch <= last_epoch:
                _add_entry(self._run, round(epoch / last_epoch * num_steps), figures)
            else:
                num_counted += "loss" in figures
                _add_entry(self._run, num_counted, figures)
        if num_counted:
            self._run.note(
                "The log does not number its steps: its records were counted instead, so steps and times per step are "
                "not real. Keep trainer_state.json next time."
            )

    def _read_fact(self, line: str) -> None:
        for words, name in _ANNOUNCED.items():
            if words in line and (match := _COUNT.search(line)):
                value = parse_count(match[1]) or 0
                self._announced[name] = value
                if not name.startswith("_"):
                    self._run.facts[name] = value
        if "steps_planned" in self._run.facts:
            self._run.add_settings("training", max_steps=self._run.facts["steps_planned"])

    def _read_checkpoint(self, line: str) -> None:
        match = _CHECKPOINT.search(line)
        if "Saving model checkpoint to" in line and match:
            self._run.add_checkpoint(int(match[1]), path=line.partition(" to ")[2])
        elif "Continuing training from global step" in line and (continued := _CONTINUED.search(line)):
            self._run.add_restart(int(continued[1]), cause="continued from a checkpoint")
            self._run.count_attempt()
            self._clock.restart()


def _seconds_of(clock: str) -> float:
    """Returns the seconds of "1:02:03" or "02:03"."""
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)
