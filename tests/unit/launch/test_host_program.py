"""The program on every host: answers, runs workers, tells how they end, and never leaves one behind."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_worker import Acts, read_starts, write_script

from dragoman.cluster.failure import Failure
from dragoman.cluster.heartbeat import Beat
from dragoman.cluster.reach import free_port, reachable_address
from dragoman.launch.connection import AttemptSpec, Connection, Pulse
from dragoman.launch.hosts import Facts, Host
from dragoman.run.errors import UserError

LOOPBACK = "127.0.0.1"
SECONDS = 60.0


pytestmark = pytest.mark.usefixtures("fake_ssh", "scripted_worker")


@contextmanager
def connect(name: str = "localhost", silence_seconds: float = SECONDS) -> Iterator[tuple[Connection, Pulse]]:
    connection = Connection(Host(name), None, lambda _host, _line: None, silence_seconds)
    pulse = Pulse()
    pulse.watch(connection)
    try:
        yield connection, pulse
    finally:
        pulse.stop()
        connection.close()


@pytest.fixture(scope="module")
def shared_host(scripted_worker) -> Iterator[Connection]:
    """One program for many attempts, as in a run with restarts: importing torch takes it two seconds."""
    with connect() as (connection, _):
        yield connection


@pytest.fixture
def host(shared_host) -> Connection:
    """The same, with nothing left to hear of earlier tests but beats."""
    while (message := shared_host.receive()) is not None:
        assert message.keys() == {"beats"}
    return shared_host


def start(connection: Connection, run: Path, **attempts_of_rank: list[Acts]) -> None:
    write_script(run, **attempts_of_rank)
    spec = AttemptSpec(
        "attempt",
        "scripted_worker",
        (str(run),),
        node_rank=0,
        num_nodes=1,
        first_rank=0,
        num_workers=len(attempts_of_rank),
        master_address=LOOPBACK,
        master_port=free_port(),
        environment={"COLOUR": "green"},
    )
    connection.send({"do": "start", "spec": spec.to_json()})


def wait_for(connection: Connection, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        message = connection.receive(timeout=1.0)
        if message is not None and is_it(message):
            return message
    raise AssertionError(f"it was not said in {SECONDS:.0f} s")


def wait_for_end(connection: Connection) -> tuple[list[Failure], Beat | None]:
    ended = wait_for(connection, lambda message: "ended" in message)["ended"]
    assert ended["error"] is None
    return [Failure(**failure) for failure in ended["failures"]], Beat(**ended["last_beat"])


def wait_for_beats(connection: Connection, doing: str, num_workers: int) -> list[Beat]:
    def is_it(message: dict[str, Any]) -> bool:
        beats = message.get("beats", [])
        return len(beats) == num_workers and all(doing in beat["doing"] for beat in beats)

    return [Beat(**beat) for beat in wait_for(connection, is_it)["beats"]]


def are_gone(pids: list[int]) -> bool:
    """Whether processes end within a while; dead ones that nobody has buried count as gone."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_it_tells_facts_of_its_machine(host, tmp_path, prepared):
    request = {"do": "facts", "run": str(tmp_path), "prepared": str(prepared), "token": "unseen"}
    facts = Facts(**host.ask(request, "facts"))
    assert facts.hostname == socket.gethostname()
    assert facts.data is not None
    assert not facts.shares_run_folder


def test_it_writes_what_it_is_given_and_names_what_it_cannot_write(host, tmp_path):
    run = tmp_path / "new" / "run"
    request = {"do": "write", "run": str(run), "files": {"config.toml": "[data]\nprepared = 'Größe'\n"}}
    assert host.ask(request, "written") == 1
    assert (run / "config.toml").read_text(encoding="utf-8") == "[data]\nprepared = 'Größe'\n"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"localhost: Not a directory: .*/file/run"):
        host.ask(request | {"run": str(tmp_path / "file" / "run")}, "written")


def test_a_copied_folder_gets_its_name_only_when_it_is_whole(host, tmp_path):
    aside, final = tmp_path / "data" / ".corpus.partial", tmp_path / "data" / "corpus"
    host.ask({"do": "make_folder", "path": str(aside)}, "made")
    assert aside.is_dir()
    host.ask({"do": "adopt", "path": str(aside), "as": str(final)}, "adopted")
    assert final.is_dir()
    assert not aside.exists()


def test_it_listens_tries_its_peers_and_frees_the_port_afterwards(host):
    listening = host.ask({"do": "listen", "secret": "s3cret", "port": 0}, "listening")
    assert LOOPBACK in listening["addresses"]
    assert reachable_address([LOOPBACK], listening["port"], "s3cret") == LOOPBACK
    right = {"addresses": [LOOPBACK], "port": listening["port"], "secret": "s3cret"}
    peers = {"right": right, "wrong": right | {"secret": "other!"}}
    assert host.ask({"do": "reach", "peers": peers}, "reached") == {"right": LOOPBACK}
    assert host.ask({"do": "settle", "address": LOOPBACK}, "settled") == {"interface": "lo"}
    assert reachable_address([LOOPBACK], listening["port"], "s3cret") is None


def test_an_address_that_is_not_its_own_is_named(host):
    with pytest.raises(UserError, match=r"localhost: no network interface has the address 192\.0\.2\.1"):
        host.ask({"do": "settle", "address": "192.0.2.1"}, "settled")


def test_it_finds_a_free_port(host):
    with socket.create_server((LOOPBACK, host.ask({"do": "port"}, "port"))):
        pass


def test_workers_that_end_well_leave_their_last_words(host, tmp_path):
    start(host, tmp_path, rank0=[["step 5", "end steps"]], rank1=[["step 5", "end steps"]])
    failures, last = wait_for_end(host)
    assert failures == []
    assert (last.rank, last.step, last.doing) == (0, 5, "steps")


