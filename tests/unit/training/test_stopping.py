"""What ends a run early: a signal, a request in its folder, time, cost, gradients that are not finite."""

import math
import os
import signal
import time

import pytest

from dragoman.cluster.heartbeat import PAUSE_SIGNAL
from dragoman.run.config import TrainingSettings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.status import clear_stop_request, request_stop
from dragoman.training import stopping
from dragoman.training.learner import LossScale
from dragoman.training.spent_time import Launch, SpentTime
from dragoman.training.stopping import (
    MAX_SKIPS_IN_A_ROW,
    FiniteGuard,
    StopConditions,
    StopNotice,
    StopReason,
)

NAN, INFINITY = math.nan, math.inf
SIGNALS = (signal.SIGTERM, signal.SIGINT, PAUSE_SIGNAL)


@pytest.fixture
def notice():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    notice = StopNotice()
    notice.install()
    yield notice
    for number, handler in before.items():
        signal.signal(number, handler)


def conditions_for(notice: StopNotice, run: RunFolder | None = None, **settings: float) -> StopConditions:
    training = TrainingSettings(**settings)
    spent = SpentTime(Launch("now", stopping.time.monotonic()), training.price_per_hour)
    return StopConditions(training, spent, notice, run)


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
    assert conditions_for(notice).reason_to_stop_at_once() is reason


@pytest.mark.parametrize("order", [(signal.SIGTERM, PAUSE_SIGNAL), (PAUSE_SIGNAL, signal.SIGTERM)])
def test_to_end_outweighs_to_pause_whichever_came_first(notice, order):
    for number in order:
        os.kill(os.getpid(), number)
    assert notice.reason is StopReason.SIGNAL


def test_ranks_that_vote_agree_on_the_stronger_reason():
    """The largest wins: a request means that the run is not to go on, a signal may only be a job manager's."""
    rising = [reason.name for reason in sorted(StopReason)]
    assert rising == ["NONE", "STEPS", "PATIENCE", "TIME", "COST", "HOST_BACK", "SIGNAL", "REQUEST"]


def test_a_request_in_the_run_folder_is_seen_within_a_second(run, clock):
    conditions = conditions_for(StopNotice(), run)
    assert conditions.reason_to_stop_at_once() is StopReason.NONE
    request_stop(run)
    clock.now += stopping.LOOK_SECONDS + 0.01
    assert conditions.reason_to_stop_at_once() is StopReason.REQUEST
    clear_stop_request(run)
    clock.now += 10
    assert conditions.reason_to_stop_at_once() is StopReason.REQUEST  # what was asked for stays asked for


def test_a_request_that_a_launcher_passes_on_as_a_signal_is_known_for_one(run, clock, notice):
    conditions = conditions_for(notice, run)
    assert conditions.reason_to_stop_at_once() is StopReason.NONE
    request_stop(run)
    os.kill(os.getpid(), signal.SIGTERM)  # before the next look is due
    assert conditions.reason_to_stop_at_once() is StopReason.REQUEST


def test_the_run_folder_is_looked_at_once_a_second_only(run, clock, monkeypatch):
    """It may be on a slow network disk, and this is asked at every batch."""
    looks = []
    monkeypatch.setattr(stopping, "is_stop_requested", lambda _: looks.append(clock.now) or False)
    conditions = conditions_for(StopNotice(), run)
    for _ in range(100):
        clock.now += 0.1
        conditions.is_asked_to_end()
    assert 9 <= len(looks) <= 11


def test_a_request_outweighs_a_signal(run, notice, clock):
    """`dragoman stop` must end the run for good, even where a job manager signals too."""
    request_stop(run)
    os.kill(os.getpid(), signal.SIGTERM)
    assert conditions_for(notice, run).reason_to_stop_at_once() is StopReason.REQUEST


def test_only_the_rank_that_is_given_the_folder_looks_for_requests(run):
    request_stop(run)
    assert conditions_for(StopNotice()).reason_to_stop_at_once() is StopReason.NONE


# Budgets


STEP, EVALUATION, CHECKPOINT = 10.0, 200.0, 40.0


def train_until_stopped(clock, conditions: StopConditions, evaluate_every: int) -> float:
    """Plays the training loop; returns the seconds from the start of the launcher to the end of the run."""
    for step in range(1, 10_000):
        reason = conditions.reason_before_step(step % evaluate_every == 0)
        clock.now += STEP
        if reason is not StopReason.NONE or step % evaluate_every == 0:
            clock.now += EVALUATION
            conditions.timer.add_evaluation(EVALUATION)
        conditions.spent.measured.checkpoint = CHECKPOINT
        if reason is not StopReason.NONE:
            clock.now += 2 * CHECKPOINT  # one is still being written when the last one is due
            return conditions.spent.seconds
    raise AssertionError("it never stopped")


@pytest.mark.parametrize("seconds", range(2_000, 2_600, 7))
def test_steps_the_last_evaluation_and_the_last_checkpoint_fit_into_the_budget(clock, seconds):
    conditions = conditions_for(StopNotice(), max_hours=seconds / 3600)
    spent = train_until_stopped(clock, conditions, evaluate_every=30)
    assert seconds - (2 * STEP + 2 * EVALUATION) <= spent <= seconds


def test_a_budget_that_is_used_up_leaves_no_step(clock):
    conditions = conditions_for(StopNotice(), max_hours=1.0)
    assert conditions.reason_before_step(is_evaluation_due=False) is StopReason.NONE
    clock.now += 3_600
    assert conditions.reason_before_step(is_evaluation_due=False) is StopReason.TIME
    assert not conditions.is_asked_to_end()  # nobody asked: the last evaluation is still made


