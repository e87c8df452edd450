"""training.precision = "auto" is decided once, by all devices of a run, and kept."""

from pathlib import Path

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.model import device as device_module
from dragoman.model.device import best_precision, loss_positions, loss_positions_in
from dragoman.run.config import Settings, build_settings, dump_settings, load_settings
from dragoman.run.folder import RunFolder
from dragoman.training import precision as precision_module
from dragoman.training.precision import keep_precision, resolve_precision


def settings_with(precision: str, **sections: object) -> Settings:
    return build_settings({"data": {"prepared": "corpus"}, "training": {"precision": precision}} | sections)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_precision_that_was_chosen_stays(precision):
    settings = settings_with(precision)
    assert resolve_precision(settings, World()) is settings


@pytest.mark.parametrize(("speedup", "expected"), [(0.4, "fp32"), (1.4, "fp32"), (1.6, "bf16"), (5.0, "bf16")])
def test_a_cpu_trains_in_bf16_only_if_it_multiplies_that_much_faster(monkeypatch, speedup, expected):
    monkeypatch.setattr(device_module, "cpu_speedup_of_bf16", lambda: speedup)
    assert resolve_precision(settings_with("auto"), World()).training.precision == expected


def test_the_speedup_is_measured_once_and_leaves_random_numbers_alone():
    device_module.cpu_speedup_of_bf16.cache_clear()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    speedup = device_module.cpu_speedup_of_bf16()
    assert torch.rand(3).equal(expected)
    assert 0.001 < speedup < 1_000
    assert device_module.cpu_speedup_of_bf16() == speedup
    assert best_precision(torch.device("meta")) == "fp32"


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [("bf16", 2.0, "bf16"), ("bf16", 1.0, "fp16"), ("fp16", 2.0, "fp16"), ("bf16", 0.0, "fp32")],
)
def test_all_ranks_train_in_what_every_device_has(monkeypatch, own, other, expected):
    monkeypatch.setattr(precision_module, "best_precision", lambda _: own)
    monkeypatch.setattr(World, "smallest_numbers", lambda _, numbers: [min(numbers[0], other)])
    assert resolve_precision(settings_with("auto"), World()).training.precision == expected


def test_replicas_that_learn_apart_do_not_train_in_fp16(monkeypatch):
    monkeypatch.setattr(precision_module, "best_precision", lambda _: "fp16")
    local = settings_with("auto", synchronisation={"strategy": "local"})
    assert resolve_precision(local, World()).training.precision == "fp32"


@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "bf16"), (False, "fp16")])
def test_a_gpu_trains_in_what_its_hardware_has(monkeypatch, has_bf16, expected):
    class Cuda:
        @staticmethod
        def is_bf16_supported(including_emulation: bool) -> bool:
            assert not including_emulation
            return has_bf16

    monkeypatch.setattr(torch, "get_device_module", lambda _: Cuda)
    assert best_precision(torch.device("cuda", 0)) == expected


def test_the_decision_is_written_for_a_resume_and_nothing_else_changes(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(device_module, "cpu_speedup_of_bf16", lambda: 3.0)
    run = RunFolder(tmp_path)
    settings = settings_with("auto")
    run.config.write_text(dump_settings(settings, {"torch": "2.13", "command": ["dragoman", "train"]}))
    before = run.config.read_text()
    keep_precision(run, resolve_precision(settings, World()))
    assert run.config.read_text() == before.replace('precision = "auto"', 'precision = "bf16"')
    assert load_settings(run.config).training.precision == "bf16"


def test_a_loss_takes_more_positions_at_a_time_on_larger_devices(monkeypatch):
    assert loss_positions(torch.device("cpu"), 8_000) == loss_positions(torch.device("meta"), 8_000) == 256
    assert loss_positions_in(16 * 2**30, 32_000) == 1_024
    assert loss_positions_in(80 * 2**30, 32_000) == 4_096
    assert loss_positions_in(80 * 2**30, 1_000) == 8_192
    assert loss_positions_in(2**20, 256_000) == 256
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (1, 16 * 2**30))
    device_module._memory_bytes.cache_clear()
    assert loss_positions(torch.device("cuda", 0), 32_000) == 1_024
    device_module._memory_bytes.cache_clear()
