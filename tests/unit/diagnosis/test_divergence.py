"""A loss that rises far and stays high is a divergence; overfitting, noise and spikes are none."""

import numpy as np
import pytest

from dragoman.diagnosis.divergence import FEWEST_LOSSES, find_divergence

STEPS = list(range(100, 4_100, 100))
FALLING = [2.0 + 4.0 * 0.9**number for number in range(40)]


def jump(first: int, height: float, last: int = 40) -> list[float]:
    return [loss + (height if first <= number < last else 0.0) for number, loss in enumerate(FALLING)]


def test_the_last_step_before_the_rise_is_found():
    found = find_divergence(STEPS, jump(25, 5.0))
    assert (found.last_good_step, found.step) == (2_500, 2_600)
    assert found.lowest == pytest.approx(2.3, abs=0.2)
    assert found.last == pytest.approx(7.1, abs=0.1)


@pytest.mark.parametrize(
    "losses",
    [
        FALLING,
        jump(25, 5.0, last=28),  # a spike that was recovered from
        jump(25, 0.8),  # other data
        [2.0 + (3.0 if number % 2 else 0.0) for number in range(40)],
        jump(25, 5.0)[: FEWEST_LOSSES - 1],
        [],
    ],
)
def test_other_curves_are_no_divergence(losses):
    assert find_divergence(STEPS[: len(losses)], losses) is None


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_noise_of_small_batches_is_no_divergence(share):
    random = np.random.default_rng(1)
    for _ in range(200):
        losses = np.array(FALLING) * (1 + share * random.standard_normal(40))
        assert find_divergence(STEPS, losses.tolist()) is None
