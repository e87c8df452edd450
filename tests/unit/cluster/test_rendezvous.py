"""How processes find each other through a file, and the error if they do not."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from free_ports import free_port
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from dragoman.cluster import rendezvous
from dragoman.cluster.addresses import format_ports, own_addresses
from dragoman.cluster.environment import ADDRESS_VARIABLE, PORTS_VARIABLE, RankInfo
from dragoman.cluster.rendezvous import (
    INTERFACE_VARIABLES,
    Rendezvous,
    join_rendezvous,
    parse_ports,
    publish_value,
    remove_rendezvous_file,
    wait_for_value,
    wait_until_read,
)
from dragoman.run.errors import UserError

LAUNCHER_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
    *(ADDRESS_VARIABLE, PORTS_VARIABLE),
    *INTERFACE_VARIABLES,
)
ALONE = RankInfo(0, 1, 0, "srun", "job-1")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a rendezvous sets is removed again
        monkeypatch.delenv(name)


def run_process(rank: int, size: int, machine: str, folder: Path, answers: Queue, have_all_answered: Event) -> None:
    """Joins a rendezvous as if on a machine of this name; at module level, so that a process can start it."""
    rendezvous._machine_id = lambda: machine
    met = join_rendezvous(RankInfo(rank, size, 0, "srun", "job-1"), folder)
    interfaces = {os.environ.get(name) for name in INTERFACE_VARIABLES}
    answers.put((rank, (met.rank, met.size, met.local_rank, met.num_sharing_cores), met.address, interfaces))
    have_all_answered.wait(60)  # rank 0 owns the store


def test_processes_find_each_other_through_a_file_and_ranks_are_packed_by_machine(tmp_path, processes):
    """Neighbouring ranks on one machine halve the traffic between machines."""
    answers, have_all_answered = processes.Queue(), processes.Event()
    started = [
        processes.Process(target=run_process, args=(rank, 3, machine, tmp_path / "runs", answers, have_all_answered))
        for rank, machine in enumerate(["a", "b", "a"])
    ]
    for process in started:
        process.start()
    try:
        found = sorted(answers.get(timeout=60) for _ in started)
    finally:
        have_all_answered.set()
        for process in started:
            process.join(timeout=10)
            process.kill()
    assert [ranks for _, ranks, *_ in found] == [(0, 3, 0, 2), (2, 3, 0, 1), (1, 3, 1, 2)]
    # Each uses the address at which the others reach it, and NCCL gets the interface that has it.
    assert {address for *_, address, _ in found} <= {address for _, address in own_addresses()}
    assert all(len(interfaces) == 1 and interfaces != {None} for *_, interfaces in found)


def test_a_single_process_finds_itself(tmp_path):
    met = join_rendezvous(ALONE, tmp_path)
    assert (met.rank, met.size, met.local_rank, met.num_sharing_cores) == (0, 1, 0, 1)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert [path.name for path in tmp_path.iterdir()] == [".meeting-job-1.json"]
    remove_rendezvous_file(ALONE, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_for_its_owner_only(tmp_path):
    """It holds the secret of the store."""
    join_rendezvous(ALONE, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(path.read_text(encoding="utf-8"))["secret"]) == 32


def test_an_interface_in_the_environment_is_kept_and_its_address_used(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    monkeypatch.setattr(rendezvous, "address_of", {"eth7": "10.0.0.7"}.get)
    monkeypatch.setattr(rendezvous, "interface_of", {"10.0.0.7": "eth7"}.get)
    assert join_rendezvous(ALONE, tmp_path).address == "10.0.0.7"
    assert [os.environ[name] for name in INTERFACE_VARIABLES] == ["eth7", "eth7"]


def test_an_interface_that_this_machine_does_not_have_decides_nothing(tmp_path, monkeypatch):
    """NCCL knows more ways to write it, such as "^docker0"."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker0")
    assert join_rendezvous(ALONE, tmp_path).address == "127.0.0.1"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "^docker0"


def test_the_address_and_the_ports_of_the_launcher_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, "::1")
    monkeypatch.setenv(PORTS_VARIABLE, "29500-29563")
    met = join_rendezvous(ALONE, tmp_path)
    assert (met.address, met.ports) == ("::1", range(29500, 29564))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_without_variables_of_the_launcher_any_port_is_used(tmp_path, monkeypatch):
    for name in (ADDRESS_VARIABLE, PORTS_VARIABLE):
        monkeypatch.setenv(name, "")  # as our launcher sets them on one machine
    met = join_rendezvous(ALONE, tmp_path)
    assert (met.address, met.ports) == ("127.0.0.1", None)


@pytest.mark.parametrize("ports", [range(29500, 29564), range(29500, 29501), range(65535, 65536)])
def test_a_range_of_ports_is_read_as_it_is_written(ports):
    assert parse_ports(format_ports(ports)) == ports


def find_addresses(towards_first: list[str]) -> tuple[str, str]:
    """Returns the addresses that a rank of the first machine and one of another choose."""
    store, machines = HashStore(), ["a", "b"]
    other = rendezvous._find_address(RankInfo(1, 2, 0, "srun", "job-1"), store, machines, towards_first)
    first = rendezvous._find_address(RankInfo(0, 2, 0, "srun", "job-1"), store, machines, [])
    return first, other


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_machines_use_the_addresses_of_the_way_between_them(address):
    first, other = find_addresses([address])
    assert first == address
    assert other in ("127.0.0.1", "127.0.0.2", "::1")


