"""Says what local updates would have saved in a run that waited for the network, from the figures of that run."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.diagnosis.step_model import Step, ring_bytes_per_node
from dragoman.diagnosis.strategy_model import ExchangeFacts, ReplicaPlaces, payload_sizes, strategy_step
from dragoman.diagnosis.wording import format_step
from dragoman.run.config import SynchronisationSettings
from dragoman.run.records import TrainRecord
from dragoman.run.synchronisation import Synchronisation

_HELPFUL_SHARE = 0.8
"""Local updates cost some quality: they are advised if a step would take less than this share of its time."""


@dataclass(frozen=True)
class WaitingStep:
    """A step with exact sums of gradients over several machines."""

    seconds: float
    computing_seconds: float
    """Without waiting for the network."""
    sending_seconds: float
    """During which gradients were sent; at most all of the step."""
    gradient_bytes: float
    """Of the gradient in fp32."""
    bytes_per_host: float
    """Bytes that the busiest machine sent."""
    num_machines: int


def advise_local_updates(step: Step, records: Sequence[TrainRecord]) -> list[str]:
    """Returns advice for a run that was limited by the network and summed gradients at every step; else none."""
    if step.bottleneck != "network" or not records or any(each.synchronisation for each in records):
        return []
    last = records[-1]
    num_ranks, num_machines = len(last.work_seconds_by_rank or []), last.num_machines or 0
    if num_machines < 2 or num_ranks < num_machines or not last.gradient_bytes:
        return []
    exposed, hidden = step.parts["exposed_communication"], step.parts["hidden_communication"]
    sent = ring_bytes_per_node(last.gradient_bytes, num_ranks, num_ranks // num_machines)
    waiting = WaitingStep(
        step.seconds, step.seconds - exposed, exposed + hidden, last.gradient_bytes, sent, num_machines
    )
    return describe_local_updates(waiting)


def describe_local_updates(step: WaitingStep) -> list[str]:
    """Says what a step would have taken with the defaults of `--sync local`; nothing where that would help little."""
    plan = _default_plan(step.num_machines)
    seconds = seconds_with_local_updates(step, plan)
    if seconds > _HELPFUL_SHARE * step.seconds:
        return []
    return [
        f"With local updates every {plan.interval} steps (--sync local) a step of this run would have taken about "
        f"{format_step(seconds)} instead of {format_step(step.seconds)}, once the first steps together are made."
    ]


def seconds_with_local_updates(step: WaitingStep, plan: Synchronisation) -> float:
    """Seconds of a step at the rate that the step itself implies; never less than it computed, and never more than now.

    The link may have been idle while gradients were sent, so it is at least as fast as that.
    """
    num = step.num_machines
    rate = step.bytes_per_host / step.sending_seconds if step.sending_seconds else float("inf")
    facts = ExchangeFacts(
        every_step_seconds=step.seconds,
        every_step_bytes=step.bytes_per_host,
        computing_seconds=step.computing_seconds,
        replica_seconds=step.computing_seconds,
        replica_bytes=0.0,
        num_machines=num,
        places=ReplicaPlaces(num, num, 1, 1, 1, 1, 1),
        payload_bytes=payload_sizes(step.gradient_bytes),
        encoding_seconds={},
        between=lambda num_bytes, _: num_bytes / rate if rate else 0.0,
        broadcast_inside=lambda _: 0.0,
    )
    return min(strategy_step(facts, plan).seconds, step.seconds)


def _default_plan(num_replicas: int) -> Synchronisation:
    own = SynchronisationSettings()
    return Synchronisation(
        "local", num_replicas, own.interval, own.max_interval, 0, own.wire, own.fragments, own.overlap
    )
