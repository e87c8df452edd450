"""What another trainer's log told, bounded and with plain numbers only."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeGuard

from dragoman.importing.log_text import clean_text

MAX_RECORDS = 100_000
MAX_LISTED = 200
MAX_SAMPLES_PER_RECORD = 3
LARGEST_NUMBER = 2**53

BleuKind = str
"""teacher_forced, tokenised, detokenised or unknown."""


@dataclass(frozen=True)
class Failure:
    """Something that went wrong, and what to do about it."""

    what: str
    """One sentence: what happened, and at which step or where."""
    cause: str
    """One sentence: why, as far as the log tells, and what to do."""
    evidence: str = ""
    """The line of the log."""
    step: int | None = None


@dataclass
class ForeignRun:
    """One run of another trainer, as it is read."""

    trainer: str = "unknown"
    sources: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """By the names docs/report.md speaks of, e.g. parameters, num_ranks, hosts, gpus, interface, precision."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tables of config.toml, as far as the run's settings have a counterpart in ours."""
    printed_config: dict[str, Any] = field(default_factory=dict)
    """The configuration as its trainer names it, nested."""
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the log cannot tell, one sentence each."""
    records: list[dict[str, Any]] = field(default_factory=list)
    first_nan_step: int | None = None
    last_finite_step: int | None = None
    _stride: int = 1
    _num_train_records: int = 0
    _newest_step: int = -1
    _left_out: tuple[int, dict[str, Any]] | None = None

    def add_train(self, step: int, **figures: Any) -> None:
        """A logged step. Figures: loss, learning_rate, gradient_norm, seconds_per_step, target_tokens_per_second,
        training_seconds (since the beginning of the run), time (since 1970), loss_scale, sample.
        """
        if not _is_step(step):
            return
        self._watch_for_nan(step, figures)
        self._num_train_records += 1
        self._left_out = None if self._num_train_records % self._stride == 0 else (step, figures)
        if self._left_out is None:
            self._add("train", step, figures)
        self._newest_step = step

    def finish(self) -> None:
        """Nothing more comes: the last step is kept, whatever was thinned out."""
        if self._left_out is not None:
            self._add("train", *self._left_out)
            self._left_out = None

    def add_evaluation(self, step: int, **figures: Any) -> None:
        """A judgement on the dev set. Figures: loss, bleu (of translations, 0 to 100), teacher_forced_bleu (0 to 1),
        perplexity, accuracy, chrf, seconds, time, samples (up to three of {source, reference, translation}).
        """
        if not _is_step(step):
            return
        loss = figures.get("loss")
        if isinstance(loss, float) and not math.isfinite(loss):
            self.note(f"The loss of the dev set is not a number at step {step:,}.")
        self._add("evaluation", step, figures)

    def add_checkpoint(self, step: int, **figures: Any) -> None:
        """A checkpoint was written. Figures: path, bytes, seconds, time."""
        if _is_step(step):
            self._add("checkpoint", step, figures)

    def add_restart(self, step: int, **figures: Any) -> None:
        """The run began again from a checkpoint of this step. Figures: cause, time."""
        if _is_step(step):
            self._add("restart", step, figures)

    def add_failure(self, failure: Failure) -> None:
        """Keeps one failure of each kind."""
        if len(self.failures) < MAX_LISTED and all(failure.what != known.what for known in self.failures):
            self.failures.append(failure)

    def note(self, sentence: str) -> None:
        """Keeps a sentence once."""
        if sentence not in self.notes and len(self.notes) < MAX_LISTED:
            self.notes.append(sentence)

    def add_to_fact(self, name: str, value: Any) -> None:
        """Adds to a list of different values, e.g. of hosts."""
        known = self.facts.setdefault(name, [])
        if value not in known and len(known) < MAX_LISTED:
            known.append(value)

    @property
    def newest_step(self) -> int | None:
        """Of the last logged step; None before the first."""
        return None if self._newest_step < 0 else self._newest_step

    @property
    def is_empty(self) -> bool:
        """Whether nothing was trained or judged."""
        return not any(record["kind"] in ("train", "evaluation") for record in self.records)

    def _add(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        if len(self.records) >= MAX_RECORDS:
            self._thin_out()
        plain = {name: _plain(value) for name, value in figures.items()}
        self.records.append({"kind": kind, "step": step} | {n: v for n, v in plain.items() if v is not None})

    def _thin_out(self) -> None:
        """Every second training record is enough for any curve; the others are few, or somebody's bad joke."""
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


def _is_step(step: int) -> bool:
    return 0 <= step <= LARGEST_NUMBER


def _plain(value: Any) -> Any:
    """What JSON can hold and a page can show; None for what is no number and no text."""
    if type(value) is float:  # nearly always; a match takes ten times as long
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


NUMBER = r"[-+]?(?:\d{1,25}(?:\.\d{0,25})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
"""What float() takes without complaint; short enough for int(), too, where it has no point."""


def time_of(stamp: str) -> float | None:
    """Seconds since 1970 of a text that begins with "2021-01-01 12:00:00"; its local time is taken as UTC."""
    if len(stamp) < 19 or stamp[4] != "-" or stamp[13] != ":":
        return None
    try:
        return datetime.fromisoformat(stamp[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def transformer_factor(peak_rate: float, width: float, warmup_steps: float) -> float:
    """Our learning_rate for the schedule "transformer" that reaches this peak."""
    return peak_rate * math.sqrt(width * warmup_steps)


def is_usable(value: float | None) -> TypeGuard[float]:
    """Whether a number may become a fact: logs hold infinite ones, and such that are only digits."""
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST_NUMBER


def add_settings(run: ForeignRun, section: str, **values: Any) -> None:
    """Keeps what is known (neither None nor infinite) as settings of ours, and as facts of the same meaning."""
    known = {name: value for name, value in values.items() if isinstance(value, str) or is_usable(value)}
    if known:
        run.settings.setdefault(section, {}).update(known)
    for name in ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers", "dropout", "label_smoothing"):
        if name in known:
            run.facts[name] = known[name]
    for name, fact in {
        "max_steps": "steps_planned",
        "log_every": "log_every",
        "evaluate_every": "evaluate_every",
    }.items():
        if name in known:
            run.facts[fact] = known[name]


def note_silence(run: ForeignRun) -> None:
    """Says what no trainer logs by itself and this log does not tell either."""
    if "interface" not in run.facts:
        run.note("The log does not say which network interface was used: run with NCCL_DEBUG=INFO next time.")
    if "parameters" not in run.facts:
        run.note("The log does not say how many parameters the model has.")


def evaluation_step(newest: int, every: int | None, log_every: int) -> int:
    """Of an evaluation after this logged step: the next multiple of `every` if it lies before the next logged step."""
    if not every:
        return newest
    step = -(-newest // every) * every
    return step if step - newest < max(1, log_every) else newest
