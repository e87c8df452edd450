"""Reads what Sockeye writes once per checkpoint: its metrics file, and the same figures in TensorBoard files.

Both number checkpoints, not updates. Updates are computed where the log or args.yaml tells how many a checkpoint has.
"""

import math
import re
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path

from dragoman.importing.imported_run import ImportedRun, LogFailure
from dragoman.importing.log_text import parse_number, read_lines
from dragoman.importing.nan_watch import NanWatch
from dragoman.importing.trainers.sockeye_figures import (
    TRAINER,
    checkpoint_path,
    evaluation_of,
    finish_run,
    train_loss_of,
)
from dragoman.run.errors import UserError

METRICS_NAME = "metrics"
_ARGUMENTS_NAME = "args.yaml"
_MAX_CHECKPOINTS = 100_000
_LINE = re.compile(r"^(\d{1,9})\t([\w-]{1,60}=.*)", re.ASCII)
_ARGUMENT = re.compile(r"^(checkpoint_interval|checkpoint_frequency|max_updates): (\d{1,12})\s*$", re.ASCII)
_PARAMETERS_NAME = re.compile(r"^params\.(\d{5,9})$", re.ASCII)
_CHECKPOINTS_NOT_STEPS = (
    "The steps on this page are checkpoints, not updates: these files of Sockeye do not say how many updates a "
    "checkpoint has, so the time per step is unknown. Give the whole model folder, with its log or args.yaml."
)
_COMPUTED_UPDATES = (
    "The steps were computed: checkpoints times the checkpoint interval of args.yaml. The last checkpoint of a launch "
    "may have been made earlier."
)
_CERTAIN_TAGS = ("perplexity-train", "perplexity-val")
_OWN_TAGS = ("epoch", "learning-rate", "gradient-norm", "time-elapsed", "converged", "diverged")
_SOON_AFTER_ZERO = 1e-3
"""Start of a run whose file counts seconds from its start: 0 would mean that the start is unknown."""

Figures = dict[str, float]


def is_metrics_file(path: Path) -> bool:
    """Whether a file is the metrics file of a Sockeye model."""
    line = next(iter(read_lines(path)), "")
    return _LINE.match(line) is not None and ("perplexity-" in line or "-val=" in line or "-train=" in line)


def read_metrics(path: Path, run: ImportedRun) -> None:
    """Reads a metrics file into an empty run, or adds what the log of the same run lacks."""
    checkpoints = {}
    for line in islice(read_lines(path), _MAX_CHECKPOINTS):
        if match := _LINE.match(line):
            checkpoints[int(match[1])] = _figures_of(match[2])
    if not checkpoints:
        raise UserError(f"{path} has no line of Sockeye's metrics, as in 1<tab>perplexity-val=12.5.")
    if run.is_empty:
        add_checkpoints(run, checkpoints, updates_by_arguments((path.parent,), checkpoints))
    else:
        _add_scores(run, checkpoints)


class SockeyeCurves:
    """Collects the curves of TensorBoard files as long as they may be Sockeye's, which count checkpoints."""

    def __init__(self) -> None:
        self._checkpoints: dict[int, Figures] = {}
        self._dates: dict[int, float] = {}
        self.is_sockeye = False
        """Whether a tag came that only Sockeye writes."""

    def add(self, tag: str, step: int, time: float | None, value: float) -> None:
        """Adds a point if its tag is one of Sockeye's."""
        if not tag.endswith(("-train", "-val")) and tag not in _OWN_TAGS:
            return
        self.is_sockeye |= tag in _CERTAIN_TAGS
        if len(self._checkpoints) < _MAX_CHECKPOINTS or step in self._checkpoints:
            self._checkpoints.setdefault(step, {})[tag[:60]] = value
            if time is not None:
                self._dates[step] = time

    def write_to(self, run: ImportedRun, folders: Iterable[Path]) -> None:
        """Adds the checkpoints to a run; the folders may hold args.yaml."""
        updates = updates_by_arguments(sorted(folders), self._checkpoints)
        add_checkpoints(run, self._checkpoints, updates, self._dates)


def add_checkpoints(
    run: ImportedRun,
    checkpoints: dict[int, Figures],
    updates: dict[int, int] | None,
    dates: dict[int, float] | None = None,
) -> None:
    """Adds the figures of each checkpoint: a training loss, an evaluation and the checkpoint itself.

    `dates` are times since 1970, which only TensorBoard files have.
    """
    run.trainer = TRAINER
    watch = NanWatch()
    run.note(_CHECKPOINTS_NOT_STEPS if updates is None else _COMPUTED_UPDATES)
    if updates is None:
        run.facts["step_unit"] = "checkpoints"
    clock = _clock_of(checkpoints, updates, dates or {})
    for checkpoint, figures in sorted(checkpoints.items()):
        step = (updates or {}).get(checkpoint, checkpoint)
        _add_checkpoint(run, watch, step, figures, clock.get(checkpoint, {}))
        run.add_checkpoint(step, path=checkpoint_path(checkpoint), time=clock.get(checkpoint, {}).get("time"))
    watch.finish(run)
    _add_start(run, checkpoints, dates or {})
    if updates is not None:
        run.facts["step_time_includes_evaluation"] = True
        run.facts["steps_done"] = max(updates.values())
    _add_end(run, checkpoints[max(checkpoints)])
    finish_run(run)


