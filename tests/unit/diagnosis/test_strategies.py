"""Estimates of ways to synchronise: physics that always holds, and what `auto` takes on slow and on fast links."""

import json
import re
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_advice import GRADIENT_BYTES, SLOW, cluster

from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.wire_formats import wire_format
from dragoman.diagnosis.prediction import Contention, Measurements, assemble_step, predict
from dragoman.diagnosis.slow_network import WaitingStep, describe_local_updates, seconds_with_local_updates
from dragoman.diagnosis.strategies import (
    QUALITY_COST,
    WANTED_SPEED,
    StrategyEstimate,
    choose_strategy,
    compare_strategies,
    estimate_plan,
    estimate_strategies,
    predict_as_configured,
    predict_with,
    quality_cost,
    strategy_advice,
)
from dragoman.diagnosis.strategy_model import (
    STREAMED_INTERVALS,
    WAITED_INTERVALS,
    broadcast_share,
    overlap_with_steps,
    payload_sizes,
    place_replicas,
)
from dragoman.run.config import Settings
from dragoman.run.synchronisation import Synchronisation, is_allowed

UNLIMITED = 1e12
ENCODING = {"fp32": 0.01, "fp16": 0.02, "bf16": 0.02, "int8": 0.04, "int4": 0.05, "powersgd": 0.05}
LOCAL = Synchronisation("local", 2, 16, 64, wire="int8", overlap=True)

rates = st.floats(1e5, 1e10)
seconds = st.floats(0.0, 1e4)
slowdowns = st.floats(1.0, 2.0)
contentions = st.none() | st.builds(Contention, slowdowns, slowdowns)
plans = st.sampled_from(
    [
        Synchronisation(),
        Synchronisation("hierarchical"),
        *(Synchronisation(name, 2, wire=name) for name in ("fp16", "bf16", "int8", "powersgd")),
        *(replace(LOCAL, interval=each, max_interval=each) for each in (1, 4, 64)),
        replace(LOCAL, fragments=4),
        replace(LOCAL, overlap=False, wire="fp32"),
    ]
)


def settings_of(max_steps: int = 50_000, virtual_workers: int = 4, **own: object) -> Settings:
    training = {"max_steps": max_steps, "virtual_workers": virtual_workers}
    return Settings.model_validate({"data": {"prepared": "x"}, "training": training, "synchronisation": own})


def measure(rate: float = SLOW, machines: str = "aabb", **more: object) -> Measurements:
    values = {"payload_bytes": {"powersgd": 5_400_000}, "encoding_seconds": ENCODING} | more
    return cluster(rate, machines, **values)


def by_name(measured: Measurements, **own: object) -> dict[tuple[str, int], StrategyEstimate]:
    found = estimate_strategies(measured, settings_of(**own))
    return {(_name_of(each.plan), each.plan.interval): each for each in found}


def _name_of(plan: Synchronisation) -> str:
    return "streamed" if plan.is_streamed else plan.strategy


def computing_of(measured: Measurements) -> float:
    return assemble_step(measured, measured.all_reduce_inside).seconds


# Physics


@given(rates, rates, plans, contentions)
def test_a_faster_link_is_never_slower(first, second, plan, contention):
    slow, fast = (
        estimate_plan(measure(rate, contention=contention), settings_of(), plan).seconds
        for rate in sorted([first, second])
    )
    assert fast <= slow * (1 + 1e-9)


@given(rates, plans, st.integers(2, 50))
def test_more_bytes_are_never_faster(rate, plan, factor):
    sizes = payload_sizes(GRADIENT_BYTES, {"powersgd": 5_400_000})
    small = estimate_plan(measure(rate, payload_bytes=sizes), settings_of(), plan)
    large = estimate_plan(
        measure(rate, payload_bytes={name: factor * size for name, size in sizes.items()}), settings_of(), plan
    )
    assert small.seconds <= large.seconds * (1 + 1e-9)
    assert small.bytes_per_host_and_step <= large.bytes_per_host_and_step


