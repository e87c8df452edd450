"""Reads logs of JoeyNMT 0.9 to 2.3: train.log, validations.txt or its terminal output, in any order of the files.

Registered in detection.py by TRAINER, is_own_line and JoeyReader. The lines of train.log and validations.txt of one
model folder go to one reader, which joins them by their steps.
"""

import re
from typing import Any

from dragoman.importing.imported_run import MAX_RECORDS, MAX_SAMPLES_PER_RECORD, ImportedRun, evaluation_step
from dragoman.importing.log_text import COUNT, NUMBER, parse_count, parse_time
from dragoman.importing.trainers.joeynmt_config import SETTING, JoeyConfig
from dragoman.importing.trainers.joeynmt_scores import (
    add_exact_scores,
    eval_metric_of,
    figures_of,
    scale_chrf,
    scores_of,
    settle_loss_unit,
)
from dragoman.importing.trainers.pausing_clock import PausingClock

TRAINER = "JoeyNMT"

_EPOCH = re.compile(r"\bEpoch +(\d{1,9})", re.ASCII)
_STEP = re.compile(r"Steps?: *(\d{1,15})\b", re.ASCII)
_RESULT_STEP = re.compile(r"step *(\d{1,15})", re.ASCII)
_DURATION = re.compile(rf"duration: ({NUMBER})(?:\[sec\]|s\b)", re.ASCII)
_SECONDS = re.compile(rf"({NUMBER})\[sec\]", re.ASCII)
_PARAMETERS = re.compile(rf"Total params: ({COUNT})", re.ASCII)
_CHECKPOINT = re.compile(r"(?<!\S)(\S{0,500}/)?(\d{1,15}|best|latest)\.ckpt", re.ASCII)
_VOCABULARY = re.compile(r"Trg (?:words \(types\)|tokens \(vocab_size\)): *(\d{1,12})", re.ASCII)
_TRAINING_PAIRS = re.compile(r"(?:^\s+train (\d{1,15}),)|(?:split=train, len=(\d{1,15}))", re.ASCII)
_VERSION = re.compile(r"Joey-?NMT \(version ([\w.]{1,20})\)", re.ASCII)
_METRIC = re.compile(r"New best validation result \[(\w{1,30})\]", re.ASCII)
_SIGNATURE = re.compile(r"joeynmt\.metrics - (\S{1,200}\|tok:\S{1,200})$")
_ENDED = re.compile(r"Training ended (?:since|after) .{1,200}")
_INTERRUPTED = re.compile(r"Interrupt at epoch (\d{1,9}), step (\d{1,15})", re.ASCII)
_TEST_SCORE = re.compile(r"(?<!\S)(?:dev|test) \w{1,20}: *\d")
_FORGOT_TO_DETOKENIZE = "you forgot to detokenize"
_SAMPLE_PARTS = {"Source:": "source", "Reference:": "reference", "Hypothesis:": "translation"}


def is_own_line(line: str) -> bool:
    """Whether only JoeyNMT writes such a line."""
    if line.startswith("Steps: "):
        return "LR: " in line
    return " - INFO - joeynmt." in line or "Joey-NMT" in line or ("Batch Loss: " in line and "Tokens per Sec: " in line)


