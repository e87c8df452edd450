"""The machines of a run in its live view: a row for each GPU and interface, or fewer where there is little room."""

from rich.text import Text

from dragoman.monitoring.live_parts import NodeView, RunView, bar, clean, describe, fit, number_at, percent, place_of
from dragoman.run.summary import Record, format_seconds
from dragoman.run.units import BITS_PER_BYTE, format_rate

FULL_LINK_SHARE = 0.9
"""TCP hardly gets more out of a link."""


def node_rows(view: RunView, width: int, num_rows: int) -> list[Text]:
    """The machines of the run, in as much detail as there is room for."""
    # Counted before they are made: a hundred nodes would take too long to draw in vain.
    if sum(1 + len(node.gpus) + len(node.busy_interfaces) for node in view.nodes) <= num_rows:
        return [row for node in view.nodes for row in _full_node(node, width)]
    if sum(1 + bool(node.gpus) + bool(node.busy_interfaces) for node in view.nodes) <= num_rows:
        return [row for node in view.nodes for row in _brief_node(node, width)]
    if len(view.nodes) <= num_rows:
        return [_node_in_one_row(node, width) for node in view.nodes]
    # Not all can be shown; those in trouble must be.
    nodes = sorted(view.nodes, key=lambda node: not node.is_silent)[: max(0, num_rows - 1)]
    more = fit(width, (1, Text(f"and {len(view.nodes) - len(nodes):,} more nodes", "dim")))
    return [*(_node_in_one_row(node, width) for node in nodes), more][:num_rows]


def _full_node(node: NodeView, width: int) -> list[Text]:
    head = fit(width, *_head_pieces(node, width))
    return [head, *(_gpu_row(gpu, width) for gpu in node.gpus), *_network_rows(node, width)]


def _brief_node(node: NodeView, width: int) -> list[Text]:
    """All GPUs in one row, and the busiest interface alone."""
    head = fit(width, *_head_pieces(node, width))
    if len(node.gpus) > 1:
        what, *figures = _gpu_summary(node)
        gpus = [fit(width, (9, Text.assemble("  ", what)), *zip((8, 6, 7), figures, strict=True))]
    else:
        gpus = [_gpu_row(gpu, width) for gpu in node.gpus]
    return [head, *gpus, *_network_rows(node, width)[:1]]


def _node_in_one_row(node: NodeView, width: int) -> Text:
    """With the traffic of the busiest interface, in the direction that has more."""
    ways = {"in": "received_bytes_per_second", "out": "sent_bytes_per_second"}
    rates = [
        (rate, f"{name} {way} {format_rate(rate)}")
        for name in node.busy_interfaces[:1]
        for way, key in ways.items()
        if (rate := number_at(node.sample, "network", name, key)) is not None
    ]
    traffic = clean(max(rates)[1]) if rates else ""
    return fit(
        width,
        *_head_pieces(node, width, has_bar=False),
        *zip((8, 3, 2, 1), _gpu_summary(node), strict=False),
        (7, traffic),
    )


def _head_pieces(node: NodeView, width: int, has_bar: bool = True) -> list[tuple[int, Text | str]]:
    """Name, whether it is silent, CPU and memory."""
    cpu = number_at(node.sample, "cpu", "share")
    used, total = (number_at(node.sample, "memory", key) for key in ("used_bytes", "total_bytes"))
    silent = f"silent for {format_seconds(node.seconds_silent)}" if node.is_silent else ""
    cpu_bar = Text.assemble("CPU ", bar(cpu, width // 5)) if cpu is not None and has_bar else Text("CPU")
    return [
        (10, Text(clean(node.name), "bold")),
        (11, Text(silent, "bold red")),
        (9, Text.assemble(cpu_bar, f" {percent(cpu):>5}") if cpu is not None else ""),
        (5, describe("memory {}", _of_total(used, total))),
    ]


def _of_total(used: float | None, total: float | None) -> str | None:
    if used is None:
        return None
    return f"{used / 1e9:.1f}" + describe(" of {:.1f}", None if total is None else total / 1e9) + " GB"


def _gpu_row(gpu: Record, width: int) -> Text:
    utilisation = number_at(gpu, "utilisation")
    used, total = number_at(gpu, "memory_used_bytes"), number_at(gpu, "memory_total_bytes")
    width_of_bar = width // 6
    return fit(
        width,
        (10, describe("  GPU {:.0f}", number_at(gpu, "index")) or "  GPU"),
        (6, bar(utilisation, width_of_bar) if utilisation is not None else ""),
        (9, describe("{:>5}", None if utilisation is None else percent(utilisation))),
        (3, Text.assemble("memory ", bar(used / total, width_of_bar // 2)) if used is not None and total else ""),
        (8, _of_total(used, total) or ""),
        (5, describe("{:.0f} W", number_at(gpu, "power_watts"))),
        (7, describe("{:.0f} °C", number_at(gpu, "temperature_celsius"))),
    )


def _gpu_summary(node: NodeView) -> list[Text | str]:
    """All GPUs of a node in a few words: how busy each, memory, power, and the hottest."""
    if not node.gpus:
        return []
    busy = [share for gpu in node.gpus if (share := number_at(gpu, "utilisation")) is not None]
    levels = "".join("▁▂▃▄▅▆▇█"[place_of(share, 0.0, 1.0, 8)] for share in busy)
    mean = percent(sum(busy) / len(busy)) if busy else ""
    used, total, watts = (
        sum(number_at(gpu, key) or 0.0 for gpu in node.gpus)
        for key in ("memory_used_bytes", "memory_total_bytes", "power_watts")
    )
    hottest = max((number_at(gpu, "temperature_celsius") or 0.0 for gpu in node.gpus), default=0.0)
    return [
        Text.assemble(f"{len(node.gpus)} GPUs " if len(node.gpus) > 1 else "GPU ", (levels, "green"), f" {mean}"),
        _of_total(used, total or None) or "",
        describe("{:,.0f} W", watts or None),
        describe("up to {:.0f} °C", hottest or None),
    ]


def _network_rows(node: NodeView, width: int) -> list[Text]:
    width_of_name = max((len(clean(name)) for name in node.busy_interfaces), default=0)
    return [_network_row(node, name, width_of_name, width) for name in node.busy_interfaces]


def _network_row(node: NodeView, name: str, width_of_name: int, width: int) -> Text:
    speed = number_at(node.sample, "network", name, "speed_megabits_per_second")
    if speed is not None and speed <= 0:
        speed = None  # how Linux says that it does not know
    pieces: list[tuple[int, Text | str]] = [(10, f"  {clean(name):<{width_of_name}}")]
    width_of_bar = max(4, (width - width_of_name - 64) // 2)
    for label, key in (("in", "received_bytes_per_second"), ("out", "sent_bytes_per_second")):
        rate = number_at(node.sample, "network", name, key)
        if rate is not None:
            pieces += [(9, label), (3, _traffic_bar(rate, speed, width_of_bar)), (8, f"{format_rate(rate):>25}")]
    return fit(width, *pieces, (1, describe("of {:,.0f} Mbit/s", speed)), between=" ")


def _traffic_bar(bytes_per_second: float, speed_megabits_per_second: float | None, width: int) -> Text:
    """How much of an interface's speed is used; blank where that is not known."""
    if speed_megabits_per_second is None:
        return Text(" " * width)
    share = bytes_per_second * BITS_PER_BYTE / 1e6 / speed_megabits_per_second
    return bar(share, width, "red" if share >= FULL_LINK_SHARE else "yellow")
