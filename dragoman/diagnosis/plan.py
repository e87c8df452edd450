"""Plans a run without measuring: the parts of a step, a table of cluster sizes, hours, cost and advice.

Pure functions of a description and of facts about hardware; docs/cost-model.md has the formulas.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dragoman.diagnosis.hardware import Hardware, LinkFacts, Precision
from dragoman.diagnosis.planned_step import Scenario, plan_step, reached_share
from dragoman.diagnosis.planned_strategies import PlannedStrategy, advise_strategy, plan_strategies
from dragoman.diagnosis.software import DEFAULT_SOFTWARE, find_speed
from dragoman.diagnosis.step_model import Step
from dragoman.model.shape import count_operations, load_preset
from dragoman.run.errors import UsageError
from dragoman.run.tables import Positive, SettingsTable, Switch, first_problem, read_toml
from dragoman.run.units import format_bytes, format_rate

MAX_DEVICES = 1_000_000
_MAX_COUNT = 10**12
_DEFAULT_BATCH_TOKENS = 32_768
_MIN_GAIN = 0.05
"""Advice that helps less than this is left out."""
_LARGER_BATCH = 4
_BASIS = {"calibrated": "Calibrated with", "guess": "Not measured", "own": "From the device's own table"}
_PORTS = ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")
"""Usual speeds of network ports, from slow to fast."""

DeviceCount = Annotated[int, Field(ge=1, le=MAX_DEVICES, strict=True)]
LargeCount = Annotated[int, Field(ge=1, le=_MAX_COUNT, strict=True)]


class PlanSettings(SettingsTable):
    """A run and a cluster as a user describes them: the keys of PLAN.toml and the options of `dragoman plan`."""

    model: str = "transformer-base"
    """A model preset; `dragoman presets` lists them."""
    software: str = DEFAULT_SOFTWARE
    """The kind of program that trains: pytorch or openseq2seq."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "mixed"] = "mixed"
    """Precision of matrix products; weights stay fp32. mixed is fp16."""
    batch_tokens: LargeCount | None = None
    """Target tokens of one step over all devices, the same for any number of devices. Default: 32,768."""
    batch_per_device: LargeCount | None = None
    """Target tokens of one step on each device, instead of batch_tokens: the global batch grows with the cluster."""
    accumulate: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 1
    """Batches that a device computes one after the other for each step, so that less has to fit into its memory."""
    device: str = "V100"
    devices_per_node: DeviceCount = 2
    nodes: DeviceCount = 2
    link: str = "100mbit"
    """Link between nodes: a name from the list, or a rate such as 300mbit."""
    round_trip_ms: Annotated[Positive, Field(le=10**6)] | None = None
    """Milliseconds from node to node and back, as ping shows them. Default: the usual ones of the link."""
    inside_link: str | None = None
    """Link between devices of a node. Default: the one that usually joins these devices."""
    overlap: Switch = True
    """Whether gradients are sent while backward still computes."""
    bucket_bytes: Annotated[int, Field(ge=2**16, le=2**40, strict=True)] = 16 * 2**20
    """Size of the buckets in which gradients are sent."""
    steps: LargeCount | None = None
    price_per_hour: Annotated[Positive, Field(le=_MAX_COUNT)] | None = None
    """Price of the whole planned cluster; other sizes in proportion to their devices."""
    max_devices: DeviceCount | None = None
    """Largest cluster of the table. Default: four times this one, at least 64."""

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
        """Number of devices in the whole cluster."""
        return self.nodes * self.devices_per_node


def load_plan(path: Path | None, flags: dict[str, Any]) -> PlanSettings:
    """Reads a PLAN.toml; options that were given win over its keys."""
    values = read_toml(path) if path else {}
    given = {key: value for key, value in flags.items() if value is not None}
    # A batch can be given in two ways that exclude each other: an option replaces either key of the file.
    if given.keys() & {"batch_tokens", "batch_per_device"}:
        values = {key: value for key, value in values.items() if key not in ("batch_tokens", "batch_per_device")}
    try:
        return PlanSettings.model_validate(values | given)
    except ValidationError as error:
        where = f"{path}: " if path else ""
        raise UsageError(f"{where}{first_problem(error, PlanSettings)}") from None


