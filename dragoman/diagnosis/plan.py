"""What a run would take on a cluster that exists on paper only: rows over cluster sizes, hours, cost, advice."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from dragoman.diagnosis.hardware import Hardware
from dragoman.diagnosis.scenario import PlanSettings, Prediction, Scenario, build_scenario, predict_step
from dragoman.run.errors import UsageError
from dragoman.run.units import format_bytes, format_rate

MIN_GAIN = 0.05
"""Advice that would help less than this is not worth a sentence."""
LARGER_BATCH = 4
HALF_PRECISION_BYTES = 2
PORTS = ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")
"""What a person can order instead of a slower one, in order."""


@dataclass(frozen=True)
class SizeRow:
    """One cluster size of the table."""

    devices: int
    nodes: int
    seconds_per_step: float
    target_tokens_per_second: float
    efficiency: float
    """Tokens a second of each device, as a share of what one device alone makes."""
    communication_seconds: float
    exposed_communication: float
    hidden_communication: float
    hierarchical_seconds_per_step: float
    """If nodes summed inside first; what is planned is a ring over all devices."""
    fits_memory: bool
    bottleneck: str
    hours: float | None
    cost: float | None


@dataclass(frozen=True)
class Plan:
    """What a run would take, and what would help."""

    settings: PlanSettings
    scenario: Scenario
    prediction: Prediction
    low: float
    high: float
    sizes: tuple[SizeRow, ...]
    advice: tuple[str, ...]
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def own_size(self) -> SizeRow:
        """The row of the described cluster."""
        return next(row for row in self.sizes if row.devices == self.settings.num_devices)

    def to_json(self) -> dict[str, Any]:
        """All figures; seconds and bytes."""
        return {
            "seconds_per_step": {
                "predicted": self.prediction.seconds_per_step,
                "low": self.low,
                "high": self.high,
            },
            "parts": self.prediction.parts,
            "bottleneck": self.prediction.bottleneck,
            "bytes_per_node_per_step": self.scenario.bytes_per_node,
            "hierarchical_seconds_per_step": self.own_size.hierarchical_seconds_per_step,
            "hours": self.own_size.hours,
            "cost": self.own_size.cost,
            "memory_bytes": self.scenario.memory_bytes,
            "fits_memory": self.scenario.fits_memory,
            "sizes": [asdict(row) for row in self.sizes],
            "advice": list(self.advice),
            "problems": list(self.problems),
            "assumptions": list(self.assumptions),
        }


def build_plan(settings: PlanSettings, hardware: Hardware) -> Plan:
    """The described cluster, the table over sizes, and advice."""
    scenario = build_scenario(settings, hardware)
    if scenario.tokens_per_device < 1:
        raise UsageError(
            f"A batch of {scenario.global_tokens:,.0f} tokens cannot be divided among {scenario.num_devices:,} devices."
        )
    prediction = predict_step(scenario)
    # Not always in this order: where starting kernels takes longest, faster ones leave less to hide the network behind.
    ends = [prediction, predict_step(scenario, "high"), predict_step(scenario, "low")]
    return Plan(
        settings=settings,
        scenario=scenario,
        prediction=prediction,
        low=min(end.seconds_per_step for end in ends),
        high=max(end.seconds_per_step for end in ends),
        sizes=_size_rows(settings, hardware),
        advice=find_advice(scenario, hardware),
        problems=find_problems(scenario),
        assumptions=describe_assumptions(scenario),
    )


def table_sizes(settings: PlanSettings) -> list[int]:
    """1, 2, 4, … devices: within a node first, then whole nodes; the plan's own number is always among them."""
    limit = settings.max_devices or max(64, 4 * settings.num_devices)
    per_node = settings.devices_per_node
    within = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    whole = [per_node * 2**power for power in range(limit.bit_length()) if per_node * 2**power <= limit]
    return sorted({*within, *whole, settings.num_devices})