@given(rates, st.sampled_from(WAITED_INTERVALS), st.sampled_from([1, 2, 4]), contentions)
def test_overlap_is_never_slower_than_waiting(rate, interval, fragments, contention):
    measured = measure(rate, contention=contention)
    plan = replace(LOCAL, interval=interval, max_interval=interval, fragments=fragments)
    waiting = estimate_plan(measured, settings_of(), replace(plan, overlap=False))
    assert estimate_plan(measured, settings_of(), plan).seconds <= waiting.seconds * (1 + 1e-9)


@given(seconds, seconds, slowdowns, slowdowns)
def test_steps_with_an_exchange_take_as_long_as_both_at_most_and_as_the_longer_at_least(own, travel, compute, sending):
    found = overlap_with_steps(own, travel, compute, sending)
    assert found <= own + travel + 1e-9
    assert found >= max(own, travel) * (1 - 1e-9)


@given(seconds, st.tuples(seconds, seconds), slowdowns, slowdowns)
def test_a_longer_exchange_never_ends_earlier(own, travels, compute, sending):
    short, long = (overlap_with_steps(own, travel, compute, sending) for travel in sorted(travels))
    assert short <= long + 1e-6 * (1 + long)


def test_an_exchange_that_fits_into_the_steps_costs_nothing_without_contention():
    assert overlap_with_steps(10.0, 9.0) == 10.0
    assert overlap_with_steps(10.0, 13.0) == 13.0
    assert overlap_with_steps(10.0, 5.0, compute_slowdown=1.2) == pytest.approx(11.0)


@given(rates, plans, contentions)
def test_no_strategy_takes_less_than_computing_and_its_interval_holds_it(rate, plan, contention):
    measured = measure(rate, contention=contention)
    found = estimate_plan(measured, settings_of(), plan)
    assert found.seconds >= sum(measured.alone_parts.values()) * (1 - 1e-9)
    assert found.low < found.seconds < found.high


def test_bytes_of_two_machines_with_two_ranks_each():
    found = by_name(measure())
    megabytes = {name: found[name, 1].bytes_per_host_and_step / 1e6 for name in ("every_step", "hierarchical", "fp16")}
    assert megabytes == pytest.approx({"every_step": 365.3, "hierarchical": 243.5, "fp16": 121.8}, abs=0.1)
    assert found["int8", 1].bytes_per_host_and_step == pytest.approx(GRADIENT_BYTES / 4 * 260 / 256)
    assert found["local", 16].bytes_per_host_and_step == pytest.approx(GRADIENT_BYTES / 4 * 132 / 256 / 16)


def test_seconds_of_two_machines_at_100_megabits():
    found = by_name(measure())
    assert found["every_step", 1].seconds == predict(measure()).seconds
    sent = GRADIENT_BYTES / SLOW
    assert found["hierarchical", 1].seconds == pytest.approx(sent + computing_of(measure()), rel=0.01)
    assert found["fp16", 1].seconds == pytest.approx(sent / 2 + computing_of(measure()), rel=0.02)
    travel = found["streamed", 1].bytes_per_host_and_step / SLOW
    assert found["streamed", 1].seconds == pytest.approx(travel, rel=0.05)  # longer than the step it overlaps with
    assert found["streamed", 8].seconds == pytest.approx(computing_of(measure()), rel=0.05)  # hidden
    assert found["streamed", 8].bytes_per_host_and_step == pytest.approx(travel * SLOW / 8, rel=0.01)
    for interval in (16, 64):  # waited for
        assert found["local", interval].seconds == pytest.approx(computing_of(measure()) + travel / interval, rel=0.05)


def test_the_gather_of_many_machines_grows_with_their_number():
    two, eight = by_name(measure(machines="ab")), by_name(measure(machines="abcdefgh"), virtual_workers=8)
    ratio = eight["int8", 1].bytes_per_host_and_step / two["int8", 1].bytes_per_host_and_step
    assert ratio == pytest.approx(7)
    assert eight["hierarchical", 1].bytes_per_host_and_step == pytest.approx(2 * 7 / 8 * GRADIENT_BYTES)


