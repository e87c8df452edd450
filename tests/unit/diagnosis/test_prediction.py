"""Measurements as JSON and back, a step assembled from them against a simulation, and predictions with intervals."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.prediction import (
    Contention,
    MeasuredLink,
    Measurements,
    Transfer,
    assemble_step,
    predict,
    predict_from_steps,
    transfer_seconds,
)
from dragoman.diagnosis.step_model import BOTTLENECKS
from dragoman.diagnosis.wording import describe_prediction
from dragoman.run.records import MachineLoad

MEGABYTE = 10**6
ALONE = {"data": 0.02, "forward": 0.3, "backward": 0.6, "optimizer": 0.05, "other": 0.03}
RATE = [Transfer(1_000, 0.001), Transfer(100 * MEGABYTE, 10.0)]

durations = st.floats(1e-4, 1e3)
sizes = st.lists(st.integers(1, 10**9), min_size=1, max_size=8, unique=True).map(sorted)
rising_transfers = sizes.flatmap(
    lambda found: st.lists(durations, min_size=len(found), max_size=len(found)).map(
        lambda seconds: [Transfer(*each) for each in zip(found, sorted(seconds), strict=True)]
    )
)
any_seconds = st.floats(0, 1e6)
names = st.text(max_size=8)
tables = st.dictionaries(names, any_seconds, max_size=4)
any_transfers = st.lists(st.builds(Transfer, st.integers(1, 2**40), any_seconds), max_size=4)
any_links = st.builds(
    MeasuredLink, names, names, any_seconds, any_seconds, names, names, st.none() | any_seconds, st.none() | any_seconds
)
measurements = st.builds(
    Measurements,
    st.lists(names, min_size=1, max_size=4),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**40), max_size=4),
    tables,
    st.lists(any_seconds, max_size=4),
    st.lists(any_seconds, max_size=4),
    tables,
    st.lists(any_seconds, max_size=4),
    st.floats(0, 1),
    any_transfers,
    any_transfers,
    st.none() | st.builds(Contention, any_seconds, any_seconds),
    st.lists(any_links, max_size=3),
    st.lists(any_seconds, max_size=4),
    tables,
    any_seconds,
)


def measure(
    buckets: tuple[int, ...] = (MEGABYTE,),
    ready: tuple[float, ...] = (0.1,),
    machines: tuple[str, ...] = ("a", "b"),
    **more: object,
) -> Measurements:
    values = {"alone_parts": dict(ALONE), "alone_steps": [1.0, 1.0], "all_reduce": RATE} | more
    return Measurements(machines, sum(buckets), buckets, bucket_ready=list(ready), **values)


def simulate(buckets: list[float], ready: list[float], slowdown: float, tick: float = 1e-3) -> tuple[float, float]:
    """Exposed and hidden seconds, bucket after bucket; `buckets` are seconds each takes undisturbed."""
    now, hidden, index, left = -max(ready), 0.0, 0, buckets[0]
    while index < len(buckets):
        if now >= -ready[index] - tick / 2:
            left -= tick / (slowdown if now < 0 else 1.0)
            hidden += tick if now < 0 else 0.0
        now += tick
        if left <= 0:
            index += 1
            left = (left + buckets[index]) if index < len(buckets) else 0.0
    return max(0.0, now), hidden


@given(measurements)
def test_measurements_survive_json(measured):
    assert Measurements.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_a_rehearsal_that_has_just_begun_survives_json():
    measured = Measurements(["a", "b"], 400, [400])
    assert Measurements.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_a_link_is_reported_in_bytes_and_bits():
    values = MeasuredLink("a", "b", 1e-4, 12.5e6, "eth0", "ethernet", 1_000).to_json()
    assert values["megabytes_per_second"] == pytest.approx(12.5)
    assert values["megabits_per_second"] == pytest.approx(100)
    assert (values["from"], values["to"], values["interface"]) == ("a", "b", "eth0")
    assert values["claimed_megabits_per_second"] == 1_000
    assert values["retransmitted_share"] is None


@pytest.mark.parametrize(
    ("machines", "is_interleaved"),
    [("a", False), ("aa", False), ("ab", False), ("aabb", False), ("abab", True), ("aba", True), ("aabbccb", True)],
)
def test_ranks_that_lie_machine_by_machine_are_not_interleaved(machines, is_interleaved):
    assert Measurements(list(machines), 0, []).is_interleaved == is_interleaved


def test_machines_are_named_once_in_the_order_of_ranks():
    assert Measurements(["b", "b", "a", "b"], 0, []).machine_names == ["b", "a"]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50)), min_size=1, max_size=5),
    st.sampled_from([1.0, 1.25, 2.0]),
)
def test_exchange_agrees_with_a_simulation_in_small_time_steps(drawn, slowdown):
    """A bucket of n MB takes n times ten milliseconds."""
    buckets = [num * MEGABYTE for num, _ in drawn]
    ready = sorted((moment / 100 for _, moment in drawn), reverse=True)
    transfers = [Transfer(MEGABYTE, 0.01), Transfer(100 * MEGABYTE, 1.0)]
    measured = measure(
        tuple(buckets),
        tuple(ready),
        all_reduce=transfers,
        alone_parts={"backward": 0.6},
        alone_steps=[0.6],
        contention=Contention(1.0, slowdown),
    )
    parts = assemble_step(measured).parts
    exposed, hidden = simulate([size / MEGABYTE / 100 for size in buckets], ready, slowdown)
    tolerance = 0.003 * (len(buckets) + 1)
    assert parts["exposed_communication"] == pytest.approx(exposed, abs=tolerance)
    assert parts["hidden_communication"] == pytest.approx(hidden, abs=tolerance)


def test_exchange_by_hand():
    """Buckets of 0.1 s each, ready 0.15 and 0.12 s before the end: the second starts at -0.05 and ends at 0.05."""
    transfers = [Transfer(MEGABYTE, 0.1), Transfer(2 * MEGABYTE, 0.2)]
    parts = assemble_step(measure((MEGABYTE, MEGABYTE), (0.15, 0.12), all_reduce=transfers)).parts
    assert parts["exposed_communication"] == pytest.approx(0.05)
    assert parts["hidden_communication"] == pytest.approx(0.15)
    assert parts["backward"] == pytest.approx(0.45)
    assert sum(parts.values()) == pytest.approx(1.05)


def test_computing_that_is_slowed_by_sending_takes_longer_and_hides_more():
    transfers = [Transfer(MEGABYTE, 0.2), Transfer(2 * MEGABYTE, 0.4)]
    parts = assemble_step(measure(ready=(0.1,), all_reduce=transfers, contention=Contention(1.5, 1.0))).parts
    assert parts["hidden_communication"] == pytest.approx(0.15)
    assert parts["exposed_communication"] == pytest.approx(0.05)
    assert sum(parts.values()) == pytest.approx(1.1)


def test_one_worker_exchanges_nothing():
    parts = assemble_step(measure(machines=("a",))).parts
    assert parts["exposed_communication"] == parts["hidden_communication"] == 0
    assert sum(parts.values()) == pytest.approx(1.0)


def test_the_slowest_rank_makes_the_others_wait():
    parts = assemble_step(measure(machines=("a",), alone_steps=[1.4, 1.6])).parts
    assert parts["straggler"] == pytest.approx(0.5)


def test_a_rehearsal_cut_short_before_any_exchange_predicts_computing():
    assert predict(measure(all_reduce=[])).seconds == pytest.approx(1.0)


def test_measured_sizes_take_the_measured_time():
    transfers = [Transfer(100, 1.0), Transfer(200, 3.0), Transfer(400, 4.0)]
    for each in transfers:
        assert transfer_seconds(transfers, each.num_bytes) == pytest.approx(each.seconds)
    assert transfer_seconds(transfers, 150) == pytest.approx(2.0)
    assert transfer_seconds(transfers, 1) == 1.0


def test_beyond_the_largest_the_last_rate_holds():
    assert transfer_seconds([Transfer(100, 1.0), Transfer(200, 3.0)], 400) == pytest.approx(7.0)
    assert transfer_seconds([Transfer(100, 1.0)], 400) == pytest.approx(4.0)


def test_a_hiccup_at_the_smaller_size_does_not_make_larger_ones_free():
    assert transfer_seconds([Transfer(100, 5.0), Transfer(200, 4.0)], 400) == pytest.approx(4.0 + 200 * 0.5 * 0.02)


@given(rising_transfers, st.lists(st.floats(0, 4e9), min_size=2, max_size=20).map(sorted))
def test_more_bytes_never_take_less_time(transfers, wanted):
    found = [transfer_seconds(transfers, size) for size in wanted]
    assert all(small <= large * (1 + 1e-9) for small, large in pairwise(found))


@given(
    st.lists(durations, max_size=6),
    st.lists(durations, min_size=1, max_size=6),
    st.dictionaries(st.sampled_from([*ALONE, "straggler", "evaluation"]), durations, min_size=1),
    rising_transfers,
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 10)), max_size=5),
)
def test_every_prediction_lies_in_its_interval_and_its_parts_add_up(steps, alone_steps, alone, transfers, buckets):
    measured = measure(
        tuple(size for size, _ in buckets),
        tuple(moment for _, moment in buckets),
        all_reduce=transfers,
        alone_parts=alone,
        alone_steps=alone_steps,
        steps=steps,
    )
    prediction = predict(measured)
    assert 0 < prediction.low < prediction.seconds < prediction.high
    assert sum(prediction.parts.values()) == pytest.approx(prediction.seconds)
    assert prediction.bottleneck in BOTTLENECKS
    assert all(seconds >= -1e-9 for seconds in prediction.parts.values())


def test_complete_steps_count_more_than_assembled_ones():
    assembled = predict(measure(ready=(1.0,))).seconds
    few = predict(measure(ready=(1.0,), steps=[2.0] * 3))
    assert few.seconds == pytest.approx((3 * 2.0 + assembled) / 4)
    many = predict(measure(ready=(1.0,), steps=[2.0] * 9, step_parts={"forward": 1.0, "backward": 3.0}))
    assert many.seconds == pytest.approx(2.0)
    assert many.parts["forward"] == pytest.approx(many.seconds / 4)


def test_a_step_that_was_disturbed_counts_as_half_as_long_again_at_most():
    prediction = predict(measure(ready=(1.0,), steps=[2.0] * 9 + [20.0]))
    assert prediction.seconds == pytest.approx((9 * 2.0 + 3.0) / 10)


def test_few_and_uneven_steps_make_a_wide_interval():
    def width(steps: list[float]) -> float:
        prediction = predict(measure(ready=(1.0,), steps=steps))
        return prediction.high / prediction.low

    assert width([1.0] * 10) < width([0.8, 1.2] * 5) < width([0.8, 1.2, 1.0])
    assert width([1.0] * 10) < width([])


def test_a_slow_link_is_the_bottleneck():
    prediction = predict(measure((100 * MEGABYTE,), (0.2,)))
    assert prediction.bottleneck == "network"
    assert prediction.seconds == pytest.approx(1.0 + 10.0 - 0.2)


def test_first_steps_predict_their_mean_and_no_bottleneck():
    prediction = predict_from_steps([1.0, 2.0, 3.0], 4)
    assert prediction.low < prediction.seconds < prediction.high
    assert prediction.seconds == pytest.approx(2.0)
    assert (prediction.bottleneck, prediction.parts, prediction.num_workers) == ("unknown", {}, 4)


@given(st.lists(durations, min_size=1, max_size=20))
def test_first_steps_lie_in_their_interval(steps):
    prediction = predict_from_steps(steps, 1)
    assert prediction.low < prediction.seconds < prediction.high


BUSY = MachineLoad(host="a", num_cores=2, own_cores=1.0, other_cores=1.0, waiting_threads=1.0)


def test_a_prediction_beside_busy_programs_says_so_and_may_be_too_long():
    quiet, busy = (predict_from_steps([2.0] * 10, 1, loads) for loads in ([], [BUSY]))
    assert quiet.other_load == ""
    assert busy.other_load == "other programs used 1.0 of 2 cores on a"
    assert busy.low < 1.0 < quiet.low
    assert busy.high > quiet.high
    assert "This is uncertain: other programs used 1.0 of 2 cores on a while it was measured." in describe_prediction(
        busy
    )


def test_load_does_not_lengthen_the_wait_for_the_network():
    """Nine tenths of the step are the network's: others can change the rest only."""
    parts = {"forward": 0.2, "exposed_communication": 1.8}
    values = {"steps": [2.0] * 6, "step_parts": parts, "work_by_rank": [0.2, 0.2]}
    both = [BUSY, BUSY.model_copy(update={"host": "b"})]
    quiet, busy = (predict(measure(**values, loads=loads)) for loads in ([], both))
    assert quiet.high < busy.high < quiet.high + 0.2
    assert quiet.low - 0.2 < busy.low < quiet.low


