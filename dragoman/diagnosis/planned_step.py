"""One step of a planned run, from facts about hardware, software and the model; docs/cost-model.md has the formulas."""

from dataclasses import dataclass
from functools import cached_property

from dragoman.diagnosis.hardware import Device, LinkFacts, Precision
from dragoman.diagnosis.software import ComputeSpeed, End, share_at
from dragoman.diagnosis.step_model import (
    COMPUTING,
    PARTS,
    Step,
    add_exchange,
    bucket_ready_times,
    bucket_sizes,
    packed_ring_all_reduce_seconds,
    ring_all_reduce_seconds,
    ring_bytes_per_node,
)
from dragoman.model.shape import (
    BACKWARD_PER_FORWARD,
    ModelShape,
    activation_elements_per_token,
    count_operations,
    count_parameters,
    forward_flops_per_target_token,
    training_flops_per_target_token,
)

_OPTIMIZER_BYTES_PER_PARAMETER = 28
"""Adam reads weight, gradient and two moments and writes three of them, 4 bytes each; memory is what limits it."""
_STATE_BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in fp32."""
RESERVED_BYTES = 1e9
"""Libraries, their workspaces and fragmentation: an estimate."""
_GRADIENT_BYTES = 4
"""Bytes sent for each parameter: gradients are summed in fp32 in every precision."""


@dataclass(frozen=True)
class Scenario:
    """A planned run with all names replaced by facts."""

    shape: ModelShape
    precision: Precision
    device: Device
    speed: ComputeSpeed
    inside: LinkFacts
    between: LinkFacts
    num_nodes: int
    devices_per_node: int
    global_tokens: float
    num_batches: int
    """Batches that a device computes one after the other for each step."""
    overlaps: bool
    bucket_bytes: int

    @property
    def num_devices(self) -> int:
        """Number of devices in the whole cluster."""
        return self.num_nodes * self.devices_per_node

    @property
    def tokens_per_device(self) -> float:
        """Target tokens of one step on each device."""
        return self.global_tokens / self.num_devices

    @cached_property
    def num_gradient_bytes(self) -> int:
        """Bytes that an all-reduce sums."""
        return count_parameters(self.shape) * _GRADIENT_BYTES

    @property
    def bytes_per_node(self) -> float:
        """Bytes through a node's port in each direction in a step."""
        return ring_bytes_per_node(self.num_gradient_bytes, self.num_devices, self.devices_per_node)

    @property
    def memory_bytes(self) -> float:
        """Memory that a device needs: weights and optimizer state, kept activations, libraries."""
        num_bytes = 2 if self.precision in ("fp16", "bf16") else 4
        weights = count_parameters(self.shape) * (_STATE_BYTES_PER_PARAMETER + (num_bytes if num_bytes == 2 else 0))
        activations = activation_elements_per_token(self.shape) * num_bytes * self.tokens_per_device / self.num_batches
        return weights + activations + RESERVED_BYTES

    @property
    def fits_memory(self) -> bool:
        """Whether the device has enough memory."""
        return self.memory_bytes <= self.device.memory_bytes


def plan_step(scenario: Scenario, end: End = "typical") -> Step:
    """Computes one step; parts that paper cannot know (data, checkpoint, ...) are 0."""
    speed = scenario.speed
    products = scenario.tokens_per_device * forward_flops_per_target_token(scenario.shape) / speed.flops(end)
    fixed = (
        scenario.num_batches * speed.fixed_seconds(count_operations(scenario.shape), end) / (1 + BACKWARD_PER_FORWARD)
    )
    forward = products + fixed
    backward = BACKWARD_PER_FORWARD * forward
    optimizer_bytes = count_parameters(scenario.shape) * _OPTIMIZER_BYTES_PER_PARAMETER
    waiting = speed.waiting_share(scenario.num_devices, scenario.num_batches)
    own_parts = dict.fromkeys(PARTS, 0.0) | {
        "forward": forward,
        "backward": backward,
        "straggler": waiting * (forward + backward),
        "optimizer": optimizer_bytes / scenario.device.memory_bytes_per_second,
    }
    # The slowest device is the last to send, while it computes the last of its batches.
    slowest_backward = (1 + waiting) * backward / scenario.num_batches
    parts = add_exchange(own_parts, *_transfers(scenario, slowest_backward, end))
    return Step(parts, fixed_share=fixed / forward)


def _transfers(scenario: Scenario, backward_seconds: float, end: End) -> tuple[list[float], list[float]]:
    """When each bucket is ready, in seconds before the end of backward, and how long its all-reduce takes."""
    if scenario.num_devices == 1:
        return [], []
    # The embedding is one tensor, used first and last: its gradient is complete only when backward ends.
    embedding_bytes = scenario.shape.target_vocab_size * scenario.shape.width * _GRADIENT_BYTES
    sizes = bucket_sizes(scenario.num_gradient_bytes - embedding_bytes, scenario.bucket_bytes)
    ready = [*bucket_ready_times(sizes, backward_seconds), 0.0]
    if not scenario.overlaps:
        ready = [0.0] * len(ready)
    return ready, [_all_reduce_seconds(scenario, size, end) for size in [*sizes, embedding_bytes]]


def _all_reduce_seconds(scenario: Scenario, num_bytes: float, end: End) -> float:
    """One ring over all devices; at the fast end, the library may add up inside each node before it sends."""
    inside = scenario.inside.link(share_at(end, scenario.inside.goodput))
    between = scenario.between.link(share_at(end, scenario.between.goodput))
    nodes, per_node = scenario.num_nodes, scenario.devices_per_node
    one_ring = packed_ring_all_reduce_seconds(num_bytes, nodes, per_node, inside, between)
    if end != "high" or nodes == 1:
        return one_ring
    two_rings = [ring_all_reduce_seconds(num_bytes, *ring) for ring in ((per_node, inside), (nodes, between))]
    return min(one_ring, sum(two_rings))


def reached_share(scenario: Scenario, step: Step) -> float:
    """Share of peak that a device reaches over the time of its computing, with the batch of this plan."""
    flops = training_flops_per_target_token(scenario.shape) * scenario.tokens_per_device
    return flops / sum(step.parts[part] for part in COMPUTING) / scenario.speed.peak_flops
