"""The rig's network: a bridge here, and for each host a network namespace with a link to it."""

import ipaddress
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dragoman.run.errors import UserError
from rig.tools import run_tool
from rig.traces import free_rig_name, remove_leftovers, rigs_locked

Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network

# Private ranges that are rarely used; the last one of IPv4 is reserved by RFC 2544 for benchmarks.
RANGES: dict[int, tuple[Subnet, ...]] = {
    4: tuple(map(ipaddress.IPv4Network, ("10.199.0.0/16", "172.29.0.0/16", "192.168.0.0/16", "198.18.0.0/15"))),
    6: (ipaddress.IPv6Network("fd64:7261:676f::/48"),),
}
SUBNET_PREFIX = {4: 24, 6: 64}
HOST_INTERFACE = "eth0"
# As docker0 on real machines: every host has the same address there, and no peer can be reached through it.
DECOY_INTERFACE = "adocker0"
DECOY_ADDRESS = "172.17.0.1/16"


@dataclass(frozen=True)
class Network:
    """A bridge, named as the rig, and the subnet of its hosts."""

    name: str
    subnet: Subnet

    @property
    def own_address(self) -> str:
        """The address of this machine on the bridge."""
        return str(self.subnet[1])

    def host_address(self, number: int) -> str:
        """The address of host number 1, 2, …"""
        return str(self.subnet[10 + number])

    def link(self, host_name: str) -> str:
        """The name of a host's link and of its network namespace."""
        return f"{self.name}{host_name}"


def create_network(version: int = 4) -> Network:
    """Makes the bridge with an address of this machine in a subnet that is not in use; `version` is that of IP."""
    with rigs_locked():
        remove_leftovers()
        network = Network(free_rig_name(), free_subnet(subnets_in_use(version), version))
        run_tool("ip", "link", "add", network.name, "type", "bridge", "stp_state", "0")
        add_address(network, network.own_address, network.name)
        run_tool("ip", "link", "set", network.name, "up")
    return network


def add_address(network: Network, address: str, device: str, *place: str) -> None:
    """Gives a device an address that can be used at once: IPv6 would first ask for a second whether it is taken."""
    options = ["nodad"] if network.subnet.version == 6 else []
    run_tool("ip", *place, "address", "add", f"{address}/{network.subnet.prefixlen}", "dev", device, *options)


def subnets_in_use(version: int = 4) -> Iterator[Subnet]:
    """Subnets that this machine has addresses in or routes to, without the default route."""
    for route in json.loads(run_tool("ip", f"-{version}", "-json", "route", "show", "table", "all")):
        if route["dst"] != "default":
            yield ipaddress.ip_network(route["dst"], strict=False)
    for device in json.loads(run_tool("ip", f"-{version}", "-json", "address", "show")):
        for address in device.get("addr_info", []):
            yield ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)


def free_subnet(used: Iterable[Subnet], version: int = 4) -> Subnet:
    """The first subnet (254 addresses of IPv4) that overlaps with none in use."""
    taken, ranges = list(used), RANGES[version]
    for subnet in (subnet for wide in ranges for subnet in wide.subnets(new_prefix=SUBNET_PREFIX[version])):
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise UserError(f"No free subnet for the rig: this machine has routes to all of {', '.join(map(str, ranges))}.")


def create_namespace(name: str) -> None:
    """Makes a network namespace that has only its loopback."""
    run_tool("ip", "netns", "add", name)
    run_tool("ip", "-n", name, "link", "set", "lo", "up")


def connect_host(network: Network, address: str, link: str) -> None:
    """Makes a link from the bridge into the network namespace of the same name, and gives its end there the address."""
    run_tool("ip", "link", "add", link, "type", "veth", "peer", "name", HOST_INTERFACE, "netns", link)
    run_tool("ip", "link", "set", link, "master", network.name, "up")
    add_address(network, address, HOST_INTERFACE, "-n", link)
    run_tool("ip", "-n", link, "link", "set", HOST_INTERFACE, "up")


def add_decoy(namespace: str) -> None:
    """Adds an interface that is up but reaches no other host; it is made first, so it comes first by name and number.

    A link to itself needs no kernel module beyond those of the rig, and unlike an empty bridge it has a carrier.
    """
    other_end = f"{DECOY_INTERFACE}p"
    run_tool("ip", "-n", namespace, "link", "add", DECOY_INTERFACE, "type", "veth", "peer", "name", other_end)
    run_tool("ip", "-n", namespace, "address", "add", DECOY_ADDRESS, "dev", DECOY_INTERFACE)
    for device in (DECOY_INTERFACE, other_end):
        run_tool("ip", "-n", namespace, "link", "set", device, "up")
