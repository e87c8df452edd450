"""Facts about hardware: complete, with sources, and one clear message for mistakes in a user's file."""

from pathlib import Path

import pytest

from dragoman.diagnosis.hardware import hardware_lines, load_hardware
from dragoman.model.shape import load_preset, training_flops_per_target_token
from dragoman.run.errors import UsageError

HARDWARE = load_hardware()
DEVICES = ["V100", "P100", "T4", "A100", "H100", "cpu-2-cores"]
LINKS = ["100mbit", "1gbit", "10gbit", "25gbit", "100gbit", "infiniband-hdr", "pcie3", "pcie4"]
LINKS += ["nvlink2", "nvlink3", "nvlink4", "shared-memory"]
OBJECTS_PER_STEP = 5_646.307 * 5.526
"""Source and target subwords of the public OpenSeq2Seq run f16, from the end of its log; its global batch is 4 × 128
sentences."""


def own_file(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_documented_names_exist_with_sources():
    assert list(HARDWARE.devices) == DEVICES
    assert list(HARDWARE.links) == LINKS
    assert all(len(facts.source) > 20 for facts in [*HARDWARE.devices.values(), *HARDWARE.links.values()])
    assert all(any(name in line for line in hardware_lines(HARDWARE)) for name in DEVICES + LINKS)


@pytest.mark.parametrize(
    ("device", "precision", "sentences", "seconds"),
    [("V100", "fp16", 256, 0.767), ("P100", "fp32", 128, 1.74), ("T4", "fp32", 128, 1.282)],
)
def test_shares_of_peak_follow_from_the_fastest_public_runs(device, precision, sentences, seconds):
    target_tokens = sentences * OBJECTS_PER_STEP / 2 / 512
    flops = target_tokens * training_flops_per_target_token(load_preset("transformer-base")) / seconds
    facts = HARDWARE.device(device)
    assert facts.reached_share[precision].typical == pytest.approx(flops / facts.peak_flops[precision], rel=0.02)


def test_ethernet_of_the_list_has_the_rate_of_its_name():
    for name in LINKS[:5]:
        assert HARDWARE.link(name).bytes_per_second == load_hardware().link(f"{name}/s").bytes_per_second


def test_any_rate_is_ethernet():
    link = HARDWARE.link("300mbit")
    assert link.bytes_per_second == 37.5e6
    assert link.link().bytes_per_second == pytest.approx(37.5e6 * 1448 / 1514)
    assert HARDWARE.link("1Gbit") is HARDWARE.links["1gbit"]


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (lambda: HARDWARE.device("v100"), "There is no device 'v100'; did you mean 'V100'"),
        (lambda: HARDWARE.link("nvlnk3"), "There is no link 'nvlnk3'; did you mean 'nvlink3'"),
        (lambda: HARDWARE.link("100M"), "does not say clearly whether bits or bytes"),
        (lambda: HARDWARE.link(""), "There is no link ''"),
    ],
)
def test_unknown_names_get_the_nearest_one(look_up, message):
    with pytest.raises(UsageError, match=message):
        look_up()


def test_own_facts_add_and_override_key_by_key(tmp_path):
    path = own_file(
        tmp_path,
        '[devices.V100]\nmemory_bytes = 32e9\n[links.lab]\nabout = "ours"\nlatency_seconds = 1e-5\n'
        'bytes_per_second = 5e9\nsource = "measured"\ngoodput = { low = 0.8, typical = 0.9, high = 1.0 }\n',
    )
    hardware = load_hardware(path)
    assert hardware.device("V100").memory_bytes == 32e9
    assert hardware.device("V100").peak_flops == HARDWARE.device("V100").peak_flops
    assert hardware.link("lab").bytes_per_second == 5e9
    assert "lab" not in HARDWARE.links


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[devices.V100]\nmemory_bytes = -1.0\n", "own.toml: devices.V100.memory_bytes = -1.0"),
        ("[devices.V100]\nmemory = 5\n", "devices.V100.memory is not known"),
        ("[devices.new]\nabout = 'x'\n", "devices.new.memory_bytes is missing"),
        ("[devices.V100.peak_flops]\nfp8 = 1e15\n", "devices.V100.peak_flops.fp8"),
        ("[devices.V100.peak_flops]\nbf16 = 1e14\n", "must have the same precisions"),
        ("[links.1gbit.goodput]\nlow = 0.99\n", "low, typical and high must be in this order"),
        ("[links.1gbit]\nbytes_per_second = inf\n", "links.1gbit.bytes_per_second"),
        ("[cables.x]\na = 1\n", "unknown key 'cables'"),
        ("devices = 3\n", "devices"),
        ("[devices\n", "is not valid TOML"),
    ],
)
def test_impossible_facts_are_one_message(tmp_path, text, message):
    with pytest.raises(UsageError, match=r"own\.toml") as raised:
        load_hardware(own_file(tmp_path, text))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
