"""What a record of training says of the machines: how busy they were, and what the network carried meanwhile."""

from collections import defaultdict
from statistics import fmean
from typing import Any

BYTES_PER_MEGABYTE = 1e6
LOOPBACK = "lo"


def machine_figures(system: dict[str, float]) -> dict[str, Any]:
    """From the figures of an interval by their TensorBoard names; empty where nothing was sampled."""
    figures: dict[str, Any] = {}
    if traffic := _traffic(system):
        figures["traffic"] = traffic
    utilisation = {
        "cpu": [value for name, value in system.items() if name.endswith("/cpu")],
        "gpu": [value for name, value in system.items() if name.endswith("/utilisation")],
    }
    if busy := {kind: fmean(values) for kind, values in utilisation.items() if values}:
        figures["utilisation"] = busy
    return figures


def _traffic(system: dict[str, float]) -> dict[str, Any] | None:
    """Of the interface that carried most: between machines if there are several, otherwise whichever it is."""
    rates: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, value in system.items():
        match name.split("/"):
            case ["system", node, "network", interface, ("sent_MB_per_s" | "received_MB_per_s") as way]:
                rates[node, interface][way.split("_")[0]] = value * BYTES_PER_MEGABYTE
    if len({node for node, _ in rates}) > 1:
        rates = defaultdict(dict, {place: found for place, found in rates.items() if place[1] != LOOPBACK})
    if not rates:
        return None
    (node, interface), found = max(rates.items(), key=lambda item: sum(item[1].values()))
    return {
        "host": node,
        "interface": interface,
        "sent_bytes_per_second": found.get("sent", 0.0),
        "received_bytes_per_second": found.get("received", 0.0),
    }