def test_a_replica_that_spans_machines_waits_for_its_own_sums():
    apart = by_name(measure(machines="abcd"))["local", 64]
    spanning = by_name(measure(machines="abcd"), replicas=2)["local", 64]
    assert apart.plan.replicas == 4
    assert spanning.seconds > 10 * apart.seconds
    assert spanning.bytes_per_host_and_step > 10 * apart.bytes_per_host_and_step


def test_a_rank_with_two_replicas_updates_weights_twice():
    one, two = (by_name(measure(UNLIMITED, machines="ab"), replicas=number)["local", 256] for number in (2, 4))
    assert two.seconds - one.seconds == pytest.approx(0.08, rel=0.05)


@given(st.text("ab", min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 4))
def test_places_are_those_of_the_run(machines, num_replicas, width):
    layout = ReplicaLayout.of_run(num_replicas * width, num_replicas, len(machines))
    places = place_replicas(machines, num_replicas * width, num_replicas)
    assert places.num_leaders == len(set(layout.leaders))
    assert places.most_led == max(len(layout.led_by(rank)) for rank in range(len(machines)))
    assert places.replicas_of_rank == max(len(layout.own(rank)) for rank in range(len(machines)))
    assert places.ranks_of_replica == max(map(len, layout.ranks))


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "int8"])
def test_payloads_are_as_large_as_those_that_are_sent(name):
    assert payload_sizes(4 * 10**6)[name] == pytest.approx(wire_format(name).num_bytes(10**6), rel=1e-3)


def test_a_broadcast_to_one_other_rank_takes_as_long_as_an_all_reduce():
    assert [broadcast_share(number) for number in (1, 2, 4)] == pytest.approx([0.0, 1.0, 4 / 3])


# What is estimated


def test_all_strategies_are_estimated_and_fit_into_json():
    found = estimate_strategies(measure(), settings_of())
    assert {each.plan.strategy for each in found} == set(QUALITY_COST)
    assert [json.loads(json.dumps(each.to_json())) for each in found] == [asdict(each) for each in found]


def test_old_measurements_have_no_payloads():
    values = measure().to_json()
    del values["payload_bytes"], values["encoding_seconds"]
    found = by_name(Measurements.from_json(values))
    assert ("int8", 1) in found
    assert ("powersgd", 1) not in found  # its bytes depend on the shapes of matrices


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"virtual_workers": 1}, {"fp16", "bf16", "int8", "powersgd", "local", "diloco"}),
        ({"replicas": 1}, {"fp16", "bf16", "int8", "powersgd", "local", "diloco"}),
    ],
)
def test_a_run_with_one_replica_can_only_sum_exactly(changes, missing):
    assert {name for name, _ in by_name(measure(), **changes)} == set(QUALITY_COST) - missing


@pytest.mark.parametrize("own", [{"replicas": 16}, {"replicas": 3}, {"strategy": "hierarchical", "replicas": 16}])
def test_a_number_of_replicas_that_is_refused_is_never_estimated(own):
    """A run that sums exactly may have one, as it does not use it."""
    assert {name for name, _ in by_name(measure(), **own)} == {"every_step", "hierarchical"}
    assert predict_as_configured(measure(), settings_of(**own)).seconds > 0


def half_precision() -> Settings:
    own = settings_of()
    return own.model_copy(update={"training": own.training.model_copy(update={"precision": "fp16"})})


@pytest.mark.parametrize("rate", [1e6, SLOW, UNLIMITED])
def test_every_option_that_is_advised_is_accepted(rate):
    measured, half = measure(rate), half_precision()
    choice = compare_strategies(measured, half)
    words = " ".join([*strategy_advice(measured, half), choice.lines()[-1]])
    options = set(re.findall(r"--sync (\w+)", words))
    assert options
    assert {name for name in options if not is_allowed(name, half)} == set()