def test_an_address_of_the_first_machine_without_a_way_to_it_is_passed_over(monkeypatch):
    """A name may have an IPv6 address although this machine has only IPv4."""
    found = [(None, None, None, "", (address, 0)) for address in ("2001:db8::1", "10.0.0.1")]
    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", lambda *_: found)
    monkeypatch.setattr(
        rendezvous, "own_address_towards", lambda addresses: {"10.0.0.1": "10.0.0.2"}.get(next(iter(addresses)))
    )
    assert find_addresses(["first.example.org"]) == ("10.0.0.1", "10.0.0.2")


def test_processes_of_one_machine_use_loopback():
    address = rendezvous._find_address(RankInfo(1, 2, 0, "srun", "job-1"), HashStore(), ["a", "a"], ["10.0.0.1"])
    assert address == "127.0.0.1"


def test_with_an_address_in_the_environment_no_file_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    met = join_rendezvous(RankInfo(0, 1, 0, "mpirun", "job-1"), tmp_path)
    assert isinstance(met, Rendezvous)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{}",
        '{"addresses": ["127.0.0.1"], "port": "x", "secret": "y"}',
        '{"addresses": ["127.0.0.1", "256.0.0.1"], "port": 1, "secret": "of an earlier job"}',
    ],
)
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_process_that_finds_no_other_says_what_to_do(tmp_path, monkeypatch, content, launcher):
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_SECONDS", 0.05)
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.01)
    if content is not None:
        (tmp_path / ".meeting-job-1.json").write_text(content)
    with pytest.raises(UserError, match=r"Worker 1 on .* did not find worker 0") as raised:
        join_rendezvous(RankInfo(1, 2, 0, launcher, "job-1"), tmp_path)
    assert f"{tmp_path} must be a folder that all hosts share" in str(raised.value)
    assert ("mpirun -x MASTER_ADDR" in str(raised.value)) == (launcher == "mpirun")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=r"file/runs/\.meeting-job-1\.json cannot be written: a part of the path is a file"
    ):
        join_rendezvous(RankInfo(0, 2, 0, "srun", "job-1"), tmp_path / "file" / "runs")


def test_published_values_reach_the_others(tmp_path):
    met = join_rendezvous(ALONE, tmp_path)
    publish_value(met, "run", {"path": "/runs/größe"})
    assert wait_for_value(met, "run", seconds=30) == {"path": "/runs/größe"}


def test_rank_0_waits_until_all_have_read_its_value():
    store = HashStore()
    first, second, third = (Rendezvous(store, rank, 3, rank, 3) for rank in range(3))
    publish_value(first, "run", {"error": "no such corpus"})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_until_read, first, "run", 30.0)
        wait_for_value(second, "run", seconds=30)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        wait_for_value(third, "run", seconds=30)
        waiting.result(timeout=30)


def test_it_does_not_wait_for_ever_for_ranks_that_died():
    begin = time.monotonic()
    wait_until_read(Rendezvous(HashStore(), 0, 2, 0, 2), "run", 0.05)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("machines", "names"),
    [
        (["a net:[1]", "a net:[1]", "b net:[2]"], ("a", "a", "b")),
        (["a net:[1]", "a net:[2]", "a net:[1]", "a net:[3]"], ("a", "a-2", "a", "a-3")),
        (["a net:[1]", "a net:[2]", "a-2 net:[3]"], ("a", "a-2", "a-2-2")),
        (["a-2 net:[3]", "a net:[1]", "a net:[2]"], ("a-2", "a", "a-3")),
        ([" "], ("",)),
    ],
)
def test_machines_of_the_same_name_are_numbered(machines, names):
    assert rendezvous._distinct_names(machines) == names


@given(st.lists(st.tuples(st.sampled_from(["a", "a-2", "a-3", "b"]), st.sampled_from("123")).map(" ".join)))
def test_no_two_machines_have_the_same_name(machines):
    names = rendezvous._distinct_names(machines)
    assert len(set(names)) == len(set(machines))
    assert len(set(zip(machines, names, strict=True))) == len(set(machines))


@pytest.mark.parametrize(
    ("cores_of_others", "num_sharing"),
    [([[0, 1], [0, 1]], 3), ([[2, 3], [4, 5]], 1), ([[1, 2], [2, 3]], 2)],
)
def test_a_rank_knows_how_many_ranks_share_its_cores(monkeypatch, cores_of_others, num_sharing):
    """Four ranks in a job of few cores share them all; ranks that a launcher bound to cores of their own do not."""
    monkeypatch.setattr(rendezvous, "own_cores", lambda: frozenset([0, 1]))
    store = HashStore()
    for rank, cores in enumerate(cores_of_others, start=1):
        store.set(f"machine/{rank}", json.dumps([rendezvous._machine_id(), cores]))
    store.set("machine/3", json.dumps(["another machine", [0, 1]]))
    machines, found = rendezvous._exchange_machines(RankInfo(0, 4, 0, "srun", "job-1"), store)
    assert (machines[3], found) == ("another machine", num_sharing)
