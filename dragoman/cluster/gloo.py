"""Gloo at a chosen address and, where a firewall needs it, at a port of a chosen range.

torch lets gloo choose an interface by name, and gloo asks the system for any free port. Here the address is given: it
may be one of several on an interface, IPv4 or IPv6. For a range of ports, the socket with which gloo listens is
replaced by one in that range, and the address that gloo announces to its peers is corrected on its way into the store.
"""

import contextlib
import ctypes
import os
import platform
import re
import socket
import struct
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from dragoman.cluster.addresses import is_ipv6, is_loopback, listen

_BACKEND = "gloo_at_address"
_NUM_THREADS = 2
"""As torch gives each device of gloo."""
_DESCRIPTORS, _DETAILS = Path("/proc/self/fd"), Path("/proc/self/fdinfo")
_EPOLL_CTL_ADD = 1
_IS_EPOLL_EVENT_PACKED = platform.machine() in ("x86_64", "AMD64")
_LAST_PORT = 65535
_MOST_DRAWS = 5_000
_SMALL_RANGE = 32


@dataclass
class _Place:
    """Where the process groups of this process listen."""

    address: str = "127.0.0.1"
    ports: range | None = None


_place = _Place()
_kept_stores: list[Store] = []
"""Gloo may use them as long as its group exists, but does not keep their Python side alive."""


def place_gloo(address: str, ports: range | None) -> str:
    """Chooses where the following process groups listen; returns the name of their backend."""
    _place.address = address
    # No firewall is in the way inside a machine.
    _place.ports = None if is_loopback(address) else ports
    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _build_gloo, devices=["cpu"])
    return _BACKEND


def _build_gloo(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._threads = timeout, _NUM_THREADS
    if _place.ports is None:
        options._devices = [ProcessGroupGloo.create_device(hostname=_place.address)]
    else:
        device, store = _device_in_range(_place.address, _place.ports, store, rank)
        options._devices = [device]
        _kept_stores.append(store)
    return ProcessGroupGloo(store, rank, size, options)


def _device_in_range(address: str, ports: range, store: Store, rank: int) -> tuple[Any, Store]:
    """Returns a device of gloo that listens in the range, and the store through which it must announce itself."""
    usable = _usable_ports(ports)
    device, descriptor, old_port = _draw_device(address, max(map(_order, usable)))
    with listen(address, usable) as replacement:
        replacement.setblocking(False)
        new_port = replacement.getsockname()[1]
        _replace_listening_socket(descriptor, replacement)
    return device, CorrectedStore(store, rank, address, old_port, new_port)


def _usable_ports(ports: range) -> list[int]:
    """Returns the ports for gloo, those that it takes for small first; a large range is used to three quarters."""
    smallest_first = sorted((port for port in ports if port % 256 != 255), key=_order)
    return smallest_first if len(ports) <= _SMALL_RANGE else smallest_first[: 3 * len(ports) // 4]


def _draw_device(address: str, greatest: int) -> tuple[Any, int, int]:
    """Creates a device of gloo; returns it with the descriptor and the port of its listening socket.

    Of two ranks with one address, gloo lets the one with the greater port connect. Each knows its own port as it was
    before the replacement, so that one must be greater than all that replace it, or both might wait for the other.
    One of 2 to one of 256 ports is.
    """
    before = _listening_sockets(address)
    for _ in range(_MOST_DRAWS):
        device = ProcessGroupGloo.create_device(hostname=address)
        opened = _listening_sockets(address) - before
        if len(opened) != 1:
            raise RuntimeError(f"gloo opened {len(opened)} ports at {address} instead of 1; leave out cluster.port.")
        [(descriptor, port)] = opened
        if _order(port) > greatest:
            return device, descriptor, port
        del device
    raise RuntimeError("gloo found no port that fits cluster.port; choose another range.")


def _order(port: int) -> int:
    """The number by which gloo compares ports: the bytes as they are sent, read as a number of this machine."""
    return int.from_bytes(struct.pack("!H", port), sys.byteorder)


class CorrectedStore(Store):
    """The store as gloo must see it once its listening socket was replaced."""

    def __init__(self, store: Store, rank: int, address: str, old_port: int, new_port: int) -> None:
        super().__init__()
        self._store, self._rank, self._address = store, rank, address
        self._before, self._after = socket_address(address, old_port), socket_address(address, new_port)

    def set(self, key: str, value: Any) -> None:
        """Announces the new port instead of the old one."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(key, content.replace(self._before, self._after))  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        """Returns what a peer announced; one of a lower rank on this machine is to connect to this rank."""
        value = self._store.get(key)
        peer = key.rpartition("/")[2]
        if peer.isdecimal() and int(peer) < self._rank:
            last = socket_address(self._address, _LAST_PORT)
            at_any_port = re.escape(last[:2]) + b".." + re.escape(last[4:])
            value = re.sub(at_any_port, lambda _: last, value, flags=re.DOTALL)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits for values."""
        self._store.wait(keys) if timeout is None else self._store.wait(keys, timeout)

    def add(self, key: str, amount: int) -> int:
        """Adds to a number."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Whether all values are set."""
        return self._store.check(keys)


def socket_address(address: str, port: int) -> bytes:
    """Returns the beginning of the system's sockaddr, which gloo announces: family, port and address."""
    if is_ipv6(address):
        flow, packed = 0, socket.inet_pton(socket.AF_INET6, address)
        return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, flow) + packed
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address)


def _replace_listening_socket(descriptor: int, replacement: socket.socket) -> None:
    """Puts a socket in the place of one that gloo's event loop watches."""
    loop, events, data = _find_epoll_entry(descriptor)
    # Closes the old socket, which also takes it off the list of the event loop.
    os.dup2(replacement.fileno(), descriptor, inheritable=False)
    # Python's own epoll object cannot set the mark by which gloo knows the socket again.
    event = struct.pack("=IQ" if _IS_EPOLL_EVENT_PACKED else "@IQ", events, data)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.epoll_ctl(loop, _EPOLL_CTL_ADD, descriptor, event):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _find_epoll_entry(descriptor: int) -> tuple[int, int, int]:
    """Returns the event loop that watches a descriptor, for which events, and gloo's own mark for it."""
    entry = re.compile(rf"^tfd:\s*{descriptor} events:\s*([0-9a-f]+) data:\s*([0-9a-f]+)", re.MULTILINE)
    for details in _DETAILS.iterdir():
        with contextlib.suppress(OSError):
            if found := entry.search(details.read_text(encoding="ascii")):
                return int(details.name), int(found[1], 16), int(found[2], 16)
    raise RuntimeError("The event loop of gloo was not found; leave out cluster.port.")


def _listening_sockets(address: str) -> set[tuple[int, int]]:
    """Returns descriptor and port of the sockets with which this process listens at an address."""
    descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    return {(each, port) for each in descriptors if (port := _listening_port(each, address)) is not None}


def _listening_port(descriptor: int, address: str) -> int | None:
    """Returns the port if this is a listening socket at the address."""
    try:
        is_socket = str((_DESCRIPTORS / str(descriptor)).readlink()).startswith("socket:")
    except FileNotFoundError:  # it was open only while the folder was listed
        return None
    if not is_socket:
        return None
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
        is_internet = opened.family in (socket.AF_INET, socket.AF_INET6)
        if is_internet and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            own, port, *_ = opened.getsockname()
            return int(port) if own == address else None
    return None
