"""Reads the training log of Sockeye 1.x (MXNet), 2.x and 3.x (PyTorch).

A log has `is_own_line` lines and is read by `SockeyeReader`. The file `metrics` of a model folder is recognised by
`is_metrics_file` and read by `read_metrics`, after the log if there is one, else on an empty run.
"""

import re
from typing import Any

from dragoman.importing.imported_run import STEP_BACK, ImportedRun, LogFailure
from dragoman.importing.log_text import COUNT, NUMBER, LogClock, parse_count, parse_time
from dragoman.importing.nan_watch import NanWatch
from dragoman.importing.trainers.sockeye_figures import (
    RUNNING_MEAN,
    TRAINER,
    checkpoint_path,
    evaluation_of,
    finish_run,
    train_loss_of,
)
from dragoman.importing.trainers.sockeye_metrics import is_metrics_file, read_metrics

__all__ = ["TRAINER", "SockeyeReader", "is_metrics_file", "is_own_line", "read_metrics"]

_PREFIX = re.compile(
    r"^\[(?:(\d{4}-\d\d-\d\d):(\d\d:\d\d:\d\d):)?(?:DEBUG|INFO|WARNING|ERROR):(?:sockeye[\w.]{0,60}|root|__main__)"
    r"[^\]]{0,80}\] ",
    re.ASCII,
)
_OLD_SPEED = re.compile(
    rf"Epoch\[(\d{{1,9}})\] Batch \[(\d{{1,15}})\]\s{{1,9}}Speed: {NUMBER} samples/sec"
    rf"(?:\s{{1,9}}({NUMBER}) tokens/sec)?(?:\s{{1,9}}({NUMBER}) updates/sec)?",
    re.ASCII,
)
_SPEED = re.compile(
    rf"E=(\d{{1,9}}) B=(\d{{1,15}})\s{{1,9}}s/sec={NUMBER} tok/sec=({NUMBER}) u/sec=({NUMBER})", re.ASCII
)
_CHECKPOINT = re.compile(r"Checkpoint \[(\d{1,9})\]:?\s{1,9}(.*)", re.ASCII)
_FIGURE = re.compile(rf"([\w/-]{{1,60}})=({NUMBER})(?=\s|$)", re.ASCII)
_DECODED = re.compile(r"^Decoder-(\d{1,9}) finished: (.*)", re.ASCII)
_DECODED_FIGURE = re.compile(rf"'([\w-]{{1,60}})': ({NUMBER})", re.ASCII)
_STATE = re.compile(r"^Training State: .{0,100}updates=(\d{1,15})", re.ASCII)
_ARGUMENT = re.compile(r"\b(\w{1,60})=('[^']{0,200}'|[\w.+-]{1,60})(?=[,)])", re.ASCII)
_ACCUMULATION = re.compile(r"Gradient accumulation over (\d{1,6}) batch\(es\) by (\d{1,6}) worker", re.ASCII)
_PARAMETERS = re.compile(rf"# of parameters: ({COUNT})", re.ASCII)
_PAIRS = re.compile(r"^(\d{1,15}) sequences (?:of maximum length|across)", re.ASCII)
_METRIC = re.compile(r"^Early stopping by optimizing '([\w-]{1,40})'", re.ASCII)
_LIMIT = re.compile(r"^Maximum # of (updates|epochs|samples|seconds)", re.ASCII)
_MAX_CHECKPOINTS = 100_000


def is_own_line(line: str) -> bool:
    """Whether only Sockeye writes such a line."""
    return ":sockeye." in line[:60] and _PREFIX.match(line) is not None