def build_scenario(settings: PlanSettings, hardware: Hardware) -> Scenario:
    """Looks up all names; raises UsageError for an unknown one or a precision that the device lacks."""
    name, device = hardware.device(settings.device)
    precision: Precision = "fp16" if settings.precision == "mixed" else settings.precision
    if settings.batch_per_device is not None:
        global_tokens = settings.batch_per_device * settings.num_devices
    else:
        global_tokens = settings.batch_tokens or _DEFAULT_BATCH_TOKENS
    return Scenario(
        shape=load_preset(settings.model),
        precision=precision,
        device=device,
        speed=find_speed(settings.software, name, device, precision),
        inside=hardware.link(settings.inside_link or device.inside_link),
        between=_link_between(settings, hardware),
        num_nodes=settings.nodes,
        devices_per_node=settings.devices_per_node,
        global_tokens=global_tokens,
        num_batches=settings.accumulate,
        overlaps=settings.overlap,
        bucket_bytes=settings.bucket_bytes,
    )


def _link_between(settings: PlanSettings, hardware: Hardware) -> LinkFacts:
    link = hardware.link(settings.link)
    if settings.round_trip_ms is None:
        return link
    return link.model_copy(update={"latency_seconds": settings.round_trip_ms / 2 / 1e3})


@dataclass(frozen=True)
class SizeRow:
    """One cluster size of the table."""

    devices: int
    nodes: int
    seconds_per_step: float
    target_tokens_per_second: float
    efficiency: float
    """Tokens per second of each device, as a share of those of one device alone."""
    communication_seconds: float
    exposed_communication: float
    hidden_communication: float
    fits_memory: bool
    bottleneck: str
    hours: float | None
    cost: float | None


@dataclass(frozen=True)
class Plan:
    """Figures of a planned run, and what would help."""

    settings: PlanSettings
    scenario: Scenario
    step: Step
    low: float
    high: float
    sizes: tuple[SizeRow, ...]
    advice: tuple[str, ...]
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]
    strategies: tuple[PlannedStrategy, ...]
    """Ways to synchronise; none on one node."""

    @property
    def own_size(self) -> SizeRow:
        """The row of the planned cluster."""
        return next(row for row in self.sizes if row.devices == self.settings.num_devices)

    @property
    def interval(self) -> dict[str, dict[str, float] | None]:
        """The low and the high end of seconds per step, hours and cost; None for what is not planned."""
        row, ends = self.own_size, {"low": self.low, "high": self.high}

        def scaled(value: float | None) -> dict[str, float] | None:
            return None if value is None else {name: value * end / self.step.seconds for name, end in ends.items()}

        return {"seconds_per_step": ends, "hours": scaled(row.hours), "cost": scaled(row.cost)}

    def to_json(self) -> dict[str, Any]:
        """Returns all figures, in seconds and bytes."""
        return {
            "seconds_per_step": {"predicted": self.step.seconds, "low": self.low, "high": self.high},
            "parts": self.step.parts,
            "bottleneck": self.step.bottleneck,
            "software": self.settings.software,
            "share": self.scenario.speed.to_json() | {"reached": reached_share(self.scenario, self.step)},
            "coverage": self.scenario.speed.coverage.model_dump() if self.scenario.speed.coverage else None,
            "interval": self.interval,
            "bytes_per_node_per_step": self.scenario.bytes_per_node,
            "hours": self.own_size.hours,
            "cost": self.own_size.cost,
            "memory_bytes": self.scenario.memory_bytes,
            "fits_memory": self.scenario.fits_memory,
            "sizes": [asdict(row) for row in self.sizes],
            "advice": list(self.advice),
            "problems": list(self.problems),
            "assumptions": list(self.assumptions),
            "strategies": [each.to_json() for each in self.strategies],
        }


