"""Formats and parses rates, sizes and times. Rates are shown in bytes and in bits; an unclear unit is refused."""

import math
import re
from datetime import timedelta

from dragoman.run.errors import UsageError

BITS_PER_BYTE = 8
_MAX_SECONDS = 10**13
"""Longest time that a timedelta can hold, roughly; files may hold any number."""
_EXACT_SECONDS = 600
"""Durations below this are given to the second."""
_DAYS_WITH_HOURS = 100
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_RATE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<prefix>[kmgt]i?)?\s?(?P<unit>bits?|bytes?|be?)?"
    r"\s?(?P<time>/\s?s(?:ec(?:ond)?)?|ps)?",
    re.IGNORECASE,
)
_BYTE_NAMES = ("bytes", "kB", "MB", "GB", "TB", "PB")
SCORE_PATTERNS = {"bleu": "BLEU {:.1f}", "chrf": "chrF {:.1f}", "loss": "dev loss {:.3f}"}
"""How a score on the dev set is shown, by the metric that chooses the best checkpoint."""
_EXAMPLES = "write for example 100Mbit/s or 12.5MB/s"


def parse_rate(text: str) -> float:
    """Parses a rate such as "100Mbit", "1 Gbps" or "12.5MB/s" into bytes per second; an unclear unit is refused.

    A lone letter is read as the standards say, B for bytes and b for bits; "mbps" is bits too. In "100mb/s", "100MBPS"
    and "100M" it is not clear what was meant.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a rate: {_EXAMPLES}.")
    is_bits = _is_bits(match)
    if is_bits is None:
        # People mix up Mb, mb and MB: 100 Mbit/s has been read as 100 MB/s.
        raise UsageError(f"The rate {text!r} does not say clearly whether bits or bytes are meant: {_EXAMPLES}.")
    factor = (_DECIMAL | _BINARY)[(match["prefix"] or "").lower()]
    rate = float(match["number"]) * factor / (BITS_PER_BYTE if is_bits else 1)
    if not 0 < rate < math.inf:
        raise UsageError(f"The rate {text!r} must be more than 0 and finite: {_EXAMPLES}.")
    return rate


def _is_bits(match: re.Match[str]) -> bool | None:
    """Whether a rate is in bits; None where it is not clear."""
    unit, prefix, time = match["unit"] or "", match["prefix"] or "", (match["time"] or "").lower()
    if unit.lower() == "be":
        return True  # "10GbE", Ethernet
    if len(unit) != 1:
        return unit.lower().startswith("bit") if unit else None
    if unit == "B":
        return None if match["time"] == "PS" else False
    # "Mbps" and "mbps" are bits everywhere; "Mb/s" is by the standard, and "mb" may be either.
    is_clear = time == "ps" or (bool(time) and prefix[:1] in ("", "k", "K", "M", "G", "T"))
    return True if is_clear else None


def format_rate(bytes_per_second: float) -> str:
    """Formats a rate in bytes and in bits: "12.5 MB/s (100 Mbit/s)"."""
    return f"{_scaled(bytes_per_second, 'B/s')} ({_scaled(bytes_per_second * BITS_PER_BYTE, 'bit/s')})"


def format_bytes(num_bytes: float) -> str:
    """Formats a size with three or four digits: "243.5 MB"."""
    size, names = float(num_bytes), list(_BYTE_NAMES)
    while abs(size) >= 999.95 and len(names) > 1:
        size, names = size / 1000, names[1:]
    return f"{size:.0f} {names[0]}" if names[0] == "bytes" else f"{size:.1f} {names[0]}"


def _scaled(rate: float, unit: str) -> str:
    """Formats in kilo below a million and in mega above, with at least three digits and no exponent."""
    prefix, divisor = ("k", 1e3) if rate < 1e5 else ("M", 1e6)
    value = rate / divisor
    num_decimals = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    digits = f"{value:,.{min(num_decimals, 6)}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {prefix}{unit}"


def format_seconds(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds: 1:02:03."""
    return str(timedelta(seconds=round(max(-_MAX_SECONDS, min(seconds, _MAX_SECONDS)))))


def format_duration(seconds: float) -> str:
    """Formats a rough duration with its one or two largest units: 45 s, 12 min, 1 h 05 min, 2 days 3 h."""
    number = round(max(0.0, min(seconds, _MAX_SECONDS)))
    if number < 60:
        return f"{number} s"
    minutes, rest = divmod(number, 60)
    if number < _EXACT_SECONDS and rest:
        return f"{minutes} min {rest} s"
    minutes = round(number / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min" if minutes % 60 else f"{minutes // 60} h"
    days, hours = divmod(round(number / 3600), 24)
    name = "day" if days == 1 else "days"
    return f"{days:,} {name} {hours} h" if hours and days < _DAYS_WITH_HOURS else f"{days:,} {name}"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 evaluation", "5 evaluations"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_figure(pattern: str, value: float | None) -> str:
    """Formats a figure with a pattern such as "{:.2f} s"; empty if it is not known."""
    return "" if value is None else pattern.format(value)
