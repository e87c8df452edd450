"""Plans: figures of a known cluster, parts that add up, and one clear message for impossible numbers."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.hardware import load_hardware
from dragoman.diagnosis.plan import (
    Plan,
    PlanSettings,
    build_plan,
    build_scenario,
    load_plan,
    plan_step,
    table_sizes,
)
from dragoman.diagnosis.plan_output import plan_lines, save_chart
from dragoman.diagnosis.planned_strategies import DILOCO_INTERVAL, POWERSGD_RANK
from dragoman.diagnosis.step_model import PARTS, Step
from dragoman.run.config import Strategy, SynchronisationSettings
from dragoman.run.errors import UsageError

HARDWARE = load_hardware()

descriptions = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["transformer-base", "transformer-big", "small", "tiny"]),
        "software": st.sampled_from(["pytorch", "openseq2seq"]),
        "precision": st.sampled_from(["fp32", "mixed"]),
        "accumulate": st.sampled_from([1, 16]),
        "device": st.sampled_from(["V100", "P100", "T4", "A100", "H100", "MI300X"]),
        "devices_per_node": st.integers(1, 16),
        "nodes": st.integers(1, 300),
        "link": st.sampled_from(["100mbit", "1gbit", "25gbit", "infiniband-hdr", "37mbit"]),
        "batch_tokens": st.integers(5_000, 10**7),
        "overlap": st.booleans(),
    }
)


def plan_for(**changes: object) -> Plan:
    return build_plan(PlanSettings.model_validate(changes), HARDWARE)


def seconds(**changes: object) -> float:
    return plan_for(**changes).step.seconds


@pytest.mark.parametrize("software", ["pytorch", "openseq2seq"])
def test_two_nodes_at_100_mbit(software):
    plan = plan_for(link="100mbit", software=software)
    figures = plan.to_json()
    assert 29 <= figures["seconds_per_step"]["predicted"] <= 31
    assert figures["seconds_per_step"]["low"] < 29.65 < figures["seconds_per_step"]["high"]
    assert figures["bytes_per_node_per_step"] == pytest.approx(365.3e6, rel=1e-4)
    assert figures["bottleneck"] == "network"
    assert figures["fits_memory"] is True


@pytest.mark.parametrize(("link", "rate"), [("1gbit", 125e6), ("200MB/s", 200e6)])
def test_two_nodes_at_faster_links(link, rate):
    """A step takes the time of its bytes on the link, and that of forward, which cannot be hidden."""
    plan = plan_for(link=link)
    transfer = 365.3e6 / (rate * 0.9564)
    assert plan.own_size.communication_seconds == pytest.approx(transfer, rel=0.01)
    assert transfer < plan.step.seconds < transfer + 0.4


def test_without_overlap_nothing_is_hidden():
    parts = plan_for(link="1gbit", overlap=False).step.parts
    assert parts["hidden_communication"] == 0
    assert seconds(link="1gbit", overlap=False) > seconds(link="1gbit")


def test_tiny_batches_are_limited_by_starting_kernels():
    assert plan_for(nodes=1, devices_per_node=1, batch_tokens=10, device="H100").step.bottleneck == "overhead"


@pytest.mark.parametrize("link", ["10gbit", "20gbit", "25gbit", "40gbit", "100gbit"])
def test_the_bottleneck_is_that_of_a_measured_step_with_the_same_parts(link):
    """`plan`, `check` and `verdict` use one definition, also where computing takes most of the step."""
    for row in plan_for(link=link, model="small").sizes:
        others = max(0.0, row.seconds_per_step - row.exposed_communication)
        measured = Step({"forward": others, "exposed_communication": row.exposed_communication})
        if row.bottleneck != "overhead":
            assert row.bottleneck == measured.bottleneck


def test_nothing_is_planned_that_dragoman_cannot_do():
    """The planned step sends gradients in fp32, in one ring over all devices; other ways are those of --sync."""
    plan = plan_for(link="100mbit")
    assert {each["strategy"] for each in plan.to_json()["strategies"]} < set(get_args(Strategy))
    assert not any("precision" in advice for advice in plan.advice)
    with pytest.raises(UsageError, match="unknown key 'gradient_bytes'"):
        load_plan(None, {"gradient_bytes": 2})


def strategies_of(**changes: object) -> dict[tuple[str, int], tuple[float, float]]:
    """Seconds and megabytes by strategy and interval."""
    return {
        (each["strategy"], each["interval"]): (each["seconds_per_step"], each["megabytes_per_host_and_step"])
        for each in plan_for(**changes).to_json()["strategies"]
    }


def test_ways_to_synchronise_two_nodes_at_100_mbit():
    plan = plan_for(software="openseq2seq")
    found = strategies_of(software="openseq2seq")
    assert found["every_step", 1] == pytest.approx((plan.step.seconds, 365.3), rel=1e-3)
    assert found["hierarchical", 1] == pytest.approx((21.1, 243.5), rel=0.01)
    assert found["int8", 1] == pytest.approx((5.9, 61.8), rel=0.01)
    computing = plan.step.seconds - plan.step.parts["exposed_communication"]
    assert computing < found["local", 16][0] < 1.3 * computing
    text = "\n".join(plan_lines(plan))
    assert "local, 16 steps" in text
    assert "local, 8 steps" not in text  # only in JSON


def test_ways_to_synchronise_eight_sites_over_the_internet():
    found = strategies_of(nodes=8, devices_per_node=8, link="50mbit", round_trip_ms=60)
    assert found["every_step", 1][0] > 80
    # 7 of 8 payloads come from elsewhere: a gather of int8 sends as much as a ring of fp32 over nodes.
    assert found["int8", 1][1] == pytest.approx(found["hierarchical", 1][1], rel=0.02)
    assert found["local", 256][0] < found["every_step", 1][0] / 200
    near = strategies_of(nodes=8, devices_per_node=8, link="50mbit")
    assert near["every_step", 1][0] < found["every_step", 1][0]
    assert near["powersgd", 1][0] == pytest.approx(found["powersgd", 1][0] - 28 * 0.03, rel=0.01)


def test_planned_strategies_use_the_defaults_of_runs():
    own = SynchronisationSettings()
    assert (own.powersgd_rank, own.interval) == (POWERSGD_RANK, DILOCO_INTERVAL)
    assert (own.wire, own.fragments) == ("int8", 1)


def test_one_node_has_no_ways_to_synchronise():
    assert plan_for(nodes=1).to_json()["strategies"] == []
    assert "synchronisation" not in " ".join(plan_lines(plan_for(nodes=1)))


@settings(max_examples=60, deadline=None)
@given(descriptions)
def test_every_strategy_takes_at_least_the_time_of_computing(values):
    plan = plan_for(**values)
    computing = plan.step.parts["forward"] + plan.step.parts["backward"] + plan.step.parts["hidden_communication"]
    for each in plan.strategies:
        assert computing * (1 - 1e-9) <= each.seconds < math.inf
        assert each.bytes_per_host > 0


@settings(max_examples=60, deadline=None)
@given(descriptions)
def test_parts_add_up_and_the_interval_holds_the_prediction(values):
    plan = plan_for(**values)
    figures = plan.to_json()
    step = figures["seconds_per_step"]
    assert set(figures["parts"]) == set(PARTS)
    assert all(part >= -1e-12 for part in figures["parts"].values())
    assert math.fsum(figures["parts"].values()) == pytest.approx(step["predicted"])
    assert 0 < step["low"] <= step["predicted"] * (1 + 1e-9) <= step["high"] * (1 + 2e-9)
    assert all(0 < row.efficiency <= 1 + 1e-9 for row in plan.sizes)
    json.dumps(figures, allow_nan=False)
    assert plan_lines(plan)


@settings(max_examples=30, deadline=None)
@given(descriptions)
def test_a_faster_link_never_makes_a_step_longer(values):
    assert seconds(**values | {"link": "25gbit"}) <= seconds(**values | {"link": "1gbit"}) * (1 + 1e-9)


def test_a_fixed_batch_is_divided_and_one_per_device_grows():
    assert build_scenario(PlanSettings(nodes=8, batch_tokens=1_600), HARDWARE).tokens_per_device == 100
    assert build_scenario(PlanSettings(nodes=8, batch_per_device=100), HARDWARE).global_tokens == 1_600


def test_efficiency_is_against_one_device():
    rows = plan_for(link="infiniband-hdr", batch_per_device=8_192).sizes
    assert rows[0].devices == 1
    assert rows[0].efficiency == pytest.approx(1)
    by_hand = rows[-1].target_tokens_per_second / rows[-1].devices / rows[0].target_tokens_per_second
    assert rows[-1].efficiency == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ({"max_devices": 16}, [1, 2, 4, 8, 16]),
        ({"devices_per_node": 8, "nodes": 3, "max_devices": 40}, [1, 2, 4, 8, 16, 24, 32]),
        ({"devices_per_node": 3, "nodes": 1, "max_devices": 12}, [1, 2, 3, 6, 12]),
        ({"devices_per_node": 1, "nodes": 1, "max_devices": 1}, [1]),
    ],
)
def test_sizes_of_the_table(values, sizes):
    assert table_sizes(PlanSettings.model_validate(values)) == sizes


def test_the_table_ends_where_a_device_would_get_no_token():
    assert plan_for(batch_tokens=10, max_devices=1_000).sizes[-1].devices == 8


def test_hundreds_of_thousands_of_devices_are_quick():
    begin = time.process_time()
    plan = plan_for(batch_per_device=4_096, max_devices=1_000_000)
    assert plan.sizes[-1].devices > 500_000
    assert time.process_time() - begin < 1


def test_hours_and_cost_scale_with_devices():
    plan = plan_for(link="10gbit", steps=3_600, price_per_hour=12.0)
    row, alone = plan.own_size, plan.sizes[0]
    assert row.hours == pytest.approx(row.seconds_per_step)
    assert row.cost == pytest.approx(row.hours * 12)
    assert alone.cost == pytest.approx(alone.hours * 3)
    assert plan_for(steps=5).own_size.cost is None


def test_advice_over_a_slow_port_is_best_first_and_has_figures():
    plan = plan_for(link="100mbit")
    assert plan.advice[0].startswith("One node alone")
    assert any("A port of 125 MB/s (1,000 Mbit/s): 3.1 s instead of 30.6 s per step." in line for line in plan.advice)
    *same_sums, averages = [line for line in plan.advice if " s instead" in line]
    gains = [float(line.split(": ")[1].split(" s instead")[0]) for line in same_sums]
    assert gains == sorted(gains)
    assert averages.startswith(
        "Averages of weights every 32 steps, a part after each step (dragoman train --sync auto): "
    )
    assert "it costs some quality" in averages


def test_averages_of_weights_are_not_advised_where_exact_sums_wait_little():
    assert not any("Averages of weights" in line for line in plan_for(link="100gbit").advice)


def test_no_advice_where_nothing_helps():
    assert plan_for(nodes=1, devices_per_node=1, batch_tokens=10**6).advice == ()


def test_too_little_memory_is_a_problem_and_not_a_crash():
    plan = plan_for(model="transformer-big", batch_tokens=10**6)
    assert not plan.scenario.fits_memory
    assert "Not enough memory" in plan.problems[0]
    assert any(line.endswith("not enough memory") for line in plan_lines(plan))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": 0}, "nodes = 0"),
        ({"devices_per_node": -2}, "devices_per_node = -2"),
        ({"nodes": 10**7}, "nodes = 10000000"),
        ({"nodes": 10**6, "devices_per_node": 2}, "more than 1,000,000"),
        ({"max_devices": 3}, "fewer than the plan's own 4 devices"),
        ({"batch_tokens": 0}, "batch_tokens = 0"),
        ({"batch_tokens": 3}, "A batch of 3 tokens cannot be divided among 4 devices"),
        ({"batch_tokens": 9, "batch_per_device": 9}, "exclude each other"),
        ({"steps": 10**13}, "steps = "),
        ({"price_per_hour": math.nan}, "price_per_hour = nan"),
        ({"price_per_hour": math.inf}, "price_per_hour = inf"),
        ({"price_per_hour": -1.0}, "price_per_hour = -1.0"),
        ({"precision": "fp8"}, "precision = 'fp8'"),
        ({"precision": "bf16"}, "V100 has no facts for bf16"),
        ({"precision": "tf32"}, "V100 has no facts for tf32"),
        ({"software": "tensorflow"}, "There is no software 'tensorflow'"),
        ({"accumulate": 0}, "accumulate = 0"),
        ({"device": "K80"}, "There is no device 'K80'"),
        ({"link": "carrier-pigeon"}, "There is no link"),
        ({"inside_link": "100"}, "bits or bytes"),
        ({"model": "transformer"}, "There is no model preset"),
        ({"bucket_bytes": 1}, "bucket_bytes = 1"),
        ({"node": 3}, "unknown key 'node'; did you mean 'nodes'"),
        ({"nodes": True}, "nodes = true"),
        ({"nodes": 2.5}, "nodes = 2.5"),
    ],
)
def test_impossible_numbers_are_one_message(values, message):
    with pytest.raises(UsageError) as raised:
        build_plan(load_plan(None, values), HARDWARE)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_win_over_the_file(tmp_path: Path):
    path = tmp_path / "plan.toml"
    path.write_text('link = "1gbit"\nnodes = 3\nbatch_tokens = 1000\n')
    plan = load_plan(path, {"nodes": 5, "link": None, "batch_per_device": 7})
    assert (plan.nodes, plan.link, plan.batch_tokens, plan.batch_per_device) == (5, "1gbit", None, 7)
    path.write_text("nodes = 0\n")
    with pytest.raises(UsageError, match=r"plan\.toml: nodes = 0"):
        load_plan(path, {})


@pytest.mark.parametrize(("name", "beginning"), [("chart.svg", b"<?xml"), ("chart.png", b"\x89PNG")])
def test_charts_are_written(tmp_path: Path, name, beginning):
    save_chart(plan_for(steps=100, price_per_hour=3.0), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(beginning)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "nowhere/chart.svg"])
def test_charts_that_cannot_be_written(tmp_path: Path, name):
    with pytest.raises(UsageError, match="--plot"):
        save_chart(plan_for(), tmp_path / name)


def test_high_shares_make_a_step_faster():
    scenario = build_scenario(PlanSettings(), HARDWARE)
    fast, slow = (plan_step(scenario, end).seconds for end in ("high", "low"))
    assert fast < plan_step(scenario).seconds < slow


def test_the_share_is_shown_with_its_source_interval_and_coverage():
    plan = plan_for()
    figures = plan.to_json()
    assert figures["software"] == "pytorch"
    assert figures["share"]["low"] < figures["share"]["typical"] < figures["share"]["high"]
    assert figures["share"]["basis"] == "calibrated"
    assert "NVIDIA DeepLearningExamples" in figures["share"]["source"]
    assert figures["coverage"]["inside"] <= figures["coverage"]["rows"]
    text = " ".join(plan_lines(plan))
    assert "(pytorch; calibrated)" in text
    assert "measured speeds" in text


def test_a_guess_is_called_a_guess():
    plan = plan_for(device="H100", precision="bf16")
    assert plan.to_json()["coverage"] is None
    text = " ".join(plan_lines(plan))
    assert "a guess, not measured" in text
    assert "never compared with a measured speed" in text


def test_a_user_is_not_misled_tenfold():
    """What OpenSeq2Seq's runs reached describes its software and network, not the device."""
    speeds = [
        plan_for(nodes=1, devices_per_node=1, batch_tokens=8_192, software=software).own_size.target_tokens_per_second
        for software in ("pytorch", "openseq2seq")
    ]
    assert speeds[0] > 5 * speeds[1]
    assert speeds[1] == pytest.approx(11_300, rel=0.02)


