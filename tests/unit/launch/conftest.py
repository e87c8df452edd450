"""Hosts for tests on one machine: an `ssh` that runs commands here, and workers that follow a script."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.launch.connection import Connection, Keepalive
from dragoman.launch.hosts import Host, LaunchPlan, Placement
from dragoman.run.folder import RunFolder

TESTS = Path(__file__).parents[2]
SSH = """#!/bin/sh
# Host names say what happens to a connection; any other name is this machine.
for last; do host=$before before=$last; done
case "$host" in
  unreachable*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
  bare*) echo "sh: 1: exec: python: not found" >&2; exit 127 ;;
  frozen*) exec sleep 600 ;;
  talkative*) echo "Welcome to $host!" ;;
esac
export FAKE_HOSTNAME="$host" PYTHONPATH="$(dirname "$0")${PYTHONPATH:+:$PYTHONPATH}"
exec sh -c "$last"
"""
HOSTNAME = """
import os, socket
if "FAKE_HOSTNAME" in os.environ:
    socket.gethostname = lambda: os.environ["FAKE_HOSTNAME"]
"""
"""Run by every Python at its start: hosts of one run have different names."""


@pytest.fixture(scope="module")
def fake_ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes `ssh HOST COMMAND` run the command here, for most hosts."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ssh").write_text(SSH, encoding="utf-8")
    (folder / "ssh").chmod(0o755)
    (folder / "sitecustomize.py").write_text(HOSTNAME, encoding="utf-8")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def scripted_worker() -> Iterator[str]:
    """Returns the module to run in place of the trainer; see tests/scripted_worker.py."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        yield "scripted_worker"


class ReusedConnection(Connection):
    """A connection that stays open when it is closed, for tests whose workers have ended by then."""

    def close(self, timeout: float = 5.0) -> None:
        """Keeps the program, which has already imported torch, for the next test."""

    def end(self) -> None:
        """Closes the connection."""
        super().close()


@pytest.fixture(scope="module")
def reused_hosts(fake_ssh, scripted_worker) -> Iterator[Callable[..., Connection]]:
    """Returns a stand-in for `Connection` that connects to each host once: importing torch takes a host two seconds."""
    connections: dict[str, ReusedConnection] = {}
    keepalive = Keepalive()

    def connect(host: Host, *arguments: Any) -> Connection:
        connection = connections.get(host.name)
        if connection is None or connection._process.poll() is not None:
            connection = connections[host.name] = ReusedConnection(host, *arguments)
            keepalive.add(connection)
            return connection
        connection.host = host
        while connection.receive() is not None:  # heartbeats since the last test
            pass
        return connection

    yield connect
    keepalive.stop()
    for connection in connections.values():
        connection.end()


@pytest.fixture
def build_plan(tmp_path: Path) -> Callable[..., LaunchPlan]:
    """Returns a function that plans a run of scripted workers, on this machine unless hosts are given."""

    def build(*hosts: Host, is_data_sent: bool = False, **changes: Any) -> LaunchPlan:
        values = {
            "run": RunFolder(tmp_path),
            "module": "scripted_worker",
            "placement": Placement(hosts or (Host("localhost", 2),), is_data_sent=is_data_sent),
            "prepared": Path("prepared"),
            "kept_bytes": 0,
            "max_workers": 4,
            "hang_timeout": 60.0,
            "host_timeout": 15.0,
            "max_restarts": 2,
        }
        return LaunchPlan(**values | changes)

    return build
