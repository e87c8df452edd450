"""A connection to a host: errors name the host, and no shell interprets what is sent."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer

import psutil
import pytest

from dragoman.cluster.failure import Failure
from dragoman.cluster.heartbeat import WorkerEnd
from dragoman.launch import connection as connection_module
from dragoman.launch.connection import (
    MOST_QUIET_SECONDS,
    AttemptSpec,
    Connection,
    HostError,
    Keepalive,
    StopRequestedError,
    WorkersEnd,
    ports_from_json,
    ports_to_json,
    ssh_command,
)
from dragoman.launch.hosts import Host
from dragoman.run.errors import UserError

SECONDS = 30.0
UNDO = {"do": "undo"}
"""A request that takes no time."""
pytestmark = pytest.mark.usefixtures("fake_ssh")


class Screen:
    """Collects the lines that would be shown."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def show(self, host: str, line: str) -> None:
        self.lines.append((host, line))


@pytest.fixture
def screen():
    return Screen()


@contextmanager
def connect(name: str, screen: Screen) -> Iterator[Connection]:
    connection = Connection(Host(name), None, screen.show, SECONDS)
    try:
        yield connection
    finally:
        connection._process.send_signal(signal.SIGCONT)  # one that a test has stopped could not end
        connection.close()


def test_ssh_asks_no_questions_and_gets_the_config():
    assert "BatchMode=yes" in ssh_command(None)
    assert "-F" not in ssh_command(None)
    with_config = ssh_command(Path("/etc/my config"))
    assert with_config[with_config.index("-F") + 1] == "/etc/my config"


def test_a_host_over_ssh_answers(screen):
    with connect("elsewhere", screen) as connection:
        assert connection.ask(UNDO, "undone")
        assert connection.seconds_silent < SECONDS
        command = connection._process.args
        assert command[-3:-1] == ["--", "elsewhere"]


def test_output_of_a_login_script_is_shown_and_ignored(screen):
    with connect("talkative", screen) as connection:
        assert connection.ask(UNDO, "undone")
    assert ("talkative", "Welcome to talkative!") in screen.lines


def test_an_unreachable_host_is_named_with_the_error_of_ssh(screen):
    with connect("unreachable", screen) as connection:
        with pytest.raises(
            HostError, match=r"^unreachable cannot be used: ssh failed: .*no route to host.* firewall"
        ) as raised:
            connection.ask(UNDO, "undone")
        assert raised.value.host == Host("unreachable")


def test_the_error_of_ssh_is_reported_even_if_it_is_read_late(screen, monkeypatch):
    """Two threads read its two streams; the error must not be missed because the other stream ended first."""
    take = Connection._on_output

    def take_late(connection: Connection, line: bytes | None) -> None:
        time.sleep(0.2)
        take(connection, line)

    monkeypatch.setattr(Connection, "_on_output", take_late)
    with connect("unreachable", screen) as connection, pytest.raises(HostError, match="no route to host"):
        connection.ask(UNDO, "undone")


def test_a_host_without_dragoman_is_an_error_that_names_the_path(screen):
    with connect("bare", screen) as connection, pytest.raises(HostError, match=f"no {sys.executable} there; install"):
        connection.ask(UNDO, "undone")


def test_without_ssh_other_hosts_cannot_be_reached(screen, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="ssh is not installed here"), connect("elsewhere", screen):
        pass


@pytest.mark.parametrize("name", ["elsewhere", "localhost"])
def test_a_program_that_died_is_reported_with_its_code(screen, name):
    with connect(name, screen) as connection:
        connection.ask(UNDO, "undone")
        connection._process.kill()
        with pytest.raises(HostError, match=rf"^{name} cannot be used: its program ended with code -9"):
            connection.ask(UNDO, "undone")
        assert connection.receive() is None  # the reason is told once
        connection.send({"do": "keepalive"})  # no error


def test_a_host_that_does_not_answer_is_named(screen):
    with connect("elsewhere", screen) as connection:
        connection.ask(UNDO, "undone")
        connection._process.send_signal(signal.SIGSTOP)
        with pytest.raises(HostError, match=r"^elsewhere did not answer in 0 s\.$"):
            connection.ask(UNDO, "undone", timeout=0.3)
        before = connection.seconds_silent
        time.sleep(0.1)
        assert connection.seconds_silent > before


def test_a_program_that_does_not_end_is_killed(screen):
    with connect("elsewhere", screen) as connection:
        process = connection._process
        process.send_signal(signal.SIGSTOP)
        connection.close(timeout=0.1)
        assert process.returncode == -signal.SIGKILL


def test_a_program_on_this_machine_is_never_silent(screen):
    """It cannot be out of reach, and its launcher may be stopped for a while."""
    with connect("localhost", screen) as connection:
        connection._process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        assert connection.seconds_silent == 0.0


def test_no_shell_interprets_paths(screen, tmp_path):
    evil = tmp_path / "$(touch evil); touch evil 'x\" \n& wüst"
    with connect("elsewhere", screen) as connection:
        connection.ask({"do": "make_folder", "path": str(evil), "as": f"{evil}2"}, "made")
        command_line = psutil.Process(connection._process.pid).cmdline()
        assert evil.is_dir()
    assert not evil.exists()  # the run has not begun
    assert not list(tmp_path.rglob("evil"))
    assert not Path("evil").exists()
    assert "evil" not in " ".join(command_line)


