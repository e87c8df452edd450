"""A step of a planned run with each way to synchronise, from data-sheet figures: one replica per node."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dragoman.diagnosis.planned_step import Scenario, plan_step
from dragoman.diagnosis.step_model import Step, ring_all_reduce_seconds
from dragoman.diagnosis.strategy_model import (
    FLOAT_BYTES,
    LOCAL_CHOICES,
    LOCAL_WIRE,
    MEGABYTE,
    SHOWN_INTERVALS,
    ExchangeFacts,
    ReplicaPlaces,
    broadcast_share,
    payload_sizes,
    strategy_step,
)
from dragoman.model.shape import ModelShape

POWERSGD_RANK, DILOCO_INTERVAL = 8, 16
"""Defaults of [synchronisation]; reading the settings of runs would take longer than planning."""
_FAR_FASTER = 2.0
"""How many times as long a step must take now for a message about local updates."""
_ALMOST = 1.1
_PASSES = 3
"""Passes through memory to encode values, or to decode and add those of one replica."""


@dataclass(frozen=True)
class PlannedStrategy:
    """A way to synchronise, and what a step of it takes."""

    strategy: str
    interval: int = 1
    wire: str = LOCAL_WIRE
    fragments: int = 1
    overlap: bool = True
    seconds: float = 0.0
    bytes_per_host: float = 0.0

    @property
    def is_streamed(self) -> bool:
        """Whether a part of the weights is sent after every step and arrives while the next one computes."""
        return self.strategy == "local" and self.overlap and self.fragments == self.interval

    @property
    def name(self) -> str:
        """Name in tables."""
        if self.strategy not in ("local", "diloco"):
            return self.strategy
        streamed = ", streamed" if self.is_streamed and self.interval > 1 else ""
        return f"{self.strategy}, {self.interval} step{'s' if self.interval > 1 else ''}{streamed}"

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as `dragoman plan --json` prints them."""
        return {
            "strategy": self.strategy,
            "interval": self.interval,
            "streamed": self.is_streamed,
            "seconds_per_step": self.seconds,
            "megabytes_per_host_and_step": self.bytes_per_host / MEGABYTE,
        }


def plan_strategies(scenario: Scenario, step: Step) -> tuple[PlannedStrategy, ...]:
    """Computes the step of every strategy; none where one node has all devices."""
    if scenario.num_nodes == 1:
        return ()
    facts = _facts(scenario, step)
    found = ((plan, strategy_step(facts, plan)) for plan in _plans())
    return tuple(replace(plan, seconds=each.seconds, bytes_per_host=each.bytes_per_host) for plan, each in found)


def advise_strategy(planned: tuple[PlannedStrategy, ...], seconds: float) -> list[str]:
    """Returns a message where local updates would be far faster: the shortest interval that is almost the fastest."""
    apart = [each for each in planned if each.strategy == "local"]
    if not apart:
        return []
    fastest = min(each.seconds for each in apart)
    if seconds < _FAR_FASTER * fastest:
        return []
    chosen = next(each for each in apart if each.seconds <= _ALMOST * fastest)
    often = "at every step" if chosen.interval == 1 else f"every {chosen.interval} steps"
    how = ", a part after each step" if chosen.is_streamed and chosen.interval > 1 else ""
    return [
        f"Averages of weights {often}{how} (dragoman train --sync auto): "
        f"{chosen.seconds:.3g} s instead of {seconds:.3g} s per step; it costs some quality, see docs/slow-networks.md."
    ]


def planned_strategy_lines(planned: tuple[PlannedStrategy, ...]) -> list[str]:
    """Formats a row for each strategy; not all intervals are shown."""
    if not planned:
        return []
    lines = ["", f"  {'synchronisation':<28} {'s/step':>9} {'MB per node and step':>21}"]
    lines += [
        f"  {each.name:<28} {each.seconds:>9.3g} {each.bytes_per_host / MEGABYTE:>21,.1f}"
        for each in planned
        if each.strategy != "local" or each.interval in SHOWN_INTERVALS
    ]
    return lines


def _plans() -> Iterator[PlannedStrategy]:
    for name in ("every_step", "hierarchical", "fp16", "bf16", "int8", "powersgd"):
        yield PlannedStrategy(name, wire=name)
    for interval, fragments, overlap in LOCAL_CHOICES:
        yield PlannedStrategy("local", interval, fragments=fragments, overlap=overlap)
    yield PlannedStrategy("diloco", DILOCO_INTERVAL, overlap=False)


def _facts(scenario: Scenario, step: Step) -> ExchangeFacts:
    nodes, per_node = scenario.num_nodes, scenario.devices_per_node
    inside, between = scenario.inside.link(), scenario.between.link()
    sizes = payload_sizes(scenario.num_gradient_bytes)
    sizes["powersgd"] = FLOAT_BYTES * _num_factor_values(scenario.shape, POWERSGD_RANK)
    # Devices of all nodes wait for the slowest: replicas wait less, but they meet too.
    alone = plan_step(replace(scenario, num_nodes=1, global_tokens=scenario.global_tokens / nodes))
    computing = alone.seconds - alone.parts["straggler"] + step.parts["straggler"]
    pass_seconds = scenario.num_gradient_bytes / scenario.device.memory_bytes_per_second
    return ExchangeFacts(
        every_step_seconds=step.seconds,
        every_step_bytes=scenario.bytes_per_node,
        computing_seconds=computing,
        replica_seconds=computing,
        replica_bytes=0.0,
        num_machines=nodes,
        places=ReplicaPlaces(nodes, nodes, 1, 1, per_node, 1, 1),
        payload_bytes=sizes,
        encoding_seconds=dict.fromkeys(sizes, _PASSES * (nodes + 1) * pass_seconds),
        between=lambda num_bytes, num_rounds: (
            num_rounds * between.latency_seconds + num_bytes / between.bytes_per_second
        ),
        broadcast_inside=lambda num_bytes: (
            broadcast_share(per_node) * ring_all_reduce_seconds(num_bytes, per_node, inside)
        ),
    )


def _num_factor_values(shape: ModelShape, rank: int) -> int:
    """Numbers that PowerSGD sends for the matrices of a model; vectors are few and left out."""
    width, inner = shape.width, shape.feed_forward
    num_attentions = shape.encoder_layers + 2 * shape.decoder_layers
    num_layers = shape.encoder_layers + shape.decoder_layers
    rows_and_columns = (
        4 * num_attentions * 2 * width + 2 * num_layers * (width + inner) + shape.target_vocab_size + width
    )
    return rank * rows_and_columns
