"""A plan as text and table for the terminal, and as a chart of efficiency and cost over cluster sizes."""

from pathlib import Path

from dragoman.diagnosis.hardware import Device, Hardware, Precision
from dragoman.diagnosis.plan import Plan, SizeRow
from dragoman.diagnosis.planned_step import reached_share
from dragoman.diagnosis.planned_strategies import planned_strategy_lines
from dragoman.diagnosis.software import DEFAULT_SOFTWARE, find_speed, load_software, software_names
from dragoman.diagnosis.wording import BOTTLENECK_WORDS, PART_NAMES
from dragoman.run.errors import UsageError, describe_os_error
from dragoman.run.files import write_then_rename
from dragoman.run.units import format_bytes, format_rate

_BAR_CELLS = 20
_CHART_ENDINGS = (".svg", ".png")


def plan_lines(plan: Plan) -> list[str]:
    """Formats the whole plan for the terminal."""
    return [
        *_headline(plan),
        "",
        *_part_lines(plan),
        "",
        *_size_table(plan),
        *planned_strategy_lines(plan.strategies),
        *_section("Problems", plan.problems),
        *_section("What would help", plan.advice),
        *_section("Assumptions", plan.assumptions),
    ]


def hardware_lines(hardware: Hardware) -> list[str]:
    """Formats one line for each device, link and software."""
    lines = ["Devices, with peak TFLOP/s and the share of it that matrix products reach with large batches:"]
    for name, device in hardware.devices.items():
        peaks = ", ".join(_describe_peak(name, device, precision) for precision in device.peak_flops)
        lines.append(f"  {name:<15} {device.about}: {format_bytes(device.memory_bytes)}; {peaks}")
    lines.append("  ? = a guess, never measured.")
    lines.append("Links (each direction), or any rate such as 300mbit:")
    for name, link in hardware.links.items():
        lines.append(f"  {name:<15} {link.about}: {format_rate(link.bytes_per_second)}")
    lines.append("Software:")
    lines += [f"  {name:<15} {load_software(name).about}" for name in software_names()]
    return lines


def _describe_peak(name: str, device: Device, precision: Precision) -> str:
    speed = find_speed(DEFAULT_SOFTWARE, name, device, precision)
    mark = "?" if speed.basis == "guess" else ""
    return f"{precision} {speed.peak_flops / 1e12:g} ({speed.share.typical:.0%}{mark})"


def _size_table(plan: Plan) -> list[str]:
    """Formats a row for each cluster size, with its efficiency as a bar; the planned cluster is marked."""
    has_hours, has_cost = plan.own_size.hours is not None, plan.own_size.cost is not None
    head = f"  {'devices':>9} {'nodes':>7} {'s/step':>9} {'tokens/s':>12}"
    head += (f" {'hours':>10}" if has_hours else "") + (f" {'cost':>12}" if has_cost else "")
    lines = [f"{head}  efficiency against one device"]
    for row in plan.sizes:
        line = f"{'>' if row is plan.own_size else ' '} {row.devices:>9,} {row.nodes:>7,} {row.seconds_per_step:>9.3g}"
        line += f" {row.target_tokens_per_second:>12,.0f}"
        line += (f" {row.hours:>10,.1f}" if has_hours else "") + (f" {row.cost:>12,.2f}" if has_cost else "")
        lines.append(f"{line}  {_bar(row)}")
    return lines


def save_chart(plan: Plan, path: Path) -> None:
    """Draws seconds per step, efficiency and, if known, cost over cluster sizes; SVG or PNG by the file's ending."""
    if path.suffix.lower() not in _CHART_ENDINGS:
        raise UsageError(f"--plot {path}: the name must end in {' or '.join(_CHART_ENDINGS)}.")
    # Imported only here: that takes longer than computing a plan.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [
        ("seconds per step", [row.seconds_per_step for row in plan.sizes]),
        ("efficiency against one device", [row.efficiency for row in plan.sizes]),
    ]
    if plan.own_size.cost is not None:
        panels.append(("cost of the run", [row.cost or 0.0 for row in plan.sizes]))
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4), layout="constrained")
    for axis, (name, values) in zip(axes, panels, strict=True):
        axis.plot([row.devices for row in plan.sizes], values, marker="o")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set(xlabel="devices", ylabel=name, ylim=(0, None))
    figure.suptitle(_cluster(plan))
    try:
        with write_then_rename(path) as file:
            figure.savefig(file, format=path.suffix[1:].lower())
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {describe_os_error(error)}.") from None
    finally:
        plt.close(figure)


