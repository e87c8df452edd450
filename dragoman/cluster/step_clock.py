"""Measures how long each part of a step takes on this rank. Parts never overlap, so they add up to wall time.

On an accelerator, moments are events on its stream that are read after the interval, so that no step waits for the
clock. That code has never run on a GPU.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch
import torch.distributed as dist


class Part(StrEnum):
    """A part of a step."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    WAITING = "waiting"
    """Waiting for the gradients of all ranks, without other work."""
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


OWN_WORK = (Part.DATA, Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.CHECKPOINT)
"""Parts that other ranks wait for if they take longer on this rank."""


@dataclass
class TimedStep:
    """Times of one step, from its beginning to the beginning of the next."""

    seconds: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    all_reduces: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of the all-reduce of each bucket, in seconds since the step began."""
    backward_end: float = 0.0
    """End of the last backward pass, in seconds since the step began."""

    @property
    def hidden_seconds(self) -> float:
        """Seconds of all-reduce that overlapped with backward."""
        total, reached = 0.0, 0.0
        for begin, end in sorted(self.all_reduces):
            begin, end = max(begin, reached), min(end, self.backward_end)
            if end > begin:
                total, reached = total + end - begin, end
        return total


class _Moments(Protocol):
    """Takes moments on one kind of device."""

    def now(self) -> object:
        """Returns the current moment."""

    def on_end(self, work: dist.Work, note: Callable[[object], None]) -> None:
        """Calls `note` with the moment at which a collective is complete."""

    def seconds_between(self, begin: object, end: object) -> float:
        """Returns the seconds between two moments; waits for the later one."""


class _HostMoments:
    def now(self) -> float:
        return time.perf_counter()

    def on_end(self, work: dist.Work, note: Callable[[object], None]) -> None:
        work.get_future().add_done_callback(lambda _: note(time.perf_counter()))

    def seconds_between(self, begin: object, end: object) -> float:
        assert isinstance(begin, float)
        assert isinstance(end, float)
        return end - begin


class _DeviceMoments:
    def __init__(self, device: torch.device) -> None:
        self._device, self._end_stream = device, torch.Stream(device)

    def now(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def on_end(self, work: dist.Work, note: Callable[[object], None]) -> None:
        # On a stream of its own: the moment must not wait for the kernels of backward.
        with self._end_stream:
            work.wait()
            note(self.now())

    def seconds_between(self, begin: object, end: object) -> float:
        assert isinstance(begin, torch.Event)
        assert isinstance(end, torch.Event)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


@dataclass
class _StepMoments:
    switches: list[tuple[Part, object]]
    all_reduces: list[list[object]] = field(default_factory=list)


class StepClock:
    """Records when this rank switches from one part to another; `read` adds up the times."""

    def __init__(self, device: torch.device | None = None, is_on: bool = True) -> None:
        is_host = device is None or device.type in ("cpu", "meta")
        self._moments: _Moments = _HostMoments() if is_host or device is None else _DeviceMoments(device)
        self._is_on = is_on
        self._steps: list[_StepMoments] = []
        self.restart()

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded."""
        return self._is_on

    def restart(self) -> None:
        """Drops all records; time is counted from now on, as `OTHER`."""
        if self._is_on:
            self._steps = [_StepMoments([(Part.OTHER, self._moments.now())])]

    def switch(self, part: Part) -> None:
        """Begins a part."""
        if self._is_on:
            self._steps[-1].switches.append((part, self._moments.now()))

    def begin_step(self) -> None:
        """Begins a step with the part `DATA`."""
        if self._is_on:
            self._steps.append(_StepMoments([(Part.DATA, self._moments.now())]))

    def follow(self, work: dist.Work | None) -> None:
        """Records the all-reduce of a bucket of gradients; without work, only that the bucket was ready."""
        if not self._is_on:
            return
        start_and_end = [self._moments.now()]
        self._steps[-1].all_reduces.append(start_and_end)
        if work is not None:
            self._moments.on_end(work, start_and_end.append)
        else:
            start_and_end.append(start_and_end[0])

    def read(self) -> tuple[TimedStep, list[TimedStep]]:
        """Returns the times since the last reading: first all time before the first step, then each step.

        Time from now until the next step begins belongs to the next reading.
        """
        if not self._is_on:
            return TimedStep(), []
        steps, end = self._steps, self._moments.now()
        self._steps = [_StepMoments([(Part.OTHER, end)])]
        ends = [step.switches[0][1] for step in steps[1:]] + [end]
        before, *rest = [self._measure(step, end) for step, end in zip(steps, ends, strict=True)]
        return before, rest

    def _measure(self, step: _StepMoments, end: object) -> TimedStep:
        times = TimedStep()
        begin = step.switches[0][1]
        moments = [moment for _, moment in step.switches] + [end]
        for (part, moment), following in zip(step.switches, moments[1:], strict=True):
            times.seconds[part] += self._moments.seconds_between(moment, following)
            if part is Part.BACKWARD:
                times.backward_end = self._moments.seconds_between(begin, following)
        for start, *known_end in step.all_reduces:
            last = known_end[0] if known_end else end
            times.all_reduces.append(
                (self._moments.seconds_between(begin, start), self._moments.seconds_between(begin, last))
            )
        return times