def build_plan(settings: PlanSettings, hardware: Hardware) -> Plan:
    """Computes the planned cluster, the table of sizes, and advice."""
    scenario = build_scenario(settings, hardware)
    if scenario.tokens_per_device < 1:
        raise UsageError(
            f"A batch of {scenario.global_tokens:,.0f} tokens cannot be divided among {scenario.num_devices:,} devices."
        )
    step = plan_step(scenario)
    # The low shares need not give the longest step: slower kernels leave more time to hide the network behind.
    ends = [each.seconds for each in (step, plan_step(scenario, "low"), plan_step(scenario, "high"))]
    strategies = plan_strategies(scenario, step)
    return Plan(
        settings=settings,
        scenario=scenario,
        step=step,
        low=min(ends),
        high=max(ends),
        sizes=_size_rows(settings, hardware),
        advice=(*_find_advice(scenario, hardware), *advise_strategy(strategies, step.seconds)),
        problems=find_problems(scenario),
        assumptions=_describe_assumptions(scenario),
        strategies=strategies,
    )


def table_sizes(settings: PlanSettings) -> list[int]:
    """Returns 1, 2, 4, … devices: within a node first, then whole nodes; includes the planned number."""
    limit = settings.max_devices or max(64, 4 * settings.num_devices)
    per_node = settings.devices_per_node
    within = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    whole = [per_node * 2**power for power in range(limit.bit_length()) if per_node * 2**power <= limit]
    return sorted({*within, *whole, settings.num_devices})


