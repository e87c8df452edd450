"""What the machines of a run did, from their samples: read once, line by line, and put into a few hundred spans."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.report.evidence import table
from dragoman.run.folder import RunFolder
from dragoman.run.status import number_or_none

MAX_SPANS = 400
MAX_SERIES = 256
MAX_LINE_CHARACTERS = 1_000_000
NUM_LAST_LINES = 5
"""Looked at for the time of the last sample: the very last may be cut off."""
LOOPBACK = "lo"


@dataclass
class Span:
    """A mean that is still growing."""

    total: float = 0.0
    count: int = 0


@dataclass
class MachineSeries:
    """Figures over time, in seconds since the first sample of the run; each value is the mean of a span."""

    seconds: list[float] = field(default_factory=list)
    devices: dict[str, list[float | None]] = field(default_factory=dict)
    """Utilisation, 0 to 1, by a name such as "node1 GPU 0" or "node1 CPU"."""
    traffic: dict[str, list[float | None]] = field(default_factory=dict)
    """Bytes a second in the busier direction, by node and interface."""
    notes: list[str] = field(default_factory=list)
    """What the samplers said they could not see."""
    speeds: dict[str, float] = field(default_factory=dict)
    """Mbit/s that an interface claims, by the names of `traffic`."""

    def mean(self, values: list[float | None]) -> float | None:
        """Over all spans that have one."""
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    @property
    def between_machines(self) -> dict[str, list[float | None]]:
        """Traffic without what stays inside a machine."""
        return {name: values for name, values in self.traffic.items() if not name.endswith(f" {LOOPBACK}")}

    @property
    def gpus(self) -> dict[str, list[float | None]]:
        """Utilisation of GPUs alone."""
        return {name: values for name, values in self.devices.items() if " GPU " in name}


def read_machines(run: RunFolder) -> MachineSeries:
    """The samples of all machines of a run; empty where there are none."""
    spans: defaultdict[str, defaultdict[int, Span]] = defaultdict(lambda: defaultdict(Span))
    found = MachineSeries()
    edges = [edge for path in run.system_files() if (edge := _first_and_last_time(path)) is not None]
    if not edges:
        return found
    begin, end = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    width = max(1.0, (end - begin) / MAX_SPANS)
    for path in run.system_files():
        for sample in _samples(path):
            time = number_or_none(sample.get("time"))
            if time is None or not begin <= time <= end:
                continue
            for name, value in _figures(sample, found):
                if name in spans or len(spans) < MAX_SERIES:
                    span = spans[name][int((time - begin) / width)]
                    span.total += value
                    span.count += 1
    return _collect(found, spans, width)


def _collect(found: MachineSeries, spans: defaultdict[str, defaultdict[int, Span]], width: float) -> MachineSeries:
    numbers = sorted({number for series in spans.values() for number in series})
    found.seconds = [(number + 0.5) * width for number in numbers]
    for name, series in sorted(spans.items()):
        kind, _, label = name.partition(":")
        values = [series[n].total / series[n].count if n in series else None for n in numbers]
        if kind == "device":
            found.devices[label] = values
        elif any(values):
            found.traffic[label] = values
    return found


def _figures(sample: dict[str, Any], found: MachineSeries) -> Iterator[tuple[str, float]]:
    node = sample["node"]
    notes = sample.get("notes")
    for note in notes if isinstance(notes, list) else []:
        if isinstance(note, str) and note not in found.notes and len(found.notes) < MAX_SERIES:
            found.notes.append(note)
    share = number_or_none(table(sample.get("cpu")).get("share"))
    if share is not None:
        yield f"device:{node} CPU", share
    gpus = sample.get("gpus")
    for gpu in map(table, gpus if isinstance(gpus, list) else []):
        utilisation = number_or_none(gpu.get("utilisation"))
        if utilisation is not None:
            yield f"device:{node} GPU {gpu.get('index')}", utilisation
    for interface, counters in table(sample.get("network")).items():
        figures = table(counters)
        names = ("sent_bytes_per_second", "received_bytes_per_second")
        rates = [rate for name in names if (rate := number_or_none(figures.get(name))) is not None]
        speed = number_or_none(figures.get("speed_megabits_per_second"))
        if speed and len(found.speeds) < MAX_SERIES:
            found.speeds[f"{node} {interface}"] = speed
        if rates:
            yield f"traffic:{node} {interface}", max(rates)


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while line := file.readline(MAX_LINE_CHARACTERS):
                try:
                    sample = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(sample, dict) and isinstance(sample.get("node"), str):
                    yield sample
    except OSError:
        return


def _first_and_last_time(path: Path) -> tuple[float, float] | None:
    """By the first and the last lines, one of which may be cut off; the whole file is read once only."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_CHARACTERS)
            file.seek(max(0, path.stat().st_size - MAX_LINE_CHARACTERS))
            last = file.read().split(b"\n")[-NUM_LAST_LINES:]
    except OSError:
        return None
    known = [time for line in (first, *last) if (time := _time(line)) is not None]
    return (min(known), max(known)) if known else None


def _time(line: bytes) -> float | None:
    try:
        return number_or_none(table(json.loads(line)).get("time"))
    except (ValueError, RecursionError):
        return None
