"""Was the network the bottleneck? Estimates compared with public OpenSeq2Seq runs whose step times are known."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.network_estimate import (
    RunFacts,
    estimate_network,
    find_device,
    gpu_mismatch,
    shape_of,
    tokens_of_sentences,
)
from dragoman.diagnosis.step_model import BOTTLENECK_SHARE
from dragoman.model.shape import count_parameters
from dragoman.run.errors import UsageError

PARAMETERS = 60_880_896
TOKENS = tokens_of_sentences(256)
RUN_1_94 = RunFacts(1.94, PARAMETERS, num_ranks=4, num_nodes=2)
ON_V100 = replace(
    RUN_1_94, gpu="Tesla V100-PCIE-16GB", precision="mixed", tokens_per_rank=TOKENS, trainer="OpenSeq2Seq"
)
SLOW_PORT = replace(ON_V100, seconds_per_step=29.65)
"""Seed 001: two machines on ports of 100 Mbit/s."""


def text_of(estimate) -> str:
    return " ".join([estimate.verdict.why, *estimate.verdict.evidence, *estimate.warnings, *estimate.assumptions])


def test_bytes_of_a_step_are_those_of_a_packed_ring_of_fp32_gradients():
    estimate = estimate_network(RUN_1_94)
    assert estimate.bytes_per_node == pytest.approx(365.3e6, rel=1e-3)
    assert "365" in text_of(estimate)
    assert "60,880,896" in text_of(estimate)


def test_half_gradients_are_half_the_bytes():
    halves = estimate_network(replace(RUN_1_94, gradient_bytes=2))
    assert halves.bytes_per_node == pytest.approx(365.3e6 / 2, rel=1e-3)


@pytest.mark.parametrize("facts", [RUN_1_94, ON_V100])
def test_the_run_on_100_megabits_was_network_bound(facts):
    estimate = estimate_network(replace(facts, seconds_per_step=29.65, link="100mbit"))
    assert estimate.verdict.bottleneck == "network"
    assert estimate.verdict.share > 0.9
    assert estimate.verdict.confidence >= 0.9
    # 29.2 s at the full rate of the link, a little more with headers.
    assert 29.2 < estimate.link_seconds < 31
    assert estimate.warnings == []


@pytest.mark.parametrize("facts", [RUN_1_94, ON_V100])
def test_a_link_that_was_faster_than_stated_is_a_warning(facts):
    estimate = estimate_network(replace(facts, link="1000Mbit"))
    assert estimate.verdict.bottleneck == "network"
    assert estimate.link_seconds == pytest.approx(3.06, abs=0.05)
    [warning] = estimate.warnings
    assert "faster than stated" in warning
    # 365.3 MB in 1.94 s
    assert "188 MB/s" in warning
    sure = estimate_network(replace(facts, seconds_per_step=3.1, link="1000Mbit"))
    assert sure.warnings == []
    assert estimate.verdict.confidence < sure.verdict.confidence


def test_busy_gpus_are_explained_and_better_links_named():
    verdict = estimate_network(replace(ON_V100, link="1000Mbit")).verdict
    assert "100 %" in " ".join(verdict.misleading)
    assert all(name in " ".join(verdict.evidence) for name in ("10gbit", "100gbit"))


def test_a_fast_link_is_not_the_bottleneck():
    estimate = estimate_network(replace(ON_V100, seconds_per_step=0.25, link="80gbit", trainer="fairseq"))
    assert estimate.verdict.bottleneck == "unknown"
    assert estimate.verdict.misleading == []
    assert "probably not the bottleneck: on this link its bytes need 15% of a step" in estimate.verdict.why
    # 0.096 s are computing and 0.038 s the bytes; the rest is said to be unknown.
    assert "What took the other 46% of a step, the log does not show" in estimate.verdict.why


@pytest.mark.parametrize("facts", [RUN_1_94, ON_V100])
def test_a_step_that_stated_facts_hardly_explain_is_not_said_to_be_explained(facts):
    verdict = estimate_network(replace(facts, link="100gbit")).verdict
    assert (verdict.bottleneck, verdict.confidence) == ("unknown", 0.0)
    assert verdict.why.startswith("Cannot say whether the network was the bottleneck: at the stated 100gbit")
    assert "Either the link was slower than stated (about " in verdict.why
    assert "Mbit/s) would explain the rest), or something that the log does not show" in verdict.why
    assert "--link" not in verdict.why


@pytest.mark.parametrize("link", ["1000Mbit", "1Gbps", "10gbit", "100gbit"])
@pytest.mark.parametrize("gpu", ["Tesla V100-PCIE-16GB", None])
def test_a_link_that_was_slower_than_stated_is_named_with_the_port_that_fits(link, gpu):
    estimate = estimate_network(replace(SLOW_PORT, link=link, gpu=gpu))
    verdict = estimate.verdict
    assert verdict.bottleneck == "network"
    assert verdict.confidence < 0.6
    assert "slower than stated" in verdict.why
    assert "a port of 12.5 MB/s (100 Mbit/s) would explain it: there the bytes need 30.6 s" in verdict.why
    assert verdict.share > 0.9
    assert "--link" not in text_of(estimate)


def test_without_a_link_the_port_that_fits_is_named():
    assert "12.5 MB/s (100 Mbit/s)" in text_of(estimate_network(SLOW_PORT))


def test_a_link_that_was_given_is_not_asked_for():
    """The bytes would need 30 s on the stated port, three times the step: it was another one."""
    estimate = estimate_network(replace(RUN_1_94, seconds_per_step=10, link="100mbit"))
    assert "--link" not in text_of(estimate)
    assert "the link was not the stated 100mbit" in estimate.verdict.why
    [warning] = estimate.warnings
    assert "faster than stated" in warning


@pytest.mark.parametrize("seconds_per_step", [0.7, 0.9, 1.05, 1.2])
def test_bytes_that_fill_a_step_outweigh_an_uncertain_estimate_of_computing(seconds_per_step):
    """Computing takes about 0.77 s (0.13 to 1.0 s), the bytes 0.76 s."""
    verdict = estimate_network(replace(ON_V100, seconds_per_step=seconds_per_step, link="500MB/s")).verdict
    assert verdict.bottleneck == "network"
    assert verdict.share >= BOTTLENECK_SHARE


def test_computing_that_fills_a_step_even_at_its_fastest_is_the_bottleneck():
    slow = replace(ON_V100, tokens_per_rank=8 * TOKENS, seconds_per_step=1.1, link="400MB/s")
    verdict = estimate_network(slow).verdict
    assert (verdict.bottleneck, verdict.confidence) == ("compute", 0.5)
    assert verdict.share > 1 - BOTTLENECK_SHARE
    assert "can hide most of that" in verdict.why


def test_computing_that_explains_a_step_is_the_bottleneck():
    estimate = estimate_network(replace(ON_V100, seconds_per_step=0.77, link="100gbit"))
    assert estimate.compute_seconds[1] == pytest.approx(0.77, rel=0.1)
    assert estimate.verdict.bottleneck == "compute"


def test_computing_is_estimated_by_device_precision_and_batch():
    low, typical, high = estimate_network(ON_V100).compute_seconds
    assert low < typical < high
    twice = estimate_network(replace(ON_V100, tokens_per_rank=2 * TOKENS)).compute_seconds
    assert twice == pytest.approx((2 * low, 2 * typical, 2 * high))
    by_shape = estimate_network(replace(ON_V100, shape=shape_of(512, 2048, 8, 6, 6, 32_768)))
    assert by_shape.compute_seconds[1] == pytest.approx(typical, rel=0.3)


def test_computing_has_the_speed_of_the_trainer():
    by_trainer = {
        trainer: estimate_network(replace(ON_V100, trainer=trainer)).compute_seconds
        for trainer in ("OpenSeq2Seq", "fairseq", None)
    }
    assert by_trainer["OpenSeq2Seq"][1] > 7 * by_trainer["fairseq"][1]
    assert by_trainer[None] == by_trainer["fairseq"]
    assert "a well-made PyTorch trainer" in text_of(estimate_network(replace(ON_V100, trainer="fairseq")))


@pytest.mark.parametrize(
    "change", [{"gpu": "Voodoo 2"}, {"gpu": None}, {"tokens_per_rank": None}, {"precision": "tf32"}]
)
def test_computing_is_not_guessed_where_facts_are_missing(change):
    estimate = estimate_network(replace(ON_V100, link="1000Mbit", **change))
    assert estimate.compute_seconds is None
    assert estimate.verdict.bottleneck == "network"


def test_without_a_link_the_time_of_computing_decides():
    slow = estimate_network(replace(ON_V100, seconds_per_step=29.65))
    assert (slow.verdict.bottleneck, slow.link_seconds) == ("network", None)
    assert "probably" in slow.verdict.why
    sure = estimate_network(replace(ON_V100, seconds_per_step=29.65, link="100mbit"))
    assert slow.verdict.confidence < sure.verdict.confidence


def test_without_a_link_or_a_device_the_missing_option_is_named():
    estimate = estimate_network(RUN_1_94)
    assert (estimate.verdict.bottleneck, estimate.verdict.confidence) == ("unknown", 0.0)
    assert "--link" in estimate.verdict.why
    assert "188 MB/s" in text_of(estimate)


def test_ranks_of_one_machine_exchange_inside_it():
    estimate = estimate_network(replace(RUN_1_94, num_nodes=1))
    # What else held it back is another question, without facts about its devices.
    assert estimate.verdict.bottleneck == "unknown"
    assert estimate.verdict.confidence >= 0.6
    assert estimate.bytes_per_node == 0
    assert "not the bottleneck" in estimate.verdict.why
    assert "PCI Express or NVLink" in estimate.verdict.why
    assert "365.3 MB of a step need about 0.0309 s over PCI Express 3.0" in estimate.verdict.why


def test_one_worker_exchanges_nothing():
    estimate = estimate_network(replace(RUN_1_94, num_ranks=1, num_nodes=None))
    assert "one worker" in estimate.verdict.why
    assert estimate.bytes_per_node == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": None}, ["parameters"]),
        ({"num_ranks": None}, ["--gpus-per-node"]),
        ({"num_nodes": None}, ["--nodes"]),
        ({"num_nodes": None, "num_ranks": None, "parameters": None}, ["parameters", "--gpus-per-node", "--nodes"]),
        ({"parameters": 0}, ["parameters"]),
        ({"num_ranks": -4}, ["--gpus-per-node"]),
        ({"num_nodes": 0}, ["--nodes"]),
        ({"seconds_per_step": 0.0}, ["time of a step"]),
        ({"seconds_per_step": 5e-324}, ["time of a step"]),
    ],
)
def test_missing_facts_are_named(change, words):
    estimate = estimate_network(replace(RUN_1_94, link="1000Mbit", **change))
    assert (estimate.verdict.bottleneck, estimate.bytes_per_node) == ("unknown", None)
    assert all(word in estimate.verdict.why for word in words)


def test_given_assumptions_are_kept():
    assumptions = estimate_network(replace(RUN_1_94, link="1000Mbit", assumptions=["The moon is full."])).assumptions
    assert "The moon is full." in assumptions
    assert len(assumptions) == 3


def test_an_unknown_link_is_an_error_for_the_user():
    with pytest.raises(UsageError, match="100gbit"):
        estimate_network(replace(RUN_1_94, link="gbit100"))


def test_unknown_devices_are_none_and_the_estimate_goes_on():
    assert find_device("V1000") is None
    assert estimate_network(replace(ON_V100, gpu="V1000", link="1000Mbit")).compute_seconds is None


@pytest.mark.parametrize(
    ("stated", "logged", "message"),
    [
        ("V100", ["Tesla P100-PCIE-16GB"], "Computed for V100 as stated; the log names Tesla P100-PCIE-16GB."),
        ("V100", ["Voodoo 2", "Voodoo 2"], "Computed for V100 as stated; the log names Voodoo 2."),
        (
            "RTX 4090",
            ["NVIDIA GeForce RTX 3090"],
            "Computed for RTX-4090 as stated; the log names NVIDIA GeForce RTX 3090.",
        ),
        ("V100", ["Tesla V100-PCIE-16GB"], None),
        ("A100", ["NVIDIA A100-SXM4-40GB"], None),
        ("V100", [], None),
        (None, ["Tesla P100"], None),
        ("V1000", ["Tesla P100"], None),
    ],
)
def test_another_gpu_than_the_logs_is_told(stated, logged, message):
    assert gpu_mismatch(stated, logged) == message


FIELD_RUNS = [
    ("seed000", 2.04, "mixed", "V100", "1000Mbit", "network"),
    ("seed001_slow_port", 29.65, "mixed", "V100", "100Mbit", "network"),
    ("seed001_slow_port", 29.65, "mixed", "V100", "1000Mbit", "network"),
    ("seed001_upgraded", 1.8, "mixed", "V100", "1000Mbit", "network"),
    ("seed004", 1.941, "mixed", "V100", "1000Mbit", "network"),
    ("f08", 1.6, "mixed", "V100", "200MB/s", "network"),
    ("f13", 1.58, "mixed", "V100", "225MB/s", "network"),
    ("f14", 1.588, "mixed", "V100", "1000Mbit", "network"),
    ("f15", 1.9, "fp32", "P100", "195MB/s", "network"),
    ("f01", 0.767, "mixed", "V100", "10gbit", "compute"),
    ("f01", 0.767, "mixed", "V100", None, "unknown"),
    ("f07", 1.625, "mixed", "V100", None, "network"),
    ("f16", 5.526, "fp32", "P100", None, "network"),
]
"""Public OpenSeq2Seq runs of one job on two machines with two GPUs each."""


@pytest.mark.parametrize(("run", "seconds", "precision", "gpu", "link", "bottleneck"), FIELD_RUNS)
def test_public_runs_are_judged_by_their_bytes(run, seconds, precision, gpu, link, bottleneck):
    tokens = tokens_of_sentences(256 if gpu == "V100" else 128)
    facts = replace(ON_V100, seconds_per_step=seconds, precision=precision, gpu=gpu, link=link, tokens_per_rank=tokens)
    assert estimate_network(facts).verdict.bottleneck == bottleneck


def test_a_shape_is_built_from_the_numbers_of_a_log():
    base = shape_of(512, 2048, 8, 6, 6, None)
    assert base is not None
    assert count_parameters(base) == PARAMETERS
    assert shape_of(512, 2048, 7, 6, 6, None) is None
    assert shape_of(512, 2048, 0, 6, 6, None) is None


counts = st.none() | st.integers(-2, 10) | st.integers(-(2**53), 2**53)
any_facts = st.builds(
    RunFacts,
    seconds_per_step=st.floats(-(2**53), 2**53) | st.sampled_from([0.0, 5e-324]),
    parameters=counts,
    num_ranks=counts,
    num_nodes=counts,
    gradient_bytes=st.sampled_from([2, 4]),
    gpu=st.sampled_from([None, "V100", "?"]),
    precision=st.sampled_from(["fp32", "mixed", "?"]),
    link=st.sampled_from([None, "100mbit", "100gbit"]),
    tokens_per_rank=st.none() | st.floats(-(2**53), 2**53),
    shape=st.sampled_from([None, shape_of(512, 2048, 8, 6, 6, None)]),
    trainer=st.sampled_from([None, "OpenSeq2Seq", "fairseq"]),
)


@settings(max_examples=60)
@given(any_facts)
def test_any_facts_give_an_estimate(facts):
    estimate = estimate_network(facts)
    verdict = estimate.verdict
    assert verdict.bottleneck in ("network", "compute", "unknown")
    assert 0 <= verdict.share <= 1
    assert 0 <= verdict.confidence <= 1
    assert "nan" not in text_of(estimate)
    json.dumps(verdict.to_json(), allow_nan=False)
    assert estimate.link_seconds is None or math.isfinite(estimate.link_seconds)
