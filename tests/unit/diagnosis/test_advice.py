"""What would help, as arithmetic says: the seeds' cluster in figures, and machines with one thing wrong each."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.advice import (
    LINK_STEPS_MEGABITS,
    advise,
    find_problems,
    predict_and_advise,
    seconds_on_one_machine,
)
from dragoman.diagnosis.measurements import MeasuredLink, Measurements, Transfer
from dragoman.diagnosis.prediction import predict

# FACTS §1: 60,880,896 parameters, four workers on two machines, a port of 100 Mbit/s between them.
GRADIENT_BYTES = 243_523_584
CROSSINGS = 2 * 3 / 4
SLOW, FAST = 12.5e6, 1.25e9
BUCKETS = (16 * 2**20,) * 14 + (GRADIENT_BYTES - 14 * 16 * 2**20,)
ALONE = {"data": 0.02, "forward": 0.2, "backward": 0.4, "optimizer": 0.08}
STEP_SECONDS = sum(ALONE.values())


def link(sender: str = "a", receiver: str = "b", rate: float = SLOW, **more: object) -> MeasuredLink:
    values = {"interface": "eth0", "kind": "ethernet", "claimed_megabits_per_second": None} | more
    return MeasuredLink(sender, receiver, 1e-4, rate, **values)


def ring(rate: float, crossings: float = CROSSINGS) -> list[Transfer]:
    sizes = [2**10 * 4**power for power in range(10)]
    return [Transfer(size, 1e-4 + crossings * size / rate) for size in sizes]


def seeds_cluster(rate: float = SLOW, machines: str = "aabb", **more: object) -> Measurements:
    names = list(dict.fromkeys(machines))
    values = {
        "alone_parts": dict(ALONE),
        "alone_steps": [STEP_SECONDS] * 4,
        "work_by_rank": [STEP_SECONDS] * len(machines),
        "slowest": dict(ALONE),
        "bucket_ready": [0.0] * len(BUCKETS),
        "all_reduce": ring(rate),
        "all_reduce_inside": ring(4e9, crossings=1.0),
        "links": [link(*pair, rate) for pair in zip(names, names[1:] + names[:1], strict=True)],
    }
    return Measurements(list(machines), GRADIENT_BYTES, BUCKETS, **(values | more))


def offers(measured: Measurements) -> dict[str, float]:
    """Seconds per step by what is proposed."""
    found = {}
    for sentence in predict_and_advise(measured).advice:
        if match := re.fullmatch(r"(.*): ([\d.]+) s instead of [\d.]+ s a step\.", sentence):
            found[match[1]] = float(match[2])
    return found


def test_the_seeds_cluster_comes_out_as_arithmetic_says():
    measured = seeds_cluster()
    network = CROSSINGS * GRADIENT_BYTES / SLOW
    assert network == pytest.approx(29.2, abs=0.05)
    assert predict(measured).seconds == pytest.approx(STEP_SECONDS + network, rel=0.001)
    found = offers(measured)
    assert found["A port of 1 Gbit/s (125 MB/s)"] == pytest.approx(STEP_SECONDS + network / 10, rel=0.01)
    assert found["A port of 10 Gbit/s (1,250 MB/s)"] == pytest.approx(STEP_SECONDS + network / 100, rel=0.01)
    assert found["Sending gradients in half precision"] == pytest.approx(STEP_SECONDS + network / 2, rel=0.01)
    # Twice the batch of a rank, and the gradient stays inside: 243.5 MB at 4 GB/s.
    alone = 2 * (0.02 + 0.2 + 0.4) + 0.08 + GRADIENT_BYTES / 4e9
    assert found["One machine alone (a)"] == pytest.approx(alone, rel=0.01)
    assert seconds_on_one_machine(measured) == pytest.approx(alone, rel=0.01)


def test_the_greatest_gain_comes_first():
    found = list(offers(seeds_cluster()).values())
    assert found == sorted(found)
    assert len(found) == 4


def test_sentences_name_what_they_compare_with():
    advice = predict_and_advise(seeds_cluster()).advice
    assert "A port of 1 Gbit/s (125 MB/s): 3.62 s instead of 29.9 s a step." in advice
    assert "Sending gradients in half precision: 15.3 s instead of 29.9 s a step." in advice


def test_every_port_is_named_in_plain_digits():
    for megabits in LINK_STEPS_MEGABITS:
        measured = seeds_cluster(rate=megabits * 1e6 / 8 / 2, bucket_ready=[0.0] * len(BUCKETS), alone_steps=[1e-3])
        measured.alone_parts = {"forward": 1e-3}
        [port] = [
            name for name in offers(measured) if name.startswith("A port of") and f"{megabits / 8:,.10g} " in name
        ]
        assert "e+" not in port


def test_advice_is_scaled_by_how_well_the_arithmetic_met_the_rehearsed_steps():
    measured = seeds_cluster()
    twice = replace(predict(measured), seconds=2 * predict(measured).seconds)
    [port] = [sentence for sentence in advise(measured, twice) if "1 Gbit/s" in sentence]
    assert "7.2" in port
    assert "instead of 59.8 s" in port


def test_a_cluster_that_computes_is_given_no_advice_about_its_network():
    measured = seeds_cluster(FAST * 100, alone_parts={"forward": 10.0, "backward": 20.0}, alone_steps=[30.0] * 3)
    assert predict(measured).bottleneck == "compute"
    assert predict_and_advise(measured).advice == []
    assert predict_and_advise(measured).problems == []


@given(
    st.floats(1e5, 1e11),
    st.sampled_from(["a", "ab", "aabb", "abab", "aaaabbbb", "abc"]),
    st.floats(1e-3, 100),
    st.lists(st.floats(0.1, 10), min_size=8, max_size=8),
)
def test_no_advice_that_does_not_help(rate, machines, backward, work):
    measured = seeds_cluster(
        rate,
        machines,
        alone_parts=ALONE | {"backward": backward},
        alone_steps=[backward + 0.3],
        work_by_rank=work[: len(machines)],
    )
    prediction = predict_and_advise(measured)
    for seconds in offers(measured).values():
        assert 0 <= seconds < prediction.seconds
    for sentence in prediction.advice:
        assert sentence.endswith(".")
        assert "nan" not in sentence


def test_one_worker_is_told_nothing_of_networks():
    measured = Measurements(["a"], GRADIENT_BYTES, BUCKETS, dict(ALONE), [STEP_SECONDS], [STEP_SECONDS], dict(ALONE))
    prediction = predict_and_advise(measured)
    assert (prediction.advice, prediction.problems) == ([], [])


def test_a_slow_rank_is_proposed_to_be_as_fast_as_the_others():
    work = [STEP_SECONDS, STEP_SECONDS, STEP_SECONDS, 3 * STEP_SECONDS]
    slowest = {name: 3 * seconds for name, seconds in ALONE.items()}
    measured = seeds_cluster(FAST * 100, alone_steps=[3 * STEP_SECONDS] * 3, work_by_rank=work, slowest=slowest)
    assert predict(measured).bottleneck == "straggler"
    found = offers(measured)
    assert found["Rank 3 on b as fast as the others"] == pytest.approx(STEP_SECONDS, rel=0.05)


def test_slow_data_is_proposed_a_faster_disk():
    measured = seeds_cluster(FAST * 100, alone_parts=ALONE | {"data": 2.0}, alone_steps=[2.68] * 3)
    assert predict(measured).bottleneck == "input"
    assert offers(measured)["Prepared data on a faster disk"] == pytest.approx(0.68, rel=0.02)


@pytest.mark.parametrize(("fixed_share", "factor"), [(0.0, 1.9), (1.0, 2.0)])
def test_larger_batches_pay_the_network_more_rarely(fixed_share, factor):
    measured = seeds_cluster(rate=SLOW * 4, fixed_share=fixed_share)
    [sentence] = [each for each in predict_and_advise(measured).advice if "global_batch_tokens" in each]
    assert float(sentence.split(": ")[1].split()[0]) == pytest.approx(factor, abs=0.06)


SOUND = seeds_cluster(FAST * 10)
PROBLEMS = {
    "claims": seeds_cluster(
        FAST * 10, links=[link(rate=SLOW, claimed_megabits_per_second=1_000), link("b", "a", FAST)]
    ),
    "loopback": seeds_cluster(FAST * 10, links=[link(rate=FAST, interface="lo", kind="loopback")]),
    "VPN": seeds_cluster(FAST * 10, links=[link(rate=FAST, interface="tun0", kind="vpn")]),
    "Neighbouring ranks": seeds_cluster(FAST * 10, "abab"),
    "b is slower than the others": seeds_cluster(FAST * 10, work_by_rank=[1.0, 1.1, 1.5, 1.6]),
    "slower than one": seeds_cluster(SLOW),
    "every step waits for the slowest": seeds_cluster(
        FAST * 10, "aabbcc", links=[link("a", "b", FAST), link("b", "c", FAST / 10), link("c", "a", FAST)]
    ),
}


def problems_of(measured: Measurements) -> list[str]:
    return find_problems(measured, predict(measured))


def test_a_sound_cluster_has_no_problem():
    assert problems_of(SOUND) == []


@pytest.mark.parametrize("sign", PROBLEMS)
def test_each_problem_is_found_alone(sign):
    [sentence] = problems_of(PROBLEMS[sign])
    assert sign in sentence
    assert all(other not in sentence for other in PROBLEMS if other != sign)


def test_a_slow_link_is_told_in_both_units_and_with_what_it_claims():
    [sentence] = problems_of(PROBLEMS["claims"])
    assert "from a to b carries 12.5 MB/s (100 Mbit/s), but eth0 claims 1,000 Mbit/s" in sentence


def test_two_machines_slower_than_one_are_told_so_with_both_figures():
    assert problems_of(PROBLEMS["slower than one"]) == [
        "2 machines are slower than one: 29.9 s a step, and 1.38 s on a alone."
    ]


@pytest.mark.parametrize(
    "measured",
    [
        seeds_cluster(FAST * 10, links=[link(rate=FAST, claimed_megabits_per_second=25_000)]),
        seeds_cluster(FAST * 10, links=[link(rate=SLOW, claimed_megabits_per_second=None)]),
        seeds_cluster(FAST * 10, work_by_rank=[1.0, 1.1, 1.2, 1.3]),
        seeds_cluster(FAST * 10, work_by_rank=[1.0, 1.6, 1.0, 1.6]),
        seeds_cluster(FAST * 10, work_by_rank=[]),
        seeds_cluster(
            FAST * 10, "aabbcc", links=[link("a", "b", FAST), link("b", "c", FAST / 2), link("c", "a", FAST)]
        ),
        seeds_cluster(SLOW, "aaaa", links=[]),
    ],
)
def test_what_is_only_a_little_worse_is_no_problem(measured):
    assert problems_of(measured) == []