loads = st.builds(
    MachineLoad,
    host=st.sampled_from(["a", "b"]),
    num_cores=st.integers(1, 64),
    own_cores=st.floats(0, 64),
    other_cores=st.floats(0, 64),
    stolen_cores=st.floats(0, 64),
    waiting_threads=st.none() | st.floats(0, 64),
)


@given(
    st.lists(durations, min_size=1, max_size=8),
    st.lists(loads, max_size=3),
    st.floats(1, 10),
    st.floats(0, 1),
    st.booleans(),
)
def test_the_interval_holds_the_prediction_and_grows_with_the_load_of_others(steps, seen, growth, waiting, has_parts):
    def interval(found: list[MachineLoad]) -> tuple[float, float]:
        if has_parts:
            parts = {"forward": 1 - waiting, "exposed_communication": waiting}
            prediction = predict(measure(steps=steps, step_parts=parts, alone_steps=steps, loads=found))
        else:
            prediction = predict_from_steps(steps, 2, found)
        assert 0 < prediction.low <= prediction.seconds * (1 + 1e-9)
        assert prediction.seconds <= prediction.high * (1 + 1e-9)
        return prediction.low, prediction.high

    # Stolen time is shared with the others, so more of them leave less of it to the run: they grow alone.
    seen = [load.model_copy(update={"stolen_cores": 0.0}) for load in seen]
    low, high = interval(seen)
    for name in ("other_cores", "stolen_cores"):
        grown = [load.model_copy(update={name: growth * (getattr(load, name) or 1.0)}) for load in seen]
        grown_low, grown_high = interval(grown)
        assert grown_low <= low * (1 + 1e-9)
        assert grown_high >= high * (1 - 1e-9)
    none_low, none_high = interval([])
    assert low <= none_low * (1 + 1e-9)
    assert high >= none_high * (1 - 1e-9)