def test_an_evaluation_is_interrupted_when_there_is_just_enough_time_to_save(clock):
    conditions = conditions_for(StopNotice(), max_hours=1.0)
    conditions.spent.measured.checkpoint = CHECKPOINT
    clock.now += 3_600 - 2 * CHECKPOINT - 2
    assert conditions.reason_to_stop_at_once() is StopReason.NONE
    clock.now += 2
    assert conditions.reason_to_stop_at_once() is StopReason.TIME


def test_time_for_an_evaluation_that_was_never_measured_is_kept(clock):
    conditions = conditions_for(StopNotice(), max_hours=1.0)
    clock.now += 0.9 * 3_600
    assert conditions.reason_before_step(is_evaluation_due=False) is StopReason.TIME
    assert conditions.reason_to_stop_at_once() is StopReason.NONE


@pytest.mark.parametrize(
    ("max_cost", "reason"), [(1.9, StopReason.COST), (2.0, StopReason.COST), (2.1, StopReason.TIME)]
)
def test_the_smaller_budget_is_named(clock, max_cost, reason):
    conditions = conditions_for(StopNotice(), max_hours=1.0, max_cost=max_cost, price_per_hour=2.0)
    clock.now += 3_600
    assert conditions.reason_before_step(is_evaluation_due=False) is reason


def test_somebodys_wish_is_named_before_a_budget(clock, notice):
    conditions = conditions_for(notice, max_hours=1.0)
    clock.now += 3_600
    os.kill(os.getpid(), PAUSE_SIGNAL)
    assert conditions.reason_to_stop_at_once() is StopReason.HOST_BACK


def test_without_budgets_time_ends_nothing(clock):
    conditions = conditions_for(StopNotice())
    clock.now += 10**9
    assert conditions.reason_to_stop_at_once() is StopReason.NONE


def test_asking_costs_next_to_nothing(run):
    """It is asked at every batch of every evaluation."""
    conditions = conditions_for(StopNotice(), run)
    begin = time.process_time()
    for _ in range(1_000):
        conditions.reason_to_stop_at_once()
    assert time.process_time() - begin < 1.0


# Gradients that are not finite


def make_guard(precision: str = "fp32", norms: tuple[float, ...] = ()) -> FiniteGuard:
    guard = FiniteGuard(LossScale.start(precision))
    for step, norm in enumerate(norms, start=1):
        guard.check(step, True, norm, 1e-3)
    return guard


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("norm", "word"), [(NAN, "NaN"), (INFINITY, "infinite")])
def test_the_first_bad_step_stops_the_run_and_is_named(precision, norm, word):
    with pytest.raises(UserError, match=f"stopped at step 61700: the gradient is {word}"):
        make_guard(precision, (1.0,) * 5).check(61_700, False, norm, 1e-3)


def test_from_the_first_step_on_is_a_cause_of_its_own():
    with pytest.raises(
        UserError, match=r"No step before it was good \(learning rate 1.00e-03\): lower training.learning_rate"
    ):
        make_guard().check(1, False, NAN, 1e-3)


def test_rising_norms_are_told_with_their_figures():
    with pytest.raises(
        UserError, match=r"rose from 0.5 to 80 over the last 4 steps.*\(2.50e-03\) is probably too high"
    ):
        make_guard(norms=(0.5, 2.0, 9.0, 80.0)).check(5, False, NAN, 2.5e-3)


def test_only_recent_norms_are_compared():
    """A norm that rose long ago, at the start of training, explains nothing now."""
    with pytest.raises(UserError, match=r"no sign of it before \(norm 50 one step earlier"):
        make_guard(norms=(0.1,) + (50.0,) * 20).check(22, False, NAN, 1e-3)


def test_a_sudden_end_is_told_with_the_norm_before():
    with pytest.raises(UserError, match=r"no sign of it before \(norm 1.25 one step earlier, learning rate 1.00e-03\)"):
        make_guard(norms=(1.0, 1.25)).check(3, False, INFINITY, 1e-3)


def test_fp16_may_skip_and_recover():
    guard = make_guard("fp16")
    for round_of_skips in range(3):
        for skip in range(MAX_SKIPS_IN_A_ROW - 1):
            guard.check(100 * round_of_skips + skip, False, INFINITY, 1e-3)
        guard.check(100 * round_of_skips + 99, True, 1.0, 1e-3)


def test_fp16_that_never_recovers_is_stopped_with_its_scale():
    scale = LossScale.start("fp16")
    guard = FiniteGuard(scale)
    for step in range(1, MAX_SKIPS_IN_A_ROW):
        scale.update(is_finite=False)
        guard.check(step, False, NAN, 1e-3)
    scale.update(is_finite=False)
    expected = (
        f"step {MAX_SKIPS_IN_A_ROW}: .*{MAX_SKIPS_IN_A_ROW} steps in a row.*scale of {scale.value:g}.*bf16 or fp32"
    )
    with pytest.raises(UserError, match=expected):
        guard.check(MAX_SKIPS_IN_A_ROW, False, NAN, 1e-3)


def test_every_account_says_that_weights_and_checkpoint_are_good():
    for guard in (make_guard(), make_guard(norms=(1.0,)), make_guard(norms=(0.1, 50.0))):
        with pytest.raises(UserError, match="This step changed no weight, and the last checkpoint is good"):
            guard.check(9, False, NAN, 1e-3)


def test_good_steps_say_nothing():
    guard = make_guard(norms=())
    assert all(guard.check(step, True, 10.0**step, 1e-3) is None for step in range(30))
