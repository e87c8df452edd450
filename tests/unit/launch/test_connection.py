"""A connection to a host: errors name the host, and no shell interprets what is sent."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dragoman.launch.connection import Connection, HostError, ssh_command
from dragoman.launch.hosts import Host
from dragoman.run.errors import UserError

SECONDS = 30.0
PORT = {"do": "port"}
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
        assert connection.ask(PORT, "port") > 0
        assert connection.seconds_silent < SECONDS
        command = connection._process.args
        assert command[-3:-1] == ["--", "elsewhere"]


def test_output_of_a_login_script_is_shown_and_ignored(screen):
    with connect("talkative", screen) as connection:
        assert connection.ask(PORT, "port") > 0
    assert ("talkative", "Welcome to talkative!") in screen.lines


def test_an_unreachable_host_is_named_with_the_error_of_ssh(screen):
    with connect("unreachable", screen) as connection:
        with pytest.raises(
            HostError, match=r"^unreachable cannot be used: ssh failed \(.*No route to host\)\.$"
        ) as raised:
            connection.ask(PORT, "port")
        assert raised.value.host == Host("unreachable")
        assert not connection.is_program_over  # it may still run, out of reach


def test_the_error_of_ssh_is_reported_even_if_it_is_read_late(screen, monkeypatch):
    """Two threads read its two streams; the error must not be missed because the other stream ended first."""
    take = Connection._on_output

    def take_late(connection: Connection, line: bytes | None) -> None:
        time.sleep(0.2)
        take(connection, line)

    monkeypatch.setattr(Connection, "_on_output", take_late)
    with connect("unreachable", screen) as connection, pytest.raises(HostError, match="No route to host"):
        connection.ask(PORT, "port")


def test_a_host_without_dragoman_is_an_error_that_names_the_path(screen):
    with connect("bare", screen) as connection, pytest.raises(HostError, match=f"no {sys.executable} there; install"):
        connection.ask(PORT, "port")


def test_without_ssh_other_hosts_cannot_be_reached(screen, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="ssh is not installed here"), connect("elsewhere", screen):
        pass


@pytest.mark.parametrize("name", ["elsewhere", "localhost"])
def test_a_program_that_died_is_reported_with_its_code(screen, name):
    with connect(name, screen) as connection:
        connection.ask(PORT, "port")
        connection._process.kill()
        with pytest.raises(HostError, match=rf"^{name} cannot be used: its program ended with code -9"):
            connection.ask(PORT, "port")
        assert connection.is_program_over
        connection.send({"do": "keepalive"})  # no error


def test_a_host_that_does_not_answer_is_named(screen):
    with connect("elsewhere", screen) as connection:
        connection.ask(PORT, "port")
        connection._process.send_signal(signal.SIGSTOP)
        with pytest.raises(HostError, match=r"^elsewhere did not answer in 0 s\.$"):
            connection.ask(PORT, "port", timeout=0.3)
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
        connection.ask({"do": "make_folder", "path": str(evil)}, "made")
        command_line = psutil.Process(connection._process.pid).cmdline()
    assert evil.is_dir()
    assert not list(tmp_path.rglob("evil"))
    assert not Path("evil").exists()
    assert "evil" not in " ".join(command_line)


@pytest.mark.parametrize("name", ["elsewhere", "localhost"])
def test_a_file_in_the_current_folder_is_not_imported_as_a_module(screen, tmp_path, monkeypatch, name):
    """`python -m` would look in the current folder first, or in the home folder over ssh."""
    (tmp_path / "queue.py").write_text("raise SystemExit('this is a program about queues')\n")
    monkeypatch.chdir(tmp_path)
    with connect(name, screen) as connection:
        assert connection.ask(PORT, "port") > 0


def test_ctrl_c_reaches_only_the_launcher(screen):
    with connect("localhost", screen) as connection:
        assert os.getpgid(connection._process.pid) != os.getpgrp()


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
