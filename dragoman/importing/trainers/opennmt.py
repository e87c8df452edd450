"""Reads logs of OpenNMT-py 0.9 to 3.5 and of its successor Eole, which writes nearly the same lines.

Registered once in detection.py, by TRAINER, is_own_line and OpenNmtReader: the reader itself sets `run.trainer` to
EOLE where a line shows that Eole wrote the log.
"""

import re

from dragoman.importing.imported_run import LOSS_IS_LOG_PERPLEXITY, ImportedRun, evaluation_step
from dragoman.importing.log_text import COUNT, NUMBER, loss_of_perplexity, parse_count, parse_number, parse_time
from dragoman.importing.trainers.pausing_clock import PausingClock

TRAINER = "OpenNMT-py"
EOLE = "Eole"

_STEP = re.compile(r"Step (\d{1,15})(?:/ *(\d{1,15}))?; acc: ", re.ASCII)
_PARAMETERS = re.compile(rf"number of parameters: ({COUNT})", re.ASCII)
_GPUS = re.compile(r"(?:Starting training on GPU|GPU ranks): (\[[\d, ]{0,2000}\])", re.ASCII)
_VALIDATE_EVERY = re.compile(r"validate every (\d{1,12}) steps", re.ASCII)
_EXAMPLES = re.compile(r"number of examples: (\d{1,15})", re.ASCII)
_CORPUS = re.compile(r"ParallelCorpus\(([^,()]{1,500}), ([^,()]{1,500}),")
_VOCABULARY = re.compile(r"(?:target = |tgt vocab size = |tgt vocab size: )(\d{1,12})", re.ASCII)
_GENERATOR = re.compile(r"in_features=(\d{1,9}), out_features=(\d{1,9})", re.ASCII)
_STEP_IN_NAME = re.compile(r"step_(\d{1,15})", re.ASCII)
_TOOK = re.compile(rf"took ?: ({NUMBER}) s", re.ASCII)
_SCORE = re.compile(rf"alidation (\w{{1,30}}): ({NUMBER})(?![\w.])", re.ASCII)
_CRITERION = re.compile(r"Model is improving (\w{1,30}): ", re.ASCII)
_SUMMARY = re.compile(r"INFO\] (World size|Train steps|Accumulation count): (\S.{0,200})")
_FAILED = re.compile(r"ERROR\] Training failed with error: (.{1,300})")
_FIELDS = ("perplexity", "accuracy", "bleu", "chrf", "ter")
_CRITERIA = {"ppl": "perplexity", "acc": "accuracy"}
_EOLE_MARKS = (
    "] Training Configuration Summary",
    "] Logging initialized (log_file: ",
    "] Saving optimizer and weights to ",
    "] Starting training in ",
    "] bos_token token is: ",
)
_SHARED_MARKS = (" * number of parameters: ", "] Start training loop ", " INFO] Validation perplexity: ")
_START_MARKS = (
    "] Logging initialized (log_file: ",
    " corpora from -data.",
    "] Building model...",
    "] Start training loop",
)
_EARLY_STOP = "Training stopped early because the dev set did not improve any more."
_STEPS_ARE_MISSING = (
    "The log shows no step of training. Eole may write its training steps to the terminal only: "
    "add the saved terminal output or the TensorBoard files."
)
_SAME_LOSS = 0.06
"""Largest difference of the printed loss and the logarithm of the printed perplexity that is due to rounding."""


def is_own_line(line: str) -> bool:
    """Whether only OpenNMT-py or Eole writes such a line."""
    if "; ppl: " in line:
        return "Step " in line and " tok/s" in line
    if " INFO] " not in line:
        return False
    return any(mark in line for mark in _SHARED_MARKS) or _is_of_eole(line)


def _is_of_eole(line: str) -> bool:
    return any(mark in line for mark in _EOLE_MARKS)


class OpenNmtReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._clock = PausingClock()
        self._evaluation: dict[str, float] = {}
        self._evaluation_time: float | None = None
        self._saved_step: int | None = None
        self._evaluation_step: int | None = None
        self._evaluated_step = -1
        self._step_time: float | None = None
        self._elapsed_before = 0.0
        self._elapsed = 0.0
        self._loaded: tuple[int | None, str] | None = None
        self._first_step: int | None = None
        self._is_finished: bool | None = None
        self._is_model_built = False
        self._are_pauses_known = True
        self._reads_training_data = False
        self._is_generator_next = False

    def read(self, line: str) -> None:
        """Reads a line."""
        if "Step " in line and (match := _STEP.search(line)):
            self._read_train(line, int(match[1]), parse_count(match[2] or ""))
        elif "alidation " in line and (match := _SCORE.search(line)):
            self._read_score(line, match[1], float(match[2]))
        elif "(generator)" in line or self._is_generator_next:
            self._read_generator(line)
        elif " took" in line and (match := _TOOK.search(line)):
            self._evaluation["seconds"] = self._evaluation.get("seconds", 0.0) + float(match[1])
        elif " INFO] " in line or " ERROR] " in line:
            self._read_message(line)

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        run = self._run
        self._flush_evaluation()
        newest = run.newest_step
        planned = run.facts.get("steps_planned")
        if self._is_finished is None and planned and self._saved_step == planned:
            self._is_finished = True
            run.end_launch("finished", f"The checkpoint of the last planned step, {planned:,}, was saved.")
        if self._is_finished is not None:
            run.facts["is_finished"] = self._is_finished
        if newest is not None or self._saved_step:
            run.facts["steps_done"] = max(newest or 0, self._saved_step or 0)
        self._add_log_interval()
        has_ended = bool(run.launches) and run.launches[-1].end != "unknown"
        if run.trainer == EOLE and self._is_model_built and run.is_empty and not has_ended:
            run.facts["has_unread_steps" if self._saved_step else "is_cut"] = True
            run.note(_STEPS_ARE_MISSING)
        run.facts["loss_unit"] = "nats per token"
        run.facts["step_time_includes_evaluation"] = not self._are_pauses_known
        run.note_missing_facts()

    def _add_log_interval(self) -> None:
        if every := self._clock.log_every:
            self._run.facts["log_every"] = every
            if self._first_step and self._first_step > every:
                self._run.facts["begins_midway"] = True

    # training

    def _read_train(self, line: str, step: int, num_steps: int | None) -> None:
        self._flush_evaluation()
        self._is_finished = None
        now = _time_of(line)
        figures = _figures_of(line)
        self._watch_for_restart(step, now)
        self._first_step = step if self._first_step is None else self._first_step
        self._elapsed = figures.get("sec", self._elapsed)
        self._step_time = self._elapsed if now is None else now
        if "aux" in figures:
            self._run.trainer = EOLE
        if num_steps and num_steps != self._run.facts.get("steps_planned"):
            self._run.add_settings("training", max_steps=num_steps)
        self._run.add_train(
            step,
            loss=_exact_loss(figures),
            perplexity=figures.get("ppl"),
            accuracy=_share(figures.get("acc")),
            learning_rate=figures.get("lr"),
            # Not from the printed speeds: the number of tokens is not logged.
            seconds_per_step=self._clock.seconds_per_step(step, self._step_time),
            target_tokens_per_second=figures.get("tok/s"),
            training_seconds=self._elapsed_before + self._elapsed if "sec" in figures else None,
            time=now,
        )
        if num_steps and step >= num_steps:
            self._is_finished = True
            self._run.end_launch("finished", f"All {num_steps:,} planned steps were made.")

    def _watch_for_restart(self, step: int, now: float | None) -> None:
        """Adds a restart: announced by a loaded checkpoint, or seen from the step."""
        loaded, self._loaded = self._loaded, None
        if (restart := self._run.find_restart(step, loaded)) is not None:
            self._restart(*restart, now)

    def _restart(self, step: int, cause: str, now: float | None) -> None:
        self._run.add_restart(step, cause=cause, time=now)
        self._run.count_attempt()
        self._evaluated_step = min(self._evaluated_step, step)
        # The log counts its seconds from the latest start.
        self._elapsed_before += self._elapsed
        self._elapsed = 0.0
        self._clock.restart()

    # evaluations

    def _read_score(self, line: str, metric: str, value: float) -> None:
        name = metric.lower() if metric.lower() in _FIELDS else metric
        # Version 2 prints a score several times before the perplexity; the last one counts.
        if name in self._evaluation and "perplexity" in self._evaluation:
            self._flush_evaluation()
        now = _time_of(line)
        if not self._evaluation.keys() - {"seconds"}:
            self._begin_pause(now)
        self._clock.extend_pause(now)
        self._evaluation[name] = value
        self._evaluation_time = now

    def _begin_pause(self, now: float | None) -> None:
        """Finds when the evaluation began: at the step it belongs to, else by its printed duration."""
        newest = self._run.newest_step or 0
        every, seconds = self._run.facts.get("evaluate_every"), self._evaluation.get("seconds")
        if now is None:
            self._are_pauses_known = False
        elif self._step_time is not None and (not every or newest % every == 0):
            self._evaluation.setdefault("seconds", max(0.0, now - self._step_time))
            self._clock.begin_pause(self._step_time)
        elif seconds is not None:
            self._clock.begin_pause(now - seconds)
        else:
            self._are_pauses_known = False

    def _flush_evaluation(self) -> None:
        """Adds one record for all figures up to the next step: each has its own line."""
        figures, self._evaluation = self._evaluation, {}
        step, self._evaluation_step = self._step_of_evaluation(), None
        if step is None or not figures.keys() - {"seconds"}:
            return
        if "bleu" in figures:
            self._run.facts["bleu_kind"] = "unknown"
        loss = loss_of_perplexity(figures.get("perplexity"))
        if loss is not None:
            self._run.note(LOSS_IS_LOG_PERPLEXITY)
        others = {name: value for name, value in figures.items() if name not in (*_FIELDS, "seconds")}
        self._evaluated_step = step
        self._run.add_evaluation(
            step,
            **{name: figures.get(name) for name in (*_FIELDS, "seconds")}
            | {"loss": loss, "accuracy": _share(figures.get("accuracy")), "other_scores": others or None},
            time=self._evaluation_time,
        )

    def _step_of_evaluation(self) -> int | None:
        """Finds the step: by the checkpoint saved after the evaluation, else by the step logged before it."""
        newest, every = self._run.newest_step, self._run.facts.get("evaluate_every")
        if newest is None or (self._evaluation_step or 0) > newest:
            return self._evaluation_step
        step = evaluation_step(newest, every, self._clock.log_every)
        if every and step <= self._evaluated_step:
            return self._evaluated_step + int(every)
        return step

    # messages

    def _read_message(self, line: str) -> None:
        facts, now = self._run.facts, _time_of(line)
        if _is_of_eole(line):
            self._run.trainer = EOLE
        if any(mark in line for mark in _START_MARKS):
            self._begin_launch(line, now)
        if match := _PARAMETERS.search(line):
            facts["parameters"] = parse_count(match[1])
            self._is_model_built = True
        elif "Starting training on " in line or "GPU ranks: " in line:
            self._read_ranks(line)
        elif match := _CRITERION.search(line):
            facts.setdefault("metric", _CRITERIA.get(match[1], match[1].lower()))
        elif "Saving " in line:
            self._read_saved(line, now)
        elif "Loading checkpoint from" in line or "Loading metadata from" in line:
            step = _STEP_IN_NAME.search(line)
            self._loaded = (int(step[1]) if step else None, line.rpartition(" ")[2])
        elif not (self._read_end(line) or self._read_summary(line)):
            self._read_data(line)

    def _begin_launch(self, line: str, now: float | None) -> None:
        self._flush_evaluation()
        self._run.begin_launch(now)
        self._run.facts.setdefault("started", now)
        if match := _VALIDATE_EVERY.search(line):
            self._run.add_settings("evaluation", evaluate_every=int(match[1]))

    def _read_ranks(self, line: str) -> None:
        """Counts the ranks; Eole lists no GPU where it trains on the CPU."""
        if (match := _GPUS.search(line)) and match[1] != "[]":
            self._run.facts["num_ranks"] = max(1 + match[1].count(","), self._run.facts.get("num_ranks", 1))
        elif "on CPU" in line:
            self._run.facts["num_ranks"] = 1

    def _read_summary(self, line: str) -> bool:
        """Reads a line of the summary with which Eole starts."""
        match = _SUMMARY.search(line)
        if not match:
            return False
        number = parse_count(match[2].strip("[] "))
        if match[1] == "World size" and number:
            self._run.facts["num_ranks"] = number
        elif match[1] == "Train steps" and number:
            self._run.add_settings("training", max_steps=number)
        elif match[1] == "Accumulation count" and number:
            self._run.facts["accumulation"] = number
        return True

    def _read_end(self, line: str) -> bool:
        """Reads why training ended."""
        if "earlystopper has_stopped" in line or "Early Stop!" in line:
            self._is_finished = True
            self._run.note(_EARLY_STOP)
            self._run.end_launch("finished", _EARLY_STOP)
        elif "Training interrupted by user" in line:
            self._is_finished = False
            self._run.end_launch("stopped", "Somebody interrupted training.")
        elif match := _FAILED.search(line):
            self._run.end_launch("failed", f"Eole ended with an error: {match[1]}")
        else:
            return False
        return True

    def _read_saved(self, line: str, now: float | None) -> None:
        """Reads a saved checkpoint; Eole also tells when its weights were written."""
        self._clock.extend_pause(now)
        if "Saving checkpoint " not in line and "Saving optimizer and weights to " not in line:
            return
        match = _STEP_IN_NAME.search(line)
        step = int(match[1]) if match else self._run.newest_step
        if self._evaluation.keys() - {"seconds"}:
            self._evaluation_step = step
        if step is None or step == self._saved_step:
            return
        self._saved_step = step
        path = line.partition(" to ")[2].partition(",")[0] if " to " in line else line.rpartition(" ")[2]
        self._run.add_checkpoint(step, path=path, time=now)

    def _read_data(self, line: str) -> None:
        facts = self._run.facts
        if "Loading dataset from " in line:
            self._reads_training_data = ".train." in line
        elif match := _EXAMPLES.search(line):
            if self._reads_training_data:
                facts.setdefault("num_training_pairs", int(match[1]))
        elif match := _CORPUS.search(line):
            facts.setdefault("training_files", {"source": match[1], "target": match[2]})
        elif "vocab" in line and (match := _VOCABULARY.search(line)):
            facts["vocab_size"] = int(match[1])

    def _read_generator(self, line: str) -> None:
        """Reads width and vocabulary from the last layer of the printed model."""
        self._is_generator_next = "Sequential(" in line
        if match := _GENERATOR.search(line):
            self._run.facts["width"], self._run.facts["vocab_size"] = int(match[1]), int(match[2])


def _figures_of(line: str) -> dict[str, float]:
    """Reads figures by name; "15309/16036 tok/s" (source and target) and "254 sec" are named by their unit."""
    figures = {}
    for part in line.split(";", 20)[1:]:
        name, colon, text = part.partition(":")
        if not colon:
            text, _, name = part.strip().rpartition(" ")
            text = text.rpartition("/")[2]
        if (number := parse_number(text)) is not None:
            figures[name.strip()] = number
    return figures


def _exact_loss(figures: dict[str, float]) -> float | None:
    """Returns the logarithm of the perplexity, which has more digits than the loss; the loss where they differ."""
    printed, loss = figures.get("xent"), loss_of_perplexity(figures.get("ppl"))
    if printed is None or loss is None:
        return loss if printed is None else printed
    return loss if abs(loss - printed) <= _SAME_LOSS else printed


def _time_of(line: str) -> float | None:
    """Reads the time of "[2020-02-09 07:29:01,570 INFO] …", which may be indented in a copy."""
    text = line[:100].lstrip()
    return parse_time(text[1:24]) if text.startswith("[") else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
