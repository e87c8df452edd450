"""Reads logs of fairseq since 2017 in its simple, tqdm, json and none formats, also as hydra writes them."""

import math
import re
from collections import Counter
from typing import Any

from dragoman.importing.imported_run import MAX_LISTED, STEP_BACK, ImportedRun
from dragoman.importing.log_text import COUNT, NUMBER, is_usable, loss_of_perplexity, parse_count
from dragoman.importing.trainers.fairseq_config import add_config, is_training_config, read_config
from dragoman.importing.trainers.fairseq_lines import Message, Statistics, parse_statistics, split_line

TRAINER = "fairseq"

_MAX_RANKS = 10_000
_OWN_PARTS = (
    "| INFO | fairseq", "| INFO | train_inner |", "| valid on '", "| done training in ", "| model params:",
    "][fairseq", "][train_inner][INFO]", "| num. model params: ", "GPUs (with max tokens per GPU",
)  # fmt: skip
_CHECKPOINT = re.compile(
    rf"(?<!\S)(\S{{1,500}}) \(epoch \d{{1,9}} @ (\d{{1,15}}) updates(?:, score ({NUMBER}))?", re.ASCII
)
_WRITING = re.compile(rf"writing took ({NUMBER}) s", re.ASCII)
_PARAMETERS = re.compile(rf"model params: ({COUNT})", re.ASCII)
_DEVICES = re.compile(r"(?:training on|using) (\d{1,7}) (?:devices|GPUs)", re.ASCII)
_BATCH = re.compile(
    r"max tokens per \w+ = (\d{1,12}|None) and (?:max sentences|batch size) per \w+ = (\d{1,12}|None)", re.ASCII
)
_HOST = re.compile(r"initialized host (\S{1,255}) as rank (\d{1,7})", re.ASCII)
_LOCAL_ADDRESS = re.compile(r"//(?:localhost|127\.0\.0\.1)\b")
_GPU = re.compile(r"rank +\d{1,7}: capabilities .{1,200}; name = (.{1,100})", re.ASCII)
_VOCABULARY = re.compile(r"\] [Dd]ictionary: (\d{1,12}) types", re.ASCII)
_EXAMPLES = re.compile(rf"loaded ({COUNT}) examples from: (\S{{1,1000}})", re.ASCII)
_SECONDS = re.compile(rf"done training in ({NUMBER}) seconds", re.ASCII)
_PROGRAM = "fairseq_cli."
_TRAINING_PROGRAMS = ("fairseq_cli.train", "fairseq_cli.hydra_train")
_SCORE_NAME = re.compile(r"bleu|chrf|(?:^|_)(?:ter|wer|cer|uer|f1|mcc)$|acc|rouge|comet|meteor|pearson|spearman|corr")
_OWN_FIELDS = ("bleu", "chrf", "ter", "accuracy")

NATS = "fairseq's losses, which are in base 2, were converted to nats per token."
_COUNTED_STEPS = "The log has no number of updates: steps were counted from epochs and batches."
_EPOCHS_AS_STEPS = "The log shows evaluations without any step: epochs are counted instead of steps."


def is_own_line(line: str) -> bool:
    """Whether only fairseq writes such a line."""
    if line.startswith("| epoch ") or any(part in line for part in _OWN_PARTS):
        return True
    if "num_updates" in line:
        return line.startswith(('{"epoch": ', "epoch ")) or "| epoch " in line[:40]
    return line.startswith('{"epoch": ') and '"valid_loss": ' in line


class FairseqReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._has_interval_lines = False
        self._has_config = False
        self._subset: str | None = None
        self._first: Statistics | None = None
        self._second_step: int | None = None
        self._last_step: int | None = None
        self._batches_per_epoch: int | None = None
        self._steps_per_epoch: float | None = None
        self._wall_began: float | None = None
        self._evaluation_began: float | None = None
        self._evaluated_steps: set[int] = set()
        self._evaluations_of_epochs: list[dict[str, Any]] = []
        """Records of evaluations before the first step, which have an epoch for a step."""
        self._has_begun_evaluation = False
        self._pause_seconds = 0.0
        self._has_untimed_evaluation = False
        self._restarted_at: int | None = None
        self._num_overflows = 0
        self._reason_of_end = ""
        self._batch_tokens: float | None = None
        self._ranks: set[tuple[str, str]] = set()
        """Host and rank of every process of the newest launch."""
        self._new_ranks: set[tuple[str, str]] = set()
        """Those of a launch whose first line is still to come: they are printed before it."""
        self._is_on_one_host = False

    def read(self, line: str) -> None:
        """Reads a line."""
        for message in split_line(line):
            if message.logger.startswith(_PROGRAM) and message.logger not in _TRAINING_PROGRAMS:
                # fairseq-preprocess, -generate and the like, which print the same settings and statistics.
                self._run.is_other_program = True
            elif "_update" in message.text and is_training_config(message.text):
                self._begin_launch(message)
            elif (statistics := parse_statistics(message)) is not None:
                self._read_statistics(statistics, message.time)
            else:
                self._read_message(message)

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        run = self._run
        if self._batch_tokens:
            run.facts["batch_tokens"] = round(self._batch_tokens)
        if ranks := self._ranks or self._new_ranks:
            run.facts["ranks_per_host"] = max(Counter(host for host, _ in ranks).values())
        elif self._is_on_one_host and "num_ranks" in run.facts:
            run.facts["ranks_per_host"] = run.facts["num_ranks"]
        if self._num_overflows:
            run.note(
                f"Updates skipped because gradients overflowed in fp16: {self._num_overflows:,}. "
                "A few are normal, many in a row are not."
            )
        if self._has_begun_evaluation and not self._evaluated_steps:
            run.facts["has_unread_evaluations"] = True
        run.facts["step_time_includes_evaluation"] = self._has_untimed_evaluation and self._has_interval_lines
        self._place_evaluations_of_epochs()
        self._add_progress()
        run.note_missing_facts()

    def _place_evaluations_of_epochs(self) -> None:
        """Turns epochs into steps where the log shows steps later; without any step, epochs are counted."""
        run, early = self._run, self._evaluations_of_epochs
        if early and self._first is None:
            run.note(_EPOCHS_AS_STEPS)
        elif self._steps_per_epoch:
            for record in early:
                record["step"] = round(record["step"] * self._steps_per_epoch)
        else:
            known = {id(record) for record in early}
            run.records[:] = [record for record in run.records if id(record) not in known]

    def _add_progress(self) -> None:
        """Adds how far the run came, how far it was to go, and whether the log shows its beginning."""
        facts, done = self._run.facts, self._last_step
        if done is None:
            return
        facts["steps_done"] = done
        planned, epochs = facts.get("steps_planned"), facts.get("epochs_planned")
        if planned and done >= planned:
            facts["is_finished"] = True
        elif not planned and epochs and self._steps_per_epoch:
            facts["steps_planned"] = round(epochs * self._steps_per_epoch)
            self._run.note("The plan is a number of epochs: the planned steps were computed from the steps per epoch.")
        if self._begins_midway():
            facts["begins_midway"] = True

    def _begins_midway(self) -> bool:
        first = self._first
        if first is None:
            return False
        step = first.step or 0
        if (first.epoch or 1) > 1:
            return True
        is_late = self._second_step is not None and step > 1.5 * (self._second_step - step)
        return not self._has_config and first.kind == "interval" and is_late

    def _begin_launch(self, message: Message) -> None:
        run, config = self._run, read_config(message.text)
        run.begin_launch(message.time)
        if self._new_ranks:
            self._ranks, self._new_ranks = self._new_ranks, set()
            run.launches[-1].hosts = sorted({host for host, _ in self._ranks})[:MAX_LISTED]
        self._reason_of_end = ""
        if isinstance(method := config.get("distributed_init_method"), str):
            self._is_on_one_host = _LOCAL_ADDRESS.search(method) is not None
        run.facts["num_attempts"] = run.facts.get("num_attempts", 0) + 1
        run.printed_config = run.printed_config or config
        self._has_config = self._has_config or self._first is None
        self._evaluation_began, self._pause_seconds = None, 0.0
        self._wall_began = message.time
        if message.time is not None:
            run.facts.setdefault("started", message.time)
        add_config(run, config)

    def _read_statistics(self, statistics: Statistics, now: float | None) -> None:
        if statistics.kind == "valid":
            self._add_evaluation(statistics, now)
            return
        step = self._find_step(statistics)
        if step is None or not ({"loss", "wps", "ppl"} & statistics.figures.keys()):
            return
        self._note_position(statistics, step)
        now = self._time_of(statistics, now)
        if statistics.kind == "interval" or not self._has_interval_lines:
            # Means over an epoch are needed only where epochs are too short for other lines.
            self._add_train(step, statistics, now)
        self._has_interval_lines = self._has_interval_lines or statistics.kind == "interval"

    def _time_of(self, statistics: Statistics, now: float | None) -> float | None:
        """Returns the time of a line; a progress bar has none, but counts the seconds since the start."""
        wall = statistics.figures.get("wall")
        if not is_usable(wall) or wall <= 0:
            return now
        if now is not None:
            self._wall_began = now - wall
        return None if self._wall_began is None else self._wall_began + wall

    def _find_step(self, statistics: Statistics) -> int | None:
        """Returns the number of updates; versions of 2017 show only epochs and batches."""
        self._batches_per_epoch = statistics.num_batches or self._batches_per_epoch or statistics.estimated_steps
        step, size, epoch = statistics.step, self._batches_per_epoch, statistics.epoch
        if step is None and size and epoch:
            num_batches = epoch * size if statistics.kind == "epoch" else (epoch - 1) * size + (statistics.batch or 0)
            step = num_batches // max(1, self._run.facts.get("num_ranks", 1))
            self._run.note(_COUNTED_STEPS)
        return step

    def _note_position(self, statistics: Statistics, step: int) -> None:
        if self._first is None:
            self._first = statistics
        elif self._second_step is None and step > (self._first.step or 0):
            self._second_step = step
        self._last_step = step
        epochs = statistics.epochs_done
        if epochs is not None:
            self._run.facts["epochs_done"] = epochs
            self._steps_per_epoch = step / epochs if epochs else None

    def _add_train(self, step: int, statistics: Statistics, now: float | None) -> None:
        run, figures = self._run, statistics.figures
        if step == run.newest_step:
            return  # a progress bar shows the same figures many times
        self._watch_for_restart(step)
        run.facts.pop("is_finished", None)
        run.facts["loss_unit"] = "nats per token"
        run.note(NATS)
        words = figures.get("wpb")
        self._batch_tokens = words if is_usable(words) else self._batch_tokens
        seconds = self._seconds_per_step(step, statistics.seconds_per_step)
        run.add_train(
            step,
            loss=_in_nats(figures.get("loss")),
            negative_log_likelihood=_likelihood(figures),
            perplexity=figures.get("ppl"),
            learning_rate=figures.get("lr"),
            gradient_norm=figures.get("gnorm"),
            loss_scale=figures.get("loss_scale"),
            epoch=statistics.epochs_done,
            seconds_per_step=seconds,
            target_tokens_per_second=words / seconds if words and seconds else figures.get("wps") or None,
            # Some versions always print 0.
            training_seconds=figures.get("wall") or None,
            time=now,
        )

    def _seconds_per_step(self, step: int, seconds: float | None) -> float | None:
        """Computes the time of a step without the evaluations and checkpoints since the line before it."""
        pause, before = self._pause_seconds, self._run.newest_step
        self._pause_seconds = 0.0
        if seconds is None or not pause or before is None or step <= before:
            return seconds
        own = seconds - pause / (step - before)
        return own if own > 0 else seconds

    def _add_evaluation(self, statistics: Statistics, now: float | None) -> None:
        run, figures, subset = self._run, statistics.figures, statistics.subset
        began, self._evaluation_began = self._evaluation_began, None
        seconds = now - began if now and began and now >= began else None
        self._pause_seconds += seconds or 0.0
        self._has_untimed_evaluation = self._has_untimed_evaluation or seconds is None
        self._subset = self._subset or subset
        if subset != self._subset:
            run.note(f"The log evaluates several dev sets; the figures are from {self._subset!r} only.")
            return
        step = self._step_of_evaluation(statistics)
        if step is None:
            return
        is_of_epoch = statistics.step is None and self._first is None
        run.facts["loss_unit"] = "nats per token"
        run.note(NATS)
        self._evaluated_steps.add(step)
        self._note_metric(figures)
        run.add_evaluation(
            step,
            loss=_in_nats(figures.get("loss")),
            negative_log_likelihood=_likelihood(figures),
            perplexity=figures.get("ppl"),
            **{name: figures.get(name) for name in _OWN_FIELDS},
            other_scores=_other_scores(figures) or None,
            seconds=seconds,
            time=now,
        )
        if is_of_epoch:
            self._evaluations_of_epochs.append(run.records[-1])

    def _step_of_evaluation(self, statistics: Statistics) -> int | None:
        step = statistics.step
        if step is None:
            step = self._last_step if self._first else statistics.epoch
        elif self._last_step is None or step > self._last_step:
            self._last_step = step
        return step

    def _note_metric(self, figures: dict[str, float]) -> None:
        """Notes by which figure fairseq chooses its best checkpoint, e.g. from best_bleu, and the kind of BLEU."""
        best = next((name for name in figures if name.startswith("best_")), None)
        if best:
            self._run.facts.setdefault("metric", best.removeprefix("best_"))
        if "bleu" in figures:
            self._run.facts.setdefault("bleu_kind", "unknown")

    def _read_message(self, message: Message) -> None:
        text, facts = message.text, self._run.facts
        if "model params: " in text:
            if (match := _PARAMETERS.search(text)) and "num. expert" not in text:
                facts["parameters"] = parse_count(match[1])
        elif "begin validation on" in text:
            self._has_begun_evaluation = True
            self._evaluation_began = message.time
        elif "| valid on '" in text:
            self._has_begun_evaluation = True  # a progress bar, which shows no result
        elif "overflow detected" in text:
            self._num_overflows += 1
        elif "done training in " in text:
            self._read_end(text)
        elif "topping training" in text or "early stop since" in text:
            self._read_stop(text.strip()[:200].rstrip("."))
        elif "aved checkpoint " in text or "oaded checkpoint " in text:
            self._read_checkpoint(message)
        else:
            self._read_place(text)

    def _read_place(self, text: str) -> None:
        """Reads messages about devices, files and machines."""
        facts = self._run.facts
        if "max tokens per " in text and (match := _BATCH.search(text)) and match[2] != "None":
            facts["batch_sentences_per_rank"] = int(match[2])
        if "training on " in text or text.startswith("using "):
            if match := _DEVICES.search(text):
                facts["num_ranks"] = int(match[1])
        elif " examples from: " in text:
            self._read_examples(text)
        elif "ictionary: " in text:
            if match := _VOCABULARY.search(text):
                facts["vocab_size"] = int(match[1])
        elif "distributed init (rank" in text:
            self._is_on_one_host = _LOCAL_ADDRESS.search(text) is not None
        elif "initialized host " in text:
            if match := _HOST.search(text):
                self._run.add_to_fact("hosts", match[1])
                if len(self._new_ranks) < _MAX_RANKS:
                    self._new_ranks.add((match[1], match[2]))
        elif "capabilities = " in text and (match := _GPU.search(text)):
            self._run.add_to_fact("gpus", match[1].strip())

    def _read_stop(self, text: str) -> None:
        self._run.note(f"fairseq stopped the training itself: {text}.")
        cause = text.partition("early stop since ")[2]
        self._reason_of_end = f"fairseq stopped early: {cause}." if cause else ""

    def _read_end(self, text: str) -> None:
        if self._first is None and self._restarted_at:
            self._last_step = self._restarted_at
            self._run.note(f"The run was continued from step {self._restarted_at:,}, where its plan was already done.")
        self._run.facts["is_finished"] = True
        self._run.end_launch("finished", self._reason_of_end or None)
        if (match := _SECONDS.search(text)) and is_usable(float(match[1])):
            self._run.facts["training_seconds"] = float(match[1])

    def _read_checkpoint(self, message: Message) -> None:
        match = _CHECKPOINT.search(message.text)
        if not match:
            return
        step = int(match[2])
        if "aved checkpoint " in message.text:
            self._add_checkpoint(step, match, message)
        elif step and step != self._restarted_at:
            self._restarted_at = step
            self._wall_began = None  # since 0.10 the seconds go on from those of the checkpoint
            self._run.add_restart(step, cause=f"continued from {match[1]}", time=message.time)
            if self._first is None:
                self._run.facts["begins_midway"] = True

    def _add_checkpoint(self, step: int, match: re.Match[str], message: Message) -> None:
        writing = _WRITING.search(message.text)
        seconds = float(writing[1]) if writing else None
        self._pause_seconds += seconds if is_usable(seconds) else 0.0
        self._last_step = max(step, self._last_step or 0)
        self._run.add_checkpoint(step, path=match[1], seconds=seconds, time=message.time)
        metric = self._run.facts.get("metric")
        if match[3] and step not in self._evaluated_steps and metric in ("loss", "bleu"):
            # With --log-format none the score of a checkpoint is all that shows of an evaluation.
            score = float(match[3])
            figures = {"loss": _in_nats(score)} if metric == "loss" else {"bleu": score}
            self._evaluated_steps.add(step)
            self._run.facts["loss_unit"] = "nats per token"
            self._run.add_evaluation(step, time=message.time, **figures)

    def _watch_for_restart(self, step: int) -> None:
        newest = self._run.newest_step
        if self._run.is_step_back(step) and not (self._restarted_at and self._restarted_at <= step):
            self._run.add_restart(self._run.restarted_at(step), cause=STEP_BACK)
        elif newest is not None and step > newest:
            self._restarted_at = None

    def _read_examples(self, text: str) -> None:
        match = _EXAMPLES.search(text)
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


def _other_scores(figures: dict[str, float]) -> dict[str, float]:
    """Returns scores that have no field of their own, e.g. wer; not parts of the loss."""
    names = [name for name in figures if name not in _OWN_FIELDS and not name.startswith("best_")]
    return {name: figures[name] for name in names if _SCORE_NAME.search(name) and is_usable(figures[name])}


def _in_nats(bits: float | None) -> float | None:
    return None if bits is None else bits * math.log(2)


def _likelihood(figures: dict[str, float]) -> float | None:
    """Returns the loss without label smoothing: exact, else from the perplexity."""
    nll = _in_nats(figures.get("nll_loss"))
    return nll if nll is not None else loss_of_perplexity(figures.get("ppl"))