@pytest.mark.parametrize("name", ["elsewhere", "localhost"])
def test_a_file_in_the_current_folder_is_not_imported_as_a_module(screen, tmp_path, monkeypatch, name):
    """`python -m` would look in the current folder first, or in the home folder over ssh."""
    (tmp_path / "queue.py").write_text("raise SystemExit('this is a program about queues')\n")
    monkeypatch.chdir(tmp_path)
    with connect(name, screen) as connection:
        assert connection.ask(UNDO, "undone")


def test_ctrl_c_reaches_only_the_launcher(screen):
    with connect("localhost", screen) as connection:
        assert os.getpgid(connection._process.pid) != os.getpgrp()


def test_a_stop_request_ends_a_question_within_a_moment(screen):
    with connect("elsewhere", screen) as connection:
        connection.ask(UNDO, "undone")
        connection._process.send_signal(signal.SIGSTOP)
        begin, is_stopping = time.monotonic(), Event()
        Timer(0.2, is_stopping.set).start()
        with pytest.raises(StopRequestedError):
            connection.ask(UNDO, "undone", timeout=SECONDS, is_stopping=is_stopping.is_set)
        assert 0.2 <= time.monotonic() - begin < SECONDS / 2


def test_an_answer_that_is_there_counts_more_than_a_stop(screen):
    with connect("elsewhere", screen) as connection:
        connection._messages.put({"undone": True})
        assert connection.ask({"do": "keepalive"}, "undone", is_stopping=lambda: True)


def test_receive_waits_no_longer_than_its_timeout(screen):
    with connect("elsewhere", screen) as connection:
        connection._process.send_signal(signal.SIGSTOP)
        while connection.receive() is not None:
            pass
        begin = time.monotonic()
        assert connection.receive(timeout=0.2) is None
        assert 0.15 < time.monotonic() - begin < SECONDS


def test_closing_twice_is_no_error(screen):
    with connect("localhost", screen) as connection:
        connection.close()
        connection.close()
        assert connection._process.poll() is not None


# Keepalives


class FakeHost:
    """A host with a chosen silence that counts the messages it gets."""

    def __init__(self, seconds_silent: float) -> None:
        self.seconds_silent = seconds_silent
        self.quiet_seconds = MOST_QUIET_SECONDS
        self.received: list[dict[str, object]] = []

    def send(self, message: dict[str, object]) -> None:
        self.received.append(message)


@pytest.fixture
def keepalive(monkeypatch):
    monkeypatch.setattr(connection_module, "KEEPALIVE_SECONDS", 0.01)
    keepalive = Keepalive()
    yield keepalive
    keepalive.stop()


def wait_for_messages(host: FakeHost, number: int) -> None:
    end, wanted = time.monotonic() + SECONDS, len(host.received) + number
    while len(host.received) < wanted:
        assert time.monotonic() < end, "no message came"
        time.sleep(0.005)


def test_hosts_are_kept_alive_until_they_are_removed(keepalive):
    first, second = FakeHost(0.1), FakeHost(0.1)
    keepalive.add(first)
    keepalive.add(second)
    wait_for_messages(first, 3)
    keepalive.remove(first)
    wait_for_messages(second, 2)
    num_messages = len(first.received)
    wait_for_messages(second, 3)
    assert len(first.received) == num_messages
    assert {"do": "keepalive"} in second.received


def test_keepalives_stop_for_a_silent_host_and_go_on_when_it_is_heard_again(keepalive):
    """So a host that will be given up has ended its workers by then."""
    silent, other = FakeHost(MOST_QUIET_SECONDS + 0.1), FakeHost(0.1)
    keepalive.add(silent)
    keepalive.add(other)
    wait_for_messages(other, 3)
    assert silent.received == []
    silent.seconds_silent = 0.1
    wait_for_messages(silent, 1)


@pytest.mark.parametrize("host_timeout", [3.0, 5.0, 15.0, 60.0])
def test_a_host_has_ended_its_workers_when_it_is_given_up(screen, host_timeout):
    """Its last keepalive comes at most `quiet_seconds` after it was heard last; then it waits for its own limit."""
    connection = Connection(Host("elsewhere"), None, screen.show, host_timeout)
    try:
        silence_seconds = float(connection._process.args[-1].split()[-1])
        assert connection.quiet_seconds + silence_seconds <= host_timeout
        # It must not be taken for lost between two keepalives or two heartbeats, which come once a second or more.
        assert silence_seconds >= 2 * connection_module.KEEPALIVE_SECONDS
        assert connection.quiet_seconds >= connection_module.KEEPALIVE_SECONDS
    finally:
        connection.close()


# What is sent


def test_a_spec_and_an_end_are_sent_as_plain_values():
    spec = AttemptSpec("id", "trainer", ("run",), 1, 2, 2, 3, "fd00::1", 29500, "s3cret", {"COLOUR": "green"})
    assert AttemptSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    end = WorkersEnd((Failure(1, -9, 2.0),), None, 7)
    assert WorkersEnd.from_json(json.loads(json.dumps(end.to_json()))) == end
    end = WorkersEnd(end=WorkerEnd("steps", 9), last_step=9)
    assert WorkersEnd.from_json(json.loads(json.dumps(end.to_json()))) == end


@pytest.mark.parametrize("ports", [None, range(29500, 29564), range(29500, 29501)])
def test_a_range_of_ports_is_sent_by_its_first_and_last_port(ports):
    assert ports_from_json(json.loads(json.dumps(ports_to_json(ports)))) == ports