def test_local_updates_are_not_proposed_where_they_are_refused():
    half = half_precision()
    assert not any(each.plan.is_local for each in estimate_strategies(measure(), half))
    assert not choose_strategy(measure(), half).is_local


@given(st.sampled_from(["local", "diloco"]), st.integers(1, 2_000), st.integers(1, 2_000))
def test_quality_falls_as_the_interval_grows(strategy, first, second):
    short, long = (quality_cost(Synchronisation(strategy, 2, each, each)) for each in sorted([first, second]))
    assert 0 <= short <= long


def test_first_steps_together_count_in_the_mean_of_the_run():
    plan = replace(LOCAL, together_steps=5_000)
    found = estimate_plan(measure(), settings_of(), plan)
    exact = predict(measure()).seconds
    assert found.run_seconds_per_step == pytest.approx(0.1 * exact + 0.9 * found.seconds)


# Choice


@pytest.mark.parametrize("machines", ["ab", "aabb", "abcd"])
def test_an_unlimited_link_keeps_exact_sums(machines):
    chosen = choose_strategy(measure(UNLIMITED, machines), settings_of(strategy="auto"))
    assert chosen == Synchronisation(reason=chosen.reason)
    assert "no quality" in chosen.reason


def test_one_machine_keeps_exact_sums():
    chosen = choose_strategy(measure(machines="aa"), settings_of())
    assert chosen.strategy == "every_step"
    assert "one machine" in chosen.reason
    assert len(estimate_strategies(measure(machines="aa"), settings_of())) == 1


def test_links_that_were_not_measured_keep_exact_sums():
    chosen = choose_strategy(measure(links=[], all_reduce=[]), settings_of())
    assert chosen.strategy == "every_step"
    assert "not be measured" in chosen.reason


def test_a_step_that_waits_five_times_as_long_as_it_computes_gets_local_updates():
    measured = measure(1.25 * GRADIENT_BYTES / (5 * 0.7), machines="ab")
    exact, computing = predict(measured).seconds, computing_of(measured)
    assert exact > 5 * computing
    chosen = choose_strategy(measured, settings_of(strategy="auto"))
    assert chosen.strategy == "local"
    assert (chosen.replicas, chosen.wire) == (2, "int4")
    assert chosen.rate_factor == pytest.approx(2**0.5)
    assert chosen.max_interval == chosen.interval
    assert chosen.overlap == chosen.is_streamed
    found = estimate_plan(measured, settings_of(), chosen)
    assert found.run_seconds_per_step <= computing / WANTED_SPEED


def test_exact_sums_inside_machines_first_are_taken_where_they_suffice():
    measured = measure(1.5 * GRADIENT_BYTES / 0.2, bucket_ready=[0.0] * 15)
    faster = [replace(each, seconds=each.seconds / 100) for each in measured.all_reduce_inside]
    chosen = choose_strategy(replace(measured, all_reduce_inside=faster), settings_of())
    assert chosen.strategy == "hierarchical"
    assert "costs no quality" in chosen.reason


def test_the_shortest_interval_that_is_fast_enough_is_taken():
    chosen = choose_strategy(measure(), settings_of())
    found = by_name(measure())
    most = computing_of(measure()) / WANTED_SPEED
    name = _name_of(chosen)
    assert found[name, chosen.interval].seconds <= most
    shorter = [
        each for each in {"streamed": STREAMED_INTERVALS, "local": WAITED_INTERVALS}[name] if each < chosen.interval
    ]
    assert shorter
    assert all(found[name, each].seconds > most for each in shorter)


def test_a_hopeless_link_gets_the_fastest():
    measured = measure(1e3)
    chosen = choose_strategy(measured, settings_of())
    mean = estimate_plan(measured, settings_of(), chosen).run_seconds_per_step
    assert mean == min(each.run_seconds_per_step for each in by_name(measured).values())


def test_what_a_user_set_is_respected():
    chosen = choose_strategy(measure(), settings_of(replicas=4, together_steps=10))
    assert (chosen.replicas, chosen.together_steps) == (4, 10)


