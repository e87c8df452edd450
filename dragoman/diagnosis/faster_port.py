"""Estimates what a step would take over a faster port, from measurements over a slow one.

The time of an all-reduce beyond bytes / rate is partly the link's (full queues, answers that wait behind data) and
shrinks with it, partly that of the machines and stays. Measurements at one rate cannot separate them, so a step is
computed with either assumption: docs/cost-model.md.
"""

from statistics import fmean

from dragoman.diagnosis.hardware import ETHERNET_GOODPUT_HIGH, ETHERNET_GOODPUT_LOW
from dragoman.diagnosis.prediction import Measurements, Prediction, Transfer, assemble_step

_MACHINE_BYTES_PER_SECOND = 1e9
"""Rate that an all-reduce may not exceed over any link, because machines copy and add: gloo's on a CPU."""


def network_waits(prediction: Prediction) -> tuple[float, float]:
    """Least and most seconds of a step that wait for the network.

    Ranks leave the exchange over a slow link at different times, which looks like waiting for slower ranks: what the
    ranks' own work does not explain may be the network too.
    """
    parts, work = prediction.step.parts, prediction.step.work_by_rank
    exposed = parts.get("exposed_communication", 0.0)
    explained = max(work) - fmean(work) if work else 0.0
    return exposed, exposed + max(0.0, parts.get("straggler", 0.0) - explained)


def seconds_with_port(measured: Measurements, prediction: Prediction, bytes_per_second: float) -> list[float]:
    """Seconds per step with another rate of the links, by each combination of assumptions."""
    now = assemble_step(measured)
    exposed = now.parts["exposed_communication"]
    changed = [
        assemble_step(measured, transfers).parts["exposed_communication"]
        for transfers in (
            _scaled_transfers(measured, bytes_per_second * ETHERNET_GOODPUT_HIGH),
            _transfers_with_fixed_part(measured, bytes_per_second * ETHERNET_GOODPUT_LOW),
        )
    ]
    left = [each / exposed if exposed else 1.0 for each in changed]
    least, most = network_waits(prediction)
    # Computing is known from complete steps, of which a slow link allows few, and from steps without exchange.
    splits = [(prediction.seconds - least, least), (prediction.seconds - most, most), (now.seconds - exposed, least)]
    return [computing + share * waited for computing, waited in splits for share in left]


def _scaled_transfers(measured: Measurements, bytes_per_second: float) -> list[Transfer]:
    """All-reduces at another rate if all but the latency shrinks with it: headers, full queues, answers that wait."""
    latency = min(each.seconds for each in measured.all_reduce)
    factor = _lowest_rate(measured) / bytes_per_second
    return [Transfer(each.num_bytes, latency + factor * (each.seconds - latency)) for each in measured.all_reduce]


def _transfers_with_fixed_part(measured: Measurements, bytes_per_second: float) -> list[Transfer]:
    """All-reduces at another rate if as much as possible of their time beyond bytes / rate stays.

    Time that does not depend on the link is a cost of each message and of each byte, so smaller messages show it too:
    the least of what they show, for as many bytes, is the most that can stay.
    """
    latency, rate = min(each.seconds for each in measured.all_reduce), _lowest_rate(measured)
    rate_then = min(bytes_per_second, max(rate, _MACHINE_BYTES_PER_SECOND))
    least_per_byte = float("inf")
    changed = []
    for each in measured.all_reduce:
        sent = measured.ring_bytes(each.num_bytes)
        least_per_byte = min(least_per_byte, max(0.0, each.seconds - sent / rate) / each.num_bytes)
        fixed = max(latency, least_per_byte * each.num_bytes)
        changed.append(Transfer(each.num_bytes, min(each.seconds, fixed + sent / rate_then)))
    return changed


def _lowest_rate(measured: Measurements) -> float:
    return min(link.bytes_per_second for link in measured.links)
