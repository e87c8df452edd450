"""Measures the machines and links of a run before it begins, with real steps of a model that is then discarded.

First steps without exchanging gradients, then the exchange alone, then both: this separates slow links from slow
machines. Measurements that do not fit into the given time are skipped.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import torch.distributed as dist

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.heartbeat import beat
from dragoman.cluster.probe import (
    BackgroundAllReduce,
    measure_all_reduce,
    measure_gather,
    measure_inside,
    measure_links,
    sweep_sizes,
)
from dragoman.cluster.rendezvous import INTERFACE_VARIABLES
from dragoman.cluster.replica_gradient_sum import measure_encoding
from dragoman.cluster.step_clock import OWN_WORK, TimedStep
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, share_of_rank
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.diagnosis.prediction import (
    Contention,
    MeasuredLink,
    Measurements,
    Prediction,
    Transfer,
    assemble_step,
    predict_from_steps,
    transfer_seconds,
)
from dragoman.monitoring.interval import IntervalParts, combine_parts
from dragoman.monitoring.sampling.cores import LoadMeter
from dragoman.monitoring.sampling.machine import (
    InterfaceCounters,
    describe_interface,
    read_counters_or_note,
    traffic_interface,
)
from dragoman.run.budget import Budget
from dragoman.run.config import Settings
from dragoman.run.records import MachineLoad
from dragoman.run.schedule import build_schedule
from dragoman.training.learner import (
    build_learner,
    build_stream,
    measure_fixed_share,
    read_micro_batches,
    set_learning_rate,
    trained_parameters,
)

ALONE_SHARE, SWEEP_SHARE, INSIDE_SHARE, GATHER_SHARE = 0.25, 0.3, 0.05, 0.15
"""Shares of the given time: steps without exchange, all-reduces of rising size, all-reduces inside one machine, gathers
between machines."""
_BYTES_OF_INT8_SHARE = 4
_WARM_UP_SHARE = 0.05
FEW_STEPS, MOST_STEPS = 3, 12
BRIEF_SECONDS, BRIEF_STEPS = 5.0, 5
"""Longest time and most steps of a rehearsal that only predicts the duration."""
_SHARE_OF_BUDGET = 0.02
_QUARTERS_MEASURED = 4
"""Longest time to measure the fixed share, in steps."""
_INSIDE_BYTES = 2**22
_WORTHWHILE_OVERLAP = 0.1
"""Smallest overlap to measure contention with, as a share of a step: a shorter one would measure noise."""
_LARGEST_SLOWDOWN = 2.0
_CONTENTION_ROUNDS = 2


class SilentGradients(GradientSum):
    """Gradients that stay on this rank while `is_silent`; records when each bucket could have been sent."""

    is_silent = True

    def _send_next_bucket(self) -> None:
        if not self.is_silent:
            super()._send_next_bucket()
            return
        self._clock.follow(None)
        self._works.append(_NothingSent())


class _NothingSent(dist.Work):
    """Stands in for an all-reduce; there is nothing to wait for."""

    def wait(self, *_: object) -> bool:
        return True


class Rehearsal:
    """Measures as one rank; all ranks go through the same stages."""

    def __init__(
        self,
        settings: Settings,
        corpus: PreparedCorpus,
        world: World,
        seconds: float,
        note: Callable[[Measurements], None] = lambda _: None,
    ) -> None:
        self._world, self._settings, self._seconds, self._note = world, settings, seconds, note
        self._begin = time.perf_counter()
        self._load_meter = LoadMeter(world.machine) if world.local_rank == 0 else None
        self._learner = build_learner(settings, corpus, world, SilentGradients)
        self._clock = self._learner.clock
        set_learning_rate(
            self._learner.optimizer, build_schedule(settings.training, self._learner.model.shape.width)(0)
        )
        self._stream = build_stream(settings, corpus, Mixture.build(corpus.train_corpora, settings.data))
        self._share = share_of_rank(settings.training.virtual_workers, world.rank, world.size)
        self._step = 0
        gradients = self._learner.gradients
        self.measured = Measurements(world.machines, gradients.flat.nbytes, gradients.bucket_bytes)

    def run(self) -> Measurements:
        """Collective: runs all stages; returns the same measurements on every rank."""
        stages = [self._compute_alone, self._measure_links, self._exchange_alone, self._exchange_while_computing]
        for stage in stages if self._world.size > 1 else stages[:1]:
            stage()
            self._report()
        self._make_whole_steps()
        if self._world.num_machines > 1:
            self._measure_encoding()
        self.measured.loads = self.read_loads()
        self._report()
        return self.measured

    def read_loads(self) -> list[MachineLoad]:
        """Collective: returns who used the cores of each machine so far."""
        load = self._load_meter.read() if self._load_meter else None
        mine = [(self._world.rank, json.dumps(load.values()))] if load else []
        return [MachineLoad.model_validate_json(text) for text in self._world.gather_texts(mine)]

    def time_steps(self) -> list[float]:
        """Collective: makes a few whole steps in the given time, and one at least; returns the seconds of each.

        The first step also prepares kernels: it counts only where there is no time for another one.
        """
        beat("rehearsing whole steps")
        self._exchange_gradients()
        first = self._slowest_seconds(self._make_steps(1))
        if first > self._seconds:
            return [first]
        num_steps = int((self._seconds - self._elapsed()) / first)
        return self._mean_seconds(self._make_steps(max(1, min(BRIEF_STEPS, num_steps))))

    def _report(self) -> None:
        self.measured.seconds = self._elapsed()
        self._note(self.measured)

    def _compute_alone(self) -> None:
        """Collective: makes steps without exchanging gradients."""
        beat("rehearsing steps without exchange")
        seconds = self._slowest_seconds(self._make_steps(1))
        if seconds < _WARM_UP_SHARE * self._seconds:  # the first step is slow, but there may be no time for another
            seconds = self._slowest_seconds(self._make_steps(1))
        num_steps = int((ALONE_SHARE * self._seconds - self._elapsed()) / seconds)
        steps = self._make_steps(max(1, min(MOST_STEPS, num_steps)))
        parts = self._parts(steps)
        measured = self.measured
        measured.alone_parts = parts.attribution
        measured.alone_steps = self._world.largest_numbers([_total(step) for step in steps])
        self._note_work(steps, parts)
        # Must be the same on every rank, because the number of whole steps follows from it.
        readiness = self._world.sum_numbers(_mean_readiness(steps))
        measured.bucket_ready = [each / self._world.size for each in readiness]
        if self._elapsed() + 2 * _QUARTERS_MEASURED * seconds < self._seconds / 2:
            self._measure_fixed_share()

    def _measure_fixed_share(self) -> None:
        batches, _ = self._next_batches()
        share = measure_fixed_share(self._learner, next(iter(batches.values()))) if batches else 0.0
        self.measured.fixed_share = self._world.sum_numbers([share])[0] / self._world.size

    def _measure_links(self) -> None:
        if self._world.num_machines == 1:
            return
        notes: list[str] = []
        before = read_counters_or_note(notes)
        links = measure_links(self._world)
        mine = describe_own_interface(before, read_counters_or_note([]))
        texts = self._world.gather_texts([(self._world.rank, json.dumps([mine, notes]))])
        by_machine = dict(zip(self._world.machines, map(json.loads, texts), strict=True))
        self.measured.notes = [f"{machine}: {note}" for machine, (_, found) in by_machine.items() for note in found]
        self.measured.links = [
            MeasuredLink(
                link.sender,
                link.receiver,
                link.latency_seconds,
                link.bytes_per_second,
                retransmitted_share=link.retransmitted_share,
                **by_machine[link.sender][0],
            )
            for link in links
        ]

    def _exchange_alone(self) -> None:
        """Collective: times all-reduces of rising size, over all ranks and inside one machine, and gathers."""
        gradient_bytes = self.measured.gradient_bytes
        sweep = measure_all_reduce(self._world, sweep_sizes(gradient_bytes), SWEEP_SHARE * self._seconds)
        self.measured.all_reduce = [Transfer(*each) for each in sweep]
        if self._world.num_machines > 1:
            inside = measure_inside(
                self._world, sweep_sizes(min(gradient_bytes, _INSIDE_BYTES)), INSIDE_SHARE * self._seconds
            )
            self.measured.all_reduce_inside = self._agree(inside)
            payload_bytes = gradient_bytes // _BYTES_OF_INT8_SHARE
            gathers = measure_gather(self._world, sweep_sizes(payload_bytes), GATHER_SHARE * self._seconds)
            self.measured.gather = self._agree(gathers)

    def _agree(self, found: list[tuple[int, float]]) -> list[Transfer]:
        """Collective: returns the transfers that some ranks measured, on all ranks."""
        numbers = [float(number) for transfer in found for number in transfer]
        [count] = self._world.largest_numbers([float(len(numbers))])
        agreed = self._world.largest_numbers(numbers + [0.0] * (int(count) - len(numbers)))
        return [Transfer(int(size), seconds) for size, seconds in zip(agreed[::2], agreed[1::2], strict=True)]

    def _exchange_while_computing(self) -> None:
        """Collective: measures how much computing and sending slow each other down; on a CPU they share the cores."""
        measured = self.measured
        compute_seconds = sum(measured.alone_steps) / len(measured.alone_steps)
        # As long as a step: over a short exchange, the noise of a step would seem a slowdown.
        sizes = [each.num_bytes for each in measured.all_reduce]
        # A larger size that took less time than a smaller one was lucky.
        seconds = np.maximum.accumulate([each.seconds for each in measured.all_reduce])
        num_bytes = round(float(np.interp(compute_seconds, seconds, sizes)))
        alone_seconds = transfer_seconds(measured.all_reduce, num_bytes)
        if self._elapsed() + 3 * (compute_seconds + alone_seconds) > self._seconds:
            return
        exchange = BackgroundAllReduce(self._world, num_bytes)
        rounds = [self._one_exchange_while_computing(exchange) for _ in range(_CONTENTION_ROUNDS)]
        travel, step = min(seconds for seconds, _ in rounds), min(seconds for _, seconds in rounds)
        overlap = min(travel, step)
        if overlap < _WORTHWHILE_OVERLAP * step:
            return
        slowdown = 1.0 + (step - _expected_smallest(measured.alone_steps, _CONTENTION_ROUNDS)) / overlap
        measured.contention = Contention(
            compute_slowdown=min(_LARGEST_SLOWDOWN, max(1.0, slowdown)),
            communication_slowdown=min(_LARGEST_SLOWDOWN, max(1.0, travel / alone_seconds)),
        )

    def _one_exchange_while_computing(self, exchange: BackgroundAllReduce) -> tuple[float, float]:
        exchange.start()
        [step] = self._make_steps(1)
        travel = exchange.finish()
        return travel, self._world.largest_numbers([_total(step)])[0]

    def _make_whole_steps(self) -> None:
        """Collective: makes as many complete steps as there is time for, possibly none."""
        expected = assemble_step(self.measured).seconds
        num_steps = min(MOST_STEPS, int((self._seconds - self._elapsed()) / expected))
        if num_steps < 1:
            return
        beat("rehearsing whole steps")
        self._exchange_gradients()
        if num_steps > FEW_STEPS:
            self._make_steps(1)
        steps = self._make_steps(num_steps)
        parts = self._parts(steps)
        self.measured.steps = self._mean_seconds(steps)
        self.measured.step_parts = parts.attribution
        self._note_work(steps, parts)

    def _measure_encoding(self) -> None:
        """Collective: times what ways to synchronise compute beside a step; the model cannot make steps afterwards."""
        beat("measuring wire formats")
        found = measure_encoding(
            trained_parameters(self._learner.model).values(),
            self._learner.gradients,
            self._world.num_machines,
            self._settings.synchronisation.powersgd_rank,
        )
        slowest = self._world.largest_numbers([seconds for _, seconds in found.values()])
        self.measured.payload_bytes = {name: num_bytes for name, (num_bytes, _) in found.items()}
        self.measured.encoding_seconds = dict(zip(found, slowest, strict=True))

    def _exchange_gradients(self) -> None:
        """Makes the following steps exchange their gradients."""
        assert isinstance(self._learner.gradients, SilentGradients)
        self._learner.gradients.is_silent = False

    def _make_steps(self, num_steps: int) -> list[TimedStep]:
        self._clock.restart()
        for _ in range(num_steps):
            self._clock.begin_step()
            batches, num_target_tokens = self._next_batches()
            self._learner.learn(self._step, batches, num_target_tokens)
            self._step += 1
        _, steps = self._clock.read()
        return steps

    def _next_batches(self) -> tuple[dict[int, MicroBatch], int]:
        plan = self._stream.next_step()
        return read_micro_batches(self._stream, plan, self._share), plan.num_target_tokens

    def _slowest_seconds(self, steps: list[TimedStep]) -> float:
        """Collective: returns the seconds of the last step on the slowest rank."""
        return self._world.largest_numbers([_total(steps[-1])])[0]

    def _mean_seconds(self, steps: list[TimedStep]) -> list[float]:
        """Collective: returns the seconds of each step, mean over ranks, which begin it at different moments."""
        seconds = self._world.sum_numbers([_total(step) for step in steps])
        return [each / self._world.size for each in seconds]

    def _parts(self, steps: list[TimedStep]) -> IntervalParts:
        return combine_parts(TimedStep(), steps, self._world)

    def _note_work(self, steps: list[TimedStep], parts: IntervalParts) -> None:
        """Collective: notes every rank's own work in its median step, so that one slow step does not count."""
        mine = median(sum(step.seconds[part] for part in OWN_WORK) for step in steps)
        work = [seconds for [seconds] in self._world.gather_numbers([mine])]
        # Parts of another rank would say nothing about the one that is slow in most steps.
        is_same = parts.slowest_rank == work.index(max(work))
        self.measured.work_by_rank, self.measured.slowest = work, parts.slowest if is_same else {}

    def _elapsed(self) -> float:
        """Collective: returns the seconds since the beginning, the same on every rank."""
        return self._world.largest_numbers([time.perf_counter() - self._begin])[0]


