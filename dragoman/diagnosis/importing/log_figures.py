"""What the readers of text logs have in common: numbers, times, and what follows from them."""

import math
from datetime import UTC, datetime
from typing import Any, TypeGuard

from dragoman.diagnosis.importing.foreign_run import LARGEST_NUMBER, ForeignRun

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