def test_the_interval_holds_a_busy_machine_that_becomes_idle_and_one_that_becomes_busier():
    """Two cores of which others had one: alone, steps take half as long; with half a program more, a sixth longer."""
    prediction = predict_from_steps([2.0] * 10, 1, [BUSY])
    assert prediction.low < 1.0
    assert prediction.high > 2.0 * 7 / 6


def test_a_rehearsal_beside_busy_programs_names_them_as_the_cause():
    parts = {
        "machines": ("a",),
        "buckets": (),
        "ready": (),
        "steps": [2.0] * 6,
        "work_by_rank": [2.0],
        "fixed_share": 0.9,
    }
    assert predict(measure(**parts)).bottleneck == "overhead"
    prediction = predict(measure(**parts, loads=[BUSY]))
    assert prediction.bottleneck == "other_programs"
    assert prediction.to_json()["other_load"] == "other programs used 1.0 of 2 cores on a"
    assert Measurements.from_json(json.loads(json.dumps(measure(**parts, loads=[BUSY]).to_json()))).loads == [BUSY]


def test_a_disturbed_first_step_does_not_set_the_prediction():
    assert predict_from_steps([1.0] * 9 + [200.0], 1).seconds == pytest.approx(1.05)


def test_the_record_has_the_names_of_the_contract():
    link = MeasuredLink("a", "b", 1e-4, 12.5e6, "eth0", "ethernet", 1_000)
    values = json.loads(json.dumps(predict(measure(links=[link])).to_json()))
    assert set(values) >= {"seconds_per_step", "parts", "bottleneck", "links", "advice", "problems", "basis", "workers"}
    assert set(values["seconds_per_step"]) == {"predicted", "low", "high"}
    assert values["links"][0]["megabits_per_second"] == pytest.approx(100)
    assert (values["basis"], values["workers"]) == ("rehearsal", 2)
