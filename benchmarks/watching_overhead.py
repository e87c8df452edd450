"""Measures how much monitoring slows down training: `python watching_overhead.py`.

In two ways: blocks of real steps (preset `small`, Multi30k), in turn with and without monitoring, in one process; and
the direct cost, the sum of each activity timed alone. Exits with code 1 if the direct cost is 1 % of a step or more, or
if the ratio of neighbouring blocks is certainly 1.01 or more.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise
from training_contestant import GLOBAL_BATCH_TOKENS, benchmark_settings

from dragoman.cluster.step_clock import Part, StepClock
from dragoman.cluster.world import World
from dragoman.corpus.batching import BatchStream, MicroBatch
from dragoman.corpus.mixture import Mixture
from dragoman.monitoring.interval import read_parts
from dragoman.monitoring.sampling.sampler import MODULE, SAMPLE_SECONDS, start_sampler
from dragoman.monitoring.sinks import Sinks
from dragoman.monitoring.system_figures import SystemFigures
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.training.learner import Learner, build_learner, build_stream, measure_fixed_share, set_learning_rate
from dragoman.training.worker import keep_freed_memory

NUM_THREADS = 2
NUM_WARMUP_STEPS = 3
NUM_NOTED_STEPS = 10_000
NUM_RESAMPLES = 10_000
LEARNING_RATE = 1e-4
NODE = "benchmark"
WORLD = World(machines=(NODE,))
FIRST_SAMPLE_SECONDS = 30.0
MAX_SHARE = 0.01
MAX_RATIO = 1.01
NOISE = (
    "The speed of a shared machine changes by more than 1 % from block to block, so the ratio alone proves little: its "
    "bound is met if the interval (95 %, bootstrap of the median) holds values below 1.01. The direct cost is the "
    "reliable figure: each activity timed alone, with all of the sampler's processor time taken from the step."
)
NOT_COUNTED = (
    "Costs that occur once per run (see once_a_run), and the two small collectives of each record with several "
    "workers. The record itself is counted completely, although most of it is written without monitoring too."
)


@dataclass(frozen=True)
class PlannedStep:
    """The batch of a step, built beforehand: both blocks of a round use the same."""

    batch: MicroBatch
    num_target_tokens: int


@dataclass(frozen=True)
class Round:
    """Two neighbouring blocks of the same steps."""

    plain_seconds: float
    watched_seconds: float
    sampler_cpu_seconds: float
    """Processor time of the sampler during the watched block."""
    sampler_start_cpu_seconds: float

    @property
    def ratio(self) -> float:
        """Time of the watched block divided by that of the plain one."""
        return self.watched_seconds / self.plain_seconds


@dataclass(frozen=True)
class DirectCost:
    """Cost of monitoring, each activity timed alone."""

    clock_seconds_per_step: float
    reading_seconds_per_step: float
    sampler_cpu_seconds_per_second: float

    def shares(self, seconds_per_step: float) -> dict[str, float]:
        """Returns shares of a step; the sampler counts as if no core were idle and all threads waited for it."""
        return {
            "clock": self.clock_seconds_per_step / seconds_per_step,
            "reading": self.reading_seconds_per_step / seconds_per_step,
            "sampler": self.sampler_cpu_seconds_per_second,
        }


class RecordingClock(StepClock):
    """Records the calls of a step, so that the same calls can be timed alone."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        super().__init__()

    def switch(self, part: Part) -> None:
        """Records the part and switches to it."""
        self.parts.append(part)
        super().switch(part)


class Watching:
    """Everything that a worker does to monitor its steps, except the sampler, which is another process."""

    def __init__(self, run: RunFolder, sinks: Sinks, system: SystemFigures) -> None:
        self.run = run
        self.clock = StepClock()
        self._sinks = sinks
        self._system = system

    def read(self, step: int) -> None:
        """Does the work of a train record: parts of the steps, figures of the machine, and writing them."""
        parts = read_parts(self.clock, WORLD)
        assert parts is not None
        system = self._system.read()
        self._sinks.write("train", step, parts.to_record() | system.to_record())
        self._sinks.write_scalars(step, system.scalars())


# Real steps


def plan_steps(stream: BatchStream, num_steps: int) -> list[PlannedStep]:
    """Plans the next steps of the stream."""
    plans = [stream.next_step() for _ in range(num_steps)]
    return [PlannedStep(stream.micro_batch(plan.micro_batches[0]), plan.num_target_tokens) for plan in plans]


def make_steps(learner: Learner, clock: StepClock, steps: Sequence[PlannedStep]) -> None:
    """Makes steps as the trainer does, timed by this clock."""
    learner.clock = clock
    clock.restart()
    for number, step in enumerate(steps):
        clock.begin_step()
        learner.learn(number, {0: step.batch}, step.num_target_tokens)


