"""Advice with the right figures for a cluster with a slow port, and machines with one problem each."""

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
from dragoman.diagnosis.prediction import MeasuredLink, Measurements, Transfer, predict
from dragoman.run.records import MachineLoad

# A public OpenSeq2Seq run: 60,880,896 parameters, four workers on two machines, a port of 100 Mbit/s between them.
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


def cluster(rate: float = SLOW, machines: str = "aabb", **more: object) -> Measurements:
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
    for message in predict_and_advise(measured).advice:
        if match := re.fullmatch(r"(.*): ([\d.]+) s instead of [\d.]+ s per step\.", message):
            found[match[1]] = float(match[2])
    return found


def test_figures_of_the_cluster():
    measured = cluster()
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
    found = list(offers(cluster()).values())
    assert found == sorted(found)
    assert len(found) == 4


def test_advice_has_the_time_now_beside_the_new_one():
    advice = predict_and_advise(cluster()).advice
    assert "A port of 1 Gbit/s (125 MB/s): 3.62 s instead of 29.9 s per step." in advice
    assert "Sending gradients in half precision: 15.3 s instead of 29.9 s per step." in advice


def test_every_port_is_named_in_plain_digits():
    for megabits in LINK_STEPS_MEGABITS:
        measured = cluster(rate=megabits * 1e6 / 8 / 2, bucket_ready=[0.0] * len(BUCKETS), alone_steps=[1e-3])
        measured.alone_parts = {"forward": 1e-3}
        [port] = [
            name for name in offers(measured) if name.startswith("A port of") and f"{megabits / 8:,.10g} " in name
        ]
        assert "e+" not in port


def test_advice_is_scaled_to_the_predicted_step():
    measured = cluster()
    twice = replace(predict(measured), seconds=2 * predict(measured).seconds)
    [port] = [message for message in advise(measured, twice) if "1 Gbit/s" in message]
    assert "7.2" in port
    assert "instead of 59.8 s" in port


def test_a_compute_bound_cluster_gets_no_advice_about_its_network():
    measured = cluster(FAST * 100, alone_parts={"forward": 10.0, "backward": 20.0}, alone_steps=[30.0] * 3)
    assert predict(measured).bottleneck == "compute"
    assert predict_and_advise(measured).advice == []
    assert predict_and_advise(measured).problems == []


@given(
    st.floats(1e5, 1e11),
    st.sampled_from(["a", "ab", "aabb", "abab", "aaaabbbb", "abc"]),
    st.floats(1e-3, 100),
    st.lists(st.floats(0.1, 10), min_size=8, max_size=8),
)
def test_all_advice_helps(rate, machines, backward, work):
    measured = cluster(
        rate,
        machines,
        alone_parts=ALONE | {"backward": backward},
        alone_steps=[backward + 0.3],
        work_by_rank=work[: len(machines)],
    )
    prediction = predict_and_advise(measured)
    for seconds in offers(measured).values():
        assert 0 <= seconds < prediction.seconds
    for message in prediction.advice:
        assert message.endswith(".")
        assert "nan" not in message


def test_one_worker_gets_no_advice_about_networks():
    measured = Measurements(["a"], GRADIENT_BYTES, BUCKETS, dict(ALONE), [STEP_SECONDS], [STEP_SECONDS], dict(ALONE))
    prediction = predict_and_advise(measured)
    assert (prediction.advice, prediction.problems) == ([], [])


def test_advice_for_a_slow_rank():
    work = [STEP_SECONDS, STEP_SECONDS, STEP_SECONDS, 3 * STEP_SECONDS]
    slowest = {name: 3 * seconds for name, seconds in ALONE.items()}
    measured = cluster(FAST * 100, alone_steps=[3 * STEP_SECONDS] * 3, work_by_rank=work, slowest=slowest)
    assert predict(measured).bottleneck == "straggler"
    found = offers(measured)
    assert found["Rank 3 on b as fast as the others"] == pytest.approx(STEP_SECONDS, rel=0.05)


