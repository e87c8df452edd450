"""A conversation with a host: what goes wrong is told in words that name the host, and no shell reads what we say."""

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
    """What would be shown to the person."""

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
        connection.close(timeout=1.0)


def test_ssh_asks_no_questions_and_takes_the_host_for_no_option():
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


def test_words_of_a_login_script_are_shown_and_do_no_harm(screen):
    with connect("talkative", screen) as connection:
        assert connection.ask(PORT, "port") > 0
    assert ("talkative", "Welcome to talkative!") in screen.lines


def test_a_host_that_ssh_does_not_reach_is_named_with_what_ssh_said(screen):
    with connect("unreachable", screen) as connection:
        with pytest.raises(
            HostError, match=r"^unreachable cannot be used: ssh failed \(.*No route to host\)\.$"
        ) as told:
            connection.ask(PORT, "port")
        assert told.value.host == Host("unreachable")
        assert not connection.is_program_over  # for all we know it runs on, out of reach


def test_what_ssh_said_is_told_even_if_it_is_read_late(screen, monkeypatch):
    """Its two streams are read by two threads; the last words must not be missed because the other stream ended."""
    take = Connection._on_output

    def take_late(connection: Connection, line: bytes | None) -> None:
        time.sleep(0.2)
        take(connection, line)

    monkeypatch.setattr(Connection, "_on_output", take_late)
    with connect("unreachable", screen) as connection, pytest.raises(HostError, match="No route to host"):
        connection.ask(PORT, "port")


def test_a_host_without_our_program_is_told_where_it_should_be(screen):
    with connect("bare", screen) as connection, pytest.raises(HostError, match=f"no {sys.executable} there; install"):
        connection.ask(PORT, "port")


def test_without_ssh_other_hosts_are_out_of_reach(screen, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="ssh is not installed here"), connect("elsewhere", screen):
        pass


@pytest.mark.parametrize("name", ["elsewhere", "localhost"])
def test_a_program_that_died_is_told_with_its_code(screen, name):
    with connect(name, screen) as connection:
        connection.ask(PORT, "port")
        connection._process.kill()
        with pytest.raises(HostError, match=rf"^{name} cannot be used: its program ended with code -9"):
            connection.ask(PORT, "port")
        assert connection.is_program_over
        connection.send({"do": "beat"})  # to nobody, and no error


def test_a_host_that_says_nothing_is_named(screen):
    with connect("elsewhere", screen) as connection:
        connection.ask(PORT, "port")
        connection._process.send_signal(signal.SIGSTOP)
        with pytest.raises(HostError, match=r"^elsewhere did not answer in 0 s\.$"):
            connection.ask(PORT, "port", timeout=0.3)
        before = connection.seconds_silent
        time.sleep(0.1)
        assert connection.seconds_silent > before


def test_a_program_that_does_not_end_when_it_is_left_is_ended(screen):
    with connect("elsewhere", screen) as connection:
        process = connection._process
        process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        connection.close(timeout=0.3)
        assert time.monotonic() - begin < 5
        assert process.returncode == -signal.SIGKILL


def test_a_program_here_is_never_silent(screen):
    """It cannot get lost without being closed; and its launcher may be stopped for a while."""
    with connect("localhost", screen) as connection:
        connection._process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        assert connection.seconds_silent == 0.0


def test_no_shell_reads_the_paths_a_person_chose(screen, tmp_path):
    evil = tmp_path / "$(touch evil); touch evil 'x\" \n& wüst"
    with connect("elsewhere", screen) as connection:
        connection.ask({"do": "make_folder", "path": str(evil)}, "made")
        command_line = psutil.Process(connection._process.pid).cmdline()
    assert evil.is_dir()
    assert not list(tmp_path.rglob("evil"))
    assert not Path("evil").exists()
    assert "evil" not in " ".join(command_line)


@pytest.mark.parametrize("name", ["elsewhere", "localhost"])
def test_a_file_of_the_person_is_not_taken_for_a_module_of_its_name(screen, tmp_path, monkeypatch, name):
    """`python -m` would look where the person stands first, or in the home folder over ssh."""
    (tmp_path / "queue.py").write_text("raise SystemExit('this is a program about queues')\n")
    monkeypatch.chdir(tmp_path)
    with connect(name, screen) as connection:
        assert connection.ask(PORT, "port") > 0


def test_a_terminals_interrupt_is_for_the_launcher_alone(screen):
    with connect("localhost", screen) as connection:
        assert os.getpgid(connection._process.pid) != os.getpgrp()


def test_no_message_is_waited_for_longer_than_asked(screen):
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
