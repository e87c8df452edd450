"""Durations and sums of money in words, the same everywhere in a report."""

from dragoman.run.units import counted, format_seconds


def describe_hours(seconds: float) -> str:
    """Describes a duration in one unit: "57.4 hours"."""
    if seconds < 120:
        return counted(round(seconds), "second")
    if seconds < 2 * 3600:
        return counted(round(seconds / 60), "minute")
    return f"{seconds / 3600:,.1f} hours"


def describe_exactly(seconds: float) -> str:
    """Describes a duration in words, and to the second: "57.4 hours (2 days, 9:26:58)"."""
    exact = "" if seconds < 120 else f" ({format_seconds(seconds)})"
    return f"{describe_hours(seconds)}{exact}"


def format_briefly(seconds: float) -> str:
    """Formats a duration with the symbol of its unit, the same unit as in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:,.1f} h" if seconds >= 2 * 3600 else f"{seconds / 60:.0f} min"


def format_money(amount: float) -> str:
    """Formats a sum of money, whose currency is that of the price."""
    return f"a cost of {amount:,.2f}"
