"""The rig: built when a `with` block is entered, and removed completely when it is left for any reason."""

import os
import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Self

from dragoman.run.errors import UsageError
from rig.boot import give_identity, give_own_sysfs, give_private_folder, start_keeper
from rig.clocks import build_clock_library, create_clock
from rig.host import Host
from rig.network import HOST_INTERFACE, Network, add_decoy, connect_host, create_namespace, create_network
from rig.rate import bits_per_second
from rig.signals import endings_deferred, endings_raised
from rig.ssh import check_reach, create_key, start_server, write_client_config, write_server_config
from rig.traces import remove_rig

MAX_HOSTS = 99
SHARED_VARIABLES = ("PYTHONPATH",)
"""Environment variables that hosts have from here: a host must run the same code."""


class Rig:
    """Hosts h1, h2, … on one network, each with its own sshd and link; `folder` keeps keys, logs, private folders.

    Optional are a rate of the links ("100mbit"), an interface that leads nowhere (`decoy`), addresses of IPv6 only, a
    disk of limited size for each private folder ("200m"), and wall clocks that can be set.
    """

    def __init__(
        self,
        *,
        folder: Path,
        hosts: int = 2,
        rate: str | None = None,
        decoy: bool = False,
        ipv6: bool = False,
        private_size: str | None = None,
        steppable_clocks: bool = False,
    ) -> None:
        check_folder(folder)
        if not 1 <= hosts <= MAX_HOSTS:
            raise UsageError(f"A rig has 1 to {MAX_HOSTS} hosts, not {hosts}.")
        if rate is not None:
            bits_per_second(rate)
        self.folder = folder.resolve()
        self.private = self.folder / "private"
        """One path, but each host sees its own content there; everything else is shared."""
        self.ssh_config = self.folder / "ssh_config"
        self.hosts: list[Host] = []
        self._num_hosts, self._rate, self._has_decoy = hosts, rate, decoy
        self._ip_version, self._private_size, self._has_clocks = 6 if ipv6 else 4, private_size, steppable_clocks
        self._clock_library: Path | None = None
        self._network: Network | None = None
        self._keepers: list[Popen[bytes]] = []
        self._signals = ExitStack()

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def __enter__(self) -> Self:
        self._signals.enter_context(endings_raised())
        try:
            with endings_deferred():
                self._build()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._take_down()

    def _build(self) -> None:
        self.private.mkdir(parents=True)
        (self.folder / "hosts").mkdir()
        self._network = create_network(self._ip_version)
        numbers = range(1, self._num_hosts + 1)
        addresses = {f"h{number}": self._network.host_address(number) for number in numbers}
        self._write_shared_files(addresses)
        if self._has_clocks:
            self._clock_library = build_clock_library(self.folder)
        for name, address in addresses.items():
            self.hosts.append(self._boot(self._network, name, address))
        for host in self.hosts:
            host.power_on()
            host.set_rate(self._rate)
        for peer in self.hosts[1:]:
            check_reach(self.hosts[0], peer)

    def _write_shared_files(self, addresses: dict[str, str]) -> None:
        """Writes the files that all hosts share: names with addresses, and ssh keys."""
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (self.folder / "etc_hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "authorized_keys").write_text(create_key(self.folder / "identity", "rig"))
        host_keys = {}
        for name in addresses:
            self._host_folder(name).mkdir()
            host_keys[name] = create_key(self._host_folder(name) / "host_key", name)
        write_client_config(self.ssh_config, self.folder, addresses, host_keys)

    def _boot(self, network: Network, name: str, address: str) -> Host:
        """Connects a host and makes its view of the machine; its sshd is not started yet."""
        folder, link = self._host_folder(name), network.link(name)
        create_namespace(link)
        if self._has_decoy:
            add_decoy(link)
        connect_host(network, address, link)
        keeper = start_keeper(link)
        self._keepers.append(keeper)
        give_identity(keeper, name, self.folder / "etc_hosts")
        give_private_folder(keeper, folder / "private", self.private, self._private_size)
        give_own_sysfs(keeper, folder / "sys")
        clock_file = folder / "clock"
        variables = {name: os.environ[name] for name in SHARED_VARIABLES if name in os.environ}
        if self._clock_library:
            variables |= create_clock(self._clock_library, clock_file)
        write_server_config(folder, address, self.folder / "authorized_keys", variables)
        start = partial(start_server, link, keeper.pid, folder, address)
        return Host(name, address, HOST_INTERFACE, link, self.private, keeper, start, clock_file, variables)

    def _host_folder(self, name: str) -> Path:
        return self.folder / "hosts" / name

    def _take_down(self) -> None:
        with self._signals, endings_deferred():
            if self._network is not None:
                remove_rig(self._network.name)
                self._network = None
            # Killed with all that lived on the hosts: reap them, close their pipes.
            for child in (*self._keepers, *(host.server for host in self.hosts if host.server)):
                child.communicate()
            self._keepers.clear()


def check_folder(folder: Path) -> None:
    """Refuses a folder whose name ssh would misread, or that another rig has used."""
    if re.search(r"[\s\"'%$\\~]", str(folder.resolve())):
        raise UsageError(
            f"The rig's folder {folder} has a space, quote or one of %$\\~ in its path; ssh needs another."
        )
    if (folder / "hosts").exists() or (folder / "private").exists():
        raise UsageError(f"The rig's folder {folder} was already used by a rig; give it a new one.")
