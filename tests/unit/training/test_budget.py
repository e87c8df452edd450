"""What a run stops for: a signal, a request in its folder, time, money; and which of them wins."""

import os
import signal
import time

import pytest

from dragoman.cluster.heartbeat import PAUSE_SIGNAL
from dragoman.run.config import TrainingSettings
from dragoman.run.folder import RunFolder
from dragoman.run.status import clear_stop_request, request_stop
from dragoman.training import budget
from dragoman.training.budget import Clock, StopNotice, StopReason, StopWatch

SIGNALS = (signal.SIGTERM, signal.SIGINT, PAUSE_SIGNAL)


class FakeTime:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(budget, "time", clock)
    return clock


@pytest.fixture
def notice():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    notice = StopNotice()
    notice.install()
    yield notice
    for number, handler in before.items():
        signal.signal(number, handler)


def watch(notice: StopNotice, run: RunFolder | None = None, **settings: float) -> StopWatch:
    training = TrainingSettings(**settings)
    return StopWatch(training, Clock(0.0, training.price_per_hour), notice, run)


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGTERM, StopReason.SIGNAL),
        (signal.SIGINT, StopReason.SIGNAL),
        (PAUSE_SIGNAL, StopReason.HOST_BACK),
    ],
)
def test_a_signal_asks_for_the_end_and_does_not_bring_it(notice, number, reason):
    assert notice.reason is StopReason.NONE
    os.kill(os.getpid(), number)
    assert notice.reason is reason
    assert watch(notice).reason() is reason


@pytest.mark.parametrize("order", [(signal.SIGTERM, PAUSE_SIGNAL), (PAUSE_SIGNAL, signal.SIGTERM)])
def test_to_end_outweighs_to_pause_whichever_came_first(notice, order):
    for number in order:
        os.kill(os.getpid(), number)
    assert notice.reason is StopReason.SIGNAL


def test_ranks_that_vote_agree_on_the_stronger_reason():
    """The largest wins: a request means that the run is not to go on, a signal may only be a job manager's."""
    rising = [reason.name for reason in sorted(StopReason)]
    assert rising == ["NONE", "STEPS", "TIME", "COST", "HOST_BACK", "SIGNAL", "REQUEST"]


def test_a_request_in_the_run_folder_is_seen_within_a_second(run, clock):
    stop_watch = watch(StopNotice(), run)
    assert stop_watch.reason() is StopReason.NONE
    request_stop(run)
    clock.now += budget.LOOK_SECONDS + 0.01
    assert stop_watch.reason() is StopReason.REQUEST
    clear_stop_request(run)
    clock.now += 10
    assert stop_watch.reason() is StopReason.REQUEST  # what was asked for stays asked for


def test_a_request_that_a_launcher_passes_on_as_a_signal_is_known_for_one(run, clock, notice):
    stop_watch = watch(notice, run)
    assert stop_watch.reason() is StopReason.NONE
    request_stop(run)
    os.kill(os.getpid(), signal.SIGTERM)  # before the next look is due
    assert stop_watch.reason() is StopReason.REQUEST


def test_the_run_folder_is_looked_at_once_a_second_only(run, clock, monkeypatch):
    """It may be on a slow network disk, and this is asked at every batch."""
    looks = []
    monkeypatch.setattr(budget, "is_stop_requested", lambda _: looks.append(clock.now) or False)
    stop_watch = watch(StopNotice(), run)
    for _ in range(100):
        clock.now += 0.1
        stop_watch.is_asked_to_end()
    assert 9 <= len(looks) <= 11


def test_a_request_outweighs_a_signal(run, notice, clock):
    """`dragoman stop` must end the run for good, even where a job manager signals too."""
    request_stop(run)
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch(notice, run).reason() is StopReason.REQUEST


def test_only_the_rank_that_is_given_the_folder_looks_for_requests(run):
    request_stop(run)
    assert watch(StopNotice()).reason() is StopReason.NONE


def test_hours_and_money_are_counted_over_all_restarts(clock):
    spent = Clock(seconds_before=3_000.0, price_per_hour=6.0)
    clock.now += 600
    assert spent.seconds == pytest.approx(3_600)
    assert spent.cost == pytest.approx(6.0)
    assert Clock(3_000.0, None).cost is None


def test_a_budget_ends_the_run_when_it_is_used_up_and_not_before(clock):
    stop_watch = watch(StopNotice(), max_hours=1.0)
    clock.now += 3_599
    assert stop_watch.reason() is StopReason.NONE
    clock.now += 1
    assert stop_watch.reason() is StopReason.TIME
    assert not stop_watch.is_asked_to_end()  # nobody asked: the last evaluation is still made


def test_money_is_named_before_time_and_somebodys_wish_before_both(clock, notice):
    stop_watch = watch(notice, max_hours=1.0, max_cost=2.0, price_per_hour=2.0)
    clock.now += 3_600
    assert stop_watch.reason() is StopReason.COST
    os.kill(os.getpid(), PAUSE_SIGNAL)
    assert stop_watch.reason() is StopReason.HOST_BACK


def test_without_budgets_time_ends_nothing(clock):
    stop_watch = watch(StopNotice())
    clock.now += 10**9
    assert stop_watch.reason() is StopReason.NONE


def test_asking_costs_next_to_nothing(run):
    """It is asked at every batch of every evaluation."""
    stop_watch = watch(StopNotice(), run)
    begin = time.perf_counter()
    for _ in range(1_000):
        stop_watch.reason()
    assert time.perf_counter() - begin < 1.0
