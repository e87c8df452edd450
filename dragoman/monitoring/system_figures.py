"""What the machines of a run did since one last looked, as flat names and numbers for TensorBoard.

Reads the samples that every node writes into the run folder, so no machine has to send anything to another.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.following import LineFollower
from dragoman.run.status import number_or_none
from dragoman.run.summary import parse_record

MEGABYTE = 1e6
GIGABYTE = 1e9

NODE_FIGURES = {
    ("cpu", "share"): ("cpu", 1.0),
    ("memory", "used_bytes"): ("memory_GB", GIGABYTE),
    ("disk", "read_bytes_per_second"): ("disk/read_MB_per_s", MEGABYTE),
    ("disk", "written_bytes_per_second"): ("disk/written_MB_per_s", MEGABYTE),
}
"""(part of a sample, its figure) → (its name here, what it is divided by)"""
INTERFACE_FIGURES = {
    "received_bytes_per_second": ("received_MB_per_s", MEGABYTE),
    "sent_bytes_per_second": ("sent_MB_per_s", MEGABYTE),
}
GPU_FIGURES = {
    "utilisation": ("utilisation", 1.0),
    "memory_used_bytes": ("memory_GB", GIGABYTE),
    "power_watts": ("power_watts", 1.0),
    "temperature_celsius": ("temperature_celsius", 1.0),
    "sm_clock_mhz": ("sm_clock_mhz", 1.0),
    "memory_clock_mhz": ("memory_clock_mhz", 1.0),
    "pcie_received_bytes_per_second": ("pcie_received_MB_per_s", MEGABYTE),
    "pcie_sent_bytes_per_second": ("pcie_sent_MB_per_s", MEGABYTE),
    "nvlink_received_bytes_per_second": ("nvlink_received_MB_per_s", MEGABYTE),
    "nvlink_sent_bytes_per_second": ("nvlink_sent_MB_per_s", MEGABYTE),
}

Figure = tuple[str, float]


class SystemFigures:
    """Follows the samples of all nodes; those written before it was made are of an earlier time and not read."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._followers: dict[Path, LineFollower] = {}
        self._busy: set[str] = set()
        """Interfaces that have carried something: from then on a second without traffic is a figure too."""
        self._follow_new_files(num_last_lines=0)

    def read(self) -> dict[str, float]:
        """The mean of every figure over the samples since the last call; empty if there are none."""
        self._follow_new_files()
        values: defaultdict[str, list[float]] = defaultdict(list)
        for path, follower in self._followers.items():
            for sample in read_samples(self._run, path, follower):
                for name, value in self._figures(sample):
                    values[name].append(value)
            follower.let_go()  # a run's disk may be mounted again in its bad hours
        return {name: sum(found) / len(found) for name, found in values.items()}

    def _follow_new_files(self, num_last_lines: int | None = None) -> None:
        for path in find_files(self._run):
            if path not in self._followers:
                with suppress(OSError, UserError):  # perhaps it can be read the next time
                    self._followers[path] = LineFollower(path, num_last_lines)
                    self._followers[path].let_go()

    def _figures(self, sample: dict[str, Any]) -> Iterator[Figure]:
        """The figures of one sample, without those of interfaces that lie idle."""
        node = f"system/{printable(sample['node'])}"
        yield from node_figures(node, sample)
        yield from gpu_figures(node, sample)
        for name, interface in table(sample.get("network")).items():
            place = f"{node}/network/{printable(name)}"
            figures = list(named_figures(place, table(interface), INTERFACE_FIGURES))
            if any(value for _, value in figures):
                self._busy.add(place)
            if place in self._busy:
                yield from figures


def find_files(run: RunFolder) -> list[Path]:
    """The samples of all nodes; none while the run's disk does not answer."""
    try:
        return run.system_files()
    except OSError:
        return []


def read_samples(run: RunFolder, path: Path, follower: LineFollower) -> Iterator[dict[str, Any]]:
    """The new samples of a file; half lines, those of strangers and copies of another node's are passed over."""
    with suppress(OSError, UserError):  # a file that cannot be read just now must not end the run
        for line in follower.read_lines():
            sample = parse_record(line) or {}
            node = sample.get("node")
            if isinstance(node, str) and run.system(node) == path:
                yield sample


def table(value: Any) -> dict[str, Any]:
    """What should be a table, if it is one."""
    return value if isinstance(value, dict) else {}


def node_figures(node: str, sample: dict[str, Any]) -> Iterator[Figure]:
    """Processors, memory and disk."""
    for (part, key), (name, divisor) in NODE_FIGURES.items():
        yield from named_figures(node, table(sample.get(part)), {key: (name, divisor)})


def gpu_figures(node: str, sample: dict[str, Any]) -> Iterator[Figure]:
    """Every GPU, by its number."""
    gpus = sample.get("gpus")
    for gpu in map(table, gpus if isinstance(gpus, list) else ()):
        index = gpu.get("index")
        if isinstance(index, int) and not isinstance(index, bool):
            yield from named_figures(f"{node}/gpu{index}", gpu, GPU_FIGURES)
            activity = table(gpu.get("activity"))
            yield from named_figures(f"{node}/gpu{index}", activity, {key: (printable(key), 1.0) for key in activity})


def named_figures(place: str, values: dict[str, Any], names: dict[str, tuple[str, float]]) -> Iterator[Figure]:
    """The numbers among some values, under their names for people and in their units."""
    for key, (name, divisor) in names.items():
        number = number_or_none(values.get(key))
        if number is not None:
            yield f"{place}/{name}", number / divisor


def printable(name: str) -> str:
    """A name without the halves of characters that JSON can hold and TensorBoard's files cannot."""
    return name.encode("utf-8", "replace").decode("utf-8")
