"""When replicas that learn apart are taken to hurt each other."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dragoman.training.replica_guard import find_harm


def constant_rate(_step: int) -> float:
    return 1e-3


def curve(*steps: int) -> list[tuple[int, float, float]]:
    """Returns evaluations on a smooth curve; the loss of training sentences is a little lower."""
    return [(step, loss := 2.0 + 20.0 * step**-0.4, loss - 0.1) for step in steps]


def test_the_first_evaluation_is_never_harm():
    assert find_harm([], (100, 9.0, 9.0), constant_rate) is None


@given(st.integers(4, 12), st.floats(0.2, 0.6))
def test_a_curve_that_goes_on_falling_is_no_harm(number, exponent):
    losses = [(100 * i, loss := 2.0 + 20.0 * (100 * i) ** -exponent, loss) for i in range(1, number + 1)]
    assert find_harm(losses[:-1], losses[-1], constant_rate) is None


def test_a_loss_far_above_the_curve_is_named_with_what_was_expected():
    *earlier, (step, loss, train_loss) = curve(*range(100, 1_100, 100))
    harm = find_harm(earlier, (step, loss + 1.0, train_loss + 1.0), constant_rate)
    assert harm is not None
    assert f"{loss + 1.0:.3f} instead of" in harm


def test_overfitting_is_not_the_fault_of_replicas():
    *earlier, (step, loss, train_loss) = curve(*range(100, 1_100, 100))
    assert find_harm(earlier, (step, loss + 1.0, train_loss), constant_rate) is None


def test_with_few_evaluations_only_a_clear_rise_counts():
    [first] = curve(100)
    assert find_harm([first], (200, first[1] * 1.01, first[2] * 1.01), constant_rate) is None
    assert "rose" in (find_harm([first], (200, first[1] * 1.1, first[2] * 1.1), constant_rate) or "")


def test_a_loss_that_is_no_number_is_harm():
    assert "nan" in (find_harm(curve(100), (200, math.nan, 1.0), constant_rate) or "")
