"""Reads logs of OpenSeq2Seq (`nohup.out`): steps, evaluations, samples, launches and the printed configuration.

Other processes write into the same file, so the lines of a record may be late, missing or joined into one line.
Sample text may hold anything, even text that looks like figures: it is only read as text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dragoman.importing.imported_run import MAX_SAMPLES_PER_RECORD, ImportedRun
from dragoman.importing.log_text import clean_text, is_usable, parse_number, parse_time
from dragoman.importing.trainers.openseq2seq_config import (
    ConfigCollector,
    apply_evaluation_config,
    apply_training_config,
)

TRAINER = "OpenSeq2Seq"
MAX_TRAIN_SAMPLES = 60
_DEFAULT_LOG_EVERY = 100

_OWN_BEGINNINGS = (
    "*** Global step ",
    "*** Epoch ",
    "*** Using horovod",
    "*** Starting training from ",
    "*** Restored checkpoint from ",
    "*** Training config:",
    "*** Evaluation config:",
    "*** Building graph ",
    "*** Total trainable parameters: ",
    "*** Running evaluation on a validation set",
    "***     Train loss: ",
    "***     Train Source[",
    "***     *****EVAL ",
    "***     Validation loss: ",
    "***     Eval BLUE score: ",
)
_LAUNCHES = ("Starting training", "Restored checkpoint from ", "Restoring from the latest checkpoint")
_SAMPLE_BEGINNINGS = (
    "***     *****EVAL ",
    "***     Train Source[",
    "***     Train Target[",
    "***     Train Prediction[",
)
_SAMPLE = re.compile(r"\*\*\* {1,8}(?:\*{5}EVAL|Train) (Source|Target|Prediction)\[[0-9]{1,9}\]: {0,8}")
_FIGURE = re.compile(
    r"(?P<step>[Gg]lobal step (?P<number>[0-9]{1,15}):)"
    r"|(?:Train loss: |\bloss = )(?P<loss>[-+.\w]{1,40})"
    r"|time per step = (?P<time>[0-9]{1,9}:[0-9]{1,2}:[0-9.]{1,12})"
    r"|Validation loss: (?P<eval_loss>[-+.\w]{1,40})"
    r"|Eval BLUE score: (?P<bleu>[-+.\w]{1,40})"
)
_CHECKPOINT_STEP = re.compile(r"-([0-9]{1,15})(?![0-9])")
_SAVED = re.compile(r"Saving checkpoints for ([0-9]{1,15}) into (\S{1,4000})")
_GPU_NAME = re.compile(r"\bname: ([^,:]{2,80}?)(?: major:|, pci)")
_SHAPE = re.compile(r"shape: \(([0-9]{1,12}), [0-9]{1,12}\)")
_DATE_WITHOUT_YEAR = re.compile(r"[IWEF]([0-9]{2})([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.")
_INTEGER = re.compile(r"[0-9]{1,15}")

TEACHER_FORCED = (
    "The BLEU and the translations in this log are teacher-forced: the model saw the reference while it predicted the "
    "next subword. They say nothing about real translations: translate a test set and score it with sacreBLEU."
)
_NO_RATES = (
    "The log holds no learning rate, gradient norm or loss scale: import the TensorBoard files of the run's logdir too."
)
_ONE_RANK = "The train loss in this log is that of one batch on rank 0, not a mean over ranks or steps: it is noisy."
CONTINUED = "The run continued an earlier run, whose steps are not in this log."


def is_own_line(line: str) -> bool:
    """Whether only OpenSeq2Seq writes such a line."""
    return line.startswith(_OWN_BEGINNINGS) or "open_seq2seq" in line


@dataclass
class _Step:
    """A logged step, as far as its lines have been read."""

    number: int
    loss: float | None = None
    seconds: float | None = None
    sample: dict[str, str] = field(default_factory=dict)


@dataclass
class _Evaluation:
    """An evaluation, as far as its lines have been read."""

    loss: float | None = None
    bleu: float | None = None
    samples: "_RankSamples" = field(default_factory=lambda: _RankSamples())


_Sample = dict[str, str]


class _RankSamples:
    """Pairs the sources, targets and predictions that several ranks write into one log, each rank in this order.

    A line belongs to a rank whose previous line is there. If two ranks wait for the same kind of line, nobody can tell
    whose it is: both samples are left out.
    """

    def __init__(self) -> None:
        self.complete: list[_Sample] = []
        self._without_target: list[_Sample | None] = []
        self._without_prediction: list[_Sample | None] = []

    def add(self, side: str, text: str) -> None:
        """Adds a line; None stands for a sample whose lines are not certain."""
        if side == "source":
            self._without_target.append({"source": text})
        elif side == "target":
            self._without_prediction.append(_continue(self._without_target, "reference", text))
        elif sample := _continue(self._without_prediction, "translation", text):
            self.complete.append(sample)


def _continue(waiting: list[_Sample | None], side: str, text: str) -> _Sample | None:
    """Adds a line to the only sample that waits for it; returns None if there are several or none."""
    if len(waiting) > 1:
        waiting[:] = [None] * len(waiting)
    sample = waiting.pop() if waiting else None
    return None if sample is None else sample | {side: text}


class OpenSeq2SeqReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._config: ConfigCollector | None = None
        self._apply_config: Callable[[dict[str, Any], ImportedRun], None] = apply_training_config
        self._step: _Step | None = None
        self._evaluation: _Evaluation | None = None
        self._last_step: int | None = None
        self._training_seconds = 0.0
        self._num_steps_read = 0
        self._sample_stride = 1
        self._num_samples = 0
        self._num_attempts = 0
        self._is_launching = False
        self._first_step_of_attempt = 0
        self._is_embedding = False
        self._is_finished = False

    def read(self, line: str) -> None:
        """Reads a line."""
        if line.startswith(_SAMPLE_BEGINNINGS):
            self._read_sample(line)
        elif self._config is not None and self._read_config(line):
            return
        elif "***" in line:
            self._read_decorated(line)
        elif "time per step = " in line:
            self._read_figures(line)
        else:
            self._read_other(line)

    def finish(self) -> None:
        """Ends open records and adds the facts that need all lines."""
        self._close_config()
        self._close_step()
        self._close_evaluation(next_step=None)
        facts = self._run.facts
        self._note_end(facts)
        facts["clock"] = "reconstructed"  # the log has seconds per step, but no time of day
        facts["num_attempts"] = max(self._num_attempts, 1)
        facts.setdefault("loss_unit", "unknown")
        if self._run.is_empty:
            return
        facts["bleu_kind"] = "teacher_forced"
        facts["is_train_loss_of_one_rank"] = facts["step_time_includes_evaluation"] = True
        for message in (TEACHER_FORCED, _ONE_RANK, _NO_RATES):
            self._run.note(message)

    def _note_end(self, facts: dict[str, Any]) -> None:
        planned = facts.get("steps_planned")
        is_short = planned is not None and self._last_step is not None and self._last_step < planned
        if self._is_finished or is_short:
            facts["is_finished"] = self._is_finished

    # Samples

    def _read_sample(self, line: str) -> None:
        found = _SAMPLE.match(line)
        if not found:
            return
        side = found[1].lower()
        if line.startswith("***     *****"):
            self._read_evaluation_sample(side, line, found.end())
        elif self._step and self._wants_sample:
            self._step.sample[side] = _join_subwords(line[found.end() :])
        if side == "prediction" and self._step and self._step.seconds is not None:
            self._close_step()

    def _read_evaluation_sample(self, side: str, line: str, start: int) -> None:
        if self._evaluation and len(self._evaluation.samples.complete) < MAX_SAMPLES_PER_RECORD:
            self._evaluation.samples.add(side, _join_subwords(line[start:]))

    @property
    def _wants_sample(self) -> bool:
        return self._num_steps_read % self._sample_stride == 0

    def _thin_out_samples(self) -> None:
        """Keeps every second sample, and later samples half as often, so that a long run keeps few."""
        with_sample = [record for record in self._run.records if "sample" in record]
        for record in with_sample[1::2]:
            del record["sample"]
        self._num_samples = len(with_sample[::2])
        self._sample_stride *= 2

    # Configuration

    def _read_config(self, line: str) -> bool:
        """Whether the line is part of the printed configuration."""
        assert self._config is not None
        is_part = self._config.add(line)
        if not self._config.is_open:
            self._close_config()
        return is_part

    def _close_config(self) -> None:
        if self._config is None:
            return
        config, self._config = self._config.parse(), None
        if config:
            self._apply_config(config, self._run)

    def _open_config(self, apply: Callable[[dict[str, Any], ImportedRun], None]) -> None:
        self._close_config()
        self._config, self._apply_config = ConfigCollector(), apply

    # Lines of OpenSeq2Seq

    def _read_decorated(self, line: str) -> None:
        sample = _SAMPLE.search(line)
        head = line[: sample.start()] if sample else line
        if " loss" in head or "lobal step " in head or "time per step = " in head or "Eval BLUE" in head:
            self._read_figures(head)
        else:
            self._read_announcement(head)
        if sample:
            self._read_sample(line[sample.start() :])

    def _read_figures(self, text: str) -> None:
        for figure in _FIGURE.finditer(text):
            value = figure[figure.lastgroup or 0]
            match figure.lastgroup:
                case "step":
                    self._begin_step(int(figure["number"]))
                case "loss" if self._step and self._step.loss is None:
                    self._step.loss = parse_number(value)
                case "time" if self._step and self._step.seconds is None:
                    self._step.seconds = _parse_seconds(value)
                case "eval_loss":
                    self._open_evaluation("loss").loss = parse_number(value)
                case "bleu":
                    self._open_evaluation("bleu").bleu = parse_number(value)

    def _read_announcement(self, text: str) -> None:
        self._close_complete_step()
        announcement = text[text.rfind("*** ") + 4 :].strip()
        match announcement.split(" ", 1)[0]:
            case "Running":
                self._begin_evaluation()
            case "Training" if announcement == "Training config:":
                self._open_config(apply_training_config)
            case "Evaluation" if announcement == "Evaluation config:":
                self._open_config(apply_evaluation_config)
            case "Using" if announcement == "Using horovod":
                self._begin_launch()
            case "Starting" | "Restored" | "Restoring" if announcement.startswith(_LAUNCHES):
                self._begin_attempt(announcement)
            case "Building" | "Trainable":
                self._is_launching = False
                self._read_rank(announcement)
            case "Total" | "Avg" | "Finished" | "Saving":
                self._read_total(announcement)
            case _:
                self._read_variable(announcement)

    def _read_rank(self, announcement: str) -> None:
        _, found, rank = announcement.partition("Horovod rank: ")
        if found and (number := _INTEGER.match(rank)):
            self._run.facts["num_ranks"] = max(int(number[0]) + 1, self._run.facts.get("num_ranks", 0))

    def _read_total(self, announcement: str) -> None:
        name, _, value = announcement.partition(": ")
        facts = self._run.facts
        match name:
            case "Total trainable parameters" if number := _INTEGER.match(value):
                facts["parameters"] = int(number[0])
            case "Avg time per step" if is_usable(seconds := parse_number(value.removesuffix("s"))):
                facts["mean_seconds_per_step"] = seconds
            case "Avg objects per second" if is_usable(speed := parse_number(value)):
                facts["objects_per_second"] = speed
            case "Finished training":
                self._is_finished = True
                self._run.end_launch("finished")
            case _ if name.startswith("Saving checkpoint") and self._last_step is not None:
                self._run.add_checkpoint(self._last_step)

    def _read_variable(self, announcement: str) -> None:
        """Reads the size of the vocabulary: the rows of the embedding matrix."""
        if "shape: (" not in announcement:
            self._is_embedding = "embedding" in announcement
        elif self._is_embedding and (shape := _SHAPE.search(announcement)):
            self._run.facts.setdefault("vocab_size", int(shape[1]))

    # Steps and launches

    def _begin_step(self, number: int) -> None:
        self._close_step()
        if self._last_step is not None and number < self._last_step and not self._is_launching:
            self._num_attempts += 1
            self._begin_again(number, "the steps began again at a lower number")
        self._is_launching = False
        self._close_evaluation(next_step=number)
        self._step = _Step(number)

    def _close_complete_step(self) -> None:
        """Ends the record at a line of another process, unless its time is still missing."""
        if self._step and self._step.loss is not None and self._step.seconds is not None:
            self._close_step()

    def _close_step(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        figures: dict[str, Any] = {"loss": step.loss}
        # The first time after a launch includes its set-up.
        if step.seconds is not None and self._last_step is not None:
            self._training_seconds += step.seconds * max(step.number - self._last_step, 0)
            figures |= {"seconds_per_step": step.seconds, "training_seconds": self._training_seconds}
        if self._wants_sample and len(step.sample) == MAX_SAMPLES_PER_RECORD:
            figures["sample"] = step.sample
            self._num_samples += 1
        self._run.add_train(step.number, **figures)
        self._last_step = step.number
        self._num_steps_read += 1
        if self._num_samples > MAX_TRAIN_SAMPLES:
            self._thin_out_samples()

    def _begin_launch(self) -> None:
        self._close_step()
        self._close_evaluation(next_step=None)
        num_launches = len(self._run.launches)
        self._run.begin_launch()
        if len(self._run.launches) > num_launches:
            self._run.facts.pop("num_ranks", None)
            self._is_launching = False

    def _begin_attempt(self, announcement: str) -> None:
        self._begin_launch()
        if self._is_launching:  # every rank may write the same line
            return
        self._num_attempts += 1
        is_first = not self._run.num_logged_steps  # launches that failed before their first step do not count
        found = _CHECKPOINT_STEP.search(announcement)
        step = 0 if announcement.startswith("Starting") else int(found[1]) if found else self._last_step or 0
        self._first_step_of_attempt = step
        if is_first and not announcement.startswith("Starting"):
            self._run.note(CONTINUED)
        elif not is_first:
            self._begin_again(step, clean_text(announcement, 300))
        self._is_launching = True

    def _begin_again(self, step: int, cause: str) -> None:
        self._run.add_restart(step, cause=cause)
        self._first_step_of_attempt, self._last_step, self._is_finished = step, None, False

    # Evaluations

    def _begin_evaluation(self) -> None:
        self._close_step()
        self._close_evaluation(next_step=None)
        self._evaluation = _Evaluation()

    def _open_evaluation(self, figure: str) -> _Evaluation:
        """Returns the evaluation that this figure belongs to; a new one if its heading is missing."""
        if self._evaluation is None or getattr(self._evaluation, figure) is not None:
            self._begin_evaluation()
        assert self._evaluation is not None
        return self._evaluation

    def _close_evaluation(self, next_step: int | None) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None or evaluation.loss is evaluation.bleu is None:
            return
        figures: dict[str, Any] = {"loss": evaluation.loss, "teacher_forced_bleu": evaluation.bleu}
        if evaluation.samples.complete:
            figures["samples"] = evaluation.samples.complete
        self._run.add_evaluation(self._evaluation_step(next_step), **figures)

    def _evaluation_step(self, next_step: int | None) -> int:
        """Guesses the step of an evaluation, which the log does not say, from the logged steps around it."""
        before = self._last_step
        if before is None:
            return self._first_step_of_attempt
        facts = self._run.facts
        every = facts.get("evaluate_every", 0)
        latest = before + facts.get("log_every", _DEFAULT_LOG_EVERY) if next_step is None else next_step
        if every and latest // every * every >= before:
            return int(latest // every * every)
        # The last evaluation comes after the last step.
        planned = facts.get("steps_planned", 0)
        return planned if self._is_finished and before <= planned <= latest else before

    # Lines of other programs

    def _read_other(self, line: str) -> None:
        self._close_complete_step()
        if line.startswith("name: ") or "physical GPU (" in line:
            if name := _GPU_NAME.search(line):
                self._run.add_to_fact("gpus", clean_text(name[1]))
        elif "Saving checkpoints for " in line and (saved := _SAVED.search(line)):
            self._run.add_checkpoint(int(saved[1]), path=saved[2].rstrip("."))
        elif line.startswith("Traceback "):
            self._is_launching = False
            self._close_step()
        if line[:1] in "12IWEF":
            self._read_date(line)

    def _read_date(self, line: str) -> None:
        facts = self._run.facts
        date = parse_time(line[:19])
        if date is None and "started" in facts and (found := _DATE_WITHOUT_YEAR.match(line)):
            date = _time_after(facts["started"], found)
        if date is not None:
            facts.setdefault("started", date)
            facts["last_dated"] = max(date, facts.get("last_dated", date))


def _parse_seconds(text: str) -> float | None:
    """Returns the seconds of hours:minutes:seconds, where the seconds have no leading zero: 0:00:1.946."""
    hours, minutes, seconds = text.split(":")
    rest = parse_number(seconds)
    return None if rest is None else int(hours) * 3600 + int(minutes) * 60 + rest


def _time_after(started: float, date_without_year: re.Match[str]) -> float | None:
    """Returns the time of a date without a year: in the year of the start or the next one."""
    month, day, hour, minute, second = date_without_year.groups()
    year = datetime.fromtimestamp(started, tz=UTC).year
    same_year, next_year = (parse_time(f"{y:04}-{month}-{day} {hour}:{minute}:{second}") for y in (year, year + 1))
    # One day of tolerance: the clocks of hosts differ.
    return next_year if same_year is not None and same_year < started - 86_400 else same_year


def _join_subwords(text: str) -> str:
    """Joins subwords into a sentence; text behind the end mark is padding."""
    before, _, _ = text.partition("</s>")
    text = clean_text(before.replace("<s>", ""))
    if "▁" in text:
        return text.replace(" ", "").replace("▁", " ").strip()
    return text.replace("@@ ", "")
