"""Reads logs of Marian 1.5 to 1.12: train.log, valid.log or its terminal output."""

import math
import re
from typing import Any

from dragoman.importing.imported_run import ImportedRun, evaluation_step
from dragoman.importing.log_text import COUNT, NUMBER, is_usable, loss_of_perplexity, parse_count, parse_time
from dragoman.importing.trainers.marian_clock import PauseClock
from dragoman.importing.trainers.marian_config import ConfigReader, add_config, list_of, num_updates, planned_amounts
from dragoman.importing.trainers.marian_facts import FactReader
from dragoman.importing.trainers.marian_scores import FIGURES, INTERVAL, Unit, metric_name, settle, unit_of_cost

TRAINER = "Marian"

_MAX_METRICS = 20
_MAX_EVALUATIONS = 100_000
_MAX_DELAY_SECONDS = 10
"""If more time than this is missing between two lines, other lines were cut out between them."""
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: mpi:\d{1,6})?\] ", re.ASCII)
_NUMBER = re.compile(NUMBER, re.ASCII)
_ITERATION = re.compile(r"\.iter(\d{1,15})\.(?:npz|bin)", re.ASCII)
_SEEN = re.compile(rf"Seen ({COUNT}) samples", re.ASCII)
_STALLED = re.compile(r"stalled (\d{1,6}) times", re.ASCII)
_RELOADED = (
    "Loading model from ",
    "Loading Adam parameters",
    "[training] Model reloaded",
    "[training] Master parameters",
)
_SAVING = ("Saving model weights", "Saving Adam parameters", "Saving Adagrad parameters", "[training] Saving ")
_NOT_CHECKPOINTS = (".orig.npz", ".dev.npz", ".optimizer.npz")


def is_own_line(line: str) -> bool:
    """Whether only Marian writes such a line."""
    if " : Up. " in line and "Ep. " in line:
        return True
    return "] [marian] " in line or "] [config] " in line or ("] Error: Aborted from " in line and "marian" in line)


