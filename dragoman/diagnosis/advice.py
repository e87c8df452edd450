"""Advises how to make a step faster, and finds problems of the machines and the links between them.

Each proposal is predicted like the step itself, with one thing changed, and scaled by the ratio of rehearsed steps to
the model.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from dragoman.diagnosis.prediction import (
    MEGA,
    MeasuredLink,
    Measurements,
    Prediction,
    Transfer,
    assemble_step,
    predict,
    transfer_seconds,
)
from dragoman.diagnosis.step_model import ring_bytes_per_node
from dragoman.diagnosis.wording import format_step
from dragoman.run.units import BITS_PER_BYTE, format_rate

_MOST_OF_NOW = 0.95
"""A proposal is shown if the step would take less than this share of its time now."""
LINK_STEPS_MEGABITS = (100, 1_000, 10_000, 25_000, 100_000)
_SLOW_LINK_SHARE = 0.3
"""A link below this share of its claimed speed is a problem; one TCP stream rarely fills a fast link."""
_SLOW_MACHINE_FACTOR = 1.35
_PARTS_OF_BATCH = ("data", "forward", "backward", "hidden_communication")
"""Parts that grow with the tokens of a rank."""


def predict_and_advise(measured: Measurements) -> Prediction:
    """Predicts a step, with advice and problems."""
    prediction = predict(measured)
    return replace(prediction, advice=advise(measured, prediction), problems=find_problems(measured, prediction))


def advise(measured: Measurements, prediction: Prediction) -> list[str]:
    """Returns one message for each change that helps, the greatest gain first."""
    scale = _scale(measured, prediction)
    proposals = [
        (seconds * scale, change)
        for change, seconds in _link_proposals(measured) + _other_proposals(measured, prediction)
    ]
    return [
        f"{change}: {format_step(seconds)} instead of {format_step(prediction.seconds)} per step."
        for seconds, change in sorted(proposals)
        if seconds < _MOST_OF_NOW * prediction.seconds
    ] + _batch_advice(measured, prediction)


def _scale(measured: Measurements, prediction: Prediction) -> float:
    """How many times longer steps take than the model says."""
    model_seconds = assemble_step(measured).seconds
    return prediction.seconds / model_seconds if model_seconds else 1.0


def _link_proposals(measured: Measurements) -> list[tuple[str, float]]:
    """The next faster ports, and a smaller gradient."""
    if not measured.links or not measured.all_reduce:
        return []
    slowest = min(measured.links, key=lambda link: link.bytes_per_second)
    faster = [speed for speed in LINK_STEPS_MEGABITS if speed > 1.5 * slowest.megabits_per_second][:2]
    proposals = [
        (f"A port of {_port(speed)}", _seconds_with_link(measured, slowest, speed * MEGA / BITS_PER_BYTE))
        for speed in faster
    ]
    halved = [
        Transfer(each.num_bytes, transfer_seconds(measured.all_reduce, each.num_bytes / 2))
        for each in measured.all_reduce
    ]
    return [*proposals, ("Sending gradients in half precision", assemble_step(measured, halved).seconds)]


def _seconds_with_link(measured: Measurements, slowest: MeasuredLink, bytes_per_second: float) -> float:
    """Seconds per step if links had another rate; latency and other fixed costs of an all-reduce stay."""
    num_ranks = len(measured.machines)
    changed = []
    for each in measured.all_reduce:
        sent = ring_bytes_per_node(each.num_bytes, num_ranks)
        fixed = max(0.0, each.seconds - sent / slowest.bytes_per_second)
        changed.append(Transfer(each.num_bytes, fixed + sent / bytes_per_second))
    return assemble_step(measured, changed).seconds


def _other_proposals(measured: Measurements, prediction: Prediction) -> list[tuple[str, float]]:
    proposals = []
    names = measured.machine_names
    if len(names) > 1:
        proposals.append((f"One machine alone ({names[0]})", seconds_on_one_machine(measured)))
    step = assemble_step(measured)
    if len(measured.work_by_rank) > 1 and prediction.bottleneck == "straggler":
        slowest = measured.work_by_rank.index(max(measured.work_by_rank))
        gain = prediction.step.costs.excess_of_slowest
        proposals.append((f"Rank {slowest} on {measured.machines[slowest]} as fast as the others", step.seconds - gain))
    if prediction.bottleneck == "input":
        proposals.append(("Prepared data on a faster disk", step.seconds - step.parts.get("data", 0.0)))
    return proposals


def seconds_on_one_machine(measured: Measurements) -> float:
    """Seconds per step of the same global batch on the first machine alone, by the same model."""
    num_inside = list(measured.machines).count(measured.machines[0])
    factor = len(measured.machines) / num_inside
    parts = {
        name: seconds * (factor if name in _PARTS_OF_BATCH else 1.0) for name, seconds in measured.alone_parts.items()
    }
    exchange = 0.0
    if num_inside > 1 and measured.all_reduce_inside:
        exchange = sum(transfer_seconds(measured.all_reduce_inside, size) for size in measured.bucket_bytes)
    return sum(parts.values()) + exchange


def _batch_advice(measured: Measurements, prediction: Prediction) -> list[str]:
    """Proposes a larger batch: steps get longer, but fixed costs are paid less often."""
    if prediction.bottleneck not in ("network", "overhead"):
        return []
    step = assemble_step(measured)
    added = sum(step.parts.get(name, 0.0) for name in _PARTS_OF_BATCH) * (1 - measured.fixed_share)
    gain = 2 * step.seconds / (step.seconds + added)
    if gain * _MOST_OF_NOW < 1:
        return []
    return [f"Twice the training.global_batch_tokens: {gain:.2g} times as many tokens per second, in larger steps."]


def find_problems(measured: Measurements, prediction: Prediction) -> list[str]:
    """Returns problems of machines and links that should be fixed before a long run."""
    return [
        *_load_problems(prediction),
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


def _link_problems(links: Sequence[MeasuredLink]) -> list[str]:
    problems = []
    for link in links:
        name = f"The link from {link.sender} to {link.receiver}"
        if link.kind in ("loopback", "vpn"):
            kind = "the loopback interface" if link.kind == "loopback" else "a VPN"
            problems.append(f"{name} uses {kind} ({link.interface}): set GLOO_SOCKET_IFNAME to the fast interface.")
        claimed = link.claimed_megabits_per_second
        if claimed and link.megabits_per_second < _SLOW_LINK_SHARE * claimed:
            problems.append(
                f"{name} carries {format_rate(link.bytes_per_second)}, but {link.interface} claims {claimed:,.0f} "
                f"Mbit/s: look for a slower port, cable, switch or limit in between."
            )
    rates = [link.bytes_per_second for link in links]
    if len(links) > 2 and min(rates) < median(rates) / _SLOW_MACHINE_FACTOR / 2:
        slow = min(links, key=lambda link: link.bytes_per_second)
        problems.append(
            f"The link from {slow.sender} to {slow.receiver} carries {format_rate(slow.bytes_per_second)}, the others "
            f"{format_rate(median(rates))}: every step waits for the slowest."
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
    alone = seconds_on_one_machine(measured) * _scale(measured, prediction)
    if alone > _MOST_OF_NOW * prediction.seconds:
        return []
    return [
        f"{len(measured.machine_names)} machines are slower than one: {format_step(prediction.seconds)} per step, and "
        f"{format_step(alone)} on {measured.machine_names[0]} alone."
    ]


def _port(megabits: int) -> str:
    rate = f"{megabits // 1000} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"
    return f"{rate} ({megabits / BITS_PER_BYTE:,.5g} MB/s)"