def test_workers_get_their_ranks_and_the_environment_of_the_attempt(host, tmp_path):
    start(host, tmp_path, rank0=[["end steps"]], rank1=[["end steps"]])
    wait_for_end(host)
    for rank in (0, 1):
        (started,) = read_starts(tmp_path, rank)
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "COLOUR": "green"}
        assert started["environment"] | wanted == started["environment"]


@pytest.mark.parametrize(
    ("acts", "exit_code", "message", "is_plain"),
    [
        (["step 2", "signal SIGKILL"], -signal.SIGKILL, None, False),
        (["exit 7"], 7, None, False),
        (["fail Worker 1 failed: ValueError: shapes"], 1, "Worker 1 failed: ValueError: shapes", False),
        (["complain The disk is full."], 1, "The disk is full.", True),
    ],
    ids=["killed", "exit code", "exception", "plain words"],
)
def test_how_a_worker_failed_is_told_with_its_rank(host, tmp_path, acts, exit_code, message, is_plain):
    start(host, tmp_path, rank0=[["meet", "work"]], rank1=[["meet", *acts]])
    failures, _ = wait_for_end(host)
    failure = next(failure for failure in failures if failure.rank == 1)
    assert (failure.exit_code, failure.message, failure.is_plain) == (exit_code, message, is_plain)
    assert failure.time == pytest.approx(time.time(), abs=SECONDS)
    assert are_gone([read_starts(tmp_path, 0)[0]["pid"]])


@pytest.mark.parametrize(("order", "last_words"), [("stop", "signal"), ("pause", "host_back")])
def test_orders_reach_all_workers(host, tmp_path, order, last_words):
    start(host, tmp_path, rank0=[["obey"]], rank1=[["obey"]])
    wait_for_beats(host, "waiting for orders", num_workers=2)
    host.send({"do": order})
    failures, last = wait_for_end(host)
    assert failures == []
    assert last.doing == last_words


def test_a_stopped_worker_is_seen_to_be_and_tells_its_stack_and_can_be_killed(host, tmp_path):
    start(host, tmp_path, rank0=[["step 4", "signal SIGSTOP", "work"]], rank1=[["step 4", "wait rank 0"]])

    def is_stopped(message: dict[str, Any]) -> bool:
        return [beat["process_state"] for beat in message.get("beats", [])][:1] == ["T"]

    stopped, other = (Beat(**beat) for beat in wait_for(host, is_stopped)["beats"])
    assert (stopped.step, stopped.is_waiting) == (4, False)
    assert other.rank == 1
    host.send({"do": "stacks"})
    stacks = wait_for(host, lambda message: "stacks" in message)["stacks"]
    assert "scripted_worker.py" in stacks["0"]
    assert "in main" in stacks["0"]
    assert "scripted_worker.py" in stacks["1"]
    host.send({"do": "kill"})
    failures, _ = wait_for_end(host)
    assert {failure.exit_code for failure in failures} == {-signal.SIGKILL}


def test_orders_for_workers_are_nothing_to_a_host_without(host):
    for order in ("stop", "pause", "kill", "stacks"):
        host.send({"do": order})
    assert host.ask({"do": "port"}, "port") > 0


def test_a_module_that_does_not_exist_is_a_failure_of_the_worker_not_of_the_host(host, tmp_path):
    spec = AttemptSpec("attempt", "no_such_module", (), 0, 1, 0, 1, LOOPBACK, free_port())
    host.send({"do": "start", "spec": spec.to_json()})
    failures, last = wait_for_end(host)
    assert [failure.exit_code for failure in failures] == [1]
    assert last.doing == "starting"


def test_a_host_that_its_launcher_leaves_ends_at_once():
    with connect() as (connection, _):
        host_process = connection._process
        begin = time.monotonic()
        connection.close()
        assert time.monotonic() - begin < 3
        assert host_process.returncode == 1
        assert connection.is_program_over


def _close(connection: Connection, _pulse: Pulse) -> None:
    connection._process.stdin.close()


def _keep_silent(_connection: Connection, pulse: Pulse) -> None:
    pulse.stop()


def _write(words: bytes) -> Callable[[Connection, Pulse], None]:
    def write(connection: Connection, _pulse: Pulse) -> None:
        with connection._lock:
            os.write(connection._process.stdin.fileno(), words)

    return write


@pytest.mark.parametrize(
    "leave",
    [_close, _keep_silent, _write(b"Last login: Tue\n"), _write(b"{}\n")],
    ids=["closed", "silent", "no JSON", "no order"],
)
def test_a_host_without_its_launcher_ends_its_workers_and_itself(tmp_path, leave):
    """Also where something else than a launcher speaks to it; a second launcher may already be at work."""
    with connect("elsewhere", silence_seconds=3.0) as (connection, pulse):
        start(connection, tmp_path, rank0=[["work"]], rank1=[["signal SIGSTOP"]])
        wait_for(connection, lambda message: [beat["pid"] > 0 for beat in message.get("beats", [])] == [True, True])
        leave(connection, pulse)
        pids = [read_starts(tmp_path, rank)[0]["pid"] for rank in (0, 1)]
        try:
            assert connection._process.wait(timeout=15) != 0
            assert are_gone(pids)
        finally:
            for pid in pids:
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)


def test_signals_of_a_job_manager_do_not_end_the_host(host):
    """It signals every process of a job; workers save then, and must not lose their parent meanwhile."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        host._process.send_signal(number)
    assert host.ask({"do": "port"}, "port") > 0
    with pytest.raises(subprocess.TimeoutExpired):
        host._process.wait(timeout=0.2)
