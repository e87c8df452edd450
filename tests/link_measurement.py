"""What a run sends over the links of a rig's hosts, step by step, and how long its steps take at a given rate."""

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from host_runs import training_on_hosts, write_config
from program import Training, read_records
from rig import Rig
from rig.rate import bits_per_second

from dragoman.cluster.world import World
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.run.config import load_settings
from dragoman.training.trainer import build_learner

NUM_SETTLING_STEPS = 2
"""Not measured after a change of the rate: a link that rested starts with a full bucket, and TCP adapts."""
POLL_SECONDS = 0.002
PROMPT_SECONDS = 0.01
"""Less than a step computes before it sends: counters read so soon after a step hold nothing of the next one."""
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Window:
    """Some steps of a run at one rate of all links."""

    rate: str | None
    """None: as fast as the machine copies."""
    step_seconds: tuple[float, ...]
    bytes_sent_per_step: dict[str, float]
    """By host, headers included."""

    @property
    def seconds_per_step(self) -> float:
        """The median: others may use the machine too."""
        return median(self.step_seconds)


@dataclass(frozen=True)
class LinkRun:
    """A run and what its links carried in each window."""

    num_workers: int
    gradient_bytes: int
    """Of one worker: what an all-reduce sums."""
    windows: tuple[Window, ...]

    @property
    def ring_bytes(self) -> float:
        """What each rank of a ring all-reduce sends, and with packed ranks each host."""
        return 2 * (self.num_workers - 1) / self.num_workers * self.gradient_bytes

    def window(self, rate: str | None) -> Window:
        return next(window for window in self.windows if window.rate == rate)

    def ring_seconds(self, rate: str) -> float:
        """How long a link takes for that."""
        return self.ring_bytes * 8 / bits_per_second(rate)


def write_link_config(path: Path, prepared: Path) -> Path:
    """A run that computes little and sends much: about a million parameters, a few hundred tokens a step."""
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
    """Of the buffer that workers sum, padding included."""
    settings = load_settings(config)
    flat = build_learner(settings, PreparedCorpus.open(settings.data.prepared), World()).gradients.flat
    return flat.numel() * flat.itemsize


def measure_links(rig: Rig, hosts: str, config: Path, run: Path, windows: dict[str | None, int]) -> LinkRun:
    """One run, and a number of its steps at each rate; links are unlimited again afterwards."""
    with training_on_hosts(rig, hosts, run, config) as training:
        try:
            measured = [measure_window(rig, training, rate, num_steps) for rate, num_steps in windows.items()]
        finally:
            set_rates(rig, None)
        num_workers = sum(int(host.rpartition(":")[2]) for host in hosts.split(","))
    return LinkRun(num_workers, count_gradient_bytes(config), tuple(measured))


def measure_window(rig: Rig, training: Training, rate: str | None, num_steps: int) -> Window:
    """From the end of one step to that of another, about so many later."""
    set_rates(rig, rate)
    first, sent_before = read_counters(rig, training, last_step(training) + NUM_SETTLING_STEPS)
    last, sent = read_counters(rig, training, first + num_steps)
    times = [record["time"] for record in train_records(training) if first <= record["step"] <= last]
    return Window(
        rate,
        tuple(end - begin for begin, end in pairwise(times)),
        {name: (sent[name] - sent_before[name]) / (last - first) for name in sent},
    )


def read_counters(rig: Rig, training: Training, step: int) -> tuple[int, dict[str, int]]:
    """What each host has sent at the end of a step, and which step: a later one where this process came too late."""
    while True:
        ended = wait_for_record(training, step)["time"]
        sent = {host.name: host.bytes_sent() for host in rig.hosts}
        if time.time() - ended < PROMPT_SECONDS:
            return step, sent
        step = last_step(training) + 1


def set_rates(rig: Rig, rate: str | None) -> None:
    for host in rig.hosts:
        host.set_rate(rate)


def last_step(training: Training) -> int:
    return int(train_records(training)[-1]["step"]) if train_records(training) else 0


def wait_for_record(training: Training, step: int) -> dict[str, float]:
    """The record of a step, as soon as it is there."""
    deadline = time.monotonic() + WAIT_SECONDS
    while last_step(training) < step:
        if time.monotonic() > deadline:
            raise TimeoutError(f"step {step} was not reached in {WAIT_SECONDS:.0f} s: {training.errors}")
        time.sleep(POLL_SECONDS)
    return next(record for record in train_records(training) if record["step"] == step)


def train_records(training: Training) -> list[dict[str, float]]:
    return read_records(training.run, "train") if (training.run / "metrics.jsonl").exists() else []