def _at_size(settings: PlanSettings, num_devices: int) -> PlanSettings:
    """Returns the same plan on another number of devices, on one node if they fit."""
    per_node = min(num_devices, settings.devices_per_node)
    return settings.model_copy(update={"nodes": num_devices // per_node, "devices_per_node": per_node})


def _size_rows(settings: PlanSettings, hardware: Hardware) -> tuple[SizeRow, ...]:
    alone = build_scenario(_at_size(settings, 1), hardware)
    tokens_per_second_alone = alone.global_tokens / plan_step(alone).seconds
    scenarios = [build_scenario(_at_size(settings, size), hardware) for size in table_sizes(settings)]
    return tuple(
        _size_row(settings, scenario, tokens_per_second_alone)
        for scenario in scenarios
        if scenario.tokens_per_device >= 1
    )


def _size_row(settings: PlanSettings, scenario: Scenario, tokens_per_second_alone: float) -> SizeRow:
    step = plan_step(scenario)
    seconds, hidden, exposed = step.seconds, step.parts["hidden_communication"], step.parts["exposed_communication"]
    hours = settings.steps * seconds / 3600 if settings.steps else None
    price = settings.price_per_hour
    scale = scenario.num_devices / settings.num_devices
    return SizeRow(
        devices=scenario.num_devices,
        nodes=scenario.num_nodes,
        seconds_per_step=seconds,
        target_tokens_per_second=scenario.global_tokens / seconds,
        efficiency=scenario.global_tokens / seconds / scenario.num_devices / tokens_per_second_alone,
        communication_seconds=hidden + exposed,
        exposed_communication=exposed,
        hidden_communication=hidden,
        fits_memory=scenario.fits_memory,
        bottleneck=step.bottleneck,
        hours=hours,
        cost=None if hours is None or price is None else hours * price * scale,
    )


def _find_advice(scenario: Scenario, hardware: Hardware) -> tuple[str, ...]:
    """Returns changes that give more tokens per second and fit into memory, with figures, the best first."""
    now = _tokens_per_second(scenario)
    gains = [
        (_tokens_per_second(changed) / now - 1, name, changed)
        for name, changed in _changes(scenario, hardware)
        if changed.fits_memory or not scenario.fits_memory
    ]
    helpful = sorted((gain for gain in gains if gain[0] > _MIN_GAIN), key=lambda gain: -gain[0])
    return tuple(_describe_change(name, scenario, changed) for _, name, changed in helpful)


def _changes(scenario: Scenario, hardware: Hardware) -> list[tuple[str, Scenario]]:
    changes = [
        (
            f"A batch {_LARGER_BATCH} times as large ({_LARGER_BATCH * scenario.global_tokens:,.0f} target tokens)",
            replace(scenario, global_tokens=_LARGER_BATCH * scenario.global_tokens),
        )
    ]
    if scenario.num_nodes > 1:
        changes.append(("One node alone, with the same global batch", replace(scenario, num_nodes=1)))
        ports = [hardware.links[name] for name in _PORTS if name in hardware.links]
        faster = [port for port in ports if port.bytes_per_second > scenario.between.bytes_per_second]
        changes += [
            (f"A port of {format_rate(port.bytes_per_second)}", replace(scenario, between=port)) for port in faster[:1]
        ]
    return changes


def _describe_change(name: str, scenario: Scenario, changed: Scenario) -> str:
    before, after = plan_step(scenario).seconds, plan_step(changed).seconds
    if changed.global_tokens == scenario.global_tokens:
        return f"{name}: {after:.3g} s instead of {before:.3g} s per step."
    return (
        f"{name}: {_tokens_per_second(changed):,.0f} instead of {_tokens_per_second(scenario):,.0f} target tokens "
        f"per second, {after:.3g} s per step; a larger batch also changes how the model learns."
    )


def _tokens_per_second(scenario: Scenario) -> float:
    return scenario.global_tokens / plan_step(scenario).seconds


def find_problems(scenario: Scenario) -> tuple[str, ...]:
    """Returns what would make the run fail."""
    if scenario.fits_memory:
        return ()
    return (
        f"Not enough memory: a device needs about {format_bytes(scenario.memory_bytes)} and has "
        f"{format_bytes(scenario.device.memory_bytes)}. Use a smaller batch, or more training.virtual_workers, "
        "which a device computes one after the other.",
    )


def _describe_assumptions(scenario: Scenario) -> tuple[str, ...]:
    """Returns the assumptions behind the figures, so that users can check them."""
    between = scenario.between
    return (
        *_describe_speed(scenario),
        f"{between.goodput.typical:.1%} of the {format_rate(between.bytes_per_second)} between nodes is payload "
        f"(interval: {between.goodput.low:.0%} to {between.goodput.high:.0%}). {between.source}",
        "One ring over all devices, with the devices of a node next to each other; at the fast end of the interval, "
        "the devices of a node add up first, so that it sends fewer bytes.",
        "As many source as target tokens; no padding; data is always ready, all devices are equally fast, and "
        "evaluations and checkpoints take no time.",
        f"A device computes its share of the batch {_times(scenario.num_batches)}; the memory for that is an estimate.",
        *_describe_strategies(scenario),
    )


def _describe_strategies(scenario: Scenario) -> tuple[str, ...]:
    if scenario.num_nodes == 1:
        return ()
    return (
        "Ways to synchronise: one replica per node, and bytes as with dragoman train --sync. local and diloco send "
        "differences of weights as int4. Streamed: a part after each step, while the next one computes; others are "
        "waited for. First steps together do not count.",
    )


def _times(num_batches: int) -> str:
    return "at once" if num_batches == 1 else f"in {num_batches:,} batches, one after the other"


def _describe_speed(scenario: Scenario) -> tuple[str, ...]:
    """Returns what is assumed about the program and the device, and how often the interval was right."""
    speed, share = scenario.speed, scenario.speed.share
    reached = (
        f"Matrix products reach {share.typical:.1%} of the {scenario.device.about}'s peak of "
        f"{speed.peak_flops / 1e12:g} TFLOP/s in {scenario.precision} (interval: {share.low:.1%} to {share.high:.1%}). "
        f"{_BASIS[speed.basis]}: {speed.source.rstrip('.')}. Peak: {scenario.device.source}"
    )
    fixed = speed.fixed_seconds(count_operations(scenario.shape))
    waiting = speed.waiting_share(scenario.num_devices, scenario.num_batches)
    details = [f"each batch has {fixed * 1e3:.0f} ms that do not depend on its size"] if fixed else []
    details += [f"ranks wait {waiting:.0%} of the time of computing for the slowest"] if waiting else []
    checked = (
        f"The interval of computing held {speed.coverage.inside} of {speed.coverage.rows} measured speeds: "
        f"{speed.coverage.about}."
        if speed.coverage
        else "The interval of computing was never compared with a measured speed."
    )
    return reached, *([f"With this software {' and '.join(details)}."] if details else []), checked
