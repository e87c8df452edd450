"""Addresses and ports of this machine, IPv4 and IPv6."""

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence

import psutil

from dragoman.run.errors import UserError

LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ""
"""Stands for every address of this machine."""
BACKLOG = 128


def listen(address: str, ports: Sequence[int] | None) -> socket.socket:
    """Opens a listening socket at an address, at the first of some ports that is free, or at any free port."""
    for port in ports or (0,):
        try:
            return _listen_at(address, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    assert ports is not None
    raise UserError(
        f"All {len(ports)} ports of cluster.port between {min(ports)} and {max(ports)} that could be used are taken on "
        f"{socket.gethostname()}: end what uses them, or give a larger range."
    )


def _listen_at(address: str, port: int) -> socket.socket:
    if address:
        family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)  # noqa: S104 - whoever connects must know a secret


def format_ports(ports: range) -> str:
    """Formats a range of ports: "29500-29563"."""
    return f"{ports[0]}-{ports[-1]}"


def is_ipv6(address: str) -> bool:
    """Whether an address is written as IPv6."""
    return ":" in address


def own_addresses() -> list[tuple[str, str]]:
    """Returns (interface, address) pairs of this machine: IPv4 before IPv6, loopback last.

    Addresses of one link only (fe80::) are left out, because they mean nothing without the name of an interface.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and name in up
    ]
    usable = [(name, address) for name, address in found if "%" not in address]
    return sorted(usable, key=lambda item: (is_loopback(item[1]), is_ipv6(item[1])))


def is_loopback(address: str) -> bool:
    """Whether an address leads only to this machine."""
    return ipaddress.ip_address(address).is_loopback


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface that has an address."""
    return next((name for name, own in own_addresses() if own == address), None)


def address_of(interface: str) -> str | None:
    """Returns the first address of a network interface."""
    return next((address for name, address in own_addresses() if name == interface), None)


def own_address_towards(addresses: Iterable[str]) -> str | None:
    """Returns the address of this machine from which packets to the first reachable of these addresses are sent."""
    for address in addresses:
        family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))  # sends nothing: it only chooses the route
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None
