"""Words for the parts of a step, for bottlenecks and for predictions, the same in all commands."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dragoman.run.records import NOTABLE_CORES, MachineLoad
from dragoman.run.units import format_rate, format_seconds

if TYPE_CHECKING:
    from dragoman.diagnosis.prediction import MeasuredLink, Prediction

PART_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "hidden_communication": "backward while sending",
    "exposed_communication": "waiting for the network",
    "straggler": "waiting for slower ranks",
    "data": "waiting for data",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "other": "other",
}
BOTTLENECK_WORDS = {
    "compute": "compute-bound",
    "network": "network-bound",
    "input": "input-bound",
    "straggler": "straggler-bound",
    "overhead": "overhead-bound",
    "other_programs": "slowed by other programs",
    "unknown": "not known",
}
CAUSE_NAMES = {
    name: words.removesuffix("-bound").removeprefix("slowed by ") for name, words in BOTTLENECK_WORDS.items()
}
"""The bottleneck alone, as in "limited by …"."""
SMALLEST_SHARE = 0.01
"""Smaller parts of a step are left out."""
_NOTABLE_RETRANSMISSIONS = 0.001


def format_step(seconds: float) -> str:
    """Formats the seconds of a step with three significant digits, or one decimal from 10 s on."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.3g} s"


def format_steps(low: float, high: float) -> str:
    """Formats an interval of seconds, or one figure where both ends read the same."""
    first, last = format_step(low), format_step(high)
    return last if first == last else f"{first.removesuffix(' s')} to {last}"


def describe_parts(parts: Mapping[str, float]) -> str:
    """Lists the parts that matter with their shares, the largest first."""
    total = sum(parts.values())
    if not total:
        return ""
    shown = sorted(((seconds, name) for name, seconds in parts.items()), reverse=True)
    return ", ".join(
        f"{PART_NAMES.get(name, name)} {seconds / total:.0%}"
        for seconds, name in shown
        if seconds / total >= SMALLEST_SHARE
    )


def describe_load(load: MachineLoad) -> str:
    """Says which part of the cores of a machine others had, and names the heaviest programs."""
    where = f" on {load.host}" if load.host else ""
    taken = []
    if load.other_cores >= NOTABLE_CORES:
        programs = ", ".join(f"{each.name} (process {each.pid}) {each.cores:.1f}" for each in load.programs)
        named = f" ({programs})" if programs else ""
        taken.append(f"other programs used {load.other_cores:.1f} of {load.num_cores:g} cores{where}{named}")
    if load.stolen_cores >= NOTABLE_CORES:
        taken.append(
            f"the hypervisor gave {load.stolen_cores:.1f} of {load.num_cores:g} cores{where} to other virtual machines"
        )
    return " and ".join(taken)


def describe_prediction(prediction: "Prediction") -> list[str]:
    """Describes step time, bottleneck, parts and links, one line each."""
    lines = [
        f"Predicted: {format_step(prediction.seconds)} per step ({format_step(prediction.low)} to "
        f"{format_step(prediction.high)}), {BOTTLENECK_WORDS[prediction.bottleneck]}."
    ]
    if prediction.other_load:
        lines.append(f"This is uncertain: {prediction.other_load} while it was measured.")
    if prediction.parts:
        lines.append(f"A step: {describe_parts(prediction.parts)}.")
    return [*lines, *map(_describe_link, prediction.links)]


def _describe_link(link: "MeasuredLink") -> str:
    claimed, again = link.claimed_megabits_per_second, link.retransmitted_share or 0.0
    return (
        f"Link {link.sender} to {link.receiver}: {format_rate(link.bytes_per_second)}, latency "
        f"{link.latency_seconds * 1e6:,.0f} µs, "
        + (f"{again:.1%} of segments sent again, " if again >= _NOTABLE_RETRANSMISSIONS else "")
        + f"over {link.interface or 'an unknown interface'}"
        + (f", which claims {claimed:,.0f} Mbit/s." if claimed else ".")
    )


def describe_run_length(
    prediction: "Prediction", num_steps: int, price_per_hour: float | None, full_steps: float | None = None
) -> str:
    """Describes time and cost of a number of steps, which together have the tokens of `full_steps` full ones."""
    full_steps = num_steps if full_steps is None else full_steps

    def amount(seconds: float) -> str:
        cost = "" if price_per_hour is None else f", cost {seconds * full_steps / 3600 * price_per_hour:,.2f}"
        return f"{format_seconds(seconds * full_steps)}{cost}"

    return (
        f"{num_steps:,} steps: {amount(prediction.seconds)} ({amount(prediction.low)} to {amount(prediction.high)}), "
        "without evaluations."
    )


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Joins words as in a sentence: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
