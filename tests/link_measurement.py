"""Measures what a run sends over the links between the hosts of a rig, and how long its steps take at a given rate."""

import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from host_runs import training_on_hosts, write_config
from program import Training
from rig import Rig
from rig.rate import bits_per_second

from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.config import load_settings
from dragoman.run.line_follower import LineFollower
from dragoman.training.learner import build_learner

NUM_SETTLING_STEPS = 2
"""Steps skipped after a change of the rate: an idle link starts with a full bucket, and TCP adapts."""
POLL_SECONDS = 0.002
PROMPT_SECONDS = 0.01
"""Less time than a step computes before it sends: counters read this soon after a step hold nothing of the next."""
MAX_TRIES = 100
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Window:
    """Measured steps of a run while all links have one rate."""

    rate: str | None
    """None if the links are not limited."""
    step_seconds: tuple[float, ...]
    bytes_sent_per_step: dict[str, float]
    """Bytes with headers, by host."""

    @property
    def seconds_per_step(self) -> float:
        """Median of the steps: other programs may use the machine."""
        return median(self.step_seconds)


@dataclass(frozen=True)
class LinkRun:
    """A run and the traffic of its links in each window."""

    num_workers: int
    gradient_bytes: int
    """Size of the gradients of one worker, which an all-reduce sums."""
    windows: tuple[Window, ...]

    @property
    def ring_bytes(self) -> float:
        """Bytes that each rank of a ring all-reduce sends; with all ranks of a host in a row, also each host."""
        return 2 * (self.num_workers - 1) / self.num_workers * self.gradient_bytes

    def window(self, rate: str | None) -> Window:
        return next(window for window in self.windows if window.rate == rate)

    def ring_seconds(self, rate: str) -> float:
        """Seconds that a link needs for the bytes of the ring."""
        return self.ring_bytes * 8 / bits_per_second(rate)


def write_link_config(path: Path, prepared: Path) -> Path:
    """Writes the config of a run that computes little and sends much: a million parameters, few tokens per step."""
    return write_config(
        path,
        prepared,
        "model.width=128",
        "model.feed_forward=512",
        "training.global_batch_tokens=400",
        "training.learning_rate=1e-4",
        "checkpoints.save_every=100000",
    )


def count_gradient_bytes(config: Path) -> int:
    """Returns the size of the buffer that workers sum, with padding."""
    settings = load_settings(config)
    flat = build_learner(settings, PreparedCorpus.open(settings.data.prepared), World()).gradients.flat
    return flat.numel() * flat.itemsize


class StepEnds:
    """Follows the records of a run and keeps when each step ended."""

    def __init__(self, training: Training) -> None:
        self._training = training
        # Reads only new lines: reading the whole file would take longer and longer.
        self._lines = LineFollower(training.run / "metrics.jsonl")
        self._times: dict[int, float] = {}

    def last_step(self) -> int:
        for record in map(json.loads, self._lines.read_lines()):
            if record["kind"] == "train":
                self._times[record["step"]] = record["time"]
        return max(self._times, default=0)

    def wait_for(self, step: int) -> float:
        """Waits for a step; returns when it ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.last_step() < step:
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {step} was not reached in {WAIT_SECONDS:.0f} s: {self._training.errors}")
            time.sleep(POLL_SECONDS)
        return self._times[step]

    def step_seconds(self, first: int, last: int) -> tuple[float, ...]:
        """Returns the seconds of each step after the first."""
        return tuple(end - begin for begin, end in pairwise(self._times[step] for step in range(first, last + 1)))


def measure_links(rig: Rig, hosts: str, config: Path, run: Path, windows: dict[str | None, int]) -> LinkRun:
    """Trains once and measures some steps at each rate; afterwards links are not limited."""
    with training_on_hosts(rig, hosts, run, config) as training:
        steps = StepEnds(training)
        try:
            measured = [measure_window(rig, steps, rate, num_steps) for rate, num_steps in windows.items()]
        finally:
            set_rates(rig, None)
    num_workers = sum(int(host.rpartition(":")[2]) for host in hosts.split(","))
    return LinkRun(num_workers, count_gradient_bytes(config), tuple(measured))


def measure_window(rig: Rig, steps: StepEnds, rate: str | None, num_steps: int) -> Window:
    """Measures from the end of one step to the end of another, about `num_steps` later."""
    set_rates(rig, rate)
    first, sent_before = read_counters(rig, steps, steps.last_step() + NUM_SETTLING_STEPS)
    last, sent = read_counters(rig, steps, first + num_steps)
    bytes_sent_per_step = {name: (sent[name] - sent_before[name]) / (last - first) for name in sent}
    return Window(rate, steps.step_seconds(first, last), bytes_sent_per_step)


def read_counters(rig: Rig, steps: StepEnds, step: int) -> tuple[int, dict[str, int]]:
    """Returns a step and the bytes each host has sent at its end; a later step if this process was too late."""
    for _ in range(MAX_TRIES):
        ended = steps.wait_for(step)
        sent = {host.name: host.bytes_sent() for host in rig.hosts}
        if time.time() - ended < PROMPT_SECONDS:
            return step, sent
        step = steps.last_step() + 1
    raise TimeoutError(f"The counters could not be read right after a step in {MAX_TRIES} tries: the machine is busy.")


def set_rates(rig: Rig, rate: str | None) -> None:
    for host in rig.hosts:
        host.set_rate(rate)
