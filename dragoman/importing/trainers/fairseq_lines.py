"""Splits the lines of a fairseq log into their parts: time, logger, and the figures of one set of statistics."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.importing.log_text import NUMBER, is_usable, parse_number, parse_time
from dragoman.run.records import parse_object

_STAMP = r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:,\d{3})?)?"
_HEADER = re.compile(
    rf"({_STAMP}) \| \w{{1,10}} \| ([\w.]{{1,100}}) \| |\[({_STAMP})\]\[([\w.]{{1,100}})\]\[\w{{1,10}}\] - ", re.ASCII
)
_HEADER_MARKS = (" | INFO | ", "][INFO] - ", " | WARNING | ", "][WARNING] - ")
# Possessive quantifiers (+): three times as fast, and no backtracking over long words.
_FIGURE = re.compile(rf"(\w{{1,40}}+)= *({NUMBER})(?: \(({NUMBER})\))?(?![\w.])", re.ASCII)
_POSITION = re.compile(
    # A progress bar has no bar where the terminal is narrow, as in a notebook.
    r"epoch (\d{1,6})(?::? +(?:\d{1,3}%(?:\|[^|]{0,300}\|)? *)?(\d{1,9}) ?/ ?(\d{1,9})(?![\w.]))?",
    re.ASCII,
)
_SUBSET = re.compile(r"valid on '([^']{1,100})' subset")
_JSON_STARTS = ('{"epoch": ', 'sweep_log: {"')
_OLD_NAMES = {"words/s": "wps", "words/batch": "wpb", "s/checkpoint": "epoch_seconds"}


@dataclass(frozen=True)
class Message:
    """A line without the header that the version of fairseq puts before it."""

    text: str
    logger: str = ""
    time: float | None = None


@dataclass(frozen=True)
class Statistics:
    """The figures of one line, by fairseq's names without a prefix such as valid_."""

    kind: Literal["interval", "epoch", "valid"]
    """Mean over the last steps, over an epoch, or of a dev set."""
    figures: dict[str, float]
    subset: str | None = None
    epoch: int | None = None
    batch: int | None = None
    num_batches: int | None = None

    @property
    def step(self) -> int | None:
        """Number of updates, if the line says it."""
        step = self.figures.get("num_updates")
        return int(step) if step is not None and 0 <= step < 1e15 else None

    @property
    def epochs_done(self) -> float | None:
        """Number of epochs up to this line, with a fraction within an epoch."""
        update = self.figures.get("update")
        if is_usable(update) and update >= 0:
            return update
        if self.epoch is None or self.kind == "epoch":
            return None if self.epoch is None else float(self.epoch)
        if self.batch is None or not self.num_batches:
            return None
        return self.epoch - 1 + min(1.0, self.batch / self.num_batches)

    @property
    def seconds_per_step(self) -> float | None:
        """Computed from words per batch and per second: updates per second have only two decimals."""
        per_batch, per_second, updates = (self.figures.get(name, 0.0) for name in ("wpb", "wps", "ups"))
        if per_batch > 0 and per_second > 0:
            return per_batch / per_second
        return 1 / updates if updates > 0 else None

    @property
    def estimated_steps(self) -> int | None:
        """Steps of an epoch, from its seconds as versions of 2017 print them."""
        seconds, per_step = self.figures.get("epoch_seconds", 0.0), self.seconds_per_step
        num_steps = seconds / per_step if per_step else 0.0
        return round(num_steps) if 1 <= num_steps < 1e9 else None


def split_line(line: str) -> list[Message]:
    """Returns the messages of a line: none where fairseq did not write it, two where one follows a progress bar."""
    header = _HEADER.match(line)
    if header is None and any(mark in line for mark in _HEADER_MARKS):
        header = _HEADER.search(line, 0, 2_000)
    if header is not None:
        before = _without_header(line[: header.start()])
        stamp, logger = header[1] or header[3], header[2] or header[4]
        return [*before, Message(line[header.end() :], logger, parse_time(stamp))]
    return _without_header(line)


def _without_header(line: str) -> list[Message]:
    if line.startswith(("epoch ", "Namespace(", *_JSON_STARTS)):
        return [Message(line)]
    if line.startswith("| "):
        return [Message(line[2:])]
    # mpirun and srun put the number of the rank before the line.
    start = line.find("| epoch ", 0, 40)
    return [Message(line[start + 2 :])] if start > 0 else []


def parse_statistics(message: Message) -> Statistics | None:
    """Returns the figures of a line of training or validation; None for any other line."""
    text = message.text
    if text.startswith("{") or text.startswith(_JSON_STARTS):
        return _parse_json(text, message.logger)
    position = _POSITION.match(text)
    if position is None:
        return None
    epoch, batch, num_batches = (None if number is None else int(number) for number in position.groups())
    if batch is not None:
        figures = {name: float(mean or value) for name, value, mean in _FIGURE.findall(text, position.end())}
        return Statistics("interval", figures, None, epoch, batch, num_batches) if figures else None
    figures = _parse_pipes(text)
    if "loss" not in figures:
        return None
    subset = _SUBSET.search(text)
    return Statistics("valid" if subset else "epoch", figures, subset[1] if subset else None, epoch)


def _parse_pipes(text: str) -> dict[str, float]:
    """Reads "epoch 066 | valid on 'valid' subset | valid_loss 3.684 | valid_ppl 3.80", or "train loss" of 2017."""
    figures: dict[str, float] = {}
    for part in text.split(" | ", 60)[1:]:
        name, _, value = part.strip().rpartition(" ")
        number = parse_number(value.rstrip("%"))
        if number is not None:
            figures[_plain_name(name.strip())] = number
    return figures


def _plain_name(name: str) -> str:
    name = _OLD_NAMES.get(name, name)
    return name.removeprefix("valid_").removeprefix("valid ").removeprefix("train ")


def _parse_json(text: str, logger: str) -> Statistics | None:
    values = parse_object(text[text.find("{") :])
    if values is None:
        return None
    figures = {name: number for name, value in values.items() if (number := _number_of(value)) is not None}
    epoch = int(figures["epoch"]) if 0 <= figures.get("epoch", -1) < 1e6 else None
    prefix = _prefix_of(figures, logger)
    if prefix is None:
        kind: Literal["interval", "epoch"] = "interval" if "update" in figures else "epoch"
        figures["loss"] = figures.get("loss_avg", figures.get("loss", float("nan")))
        return Statistics(kind, figures, None, epoch) if "loss" in values else None
    own = {name.removeprefix(prefix): number for name, number in figures.items() if name.startswith(prefix)}
    # Versions of 2018 write valid_loss, but num_updates.
    own = {"num_updates": figures["num_updates"]} | own if "num_updates" in figures else own
    if prefix in ("train_", "train "):
        return Statistics("epoch", own, None, epoch)
    return Statistics("valid", own, prefix[:-1], epoch)


def _prefix_of(figures: dict[str, float], logger: str) -> str | None:
    """Returns what stands before the names, e.g. valid_ or train_; None where they have no prefix."""
    if logger != "train_inner" and f"{logger}_loss" in figures:
        return f"{logger}_"
    for prefix in ("train_", "valid_", "train ", "valid "):
        if f"{prefix}loss" in figures:
            return prefix
    named = (name.removesuffix("num_updates") for name in figures if name.endswith("_num_updates"))
    return next((prefix for prefix in named if f"{prefix}loss" in figures), None)


def _number_of(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return parse_number(value.rstrip("%")) if isinstance(value, str) else float(value)
    except OverflowError:
        return None