def time_plain_block(learner: Learner, steps: Sequence[PlannedStep]) -> float:
    """Returns the seconds of a block without monitoring."""
    begin = time.perf_counter()
    make_steps(learner, StepClock(is_on=False), steps)
    return time.perf_counter() - begin


def time_watched_block(learner: Learner, steps: Sequence[PlannedStep], watching: Watching) -> dict[str, float]:
    """Times a block with all monitoring; a record is written at its end, more often than with log_every = 50."""
    with running_sampler(watching.run) as sampler:
        cpu_begin, begin = cpu_seconds(sampler), time.perf_counter()
        make_steps(learner, watching.clock, steps)
        watching.read(len(steps))
        return {
            "watched_seconds": time.perf_counter() - begin,
            "sampler_cpu_seconds": cpu_seconds(sampler) - cpu_begin,
            "sampler_start_cpu_seconds": cpu_begin,
        }


@contextmanager
def running_sampler(run: RunFolder) -> Iterator[psutil.Process]:
    """Runs a sampler inside the block; its start is not measured, since it happens once per run."""
    path = run.system(NODE)
    size_before = path.stat().st_size if path.exists() else 0
    deadline = time.monotonic() + FIRST_SAMPLE_SECONDS
    with start_sampler(run, NODE) as sampler:
        while not path.exists() or path.stat().st_size == size_before:
            if sampler.trouble or time.monotonic() > deadline:
                raise UserError(sampler.trouble or f"No sample came in {FIRST_SAMPLE_SECONDS:.0f} s.")
            time.sleep(0.05)
        yield next(child for child in psutil.Process().children() if MODULE in child.cmdline())


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the processor time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_rounds(
    learner: Learner, stream: BatchStream, watching: Watching, num_rounds: int, num_steps: int
) -> list[Round]:
    """Warms up, then alternates watched and plain blocks; which one comes first changes from round to round."""
    make_steps(learner, StepClock(is_on=False), plan_steps(stream, NUM_WARMUP_STEPS))
    rounds: list[Round] = []
    for number in range(1, num_rounds + 1):
        steps = plan_steps(stream, num_steps)
        if number % 2:
            watched = time_watched_block(learner, steps, watching)
            plain_seconds = time_plain_block(learner, steps)
        else:
            plain_seconds = time_plain_block(learner, steps)
            watched = time_watched_block(learner, steps, watching)
        rounds.append(Round(plain_seconds, **watched))
        print(
            f"round {number}: {rounds[-1].watched_seconds / num_steps:.3f} s per step watched, "
            f"{plain_seconds / num_steps:.3f} plain, ratio {rounds[-1].ratio:.3f}",
            flush=True,
        )
    return rounds


# Direct cost


