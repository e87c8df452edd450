"""One step of a run on a cluster that exists on paper only: the description, and what its time would go to.

Pure functions of a description and of facts about hardware; docs/cost-model.md has the formulas.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dragoman.diagnosis.hardware import Device, Hardware, LinkFacts, ShareRange
from dragoman.diagnosis.step_model import (
    Link,
    bucket_ready_times,
    bucket_sizes,
    exposed_seconds,
    hidden_seconds,
    hierarchical_all_reduce_seconds,
    packed_ring_all_reduce_seconds,
    ring_bytes_per_node,
)
from dragoman.model.shape import (
    BACKWARD_PER_FORWARD,
    ModelShape,
    activation_elements_per_token,
    count_operations,
    count_parameters,
    forward_flops_per_target_token,
    load_preset,
)
from dragoman.run.errors import UsageError
from dragoman.run.tables import Positive, Section, Switch, first_problem, read_toml

MAX_DEVICES = 1_000_000
MAX_COUNT = 10**12
DEFAULT_BATCH_TOKENS = 32_768
OPTIMIZER_BYTES_PER_PARAMETER = 28
"""Adam reads weight, gradient and two moments and writes three of them, 4 bytes each; memory is what limits it."""
STATE_BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in fp32."""
RESERVED_BYTES = 1e9
"""Libraries, their workspaces and fragmentation: an estimate."""
NO_PARTS = ("data", "straggler", "evaluation", "checkpoint")
"""Causes that paper does not know; they are in the parts, as 0, so that a plan and a run have the same names."""

End = Literal["low", "typical", "high"]
DeviceCount = Annotated[int, Field(ge=1, le=MAX_DEVICES, strict=True)]
LargeCount = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]


