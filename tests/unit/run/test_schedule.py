"""Learning rates: the figures of OpenSeq2Seq, golden tables for every policy, and properties of all of them."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman.run.config import TrainingSettings
from dragoman.run.schedule import Rate, build_schedule, lower_at_plateaus

POLICIES = [
    "transformer",
    "fixed",
    "piecewise_constant",
    "exponential",
    "polynomial",
    "cosine",
    "inverse_polynomial",
    "plateau",
]


def build(width: int = 512, **values: object) -> Rate:
    return build_schedule(TrainingSettings(**values), width)


def test_the_seeds_schedule_has_the_seeds_rates():
    rate = build(learning_rate=2.0, warmup_steps=8_000, schedule="transformer")
    assert rate(0) == pytest.approx(1.235e-7, rel=1e-3)
    assert rate(7_999) == pytest.approx(9.882e-4, rel=1e-3)
    assert max(range(20_000), key=rate) == 7_999
    assert rate(31_999) == pytest.approx(rate(7_999) / 2, rel=1e-9)  # four times the steps, half the rate


@pytest.mark.parametrize("width", [128, 512, 1024])
def test_the_seeds_schedule_falls_with_the_root_of_the_width(width):
    assert build(width)(7_999) == pytest.approx(2.0 * width**-0.5 * 8_000**-0.5, rel=1e-9)


def test_the_cap_cuts_the_peak_and_nothing_else():
    free, capped = build(), build(maximum_learning_rate=5e-4)
    for step in (0, 100, 3_000, 7_999, 20_000, 100_000):
        assert capped(step) == min(free(step), 5e-4)
    assert capped(7_999) == 5e-4


@pytest.mark.parametrize("schedule", ["cosine", "polynomial", "exponential", "inverse_polynomial"])
def test_a_decay_follows_the_text_seen_where_the_batch_grows(schedule):
    shared = {"schedule": schedule, "learning_rate": 1.0, "warmup_steps": 0, "global_batch_tokens": 4_096}
    # 40 quarter steps and 40 half ones are 30 full ones; 70 more make 100.
    growing = build(max_steps=150, initial_batch_tokens=1_024, batch_doubling_steps=40, **shared)
    constant = build(max_steps=100, **shared)
    for step, full_steps in ((0, 0), (40, 10), (80, 30), (115, 65), (150, 100), (170, 120)):
        assert growing(step) == pytest.approx(constant(full_steps))


def test_plateaus_lower_the_rate_down_to_the_minimum_and_never_raise_it():
    settings = TrainingSettings(schedule="plateau", learning_rate=1e-3, decay_rate=0.5, minimum_learning_rate=3e-4)
    assert [lower_at_plateaus(1e-3, cuts, settings) for cuts in range(4)] == [1e-3, 5e-4, 3e-4, 3e-4]
    assert lower_at_plateaus(1e-5, 2, settings) == 1e-5  # still warming up
    assert lower_at_plateaus(1e-3, 2, TrainingSettings()) == 1e-3  # another schedule


GOLDEN = [
    ("plateau", {"warmup_steps": 4}, {0: 0.25, 3: 1.0, 99: 1.0}),
    ("fixed", {}, {0: 1.0, 7: 1.0, 10_000: 1.0}),
    ("fixed", {"warmup_steps": 4}, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 99: 1.0}),
    (
        "piecewise_constant",
        {"boundaries": (10, 20), "multipliers": (0.5, 0.1)},
        {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.1, 1_000: 0.1},
    ),
    (
        "piecewise_constant",
        {"boundaries": (10, 20), "multipliers": (0.5, 0.1), "warmup_steps": 4},
        {0: 0.25, 3: 1.0, 9: 1.0, 10: 0.5, 20: 0.1},
    ),
    ("exponential", {"decay_steps": 10, "decay_rate": 0.5}, {0: 1.0, 5: 0.5**0.5, 10: 0.5, 30: 0.125}),
    (
        "exponential",
        {"decay_steps": 10, "decay_rate": 0.5, "warmup_steps": 4},
        {0: 0.25, 3: 1.0, 4: 1.0, 14: 0.5, 34: 0.125},
    ),
    ("polynomial", {"decay_steps": 10}, {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0, 50: 0.0}),
    ("polynomial", {"decay_steps": 10, "decay_power": 2.0}, {0: 1.0, 5: 0.25, 10: 0.0}),
    (
        "polynomial",
        {"decay_steps": 10, "minimum_learning_rate": 0.2, "warmup_steps": 4},
        {0: 0.25, 3: 1.0, 4: 1.0, 9: 0.6, 14: 0.2, 90: 0.2},
    ),
    ("polynomial", {"max_steps": 14, "warmup_steps": 4}, {4: 1.0, 9: 0.5, 14: 0.0}),
    ("cosine", {"decay_steps": 12}, {0: 1.0, 4: 0.75, 6: 0.5, 8: 0.25, 12: 0.0, 60: 0.0}),
    (
        "cosine",
        {"decay_steps": 12, "minimum_learning_rate": 0.2, "warmup_steps": 4},
        {0: 0.25, 3: 1.0, 4: 1.0, 10: 0.6, 16: 0.2, 90: 0.2},
    ),
    ("cosine", {"max_steps": 16, "warmup_steps": 4}, {4: 1.0, 10: 0.5, 16: 0.0}),
    ("inverse_polynomial", {"decay_steps": 10}, {0: 1.0, 10: 0.5, 30: 0.25}),
    ("inverse_polynomial", {"decay_steps": 10, "decay_power": 0.5, "warmup_steps": 4}, {0: 0.25, 4: 1.0, 34: 0.5}),
]


@pytest.mark.parametrize(("policy", "values", "table"), GOLDEN)
def test_golden_tables(policy, values, table):
    rate = build(**{"schedule": policy, "learning_rate": 1.0, "warmup_steps": 0} | values)
    assert {step: rate(step) for step in table} == pytest.approx(table, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("policy", "values", "table"), GOLDEN)
def test_rates_are_in_proportion_to_the_setting(policy, values, table):
    if "minimum_learning_rate" in values:
        values = values | {"minimum_learning_rate": 3e-4 * values["minimum_learning_rate"]}
    rate = build(**{"schedule": policy, "learning_rate": 3e-4, "warmup_steps": 0} | values)
    assert {step: rate(step) for step in table} == pytest.approx({s: 3e-4 * r for s, r in table.items()}, abs=1e-15)


def test_every_policy_of_the_seeds_is_in_the_golden_tables():
    assert {policy for policy, _, _ in GOLDEN} | {"transformer"} == set(POLICIES)


some_settings = st.builds(
    lambda policy, peak, warmup, decay_steps, power, max_steps: TrainingSettings(
        schedule=policy,
        learning_rate=peak,
        warmup_steps=max(warmup, int(policy == "transformer")),
        decay_steps=decay_steps,
        decay_power=power,
        max_steps=max_steps,
        boundaries=(1_001, 2_000),
        multipliers=(0.5, 2.0),
    ),
    st.sampled_from(POLICIES),
    st.floats(1e-6, 10),
    st.integers(0, 1_000),
    st.none() | st.integers(1, 5_000),
    st.floats(0.1, 4),
    st.integers(1, 5_000),
)


@given(some_settings, st.integers(0, 10**7))
def test_no_rate_is_negative_or_above_its_peak(settings, step):
    rate = build_schedule(settings, 512)(step)
    highest = 2.0 if settings.schedule == "piecewise_constant" else 1.0  # its largest multiplier
    assert 0 <= rate <= highest * settings.learning_rate


@given(some_settings)
def test_warm_up_rises_at_every_step(settings):
    assume(settings.warmup_steps > 1)
    rate = build_schedule(settings, 512)
    rates = [rate(step) for step in range(settings.warmup_steps)]
    assert rates[0] > 0
    assert all(before < after for before, after in pairwise(rates))


@given(some_settings)
def test_after_warm_up_no_policy_but_the_piecewise_one_rises(settings):
    assume(settings.schedule != "piecewise_constant")
    rate = build_schedule(settings, 512)
    rates = [rate(step) for step in range(max(settings.warmup_steps - 1, 0), settings.warmup_steps + 3_000, 37)]
    assert all(before >= after for before, after in pairwise(rates))


@given(some_settings, st.floats(1e-9, 1), st.integers(0, 10**5))
def test_the_cap_holds_for_every_policy(settings, cap, step):
    capped = settings.model_copy(update={"maximum_learning_rate": cap})
    assert build_schedule(capped, 512)(step) == min(build_schedule(settings, 512)(step), cap)
