"""The program on every host: it answers, runs workers, reports how they end, and never leaves one behind."""

import json
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from free_ports import free_range
from scripted_worker import Acts, read_starts, write_script

from dragoman.cluster.addresses import own_address_towards, own_addresses
from dragoman.cluster.heartbeat import Beat, WorkerEnd
from dragoman.cluster.link_test import LinkResult, check_link
from dragoman.launch.connection import LAUNCHER_GONE, AttemptSpec, Connection, Keepalive, WorkersEnd
from dragoman.launch.host_program import HostProgram
from dragoman.launch.hosts import Host, HostFacts
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, is_locked, lock_run, read_holder

LOOPBACK = "127.0.0.1"
SECONDS = 60.0
SECRET = "0123456789abcdef" * 2
FAR_AWAY = "203.0.113.1"  # for documentation only: the way to it is the one to most other machines

pytestmark = pytest.mark.usefixtures("fake_ssh", "scripted_worker")


@contextmanager
def connect(name: str = "localhost", host_timeout: float = SECONDS) -> Iterator[tuple[Connection, Keepalive]]:
    connection = Connection(Host(name), None, lambda _host, _line: None, host_timeout)
    keepalive = Keepalive()
    keepalive.add(connection)
    try:
        yield connection, keepalive
    finally:
        keepalive.stop()
        connection.close()


@pytest.fixture(scope="module")
def shared_host(scripted_worker) -> Iterator[Connection]:
    """One program for many attempts, as in a run with restarts: importing torch takes it two seconds."""
    with connect() as (connection, _):
        yield connection


@pytest.fixture
def host(shared_host) -> Connection:
    """The shared host, with no messages of earlier tests left but heartbeats."""
    while (message := shared_host.receive()) is not None:
        assert message.keys() == {"beats"}
    return shared_host


def start(connection: Connection, run: Path, **attempts_of_rank: list[Acts]) -> None:
    write_script(run, **attempts_of_rank)
    port = open_store(connection)
    spec = spec_of("scripted_worker", (str(run),), len(attempts_of_rank), store_port=port)
    connection.send({"do": "start", "spec": spec.to_json()})


def open_store(connection: Connection, address: str = LOOPBACK, ports: list[int] | None = None) -> int:
    request = {"do": "open_store", "address": address, "ports": ports, "secret": SECRET}
    return connection.ask(request, "store")["port"]


def spec_of(module: str, arguments: tuple[str, ...], num_workers: int, **changes: Any) -> AttemptSpec:
    values = {"node_rank": 0, "num_nodes": 1, "first_rank": 0, "store_address": LOOPBACK}
    environment = {"COLOUR": "green"}
    return AttemptSpec(
        "attempt",
        module,
        arguments,
        num_workers=num_workers,
        secret=SECRET,
        environment=environment,
        **values | changes,
    )


def answers(connection: Connection) -> bool:
    return connection.ask({"do": "undo"}, "undone", timeout=SECONDS)


