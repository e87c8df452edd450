"""The number of workers on this machine where nobody has said it: one per core, as far as the run and memory allow."""

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.launch import worker_count
from dragoman.launch.hosts import Host, Placement
from dragoman.launch.worker_count import choose_num_workers, estimate_bytes, place_on_cores
from dragoman.model.shape import load_preset
from dragoman.run.config import Settings, build_settings

PLENTY = 10**12


@pytest.fixture
def settings(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return settings_with(prepared, 4)


def settings_with(prepared: Path, virtual_workers: int) -> Settings:
    training = {"virtual_workers": virtual_workers, "global_batch_tokens": 2_048}
    return build_settings({"data": {"prepared": str(prepared)}, "model": {"preset": "tiny"}, "training": training})


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "reason"),
    [
        (1, 1, "1 worker, because there is one core."),
        (2, 2, "2 workers, one per core, of 1 thread each."),
        (4, 4, "4 workers, one per core, of 1 thread each."),
        (8, 4, "4 workers of 2 threads each, because training.virtual_workers is 4."),
        (6, 4, "4 workers of 1 thread each, because training.virtual_workers is 4."),
    ],
)
def test_there_is_one_worker_per_core_up_to_the_virtual_workers(settings, num_cores, num_workers, reason):
    choice = choose_num_workers(settings, 0, num_cores, PLENTY)
    assert (choice.num_workers, choice.reason) == (num_workers, reason)


def test_workers_fit_into_memory(settings):
    choice = choose_num_workers(settings, 0, 4, 2_000_000_000)
    assert choice.num_workers == 2
    assert choice.reason.startswith("2 workers of 2 threads each: 2.0 GB of memory are free, and a worker may need 67")
    assert choose_num_workers(settings, 0, 4, 0).num_workers == 1


def test_a_gpu_has_one_worker(settings):
    choice = choose_num_workers(settings, 2, 64, PLENTY)
    assert (choice.num_workers, choice.reason) == (2, "2 workers, one per GPU.")


def test_the_threads_a_person_chose_are_stated(settings, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_num_workers(settings, 0, 2, PLENTY).reason == "2 workers, one per core, of 3 threads each."


@pytest.mark.parametrize(
    ("preset", "tokens", "peak_megabytes"),
    [
        ("tiny", 1_024, 638),
        ("small", 2_048, 1_174),
        ("small", 8_192, 2_800),
        ("transformer-base", 1_024, 2_517),
    ],
)
def test_the_estimate_of_memory_is_a_little_more_than_real_workers_used(preset, tokens, peak_megabytes):
    """The peaks are those of real runs of this model with a vocabulary of 8,000, with evaluation and checkpoint."""
    shape = replace(load_preset(preset), source_vocab_size=8_000, target_vocab_size=8_000)
    assert 1.0 < estimate_bytes(shape, tokens) / 1e6 / peak_megabytes < 1.3


def test_a_machine_alone_is_filled_and_a_given_number_is_kept(settings, monkeypatch):
    monkeypatch.setattr(worker_count, "num_physical_cores", lambda: 3)
    monkeypatch.setattr(worker_count, "available_memory", lambda: PLENTY)
    monkeypatch.setattr(worker_count, "count_gpus", lambda: 0)
    placement, reason = place_on_cores(Placement.on_this_machine(), settings)
    assert placement == Placement.on_this_machine(3)
    assert reason == "3 workers, one per core, of 1 thread each."
    given = Placement.on_this_machine(1)
    assert place_on_cores(given, settings) == (given, "")


@pytest.mark.parametrize("hosts", [("a",), ("localhost", "a"), ("a", "localhost")])
def test_other_machines_decide_for_themselves(settings, hosts):
    """There it stays one worker per GPU or machine: more of them would send more over the network."""
    placement = Placement(tuple(map(Host, hosts)))
    assert place_on_cores(placement, settings) == (placement, "")


def test_one_core_or_many_need_no_more_workers_than_virtual_ones(prepared):
    for virtual_workers in (1, 2, 7):
        settings = settings_with(prepared, virtual_workers)
        chosen = [choose_num_workers(settings, 0, num_cores, PLENTY).num_workers for num_cores in range(1, 20)]
        assert chosen == [min(num_cores, virtual_workers) for num_cores in range(1, 20)]