class JoeyReader:
    """Reads the logs of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._config = JoeyConfig(run)
        self._clock = PausingClock()
        self._evaluation: dict[str, Any] = {}
        self._samples: list[dict[str, str]] = []
        self._exact: dict[int, list[dict[str, Any]]] = {}
        self._evaluated: set[int] = set()
        self._loaded: tuple[int | None, str] | None = None
        self._saved: str | None = None
        self._metric: str | None = None
        self._eval_metric: str | None = None
        self._first_step: int | None = None
        self._newest = 0
        self._scale = 1
        self._is_finished: bool | None = None
        self._is_test = False
        self._has_begun_training = False
        """Whether the newest launch has."""
        self._are_pauses_known = True

    def read(self, line: str) -> None:
        """Reads a line."""
        if "Batch Loss:" in line:
            self._read_train(line)
        elif line.startswith("Steps: "):
            self._read_validations_file(line)
        elif " result " in line and ("Validation result " in line or "Evaluation result (greedy)" in line):
            self._read_result(line)
        elif "cfg." in line and (match := SETTING.search(line)):
            self._config.add(match[1], match[2].strip())
        elif line.startswith(("\t", " ")):
            self._read_fact(line)
        elif line.startswith("20") or "oey" in line:
            self._read_message(line)

    def finish(self) -> None:
        """Adds the facts that need all lines, and the settings of the configuration."""
        run = self._run
        self._flush_evaluation()
        add_exact_scores(run, self._exact)
        scale_chrf(run)
        self._config.add_facts()
        settle_loss_unit(run, self._config.normalization)
        if (smoothing := run.facts.get("label_smoothing")) and run.facts["loss_unit"] == "nats per token":
            run.note(f"The loss and perplexity include the label smoothing of {smoothing:g}, on the dev set too.")
        if self._scale > 1 and self._first_step is not None:
            run.note(f"JoeyNMT divides the training loss by the number of GPUs: it was multiplied by {self._scale}.")
        run.facts["step_time_includes_evaluation"] = not self._are_pauses_known
        self._add_progress()
        run.note_missing_facts()

    def _add_progress(self) -> None:
        facts = self._run.facts
        if metric := self._config.metric(self._metric, self._eval_metric):
            facts["metric"] = metric
        if self._is_finished is not None:
            facts["is_finished"] = self._is_finished
        if self._newest:
            facts["steps_done"] = self._newest
        every = facts.get("log_every") or self._clock.log_every
        if self._first_step and every and self._first_step > every:
            facts["begins_midway"] = True

    # training

    def _read_train(self, line: str) -> None:
        match = _STEP.search(line)
        if not match:
            return
        self._flush_evaluation()
        step, now = int(match[1]), parse_time(line)
        self._is_test, self._has_begun_training, self._is_finished = False, True, None
        self._watch_for_restart(step, now)
        self._first_step = step if self._first_step is None else self._first_step
        self._newest = step
        figures, epoch = figures_of(line), _EPOCH.search(line)
        loss = figures.get("batch loss")
        self._run.add_train(
            step,
            loss=None if loss is None else loss * self._scale,
            accuracy=figures.get("batch acc"),
            learning_rate=figures.get("lr"),
            epoch=max(0, int(epoch[1]) - 1) if epoch else None,
            seconds_per_step=self._clock.seconds_per_step(step, now),
            target_tokens_per_second=figures.get("tokens per sec"),
            time=now,
        )

    def _watch_for_restart(self, step: int, now: float | None) -> None:
        """Adds a restart: announced by a loaded checkpoint, or seen from the step."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._clock.restart()
        if (restart := self._run.find_restart(step, loaded)) is not None:
            self._restart(*restart, now)

    def _restart(self, step: int, cause: str, now: float | None) -> None:
        self._run.add_restart(step, cause=cause, time=now)
        self._run.count_attempt()
        self._clock.restart()
        self._evaluated = {known for known in self._evaluated if known <= step}

    # evaluations

    def _read_result(self, line: str) -> None:
        """Reads "Validation result (greedy) at epoch 1, step 9: …" (version 1) or "Evaluation result (greedy): …"."""
        newest, logged_step = self._run.newest_step, _RESULT_STEP.search(line)
        if self._is_test or (newest is None and not logged_step):
            return
        step = int(logged_step[1]) if logged_step else self._step_of_evaluation(newest or 0)
        figures = figures_of(line.partition(" result ")[2].partition("step")[2] if logged_step else line)
        self._eval_metric = self._eval_metric or eval_metric_of(figures)
        self._newest = max(self._newest, step)
        now = parse_time(line)
        self._evaluation |= {"step": step, "time": now, "seconds": self._evaluation_seconds(line)} | scores_of(figures)
        if logged_step:
            seconds = self._evaluation["seconds"]
            self._clock.begin_pause(None if now is None or seconds is None else now - seconds)
            self._are_pauses_known = self._are_pauses_known and seconds is not None
        self._clock.extend_pause(now)

    def _step_of_evaluation(self, newest: int) -> int:
        return evaluation_step(newest, self._config.count("training", "validation_freq"), self._clock.log_every)

    def _evaluation_seconds(self, line: str) -> float | None:
        """Returns the duration of version 1, or the sum of generation and evaluation of version 2."""
        if duration := _DURATION.search(line):
            return float(duration[1])
        generation = self._evaluation.get("seconds") or 0.0
        return generation + sum(float(number) for number in _SECONDS.findall(line)) or None

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
            self._run.facts.setdefault("bleu_kind", "unknown")

    def _read_validations_file(self, line: str) -> None:
        match = _STEP.match(line)
        if not match or len(self._exact) >= MAX_RECORDS:
            return
        figures = figures_of(line)
        self._eval_metric = self._eval_metric or eval_metric_of(figures)
        self._exact.setdefault(int(match[1]), []).append(scores_of(figures))
        self._newest = max(self._newest, int(match[1]))
        if "bleu" in figures:
            self._run.facts.setdefault("bleu_kind", "unknown")

    # messages

    def _read_message(self, line: str) -> None:
        now = parse_time(line)
        if "EPOCH " in line or "total training loss" in line:
            self._clock.end_pause()
            self._has_begun_training = True
            self._read_epoch(line)
            return
        self._clock.extend_pause(now)
        if "Predicting " in line and self._is_translating:
            self._begin_test()
        elif "Predicting " in line and not self._is_test:
            self._clock.begin_pause(now)
        elif "Generation took" in line and (match := _SECONDS.search(line)) and not self._is_test:
            self._evaluation["seconds"] = float(match[1])
        elif ".ckpt" in line:
            self._read_checkpoint(line, now)
        elif "Saving new checkpoint." in line and self._run.newest_step is not None:
            self._run.add_checkpoint(self._step_of_evaluation(self._run.newest_step), time=now)
        elif "Decoding on " in line or "Scoring on " in line or _TEST_SCORE.search(line):
            # From here on the finished model is evaluated, also on the dev set, with other search settings.
            self._begin_test()
        elif not (self._read_sample(line) or self._read_end(line)):
            self._read_fact(line)

    @property
    def _is_translating(self) -> bool:
        """Whether the newest launch predicts before it trains, which a training never does."""
        launch = self._run.launches[-1] if self._run.launches else None
        return launch is not None and launch.last_step is None and not self._has_begun_training

    def _begin_test(self) -> None:
        self._flush_evaluation()
        self._is_test = True
        self._run.drop_idle_launch()

    def _read_epoch(self, line: str) -> None:
        if "total training loss" in line and (match := _EPOCH.search(line)):
            self._run.facts["epochs_done"] = int(match[1])

    def _read_sample(self, line: str) -> bool:
        if "Example #" in line:
            if len(self._samples) < MAX_SAMPLES_PER_RECORD:
                self._samples.append({})
            return True
        part, _, sentence = line.partition("\t")[2].partition(" ")
        if part not in _SAMPLE_PARTS:
            return False
        if self._samples:
            self._samples[-1].setdefault(_SAMPLE_PARTS[part], sentence.strip())
        return True

    def _read_end(self, line: str) -> bool:
        """Reads why training ended."""
        if match := _ENDED.search(line):
            self._flush_evaluation()
            self._is_finished = True
            self._end_launch("finished", " ".join(match[0].split()))
        elif match := _INTERRUPTED.search(line):
            self._newest = max(self._newest, int(match[2]))
            self._is_finished = False
            self._end_launch("stopped", f"Somebody interrupted training at step {int(match[2]):,}.")
        else:
            return False
        return True

    def _end_launch(self, end: str, reason: str) -> None:
        self._run.note(reason)
        self._run.end_launch(end, reason)

    def _read_checkpoint(self, line: str, now: float | None) -> None:
        match = _CHECKPOINT.search(line)
        if not match:
            return
        step = parse_count(match[2])
        if "Checkpoint saved in" in line and step is not None:
            if self._saved != match[0]:
                self._add_checkpoint(step, match[0], now)
            self._saved = match[0]
        elif "oading model from" in line or "Loading from" in line:
            self._loaded = (step, match[0])

    def _add_checkpoint(self, step: int, path: str, now: float | None) -> None:
        """Adds a checkpoint; one that follows an evaluation tells its step and how long saving took."""
        evaluated: float | None = self._evaluation.get("time")
        seconds = None
        if evaluated is not None and step >= (self._run.newest_step or 0):
            self._evaluation["step"] = step
            seconds = now - evaluated if now is not None and now >= evaluated else None
        self._run.add_checkpoint(step, path=path, seconds=seconds, time=now)
        self._run.facts.setdefault("checkpoint_folder", path.rpartition("/")[0] or ".")
        self._newest = max(self._newest, step)

    def _read_fact(self, line: str) -> None:
        facts = self._run.facts
        if match := _PARAMETERS.search(line):
            facts["parameters"] = parse_count(match[1])
        elif match := _VOCABULARY.search(line):
            facts["vocab_size"] = int(match[1])
        elif match := _TRAINING_PAIRS.search(line):
            facts["num_training_pairs"] = int(match[1] or match[2])
        elif match := _METRIC.search(line):
            self._metric = match[1]
        elif match := _SIGNATURE.search(line):
            self._evaluation["signature"] = match[1]
        elif "Hello! This is Joey-NMT" in line:
            self._begin_launch(line)
        elif _FORGOT_TO_DETOKENIZE in line:
            facts["bleu_kind"] = "tokenised"
        else:
            self._read_statistics(line.strip())

    def _begin_launch(self, line: str) -> None:
        now = parse_time(line)
        self._flush_evaluation()
        self._run.begin_launch(now)
        self._has_begun_training = False
        self._clock.restart()
        if match := _VERSION.search(line):
            self._run.facts["software"] = {"joeynmt": match[1]}
        if now is not None:
            self._run.facts.setdefault("started", now)

    def _read_statistics(self, line: str) -> None:
        """Reads a line of the block "Train stats:", which later versions call "Train config:"."""
        name, _, value = line.partition(":")
        number = parse_count(value.strip())
        if name == "n_gpu" and number is not None:
            # JoeyNMT starts all its processes on one machine.
            self._run.facts["num_ranks"] = self._run.facts["ranks_per_host"] = max(1, number)
            # Without DDP, JoeyNMT divides the training loss by the number of GPUs once too often.
            self._scale = max(1, number)
        elif name == "ddp training" and value.strip() == "True":
            self._scale = 1
        elif name == "16-bits training":
            self._run.facts["precision"] = "fp16" if value.strip() == "True" else "fp32"
        elif name == "gradient accumulation" and number is not None:
            self._run.facts["accumulation"] = number
