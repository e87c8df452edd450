"""Overfitting is found where it is and not claimed elsewhere, on curves with noise over many random seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.overfitting import FEWEST_EVALUATIONS, SIGNIFICANT, find_overfitting

STEPS = np.arange(1_000.0, 30_001, 1_000)
NUM_SEEDS = 200
NOISE = 0.01
FALLING = 1.5 + 2.0 * (STEPS / 1_000) ** -0.7
FLAT = np.maximum(FALLING, FALLING[12])
RISING = FALLING + 0.015 * np.maximum(0.0, STEPS / 1_000 - 12)


def share_called_overfitting(curve: np.ndarray, noise: float = NOISE) -> float:
    found = []
    for seed in range(NUM_SEEDS):
        chance = np.random.default_rng(seed).normal(0, noise, len(curve))
        found.append(find_overfitting(STEPS, curve + chance, None))
    return sum(each is not None and each.is_overfitting for each in found) / NUM_SEEDS


def test_a_falling_loss_is_no_overfitting():
    assert share_called_overfitting(FALLING) <= 0.02


def test_a_flat_loss_is_called_overfitting_no_more_often_than_stated():
    # 5 % is stated; two standard errors of 200 tries are 3 %.
    assert share_called_overfitting(FLAT) <= SIGNIFICANT + 0.03


@pytest.mark.parametrize("noise", [1e-6, NOISE, 2 * NOISE])
def test_a_rising_loss_is_found(noise):
    assert share_called_overfitting(RISING, noise) >= 0.95


def test_a_rise_smaller_than_the_noise_is_not_claimed():
    assert share_called_overfitting(RISING, noise=1.0) <= 0.1


def test_a_loss_that_rose_and_stays_there_is_found_though_its_end_is_flat():
    settled = FALLING[11] + 0.03 * np.clip(STEPS / 1_000 - 12, 0, 5)
    assert share_called_overfitting(np.where(STEPS < 12_000, FALLING, settled)) >= 0.95


def test_correlated_errors_count_less_than_independent_ones():
    trend, places = 0.001 * STEPS / 1_000, np.arange(len(STEPS))
    waves = NOISE * np.sin(places * 2 * np.pi / 10), NOISE * np.sin(places * 2 * np.pi / 2.2)
    correlated, independent = (find_overfitting(STEPS, FALLING, FALLING - trend - wave) for wave in waves)
    assert correlated is not None
    assert independent is not None
    assert independent.is_memorising
    assert not correlated.is_memorising


def test_the_figures_are_those_of_the_curve():
    found = find_overfitting(STEPS, RISING, None)
    assert found is not None
    best = int(np.argmin(RISING))
    assert (found.best_step, found.best_loss) == (STEPS[best], RISING[best])
    assert found.last_loss == RISING[-1]
    assert found.late_slope == pytest.approx((RISING[-1] - RISING[-10]) / 9, rel=0.05)
    assert found.rise_p < 1e-3
    assert (found.gap_p, found.gap_begin, found.gap_end) == (None, None, None)
    assert not found.is_memorising


def test_memorising_is_not_overfitting():
    train = FALLING - 0.01 * STEPS / 1_000 + np.random.default_rng(0).normal(0, NOISE, len(STEPS))
    found = find_overfitting(STEPS, FALLING, train)
    assert found is not None
    assert found.is_memorising
    assert not found.is_overfitting
    # The second half of the run: steps 16,000 to 30,000.
    assert found.gap_begin == pytest.approx(0.16, abs=0.02)
    assert found.gap_end == pytest.approx(0.30, abs=0.02)


def test_a_constant_gap_is_not_memorising():
    noisy = [np.random.default_rng(seed).normal(0.2, NOISE, len(STEPS)) for seed in range(NUM_SEEDS)]
    found = [find_overfitting(STEPS, FALLING, FALLING - gap) for gap in noisy]
    assert sum(each is not None and each.is_memorising for each in found) / NUM_SEEDS <= SIGNIFICANT + 0.05


def test_a_constant_loss_is_neither():
    found = find_overfitting(STEPS, np.full(len(STEPS), 2.0), np.full(len(STEPS), 2.0))
    assert found is not None
    assert not found.is_overfitting
    assert not found.is_memorising
    assert found.late_slope == 0


@pytest.mark.parametrize("number", range(FEWEST_EVALUATIONS))
def test_too_few_evaluations_give_no_result(number):
    assert find_overfitting(STEPS[:number], RISING[:number], None) is None


def test_the_fewest_evaluations_are_enough():
    found = find_overfitting(STEPS[:FEWEST_EVALUATIONS], FALLING[:FEWEST_EVALUATIONS], None)
    assert found is not None
    assert not found.is_overfitting


losses = st.floats(-(2.0**53), 2.0**53) | st.floats(0, 10) | st.sampled_from([0.0, 2.0])


@given(st.lists(st.tuples(st.integers(1, 2**53), losses, losses), max_size=20, unique_by=lambda row: row[0]))
def test_any_losses_give_a_result(rows):
    rows = sorted(rows)
    steps, dev, train = ([row[index] for row in rows] for index in range(3))
    found = find_overfitting(steps, dev, train)
    assert (found is None) == (len(rows) < FEWEST_EVALUATIONS)
    if found is not None:
        assert 0 <= found.rise_p <= 1
        assert found.gap_p is not None
        assert 0 <= found.gap_p <= 1
        assert found.best_loss == min(dev)
        assert math.isfinite(found.late_slope)
