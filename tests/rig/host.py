"""One host of the rig: commands inside it, its counters, and what can go wrong with it."""

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rig.clocks import step_clock
from rig.filters import filtered
from rig.processes import NAMESPACES, Argument, end_processes_in, inside, pids_in, start_inside
from rig.rate import limit_device
from rig.tools import run_tool

FILLER_NAME = ".filler"
BRIDGE_MTU = 1500
DEFAULT_BATCH = 65_535
"""Packets that a device may take at once, as Linux sets it."""


@dataclass
class Host:
    """A host with a name, an address and an sshd of its own; it shares the file system with the others."""

    name: str
    address: str
    interface: str
    """Its network device, as the host itself sees it."""
    link: str
    """The end of that device here, at the bridge; its network namespace has the same name."""
    private: Path
    """The folder that the host sees as its own."""
    keeper: "subprocess.Popen[bytes]"
    """The process that keeps its namespaces open."""
    start_server: Callable[[], "subprocess.Popen[bytes]"]
    """Starts its sshd and returns when it answers."""
    clock_file: Path
    """What its processes add to the time; it exists where the rig has steppable clocks."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes."""
    server: "subprocess.Popen[bytes] | None" = None
    """Its sshd; None while the host is switched off."""

    def run(self, argv: Sequence[Argument], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Runs a command on the host, as `subprocess.run` does."""
        return subprocess.run(self._inside(argv, options), **options)

    def popen(self, argv: Sequence[Argument], **options: Any) -> "subprocess.Popen[Any]":
        """Starts a command on the host, as `subprocess.Popen` does."""
        return start_inside(self.link, self._inside(argv, options), **options)

    def _inside(self, argv: Sequence[Argument], options: dict[str, Any]) -> list[Argument]:
        folder = Path(options.pop("cwd", None) or Path.cwd())
        return inside(self.keeper.pid, argv, folder, self.variables)

    def processes(self) -> list[int]:
        """Processes on the host, except the two that make it a host; empty if it is not in use."""
        own = (self.keeper.pid, self.server.pid if self.server else None)
        return [pid for pid in pids_in(NAMESPACES / self.link) if pid not in own]

    def path(self, path: Path) -> Path:
        """Returns where this machine finds what the host sees at an absolute path."""
        return Path(f"/proc/{self.keeper.pid}/root{path}")

    # Power and sessions

    def power_off(self) -> None:
        """Cuts the link and kills all processes; peers get no farewell, as from a machine without current."""
        self.link_down()
        end_processes_in(NAMESPACES / self.link, spared=(self.keeper.pid,))
        if self.server is not None:
            self.server.wait()
            self.server = None

    def power_on(self) -> None:
        """Restores the link and starts the sshd of a host that was switched off."""
        self.link_up()
        self.server = self.start_server()

    def kill_ssh_sessions(self) -> None:
        """Kills the processes of sshd that serve sessions; the one that listens stays."""
        assert self.server is not None
        for child in psutil.Process(self.server.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):
                    child.send_signal(signal.SIGKILL)

    # Link

    def set_rate(self, rate: str | None) -> None:
        """Limits both directions of the link ("100mbit"), or lifts the limit."""
        limit_device(self.link, rate)
        limit_device(self.interface, rate, namespace=self.link)

    def set_mtu(self, num_bytes: int) -> None:
        """Sets the largest packet that the host sends; larger ones than the bridge's 1,500 bytes are lost in silence.

        Large packets leave one by one: a batch of them (TSO) would pass the bridge's end of the link whatever its size.
        """
        batch = str(DEFAULT_BATCH if num_bytes <= BRIDGE_MTU else 1)
        run_tool("ip", "-n", self.link, "link", "set", self.interface, "mtu", str(num_bytes), "gso_max_segs", batch)

    def link_down(self) -> None:
        """Cuts the link: packets are lost, connections stay open."""
        run_tool("ip", "link", "set", self.link, "down")

    def link_up(self) -> None:
        """Restores the link."""
        run_tool("ip", "link", "set", self.link, "up")

    @contextmanager
    def firewall(
        self, allowed_tcp: Sequence[str] = ("22",), action: str = "DROP", chain: str = "INPUT"
    ) -> Iterator[None]:
        """While active, refuses new TCP connections to other ports than these ("22", "29500:29531").

        `action` is DROP or REJECT; `chain` is INPUT for connections to the host, OUTPUT for those that it opens.
        Open connections, loopback and everything that is not TCP pass.
        """
        new = ["!", "-i" if chain == "INPUT" else "-o", "lo", "-p", "tcp", "--syn"]
        others = ["-m", "multiport", "!", "--dports", ",".join(allowed_tcp)] if allowed_tcp else []
        # A reset: with IPv6, the default answer does not end an attempt to connect.
        answer = ["--reject-with", "tcp-reset"] if action == "REJECT" else []
        with filtered(self.link, self.address, chain, [*new, *others, "-j", action, *answer]):
            yield

    @contextmanager
    def lose_packets(self, fraction: float) -> Iterator[None]:
        """While active, loses a fraction of the packets that the host receives."""
        chance = ["-m", "statistic", "--mode", "random", "--probability", str(fraction)]
        with filtered(self.link, self.address, "INPUT", ["!", "-i", "lo", *chance, "-j", "DROP"]):
            yield

    def listening_ports(self) -> list[tuple[str, int]]:
        """Returns the addresses and TCP ports at which processes on the host listen; "*" stands for any address."""
        lines = run_tool("ss", "-N", self.link, "--listening", "--tcp", "--numeric", "--no-header").splitlines()
        ends = [line.split()[3].rpartition(":") for line in lines]
        return sorted((address.strip("[]"), int(port)) for address, _, port in ends)

    # Disk and clock

    def fill_disk(self) -> None:
        """Fills the disk of the private folder to the last byte; the rig must have given it a size."""
        folder = self.path(self.private)
        assert folder.is_mount(), "a rig without private_size would fill the disk of this machine"
        with (folder / FILLER_NAME).open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def free_disk(self) -> None:
        """Frees what `fill_disk` has taken."""
        (self.path(self.private) / FILLER_NAME).unlink()

    def step_clock(self, seconds: float) -> None:
        """Sets the wall clock of the host's processes forward or back; the monotonic clock goes on.

        Programs started over ssh, by `run` or by `popen` see it; the rig must have steppable clocks.
        """
        step_clock(self.clock_file, seconds)

    # Counters

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