def rehearse(
    settings: Settings,
    corpus: PreparedCorpus,
    world: World,
    seconds: float,
    note: Callable[[Measurements], None] = lambda _: None,
) -> Measurements:
    """Collective: measures everything, and frees the model it measured with."""
    measured = Rehearsal(_timed(settings), corpus, world, seconds, note).run()
    gc.collect()  # gradients and hooks refer to each other; on a GPU their memory is needed at once
    return measured


def rehearse_briefly(settings: Settings, corpus: PreparedCorpus, world: World) -> Prediction:
    """Collective: times a few steps only, for a prediction of the run's duration, and frees the model."""
    seconds = min(BRIEF_SECONDS, _SHARE_OF_BUDGET * Budget.from_settings(settings.training).seconds)
    rehearsal = Rehearsal(_timed(settings), corpus, world, seconds)
    prediction = predict_from_steps(rehearsal.time_steps(), world.size, rehearsal.read_loads())
    del rehearsal
    gc.collect()
    return replace(prediction, basis="rehearsal")


def _timed(settings: Settings) -> Settings:
    """Switches the clock of steps on, whether or not the run uses it, and makes batches full from the first step on."""
    changes = {
        "monitoring": settings.monitoring.model_copy(update={"attribution": True}),
        "training": settings.training.model_copy(update={"initial_batch_tokens": 0}),
    }
    return settings.model_copy(update=changes)


