"""One run of another trainer as read from its log: bounded in size, with plain numbers and text only."""

import math
from dataclasses import dataclass, field
from typing import Any

from dragoman.importing.log_text import clean_text, is_usable
from dragoman.run.records import LARGEST_NUMBER

MAX_RECORDS = 100_000
MAX_LISTED = 200
MAX_SAMPLES_PER_RECORD = 3

STEP_BACK = "the log goes back to an earlier step"
"""Cause of a restart that the log does not announce."""
_SETTINGS_THAT_ARE_FACTS = {
    "width": "width",
    "feed_forward": "feed_forward",
    "heads": "heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "dropout": "dropout",
    "label_smoothing": "label_smoothing",
    "max_steps": "steps_planned",
    "log_every": "log_every",
    "evaluate_every": "evaluate_every",
}
NO_INTERFACE = "The log does not say which network interface was used: run with NCCL_DEBUG=INFO next time."
LOSS_IS_LOG_PERPLEXITY = "The evaluation loss is the logarithm of the perplexity."
_NO_PARAMETERS = "The log does not say how many parameters the model has."


@dataclass(frozen=True)
class LogFailure:
    """Something that went wrong, and what to do about it."""

    what: str
    """Message about what happened, and at which step."""
    cause: str
    """Why, as far as the log shows, and what to do."""
    evidence: str = ""
    """The line of the log."""
    step: int | None = None
    launch: int | None = None
    """Number of the launch that it belongs to, from 1."""
    is_fatal: bool | None = None
    """Whether it ended its launch."""


@dataclass
class LogLaunch:
    """One start of the trainer, as far as the log shows it."""

    number: int
    source: str = ""
    """File in which it begins."""
    line: int | None = None
    time: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    end: str = "unknown"
    """finished, failed, stopped or unknown."""
    reason: str = ""
    hosts: list[str] = field(default_factory=list)
    is_announced: bool = False
    """Whether the log holds the line with which the trainer starts, and not only later ones."""