def wait_for(connection: Connection, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        message = connection.receive(timeout=1.0)
        if message is not None and is_it(message):
            return message
    raise AssertionError(f"the message did not come in {SECONDS:.0f} s")


def wait_for_end(connection: Connection) -> WorkersEnd:
    end = WorkersEnd.from_json(wait_for(connection, lambda message: "ended" in message)["ended"])
    assert end.error is None
    return end


def wait_for_start(run: Path) -> None:
    """Waits until rank 0 runs, before its first heartbeat."""
    end = time.monotonic() + SECONDS
    while not read_starts(run, 0):
        assert time.monotonic() < end, "it did not start"
        time.sleep(0.02)


def wait_for_beats(connection: Connection, doing: str, num_workers: int) -> list[Beat]:
    def is_it(message: dict[str, Any]) -> bool:
        beats = message.get("beats", [])
        return len(beats) == num_workers and all(doing in beat["doing"] for beat in beats)

    return [Beat(**beat) for beat in wait_for(connection, is_it)["beats"]]


def are_gone(pids: list[int]) -> bool:
    """Whether processes end within a while; zombies count as gone."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.05)
    return False


# Requests


def test_it_reports_facts_of_its_machine(host, tmp_path, prepared):
    for step in (7, 14):
        RunFolder(tmp_path).checkpoint(step).mkdir(parents=True)
    request = {"do": "facts", "run": str(tmp_path), "prepared": str(prepared), "token": "unseen"}
    facts = HostFacts(**host.ask(request, "facts"))
    assert facts.hostname == socket.gethostname()
    assert facts.data is not None
    assert facts.newest_step == 14
    assert not facts.shares_run_folder


def test_it_writes_files_and_names_those_it_cannot_write(host, tmp_path):
    run = tmp_path / "new" / "run"
    request = {"do": "write", "run": str(run), "files": {"config.toml": "[data]\nprepared = 'Größe'\n"}}
    assert host.ask(request, "written") == 1
    assert (run / "config.toml").read_text(encoding="utf-8") == "[data]\nprepared = 'Größe'\n"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"localhost: Not a directory: .*/file/run"):
        host.ask(request | {"run": str(tmp_path / "file" / "run")}, "written")


def test_a_copied_folder_gets_its_name_when_it_is_complete(host, tmp_path):
    partial, final = tmp_path / "data" / ".corpus.partial", tmp_path / "data" / "corpus"
    names = {"path": str(partial), "as": str(final)}
    assert host.ask({"do": "make_folder"} | names, "made")
    assert partial.is_dir()
    final.mkdir()  # an empty one is in nobody's way
    assert host.ask({"do": "make_folder"} | names, "made")
    host.ask({"do": "rename_folder"} | names, "renamed")
    assert final.is_dir()
    assert not partial.exists()


def test_nothing_is_copied_over_a_folder_that_is_there(host, tmp_path):
    partial, final = tmp_path / ".corpus.partial", tmp_path / "corpus"
    final.mkdir()
    (final / "train.en").touch()
    assert host.ask({"do": "make_folder", "path": str(partial), "as": str(final)}, "made") is False
    assert not partial.exists()


def test_it_listens_tries_other_hosts_and_frees_the_ports(host):
    ports = free_range(3)
    request = {"do": "listen", "secret": SECRET, "ports": [ports[0], ports[-1]], "num_ports": 2}
    listening = host.ask(request, "listening")
    assert listening == {"ports": list(ports[:2]), "addresses": [address for _, address in own_addresses()]}
    assert check_link([LOOPBACK], listening["ports"], SECRET).has_passed
    right = {"addresses": [LOOPBACK], "ports": listening["ports"], "secret": SECRET}
    peers = {"right": right, "wrong": right | {"secret": "other"}, "closed": right | {"ports": [ports[2]]}}
    answer = host.ask({"do": "reach", "peers": peers}, "reached")
    results = {name: LinkResult(**result) for name, result in answer.items()}
    assert [results[name].has_passed for name in peers] == [True, False, False]
    assert results["wrong"].reason == "another machine answers there"
    assert results["closed"].reason == "connection refused"
    assert host.ask({"do": "get_ready", "address": LOOPBACK}, "ready") == {"interface": "lo"}
    assert not check_link([LOOPBACK], listening["ports"], SECRET).has_passed


def test_it_listens_at_one_port_where_there_is_no_range(host):
    for _ in range(2):  # the second closes the first
        listening = host.ask({"do": "listen", "secret": SECRET, "ports": None, "num_ports": 5}, "listening")
        assert len(listening["ports"]) == 1


def test_a_range_that_is_taken_is_named(host):
    ports = free_range(2)
    request = {"do": "listen", "secret": SECRET, "ports": [ports[0], ports[1]], "num_ports": 3}
    with pytest.raises(UserError, match=rf"localhost: All 2 ports of cluster\.port between {ports[0]} and {ports[1]}"):
        host.ask(request, "listening")


def test_an_address_that_is_not_its_own_is_named(host):
    with pytest.raises(UserError, match=r"localhost: no network interface has the address 203\.0\.113\.1"):
        host.ask({"do": "get_ready", "address": "203.0.113.1"}, "ready")


def test_a_request_of_another_version_is_refused_and_the_host_goes_on(host):
    with pytest.raises(UserError, match=r"localhost: it does not know the request 'dance'.*install the same on both"):
        host.ask({"do": "dance"}, "danced")
    assert answers(host)


# The run folder


def claim(run: RunFolder, **changes: Any) -> dict[str, Any]:
    values = {"do": "claim", "run": str(run.path), "holder": "launched from laptop", "is_shared": False, "seconds": 0.0}
    return values | changes


def test_a_claimed_folder_is_locked_until_the_program_ends(tmp_path):
    run = RunFolder(tmp_path)
    with connect() as (host, _):
        host.ask(claim(run), "claimed")
        assert read_holder(run).remark == "launched from laptop"
        with pytest.raises(UserError, match="launched from laptop"), lock_run(run):
            pass
    assert not is_locked(run)


def test_a_folder_that_another_process_trains_is_refused(tmp_path, host):
    run = RunFolder(tmp_path)
    with (
        lock_run(run),
        pytest.raises(UserError, match=f"localhost: {tmp_path} is being trained by process {os.getpid()}"),
    ):
        host.ask(claim(run), "claimed")


def test_a_second_launcher_waits_for_the_program_of_the_first(tmp_path):
    run = RunFolder(tmp_path)
    with connect("first") as (first, _), connect("second") as (second, _):
        first.ask(claim(run), "claimed")
        threading.Timer(0.5, first.close).start()
        assert second.ask(claim(run, seconds=SECONDS), "claimed")


@pytest.mark.parametrize("is_asked", [True, False], ids=["undo", "lost launcher"])
def test_nothing_is_left_of_a_start_that_failed(tmp_path, is_asked):
    run = RunFolder(tmp_path / "runs" / "mine")
    with connect() as (host, _):
        host.ask(claim(run), "claimed")
        host.ask({"do": "write", "run": str(run.path), "files": {"config.toml": "[data]"}}, "written")
        data = tmp_path / "data"
        host.ask({"do": "make_folder", "path": str(data / ".corpus.partial"), "as": str(data / "corpus")}, "made")
        if is_asked:
            assert answers(host)
            assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_stays_once_workers_have_started(host, tmp_path):
    run = RunFolder(tmp_path / "runs" / "mine")
    host.ask(claim(run), "claimed")
    start(host, run.path, rank0=[["end 5 steps"]])
    wait_for_end(host)
    assert answers(host)
    assert (run.path / "starts.rank0.jsonl").exists()


# Messages


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_message_longer_than_its_pipe_arrives_whole(is_blocking):
    """A pipe may take a part of a message: interrupted by a signal, or where another process made it non-blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, is_blocking)
    program = HostProgram(writer, math.inf)
    long = {"stacks": {"0": "x" * 2**20}}
    senders = [threading.Thread(target=program._send, args=(message,)) for message in (long, {"beats": []})]
    for sender in senders:
        sender.start()
    with os.fdopen(reader, "rb") as stream:
        received = [json.loads(stream.readline()) for _ in senders]
    for sender in senders:
        sender.join(SECONDS)
    assert sorted(received, key=str) == sorted([long, {"beats": []}], key=str)


