"""Takes what the steps of strategies are built from out of a rehearsal: computing, links, and where replicas are."""

from dragoman.diagnosis.prediction import (
    Contention,
    Measurements,
    Prediction,
    Transfer,
    assemble_step,
    predict,
    transfer_seconds,
)
from dragoman.diagnosis.step_model import Link, ring_bytes_per_node
from dragoman.diagnosis.strategy_model import (
    ExchangeFacts,
    ReplicaPlaces,
    broadcast_share,
    payload_sizes,
    place_replicas,
)
from dragoman.run.config import Settings
from dragoman.run.synchronisation import Synchronisation


def is_network_known(measured: Measurements) -> bool:
    """Whether there is a network between machines, and something about it was measured."""
    return len(measured.machine_names) > 1 and bool(measured.all_reduce or measured.links)


def exchange_facts(
    measured: Measurements, settings: Settings, plan: Synchronisation, prediction: Prediction | None = None
) -> ExchangeFacts:
    """Takes what the steps of strategies are built from out of a rehearsal."""
    machines = measured.machines
    places = place_replicas(machines, settings.training.virtual_workers, plan.replicas)
    slowdown = measured.contention or Contention(1.0, 1.0)
    most_inside = measured.most_ranks
    replica_seconds, replica_bytes = _inside_replicas(measured, places)

    def broadcast_inside(num_bytes: float) -> float:
        if not measured.all_reduce_inside or most_inside < 2:
            return 0.0
        return broadcast_share(most_inside) * transfer_seconds(measured.all_reduce_inside, num_bytes)

    return ExchangeFacts(
        every_step_seconds=(prediction or predict(measured)).seconds,
        every_step_bytes=measured.exact_bytes,
        computing_seconds=assemble_step(measured, measured.all_reduce_inside).seconds,
        replica_seconds=replica_seconds,
        replica_bytes=replica_bytes,
        num_machines=len(measured.machine_names),
        places=places,
        payload_bytes=payload_sizes(measured.gradient_bytes, measured.payload_bytes),
        encoding_seconds=measured.encoding_seconds,
        between=lambda num_bytes, num_rounds: _seconds_between(measured, num_bytes, num_rounds),
        broadcast_inside=broadcast_inside,
        gather=(lambda num_bytes: transfer_seconds(measured.gather, num_bytes)) if measured.gather else None,
        compute_slowdown=slowdown.compute_slowdown,
        communication_slowdown=slowdown.communication_slowdown,
    )


def _inside_replicas(measured: Measurements, places: ReplicaPlaces) -> tuple[float, float]:
    """Seconds of a step whose gradients are summed inside replicas only, and its bytes through a port."""
    # A rank updates the weights of each of its replicas.
    updates = (places.replicas_of_rank - 1) * measured.alone_parts.get("optimizer", 0.0)
    num_ranks, num_all = places.ranks_of_replica, len(measured.machines)
    if num_ranks == 1:
        return assemble_step(measured, []).seconds + updates, 0.0
    if places.machines_of_replica == 1:
        return assemble_step(measured, measured.all_reduce_inside).seconds + updates, 0.0
    # The ring of a replica that spans machines is a part of the ring of all ranks.
    share = ring_bytes_per_node(1, num_ranks) / ring_bytes_per_node(1, num_all)
    transfers = [Transfer(each.num_bytes, share * each.seconds) for each in measured.all_reduce]
    return assemble_step(measured, transfers).seconds + updates, share * measured.exact_bytes


def _seconds_between(measured: Measurements, num_bytes: float, num_rounds: int) -> float:
    """Seconds that bytes need through a port: at the rate of all-reduces, and no faster than the slowest link."""
    found = 0.0
    if measured.links:
        latency = max(link.latency_seconds for link in measured.links)
        slowest = min(link.bytes_per_second for link in measured.links)
        found = num_rounds * Link(latency, slowest).seconds(num_bytes / max(1, num_rounds))
    per_byte = measured.exact_bytes / measured.gradient_bytes if measured.gradient_bytes else 0.0
    if measured.all_reduce and per_byte and num_bytes:
        found = max(found, transfer_seconds(measured.all_reduce, num_bytes / per_byte))
    return found
