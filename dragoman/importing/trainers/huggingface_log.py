"""Reads the terminal output of the HF Trainer: printed dicts, progress bars, banners and blocks of metrics."""

import math
import re
from dataclasses import dataclass

from dragoman.importing.imported_run import MAX_RECORDS, ImportedRun
from dragoman.importing.log_text import COUNT, NUMBER, LogClock, parse_count, parse_time
from dragoman.importing.trainers.huggingface_history import History
from dragoman.run.records import LARGEST_NUMBER

# Scores of other libraries may be printed as np.float64(21.5) or {'score': 21.5, 'signature': …}.
_FIGURE = re.compile(
    rf"'([\w/.+-]{{1,60}})': (?:\{{'score': )?(?:np\.float\d\d\(|tensor\()?('?)({NUMBER})'?\)?(?=[,}}])", re.ASCII
)
_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]{0,300}\| (\d{1,15})/(\d{1,15}) \[((?:\d{1,6}:)?\d{1,3}:\d\d)[<\]]", re.ASCII)
_COUNT = re.compile(rf" = ({COUNT})\s*$", re.ASCII)
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})(?!\d)", re.ASCII)
_CONTINUED = re.compile(r"global step (\d{1,15})", re.ASCII)
_LOGGED_TIME = re.compile(r"^\[\w{4,8}\|[^\]]{1,100}\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) >>", re.ASCII)
_METRIC = re.compile(rf"^\s{{1,9}}((?:train|eval)_\w{{1,60}}|epoch)\s{{1,60}}=\s{{1,60}}({NUMBER})\s*$", re.ASCII)
_DURATION = re.compile(
    r"^\s{1,9}((?:train|eval)_runtime)\s{1,60}=\s{1,60}(?:(\d{1,5}) days?, )?(\d{1,3}):(\d\d):(\d\d\.\d{1,6})\s*$",
    re.ASCII,
)
_MAX_TOTALS = 1_000
_ANNOUNCED = {
    "Num examples": "num_training_pairs",
    "Num Epochs": "epochs_planned",
    "Num update steps per epoch": "_epoch_steps",
    "Instantaneous batch size per device": "batch_sentences_per_rank",
    "Total train batch size": "_batch",
    "Gradient Accumulation steps": "accumulation",
    "Total optimization steps": "steps_planned",
    "Number of trainable parameters": "parameters",
}


def is_own_line(line: str) -> bool:
    """Whether only the HF Trainer writes such a line."""
    if "{'" in line:
        return "'epoch': " in line and ("{'loss': " in line or "{'eval_" in line or "'train_runtime': " in line)
    return "***** Running training *****" in line or "  Total optimization steps = " in line


@dataclass(frozen=True)
class _Entry:
    """A printed dict; its epoch is rounded."""

    figures: dict[str, float]
    epoch_error: float
    """Largest error of the epoch by rounding."""