def test_only_links_that_are_used_are_named():
    first, second = plan_lines(plan_for(nodes=1, devices_per_node=1))[:2]
    assert first.endswith("1 × 1 V100")
    assert "depending on the share of peak that is reached)" in second
    assert "the link between the devices)" in plan_lines(plan_for(nodes=1, devices_per_node=4))[1]
    assert "and on the network)" in plan_lines(plan_for(nodes=2))[1]


def test_less_than_an_hour_is_told_exactly_enough():
    line = next(line for line in plan_lines(plan_for(nodes=1, devices_per_node=1, steps=100)) if "100 steps" in line)
    assert "0.0 " not in line


def test_software_is_found_in_any_case():
    assert plan_for(software="OpenSeq2Seq").step.seconds == plan_for(software="openseq2seq").step.seconds


def test_the_interval_of_hours_and_cost_is_that_of_a_step():
    plan = plan_for(steps=3_600, price_per_hour=2.0)
    interval = plan.interval
    assert interval["hours"] == pytest.approx({"low": plan.low, "high": plan.high})
    assert interval["cost"]["high"] == pytest.approx(2 * plan.high)
    assert f"({plan.low:,.1f} to {plan.high:,.1f}) hours" in " ".join(plan_lines(plan))
    assert plan_for().interval["hours"] is None


def test_at_the_fast_end_the_devices_of_a_node_add_up_first():
    """Then two nodes exchange the gradients once, instead of 2 × 3 / 4 times: 243.5 MB."""
    plan = plan_for(link="100mbit")
    assert plan.low == pytest.approx(243.5e6 / (12.5e6 * 0.99), rel=0.01)


def test_planning_imports_no_slow_modules():
    arguments = ["-X", "importtime", "-m", "dragoman", "plan", "--json"]
    finished = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "dragoman.diagnosis.plan" in imported
    assert imported.isdisjoint({"dragoman.run.config", "matplotlib", "numpy", "rich", "torch"})
