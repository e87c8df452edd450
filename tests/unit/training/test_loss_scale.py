"""Dynamic loss scaling by the seeds' rules."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.training.guard import LossScale


def test_fp16_starts_at_two_to_the_fourteenth():
    assert LossScale.start("fp16") == LossScale(is_dynamic=True, value=16_384.0)


def test_other_precisions_stay_at_one_whatever_happens():
    for precision in ("fp32", "bf16"):
        scale = LossScale.start(precision)
        for is_finite in [False] * 3 + [True] * 2_500 + [False]:
            scale.update(is_finite)
        assert scale == LossScale(is_dynamic=False, value=1.0)


def test_an_overflow_halves_and_is_counted():
    scale = LossScale.start("fp16")
    for num_skipped, value in enumerate((8_192.0, 4_096.0, 2_048.0), start=1):
        scale.update(is_finite=False)
        assert (scale.value, scale.num_skipped_steps) == (value, num_skipped)


def test_two_thousand_good_steps_in_a_row_double():
    scale = LossScale.start("fp16")
    for _ in range(1_999):
        scale.update(is_finite=True)
    assert scale.value == 16_384.0
    scale.update(is_finite=True)
    assert scale.value == 32_768.0
    for _ in range(1_999):
        scale.update(is_finite=True)
    assert scale.value == 32_768.0
    scale.update(is_finite=True)
    assert (scale.value, scale.num_skipped_steps) == (65_536.0, 0)


def test_a_bad_step_starts_the_count_anew():
    scale = LossScale.start("fp16")
    for _ in range(1_999):
        scale.update(is_finite=True)
    scale.update(is_finite=False)
    assert scale.value == 8_192.0
    for _ in range(1_999):
        scale.update(is_finite=True)
    assert scale.value == 8_192.0
    scale.update(is_finite=True)
    assert scale.value == 16_384.0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2_500)), max_size=6))
def test_any_history_follows_the_plain_rule(history):
    scale = LossScale.start("fp16")
    value, num_good, num_skipped = 2.0**14, 0, 0
    for is_finite, num_times in history:
        for _ in range(num_times if is_finite else num_times % 20):
            scale.update(is_finite)
            value, num_good, num_skipped = (
                (value, num_good + 1, num_skipped) if is_finite else (value / 2, 0, num_skipped + 1)
            )
            if num_good == 2_000:
                value, num_good = value * 2, 0
    assert (scale.value, scale.num_skipped_steps) == (value, num_skipped)