def _clock_of(
    checkpoints: dict[int, Figures], updates: dict[int, int] | None, dates: dict[int, float]
) -> dict[int, dict[str, float]]:
    """Returns the times of each checkpoint; the time of a step only where the number of updates is known."""
    elapsed = _elapsed_of(checkpoints)
    # time-elapsed does not count the time between two launches.
    seconds = elapsed if len(elapsed) > 1 else dates
    clock: dict[int, dict[str, float]] = {}
    for number in checkpoints:
        times = {"time": dates[number]} if number in dates else {}
        if updates is None:
            times = times or ({"time": elapsed[number]} if number in elapsed else {})
        elif number in elapsed:
            times["training_seconds"] = elapsed[number]
        if updates is not None and number in seconds and number - 1 in seconds:
            num_updates = updates[number] - updates[number - 1] if number - 1 in updates else 0
            spent = seconds[number] - seconds[number - 1]
            times |= {"seconds_per_step": spent / num_updates} if num_updates > 0 and spent > 0 else {}
        clock[number] = times
    return clock


def _elapsed_of(checkpoints: dict[int, Figures]) -> dict[int, float]:
    """Returns the seconds of training at each checkpoint.

    Since version 2, time-elapsed of a checkpoint is the time at the end of the checkpoint before, 0 at the first.
    """
    elapsed = {number: figures["time-elapsed"] for number, figures in checkpoints.items() if "time-elapsed" in figures}
    if not elapsed or elapsed[min(elapsed)] > 0:
        return elapsed
    return {number - 1: seconds for number, seconds in elapsed.items() if seconds > 0}


def _add_start(run: ImportedRun, checkpoints: dict[int, Figures], dates: dict[int, float]) -> None:
    """Sets the start of training, which comes one checkpoint before the first date."""
    elapsed = _elapsed_of(checkpoints)
    first = min(dates.keys() & elapsed.keys(), default=None)
    if first is not None:
        run.facts["started"] = dates[first] - elapsed[first]
    elif elapsed and not dates:
        run.facts.setdefault("started", _SOON_AFTER_ZERO)


def _add_checkpoint(run: ImportedRun, watch: NanWatch, step: int, figures: Figures, clock: dict[str, float]) -> None:
    train = {name.removesuffix("-train"): value for name, value in figures.items() if name.endswith("-train")}
    dev = {name.removesuffix("-val"): value for name, value in figures.items() if name.endswith("-val")}
    norm, rate = figures.get("gradient-norm"), figures.get("learning-rate")
    loss = watch.add_train(step, train_loss_of(train), norm)
    if loss is not None or rate is not None:
        run.add_train(step, loss=loss, learning_rate=rate, gradient_norm=norm, **clock)
    if dev:
        evaluation = evaluation_of(dev)
        evaluation["loss"] = watch.add_evaluation(step, evaluation.get("loss"))
        run.add_evaluation(step, **evaluation, time=clock.get("time"))


def _add_end(run: ImportedRun, last: Figures) -> None:
    if "epoch" in last:
        run.facts["epochs_done"] = last["epoch"]
    if last.get("diverged"):
        cause = "The perplexity was infinite or larger than twice the vocabulary: lower the learning rate."
        run.add_failure(LogFailure("Training diverged, and Sockeye stopped.", cause, is_fatal=True))
    if last.get("converged"):
        run.facts["is_finished"] = True
        run.note("Sockeye ended training because the dev set had not improved for long enough.")
        run.end_launch("finished")


def updates_by_arguments(folders: Iterable[Path], checkpoints: Collection[int]) -> dict[int, int] | None:
    """Returns the updates of each checkpoint by the first args.yaml in these folders; None if it cannot be known."""
    for folder in folders:
        path = folder / _ARGUMENTS_NAME
        if not path.is_file():
            continue
        lines = islice(read_lines(path), 2_000)
        known = {match[1]: int(match[2]) for line in lines if (match := _ARGUMENT.match(line))}
        every = known.get("checkpoint_interval") or known.get("checkpoint_frequency")
        last, most = max(checkpoints, default=0), known.get("max_updates", math.inf)
        # More checkpoints than the limit allows: the run was continued, and some came before their time.
        if every and (last - 1) * every < most:
            return {number: int(min(number * every, most)) for number in checkpoints}
    return None


def _add_scores(run: ImportedRun, checkpoints: dict[int, Figures]) -> None:
    """Adds scores that the log of the run lacks, to the evaluations of the same checkpoints."""
    numbers = {}
    for record in run.records:
        if record["kind"] == "checkpoint" and (match := _PARAMETERS_NAME.match(str(record.get("path", "")))):
            numbers[record["step"]] = int(match[1])
    for record in run.records:
        figures = checkpoints.get(numbers.get(record["step"], 0), {}) if record["kind"] == "evaluation" else {}
        dev = {name.removesuffix("-val"): value for name, value in figures.items() if name.endswith("-val")}
        for name, value in evaluation_of(dev).items():
            record.setdefault(name, 100 * value if name == "bleu" else value)


def _figures_of(text: str) -> Figures:
    """Returns the figures of a line; converged=True is 1."""
    figures = {}
    for cell in text.split("\t"):
        name, _, value = cell.partition("=")
        number = {"True": 1.0, "False": 0.0}.get(value, parse_number(value))
        if number is not None:
            figures[name] = number
    return figures
