"""Speeds of software on devices: calibrated with public tables, and guesses labelled as such."""

import pytest

from dragoman.diagnosis.hardware import load_hardware
from dragoman.diagnosis.plan import Plan, PlanSettings, build_plan
from dragoman.diagnosis.software import (
    DEFAULT_SOFTWARE,
    find_speed,
    largest_of,
    load_software,
    software_names,
    software_of,
)
from dragoman.model.shape import load_preset, training_flops_per_target_token
from dragoman.run.errors import UsageError

HARDWARE = load_hardware()
OBJECTS_PER_STEP = 5_646.307 * 5.526
"""Source and target subwords of the public OpenSeq2Seq run f16, from the end of its log; its global batch is 4 × 128
sentences."""
TABLE = [
    ("A100-40GB", "mixed", 10_240, {1: 82_059, 4: 286_081, 8: 551_599}),
    ("A100-40GB", "tf32", 10_240, {1: 51_057, 4: 179_245, 8: 347_936}),
    ("V100", "mixed", 5_120, {1: 32_942, 4: 109_726, 8: 214_656}),
    ("V100", "fp32", 2_560, {1: 8_742, 4: 30_204, 8: 59_316}),
    ("V100-32GB", "mixed", 10_240, {1: 39_911, 4: 137_703, 8: 267_815, 16: 517_227}),
    ("V100-32GB", "fp32", 5_120, {1: 9_827, 4: 35_216, 8: 68_929, 16: 136_253}),
]
"""NVIDIA DeepLearningExamples, PyTorch/Translation/Transformer: transformer-big, tokens/s by number of GPUs."""


def plan_for(**changes: object) -> Plan:
    return build_plan(PlanSettings.model_validate({"model": "transformer-big", "nodes": 1} | changes), HARDWARE)


def speed_of(device: str, precision: str, software: str = DEFAULT_SOFTWARE):
    return find_speed(software, device, HARDWARE.devices[device], precision)


@pytest.mark.parametrize(
    ("device", "precision", "tokens", "gpus", "speed"),
    [(*line[:3], gpus, speed) for line in TABLE for gpus, speed in line[3].items()],
)
def test_the_public_table_is_reproduced(device, precision, tokens, gpus, speed):
    plan = plan_for(device=device, precision=precision, batch_per_device=tokens, devices_per_node=gpus)
    assert plan.own_size.target_tokens_per_second == pytest.approx(speed, rel=0.1)
    slow, fast = (gpus * tokens / end for end in (plan.high, plan.low))
    assert slow < speed < fast


@pytest.mark.parametrize(("tokens", "speed"), [(2_560, 23_821), (5_120, 32_153)])
def test_smaller_batches_are_slower_as_in_an_older_table(tokens, speed):
    plan = plan_for(batch_per_device=tokens, devices_per_node=1)
    assert plan.own_size.target_tokens_per_second == pytest.approx(speed, rel=0.15)


def test_a_well_made_trainer_reaches_a_third_of_a_v100():
    reached = plan_for(batch_per_device=5_120, devices_per_node=1).to_json()["share"]["reached"]
    assert 0.28 < reached < 0.42


def test_the_run_of_128_gpus_is_reproduced():
    """Ott et al. 2018: 85 minutes; by their table of speeds, 1.82 million tokens per second."""
    plan = plan_for(nodes=16, devices_per_node=8, batch_per_device=3_584, link="infiniband-edr")
    minutes = 85 * 1.82e6 / plan.own_size.target_tokens_per_second
    assert minutes == pytest.approx(85, rel=0.15)
    assert plan.low < 128 * 3_584 / 1.82e6 < plan.high


def test_eight_gpus_need_less_than_five_hours():
    """The same paper: 10,300 updates of 365,000 tokens, in ten batches of at most 5,120 tokens per GPU."""
    plan = plan_for(devices_per_node=8, batch_per_device=51_200, accumulate=10)
    assert 2.5 < 10_300 * 365_000 / plan.own_size.target_tokens_per_second / 3_600 < 5


def test_several_batches_for_a_step_need_less_memory_and_as_much_fixed_time():
    once, often = (plan_for(devices_per_node=1, batch_per_device=40_960, accumulate=number) for number in (1, 8))
    assert often.scenario.memory_bytes < once.scenario.memory_bytes
    fixed = once.scenario.speed.fixed_seconds(2_880)
    assert often.step.seconds == pytest.approx(once.step.seconds + 7 * fixed)


@pytest.mark.parametrize(
    ("device", "precision", "sentences", "seconds"),
    [("V100-PCIE", "fp16", 256, 0.767), ("P100", "fp32", 128, 1.74), ("T4", "fp32", 128, 1.282)],
)
def test_shares_of_openseq2seq_follow_from_its_fastest_public_runs(device, precision, sentences, seconds):
    target_tokens = sentences * OBJECTS_PER_STEP / 2 / 512
    flops = target_tokens * training_flops_per_target_token(load_preset("transformer-base")) / seconds
    speed = speed_of(device, precision, "openseq2seq")
    assert speed.flops() == pytest.approx(flops, rel=0.02)
    assert speed.basis == "calibrated"


def test_software_is_chosen_by_name_and_by_trainer():
    assert software_names() == ["pytorch", "openseq2seq"]
    assert [software_of(trainer) for trainer in (None, "fairseq", "OpenSeq2Seq")] == [
        "pytorch",
        "pytorch",
        "openseq2seq",
    ]
    assert speed_of("V100", "fp16", "openseq2seq").share.typical == 0.033
    with pytest.raises(UsageError, match="There is no software 'pytorhc'; did you mean 'pytorch'"):
        load_software("pytorhc")


@pytest.mark.parametrize("software", ["pytorch", "openseq2seq"])
def test_every_device_has_a_share_in_every_precision(software):
    for name, device in HARDWARE.devices.items():
        for precision in device.peak_flops:
            speed = find_speed(software, name, device, precision)
            assert 0 < speed.share.low <= speed.share.typical <= speed.share.high <= 1
            assert (speed.coverage is None) == (speed.basis != "calibrated")


def test_guesses_are_called_guesses_and_own_shares_win():
    assert speed_of("H100", "bf16").basis == "guess"
    assert "guess" in speed_of("H100", "bf16").source
    own = speed_of("cpu-2-cores", "fp32")
    assert (own.basis, own.share.typical, own.seconds_per_operation) == ("own", 0.51, 5e-6)


def test_ranks_wait_longer_the_more_there_are():
    waiting = [speed_of("V100", "fp16").waiting_share(number) for number in (1, 2, 8, 128)]
    assert waiting[0] == 0
    assert waiting == sorted(waiting)
    # Expected largest of 8 normal values, from tables of order statistics.
    assert largest_of(8) == pytest.approx(1.4236, rel=0.02)


def test_stated_coverage_is_a_count_of_rows():
    for name in software_names():
        coverage = load_software(name).coverage
        assert 0.9 * coverage.rows <= coverage.inside <= coverage.rows
