"""Finds the bottleneck of a run and its evidence, from the files of the run alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from dragoman.diagnosis.intervals import DISTURBED_SHARE, MeasuredIntervals, measured_intervals
from dragoman.diagnosis.slow_network import advise_local_updates
from dragoman.diagnosis.step_model import COMPUTING, SHORTEST_STEP, Step
from dragoman.diagnosis.traffic import NetworkUse, describe_network_use, network_use
from dragoman.diagnosis.wording import (
    BOTTLENECK_WORDS,
    CAUSE_NAMES,
    SMALLEST_SHARE,
    describe_load,
    describe_parts,
    format_step,
)
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import MachineLoad, Record, TrainRecord, parse_records
from dragoman.run.summary import read_records

_NOTABLE_COST = 0.1
"""Share of a step from which a cause besides the bottleneck is named."""
BUSY_SHARE = 0.9
OTHER_PROGRAMS = "other_programs"
"""The part of a step that it takes longer because other programs used the cores."""
OTHER_PROGRAMS_NAME = "slowed down by other programs"
_DISTURBED_CONFIDENCE = 0.6
"""Factor on the confidence of a verdict about steps that other programs disturbed."""
_FULL_CONFIDENCE_MARGIN = 0.2
_SURE_STEPS = 50
_NOTABLE_LOSS = 0.001
_SCALED_PARTS = ("exposed_communication", "optimizer", "evaluation", "other")
"""Parts whose cost is the part itself, less what other programs cost."""


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a run, with its evidence."""

    bottleneck: str
    """compute, network, input, straggler, overhead, other_programs, or unknown."""
    share: float
    """Share of the time that this cause took."""
    confidence: float
    why: str
    evidence: list[str] = field(default_factory=list)
    misleading: list[str] = field(default_factory=list)
    """Observations that point elsewhere, and why they do not count."""
    network_correlation: float | None = None
    """Correlation of traffic and seconds per step over the intervals; None where it would be no evidence."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds per step; what other programs cost is a part of its own, so that all shares agree with `share`."""
    first_step: int | None = None
    last_step: int | None = None
    """The steps that it is about."""
    other_load: str = ""
    """Who else used the cores; empty where nobody did, or where it was not sampled."""
    advice: list[str] = field(default_factory=list)
    """Other ways to synchronise that would have saved time."""

    @property
    def is_known(self) -> bool:
        """Whether a bottleneck was found."""
        return self.bottleneck != "unknown"

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self)


def verdict_of_run(run: RunFolder, num_records: int | None = None) -> Verdict:
    """Finds the bottleneck of a run, finished or not; with a number, from its last records only."""
    if num_records is None:
        return verdict_of_records(read_records(run))
    with LineFollower(run.metrics, num_records) as metrics:
        return verdict_of_records(list(parse_records(metrics.read_lines())))


def verdict_of_records(records: Sequence[Record]) -> Verdict:
    """Finds the bottleneck of a run from the records of its metrics.jsonl."""
    measured = measured_intervals(records)
    if measured is None:
        why = "It is not known what limited this run: no record says where the time of a step went."
        return Verdict("unknown", 0.0, 0.0, why)
    step, network = measured.typical_step(), network_use(measured.records)
    load = next(iter(measured.loads()), MachineLoad())
    parts = parts_of_verdict(step)
    return Verdict(
        step.bottleneck,
        step.costs.share(step.bottleneck),
        _confidence(step, measured.records),
        _why(step, measured, load),
        _evidence(step, parts, measured, network, load),
        _misleading_signs(step, measured.records),
        network.correlation,
        parts,
        *measured.steps,
        describe_load(load),
        advise_local_updates(step, measured.records),
    )


def parts_of_verdict(step: Step) -> dict[str, float]:
    """Returns the parts of a step with the time that other programs cost set apart; they add up to the whole step."""
    lost, scale = step.costs.seconds[OTHER_PROGRAMS], _undisturbed_share(step)
    if lost < _NOTABLE_LOSS * step.seconds:
        return dict(step.parts)
    parts = {name: scale * seconds for name, seconds in step.parts.items()}
    # Other programs make ranks wait for each other first; then they make every part longer.
    waited = lost - (1 - scale) * step.seconds
    parts |= {"straggler": max(0.0, parts.get("straggler", 0.0) - waited), OTHER_PROGRAMS: lost}
    # As in the costs, computing is the rest.
    computing = sum(parts.get(name, 0.0) for name in COMPUTING)
    rest = max(0.0, step.seconds - (sum(parts.values()) - computing))
    return parts | {name: parts[name] * rest / computing for name in COMPUTING if computing and name in parts}


def _undisturbed_share(step: Step) -> float:
    """Share of each part that is left without other programs, as the costs of the causes have it."""
    costs = step.costs
    causes = {"exposed_communication": costs.seconds["network"]} | costs.overheads
    ratios = [causes[name] / step.parts[name] for name in _SCALED_PARTS if step.parts.get(name, 0.0) > SHORTEST_STEP]
    longer = max(0.0, costs.seconds[OTHER_PROGRAMS] - step.parts.get("straggler", 0.0))
    return min(1.0, next(iter(ratios), 1 - longer / step.seconds if step.seconds else 1.0))


def _confidence(step: Step, records: Sequence[TrainRecord]) -> float:
    """High where the bottleneck is far ahead of other causes, over many steps; low where others disturbed them."""
    clearness = min(1.0, max(0.0, step.costs.margin) / _FULL_CONFIDENCE_MARGIN)
    steps = [each.step for each in records]
    num_steps = max(steps) - min(steps)
    disturbed = _DISTURBED_CONFIDENCE if _is_disturbed(step) else 1.0
    return round(disturbed * (0.5 + 0.45 * clearness) * (0.7 + 0.3 * min(1.0, num_steps / _SURE_STEPS)), 2)


