"""A prediction in words: clear units, the largest part first, time and cost of the whole run."""

import pytest

from dragoman.diagnosis.prediction import MeasuredLink, Prediction, predict_from_steps
from dragoman.diagnosis.step_model import BOTTLENECKS, PARTS, Step
from dragoman.diagnosis.wording import (
    BOTTLENECK_WORDS,
    PART_NAMES,
    describe_parts,
    describe_prediction,
    describe_run_length,
    format_step,
    format_steps,
)

PARTS_OF_STEP = {"forward": 1.0, "exposed_communication": 9.0, "other": 0.01}


def make_prediction(*links: MeasuredLink, seconds: float = 10.0) -> Prediction:
    return Prediction(seconds, 0.9 * seconds, 1.2 * seconds, Step(PARTS_OF_STEP), "rehearsal", 2, links)


def test_every_part_and_every_bottleneck_has_words():
    assert set(PART_NAMES) == set(PARTS)
    assert set(BOTTLENECK_WORDS) == {*BOTTLENECKS, "unknown"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.01234, "0.0123 s"), (1.946, "1.95 s"), (29.65, "29.6 s"), (120.0, "120.0 s")]
)
def test_digits_of_step_times(seconds, text):
    assert format_step(seconds) == text


def test_an_interval_of_step_times_has_its_unit_once():
    assert format_steps(0.19, 0.332) == "0.19 to 0.332 s"
    assert format_steps(9.7, 12.34) == "9.7 to 12.3 s"
    assert format_steps(1.0001, 1.0002) == "1 s"


def test_the_largest_part_comes_first_and_tiny_ones_are_left_out():
    assert describe_parts(PARTS_OF_STEP) == "waiting for the network 90%, forward 10%"
    assert describe_parts({"a new part": 1.0}) == "a new part 100%"
    assert describe_parts({}) == describe_parts({"forward": 0.0}) == ""


def test_a_prediction_has_its_interval_and_its_bottleneck():
    first, second = describe_prediction(make_prediction())
    assert first == "Predicted: 10.0 s per step (9 s to 12.0 s), network-bound."
    assert second == "A step: waiting for the network 90%, forward 10%."


def test_links_are_described_in_bytes_and_bits_with_their_claimed_speed():
    slow = MeasuredLink("a", "b", 1.5e-4, 12.5e6, "eth0", "ethernet", 1_000)
    unknown = MeasuredLink("b", "a", 1.5e-4, 12.5e6, retransmitted_share=0.021)
    *_, first, second = describe_prediction(make_prediction(slow, unknown))
    assert first == ("Link a to b: 12.5 MB/s (100 Mbit/s), latency 150 µs, over eth0, which claims 1,000 Mbit/s.")
    assert second.startswith(
        "Link b to a: 12.5 MB/s (100 Mbit/s), latency 150 µs, 2.1% of segments sent again, over an "
    )


def test_first_steps_have_no_parts_and_no_bottleneck():
    [line] = describe_prediction(predict_from_steps([1.0, 1.0], 1))
    assert line.startswith("Predicted: 1 s per step")
    assert line.endswith("not known.")


def test_time_and_cost_of_the_whole_run():
    text = describe_run_length(make_prediction(), 3_600, price_per_hour=2.5)
    assert text.startswith("3,600 steps: 10:00:00, cost 25.00 (9:00:00, cost 22.50 to 12:00:00, cost 30.00)")
    assert "cost" not in describe_run_length(make_prediction(), 3_600, None)
