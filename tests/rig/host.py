"""One host of the rig: commands inside it, its link and its counters."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.processes import lives_in, pids_in
from rig.rate import limit_device
from rig.tools import run_tool, tool
from rig.traces import NAMESPACES

Argument = str | Path


def inside(keeper_pid: int, argv: Sequence[Argument], folder: Path) -> list[Argument]:
    """Returns the command line that runs a command in the namespaces of a host, given by its keeper process.

    Entering a mount namespace leads to its root folder, hence `env --chdir`. Both programs become the command: its
    process number and its signals are the caller's.
    """
    enter = [tool("nsenter"), "--target", str(keeper_pid), "--net", "--uts", "--mount", "--"]
    return [*enter, tool("env"), f"--chdir={folder}", *argv]


def start_inside(namespace: str, argv: Sequence[Argument], **options: Any) -> "subprocess.Popen[Any]":
    """Starts a command line that enters a network namespace, and returns when it has entered.

    One still on its way would not be found among the processes of its host, and could outlive it.
    """
    process = subprocess.Popen(argv, **options)
    home = (NAMESPACES / namespace).stat()
    while process.poll() is None and not lives_in(process.pid, home):
        time.sleep(0.001)
    return process


@dataclass(frozen=True)
class Host:
    """A host with a name, an address and an sshd of its own; it shares the file system with the others."""

    name: str
    address: str
    interface: str
    """Its network device, as the host itself sees it."""
    link: str
    """The end of that device here, at the bridge; its network namespace has the same name."""
    keeper: "subprocess.Popen[bytes]"
    """The process that keeps its namespaces open."""
    server: "subprocess.Popen[bytes]"
    """Its sshd."""

    def run(self, argv: Sequence[Argument], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Runs a command on the host, as `subprocess.run` does."""
        return subprocess.run(self._inside(argv, options), **options)

    def popen(self, argv: Sequence[Argument], **options: Any) -> "subprocess.Popen[Any]":
        """Starts a command on the host, as `subprocess.Popen` does."""
        return start_inside(self.link, self._inside(argv, options), **options)

    def _inside(self, argv: Sequence[Argument], options: dict[str, Any]) -> list[Argument]:
        return inside(self.keeper.pid, argv, Path(options.pop("cwd", None) or Path.cwd()))

    def processes(self) -> list[int]:
        """Processes on the host, except the two that make it a host; empty if it is not in use."""
        return [pid for pid in pids_in(NAMESPACES / self.link) if pid not in (self.keeper.pid, self.server.pid)]

    def set_rate(self, rate: str | None) -> None:
        """Limits both directions of the link ("100mbit"), or lifts the limit."""
        limit_device(self.link, rate)
        limit_device(self.interface, rate, namespace=self.link)

    def link_down(self) -> None:
        """Cuts the link: packets are lost, connections stay open."""
        run_tool("ip", "link", "set", self.link, "down")

    def link_up(self) -> None:
        """Restores the link."""
        run_tool("ip", "link", "set", self.link, "up")

    def bytes_received(self) -> int:
        """Bytes that the host's interface has received since the rig was built."""
        return self._counters()[0]

    def bytes_sent(self) -> int:
        """Bytes that the host's interface has sent since the rig was built."""
        return self._counters()[8]

    def _counters(self) -> list[int]:
        """The line of the interface in net/dev: eight figures of receiving, then eight of sending."""
        lines = Path(f"/proc/{self.keeper.pid}/net/dev").read_text(encoding="ascii").splitlines()
        devices = dict(line.split(":", 1) for line in lines if ":" in line)
        figures = {name.strip(): values for name, values in devices.items()}
        return [int(value) for value in figures[self.interface].split()]