def _cluster(plan: Plan) -> str:
    settings = plan.settings
    link = f", {settings.link}" if settings.nodes > 1 else ""
    return (
        f"{settings.model}, {settings.precision}, {plan.scenario.global_tokens:,.0f} target tokens per step, "
        f"{settings.nodes} × {settings.devices_per_node} {settings.device}{link}"
    )


def _headline(plan: Plan) -> list[str]:
    scenario, row = plan.scenario, plan.own_size
    lines = [
        _cluster(plan),
        f"{row.seconds_per_step:.3g} s per step ({plan.low:.3g} to {plan.high:.3g}, depending on the share of peak "
        f"that is reached{_other_reasons(plan)}), {BOTTLENECK_WORDS[row.bottleneck]}",
    ]
    if scenario.num_nodes > 1:
        lines.append(
            f"Each node sends and receives {format_bytes(scenario.bytes_per_node)} per step, over "
            f"{format_rate(scenario.between.bytes_per_second)}"
        )
    lines.append(_describe_share(plan))
    needed, available = format_bytes(scenario.memory_bytes), format_bytes(scenario.device.memory_bytes)
    is_short = scenario.memory_bytes > scenario.device.memory_bytes
    lines.append(f"Memory of a device: about {needed} of {available}{': not enough' if is_short else ''}")
    if row.hours is not None:
        ends = plan.interval
        style = ",.1f" if row.hours >= 1 else ",.2g"
        lines.append(
            f"{plan.settings.steps:,} steps: {_with_ends(row.hours, ends['hours'], style)} hours"
            + ("" if row.cost is None else f", cost {_with_ends(row.cost, ends['cost'], ',.2f')}")
        )
    return lines


def _other_reasons(plan: Plan) -> str:
    """Says on what else the time of a step depends."""
    if plan.settings.nodes > 1:
        return " and on the network"
    return " and on the link between the devices" if plan.settings.devices_per_node > 1 else ""


def _with_ends(value: float, ends: dict[str, float] | None, style: str) -> str:
    return f"{value:{style}}" + (f" ({ends['low']:{style}} to {ends['high']:{style}})" if ends else "")


def _describe_share(plan: Plan) -> str:
    """Says which share of peak a device reaches with this batch, for which software, and how that is known."""
    words = {"calibrated": "calibrated", "guess": "a guess, not measured", "own": "from the device's own table"}
    reached = reached_share(plan.scenario, plan.step)
    return (
        f"Computing reaches {reached:.1%} of a device's peak with {plan.scenario.tokens_per_device:,.0f} target tokens "
        f"per device ({plan.settings.software}; {words[plan.scenario.speed.basis]})"
    )


def _part_lines(plan: Plan) -> list[str]:
    total = plan.step.seconds
    parts = [(name, plan.step.parts[part]) for part, name in PART_NAMES.items()]
    return [f"  {name:<32} {seconds:>9.3f} s {seconds / total:>6.1%}" for name, seconds in parts if seconds > 0]


def _bar(row: SizeRow) -> str:
    # Rounding can bring the efficiency slightly above 1.
    num_full = round(min(1.0, row.efficiency) * _BAR_CELLS)
    note = "" if row.fits_memory else "  not enough memory"
    return f"{'█' * num_full}{'░' * (_BAR_CELLS - num_full)} {row.efficiency:>6.1%}{note}"


def _section(title: str, messages: tuple[str, ...]) -> list[str]:
    return ["", f"{title}:", *(f"- {message}" for message in messages)] if messages else []