def test_advice_for_slow_data():
    measured = cluster(FAST * 100, alone_parts=ALONE | {"data": 2.0}, alone_steps=[2.68] * 3)
    assert predict(measured).bottleneck == "input"
    assert offers(measured)["Prepared data on a faster disk"] == pytest.approx(0.68, rel=0.02)


@pytest.mark.parametrize(("fixed_share", "factor"), [(0.0, 1.9), (1.0, 2.0)])
def test_larger_batches_pay_the_network_less_often(fixed_share, factor):
    measured = cluster(rate=SLOW * 4, fixed_share=fixed_share)
    [message] = [each for each in predict_and_advise(measured).advice if "global_batch_tokens" in each]
    assert float(message.split(": ")[1].split()[0]) == pytest.approx(factor, abs=0.06)


SOUND = cluster(FAST * 10)
PROBLEMS = {
    "claims": cluster(FAST * 10, links=[link(rate=SLOW, claimed_megabits_per_second=1_000), link("b", "a", FAST)]),
    "loopback": cluster(FAST * 10, links=[link(rate=FAST, interface="lo", kind="loopback")]),
    "VPN": cluster(FAST * 10, links=[link(rate=FAST, interface="tun0", kind="vpn")]),
    "Neighbouring ranks": cluster(FAST * 10, "abab"),
    "b is slower than the others": cluster(FAST * 10, work_by_rank=[1.0, 1.1, 1.5, 1.6]),
    "slower than one": cluster(SLOW),
    "every step waits for the slowest": cluster(
        FAST * 10, "aabbcc", links=[link("a", "b", FAST), link("b", "c", FAST / 10), link("c", "a", FAST)]
    ),
}


def problems_of(measured: Measurements) -> list[str]:
    return find_problems(measured, predict(measured))


def test_a_sound_cluster_has_no_problem():
    assert problems_of(SOUND) == []


@pytest.mark.parametrize("sign", PROBLEMS)
def test_each_problem_is_found_alone(sign):
    [message] = problems_of(PROBLEMS[sign])
    assert sign in message
    assert all(other not in message for other in PROBLEMS if other != sign)


def test_a_slow_link_is_reported_in_both_units_and_with_its_claimed_speed():
    [message] = problems_of(PROBLEMS["claims"])
    assert "The link from a to b carries 12.5 MB/s (100 Mbit/s), but eth0 claims 1,000 Mbit/s" in message


def test_two_machines_slower_than_one_are_a_problem():
    assert problems_of(PROBLEMS["slower than one"]) == [
        "2 machines are slower than one: 29.9 s per step, and 1.38 s on a alone."
    ]


@pytest.mark.parametrize(
    "measured",
    [
        cluster(FAST * 10, links=[link(rate=FAST, claimed_megabits_per_second=25_000)]),
        cluster(FAST * 10, links=[link(rate=SLOW, claimed_megabits_per_second=None)]),
        cluster(FAST * 10, work_by_rank=[1.0, 1.1, 1.2, 1.3]),
        cluster(FAST * 10, work_by_rank=[1.0, 1.6, 1.0, 1.6]),
        cluster(FAST * 10, work_by_rank=[]),
        cluster(FAST * 10, "aabbcc", links=[link("a", "b", FAST), link("b", "c", FAST / 2), link("c", "a", FAST)]),
        cluster(SLOW, "aaaa", links=[]),
    ],
)
def test_a_little_worse_is_no_problem(measured):
    assert problems_of(measured) == []


def test_busy_programs_are_a_problem():
    busy = MachineLoad(host="a", num_cores=2, own_cores=1.0, other_cores=1.0, waiting_threads=1.0)
    measured = cluster(machines="a", links=[], all_reduce=[], loads=[busy])
    problem = predict_and_advise(measured).problems[0]
    assert problem.startswith("Other programs used 1.0 of 2 cores on a: steps stay as slow")
    assert not predict_and_advise(replace(measured, loads=[])).problems
