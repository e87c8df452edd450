"""The learning rate at any step: by the formula of the settings, or by continuing the records."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.learning_curve import Schedule
from dragoman.report.evidence import read_evidence
from dragoman.report.learning_rates import FEWEST_RATES, LearningRates, learning_rates
from dragoman.run.folder import RunFolder

TRANSFORMER = '[model]\nwidth = 512\n[training]\nschedule = "transformer"\nlearning_rate = 2.0\nwarmup_steps = 8000\n'
STEPS = list(range(1_000, 20_001, 1_000))


def rates_of(
    folder: Path, config: str = "", rates: list[object] | None = None, facts: dict[str, object] | None = None
) -> LearningRates:
    """Returns the rates of a run with these settings that recorded a rate every thousand steps."""
    run = RunFolder(folder)
    run.config.write_text(config)
    records = [
        {"kind": "train", "step": 1_000 * (index + 1), "learning_rate": rate} for index, rate in enumerate(rates or [])
    ]
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    if facts is not None:
        run.imported.write_text(json.dumps({"trainer": "openseq2seq", "facts": facts}))
    return learning_rates(read_evidence(run))


def recorded(formula: Callable[[int], float]) -> list[object]:
    return [formula(step) for step in STEPS]


def test_the_transformer_schedule_peaks_at_the_end_of_warm_up(tmp_path):
    found = rates_of(tmp_path, TRANSFORMER)
    assert found.rate(0) == pytest.approx(1.235e-7, rel=1e-3)
    assert found.rate(7_999) == pytest.approx(9.882e-4, rel=1e-4)
    assert max(range(20_000), key=found.rate) == 7_999
    assert found.rate(31_999) == pytest.approx(9.882e-4 / 2, rel=1e-4)
    assert (found.is_known, found.width, found.assumption) == (True, 512, "")
    assert found.settings is not None
    assert found.settings.warmup_steps == 8_000


def test_other_schedules_need_no_width(tmp_path):
    found = rates_of(
        tmp_path, '[training]\nschedule = "cosine"\nlearning_rate = 1e-3\nwarmup_steps = 0\nmax_steps = 100\n'
    )
    assert (found.rate(0), found.width) == (1e-3, None)
    assert found.rate(50) == pytest.approx(0.5e-3)
    assert found.rate(200) == pytest.approx(0)


def test_the_width_of_an_imported_run_is_taken_from_its_facts(tmp_path):
    config = TRANSFORMER.replace("[model]\nwidth = 512\n", "")
    assert rates_of(tmp_path, config, facts={"width": 512}).rate(7_999) == pytest.approx(9.882e-4, rel=1e-4)


@pytest.mark.parametrize("width", ["512", 0, -512, None])
def test_without_a_valid_width_the_records_are_used(tmp_path, width):
    config = TRANSFORMER.replace("[model]\nwidth = 512\n", "")
    found = rates_of(tmp_path, config, [1e-3] * 10, facts={"width": width})
    assert (found.width, found.settings) == (None, None)
    assert found.rate(5_500) == pytest.approx(1e-3)


def test_deviation_of_recorded_rates_from_the_formula(tmp_path):
    formula = rates_of(tmp_path, TRANSFORMER).rate
    # A record of step s shows the rate of its update, before which s - 1 were made.
    kept = rates_of(tmp_path, TRANSFORMER, recorded(lambda step: formula(step - 1)))
    halved = rates_of(tmp_path, TRANSFORMER, recorded(lambda step: formula(step - 1) / 2))
    assert kept.typical_deviation == pytest.approx(0, abs=1e-9)
    assert halved.typical_deviation == pytest.approx(0.5)
    assert rates_of(tmp_path, TRANSFORMER).typical_deviation is None
    assert rates_of(tmp_path, "", [1e-3] * 10).typical_deviation is None


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (lambda step: 0.05 * step**-0.5, "square root"),
        (lambda step: 1e-3 * (1 - step / 40_000), "linearly"),
        (lambda _: 1e-3, "stay the same"),
        (lambda step: 1e-3 * 0.5 ** (step / 5_000), "stay the same"),
    ],
)
def test_recorded_rates_are_interpolated_and_continued(tmp_path, formula, words):
    found = rates_of(tmp_path, rates=recorded(formula))
    assert found.settings is None
    assert found.is_known
    for step in (1_000, 12_000, 20_000):
        assert found.rate(step) == pytest.approx(formula(step))
    assert words in found.assumption
    later = formula(20_000) if "stay" in words else formula(30_000)
    assert found.rate(30_000) == pytest.approx(later, rel=1e-6)


def test_a_linear_schedule_ends_at_zero(tmp_path):
    assert rates_of(tmp_path, rates=recorded(lambda step: 1e-3 * (1 - step / 40_000))).rate(90_000) == 0


def test_the_shape_after_warm_up_is_recognised(tmp_path):
    found = rates_of(tmp_path, rates=recorded(lambda step: min(step / 4_000, (step / 4_000) ** -0.5)))
    assert "square root" in found.assumption
    assert found.rate(2_500) == pytest.approx(2_500 / 4_000)


def test_with_too_few_recorded_rates_a_constant_is_assumed(tmp_path):
    found = rates_of(tmp_path, rates=[1e-3] * (FEWEST_RATES - 1))
    assert "constant" in found.assumption
    assert found.rate(5) == found.rate(10**9)
    assert found.is_known
    assert not rates_of(tmp_path).is_known


@pytest.mark.parametrize(
    "lines",
    [
        "schedule = 5\nlearning_rate = 1e-3",
        'schedule = "sawtooth"\nlearning_rate = 1e-3',
        'schedule = "fixed"',
        'schedule = "fixed"\nlearning_rate = -1.0',
        'schedule = "piecewise_constant"\nlearning_rate = 1e-3',
        'schedule = "fixed"\nlearning_rate = "1e-3"',
    ],
)
def test_without_valid_settings_the_records_are_used(tmp_path, lines):
    found = rates_of(tmp_path, f"[training]\n{lines}\n", [2e-3] * 10)
    assert found.settings is None
    assert found.rate(3_000) == pytest.approx(2e-3)


def test_keys_of_other_versions_do_not_matter(tmp_path):
    assert (
        rates_of(tmp_path, '[training]\nschedule = "fixed"\nlearning_rate = 1e-3\nnew = 1\nwarmup_steps = 0\n').rate(5)
        == 1e-3
    )


def test_a_rate_that_grows_without_bound_stays_finite(tmp_path):
    growing = 'schedule = "exponential"\nlearning_rate = 1e-3\nwarmup_steps = 0\ndecay_steps = 1\ndecay_rate = 1e300\n'
    found = rates_of(tmp_path, f"[training]\n{growing}")
    assert math.isfinite(found.rate(1_000))
    assert np.all(np.isfinite(Schedule(found.rate, 1_000).learned(np.array([0.0, 1_000.0]))))


numbers = st.floats(0, allow_infinity=False).map(repr) | st.integers(0, 2**63).map(str) | st.floats(1e-6, 3).map(repr)
kinds = ["transformer", "fixed", "exponential", "polynomial", "cosine", "inverse_polynomial"]
keys = ["warmup_steps", "max_steps", "decay_steps", "decay_rate", "decay_power", "maximum_learning_rate"]
tables = st.dictionaries(st.sampled_from(keys), numbers, max_size=4)
recorded_rates = st.lists(st.floats() | st.none() | st.floats(-1, 1) | st.text(max_size=2), max_size=12)


@settings(max_examples=50)
@given(st.sampled_from(kinds), numbers, tables, recorded_rates, st.none() | st.integers(-5, 2**53))
def test_any_settings_and_records_give_a_finite_rate(tmp_path_factory, schedule, peak, table, rates, width):
    config = f'[training]\nschedule = "{schedule}"\nlearning_rate = {peak}\n'
    config += "".join(f"{key} = {value}\n" for key, value in table.items())
    found = rates_of(tmp_path_factory.mktemp("run"), config, rates, facts={"width": width})
    assert all(math.isfinite(found.rate(step)) for step in (0, 1, 5_000, 10**6, 2**53))
    assert np.all(np.isfinite(Schedule(found.rate, 10**6).learned(np.array([0.0, 5e5, 1e6]))))
    assert found.typical_deviation is None or found.typical_deviation >= 0