# Workers


def test_workers_report_how_they_ended_and_get_ranks_and_environment(host, tmp_path):
    """Heartbeats after the end do not change it."""
    start(host, tmp_path, rank0=[["end 5 steps"]], rank1=[["end 5 steps"]])
    assert wait_for_end(host) == WorkersEnd(end=WorkerEnd("steps", 5), last_step=5)
    for rank in (0, 1):
        (started,) = read_starts(tmp_path, rank)
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "COLOUR": "green"}
        assert started["environment"] | wanted == started["environment"]


def test_a_worker_that_exits_without_an_end_has_failed(host, tmp_path):
    start(host, tmp_path, rank0=[["end 5 steps"]], rank1=[["step 4"]])
    ended = wait_for_end(host)
    assert [(failure.rank, failure.exit_code) for failure in ended.failures] == [(1, 0)]
    assert (ended.end, ended.last_step) == (None, 5)


@pytest.mark.parametrize(
    ("acts", "exit_code", "message", "is_plain"),
    [
        (["step 2", "signal SIGKILL"], -signal.SIGKILL, None, False),
        (["exit 7"], 7, None, False),
        (["fail Worker 1 failed: ValueError: shapes"], 1, "Worker 1 failed: ValueError: shapes", False),
        (["fail_plainly The disk is full."], 1, "The disk is full.", True),
    ],
    ids=["killed", "exit code", "exception", "plain message"],
)
def test_a_failure_is_reported_with_its_rank(host, tmp_path, acts, exit_code, message, is_plain):
    start(host, tmp_path, rank0=[["meet", "work"]], rank1=[["meet", *acts]])
    failure = next(failure for failure in wait_for_end(host).failures if failure.rank == 1)
    assert (failure.exit_code, failure.message, failure.is_plain) == (exit_code, message, is_plain)
    assert failure.time == pytest.approx(time.time(), abs=SECONDS)
    assert are_gone([read_starts(tmp_path, 0)[0]["pid"]])


@pytest.mark.parametrize(("order", "reason"), [("stop", "signal"), ("pause", "host_back")])
def test_orders_reach_all_workers(host, tmp_path, order, reason):
    start(host, tmp_path, rank0=[["obey 3"]], rank1=[["obey 3"]])
    wait_for_beats(host, "waiting for orders", num_workers=2)
    host.send({"do": order})
    assert wait_for_end(host) == WorkersEnd(end=WorkerEnd(reason, 3), last_step=3)


@pytest.mark.parametrize("order", ["stop", "pause"])
def test_a_signal_before_the_first_heartbeat_does_not_kill_a_worker(host, tmp_path, order):
    """Without a handler it would, and the worker would count as "ended by SIGUSR2"; orders are repeated later."""
    start(host, tmp_path, rank0=[["load 1.0", "end 5 steps"]])
    wait_for_start(tmp_path)
    host.send({"do": order})
    assert wait_for_end(host) == WorkersEnd(end=WorkerEnd("steps", 5), last_step=5)


