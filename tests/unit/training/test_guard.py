"""A run on NaN is stopped at once, and told why in words."""

import math

import pytest

from dragoman.run.errors import UserError
from dragoman.training.guard import MOST_SKIPS_IN_A_ROW, FiniteGuard, LossScale

NAN, INFINITY = math.nan, math.inf


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
        UserError, match=r"so from the first step \(learning rate 1.00e-03\): lower training.learning_rate"
    ):
        make_guard().check(1, False, NAN, 1e-3)


def test_rising_norms_are_told_with_their_figures():
    with pytest.raises(
        UserError, match=r"rose from 0.5 to 80 over the last 4 steps.*\(2.50e-03\) is probably too high"
    ):
        make_guard(norms=(0.5, 2.0, 9.0, 80.0)).check(5, False, NAN, 2.5e-3)


def test_only_recent_norms_are_compared():
    """A norm that rose long ago, at the start of training, explains nothing now."""
    with pytest.raises(UserError, match=r"came suddenly \(norm 50 one step before"):
        make_guard(norms=(0.1,) + (50.0,) * 20).check(22, False, NAN, 1e-3)


def test_a_sudden_end_is_told_with_the_norm_before():
    with pytest.raises(UserError, match=r"came suddenly \(norm 1.25 one step before, learning rate 1.00e-03\)"):
        make_guard(norms=(1.0, 1.25)).check(3, False, INFINITY, 1e-3)


def test_fp16_may_skip_and_recover():
    guard = make_guard("fp16")
    for round_of_skips in range(3):
        for skip in range(MOST_SKIPS_IN_A_ROW - 1):
            guard.check(100 * round_of_skips + skip, False, INFINITY, 1e-3)
        guard.check(100 * round_of_skips + 99, True, 1.0, 1e-3)


def test_fp16_that_never_recovers_is_stopped_with_its_scale():
    scale = LossScale.start("fp16")
    guard = FiniteGuard(scale)
    for step in range(1, MOST_SKIPS_IN_A_ROW):
        scale.update(is_finite=False)
        guard.check(step, False, NAN, 1e-3)
    scale.update(is_finite=False)
    expected = (
        f"step {MOST_SKIPS_IN_A_ROW}: .*{MOST_SKIPS_IN_A_ROW} steps in a row.*scale of {scale.value:g}.*bf16 or fp32"
    )
    with pytest.raises(UserError, match=expected):
        guard.check(MOST_SKIPS_IN_A_ROW, False, NAN, 1e-3)


def test_every_account_says_that_weights_and_checkpoint_are_good():
    for guard in (make_guard(), make_guard(norms=(1.0,)), make_guard(norms=(0.1, 50.0))):
        with pytest.raises(UserError, match="No weight was changed by this step; the last checkpoint is good"):
            guard.check(9, False, NAN, 1e-3)


def test_good_steps_say_nothing():
    guard = make_guard(norms=())
    assert all(guard.check(step, True, 10.0**step, 1e-3) is None for step in range(30))
