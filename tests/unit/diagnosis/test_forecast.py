"""Forecasts of loss and BLEU after more steps, and where a curve becomes flat."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.forecast import FLAT_GAIN, forecast, round_steps

EVALUATED = list(range(1_000, 20_001, 1_000))


def constant(_: int) -> float:
    return 1e-3


def losses_of(steps: list[int], floor: float = 1.5, power: float = 2.0, exponent: float = 0.5) -> list[float]:
    return [floor + power * (step / 1_000) ** -exponent for step in steps]


def test_loss_falls_and_bleu_rises():
    loss = forecast("loss", EVALUATED, losses_of(EVALUATED), constant)
    bleu = forecast("bleu", EVALUATED, [30 - 10 * (step / 1_000) ** -0.5 for step in EVALUATED], constant)
    assert loss is not None
    assert bleu is not None
    [truth] = losses_of([30_000])
    prospect = loss.after(10_000)
    assert prospect.low <= truth <= prospect.high
    assert prospect.change < 0 < bleu.after(10_000).change
    assert bleu.after(10_000).then == pytest.approx(30 - 10 * 30**-0.5, abs=0.3)


def test_a_prospect_adds_up():
    found = forecast("loss", EVALUATED, losses_of(EVALUATED), constant)
    assert found is not None
    prospect = found.after(5_000)
    assert found.last_step == 20_000
    assert prospect.more_steps == 5_000
    assert prospect.now == pytest.approx(losses_of([20_000])[0], abs=0.01)
    assert prospect.then == pytest.approx(prospect.now + prospect.change)
    assert prospect.low < prospect.then < prospect.high
    assert 0 < prospect.margin < abs(prospect.change)


def test_more_steps_gain_more_but_are_less_certain():
    found = forecast("loss", EVALUATED, losses_of(EVALUATED), constant)
    assert found is not None
    few, many = found.after(2_000), found.after(20_000)
    assert many.change < few.change < 0
    assert many.margin > few.margin


def noisy_scores(noise: float) -> list[float]:
    signs = [1, -1, -1, 1, 1, -1, 1, -1, -1, -1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1]
    return [28 + 0.1 * step / 20_000 + noise * sign for step, sign in zip(EVALUATED, signs, strict=True)]


def test_a_forecast_that_is_much_wider_than_the_change_is_not_useful():
    worthless, useful = (forecast("bleu", EVALUATED, noisy_scores(noise), constant) for noise in (7.0, 0.2))
    assert worthless is not None
    assert useful is not None
    prospect = worthless.after(2_000)
    assert prospect.margin > 5
    assert prospect.is_sound
    assert not prospect.is_useful
    assert prospect.to_json()["is_useful"] is False
    assert not prospect.scaled(0.01).is_useful
    # Its margin is also wider than the change, but it says that nothing much will happen.
    assert useful.after(2_000).margin < 1
    assert useful.after(2_000).is_useful


def test_a_forecast_that_includes_impossible_scores_is_not_sound():
    found = forecast("bleu", EVALUATED, noisy_scores(20.0), constant)
    assert found is not None
    assert found.after(2_000).low < 0
    assert not found.after(2_000).is_sound


def test_a_steep_and_certain_forecast_is_useful():
    found = forecast("loss", EVALUATED, losses_of(EVALUATED), constant)
    assert found is not None
    assert found.after(10_000).is_useful


@pytest.mark.parametrize(("figure", "is_sound"), [("bleu", False), ("teacher_forced_bleu", True)])
def test_nobody_can_foresee_when_bleu_takes_off(figure, is_sound):
    found = forecast(figure, EVALUATED, [2.0 + 0.1 * i for i in range(len(EVALUATED))], constant)
    assert found is not None
    assert found.after(2_000).is_sound == is_sound
    assert found.after(2_000).is_useful <= is_sound


def test_a_learning_rate_that_reaches_zero_ends_learning():
    def ending(step: int) -> float:
        return 1e-3 * max(0.0, 1 - step / 20_000)

    ended = forecast("loss", EVALUATED, losses_of(EVALUATED), ending)
    constant_rate = forecast("loss", EVALUATED, losses_of(EVALUATED), constant)
    assert ended is not None
    assert constant_rate is not None
    assert ended.after(20_000).change == pytest.approx(0, abs=0.01)
    assert constant_rate.after(20_000).change < -0.05


def test_a_steep_curve_is_not_flat_and_one_that_levelled_off_is():
    steep = forecast("loss", EVALUATED, losses_of(EVALUATED), constant)
    level = forecast("loss", EVALUATED, losses_of(EVALUATED, exponent=2.5), constant)
    assert steep is not None
    assert level is not None
    assert not steep.is_flat
    assert steep.flat_from is None or steep.flat_from > 20_000
    assert level.is_flat
    # Where 2 · (s / 1000)^-2.5 falls by less than 0.005 over a tenth more steps.
    assert level.flat_from == pytest.approx(6_000, rel=0.3)


def test_flat_has_other_bounds_for_bleu_than_for_loss():
    values = [5 - 3 * (step / 1_000) ** -0.8 for step in EVALUATED]
    as_loss = forecast("loss", EVALUATED, [10 - value for value in values], constant)
    as_bleu = forecast("bleu", EVALUATED, values, constant)
    assert FLAT_GAIN["loss"] < FLAT_GAIN["bleu"]
    assert as_loss is not None
    assert as_bleu is not None
    assert as_bleu.is_flat
    assert not as_loss.is_flat


def test_the_evaluation_of_an_untrained_model_does_not_count():
    with_step_0 = forecast("bleu", [0, *EVALUATED], [95.0, *losses_of(EVALUATED, 30, -10)], constant)
    without = forecast("bleu", EVALUATED, losses_of(EVALUATED, 30, -10), constant)
    assert with_step_0 is not None
    assert without is not None
    assert with_step_0.after(10_000) == without.after(10_000)


@pytest.mark.parametrize(
    ("steps", "values"),
    [
        ([], []),
        ([0], [9.0]),
        ([0] * 10, [9.0] * 10),
        ([1_000, 2_000, 3_000, 4_000], [4.0, 3.0, 2.5, 2.2]),
        ([0, 1_000, 2_000, 3_000, 4_000], [9.0, 4.0, 3.0, 2.5, 2.2]),
    ],
)
def test_too_few_evaluations_are_no_forecast(steps, values):
    assert forecast("loss", steps, values, constant) is None


@pytest.mark.parametrize(
    ("number", "rounded"),
    [(-5, 1), (0, 1), (0.3, 1), (1, 1), (3, 2), (4, 5), (8, 10), (1_234, 1_000), (17_000, 20_000), (10_630, 10_000)],
)
def test_steps_are_rounded(number, rounded):
    assert round_steps(number) == rounded


@given(st.floats(1, 1e15))
def test_a_round_number_is_near_and_begins_with_one_two_or_five(number):
    rounded = round_steps(number)
    assert 0.5 <= rounded / number <= 2
    assert str(rounded).rstrip("0") in ("1", "2", "5")


@settings(max_examples=60)
@given(
    st.sampled_from(["loss", "bleu", "teacher_forced_bleu"]),
    st.lists(st.tuples(st.integers(0, 2**53), st.floats(-(2**53), 2**53)), max_size=9, unique_by=lambda pair: pair[0]),
    st.sampled_from([constant, lambda _: 0.0, lambda step: step**-0.5 if step else 0.0]),
)
def test_any_evaluations_give_a_forecast_or_none(figure, points, rate):
    points = sorted(points)
    found = forecast(figure, [step for step, _ in points], [value for _, value in points], rate)
    if found is not None:
        prospect = found.after(found.last_step // 2)
        assert all(map(math.isfinite, (prospect.now, prospect.then, prospect.change, prospect.margin)))
        assert prospect.low <= prospect.high
        assert found.flat_from is None or found.flat_from >= 0