class SockeyeReader:
    """Reads the log of one run; steps are updates, which differ from batches where gradients are accumulated."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._watch = NanWatch()
        self._clock = LogClock()
        self._batches_per_update = 1
        self._epoch, self._batches_before, self._newest_batch = 0, 0, 0
        self._updates: dict[int, int] = {}
        """Number of updates by checkpoint."""
        self._evaluations: dict[int, dict[str, Any]] = {}
        """Records by checkpoint: version 1 logs their scores one checkpoint later."""
        self._scores: dict[int, dict[str, float]] = {}
        self._rate: float | None = None
        self._reason_of_end = ""

    def read(self, line: str) -> None:
        """Reads a line."""
        prefix = _PREFIX.match(line)
        if prefix is None:
            return
        time = parse_time(f"{prefix[1]} {prefix[2]}") if prefix[1] else None
        message = line[prefix.end() :]
        if speed := _SPEED.match(message) or _OLD_SPEED.match(message):
            self._read_speed(speed, message, time)
        elif checkpoint := _CHECKPOINT.match(message):
            self._read_checkpoint(int(checkpoint[1]), checkpoint[2], time)
        elif decoded := _DECODED.match(message):
            self._add_scores(int(decoded[1]), decoded[2])
        else:
            self._read_event(message, time)

    def finish(self) -> None:
        """Adds what needs all lines."""
        self._watch.finish(self._run)
        if self._updates:
            self._run.facts["steps_done"] = max(*self._updates.values(), self._run.newest_step or 0)
        finish_run(self._run)

    def _read_speed(self, match: re.Match[str], message: str, time: float | None) -> None:
        epoch, batch = int(match[1]), int(match[2])
        if batch < self._newest_batch and epoch > self._epoch:
            # The oldest versions count the batches of each epoch from 0.
            self._batches_before += self._newest_batch
        self._epoch, self._newest_batch = epoch, batch
        step = (self._batches_before + batch) // self._batches_per_update
        figures = {name: float(text) for name, text in _FIGURE.findall(message[match.end() :])}
        speed = float(match[4]) if match[4] else 0.0
        seconds = self._clock.seconds_per_step(step, time)
        self._add_train(step, train_loss_of(figures), time, seconds_per_step=1 / speed if speed > 0 else seconds)
        self._run.note(RUNNING_MEAN)

    def _add_train(self, step: int, loss: float | None, time: float | None, **figures: float | None) -> None:
        if self._run.is_step_back(step):
            self._run.add_restart(step, cause=STEP_BACK, time=time)
        loss = self._watch.add_train(step, loss, None)
        self._run.add_train(step, loss=loss, learning_rate=self._rate, time=time, **figures)

    def _read_checkpoint(self, checkpoint: int, text: str, time: float | None) -> None:
        if "'" in text:
            self._add_scores(checkpoint, text)
            return
        figures = {name: float(value) for name, value in _FIGURE.findall(text)}
        if "Updates" in figures and len(self._updates) < _MAX_CHECKPOINTS:
            self._begin_checkpoint(checkpoint, figures, time)
        elif any(name.startswith("Train-") for name in figures):
            self._add_checkpoint_loss(checkpoint, figures, time)
        elif any(name.startswith("Validation-") for name in figures):
            self._add_evaluation(checkpoint, figures, time)
        elif "Learning-rate" in figures:
            self._rate = figures["Learning-rate"]

    def _begin_checkpoint(self, checkpoint: int, figures: dict[str, float], time: float | None) -> None:
        step = int(figures["Updates"]) if figures["Updates"] < 10**15 else 0
        self._updates[checkpoint] = step
        self._run.facts["epochs_done"] = figures.get("Epoch", 0.0)
        self._run.add_checkpoint(step, path=checkpoint_path(checkpoint), time=time)
        batches = self._batches_before + self._newest_batch
        if step and batches >= step and batches % step == 0:
            self._batches_per_update = batches // step

    def _add_checkpoint_loss(self, checkpoint: int, figures: dict[str, float], time: float | None) -> None:
        step = self._updates.get(checkpoint)
        loss = train_loss_of({name.removeprefix("Train-"): value for name, value in figures.items()})
        if step is not None and loss is not None and step != self._run.newest_step:
            self._add_train(step, loss, time)

    def _add_evaluation(self, checkpoint: int, figures: dict[str, float], time: float | None) -> None:
        """Adds the evaluation of a checkpoint; the oldest versions log each of its figures in a line of its own."""
        step = self._updates.get(checkpoint)
        if step is None:
            return
        named = {name.removeprefix("Validation-"): value for name, value in figures.items()}
        evaluation = evaluation_of(named | self._scores.pop(checkpoint, {}))
        loss = self._watch.add_evaluation(step, evaluation.pop("loss", None))
        evaluation |= {} if loss is None else {"loss": loss}
        if checkpoint in self._evaluations:
            self._evaluations[checkpoint] |= evaluation
        else:
            self._run.add_evaluation(step, **evaluation, time=time)
            self._evaluations[checkpoint] = self._run.records[-1]

    def _add_scores(self, checkpoint: int, text: str) -> None:
        found = {name.removesuffix("-val"): float(value) for name, value in _DECODED_FIGURE.findall(text)}
        if checkpoint in self._evaluations:
            self._evaluations[checkpoint] |= evaluation_of(found)
        elif len(self._scores) < _MAX_CHECKPOINTS:
            self._scores[checkpoint] = found

    def _read_event(self, message: str, time: float | None) -> None:
        run = self._run
        if message.startswith("Command: ") and "train" in message:
            run.begin_launch(time)
            self._reason_of_end = ""
            self._clock.restart()
        elif message.startswith("Training started"):
            run.begin_launch(time)
        elif state := _STATE.match(message):
            run.begin_launch(time)
            run.add_restart(int(state[1]), cause="continued from a checkpoint", time=time)
            run.count_attempt()
        elif message.startswith("Training finished"):
            self._end()
        elif message.startswith("Model optimization diverged"):
            self._add_divergence(message)
        else:
            self._read_fact(message)

    def _end(self) -> None:
        self._run.facts["is_finished"] = True
        self._run.end_launch("finished", self._reason_of_end)

    def _add_divergence(self, message: str) -> None:
        step = max(self._updates.values(), default=0)
        what = f"Training diverged at step {step:,}, and Sockeye stopped."
        cause = "The perplexity was infinite or larger than twice the vocabulary: lower the learning rate."
        self._run.add_failure(LogFailure(what, cause, message, step=step, is_fatal=True))

    def _read_fact(self, message: str) -> None:
        facts = self._run.facts
        if message.startswith("Arguments: "):
            self._read_arguments(dict(_ARGUMENT.findall(message[:50_000])))
        elif match := _PARAMETERS.search(message[:200]):
            facts["parameters"] = parse_count(match[1])
        elif match := _ACCUMULATION.match(message):
            self._batches_per_update = facts["accumulation"] = max(1, int(match[1]))
            facts["num_ranks"] = int(match[2])
        elif match := _PAIRS.match(message):
            facts.setdefault("num_training_pairs", int(match[1]))
        elif match := _METRIC.match(message):
            facts["metric"] = match[1]
        elif message.startswith("Maximum number of not improved checkpoints") and "reached" in message:
            self._reason_of_end = "Sockeye stopped early: the dev set had not improved for long enough."
            self._run.note(self._reason_of_end)
        elif limit := _LIMIT.match(message):
            self._reason_of_end = f"Sockeye ended training because it reached the largest number of {limit[1]}."
            self._run.note(self._reason_of_end)

    def _read_arguments(self, arguments: dict[str, str]) -> None:
        numbers = {name: value for name, text in arguments.items() if (value := parse_count(text)) is not None}
        self._batches_per_update = max(1, numbers.get("update_interval", self._batches_per_update))
        run = self._run
        every = numbers.get("checkpoint_interval") or numbers.get("checkpoint_frequency")
        run.add_settings("training", max_steps=numbers.get("max_updates") or None)
        run.add_settings("evaluation", evaluate_every=every or None)
        for name, fact in (("max_num_epochs", "epochs_planned"), ("learning_rate_warmup", "warmup_steps")):
            if numbers.get(name):
                run.facts[fact] = numbers[name]
        if numbers.get("batch_size"):
            is_words = "sentence" not in arguments.get("batch_type", "")
            run.facts["batch_tokens" if is_words else "batch_sentences_per_rank"] = numbers["batch_size"]
