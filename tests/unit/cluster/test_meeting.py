"""How processes that somebody else started find each other through a file, and what is said where they do not."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from dragoman.cluster import rendezvous
from dragoman.cluster.environment import Place
from dragoman.cluster.reach import free_port
from dragoman.cluster.rendezvous import (
    INTERFACE_VARIABLES,
    Meeting,
    forget_meeting,
    meet,
    tell_all,
    wait_for_note,
    wait_until_read,
)
from dragoman.run.errors import UserError

LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", *INTERFACE_VARIABLES)
# Plays a process on a machine of its own name; that all are one machine is what the real name would tell.
PROCESS = """
import json, os, sys
from pathlib import Path
from dragoman.cluster import meeting
from dragoman.cluster.environment import Place

rank, size, machine, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
rendezvous._machine_name = lambda: machine
met = rendezvous.meet(Place(rank, size, 0, "srun", "job-1"), folder)
interfaces = {os.environ.get(name) for name in rendezvous.INTERFACE_VARIABLES}
print(json.dumps([met.rank, met.size, met.local_rank, met.num_local, sorted(map(str, interfaces))]), flush=True)
sys.stdin.read()  # the first one has the store: it must stay until all have spoken
"""


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a meeting sets is taken back
        monkeypatch.delenv(name)


def test_processes_meet_through_a_file_and_ranks_are_packed_by_machine(tmp_path):
    """Neighbouring ranks on one machine halve what crosses the network (FACTS §10), whatever order they came in."""
    machines = ["a", "b", "a"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), "3", machine, str(tmp_path / "runs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank, machine in enumerate(machines)
    ]
    try:
        told = [json.loads(process.stdout.readline()) for process in processes]
    finally:
        for process in processes:
            process.stdin.close()
            process.wait(timeout=60)
    assert [answer[:4] for answer in told] == [[0, 3, 0, 2], [2, 3, 0, 1], [1, 3, 1, 2]]
    assert all(len(answer[4]) == 1 and answer[4] != ["None"] for answer in told)


def test_a_single_process_meets_itself(tmp_path):
    met = meet(Place(0, 1, 0, "srun", "job-1"), tmp_path)
    assert (met.rank, met.size, met.local_rank, met.num_local) == (0, 1, 0, 1)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert [path.name for path in tmp_path.iterdir()] == [".meeting-job-1.json"]
    forget_meeting(Place(0, 1, 0, "srun", "job-1"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interface_that_a_person_chose_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    meet(Place(0, 1, 0, "srun", "job-1"), tmp_path)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_where_a_launcher_told_the_address_no_file_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    met = meet(Place(0, 1, 0, "mpirun", "job-1"), tmp_path)
    assert isinstance(met, Meeting)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{}",
        '{"addresses": ["127.0.0.1"], "port": "x", "secret": "y"}',
        '{"addresses": ["127.0.0.1", "256.0.0.1"], "port": 1, "secret": "left by a job of before"}',
    ],
)
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_process_that_finds_nobody_says_what_to_do(tmp_path, monkeypatch, content, launcher):
    monkeypatch.setattr(rendezvous, "MEETING_SECONDS", 0.3)
    if content is not None:
        (tmp_path / ".meeting-job-1.json").write_text(content)
    with pytest.raises(UserError, match=r"Worker 1 on .* did not find the first one") as told:
        meet(Place(1, 2, 0, launcher, "job-1"), tmp_path)
    assert f"{tmp_path} must be a folder that all hosts share" in str(told.value)
    assert ("mpirun -x MASTER_ADDR" in str(told.value)) == (launcher == "mpirun")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/runs/\.meeting-job-1\.json cannot be written: Not a directory"):
        meet(Place(0, 2, 0, "srun", "job-1"), tmp_path / "file" / "runs")


def test_notes_reach_the_others(tmp_path):
    met = meet(Place(0, 1, 0, "srun", "job-1"), tmp_path)
    tell_all(met, "run", {"path": "/runs/größe"})
    assert wait_for_note(met, "run", seconds=5) == {"path": "/runs/größe"}


def test_the_first_waits_until_all_have_read_its_note():
    store = HashStore()
    first, second, third = (Meeting(store, rank, 3, rank, 3) for rank in range(3))
    tell_all(first, "run", {"error": "no such corpus"})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_until_read, first, "run", 30.0)
        wait_for_note(second, "run", seconds=5)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        wait_for_note(third, "run", seconds=5)
        waiting.result(timeout=5)


def test_it_does_not_wait_for_ever_for_those_who_died():
    begin = time.monotonic()
    wait_until_read(Meeting(HashStore(), 0, 2, 0, 2), "run", 0.2)
    assert time.monotonic() - begin < 5


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
def test_machines_of_one_name_are_numbered(machines, names):
    assert rendezvous._distinct_names(machines) == names


@given(st.lists(st.tuples(st.sampled_from(["a", "a-2", "a-3", "b"]), st.sampled_from("123")).map(" ".join)))
def test_no_two_machines_have_the_same_name(machines):
    names = rendezvous._distinct_names(machines)
    assert len(set(names)) == len(set(machines))
    assert len(set(zip(machines, names, strict=True))) == len(set(machines))