def test_steps_together_are_as_many_as_the_run_can_afford():
    long, short = settings_of(max_steps=10**6), settings_of(max_steps=1_000)
    few_seconds = measure(125e6)
    assert choose_strategy(few_seconds, long).together_steps > 0  # 8,000 of a million steps
    assert choose_strategy(few_seconds, short).together_steps == 0  # would be a tenth of all


def test_the_reason_has_seconds_megabytes_and_both_units_of_the_link():
    reason = choose_strategy(measure(), settings_of()).reason
    assert reason.startswith("Exact sums at every step would take 29.9 s a step, of which 29.2 s waits for the network")
    assert "(12.5 MB/s = 100 Mbit/s)." in reason
    assert "Averaging weights every 4 steps, a part after each step while the next one computes, takes" in reason
    assert "instead of 365.3 MB a step" in reason
    assert reason.endswith("BLEU at equal tokens.")


@settings(max_examples=50)
@given(rates, st.sampled_from(["ab", "aabb", "abab", "abc", "aab"]), st.integers(1, 8), contentions)
def test_a_choice_is_always_possible_and_explained(rate, machines, virtual_workers, contention):
    measured = measure(rate, machines, contention=contention)
    found = compare_strategies(measured, settings_of(virtual_workers=virtual_workers))
    assert found.chosen.reason.count(". ") == 1
    assert virtual_workers % found.chosen.replicas == 0
    assert sum(line.startswith(">") for line in found.lines()) == 1
    json.dumps(found.to_json(), allow_nan=False)


# Predictions and advice


def test_a_run_is_predicted_with_its_own_strategy():
    plan = replace(LOCAL, interval=64, max_interval=64)
    found = predict_with(plan, measure(), settings_of())
    assert found.seconds == estimate_plan(measure(), settings_of(), plan).seconds
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.bottleneck == "compute"
    assert predict_with(Synchronisation(), measure(), settings_of()).bottleneck == "network"


@pytest.mark.parametrize("strategy", ["auto", "every_step", "hierarchical", "int8", "powersgd", "local", "diloco"])
def test_check_predicts_every_configured_strategy(strategy):
    found = predict_as_configured(measure(), settings_of(strategy=strategy))
    assert found.low < found.seconds < found.high


def test_ways_to_synchronise_are_advised_with_their_option_and_cost():
    advice = strategy_advice(measure(), settings_of())
    assert all(option in message for option, message in zip(["auto", "fp16", "hierarchical"], advice, strict=True))
    assert "--sync auto): 0." in advice[0]
    assert advice[-1].startswith("Summing exactly, inside each machine first (--sync hierarchical): ")
    assert advice[-1].endswith("instead of 29.9 s per step; it costs no quality.")
    assert predict_with(Synchronisation(), measure(), settings_of()).advice[: len(advice)] == advice
    assert strategy_advice(measure(UNLIMITED), settings_of()) == []


# Runs that have ended


@given(st.floats(0.01, 100), st.floats(0, 1000), st.integers(2, 16), st.integers(1, 10**10))
def test_a_run_is_never_promised_less_than_it_computed(computing, waited, num_machines, gradient_bytes):
    sent = 2 * (num_machines - 1) / num_machines * gradient_bytes
    step = WaitingStep(computing + waited, computing, waited, gradient_bytes, sent, num_machines)
    assert computing * (1 - 1e-9) <= seconds_with_local_updates(step, LOCAL) <= step.seconds


def test_the_public_run_would_have_taken_a_twentieth():
    step = WaitingStep(29.6, 0.7, 29.0, GRADIENT_BYTES, 1.5 * GRADIENT_BYTES, 2)
    assert describe_local_updates(step) == [
        "With local updates every 16 steps (--sync local) a step of this run would have taken about 1.01 s instead of "
        "29.6 s, once the first steps together are made."
    ]
    assert describe_local_updates(replace(step, seconds=0.72, sending_seconds=0.1)) == []
