"""Advises how to make a step faster, and finds problems of the machines and the links between them.

Each proposal is an interval of seconds per step, from the assumption that favours the change most and the one that
favours it least; it never saves more than is waited for what the change removes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from dragoman.diagnosis.faster_port import network_waits, seconds_with_port
from dragoman.diagnosis.prediction import (
    MEGA,
    MeasuredLink,
    Measurements,
    Prediction,
    assemble_step,
    load_factors,
    margin_of,
    predict,
    transfer_seconds,
)
from dragoman.diagnosis.wording import format_step, format_steps
from dragoman.run.units import BITS_PER_BYTE, format_rate

_MOST_OF_NOW = 0.95
"""A proposal is shown if the step would probably take less than this share of its time now."""
LINK_STEPS_MEGABITS = (100, 1_000, 10_000, 25_000, 100_000)
_SLOW_LINK_SHARE = 0.3
"""A link below this share of its claimed speed is a problem; one TCP stream rarely fills a fast link."""
LOSSY_SHARE = 0.01
"""From this share of retransmitted segments on, a link loses packets. Sound links of the tests had up to 0.5 %, where
the sender overfilled a queue; limited ones less than 0.1 %, and such a loss costs little."""
_SLOW_MACHINE_FACTOR = 1.35
_PARTS_OF_BATCH = ("data", "forward", "backward", "hidden_communication")
"""Parts that grow with the tokens of a rank."""


@dataclass(frozen=True)
class _Proposal:
    """A change, and the seconds per step with it."""

    change: str
    low: float
    high: float

    @property
    def middle(self) -> float:
        """Middle of the interval."""
        return (self.low + self.high) / 2


def predict_and_advise(measured: Measurements) -> Prediction:
    """Predicts a step, with advice and problems."""
    prediction = predict(measured)
    return replace(prediction, advice=advise(measured, prediction), problems=find_problems(measured, prediction))


def advise(measured: Measurements, prediction: Prediction) -> list[str]:
    """Returns one message for each change that helps, the greatest gain first."""
    proposals = [*_port_proposals(measured, prediction), *_other_proposals(measured, prediction)]
    changes = [
        f"{each.change}: {format_steps(each.low, each.high)} instead of {format_step(prediction.seconds)} per step."
        for each in sorted(proposals, key=lambda each: each.middle)
        if each.middle < _MOST_OF_NOW * prediction.seconds
    ]
    return [*_repair_advice(measured, prediction), *changes, *_batch_advice(measured, prediction)]


def _bounded(
    change: str, seconds: Sequence[float], measured: Measurements, prediction: Prediction, waited: float
) -> _Proposal:
    """Builds a proposal that spans the given seconds, their error and the load; it saves at most what is waited."""
    margin = 1 + margin_of(measured)
    shortest, longest = load_factors(measured.loads)
    low = max(min(seconds) * shortest / margin, prediction.seconds - waited)
    return _Proposal(change, low, max(low, min(max(seconds) * longest * margin, prediction.seconds)))


# Faster links


def _port_proposals(measured: Measurements, prediction: Prediction) -> list[_Proposal]:
    """Proposes the next faster ports, unless packets are lost: a faster port would lose them too."""
    if not measured.links or not measured.all_reduce or any(map(_is_lossy, measured.links)):
        return []
    slowest = min(measured.links, key=lambda link: link.bytes_per_second)
    faster = [speed for speed in LINK_STEPS_MEGABITS if speed > 1.5 * slowest.megabits_per_second][:2]
    _, waited = network_waits(prediction)
    proposals = []
    for speed in faster:
        seconds = seconds_with_port(measured, prediction, speed * MEGA / BITS_PER_BYTE)
        proposals.append(_bounded(f"A port of {_port(speed)}", seconds, measured, prediction, waited))
    return proposals


def _repair_advice(measured: Measurements, prediction: Prediction) -> list[str]:
    """Proposes to repair links that lose packets; how fast they are then is only known afterwards."""
    _, waited = network_waits(prediction)
    if waited < (1 - _MOST_OF_NOW) * prediction.seconds:
        return []
    return [
        f"Repairing the link between {first} and {second}, which loses packets: how much of the {format_step(waited)} "
        "that a step waits for the network goes away is known only afterwards."
        for first, second in _lossy_pairs(measured.links)
    ]


def _is_lossy(link: MeasuredLink) -> bool:
    return (link.retransmitted_share or 0.0) >= LOSSY_SHARE


def _lossy_pairs(links: Sequence[MeasuredLink]) -> dict[tuple[str, str], list[MeasuredLink]]:
    """Links that lose packets, by their two machines: both directions usually share a cable."""
    pairs: dict[tuple[str, str], list[MeasuredLink]] = {}
    for link in filter(_is_lossy, links):
        first, second = sorted((link.sender, link.receiver))
        pairs.setdefault((first, second), []).append(link)
    return pairs


# Other changes


def _other_proposals(measured: Measurements, prediction: Prediction) -> list[_Proposal]:
    costs, work = prediction.step.costs.seconds, measured.work_by_rank
    proposals = []
    if len(measured.machine_names) > 1:
        proposals.append(_one_machine(measured, prediction))
    saved, change = costs.get(prediction.bottleneck, 0.0), ""
    if prediction.bottleneck == "straggler" and len(work) > 1 and prediction.step.costs.excess_of_slowest >= saved:
        slowest = work.index(max(work))
        change = f"Rank {slowest} on {measured.machines[slowest]} as fast as the others"
    if prediction.bottleneck == "input":
        change = "Prepared data on a faster disk"
    if change:
        proposals.append(_bounded(change, [prediction.seconds - saved], measured, prediction, saved))
    return proposals


def _one_machine(measured: Measurements, prediction: Prediction) -> _Proposal:
    """Proposes the first machine alone: it computes more, and waits for no other."""
    alone, exchange = _seconds_on_one_machine(measured)
    now = assemble_step(measured)
    computing = now.seconds - now.parts["exposed_communication"]
    parts = prediction.step.parts
    exposed = parts.get("exposed_communication", 0.0)
    # Complete steps may compute faster or slower than those without exchange, by which this machine was measured.
    scale = (prediction.seconds - exposed) / computing if computing else 1.0
    seconds = [alone + exchange, scale * alone + exchange]
    waited = exposed + parts.get("straggler", 0.0)
    return _bounded(f"One machine alone ({measured.machine_names[0]})", seconds, measured, prediction, waited)


def _seconds_on_one_machine(measured: Measurements) -> tuple[float, float]:
    """Seconds of computing and of exchange for the same global batch on the first machine alone."""
    num_inside = list(measured.machines).count(measured.machines[0])
    factor = len(measured.machines) / num_inside
    parts = {
        name: seconds * (factor if name in _PARTS_OF_BATCH else 1.0) for name, seconds in measured.alone_parts.items()
    }
    exchange = 0.0
    if num_inside > 1 and measured.all_reduce_inside:
        exchange = sum(transfer_seconds(measured.all_reduce_inside, size) for size in measured.bucket_bytes)
    return sum(parts.values()), exchange


def _batch_advice(measured: Measurements, prediction: Prediction) -> list[str]:
    """Proposes a larger batch: steps get longer, but fixed costs are paid less often."""
    if prediction.bottleneck not in ("network", "overhead"):
        return []
    parts = prediction.step.parts
    added = sum(parts.get(name, 0.0) for name in _PARTS_OF_BATCH) * (1 - measured.fixed_share)
    gain = 2 * prediction.seconds / (prediction.seconds + added)
    if gain * _MOST_OF_NOW < 1:
        return []
    return [f"Twice the training.global_batch_tokens: {gain:.2g} times as many tokens per second, in larger steps."]


# Problems


def find_problems(measured: Measurements, prediction: Prediction) -> list[str]:
    """Returns problems of machines and links that should be fixed before a long run."""
    return [
        *_load_problems(prediction),
        *_loss_problems(measured.links),
        *_link_problems(measured.links),
        *_placement_problems(measured),
        *_machine_problems(measured),
        *_useless_machines(measured, prediction),
    ]


def _load_problems(prediction: Prediction) -> list[str]:
    if not prediction.other_load:
        return []
    load = prediction.other_load
    return [
        f"{load[0].upper()}{load[1:]}: steps stay as slow as these while that lasts. End other programs, or use a "
        "machine whose cores nobody else uses."
    ]


def _loss_problems(links: Sequence[MeasuredLink]) -> list[str]:
    problems = []
    for (first, second), lossy in _lossy_pairs(links).items():
        shares = " and ".join(
            f"{link.retransmitted_share:.1%} of the TCP segments from {link.sender} to {link.receiver}"
            for link in lossy
        )
        names = sorted({link.interface for link in lossy} - {""})
        interfaces = " and ".join(names) or "the interfaces"
        problems.append(
            f"Packets are lost between {first} and {second}: {shares} had to be sent again. Before thinking of a "
            f"faster port, look at the cable and its plugs, at the errors and drops that the switch and {interfaces} "
            "count, and whether both ends use the same duplex mode and MTU."
        )
    return problems


def _link_problems(links: Sequence[MeasuredLink]) -> list[str]:
    problems = []
    for link in links:
        name = f"The link from {link.sender} to {link.receiver}"
        if link.kind in ("loopback", "vpn"):
            kind = "the loopback interface" if link.kind == "loopback" else "a VPN"
            problems.append(f"{name} uses {kind} ({link.interface}): set GLOO_SOCKET_IFNAME to the fast interface.")
        claimed = link.claimed_megabits_per_second
        if claimed and link.megabits_per_second < _SLOW_LINK_SHARE * claimed and not _is_lossy(link):
            problems.append(
                f"{name} carries {format_rate(link.bytes_per_second)}, but {link.interface} claims {claimed:,.0f} "
                f"Mbit/s: look for a slower port, cable, switch or limit in between."
            )
    if len(links) > 2:
        slow = min(links, key=lambda link: link.bytes_per_second)
        usual = median(link.bytes_per_second for link in links)
        if slow.bytes_per_second < usual / _SLOW_MACHINE_FACTOR / 2 and not _is_lossy(slow):
            problems.append(
                f"The link from {slow.sender} to {slow.receiver} carries {format_rate(slow.bytes_per_second)}, the "
                f"others {format_rate(usual)}: every step waits for the slowest."
            )
    return problems


def _placement_problems(measured: Measurements) -> list[str]:
    if not measured.is_interleaved:
        return []
    return [
        "Neighbouring ranks are on different machines: the gradient crosses the network once for every rank instead "
        "of once for every machine. List the ranks machine by machine."
    ]


def _machine_problems(measured: Measurements) -> list[str]:
    """Finds a machine whose ranks take much longer than those of the others."""
    if len(measured.machine_names) < 2 or not measured.work_by_rank:
        return []
    work = {
        name: fmean(
            seconds
            for machine, seconds in zip(measured.machines, measured.work_by_rank, strict=True)
            if machine == name
        )
        for name in measured.machine_names
    }
    slowest = max(work, key=work.__getitem__)
    others = median(seconds for name, seconds in work.items() if name != slowest)
    if work[slowest] < _SLOW_MACHINE_FACTOR * others:
        return []
    return [
        f"{slowest} is slower than the others: it computes for {format_step(work[slowest])} per step, the others "
        f"for {format_step(others)}. Every step waits for it: give it fewer workers, or find what else runs on it."
    ]


def _useless_machines(measured: Measurements, prediction: Prediction) -> list[str]:
    if len(measured.machine_names) < 2:
        return []
    alone = _one_machine(measured, prediction)
    if alone.middle >= _MOST_OF_NOW * prediction.seconds:
        return []
    return [
        f"{len(measured.machine_names)} machines are slower than one: {format_step(prediction.seconds)} per step, and "
        f"{format_steps(alone.low, alone.high)} on {measured.machine_names[0]} alone."
    ]


def _port(megabits: int) -> str:
    rate = f"{megabits // 1000} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"
    return f"{rate} ({megabits / BITS_PER_BYTE:,.5g} MB/s)"