def test_a_worker_without_a_heartbeat_can_be_killed(host, tmp_path):
    start(host, tmp_path, rank0=[["load 100"]])
    wait_for_start(tmp_path)
    host.send({"do": "kill"})
    assert [failure.exit_code for failure in wait_for_end(host).failures] == [-signal.SIGKILL]


def test_a_stopped_worker_is_noticed_writes_its_stack_and_can_be_killed(host, tmp_path):
    start(host, tmp_path, rank0=[["step 4", "signal SIGSTOP", "work"]], rank1=[["step 4", "wait rank 0"]])

    def is_stopped(message: dict[str, Any]) -> bool:
        beats = message.get("beats", [])
        return [beat["process_state"] for beat in beats][:1] == ["T"] and beats[1]["is_waiting"]

    stopped, other = (Beat(**beat) for beat in wait_for(host, is_stopped)["beats"])
    assert (stopped.step, stopped.is_waiting) == (4, False)
    assert other.rank == 1
    host.send({"do": "stacks"})
    stacks = wait_for(host, lambda message: "stacks" in message)["stacks"]
    assert "scripted_worker.py" in stacks["0"]
    assert "in main" in stacks["0"]
    assert "scripted_worker.py" in stacks["1"]
    host.send({"do": "kill"})
    assert {failure.exit_code for failure in wait_for_end(host).failures} == {-signal.SIGKILL}


def test_a_host_without_workers_ignores_orders_for_them(host):
    for order in ("stop", "pause", "kill", "stacks"):
        host.send({"do": order})
    assert answers(host)


def test_a_module_that_does_not_exist_is_a_failure_of_the_worker(host):
    spec = spec_of("no_such_module", (), 1, store_port=open_store(host))
    host.send({"do": "start", "spec": spec.to_json()})
    assert [failure.exit_code for failure in wait_for_end(host).failures] == [1]


# Several hosts


@pytest.mark.slow
def test_workers_of_two_hosts_find_each_other_through_the_gate(tmp_path):
    """The second reaches the store of the first with the secret only."""
    address = own_address_towards([FAR_AWAY])
    if address is None:
        pytest.skip("this machine has no network, and on loopback no gate is needed")
    ports = free_range(4)
    write_script(tmp_path, rank0=[["meet", "end 5 steps"]], rank1=[["meet", "end 5 steps"]])
    with connect("one") as (first, _), connect("two") as (second, _):
        port = open_store(first, address, [ports[0], ports[-1]])
        assert port == ports[0]
        place = {"num_nodes": 2, "store_address": address, "store_port": port}
        for rank, host in enumerate((first, second)):
            spec = spec_of("scripted_worker", (str(tmp_path),), 1, node_rank=rank, first_rank=rank, **place)
            host.send({"do": "start", "spec": spec.to_json()})
        for host in (first, second):
            assert wait_for_end(host) == WorkersEnd(end=WorkerEnd("steps", 5), last_step=5)
    assert [read_starts(tmp_path, rank)[0]["environment"]["WORLD_SIZE"] for rank in (0, 1)] == ["2", "2"]


# The end of the launcher


def test_a_host_ends_when_its_launcher_closes_the_connection():
    with connect() as (connection, _):
        connection.close(timeout=SECONDS)
        assert connection._process.returncode == LAUNCHER_GONE


@pytest.mark.slow
def test_a_host_without_its_launcher_ends_its_workers_and_itself(tmp_path):
    """A second launcher may already be at work."""
    pids: list[int] = []
    with connect("closed") as (closed, _), connect("silent", host_timeout=3.0) as (silent, keepalive):
        try:
            for host in (closed, silent):
                start(host, tmp_path / host.host.name, rank0=[["work"]], rank1=[["signal SIGSTOP"]])
            for host in (closed, silent):
                wait_for(host, lambda message: [beat["pid"] > 0 for beat in message.get("beats", [])] == [True] * 2)
                pids += [read_starts(tmp_path / host.host.name, rank)[0]["pid"] for rank in (0, 1)]
            closed._process.stdin.close()
            keepalive.stop()
            assert closed._process.wait(timeout=SECONDS) != 0
            assert silent._process.wait(timeout=SECONDS) != 0
            assert are_gone(pids)
        finally:
            for pid in pids:
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("text", [b"Last login: Tue\n", b"{}\n"])
def test_a_host_that_reads_what_no_launcher_sends_ends(text):
    with connect("elsewhere") as (connection, _):
        with connection._lock:
            os.write(connection._process.stdin.fileno(), text)
        assert connection._process.wait(timeout=SECONDS) != 0


def test_signals_of_a_job_manager_do_not_end_the_host(host):
    """It signals every process of a job; workers save then, and must not lose their parent meanwhile."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        host._process.send_signal(number)
    for _ in range(3):  # signals are handled at once, requests after them
        assert answers(host)
    assert host._process.poll() is None
