"""Finds the bottleneck of a run and its evidence, from the files of the run alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from dragoman.diagnosis.intervals import DISTURBED_SHARE, MeasuredIntervals, measured_intervals
from dragoman.diagnosis.step_model import COMPUTING, Step
from dragoman.diagnosis.traffic import NetworkUse, describe_network_use, network_use
from dragoman.diagnosis.wording import BOTTLENECK_WORDS, describe_load, describe_parts, format_step
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import MachineLoad, Record, TrainRecord, parse_records
from dragoman.run.summary import read_records

BUSY_SHARE = 0.9
_DISTURBED_CONFIDENCE = 0.6
"""Factor on the confidence of a verdict about steps that other programs disturbed."""
_FULL_CONFIDENCE_MARGIN = 0.2
_SURE_STEPS = 50


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
    """Seconds per step."""
    first_step: int | None = None
    last_step: int | None = None
    """The steps that it is about."""
    other_load: str = ""
    """Who else used the cores; empty where nobody did, or where it was not sampled."""

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
        why = "No record of this run has the parts of its steps, so what limited it is not known."
        return Verdict("unknown", 0.0, 0.0, why)
    step, network = measured.typical_step(), network_use(measured.records)
    load = next(iter(measured.loads()), MachineLoad())
    return Verdict(
        step.bottleneck,
        step.costs.share(step.bottleneck),
        _confidence(step, measured.records),
        _why(step, measured, load),
        _evidence(step, measured, network, load),
        _misleading_signs(step, measured.records),
        network.correlation,
        dict(step.parts),
        *measured.steps,
        describe_load(load),
    )


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
    computing = sum(step.parts[name] for name in COMPUTING) / step.seconds
    return f"it spent {computing:.0%} of its time computing gradients; no other cause took much time."


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


def _evidence(step: Step, measured: MeasuredIntervals, network: NetworkUse, load: MachineLoad) -> list[str]:
    first, last = measured.steps
    messages = [
        f"A step took {format_step(step.seconds)} in total, measured from step {first:,} to {last:,}: "
        f"{describe_parts(step.parts)}."
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


def _cost_of_others(step: Step, load: MachineLoad) -> str:
    if step.lost_share >= 0.01:
        return f"that cost {step.lost_share:.0%} of the time"
    return "whether that cost time is not known" if load.waiting_threads is None else "the run had cores enough"


def _misleading_signs(step: Step, records: Sequence[TrainRecord]) -> list[str]:
    if step.bottleneck not in ("network", "straggler"):
        return []
    share = (step.parts["exposed_communication"] + step.parts["straggler"]) / step.seconds
    signs = []
    for kind, name in (("gpu", "GPU"), ("cpu", "CPU")):
        busy = [number for each in records if (number := getattr(each.utilisation, kind, None)) is not None]
        if busy and fmean(busy) >= BUSY_SHARE:
            signs.append(
                f"{name} utilisation was {fmean(busy):.0%}, but {share:.0%} of each step was spent waiting inside "
                "communication: a kernel or thread that waits for the network counts as busy."
            )
    return signs
