"""Cores and memory that this process may use: by affinity, hyper-threads and the limits of control groups."""

import os
from pathlib import Path

import psutil
import pytest

from dragoman.run import processes
from dragoman.run.processes import available_memory, num_cores, num_physical_cores, waiting_variables


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Eight logical cores, each two of them threads of one core, without control groups; changed by writing files."""
    monkeypatch.setattr(processes, "_CORES", tmp_path / "cpu")
    monkeypatch.setattr(processes, "_CONTROL_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(processes, "_OWN_CONTROL_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for core in range(8):
        write(tmp_path / "cpu" / f"cpu{core}" / "topology" / "thread_siblings_list", f"{core % 4},{core % 4 + 4}\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hyper_threads_of_one_core_count_once(machine):
    assert (num_cores(), num_physical_cores()) == (8, 4)


@pytest.mark.parametrize(
    ("affinity", "num_physical"), [({0}, 1), ({0, 4}, 1), ({0, 1}, 2), ({0, 1, 4, 5}, 2), ({1, 2, 3, 4}, 4)]
)
def test_only_the_cores_of_the_affinity_mask_count(machine, monkeypatch, affinity, num_physical):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    assert (num_cores(), num_physical_cores()) == (len(affinity), num_physical)


@pytest.mark.parametrize(("quota", "num"), [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1)])
def test_a_quota_of_control_groups_version_2_limits_cores(machine, quota, num):
    write(machine / "own", "0::/job/task\n")
    write(machine / "cgroup" / "job" / "task" / "cpu.max", "max 100000\n")
    write(machine / "cgroup" / "job" / "cpu.max", f"{quota}\n")  # the group around it has the limit
    assert (num_cores(), num_physical_cores()) == (num, num)


def test_a_container_that_sees_only_its_own_control_group_has_its_quota(machine):
    write(machine / "own", "0::/docker/7f3e\n")  # as the host names it: there is no such folder in the container
    write(machine / "cgroup" / "cpu.max", "300000 100000\n")
    assert num_cores() == 3


def test_a_quota_of_control_groups_version_1_limits_cores(machine):
    write(machine / "own", "3:memory:/\n2:cpu,cpuacct:/job\n0::/\n")
    write(machine / "cgroup" / "cpu" / "job" / "cpu.cfs_quota_us", "200000\n")
    write(machine / "cgroup" / "cpu" / "job" / "cpu.cfs_period_us", "100000\n")
    write(machine / "cgroup" / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(machine / "cgroup" / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert num_cores() == 2


def test_a_machine_that_does_not_describe_its_cores_is_asked_through_psutil(machine, monkeypatch):
    monkeypatch.setattr(processes, "_CORES", machine / "nowhere")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4)
    assert num_physical_cores() == 4


def test_the_limit_of_a_container_bounds_memory_and_cached_files_can_be_freed(machine):
    on_machine = psutil.virtual_memory().available
    assert available_memory() == pytest.approx(on_machine, rel=0.2)
    write(machine / "own", "0::/job\n")
    write(machine / "cgroup" / "job" / "memory.max", "9000000\n")
    write(machine / "cgroup" / "job" / "memory.current", "5000000\n")
    write(machine / "cgroup" / "job" / "memory.stat", "anon 4000000\ninactive_file 1000000\n")
    assert available_memory() == 5_000_000


def test_memory_of_control_groups_version_1(machine):
    write(machine / "own", "4:memory:/job\n")
    write(machine / "cgroup" / "memory" / "job" / "memory.limit_in_bytes", "9000000\n")
    write(machine / "cgroup" / "memory" / "job" / "memory.usage_in_bytes", "5000000\n")
    write(machine / "cgroup" / "memory" / "job" / "memory.stat", "inactive_file 7\ntotal_inactive_file 1000000\n")
    assert available_memory() == 5_000_000


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_waiting_threads_sleep_unless_a_person_chose_otherwise(monkeypatch, chosen):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert waiting_variables() == {"OMP_WAIT_POLICY": "passive"}
    monkeypatch.setenv(chosen, "1000")
    assert waiting_variables() == {chosen: "1000"}