class PlanSettings(Section):
    """A run and a cluster as a person describes them: the keys of PLAN.toml and the flags of `dragoman plan`."""

    model: str = "transformer-base"
    """A model preset; `dragoman presets` lists them."""
    precision: Literal["fp32", "fp16", "bf16", "mixed"] = "mixed"
    """Of the matrix products; weights stay fp32. mixed is fp16."""
    batch_tokens: LargeCount | None = None
    """Target tokens of one step over all devices, which stay the same on any number of devices. Default: 32,768."""
    batch_per_device: LargeCount | None = None
    """Target tokens of one step on each device, instead of batch_tokens: the global batch grows with the cluster."""
    device: str = "V100"
    devices_per_node: DeviceCount = 2
    nodes: DeviceCount = 2
    link: str = "100mbit"
    """Between nodes: a name from the list, or a rate such as 300mbit."""
    inside_link: str = "pcie3"
    """Between devices of a node."""
    gradient_bytes: Literal[2, 4] = 4
    """Bytes that travel for each gradient: 4 is fp32, 2 half precision."""
    overlap: Switch = True
    """Whether gradients travel while backward still computes."""
    bucket_bytes: Annotated[int, Field(ge=2**16, le=2**40, strict=True)] = 16 * 2**20
    """Gradients are sent in buckets of this size."""
    steps: LargeCount | None = None
    price_per_hour: Annotated[Positive, Field(le=MAX_COUNT)] | None = None
    """Of the whole cluster of this plan; at other sizes it is taken in proportion to the devices."""
    max_devices: DeviceCount | None = None
    """The largest cluster of the table. Default: four times this one, at least 64."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.batch_tokens is not None and self.batch_per_device is not None:
            raise ValueError("batch_tokens and batch_per_device exclude each other: give one")
        if self.num_devices > MAX_DEVICES:
            raise ValueError(f"nodes times devices_per_node is {self.num_devices:,}, more than {MAX_DEVICES:,}")
        if self.max_devices is not None and self.max_devices < self.num_devices:
            raise ValueError(f"max_devices is {self.max_devices}, fewer than the plan's own {self.num_devices} devices")
        return self

    @property
    def num_devices(self) -> int:
        """Of the whole cluster."""
        return self.nodes * self.devices_per_node


def load_plan(path: Path | None, flags: dict[str, Any]) -> PlanSettings:
    """The keys of a PLAN.toml, and the flags that were given over them."""
    values = read_toml(path) if path else {}
    given = {key: value for key, value in flags.items() if value is not None}
    # The two ways to give a batch exclude each other, and flags win: the file's way must go, not clash.
    if given.keys() & {"batch_tokens", "batch_per_device"}:
        values = {key: value for key, value in values.items() if key not in ("batch_tokens", "batch_per_device")}
    try:
        return PlanSettings.model_validate(values | given)
    except ValidationError as error:
        where = f"{path}: " if path else ""
        raise UsageError(f"{where}{first_problem(error, PlanSettings)}") from None


def share_at(end: End, shares: ShareRange) -> float:
    """The share at an end of its range; a high share of peak and a high goodput make a step fast."""
    return float(getattr(shares, end))


@dataclass(frozen=True)
class Scenario:
    """A run on a cluster with all names resolved to facts."""

    shape: ModelShape
    precision: Literal["fp32", "fp16", "bf16"]
    device: Device
    inside: LinkFacts
    between: LinkFacts
    num_nodes: int
    devices_per_node: int
    global_tokens: float
    gradient_bytes: int
    overlaps: bool
    bucket_bytes: int

    @property
    def num_devices(self) -> int:
        """Of the whole cluster."""
        return self.num_nodes * self.devices_per_node

    @property
    def tokens_per_device(self) -> float:
        """Target tokens that each device learns from in a step."""
        return self.global_tokens / self.num_devices

    @cached_property
    def num_gradient_bytes(self) -> int:
        """What an all-reduce sums."""
        return count_parameters(self.shape) * self.gradient_bytes

    @property
    def bytes_per_node(self) -> float:
        """What a node's port carries in each direction in a step."""
        return ring_bytes_per_node(self.num_gradient_bytes, self.num_devices, self.devices_per_node)

    @property
    def memory_bytes(self) -> float:
        """What a device needs: state of the optimizer, kept activations, libraries."""
        num_bytes = 4 if self.precision == "fp32" else 2
        weights = count_parameters(self.shape) * (STATE_BYTES_PER_PARAMETER + (num_bytes if num_bytes == 2 else 0))
        activations = activation_elements_per_token(self.shape) * num_bytes * self.tokens_per_device
        return weights + activations + RESERVED_BYTES

    @property
    def fits_memory(self) -> bool:
        """Whether the device has that much."""
        return self.memory_bytes <= self.device.memory_bytes


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step by cause; they add up to the step."""

    parts: dict[str, float]
    communication_seconds: float
    """Exposed and hidden together."""

    @property
    def seconds_per_step(self) -> float:
        """All parts."""
        return sum(self.parts.values())

    @property
    def bottleneck(self) -> str:
        """What the largest part of a step goes to."""
        network, overhead = self.parts["exposed_communication"], self.parts["other"]
        computing = self.seconds_per_step - network - overhead
        return max((computing, "compute"), (network, "network"), (overhead, "overhead"))[1]


def build_scenario(settings: PlanSettings, hardware: Hardware) -> Scenario:
    """Looks all names up; unknown ones, and a precision that the device lacks, are UsageErrors."""
    device = hardware.device(settings.device)
    precision = "fp16" if settings.precision == "mixed" else settings.precision
    if precision not in device.peak_flops:
        known = ", ".join(device.peak_flops)
        raise UsageError(f"The device {settings.device} has no {settings.precision} in our facts; it can be {known}.")
    if settings.batch_per_device is not None:
        global_tokens = settings.batch_per_device * settings.num_devices
    else:
        global_tokens = settings.batch_tokens or DEFAULT_BATCH_TOKENS
    return Scenario(
        shape=load_preset(settings.model),
        precision=precision,
        device=device,
        inside=hardware.link(settings.inside_link),
        between=hardware.link(settings.link),
        num_nodes=settings.nodes,
        devices_per_node=settings.devices_per_node,
        global_tokens=global_tokens,
        gradient_bytes=settings.gradient_bytes,
        overlaps=settings.overlap,
        bucket_bytes=settings.bucket_bytes,
    )


def predict_step(scenario: Scenario, end: End = "typical", is_hierarchical: bool = False) -> Prediction:
    """One step, by cause."""
    reached_flops = scenario.device.peak_flops[scenario.precision] * share_at(
        end, scenario.device.reached_share[scenario.precision]
    )
    forward = scenario.tokens_per_device * forward_flops_per_target_token(scenario.shape) / reached_flops
    backward = BACKWARD_PER_FORWARD * forward
    # Kernels are started ahead of the device that runs them: starting costs time only where it takes longer.
    starting = count_operations(scenario.shape) * scenario.device.seconds_per_operation
    ready, seconds = _communication(scenario, forward, backward, end, is_hierarchical)
    hidden = hidden_seconds(ready, seconds, forward + backward)
    parts = {
        "forward": forward,
        "backward": backward - hidden,
        "optimizer": _optimizer_seconds(scenario),
        "exposed_communication": exposed_seconds(ready, seconds, forward + backward),
        "hidden_communication": hidden,
        "other": max(0.0, starting - forward - backward),
    }
    return Prediction(parts | dict.fromkeys(NO_PARTS, 0.0), math.fsum(seconds))


def _optimizer_seconds(scenario: Scenario) -> float:
    num_bytes = count_parameters(scenario.shape) * OPTIMIZER_BYTES_PER_PARAMETER
    return num_bytes / scenario.device.memory_bytes_per_second


def _communication(
    scenario: Scenario, forward: float, backward: float, end: End, is_hierarchical: bool
) -> tuple[list[float], list[float]]:
    """When each bucket is ready, and how long it travels."""
    if scenario.num_devices == 1:
        return [], []
    # The embedding is one tensor, used first and last: its gradient is complete only when backward ends.
    embedding_bytes = scenario.shape.target_vocab_size * scenario.shape.width * scenario.gradient_bytes
    sizes = bucket_sizes(scenario.num_gradient_bytes - embedding_bytes, scenario.bucket_bytes)
    ready = [*bucket_ready_times(sizes, forward, backward), forward + backward]
    if not scenario.overlaps:
        ready = [forward + backward] * len(ready)
    inside = scenario.inside.link(share_at(end, scenario.inside.goodput))
    between = scenario.between.link(share_at(end, scenario.between.goodput))
    return ready, [
        _all_reduce_seconds(scenario, size, inside, between, is_hierarchical) for size in [*sizes, embedding_bytes]
    ]


def _all_reduce_seconds(
    scenario: Scenario, num_bytes: float, inside: Link, between: Link, is_hierarchical: bool
) -> float:
    all_reduce = hierarchical_all_reduce_seconds if is_hierarchical else packed_ring_all_reduce_seconds
    return all_reduce(num_bytes, scenario.num_nodes, scenario.devices_per_node, inside, between)