def describe_own_interface(
    before: Mapping[str, InterfaceCounters], after: Mapping[str, InterfaceCounters]
) -> dict[str, Any]:
    """Describes the interface of this machine that carried the traffic between two readings of the counters."""
    found = traffic_interface(before, after)
    chosen = next((os.environ[name] for name in INTERFACE_VARIABLES if os.environ.get(name)), found or "")
    # The packets of a tunnel are counted again by the card that carries them, so counters alone would not show it.
    is_tunnel = describe_interface(chosen)["kind"] in ("vpn", "loopback")
    name = chosen if is_tunnel else found or chosen
    description = describe_interface(name)
    return {
        "interface": name,
        "kind": description["kind"],
        "claimed_megabits_per_second": description["speed_megabits_per_second"],
    }


def _total(step: TimedStep) -> float:
    return sum(step.seconds.values())


def _mean_readiness(steps: list[TimedStep]) -> list[float]:
    """Returns when each bucket was complete, in seconds before the end of backward; empty where nothing is sent."""
    readiness = [
        [max(0.0, step.backward_end - sent) for sent, _ in step.all_reduces] for step in steps if step.all_reduces
    ]
    return [sum(bucket) / len(bucket) for bucket in zip(*readiness, strict=True)] if readiness else []


def _expected_smallest(values: Sequence[float], count: int) -> float:
    """Mean of the smallest of so many of the values, over all choices: the smallest of all would be smaller."""
    chosen = list(combinations(values, min(count, len(values))))
    return sum(map(min, chosen)) / len(chosen)
