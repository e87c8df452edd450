"""Reads logs of OpenNMT-py 1 to 3 and of its successor Eole, which writes nearly the same lines."""

import re

from dragoman.importing.imported_run import LOSS_IS_LOG_PERPLEXITY, STEP_BACK, ImportedRun, evaluation_step
from dragoman.importing.log_text import (
    COUNT,
    NUMBER,
    LogClock,
    loss_of_perplexity,
    parse_count,
    parse_number,
    parse_time,
)

TRAINER = "OpenNMT-py"
_EOLE = "Eole"

_STEP = re.compile(r"Step (\d{1,15})/ *(\d{1,15});", re.ASCII)
_PARAMETERS = re.compile(rf"number of parameters: ({COUNT})", re.ASCII)
_GPUS = re.compile(r"Starting training on GPU: (\[[\d, ]{0,2000}\])", re.ASCII)
_VALIDATE_EVERY = re.compile(r"validate every (\d{1,12}) steps", re.ASCII)
_EXAMPLES = re.compile(r"number of examples: (\d{1,15})", re.ASCII)
_CORPUS = re.compile(r"ParallelCorpus\(([^,()]{1,500}), ([^,()]{1,500}),")
_VOCABULARY = re.compile(r"(?:target = |tgt vocab size = |tgt vocab size: )(\d{1,12})", re.ASCII)
_GENERATOR = re.compile(r"in_features=(\d{1,9}), out_features=(\d{1,9})", re.ASCII)
_STEP_IN_NAME = re.compile(r"step_(\d{1,15})", re.ASCII)
_TOOK = re.compile(rf"took ?: ({NUMBER}) s", re.ASCII)
_SCORE = re.compile(rf"alidation (\w{{1,30}}): ({NUMBER})", re.ASCII)
_SCORES = {"perplexity": "perplexity", "accuracy": "accuracy", "bleu": "bleu", "chrf": "chrf"}


def is_own_line(line: str) -> bool:
    """Whether only OpenNMT-py or Eole writes such a line."""
    if "; ppl: " in line:
        return "Step " in line and " tok/s" in line
    return " INFO] * number of parameters: " in line or " INFO] Start training loop " in line


class OpenNmtReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._evaluation: dict[str, float] = {}
        self._evaluation_time: float | None = None
        self._clock = LogClock()
        self._elapsed_before = 0.0
        self._elapsed = 0.0
        self._restarted_at: int | None = None
        self._reads_training_data = False
        self._is_generator_next = False

    def read(self, line: str) -> None:
        """Reads a line."""
        if "Step " in line and (match := _STEP.search(line)):
            self._read_train(line, int(match[1]), int(match[2]))
        elif "alidation " in line and (match := _SCORE.search(line)):
            self._read_score(line, match[1].lower(), float(match[2]))
        elif "(generator)" in line or self._is_generator_next:
            self._read_generator(line)
        elif " took" in line or " INFO] " in line:
            self._read_message(line)

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        run = self._run
        self._flush_evaluation()
        planned, newest = run.facts.get("steps_planned"), run.newest_step
        if planned and newest is not None and newest >= planned:
            run.facts["is_finished"] = True
        if self._clock.log_every:
            run.facts["log_every"] = self._clock.log_every
        run.facts["loss_unit"] = "nats per token"
        run.facts["step_time_includes_evaluation"] = True
        run.note_missing_facts()

    def _read_train(self, line: str, step: int, num_steps: int) -> None:
        self._flush_evaluation()
        now = _time_of(line)
        figures = _figures_of(line)
        self._watch_for_restart(step, now)
        self._elapsed = figures.get("sec", self._elapsed)
        if num_steps != self._run.facts.get("steps_planned"):
            self._run.add_settings("training", max_steps=num_steps)
        self._run.add_train(
            step,
            loss=figures.get("xent"),
            perplexity=figures.get("ppl"),
            accuracy=_share(figures.get("acc")),
            learning_rate=figures.get("lr"),
            # Not from the printed speeds: the number of tokens is not logged.
            seconds_per_step=self._clock.seconds_per_step(step, self._elapsed if now is None else now),
            target_tokens_per_second=figures.get("tok/s"),
            training_seconds=self._elapsed_before + self._elapsed if "sec" in figures else None,
            time=now,
        )

    def _watch_for_restart(self, step: int, now: float | None) -> None:
        if self._restarted_at is None and self._run.is_step_back(step):
            self._restart(step, STEP_BACK, now)
        self._restarted_at = None

    def _restart(self, step: int, cause: str, now: float | None) -> None:
        self._run.add_restart(step, cause=cause, time=now)
        self._run.count_attempt()
        # The log counts its seconds from the latest start.
        self._elapsed_before += self._elapsed
        self._elapsed = 0.0
        self._clock.restart()

    def _read_score(self, line: str, metric: str, value: float) -> None:
        name = _SCORES.get(metric)
        if name is None or self._run.newest_step is None:
            return
        if name in self._evaluation:
            self._flush_evaluation()
        self._evaluation[name] = value
        self._evaluation_time = _time_of(line)

    def _flush_evaluation(self) -> None:
        """Adds one record for all figures up to the next step: each has its own line."""
        figures, self._evaluation = self._evaluation, {}
        newest = self._run.newest_step
        if newest is None or not figures.keys() & set(_SCORES.values()):
            return
        loss = loss_of_perplexity(figures.get("perplexity"))
        if "bleu" in figures:
            self._run.facts["bleu_kind"] = "unknown"
        if loss is not None:
            self._run.note(LOSS_IS_LOG_PERPLEXITY)
        self._run.add_evaluation(
            evaluation_step(newest, self._run.facts.get("evaluate_every"), self._clock.log_every),
            loss=loss,
            perplexity=figures.get("perplexity"),
            accuracy=_share(figures.get("accuracy")),
            bleu=figures.get("bleu"),
            chrf=figures.get("chrf"),
            seconds=figures.get("seconds"),
            time=self._evaluation_time,
        )

    def _read_message(self, line: str) -> None:
        facts = self._run.facts
        if " took" in line and (match := _TOOK.search(line)):
            self._evaluation["seconds"] = self._evaluation.get("seconds", 0.0) + float(match[1])
        elif "number of parameters: " in line and (match := _PARAMETERS.search(line)):
            facts["parameters"] = parse_count(match[1])
        elif "Starting training on " in line:
            match = _GPUS.search(line)
            facts["num_ranks"] = 1 + match[1].count(",") if match else 1
        elif match := _VALIDATE_EVERY.search(line):
            self._run.add_settings("evaluation", evaluate_every=int(match[1]))
        elif "earlystopper has_stopped" in line:
            facts["is_finished"] = True
            self._run.note("Training stopped early because the dev set did not improve any more.")
        elif "checkpoint" in line or "Saving optimizer and weights" in line:
            self._read_checkpoint(line)
        else:
            self._read_data(line)

    def _read_checkpoint(self, line: str) -> None:
        match = _STEP_IN_NAME.search(line)
        if "Saving optimizer and weights" in line:
            self._run.trainer = _EOLE
        if "Saving " in line:
            step = int(match[1]) if match else self._run.newest_step
            if step is not None:
                self._run.add_checkpoint(step, path=line.rpartition(" ")[2], time=_time_of(line))
        elif "Loading checkpoint from" in line and match:
            self._restarted_at = int(match[1])
            self._restart(self._restarted_at, "continued from a checkpoint", _time_of(line))

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
        elif "eole" in line:
            self._run.trainer = _EOLE

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


def _time_of(line: str) -> float | None:
    """Reads the time of "[2020-02-09 07:29:01,570 INFO] …"."""
    return parse_time(line[1:24]) if line.startswith("[") else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
