"""Utilisation of the machines of a run over time, averaged over a few hundred spans."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.run.folder import RunFolder
from dragoman.run.records import MachineSample, parse_sample

MAX_SPANS = 400
MAX_DEVICES = 256
MAX_NOTES = 256
MAX_LINE_BYTES = 1_000_000
_NUM_LAST_LINES = 5
"""Lines searched for the time of the last sample: the very last may be cut off."""

Values = list[float | None]
"""Mean of each span; None where there was no sample."""


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0


@dataclass
class MachineSeries:
    """Utilisation over time."""

    seconds: list[float] = field(default_factory=list)
    """Middle of each span, since the first sample of the run."""
    devices: dict[str, Values] = field(default_factory=dict)
    """Utilisation, 0 to 1, by a name such as "node1 GPU 0" or "node1 CPU"."""
    notes: list[str] = field(default_factory=list)
    """Problems that the samplers reported."""

    @property
    def gpus(self) -> dict[str, Values]:
        """Utilisation of GPUs alone."""
        return {name: values for name, values in self.devices.items() if " GPU " in name}


def read_machines(run: RunFolder) -> MachineSeries:
    """Reads the samples of all machines of a run, line by line; empty where there are none."""
    spans: defaultdict[str, defaultdict[int, _Mean]] = defaultdict(lambda: defaultdict(_Mean))
    series = MachineSeries()
    edges = [found[1] for path in run.system_files() if (found := sampled_span(path)) is not None]
    if not edges:
        return series
    begin, end = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    width = max(1.0, (end - begin) / MAX_SPANS)
    for path in run.system_files():
        for sample in _samples(path):
            if not begin <= sample.time <= end:
                continue
            series.notes = list(dict.fromkeys([*series.notes, *sample.notes]))[:MAX_NOTES]
            for name, value in _utilisation(sample):
                if name in spans or len(spans) < MAX_DEVICES:
                    span = spans[name][int((sample.time - begin) / width)]
                    span.total += value
                    span.count += 1
    numbers = sorted({number for means in spans.values() for number in means})
    series.seconds = [(number + 0.5) * width for number in numbers]
    for name, means in sorted(spans.items()):
        series.devices[name] = [means[n].total / means[n].count if n in means else None for n in numbers]
    return series


def _utilisation(sample: MachineSample) -> Iterator[tuple[str, float]]:
    if sample.cpu.share is not None:
        yield f"{sample.node} CPU", sample.cpu.share
    for gpu in sample.gpus:
        if gpu.utilisation is not None:
            yield f"{sample.node} GPU {gpu.index}", gpu.utilisation


def _samples(path: Path) -> Iterator[MachineSample]:
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if (sample := parse_sample(line)) is not None:
                    yield sample
    except OSError:
        return


def sampled_span(path: Path) -> tuple[str, tuple[float, float]] | None:
    """Returns a machine's name and the times of its first and last sample, from both ends of its file."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES)
            file.seek(max(0, path.stat().st_size - MAX_LINE_BYTES))
            last = file.read().split(b"\n")[-_NUM_LAST_LINES:]
    except OSError:
        return None
    samples = [sample for line in (first, *last) if (sample := parse_sample(line)) is not None]
    times = [sample.time for sample in samples]
    return (samples[0].node, (min(times), max(times))) if samples else None