def _is_disturbed(step: Step) -> bool:
    """Whether other programs, which are not the bottleneck themselves, make the other figures uncertain."""
    return step.bottleneck != "other_programs" and step.lost_share >= DISTURBED_SHARE


def _why(step: Step, measured: MeasuredIntervals, load: MachineLoad) -> str:
    """States the bottleneck in one message, and whether other programs make it uncertain."""
    cause = f"The run is {BOTTLENECK_WORDS[step.bottleneck]}: {_describe_cause(step, measured, load)}"
    if not _is_disturbed(step):
        return cause
    return f"{cause} This is uncertain: meanwhile {describe_load(load)}."


def _describe_cause(step: Step, measured: MeasuredIntervals, load: MachineLoad) -> str:
    share = step.costs.share(step.bottleneck)
    match step.bottleneck:
        case "network":
            return f"it spent {share:.0%} of its time only waiting for the network."
        case "input":
            return f"it spent {share:.0%} of its time waiting for data."
        case "straggler":
            return _name_straggler(step, measured, share)
        case "other_programs":
            return f"{describe_load(load)}. Without them, a step would take about {share:.0%} less time."
        case "overhead":
            overheads = step.costs.overheads
            worst = max(overheads, key=overheads.__getitem__)
            cause = _OVERHEAD_WORDS[worst].format(share=overheads[worst] / step.seconds)
            return f"{share:.0%} of its time was not spent on learning; most of that is {cause}."
    fixed = step.costs.overheads["small batches"] / step.seconds
    without = f", without the fixed cost of a batch ({fixed:.0%})" if fixed >= SMALLEST_SHARE else ""
    return f"it spent {share:.0%} of its time computing gradients{without}; {_next_cause(step)}."


def _next_cause(step: Step) -> str:
    """Names the most expensive other cause, where it took a notable part of the time."""
    others = {cause: step.costs.share(cause) for cause in step.costs.seconds if cause != "compute"}
    worst = max(others, key=others.__getitem__)
    if others[worst] < _NOTABLE_COST:
        return "no other cause took much time"
    return f"the next cause, {CAUSE_NAMES[worst]}, took {others[worst]:.0%}"


_OVERHEAD_WORDS = {
    "evaluation": "evaluation ({share:.0%}): evaluate less often, or fewer sentences",
    "checkpoint": "saving checkpoints ({share:.0%}): save less often",
    "optimizer": "the optimizer ({share:.0%}): batches are small for the number of parameters",
    "other": "work between the steps ({share:.0%})",
    "small batches": "the fixed cost of a batch, before its first token ({share:.0%}): use larger batches",
}


def _name_straggler(step: Step, measured: MeasuredIntervals, share: float) -> str:
    excess = step.costs.excess_of_slowest
    if excess <= step.parts["straggler"]:
        return (
            f"ranks waited for each other {share:.0%} of the time. No single rank is to blame: different ranks were "
            "slow at different times."
        )
    rank = int(np.argmax(step.work_by_rank))
    host = measured.slowest_host(step.work_by_rank)
    where = f" on {host}" if host else ""
    return f"rank {rank}{where} takes {format_step(excess)} longer per step than the others ({share:.0%})."


def _evidence(
    step: Step, parts: Mapping[str, float], measured: MeasuredIntervals, network: NetworkUse, load: MachineLoad
) -> list[str]:
    first, last = measured.steps
    messages = [
        f"A step took {format_step(step.seconds)} in total, measured from step {first:,} to {last:,}: "
        f"{describe_parts(_named(parts))}."
    ]
    if num_slow := len(measured.intervals) - len(measured.steady):
        messages.append(
            f"{num_slow:,} of {len(measured.intervals):,} intervals took far longer than the others and are left out."
        )
    if others := describe_load(load):
        messages.append(f"{others[0].upper()}{others[1:]}; {_cost_of_others(step, load)}.")
    messages += describe_network_use(network)
    if len(step.work_by_rank) > 1:
        fastest, slowest = min(step.work_by_rank), max(step.work_by_rank)
        messages.append(f"The ranks' own work took {format_step(fastest)} to {format_step(slowest)} per step.")
    if step.fixed_share:
        messages.append(f"{step.fixed_share:.0%} of forward and backward does not depend on the number of tokens.")
    elif measured.is_fixed_share_doubtful:
        messages.append("The fixed cost of a batch was measured while other programs were busy, so it does not count.")
    return messages


def _named(parts: Mapping[str, float]) -> dict[str, float]:
    return {OTHER_PROGRAMS_NAME if name == OTHER_PROGRAMS else name: seconds for name, seconds in parts.items()}


def _cost_of_others(step: Step, load: MachineLoad) -> str:
    if step.lost_share >= 0.01:
        return f"that cost {step.lost_share:.0%} of the time"
    return "whether that cost time is not known" if load.waiting_threads is None else "the run had cores enough"


def _misleading_signs(step: Step, records: Sequence[TrainRecord]) -> list[str]:
    if step.bottleneck not in ("network", "straggler"):
        return []
    parts = parts_of_verdict(step)
    share = (parts["exposed_communication"] + parts["straggler"]) / step.seconds
    signs = []
    for kind, name in (("gpu", "GPU"), ("cpu", "CPU")):
        busy = [number for each in records if (number := getattr(each.utilisation, kind, None)) is not None]
        if busy and fmean(busy) >= BUSY_SHARE:
            signs.append(
                f"{name} utilisation was {fmean(busy):.0%}, but {share:.0%} of each step was spent waiting inside "
                "communication: a kernel or thread that waits for the network counts as busy."
            )
    return signs