class HfReader:
    """Reads the terminal output of one run; the step of an entry comes from its epoch and the progress bar."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._history = History(run)
        self._announced: dict[str, int] = {}
        self._bar: tuple[int, float] | None = None
        self._open_bar: tuple[int, int] | None = None
        """Total and step of the newest bar that is not at its end, where the total of training is unknown."""
        self._num_steps: int | None = None
        self._clock = LogClock()
        self._seconds_before = 0.0
        """Time of earlier launches."""
        self._pending: _Entry | None = None
        self._unnumbered: list[_Entry] = []
        self._is_bar_new = False
        """Whether a bar of training came since the entry before."""
        self._epoch: float | None = None
        """Epoch of the entry before."""
        self._totals: set[int] = set()
        """Totals of bars that came to their end."""
        self._section = ""
        self._block: dict[str, float] = {}
        self._best_step: int | None = None

    def read(self, line: str) -> None:
        """Reads a line."""
        has_entry = "{'" in line
        if "%|" in line:
            self._read_bar(line, is_alone=not has_entry)
        elif line.strip() and self._pending is not None:
            self._write_pending()
        if has_entry:
            self._read_entry(line)
        elif "*****" in line:
            self._begin_section(line)
        elif " = " in line:
            self._read_fact(line)
        elif "checkpoint" in line or "global step" in line:
            self._read_checkpoint(line)
        elif "Training completed" in line:
            self._end()

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        run, announced = self._run, self._announced
        self._write_pending()
        self._write_block()
        self._number_entries()
        per_rank = announced.get("batch_sentences_per_rank", 0) * announced.get("accumulation", 1)
        if per_rank and announced.get("_batch", 0) % per_rank == 0 and announced.get("_batch"):
            run.facts["num_ranks"] = announced["_batch"] // per_rank
        if self._bar is not None:
            run.facts["steps_done"] = max(self._bar[0], run.newest_step or 0)
        elif (step := self._history.summary_step) is not None and step > (run.newest_step or 0):
            run.facts["steps_done"] = step
        if self._num_steps is not None and "steps_planned" not in run.facts:
            run.add_settings("training", max_steps=self._num_steps)
        self._history.finish()

    def _begin_section(self, line: str) -> None:
        self._write_block()
        self._section = line
        if "***** Running training *****" in line:
            stamp = _LOGGED_TIME.match(line)
            self._begin_launch(parse_time(stamp[1]) if stamp else None)

    def _begin_launch(self, time: float | None = None) -> None:
        self._run.begin_launch(time)
        if time is not None:
            self._run.facts.setdefault("started", time)
        if self._bar is not None:
            self._seconds_before += self._bar[1]
        self._bar = self._open_bar = None
        self._clock.restart()

    def _end(self) -> None:
        self._run.facts["is_finished"] = True
        self._run.end_launch("finished")

    def _read_bar(self, line: str, is_alone: bool) -> None:
        match = _BAR.match(line)
        if not match:
            return
        step, num_steps = int(match[1]), int(match[2])
        if step == num_steps and len(self._totals) < _MAX_TOTALS:
            self._totals.add(num_steps)
        planned = self._run.facts.get("steps_planned", self._num_steps)
        # The bar of an evaluation counts batches of the dev set: its total differs.
        if planned is None:
            self._open_bar = (num_steps, step) if step < num_steps else self._open_bar
            if step >= num_steps and self._pending is None:
                return
            if self._pending is not None:
                planned = self._num_steps = num_steps
        if planned is not None and num_steps != planned:
            self._write_pending()
            return
        if not is_alone:
            self._write_pending()
        if self._bar is not None and step < self._bar[0] and step == 0:
            self._begin_launch()
        self._bar, self._is_bar_new = (step, _seconds_of(match[3])), True
        if is_alone:  # tqdm draws its bar again right after an entry, with the step of the entry
            self._write_pending()

    def _read_entry(self, line: str) -> None:
        found = _FIGURE.findall(line)
        figures = {name: float(text) for name, _, text in found}
        if not figures or not ("epoch" in figures or "loss" in figures):
            return
        self._write_pending()
        error = next((_rounding(text, bool(quote)) for name, quote, text in found if name == "epoch"), math.inf)
        if self._num_steps is None and "steps_planned" not in self._run.facts and self._open_bar is not None:
            self._num_steps = self._open_bar[0]
        self._pending = _Entry(figures, error)
        if self._bar is not None and _BAR.match(line):
            self._write_pending()

    def _write_pending(self) -> None:
        entry, self._pending = self._pending, None
        if entry is None:
            return
        step = self._step_of(entry)
        self._is_bar_new, self._epoch = False, entry.figures.get("epoch")
        if step is None or self._unnumbered:
            if len(self._unnumbered) < MAX_RECORDS:
                self._unnumbered.append(entry)
            return
        clock: dict[str, float | None] = {}
        if self._bar is not None and "loss" in entry.figures:
            elapsed = self._bar[1]
            clock = {
                "seconds_per_step": self._clock.seconds_per_step(step, elapsed),
                "training_seconds": self._seconds_before + elapsed,
            }
            self._run.facts["step_time_includes_evaluation"] = True
        self._add(step, entry.figures, **clock)

    def _add(self, step: int, figures: dict[str, float], **clock: float | None) -> None:
        if "train_runtime" in figures and "loss" not in figures:
            self._end()
        if "epoch" in figures and 0 <= figures["epoch"] <= 10**6:
            self._run.facts["epochs_done"] = figures["epoch"]
        self._history.add(step, figures, **clock)

    def _step_of(self, entry: _Entry) -> int | None:
        """Returns the step of the epoch; where that is not exact, the step of the bar if it fits the epoch."""
        bar = self._bar[0] if self._bar else None
        per_epoch, epoch = self._steps_per_epoch(), entry.figures.get("epoch")
        if per_epoch is None or epoch is None or not 0 <= epoch * per_epoch <= LARGEST_NUMBER:
            return bar if self._is_bar_new or epoch == self._epoch else None
        if bar is not None and abs(bar - epoch * per_epoch) <= entry.epoch_error * per_epoch + 0.5:
            return bar
        return round(epoch * per_epoch)

    def _steps_per_epoch(self) -> float | None:
        """Returns the optimizer steps of an epoch; a run that is limited by steps does not end with an epoch."""
        known = self._announced
        if per_epoch := known.get("_epoch_steps"):
            return per_epoch
        planned, epochs = known.get("steps_planned"), known.get("epochs_planned")
        if not planned or not epochs:
            return None
        batch, pairs = known.get("_batch"), known.get("num_training_pairs")
        if batch and pairs and abs(planned / epochs - pairs / batch) > 1:
            return pairs / batch
        return planned / epochs

    def _number_entries(self) -> None:
        """Numbers entries without a step: by their epochs if the summary has the number of steps, else by counting."""
        summary = next((entry.figures for entry in self._unnumbered if "train_runtime" in entry.figures), {})
        num_steps = self._steps_of_summary(summary)
        last_epoch = summary.get("epoch", 0.0)
        has_steps = 0 < last_epoch < math.inf and 1 <= num_steps <= LARGEST_NUMBER
        num_counted = 0
        for entry in self._unnumbered:
            epoch = entry.figures.get("epoch")
            if has_steps and epoch is not None and 0 <= epoch <= last_epoch:
                self._add(round(epoch / last_epoch * num_steps), entry.figures)
            else:
                num_counted += "loss" in entry.figures
                self._add(num_counted, entry.figures)
        if num_counted:
            self._run.facts["step_unit"] = "log lines"
            self._run.note(
                "The log does not number its steps: its records were counted instead, so steps and times per step are "
                "not real. Keep trainer_state.json next time."
            )
        elif self._unnumbered:
            self._run.note("The log does not number its steps: they were computed from epochs and are not exact.")

    def _steps_of_summary(self, summary: dict[str, float]) -> float:
        """Returns the steps of the run: time times speed, which has few digits, or the total of the bar near that."""
        speed = summary.get("train_steps_per_second", 0.0)
        num_steps = summary.get("train_runtime", 0.0) * speed
        if not (0 < speed < math.inf and 0 < num_steps < math.inf):
            return 0.0
        nearest = min(self._totals, key=lambda total: abs(total - num_steps), default=0)
        return nearest if abs(nearest / num_steps - 1) <= 0.0005 / speed + 0.001 else num_steps

    def _read_fact(self, line: str) -> None:
        if " metrics *****" in self._section:
            self._read_metric(line)
        if "Running Evaluation" in self._section or "Running Prediction" in self._section:
            return
        for words, name in _ANNOUNCED.items():
            if f"  {words}" in line and (match := _COUNT.search(line)):
                value = parse_count(match[1]) or 0
                self._announced[name] = value
                if not name.startswith("_"):
                    self._run.facts[name] = value
        if "steps_planned" in self._run.facts:
            self._run.add_settings("training", max_steps=self._run.facts["steps_planned"])

    def _read_metric(self, line: str) -> None:
        if match := _METRIC.match(line):
            self._block[match[1]] = float(match[2])
        elif match := _DURATION.match(line):
            hours = 24 * int(match[2] or 0) + int(match[3])
            self._block[match[1]] = 3600 * hours + 60 * int(match[4]) + float(match[5])

    def _write_block(self) -> None:
        """Adds the metrics printed after training; an evaluation there may be of the best checkpoint."""
        block, self._block, run = self._block, {}, self._run
        step = run.newest_step if self._bar is None else max(self._bar[0], run.newest_step or 0)
        if not block or step is None or self._unnumbered:
            return
        if "train_runtime" in block and not self._history.has_ended:
            self._add(step, block)
        elif any(name.startswith("eval_") for name in block):
            step = step if self._best_step is None else self._best_step
            if not any(each["kind"] == "evaluation" and each["step"] == step for each in run.records):
                self._history.add(step, block)

    def _read_checkpoint(self, line: str) -> None:
        match = _CHECKPOINT.search(line)
        if "Saving model checkpoint to" in line and match:
            self._write_pending()
            self._history.write_evaluation()
            self._run.add_checkpoint(int(match[1]), path=line.partition(" to ")[2])
        elif "Loading best model from" in line and match:
            self._best_step = int(match[1])
        elif ("Continuing training from" in line or "Resuming training from" in line) and (
            continued := _CONTINUED.search(line)
        ):
            self._continue_from(int(continued[1]))

    def _continue_from(self, step: int) -> None:
        self._run.add_restart(step, cause="continued from a checkpoint")
        self._run.count_attempt()
        self._history.continue_from(step)
        self._clock.restart()


def _rounding(text: str, is_quoted: bool) -> float:
    """Returns the largest error of a printed epoch: newer versions quote 4 digits, older ones round to 2 decimals."""
    number = abs(float(text))
    if is_quoted and 0 < number < math.inf:
        return 0.5 * float(10.0 ** (math.floor(math.log10(number)) - 3))
    decimals = len(text.partition(".")[2].partition("e")[0])
    return 0.5 * float(10.0 ** -max(2, min(decimals, 15)))


def _seconds_of(clock: str) -> float:
    """Returns the seconds of "1:02:03" or "02:03"."""
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)
