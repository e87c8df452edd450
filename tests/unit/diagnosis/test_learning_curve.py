"""Fits of curves that follow the formula, of other curves, and of any numbers."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.learning_curve import (
    FEWEST_POINTS,
    FORMULA_ERROR,
    MAX_RATE_POINTS,
    CurveFit,
    Schedule,
    fit_curve,
)

LAST_STEP, LATER_STEP, NUM_STEPS = 20_000, 30_000, 100_001
STEPS = np.arange(1_000.0, LAST_STEP + 1, 1_000)
Rate = Callable[[int], float]
RATES: dict[str, Rate] = {
    "fixed": lambda _: 3e-4,
    "transformer": lambda step: min((step + 1) * 4_000**-1.5, (step + 1) ** -0.5),
    "linear": lambda step: 1e-3 * max(0.0, 1 - step / 60_000),
    "cosine": lambda step: 0.5e-3 * (1 + math.cos(math.pi * min(1.0, step / 40_000))),
    "piecewise": lambda step: 1e-3 if step < 12_000 else 1e-4,
}
FLOOR, POWER, HEAT = 1.5, 0.4, 0.1

any_rate = st.sampled_from([*RATES.values(), lambda _: 0.0, lambda _: -1.0, lambda _: 5e-324, lambda _: 1e15])
any_step = st.integers(0, 2**53) | st.integers(0, 300)
any_value = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-200, 200) | st.sampled_from([0.0, 2.0])
any_points = st.lists(st.tuples(any_step, any_value), max_size=12, unique_by=lambda point: point[0]).map(sorted)


def losses_by_formula(schedule: Schedule, exponent: float, steps: np.ndarray) -> np.ndarray:
    relative = schedule.learned(steps) / schedule.learned(np.array([LAST_STEP]))
    return FLOOR + POWER * relative**-exponent + HEAT * schedule.rate(steps)


def fit_losses(rate: Rate, exponent: float = 0.5, seed: int = 0, noise: float = 0.01) -> CurveFit:
    schedule = Schedule(rate, NUM_STEPS)
    chance = np.random.default_rng(seed).normal(0, noise, len(STEPS))
    fit = fit_curve(STEPS, losses_by_formula(schedule, exponent, STEPS) + chance, schedule)
    assert fit is not None
    return fit


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("num_steps", [1, 10, 3_000, MAX_RATE_POINTS * 3])
def test_sums_of_learning_rates_agree_with_a_loop(name, num_steps):
    rates = [RATES[name](step) for step in range(num_steps + 1)]
    # Rates are evaluated at whole steps, so a sum over steps and the area under them differ by up to one step.
    expected = sum(rates[:num_steps]) / max(rates)
    [learned] = Schedule(RATES[name], num_steps).learned(np.array([float(num_steps)]))
    assert learned == pytest.approx(max(1.0, expected), abs=1.0, rel=1e-3)


@pytest.mark.parametrize("name", RATES)
def test_the_recent_rate_is_a_share_of_the_peak(name):
    schedule = Schedule(RATES[name], NUM_STEPS)
    peak = max(RATES[name](step) for step in range(0, NUM_STEPS, 20))
    assert schedule.rate(np.array([30_000.0]))[0] == pytest.approx(RATES[name](30_000) / peak, abs=0.01)


def test_a_lowered_rate_takes_effect_after_a_while():
    shares = Schedule(RATES["piecewise"], 20_000).rate(np.array([11_000.0, 12_100.0, 13_000.0]))
    assert shares[0] == pytest.approx(1.0)
    assert 0.2 < shares[1] < 0.9
    assert shares[2] == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("rate", [lambda _: 0.0, lambda _: -1.0])
def test_a_rate_of_zero_has_sums(rate):
    schedule = Schedule(rate, 1_000)
    assert schedule.learned(np.array([0.0, 1_000.0])).tolist() == [1.0, 1.0]
    assert schedule.rate(np.array([0.0, 1_000.0])).tolist() == [0.0, 0.0]


def test_curves_of_the_formula_are_recovered_with_every_schedule():
    covered, errors, changes = [], [], []
    for rate in RATES.values():
        for exponent in (0.2, 0.5, 0.9):
            schedule = Schedule(rate, NUM_STEPS)
            now, truth = losses_by_formula(schedule, exponent, np.array([LAST_STEP, LATER_STEP]))
            for seed in range(4):
                expected = fit_losses(rate, exponent, seed).curve([LATER_STEP])
                covered.append(expected.low[0] <= truth <= expected.high[0])
                errors.append(abs(expected.value[0] - truth))
                changes.append(abs(truth - now))
    assert np.mean(covered) >= 0.8
    assert np.mean(errors) < 0.5 * np.mean(changes)


def change_of(fit: CurveFit) -> float:
    """Expected change from the last step to a later one."""
    now, later = fit.curve([LAST_STEP, LATER_STEP]).value
    return float(later - now)


@pytest.mark.parametrize("name", RATES)
def test_a_curve_that_falls_is_not_forecast_to_rise(name):
    # True exponents between two of the grid, little noise: the difference must not be explained by overfitting.
    for exponent in (0.4, 0.6, 0.9):
        assert change_of(fit_losses(RATES[name], exponent, noise=0.003)) < 0


def test_single_values_scatter_more_than_the_curve_and_the_noise_is_estimated():
    fit = fit_losses(RATES["fixed"], noise=0.02)
    curve, values = fit.curve([LATER_STEP]), fit.predict([LATER_STEP])
    assert values.high[0] - values.low[0] > curve.high[0] - curve.low[0]
    assert fit.noise == pytest.approx(0.02, rel=0.5)


def test_many_evaluations_that_share_their_errors_do_not_count_as_so_many():
    schedule = Schedule(RATES["fixed"], NUM_STEPS)
    widths = []
    for count in (20, 400):
        steps = np.linspace(LAST_STEP / count, LAST_STEP, count)
        # The error of a real curve is a slow wave, not white noise.
        losses = losses_by_formula(schedule, 0.5, steps) + 0.01 * np.sin(steps / 2_000)
        fit = fit_curve(steps, losses, schedule)
        assert fit is not None
        fit = replace(fit, formula_error=0.0)
        widths.append(float((fit.curve([LATER_STEP]).high - fit.curve([LATER_STEP]).low)[0]))
    assert widths[1] > 0.5 * widths[0]


def test_the_formula_may_err_by_a_share_of_the_change_that_as_much_learning_made_before():
    fit = fit_losses(RATES["fixed"], noise=1e-4)
    # 2 x the steps; the formula's error also counts where it expects no change at all.
    past = float(np.subtract(*fit.curve([LAST_STEP / 2, LAST_STEP]).value))
    width = float((fit.curve([2 * LAST_STEP]).high - fit.curve([2 * LAST_STEP]).low)[0])
    assert width >= 2 * 1.6 * FORMULA_ERROR * past
    seen = fit.curve([LAST_STEP / 2])
    assert float((seen.high - seen.low)[0]) < 0.1 * width


def test_noisier_curves_have_wider_intervals():
    widths = [fit_losses(RATES["fixed"], noise=noise).curve([LATER_STEP]) for noise in (0.003, 0.1)]
    assert widths[0].high[0] - widths[0].low[0] < widths[1].high[0] - widths[1].low[0]


@pytest.mark.parametrize("name", RATES)
def test_intervals_grow_with_the_distance(name):
    expected = fit_losses(RATES[name]).curve([LAST_STEP, 25_000, 35_000, 60_000])
    widths = expected.high - expected.low
    assert widths[0] < widths[1] < widths[2] < widths[3]


def test_bleu_rises_and_levels_off():
    schedule = Schedule(RATES["fixed"], NUM_STEPS)
    scores = 30 - 8 * (STEPS / 1_000) ** -0.6
    fit = fit_curve(STEPS, scores, schedule, is_rising=True, bound=100.0)
    assert fit is not None
    expected = fit.curve([10_000, LATER_STEP])
    assert np.all(expected.low <= expected.value)
    assert np.all(expected.value <= expected.high)
    assert expected.value[0] == pytest.approx(30 - 8 * 10**-0.6, abs=0.2)
    assert expected.low[1] <= 30 - 8 * 30**-0.6 <= expected.high[1]
    assert change_of(fit) > 0


def test_no_loss_is_forecast_below_0_and_no_bleu_above_100():
    schedule = Schedule(RATES["fixed"], NUM_STEPS)
    progress = np.sqrt(STEPS / LAST_STEP) + np.random.default_rng(0).normal(0, 0.01, len(STEPS))
    falling = fit_curve(STEPS, 2.0 - 1.9 * progress, schedule, bound=0.0)
    rising = fit_curve(STEPS, 5.0 + 90.0 * progress, schedule, is_rising=True, bound=100.0)
    assert falling is not None
    assert rising is not None
    assert falling.curve([4 * LAST_STEP]).low[0] >= 0
    assert rising.predict([4 * LAST_STEP]).high[0] <= 100


@pytest.mark.parametrize("is_rising", [False, True])
def test_a_constant_curve_stays_where_it_is(is_rising):
    fit = fit_curve(STEPS, np.full(len(STEPS), 2.5), Schedule(RATES["fixed"], NUM_STEPS), is_rising, 100.0 * is_rising)
    assert fit is not None
    assert fit.curve([LATER_STEP]).value[0] == pytest.approx(2.5, abs=1e-4)
    assert change_of(fit) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    "values", [[], [2.0] * (FEWEST_POINTS - 1), [3.0, 2.5, math.nan, 2.2, 2.1, 2.0], [math.inf] * 9]
)
def test_too_few_points_or_no_numbers_are_not_fitted(values):
    steps = range(1_000, 1_000 * (len(values) + 1), 1_000)
    assert fit_curve(list(steps), values, Schedule(RATES["fixed"], NUM_STEPS)) is None


def test_fits_are_deterministic():
    first, second = fit_losses(RATES["cosine"]), fit_losses(RATES["cosine"])
    assert change_of(first) == change_of(second)
    for look in (first.curve, first.predict, second.predict):
        assert look([LATER_STEP]).low[0] == look([LATER_STEP]).low[0]
    assert first.predict([LATER_STEP]).high[0] == second.predict([LATER_STEP]).high[0]


def test_losses_in_other_units_have_the_same_forecast():
    schedule = Schedule(RATES["transformer"], NUM_STEPS)
    losses = losses_by_formula(schedule, 0.5, STEPS)
    in_nats, in_bits = (fit_curve(STEPS, losses * unit, schedule) for unit in (1.0, 1 / math.log(2)))
    assert in_nats is not None
    assert in_bits is not None
    assert change_of(in_bits) * math.log(2) == pytest.approx(change_of(in_nats), rel=0.01)


@settings(max_examples=50)
@given(any_points, any_rate, st.booleans(), st.sampled_from([0.0, 1.0, 100.0]))
def test_any_finite_values_are_fitted_or_none(points, rate, is_rising, bound):
    steps, values = [float(step) for step, _ in points], [value for _, value in points]
    last_step = int(max(steps, default=0))
    fit = fit_curve(steps, values, Schedule(rate, 5 * last_step + 1), is_rising, bound)
    if fit is None:
        return
    assert len(points) >= FEWEST_POINTS
    for expected in (fit.curve([last_step, 2 * last_step]), fit.predict([last_step, 2 * last_step])):
        assert np.all(expected.low <= expected.value)
        assert np.all(expected.value <= expected.high)
