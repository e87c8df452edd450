"""Facts about hardware: complete, with sources, and one clear message for mistakes in a user's file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.hardware import load_hardware
from dragoman.diagnosis.plan_output import hardware_lines
from dragoman.run.errors import UsageError

HARDWARE = load_hardware()
DEVICES = ["V100", "V100-PCIE", "V100-32GB", "P100", "T4", "A10G", "L4", "L40S", "A100", "A100-40GB", "A100-80GB"]
DEVICES += ["H100", "H100-PCIE", "RTX-3090", "RTX-4090", "MI250", "MI300X", "cpu-2-cores"]
LINKS = ["100mbit", "1gbit", "10gbit", "25gbit", "100gbit", "infiniband-edr", "infiniband-hdr", "pcie3", "pcie4"]
LINKS += ["pcie5", "nvlink2", "nvlink3", "nvlink4", "infinity-fabric", "shared-memory"]


def own_file(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_documented_names_exist_with_sources():
    assert list(HARDWARE.devices) == DEVICES
    assert list(HARDWARE.links) == LINKS
    assert all(len(facts.source) > 20 for facts in [*HARDWARE.devices.values(), *HARDWARE.links.values()])
    assert all(any(name in line for line in hardware_lines(HARDWARE)) for name in DEVICES + LINKS)


def test_usual_links_inside_a_machine_exist_and_newer_devices_have_bf16():
    assert {device.inside_link for device in HARDWARE.devices.values()} <= set(LINKS)
    without = {name for name, device in HARDWARE.devices.items() if "bf16" not in device.peak_flops}
    assert without == {"V100", "V100-PCIE", "V100-32GB", "P100", "T4", "cpu-2-cores"}


def test_the_list_marks_guesses():
    lines = {line.split()[0]: line for line in hardware_lines(HARDWARE) if line.startswith("  ")}
    assert "?" not in lines["V100"]
    assert "fp16 989 (30%?)" in lines["H100"]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("Tesla V100-PCIE-16GB", "V100-PCIE"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("V100 (32 GB)", "V100-32GB"),
        ("v100", "V100"),
        ("8xV100", "V100"),
        ("V100 x 4", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("A100", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("GeForce RTX 3090", "RTX-3090"),
        ("RTX3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI250X / MI250", "MI250"),
        ("AMD Instinct MI300X", "MI300X"),
        ("cpu-2-cores", "cpu-2-cores"),
        ("V1000", None),
        ("NVIDIA A10", None),
        ("NVIDIA L40", None),
        ("GeForce 256", None),
        ("GeForce GTX 1080", None),
        ("GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("", None),
    ],
)
def test_devices_are_found_in_the_names_that_logs_and_people_give_them(name, device):
    found = HARDWARE.find_device(name)
    assert (found and found[0]) == device


@given(st.text(max_size=60))
def test_any_name_is_a_device_or_none(name):
    found = HARDWARE.find_device(name)
    assert found is None or found[0] in DEVICES


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
        (lambda: HARDWARE.device("V1000"), "There is no device 'V1000'; did you mean 'V100'"),
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
    assert hardware.devices["V100"].memory_bytes == 32e9
    assert hardware.devices["V100"].peak_flops == HARDWARE.devices["V100"].peak_flops
    assert hardware.link("lab").bytes_per_second == 5e9
    assert "lab" not in HARDWARE.links


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[devices.V100]\nmemory_bytes = -1.0\n", "own.toml: devices.V100.memory_bytes = -1.0"),
        ("[devices.V100]\nmemory = 5\n", "devices.V100.memory is not known"),
        ("[devices.new]\nabout = 'x'\n", "devices.new.memory_bytes is missing"),
        ("[devices.V100.peak_flops]\nfp8 = 1e15\n", "devices.V100.peak_flops.fp8"),
        (
            "[devices.V100.reached_share]\nbf16 = { low = 0.1, typical = 0.2, high = 0.3 }\n",
            "reached_share has bf16, and peak_flops does not",
        ),
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


@pytest.mark.parametrize(
    ("name", "known"),
    [("V100", "V100"), ("v100", "V100"), ("RTX3090", "RTX-3090"), ("Tesla V100-SXM2-32GB", "V100-32GB")],
)
def test_a_device_is_found_by_the_names_that_people_give_it(name, known):
    assert HARDWARE.device(name) == (known, HARDWARE.devices[known])
