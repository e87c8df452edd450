"""The rig's network: a bridge here, and for each host a network namespace with a link to it."""

import ipaddress
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dragoman.run.errors import UserError
from rig.tools import run_tool
from rig.traces import free_rig_name, remove_leftovers, rigs_locked

# Private ranges that are rarely used; the last one is reserved by RFC 2544 for benchmarks.
RANGES = tuple(map(ipaddress.IPv4Network, ("10.199.0.0/16", "172.29.0.0/16", "192.168.0.0/16", "198.18.0.0/15")))
HOST_INTERFACE = "eth0"
# As docker0 on real machines: every host has the same address there, and no peer can be reached through it.
DECOY_INTERFACE = "adocker0"
DECOY_ADDRESS = "172.17.0.1/16"


@dataclass(frozen=True)
class Network:
    """A bridge, named as the rig, and the subnet of its hosts."""

    name: str
    subnet: ipaddress.IPv4Network

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


def create_network() -> Network:
    """Makes the bridge with an address of this machine in a subnet that is not in use."""
    with rigs_locked():
        remove_leftovers()
        network = Network(free_rig_name(), free_subnet(subnets_in_use()))
        run_tool("ip", "link", "add", network.name, "type", "bridge", "stp_state", "0")
        run_tool("ip", "address", "add", f"{network.own_address}/{network.subnet.prefixlen}", "dev", network.name)
        run_tool("ip", "link", "set", network.name, "up")
    return network


def subnets_in_use() -> Iterator[ipaddress.IPv4Network]:
    """Subnets that this machine has addresses in or routes to, without the default route."""
    for route in json.loads(run_tool("ip", "-4", "-json", "route", "show", "table", "all")):
        if route["dst"] != "default":
            yield ipaddress.IPv4Network(route["dst"], strict=False)
    for device in json.loads(run_tool("ip", "-4", "-json", "address", "show")):
        for address in device.get("addr_info", []):
            yield ipaddress.IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)


def free_subnet(used: Iterable[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """The first subnet of 254 addresses that overlaps with none in use."""
    taken = list(used)
    for subnet in (subnet for wide in RANGES for subnet in wide.subnets(new_prefix=24)):
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise UserError(f"No free subnet for the rig: this machine has routes to all of {', '.join(map(str, RANGES))}.")


def create_namespace(name: str) -> None:
    """Makes a network namespace that has only its loopback."""
    run_tool("ip", "netns", "add", name)
    run_tool("ip", "-n", name, "link", "set", "lo", "up")


def connect_host(network: Network, address: str, link: str) -> None:
    """Makes a link from the bridge into the network namespace of the same name, and gives its end there the address."""
    run_tool("ip", "link", "add", link, "type", "veth", "peer", "name", HOST_INTERFACE, "netns", link)
    run_tool("ip", "link", "set", link, "master", network.name, "up")
    run_tool("ip", "-n", link, "address", "add", f"{address}/{network.subnet.prefixlen}", "dev", HOST_INTERFACE)
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