@dataclass
class ImportedRun:
    """Collects what a log says about one run."""

    trainer: str = "unknown"
    sources: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of imported.json by the names that docs/report.md uses, e.g. parameters, num_ranks, hosts, precision."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tables of config.toml, for settings that dragoman has too."""
    printed_config: dict[str, Any] = field(default_factory=dict)
    """The configuration as the trainer names it, nested."""
    failures: list[LogFailure] = field(default_factory=list)
    launches: list[LogLaunch] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Messages about files that were not read, and why."""
    notes: list[str] = field(default_factory=list)
    """Messages about what the log does not say or what must be kept in mind."""
    records: list[dict[str, Any]] = field(default_factory=list)
    source: str = ""
    """The file that is being read."""
    line: int | None = None
    """Number of the line that is being read, from 1."""
    is_other_program: bool = False
    """Whether the line is of a program that does not train, such as one that translates with the model."""
    first_nan_step: int | None = None
    last_finite_step: int | None = None
    _stride: int = 1
    _num_train_records: int = 0
    _newest_step: int = -1
    _left_out: tuple[int, dict[str, Any]] | None = None

    def add_train(self, step: int, **figures: Any) -> None:
        """Adds a logged step. Figures: loss, learning_rate, gradient_norm, seconds_per_step, target_tokens_per_second,
        training_seconds (since the start of the run), time (since 1970), loss_scale, sample.
        """
        if not _is_step(step):
            return
        self.is_other_program = False
        self._watch_for_nan(step, figures)
        self._note_step_of_launch(step)
        self._num_train_records += 1
        self._left_out = None if self._num_train_records % self._stride == 0 else (step, figures)
        if self._left_out is None:
            self._add("train", step, figures)
        self._newest_step = step

    def finish(self) -> None:
        """Ends the run: its last step is kept even if records were thinned out."""
        if self._left_out is not None:
            self._add("train", *self._left_out)
            self._left_out = None

    def add_evaluation(self, step: int, **figures: Any) -> None:
        """Adds an evaluation on the dev set. Figures: loss, bleu (of translations, 0 to 100), teacher_forced_bleu
        (0 to 1), perplexity, accuracy, chrf, learning_rate, seconds, time, samples (up to three of {source, reference,
        translation}).
        """
        if not _is_step(step):
            return
        loss = figures.get("loss")
        if isinstance(loss, float) and not math.isfinite(loss):
            self.note(f"The loss of the dev set is not a number at step {step:,}.")
        self._add("evaluation", step, figures)

    def add_checkpoint(self, step: int, **figures: Any) -> None:
        """Adds a written checkpoint. Figures: path, bytes, seconds, time."""
        if _is_step(step):
            self._add("checkpoint", step, figures)

    def add_restart(self, step: int, **figures: Any) -> None:
        """Adds a restart from a checkpoint of this step, which is a new launch. Figures: cause, time."""
        if _is_step(step):
            self._add("restart", step, figures)
            if self.launches and self.launches[-1].last_step is not None:
                self._append_launch(figures.get("time"))

    def insert_restart(self, step: int, **figures: Any) -> None:
        """Adds a restart that only what follows shows, before the first training record after this step."""
        later = (i for i, each in enumerate(self.records) if each["kind"] == "train" and each["step"] > step)
        place = next(later, len(self.records))
        self._add("restart", step, figures)
        self.records.insert(place, self.records.pop())
        self.count_attempt()

    def begin_launch(self, time: float | None = None) -> None:
        """Begins a new launch; does nothing where the current one has shown nothing yet, as when all ranks say it."""
        current = self.launches[-1] if self.launches else None
        if current is None or current.end != "unknown" or current.last_step is not None:
            current = self._append_launch(time)
        current.is_announced = True
        self.is_other_program = False

    def drop_idle_launch(self) -> None:
        """Forgets the current launch if it follows another and trained nothing: it only evaluates the model."""
        if len(self.launches) > 1 and self.launches[-1].last_step is None:
            self.launches.pop()

    def end_launch(self, end: str, reason: str | None = None) -> None:
        """Says how the current launch ended, if any has begun: finished, failed or stopped; None keeps the reason."""
        if self.launches:
            launch = self.launches[-1]
            launch.end, launch.reason = end, launch.reason if reason is None else reason

    def find_restart(self, step: int, loaded: tuple[int | None, str] | None) -> tuple[int, str] | None:
        """Returns step and cause of a restart before this step; None where training simply goes on.

        `loaded` names a checkpoint that was loaded before it, and its step where that is known: weights of a later step
        are those of another run.
        """
        if loaded is not None:
            known, name = loaded
            begun_at = self.newest_step if known is None else known
            if begun_at is not None and begun_at <= step:
                return begun_at, f"continued from {name}"
            self.note(f"Training began with the weights of {name}.")
        return (self.restarted_at(step), STEP_BACK) if self.is_step_back(step) else None

    def insert_launch(self, before: LogLaunch | None, line: int | None = None) -> LogLaunch:
        """Adds a launch that the log shows only by its failure, before another launch or as the last one."""
        if len(self.launches) >= MAX_LISTED:
            return self.launches[-1]
        place = len(self.launches) if before is None else self.launches.index(before)
        launch = LogLaunch(0, source=self.source, line=line)
        self.launches.insert(place, launch)
        for number, each in enumerate(self.launches, start=1):
            each.number = number
        return launch

    @property
    def main_launch(self) -> LogLaunch | None:
        """The last launch that trained; the last one if none did."""
        trained = [launch for launch in self.launches if launch.last_step is not None]
        return next(reversed(trained or self.launches), None)

    @property
    def num_logged_steps(self) -> int:
        """How often a training step was added."""
        return self._num_train_records

    def count_attempt(self) -> None:
        """Counts one more start of the run."""
        self.facts["num_attempts"] = self.facts.get("num_attempts", 1) + 1

    def add_failure(self, failure: LogFailure) -> None:
        """Keeps one failure of each kind in each launch."""
        known = {(each.what, each.launch) for each in self.failures}
        if len(self.failures) < MAX_LISTED and (failure.what, failure.launch) not in known:
            self.failures.append(failure)

    def note(self, message: str) -> None:
        """Keeps a message once."""
        if message not in self.notes and len(self.notes) < MAX_LISTED:
            self.notes.append(message)

    def note_missing_facts(self) -> None:
        """Notes what few trainers log and this log does not say either."""
        if "interface" not in self.facts:
            self.note(NO_INTERFACE)
        if "parameters" not in self.facts:
            self.note(_NO_PARAMETERS)

    def add_to_fact(self, name: str, value: Any) -> None:
        """Adds a value to a fact that is a list without duplicates, e.g. hosts."""
        known = self.facts.setdefault(name, [])
        if value not in known and len(known) < MAX_LISTED:
            known.append(value)

    def add_host(self, host: str) -> None:
        """Adds a machine that the log names, which belongs to the newest launch."""
        self.add_to_fact("hosts", host)
        if self.launches and host not in self.launches[-1].hosts and len(self.launches[-1].hosts) < MAX_LISTED:
            self.launches[-1].hosts.append(host)

    def add_settings(self, section: str, **values: Any) -> None:
        """Adds settings of config.toml, and the facts that they are; values that are None or infinite are left out."""
        known = {name: value for name, value in values.items() if isinstance(value, str) or is_usable(value)}
        if known:
            self.settings.setdefault(section, {}).update(known)
        self.facts |= {fact: known[name] for name, fact in _SETTINGS_THAT_ARE_FACTS.items() if name in known}

    @property
    def newest_step(self) -> int | None:
        """The step logged last; None before the first."""
        return None if self._newest_step < 0 else self._newest_step

    def restarted_at(self, step: int) -> int:
        """Returns where a run began again that went back to a step: at 0 if that was its first logged step."""
        first = next((record["step"] for record in self.records if record["kind"] == "train"), 0)
        return 0 if step == first else step

    def is_step_back(self, step: int) -> bool:
        """Whether a step comes before the newest one, because the run began again."""
        return step < self._newest_step

    @property
    def is_empty(self) -> bool:
        """Whether no step was logged and no evaluation made."""
        return not any(record["kind"] in ("train", "evaluation") for record in self.records)

    def _add(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        if len(self.records) >= MAX_RECORDS:
            self._thin_out()
        plain = {name: _plain(value) for name, value in figures.items()}
        self.records.append({"kind": kind, "step": step} | {n: v for n, v in plain.items() if v is not None})

    def _append_launch(self, time: float | None) -> LogLaunch:
        if len(self.launches) >= MAX_LISTED:
            return self.launches[-1]
        launch = LogLaunch(len(self.launches) + 1, source=self.source, line=self.line, time=time)
        self.launches.append(launch)
        return launch

    def _note_step_of_launch(self, step: int) -> None:
        launch = self.launches[-1] if self.launches else self._append_launch(None)
        if launch.end == "finished" and launch.last_step is not None and step <= launch.last_step:
            launch = self._append_launch(None)
        if launch.end in ("failed", "stopped"):  # what seemed to be its end was none
            launch.end, launch.reason = "unknown", ""
        launch.first_step = step if launch.first_step is None else launch.first_step
        launch.last_step = step

    def _thin_out(self) -> None:
        """Drops every second training record; only if there are too many of the other kinds, half of those too."""
        train = [record for record in self.records if record["kind"] == "train"]
        dropped = {id(record) for record in train[::2]}
        kept = [record for record in self.records if id(record) not in dropped]
        self._stride *= 2
        self.records = kept if len(kept) < MAX_RECORDS else kept[::2]

    def _watch_for_nan(self, step: int, figures: dict[str, Any]) -> None:
        loss = figures.get("loss")
        if not isinstance(loss, float | int):
            return
        if math.isfinite(loss):
            self.first_nan_step, self.last_finite_step = None, step
        elif self.first_nan_step is None:
            self.first_nan_step = step


def transformer_schedule(peak_rate: float, width: float, warmup_steps: float) -> dict[str, Any]:
    """Settings of dragoman's schedule "transformer" that reach this peak at the end of the warm-up."""
    factor = peak_rate * math.sqrt(width * warmup_steps)
    return {"schedule": "transformer", "warmup_steps": warmup_steps, "learning_rate": factor}


def evaluation_step(newest: int, every: int | None, log_every: int) -> int:
    """Step of an evaluation after this logged step: the next multiple of `every` before the next logged step."""
    if not every:
        return newest
    step = -(-newest // every) * every
    return step if step - newest < max(1, log_every) else newest


def _is_step(step: int) -> bool:
    return 0 <= step <= LARGEST_NUMBER


def _plain(value: Any) -> Any:
    """Returns what JSON can hold and a page can show; None for all else."""
    if type(value) is float:  # by far the most frequent type: this line is ten times as fast as the match
        return value if -LARGEST_NUMBER <= value <= LARGEST_NUMBER else None
    match value:
        case bool():
            return value
        case int() | float():
            return value if math.isfinite(value) and abs(value) <= LARGEST_NUMBER else None
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(key)): _plain(item) for key, item in list(value.items())[:MAX_LISTED]}
        case list() | tuple():
            return [_plain(item) for item in value[:MAX_SAMPLES_PER_RECORD]]
        case _:
            return None
