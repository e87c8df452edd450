"""Figures of all machines of a run since the last record, from the samples in the run folder.

Every machine writes its own file of samples, so no machine has to send anything to another.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import MAX_PROGRAMS, MachineLoad, MachineSample, ProgramLoad, parse_sample

MEGABYTE = 1e6
_GIGABYTE = 1e9
LOOPBACK = "lo"
_GPU_FIGURES = {
    "utilisation",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "pcie_received_bytes_per_second",
    "pcie_sent_bytes_per_second",
    "nvlink_received_bytes_per_second",
    "nvlink_sent_bytes_per_second",
}


_LOAD_FIGURES = ("num_cores", "own_cores", "other_cores", "stolen_cores", "waiting_threads")
"""Fields of CpuSample that say who used the cores."""
_MAX_LOADS = 8
"""Machines whose load a record has; with more, those with the largest load by others."""


class Figure(NamedTuple):
    """Name of a figure, in the unit of the samples."""

    node: str
    device: str
    """Path below the node in TensorBoard: "disk", "gpu0", "network/eth0"; empty for CPU and memory."""
    name: str
    interface: str | None = None

    def scalar(self, value: float) -> tuple[str, float]:
        """Returns the TensorBoard tag, and the value in the unit that the tag names."""
        name = self.name
        if name.endswith("_bytes_per_second"):
            name, value = name.removesuffix("bytes_per_second") + "MB_per_s", value / MEGABYTE
        elif name.endswith("used_bytes"):
            name, value = "memory_GB", value / _GIGABYTE
        return "/".join(filter(None, ("system", self.node, self.device, name))), value


class MachineFigures:
    """Means over the samples of an interval."""

    def __init__(self, means: dict[Figure, float], programs: Mapping[str, Sequence[ProgramLoad]] | None = None) -> None:
        self._means = means
        self._programs = programs or {}

    def scalars(self) -> dict[str, float]:
        """Returns the values for TensorBoard by their tags."""
        return dict(figure.scalar(value) for figure, value in self._means.items())

    def to_record(self) -> dict[str, Any]:
        """Returns `traffic`, `utilisation` and `load` of a train record; empty if nothing was sampled."""
        shares = {
            "cpu": [value for figure, value in self._means.items() if figure.name == "cpu"],
            "gpu": [value for figure, value in self._means.items() if figure.name == "utilisation"],
        }
        traffic, utilisation = self._traffic(), {kind: fmean(values) for kind, values in shares.items() if values}
        load = [each.values() for each in self.loads()[:_MAX_LOADS]]
        found = {"traffic": traffic, "utilisation": utilisation, "load": load}
        return {name: value for name, value in found.items() if value}

    def loads(self) -> list[MachineLoad]:
        """Returns who used the cores of each machine, the one with the largest load by others first."""
        found = []
        for node in {figure.node for figure in self._means if figure.name == "own_cores"}:
            means = {name: self._means.get(Figure(node, "", name)) for name in _LOAD_FIGURES}
            figures = {name: round(mean, 3) for name, mean in means.items() if mean is not None}
            found.append(MachineLoad(host=node, programs=heaviest(self._programs.get(node, [])), **figures))
        return sorted(found, key=lambda load: (-load.lost_cores, -load.other_cores, load.host))

    def _traffic(self) -> dict[str, Any] | None:
        """Returns the traffic of the busiest interface; with several machines, loopback does not count."""
        rates: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for figure, value in self._means.items():
            if figure.interface is not None:
                rates[figure.node, figure.interface][figure.name] = value
        if len({node for node, _ in rates}) > 1:
            rates = defaultdict(dict, {place: found for place, found in rates.items() if place[1] != LOOPBACK})
        if not rates:
            return None
        (node, interface), found = max(rates.items(), key=lambda item: sum(item[1].values()))
        directions = ("sent_bytes_per_second", "received_bytes_per_second")
        return {"host": node, "interface": interface} | {name: found.get(name, 0.0) for name in directions}


class SystemFigures:
    """Follows the samples of all nodes; those written before it was opened belong to an earlier launch."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._followers: dict[Path, LineFollower] = {}
        self._values: defaultdict[Figure, list[float]] = defaultdict(list)
        self._programs: defaultdict[str, list[ProgramLoad]] = defaultdict(list)
        self._busy: set[tuple[str, str]] = set()
        """(node, interface) with traffic so far: only for these, a second without traffic counts as zero."""
        self._follow_new_files(num_last_lines=0)

    def read(self) -> MachineFigures:
        """Returns the means over the samples since the last call."""
        figures = self.peek()
        self._values.clear()
        self._programs.clear()
        return figures

    def peek(self) -> MachineFigures:
        """Returns the same means; the next call gets these samples again."""
        self._follow_new_files()
        for path, follower in self._followers.items():
            for sample in self._read_samples(path, follower):
                for figure, value in self._figures(sample):
                    if value is not None:
                        self._values[figure].append(value)
                self._programs[printable(sample.node)] += sample.programs or []
            follower.release_file()  # an open file would keep its disk from being remounted
        means = {figure: fmean(found) for figure, found in self._values.items()}
        return MachineFigures(means, {node: list(found) for node, found in self._programs.items()})

    def _follow_new_files(self, num_last_lines: int | None = None) -> None:
        with suppress(OSError):  # the disk does not answer
            for path in self._run.system_files():
                if path not in self._followers:
                    with suppress(OSError, UserError):  # tried again at the next call
                        self._followers[path] = LineFollower(path, num_last_lines)
                        self._followers[path].release_file()

    def _read_samples(self, path: Path, follower: LineFollower) -> Iterator[MachineSample]:
        """Yields the new samples of a file, without damaged lines and copies of another node's samples."""
        with suppress(OSError, UserError):  # a file that cannot be read at the moment must not end the run
            for line in follower.read_lines():
                sample = parse_sample(line)
                if sample is not None and self._run.system(sample.node) == path:
                    yield sample

    def _figures(self, sample: MachineSample) -> Iterator[tuple[Figure, float | None]]:
        """Yields the figures of one sample, without those of interfaces that never carried anything."""
        node = printable(sample.node)
        yield Figure(node, "", "cpu"), sample.cpu.share
        for name in _LOAD_FIGURES:
            yield Figure(node, "", name), getattr(sample.cpu, name)
        yield Figure(node, "", "used_bytes"), sample.memory.used_bytes
        yield Figure(node, "disk", "read_bytes_per_second"), sample.disk.read_bytes_per_second
        yield Figure(node, "disk", "written_bytes_per_second"), sample.disk.written_bytes_per_second
        for gpu in sample.gpus:
            values = gpu.model_dump(include=_GPU_FIGURES) | (gpu.activity or {})
            for name, value in values.items():
                yield Figure(node, f"gpu{gpu.index}", printable(name)), value
        for name, interface in sample.network.items():
            place = node, printable(name)
            received, sent = interface.received_bytes_per_second, interface.sent_bytes_per_second
            if received or sent:
                self._busy.add(place)
            if place in self._busy:
                device = f"network/{place[1]}"
                yield Figure(node, device, "received_bytes_per_second", place[1]), received
                yield Figure(node, device, "sent_bytes_per_second", place[1]), sent


def heaviest(programs: Sequence[ProgramLoad]) -> list[ProgramLoad]:
    """Returns the programs that used most, each once with its largest load."""
    by_pid: dict[tuple[str, int], ProgramLoad] = {}
    for program in programs:
        place = program.name, program.pid
        if place not in by_pid or by_pid[place].cores < program.cores:
            by_pid[place] = program
    return sorted(by_pid.values(), key=lambda program: -program.cores)[:MAX_PROGRAMS]


def printable(name: str) -> str:
    """Returns a name without lone surrogates, which JSON can hold and TensorBoard's files cannot."""
    return name.encode("utf-8", "replace").decode("utf-8")