def at_size(settings: PlanSettings, num_devices: int) -> PlanSettings:
    """The same plan on another number of devices; what fits into one node is on one node."""
    per_node = min(num_devices, settings.devices_per_node)
    return settings.model_copy(update={"nodes": num_devices // per_node, "devices_per_node": per_node})


def _size_rows(settings: PlanSettings, hardware: Hardware) -> tuple[SizeRow, ...]:
    alone = build_scenario(at_size(settings, 1), hardware)
    tokens_per_second_alone = alone.global_tokens / predict_step(alone).seconds_per_step
    scenarios = [build_scenario(at_size(settings, size), hardware) for size in table_sizes(settings)]
    return tuple(
        _size_row(settings, scenario, tokens_per_second_alone)
        for scenario in scenarios
        if scenario.tokens_per_device >= 1
    )


def _size_row(settings: PlanSettings, scenario: Scenario, tokens_per_second_alone: float) -> SizeRow:
    prediction = predict_step(scenario)
    seconds = prediction.seconds_per_step
    hours = settings.steps * seconds / 3600 if settings.steps else None
    price = settings.price_per_hour
    scale = scenario.num_devices / settings.num_devices
    return SizeRow(
        devices=scenario.num_devices,
        nodes=scenario.num_nodes,
        seconds_per_step=seconds,
        target_tokens_per_second=scenario.global_tokens / seconds,
        efficiency=scenario.global_tokens / seconds / scenario.num_devices / tokens_per_second_alone,
        communication_seconds=prediction.communication_seconds,
        exposed_communication=prediction.parts["exposed_communication"],
        hidden_communication=prediction.parts["hidden_communication"],
        hierarchical_seconds_per_step=predict_step(scenario, is_hierarchical=True).seconds_per_step,
        fits_memory=scenario.fits_memory,
        bottleneck=prediction.bottleneck,
        hours=hours,
        cost=None if hours is None or price is None else hours * price * scale,
    )


def find_advice(scenario: Scenario, hardware: Hardware) -> tuple[str, ...]:
    """What would make more of the same devices, with figures, best first; only what helps and fits into memory."""
    now = _tokens_per_second(scenario)
    gains = [
        (_tokens_per_second(changed) / now - 1, what, changed)
        for what, changed in _changes(scenario, hardware)
        if changed.fits_memory or not scenario.fits_memory
    ]
    helpful = sorted((gain for gain in gains if gain[0] > MIN_GAIN), key=lambda gain: -gain[0])
    return tuple(_sentence(what, scenario, changed) for _, what, changed in helpful)


def _changes(scenario: Scenario, hardware: Hardware) -> list[tuple[str, Scenario]]:
    changes = [
        (
            f"A batch {LARGER_BATCH} times as large ({LARGER_BATCH * scenario.global_tokens:,.0f} target tokens)",
            replace(scenario, global_tokens=LARGER_BATCH * scenario.global_tokens),
        )
    ]
    if scenario.num_devices > 1 and scenario.gradient_bytes > HALF_PRECISION_BYTES:
        changes.append(("Sending half precision", replace(scenario, gradient_bytes=HALF_PRECISION_BYTES)))
    if scenario.num_nodes > 1:
        changes.append(("One node alone, with the same global batch", replace(scenario, num_nodes=1)))
        ports = [hardware.links[name] for name in PORTS if name in hardware.links]
        faster = [port for port in ports if port.bytes_per_second > scenario.between.bytes_per_second]
        changes += [
            (f"A port of {format_rate(port.bytes_per_second)}", replace(scenario, between=port)) for port in faster[:1]
        ]
    return changes


def _sentence(what: str, scenario: Scenario, changed: Scenario) -> str:
    before, after = predict_step(scenario).seconds_per_step, predict_step(changed).seconds_per_step
    if changed.global_tokens == scenario.global_tokens:
        return f"{what}: {after:.3g} s instead of {before:.3g} s a step."
    return (
        f"{what}: {_tokens_per_second(changed):,.0f} instead of {_tokens_per_second(scenario):,.0f} target tokens a "
        f"second, {after:.3g} s a step; the run then learns differently."
    )


def _tokens_per_second(scenario: Scenario) -> float:
    return scenario.global_tokens / predict_step(scenario).seconds_per_step


def find_problems(scenario: Scenario) -> tuple[str, ...]:
    """What would keep the run from working at all."""
    if scenario.fits_memory:
        return ()
    return (
        f"It does not fit: a device needs about {format_bytes(scenario.memory_bytes)} and has "
        f"{format_bytes(scenario.device.memory_bytes)}. Take a smaller batch, or more training.virtual_workers, "
        "which a device computes one after the other.",
    )


def describe_assumptions(scenario: Scenario) -> tuple[str, ...]:
    """What the figures rest on, for people to disagree with."""
    share = scenario.device.reached_share[scenario.precision]
    between = scenario.between
    return (
        f"Training reaches {share.typical:.1%} of the {scenario.device.about}'s peak in {scenario.precision} "
        f"({share.low:.1%} to {share.high:.1%} in the interval). {scenario.device.source}",
        f"Of {format_rate(between.bytes_per_second)} between nodes {between.goodput.typical:.1%} is payload "
        f"({between.goodput.low:.0%} to {between.goodput.high:.0%} in the interval). {between.source}",
        "One ring over all devices, those of a node beside each other; as many source as target tokens; no padding; "
        "data is always ready, all devices are equally fast, and no time goes to evaluation and checkpoints.",
        "A device computes its share of the batch at once; the memory for that is an estimate.",
    )
