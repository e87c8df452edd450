"""Numbers, times, dates and sentences in the form OpenSeq2Seq and TensorFlow print them."""

import math
from datetime import UTC, datetime
from typing import Any

from dragoman.diagnosis.importing.log_text import clean_text


def as_number(text: str) -> float | None:
    """The number, which may be nan or inf; None for what is none."""
    try:
        return float(text)
    except ValueError:
        return None


def set_finite(facts: dict[str, Any], name: str, text: str) -> None:
    """Keeps a number under its name, unless it is nan or inf."""
    number = as_number(text)
    if number is not None and math.isfinite(number):
        facts[name] = number


def as_seconds(text: str) -> float | None:
    """Of hours:minutes:seconds, where the seconds are not padded: 0:00:1.946."""
    hours, minutes, seconds = text.split(":")
    rest = as_number(seconds)
    return None if rest is None else int(hours) * 3600 + int(minutes) * 60 + rest


def as_time(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Seconds since 1970, the log's local time taken as UTC."""
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def as_time_after(started: float, month_to_second: list[int]) -> float | None:
    """A date without its year: in the year of the start, or the one after."""
    year = datetime.fromtimestamp(started, tz=UTC).year
    date = as_time(year, *month_to_second)
    # A day's grace: clocks of hosts differ.
    return as_time(year + 1, *month_to_second) if date is not None and date < started - 86_400 else date


def join_pieces(text: str) -> str:
    """Pieces of words as a sentence; what stands behind its end mark is padding."""
    before, _, _ = text.partition("</s>")
    text = clean_text(before.replace("<s>", ""))
    if "▁" in text:
        return text.replace(" ", "").replace("▁", " ").strip()
    return text.replace("@@ ", "")