class MarianReader:
    """Reads the log of one run."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._config = ConfigReader(run.printed_config)
        self._trained_config: dict[str, Any] = {}
        self._has_launch_trained = False
        self._facts = FactReader(run)
        self._clock = PauseClock()
        self._num_launches = 0
        self._has_launch_begun = False
        self._is_new_launch = False
        self._is_reloaded = False
        self._is_continued = False
        self._first: dict[str, str] | None = None
        self._second_step: int | None = None
        self._previous_step: int | None = None
        self._previous_time: float | None = None
        self._sentences: int | None = None
        self._sentences_of_past_epochs = 0
        self._sentences_per_epoch: int | None = None
        self._labels_total: int | None = None
        self._checkpoint_step: int | None = None
        self._evaluation: dict[str, float] = {}
        self._evaluation_step = 0
        self._evaluation_time: float | None = None
        self._evaluation_seconds: float | None = None
        self._known_evaluations: dict[int, dict[str, float]] = {}
        self._num_stalled: dict[str, int] = {}
        self._was_evaluated_before = False
        self._cost_unit: Unit = "unknown"
        self._has_inexact_times = False

    def read(self, line: str) -> None:
        """Reads a line, or several that were joined."""
        if "] " not in line or not (stamp := _STAMP.search(line, 0, 200)):
            return
        while following := _STAMP.search(line, stamp.end()):
            self._read_stamped(line[stamp.end() : following.start()].rstrip(), parse_time(stamp[1]))
            stamp = following
        self._read_stamped(line[stamp.end() :], parse_time(stamp[1]))

    def _read_stamped(self, text: str, time: float | None) -> None:
        if text.startswith("[config] "):
            self._begin_launch(time)
            self._config.read(text.removeprefix("[config] "))
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
        self._restore_config()
        run.finish()
        settle(run, self._cost_unit)
        run.facts["step_time_includes_evaluation"] = self._has_inexact_times
        if self._num_launches:
            run.facts["num_attempts"] = self._num_launches
        add_config(run)
        self._facts.finish()
        self._add_progress()
        metrics = list_of(run.printed_config.get("valid-metrics"))
        if metrics:
            run.facts["metric"] = metric_name(metrics[0])
        run.note_missing_facts()

    def _begin_launch(self, time: float | None) -> None:
        """Begins a launch at its first line; the lines that follow, or those of other ranks, change nothing."""
        if self._num_launches and not self._has_launch_begun:
            return
        if self._has_launch_trained:
            self._trained_config = dict(self._run.printed_config)
        self._num_launches += 1
        self._has_launch_begun = self._has_launch_trained = False
        self._is_new_launch = self._num_launches > 1
        self._is_reloaded = False
        self._clock, self._previous_time = PauseClock(), None
        self._sentences, self._sentences_of_past_epochs = None, 0
        self._facts.begin_launch()
        self._run.begin_launch(time)
        self._run.facts.setdefault("started", time)

    def _restore_config(self) -> None:
        """Takes back the configuration of launches that made no step after the one that trained."""
        if self._trained_config and not self._has_launch_trained:
            self._run.printed_config.clear()
            self._run.printed_config.update(self._trained_config)

    def _read_train(self, text: str, time: float | None) -> None:
        self._flush_evaluation()
        parts = text.split(" : ", 20)
        named = {part.partition(" ")[0]: part for part in parts}
        step = _count(named.get("Up.", ""), "Up. ")
        if step is None or (step == self._run.newest_step and not self._is_new_launch):
            return  # the second is a line that several ranks print
        self._note_position(step, named)
        self._watch_for_restart(step, time)
        pause, is_exact = self._clock.train(step, time)
        seconds = _number(named.get("Time", ""), "Time ")
        num_steps = self._count_steps(step, seconds, time)
        speed = _number(next((part for part in parts if part.endswith(" words/s")), ""))
        words = speed * seconds if is_usable(speed) and is_usable(seconds) else None
        own_seconds = seconds - pause if is_usable(seconds) and seconds > pause else seconds
        self._has_inexact_times = self._has_inexact_times or not is_exact
        self._run.add_train(
            step,
            loss=self._cost_of(named.get("Cost", "")),
            seconds_per_step=own_seconds / num_steps if own_seconds and num_steps else None,
            target_tokens_per_second=words / own_seconds if words and own_seconds else speed,
            gradient_norm=_number(named.get("gNorm", ""), "gNorm "),
            learning_rate=_number(named.get("L.r.", ""), "L.r. "),
            epoch=self._run.facts.get("epochs_done"),
            time=time,
            **{INTERVAL: {"updates": num_steps, "sentences": self._count_sentences(named), "words": words}},
        )
        if words and num_steps:
            self._run.facts["batch_tokens"] = round(words / num_steps)
        self._previous_step, self._previous_time = step, time
        self._has_launch_begun = self._has_launch_trained = True
        self._facts.note_training()

    def _count_steps(self, step: int, seconds: float | None, now: float | None) -> int | None:
        """Returns the steps that a line is about: since the line before, unless the log is an excerpt with gaps."""
        previous, before = self._previous_step, self._previous_time
        if previous is None or previous >= step:
            return None
        if seconds and now and before and now - before > 1.05 * seconds + _MAX_DELAY_SECONDS:
            self._sentences = None
            every = num_updates(self._run.printed_config.get("disp-freq"))
            return every if every and step % every == 0 and every <= step - previous else None
        return step - previous

    def _cost_of(self, part: str) -> float | None:
        cost_type = self._run.printed_config.get("cost-type")
        cost = _number(part, "Cost ")
        if cost is not None and self._cost_unit == "unknown":
            self._cost_unit = unit_of_cost(part, cost_type)
        return loss_of_perplexity(cost) if cost_type == "perplexity" and " * " not in part else cost

    def _count_sentences(self, named: dict[str, str]) -> int | None:
        """Returns the sentences since the line before; Marian counts them from the beginning of each epoch."""
        before, self._sentences = self._sentences, _count(named.get("Sen.", ""), "Sen. ")
        past, self._sentences_of_past_epochs = self._sentences_of_past_epochs, 0
        if before is None or self._sentences is None:
            return None
        num_sentences = past + self._sentences - before
        return num_sentences if num_sentences > 0 else None

    def _note_position(self, step: int, named: dict[str, str]) -> None:
        if self._first is None:
            self._first, self._is_continued = named, self._is_reloaded
        elif self._second_step is None:
            self._second_step = step
        self._labels_total = _count(named.get("Cost", "").partition(" after ")[2]) or self._labels_total
        epoch = named.get("Ep.", "").removeprefix("Ep. ")
        if (number := _number(epoch)) is None or not is_usable(number) or number < 0:
            return
        if "." in epoch or number < 1:  # a logical epoch, which the user defined
            self._run.facts["epochs_done"] = number
            return
        sentences, total = _count(named.get("Sen.", ""), "Sen. "), self._sentences_per_epoch
        total = total or self._run.facts.get("num_training_pairs")
        part = min(1.0, sentences / total) if sentences and total else 0.0
        if part or number > 1:
            self._run.facts["epochs_done"] = round(number - 1 + part, 4)

    def _watch_for_restart(self, step: int, time: float | None) -> None:
        newest = self._run.newest_step
        if newest is not None and (step < newest or self._is_new_launch):
            is_from_scratch = self._is_from_scratch(step)
            restarted_at = min(newest if self._checkpoint_step is None else self._checkpoint_step, step)
            restarted_at = 0 if is_from_scratch else restarted_at
            self._run.add_restart(restarted_at, cause="Marian was started again", time=time)
            self._previous_step = restarted_at if is_from_scratch or self._checkpoint_step is not None else None
            self._run.facts.pop("is_finished", None)
        self._is_new_launch = False

    def _is_from_scratch(self, step: int) -> bool:
        """Whether a launch loaded no model and its first line is no later than that of a run from the beginning."""
        first = _count((self._first or {}).get("Up.", ""), "Up. ") or 0
        every = num_updates(self._run.printed_config.get("disp-freq")) or 0
        return not self._is_reloaded and step <= max(every, first)

    def _read_evaluation(self, text: str, time: float | None) -> None:
        parts = text.split(" : ", 6)
        step = _count(parts[1], "Up. ") if len(parts) > 3 else None
        value = _number(parts[3]) if len(parts) > 3 else None
        if step is None or value is None:
            return
        metric = parts[2].strip()[:40]
        if step != self._evaluation_step or metric in self._evaluation:
            self._flush_evaluation()
        self._evaluation_step, self._evaluation_time = step, time
        self._evaluation_seconds = self._clock.validate(step, time)
        if len(self._evaluation) < _MAX_METRICS:
            self._evaluation[metric] = value
            stalled = _STALLED.match(parts[4]) if len(parts) > 4 else None
            # A metric that has stalled had a better value in an evaluation that the log does not show.
            self._was_evaluated_before |= stalled is not None and metric not in self._num_stalled
            self._num_stalled[metric] = int(stalled[1]) if stalled else 0

    def _flush_evaluation(self) -> None:
        """Adds one record for all metrics of a step: Marian prints each on its own line, and again in valid.log."""
        run, step = self._run, self._evaluation_step
        figures = {name: value for name, value in self._evaluation.items() if is_usable(value)}
        if self._evaluation and not figures:
            run.add_evaluation(step, loss=math.nan, time=self._evaluation_time)
        self._evaluation = {}
        if not figures:
            return
        self._has_launch_begun = True
        known = self._known_evaluations.get(step, {})
        if known and all(known.get(name, value) == value for name, value in figures.items()):
            known |= figures
            return
        run.add_evaluation(step, seconds=self._evaluation_seconds, time=self._evaluation_time, **{FIGURES: figures})
        if len(self._known_evaluations) < _MAX_EVALUATIONS and run.records[-1].get(FIGURES):
            self._known_evaluations[step] = run.records[-1][FIGURES]

    def _read_message(self, text: str, time: float | None) -> None:
        facts = self._run.facts
        if text.startswith("[marian] Marian v"):
            self._begin_launch(time)
            facts["software"] = facts.get("software", {}) | {"marian": text.split(" ", 3)[2][:40]}
        elif text.startswith("[marian] Running on "):
            self._run.add_host(text.split(" ", 4)[3][:255])
        elif text.startswith(("Training ", "Error: ")):
            self._read_milestone(text, time)
        elif text.startswith(_RELOADED):
            self._note_reload()
        elif text.startswith(_SAVING):
            self._read_checkpoint(text, time)
        elif match := _SEEN.match(text):
            self._end_epoch(parse_count(match[1]))
        else:
            self._facts.read(text)

    def _read_milestone(self, text: str, time: float | None) -> None:
        run = self._run
        if text.startswith("Training started"):
            self._has_launch_begun = True
            if not self._is_reloaded:
                self._sentences = 0
                self._previous_step = 0 if run.newest_step is None else self._previous_step
                self._previous_time = time
        elif text.startswith("Training finished"):
            run.facts["is_finished"] = True
            self._run.end_launch("finished", self._find_early_stopping())
        elif text.startswith("Training interrupted"):
            run.facts["is_finished"] = False
            self._run.end_launch("stopped", "Marian was asked to stop by a signal, and saved its model.")
        elif text.startswith("Error: ") and not text.startswith("Error: Aborted from "):
            if not run.launches:
                run.begin_launch(time)
            self._has_launch_begun = True
            if run.launches[-1].end != "failed":  # the first error is the cause of the others
                self._run.end_launch("failed", text.removeprefix("Error: ")[:300])

    def _find_early_stopping(self) -> str:
        """Returns why training stopped early; empty where it did not."""
        config = self._run.printed_config
        limit, metrics = num_updates(config.get("early-stopping")), list_of(config.get("valid-metrics"))
        known = [(name, self._num_stalled[name]) for name in metrics if name in self._num_stalled]
        known = known or list(self._num_stalled.items())
        rule = config.get("early-stopping-on", "first")
        is_any, is_all = rule == "any", rule == "all"
        counted = sorted(known, key=lambda item: item[1], reverse=is_any) if is_any or is_all else known
        stalled = next(iter(counted), ("", 0))
        if not limit or stalled[1] < limit:
            return ""
        reason = f"Marian stopped early: {stalled[0]} had not improved for {stalled[1]} validations."
        self._run.note(reason)
        return reason

    def _note_reload(self) -> None:
        self._is_reloaded = True
        self._is_new_launch = self._run.newest_step is not None
        # The log does not say its step, so the time per step up to the next line is unknown.
        self._previous_step = None if self._run.newest_step is None else self._previous_step

    def _end_epoch(self, num_sentences: int | None) -> None:
        self._sentences_per_epoch = num_sentences or self._sentences_per_epoch
        if self._sentences is not None and num_sentences is not None:
            self._sentences_of_past_epochs += num_sentences - self._sentences
            self._sentences = 0

    def _read_checkpoint(self, text: str, time: float | None) -> None:
        path = text.rpartition(" to ")[2].partition(" and ")[0]
        match = _ITERATION.search(path)
        if ".best-" not in path:  # the best model is saved in the middle of a validation
            self._clock.save(int(match[1]) if match else None, time)
        step = int(match[1]) if match else self._step_of_saving()
        if step is None or step == self._checkpoint_step or path.endswith(_NOT_CHECKPOINTS) or "Saving Ad" in text:
            return
        self._checkpoint_step = step
        self._run.add_checkpoint(step, path=path, time=time)

    def _step_of_saving(self) -> int | None:
        """Returns the step of a checkpoint whose name does not tell it: that of the validation, or of --save-freq."""
        newest, config = self._run.newest_step, self._run.printed_config
        if self._evaluation:
            return self._evaluation_step
        if newest is None:
            return None
        every = num_updates(config.get("save-freq"))
        return evaluation_step(newest, every, num_updates(config.get("disp-freq")) or 1)

    def _add_progress(self) -> None:
        """Adds how far the run came, how far it was to go, and whether the log shows its beginning."""
        run, facts, done = self._run, self._run.facts, self._run.newest_step
        last = max(done or 0, self._checkpoint_step or 0, self._evaluation_step)
        if last:
            facts["steps_done"] = last
        if self._begins_midway():
            facts["begins_midway"] = True
        if done is None:
            return
        plan = planned_amounts(run.printed_config)
        epochs, labels = plan.get("e"), plan.get("t")
        if epochs:
            facts["epochs_planned"] = epochs
        if "u" in plan:
            if last >= plan["u"]:
                facts["is_finished"] = True
        elif labels and self._labels_total:
            self._plan_steps(done * labels / self._labels_total, "target tokens")
        elif epochs and facts.get("epochs_done"):
            self._plan_steps(done * epochs / facts["epochs_done"], "epochs")

    def _plan_steps(self, num_steps: float, unit: str) -> None:
        if is_usable(num_steps):
            self._run.facts["steps_planned"] = round(num_steps)
            self._run.note(f"The plan is a number of {unit}: the planned steps were computed from the steps so far.")

    def _begins_midway(self) -> bool:
        if self._first is None or self._num_launches:
            return self._is_continued or (not self._num_launches and self._was_evaluated_before)
        step = _count(self._first.get("Up.", ""), "Up. ") or 0
        epoch = _number(self._first.get("Ep.", ""), "Ep. ") or 1
        is_late = self._second_step is not None and step > 1.5 * (self._second_step - step)
        return epoch >= 2 or is_late


def _count(text: str, prefix: str = "") -> int | None:
    """Returns the count that follows the prefix."""
    return parse_count(text.removeprefix(prefix).partition(" ")[0])


def _number(text: str, prefix: str = "") -> float | None:
    """Returns the number that follows the prefix; a unit may follow it."""
    match = _NUMBER.match(text.removeprefix(prefix))
    return float(match[0]) if match else None
