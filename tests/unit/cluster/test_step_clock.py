"""The parts of a step add up to wall time, whatever the order of switches."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster import step_clock
from dragoman.cluster.step_clock import OWN_WORK, Part, StepClock, TimedStep

moments = st.floats(0, 100)
all_reduces = st.lists(st.tuples(moments, moments).map(lambda pair: tuple(sorted(pair))), max_size=8)
switches = st.lists(st.tuples(st.sampled_from([*Part, "step"]), st.integers(0, 1_000)), max_size=40)


class FakeTime:
    """A clock that a test sets; in whole seconds, so that sums are exact."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


class FakeFuture:
    def __init__(self) -> None:
        self.arrive: Callable[[object], None] = lambda _: None

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.arrive = callback


class FakeWork:
    """An all-reduce that ends when the test says so."""

    def __init__(self) -> None:
        self._future = FakeFuture()

    def get_future(self) -> FakeFuture:
        return self._future

    def arrive(self) -> None:
        self._future.arrive(None)


@pytest.fixture
def now(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(step_clock, "time", fake)
    return fake


def spend(clock: StepClock, now: FakeTime, *spent: tuple[Part, float]) -> None:
    for part, seconds in spent:
        clock.switch(part)
        now.pass_by(seconds)


def used(times: TimedStep) -> dict[Part, float]:
    return {part: seconds for part, seconds in times.seconds.items() if seconds}


@given(switches)
def test_parts_add_up_to_wall_time(events):
    with pytest.MonkeyPatch.context() as patch:
        now = FakeTime()
        patch.setattr(step_clock, "time", now)
        clock = StepClock()
        expected = dict.fromkeys(Part, 0.0)
        current, num_steps = Part.OTHER, 0
        for event, seconds in events:
            if event == "step":
                clock.begin_step()
                current, num_steps = Part.DATA, num_steps + 1
            else:
                clock.switch(event)
                current = event
            now.pass_by(seconds)
            expected[current] += seconds
        before, steps = clock.read()
    assert len(steps) == num_steps
    found = {part: sum(times.seconds[part] for times in (before, *steps)) for part in Part}
    assert found == expected
    assert sum(found.values()) == now.seconds


def test_each_step_has_its_own_times_and_begins_with_data(now):
    clock = StepClock()
    now.pass_by(5)
    for factor in (1, 10):
        clock.begin_step()
        now.pass_by(factor)
        spend(clock, now, (Part.FORWARD, 2 * factor), (Part.BACKWARD, 3 * factor), (Part.FORWARD, 4 * factor))
    before, (first, second) = clock.read()
    assert used(before) == {Part.OTHER: 5}
    assert used(first) == {Part.DATA: 1, Part.FORWARD: 6, Part.BACKWARD: 3}
    assert used(second) == {Part.DATA: 10, Part.FORWARD: 60, Part.BACKWARD: 30}


def test_time_after_a_reading_belongs_to_the_next(now):
    clock = StepClock()
    clock.begin_step()
    now.pass_by(1)
    clock.read()
    now.pass_by(2)
    spend(clock, now, (Part.EVALUATION, 7))
    clock.begin_step()
    now.pass_by(3)
    before, [step] = clock.read()
    assert used(before) == {Part.OTHER: 2, Part.EVALUATION: 7}
    assert used(step) == {Part.DATA: 3}
    before, steps = clock.read()
    assert (used(before), steps) == ({}, [])


def test_a_restart_drops_all_records(now):
    clock = StepClock()
    clock.begin_step()
    spend(clock, now, (Part.FORWARD, 9))
    clock.restart()
    now.pass_by(1)
    before, steps = clock.read()
    assert (used(before), steps) == ({Part.OTHER: 1}, [])


def test_all_reduces_are_measured_from_the_beginning_of_their_step(now):
    clock = StepClock()
    now.pass_by(100)
    clock.begin_step()
    spend(clock, now, (Part.FORWARD, 2), (Part.BACKWARD, 3))
    first, second = FakeWork(), FakeWork()
    clock.follow(first)
    now.pass_by(4)
    clock.follow(second)
    now.pass_by(1)
    first.arrive()
    spend(clock, now, (Part.WAITING, 5))
    second.arrive()
    spend(clock, now, (Part.OPTIMIZER, 1))
    _, [step] = clock.read()
    assert step.all_reduces == [(5, 10), (9, 15)]
    assert step.backward_end == 10
    assert step.hidden_seconds == 5
    assert step.seconds[Part.BACKWARD] == 8


def test_backward_ends_with_the_last_backward_pass(now):
    clock = StepClock()
    clock.begin_step()
    spend(clock, now, (Part.BACKWARD, 3), (Part.FORWARD, 4), (Part.BACKWARD, 5), (Part.WAITING, 6))
    _, [step] = clock.read()
    assert step.backward_end == 12


def test_a_bucket_without_an_all_reduce_takes_no_time(now):
    clock = StepClock()
    clock.begin_step()
    spend(clock, now, (Part.BACKWARD, 3))
    clock.follow(None)
    spend(clock, now, (Part.BACKWARD, 3))
    _, [step] = clock.read()
    assert step.all_reduces == [(3, 3)]
    assert step.hidden_seconds == 0


def test_an_all_reduce_without_a_known_end_lasts_until_the_end(now):
    """The wait for a collective may return before the callback that records its end."""
    clock = StepClock()
    clock.begin_step()
    spend(clock, now, (Part.BACKWARD, 2))
    clock.follow(FakeWork())
    spend(clock, now, (Part.BACKWARD, 2), (Part.WAITING, 3))
    _, [step] = clock.read()
    assert step.all_reduces == [(2, 7)]
    assert step.hidden_seconds == 2


@given(all_reduces, moments)
def test_hidden_time_is_the_union_of_all_reduces_before_the_end_of_backward(found, backward_end):
    times = TimedStep(all_reduces=found, backward_end=backward_end)
    # Between two neighbouring moments, either some all-reduce runs or none.
    edges = sorted({edge for all_reduce in found for edge in all_reduce} | {0.0, backward_end})
    expected = sum(
        end - begin
        for begin, end in itertools.pairwise(edges)
        if end <= backward_end and any(sent <= begin and end <= arrived for sent, arrived in found)
    )
    assert times.hidden_seconds == pytest.approx(expected)
    assert 0 <= times.hidden_seconds <= backward_end + 1e-9


def test_a_clock_that_is_off_records_nothing(monkeypatch):
    monkeypatch.setattr(step_clock, "time", None)  # reading it would be an error
    clock = StepClock(is_on=False)
    clock.restart()
    clock.begin_step()
    clock.switch(Part.FORWARD)
    clock.follow(FakeWork())
    before, steps = clock.read()
    assert not clock.is_on
    assert (used(before), before.all_reduces, steps) == ({}, [], [])


def test_waiting_and_evaluation_are_not_own_work():
    assert set(Part) - set(OWN_WORK) == {Part.WAITING, Part.EVALUATION, Part.OTHER}


class FakeEvent:
    """Stands in for an accelerator's event, which must be waited for before its time is read."""

    def __init__(self, device: torch.device, enable_timing: bool) -> None:
        assert device.type == "cuda"
        assert enable_timing
        self.milliseconds: float | None = None
        self.is_reached = False

    def record(self) -> None:
        self.milliseconds = FakeEvent.time.seconds * 1_000

    def synchronize(self) -> None:
        self.is_reached = True

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert end.is_reached
        return end.milliseconds - self.milliseconds

    time = FakeTime()


class FakeStream:
    current: "FakeStream | None" = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> None:
        FakeStream.current = self

    def __exit__(self, *_: object) -> None:
        FakeStream.current = None


def test_on_a_gpu_moments_are_events_and_arrivals_have_a_stream_of_their_own(now, monkeypatch):
    FakeEvent.time = now
    monkeypatch.setattr(torch, "Event", FakeEvent)
    monkeypatch.setattr(torch, "Stream", FakeStream)
    waited_on = []

    class DeviceWork:
        def wait(self) -> None:
            waited_on.append(FakeStream.current)
            now.pass_by(4)

    clock = StepClock(torch.device("cuda", 0))
    clock.begin_step()
    spend(clock, now, (Part.FORWARD, 2), (Part.BACKWARD, 3))
    clock.follow(DeviceWork())
    spend(clock, now, (Part.WAITING, 1))
    _, [step] = clock.read()
    assert used(step) == {Part.FORWARD: 2, Part.BACKWARD: 7, Part.WAITING: 1}
    assert step.all_reduces == [(5, 9)]
    assert [stream.device.type for stream in waited_on] == ["cuda"]