def measure_direct_cost(
    learner: Learner, step: PlannedStep, watching: Watching, rounds: Sequence[Round], steps_per_record: int
) -> DirectCost:
    """Repeats the calls of a step and of a record, and adds what the sampler used while steps were made."""
    recorder = RecordingClock()
    make_steps(learner, recorder, [step])
    step_seconds = time_plain_block(learner, [step])
    samples_path = watching.run.system(NODE)
    samples = last_sample(samples_path) * max(1, round(steps_per_record * step_seconds / SAMPLE_SECONDS))
    num_records = -(-NUM_NOTED_STEPS // steps_per_record)
    watching.clock.restart()
    noting = reading = 0.0
    with arrived_gradients(len(learner.gradients.bucket_bytes)) as works:
        for number in range(num_records):
            noting += time_noting(watching.clock, recorder.parts, works, steps_per_record)
            append(samples_path, samples)
            begin = time.perf_counter()
            watching.read(number)
            reading += time.perf_counter() - begin
    num_steps = num_records * steps_per_record
    sampled_seconds = sum(each.watched_seconds for each in rounds)
    sampler_share = sum(each.sampler_cpu_seconds for each in rounds) / sampled_seconds
    return DirectCost(noting / num_steps, reading / num_steps, sampler_share)


def time_noting(clock: StepClock, parts: Sequence[Part], works: Sequence[dist.Work], num_steps: int) -> float:
    """Returns the seconds of all calls of the clock in this number of steps."""
    begin = time.perf_counter()
    for _ in range(num_steps):
        clock.begin_step()
        for part in parts:
            clock.switch(part)
        for work in works:
            clock.follow(work)
    return time.perf_counter() - begin


@contextmanager
def arrived_gradients(num_buckets: int) -> Iterator[list[dist.Work]]:
    """Yields complete all-reduces, as many as a step starts with several workers."""
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        try:
            works = [dist.all_reduce(torch.zeros(1), async_op=True) for _ in range(num_buckets)]
            for work in works:
                work.wait()
            yield works
        finally:
            dist.destroy_process_group()


def last_sample(path: Path) -> bytes:
    """Returns the last line of a sampler's file."""
    return path.read_bytes().splitlines(keepends=True)[-1]


def append(path: Path, lines: bytes) -> None:
    """Appends lines to a file, as a sampler does between two records of a run."""
    with path.open("ab") as file:
        file.write(lines)


# The result


def describe(rounds: Sequence[Round], direct: DirectCost, fixed_cost_seconds: float, num_steps: int) -> dict[str, Any]:
    """Returns all figures of the result file."""
    seconds_per_step = median(each.plain_seconds for each in rounds) / num_steps
    ratios = [each.ratio for each in rounds]
    shares = direct.shares(seconds_per_step)
    return {
        "workload": f"preset small, Multi30k en-de, {GLOBAL_BATCH_TOKENS:,} tokens per step, fp32, one worker",
        "threads": NUM_THREADS,
        "steps_per_block": num_steps,
        "noise": NOISE,
        "not_counted": NOT_COUNTED,
        "seconds_per_step": seconds_per_step,
        "ratio": summarise(ratios) | {"interval": median_interval(ratios), "required_below": MAX_RATIO},
        "direct": {
            "clock_microseconds_per_step": direct.clock_seconds_per_step * 1e6,
            "reading_microseconds_per_step": direct.reading_seconds_per_step * 1e6,
            "sampler_cpu_seconds_per_second": direct.sampler_cpu_seconds_per_second,
            "shares_of_step": shares,
            "share_of_step": sum(shares.values()),
            "required_below": MAX_SHARE,
        },
        "once_a_run": {
            "fixed_cost_measurement_seconds": fixed_cost_seconds,
            "fixed_cost_measurement_in_steps": fixed_cost_seconds / seconds_per_step,
            "sampler_start_cpu_seconds": median(each.sampler_start_cpu_seconds for each in rounds),
        },
        "rounds": [asdict(each) | {"ratio": each.ratio} for each in rounds],
    }


def median_interval(values: Sequence[float]) -> list[float]:
    """Returns the 95 % bootstrap interval of the median."""
    drawn = np.random.default_rng(0).choice(values, (NUM_RESAMPLES, len(values)))
    return [float(bound) for bound in np.quantile(np.median(drawn, axis=1), (0.025, 0.975))]


def is_cheap(figures: dict[str, Any]) -> bool:
    """Whether both bounds are met."""
    return figures["direct"]["share_of_step"] < MAX_SHARE and figures["ratio"]["interval"][0] < MAX_RATIO


def print_summary(figures: dict[str, Any]) -> None:
    """Prints the figures of both ways and their bounds."""
    ratio, direct = figures["ratio"], figures["direct"]
    low, high = ratio["interval"]
    print(f"ratio {ratio['median']:.4f} median, interval {low:.4f} to {high:.4f}; must hold values below {MAX_RATIO}")
    print(
        f"direct: clock {direct['clock_microseconds_per_step']:.1f} µs and reading "
        f"{direct['reading_microseconds_per_step']:.1f} µs per step of {figures['seconds_per_step']:.2f} s, sampler "
        f"{direct['sampler_cpu_seconds_per_second'] * 1e3:.1f} ms of processor time a second: "
        f"{direct['share_of_step']:.3%} of a step; must be below {MAX_SHARE:.0%}"
    )
    once = figures["once_a_run"]
    print(
        f"once a run, not in these shares: measuring the fixed cost of a batch takes as long as "
        f"{once['fixed_cost_measurement_in_steps']:.1f} steps, starting the sampler "
        f"{once['sampler_start_cpu_seconds']:.2f} s of processor time"
    )


def measure(folder: Path, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """Measures in both ways, on one model."""
    torch.set_num_threads(NUM_THREADS)
    keep_freed_memory()  # as the worker does
    corpus = prepare_multi30k(folder)
    settings = benchmark_settings(corpus.folder)
    learner = build_learner(settings, corpus, WORLD)
    set_learning_rate(learner.optimizer, LEARNING_RATE)
    stream = build_stream(settings, corpus, Mixture.build(corpus.train_corpora, settings.data))
    run = RunFolder(folder / "run")
    run.path.mkdir()
    with Sinks(run.metrics, run.tensorboard, None) as sinks:
        watching = Watching(run, sinks, SystemFigures(run))
        rounds = measure_rounds(learner, stream, watching, num_rounds, num_steps)
        (step,) = plan_steps(stream, 1)
        direct = measure_direct_cost(learner, step, watching, rounds, settings.training.log_every)
    begin = time.perf_counter()
    measure_fixed_share(learner, step.batch)
    return describe(rounds, direct, time.perf_counter() - begin, num_steps)


def main() -> int:
    """Measures, writes the result and prints a summary; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=12, help="blocks of each kind (default: 12)")
    parser.add_argument("--steps", type=positive_count, default=10, help="steps per block (default: 10)")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        figures = measure(Path(folder), options.rounds, options.steps)
    path = save_result("watching_overhead", machine, figures)
    print_summary(figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if is_cheap(figures) else 1


if __name__ == "__main__":
    end_with(main)
