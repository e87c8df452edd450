"""Tests the way from one host to another before a run uses it, with real data on the ports that the run will use.

A list of interfaces is not enough: docker's bridge has the same address on every machine, a second network card may
lead elsewhere, a firewall may let some ports through, and packets above a certain size may vanish. So each host
listens, every other one connects with a secret and sends full-size packets both ways, and each wait has a limit.
"""

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import psutil

from dragoman.cluster.addresses import ALL_ADDRESSES, interface_of, is_ipv6, is_loopback
from dragoman.cluster.secret_server import SecretServer, introduce, receive_exactly

CONNECT_SECONDS = 3.0
STALL_SECONDS = 4.0
"""A connection on which nothing moves for so long is broken; lost packets are sent again sooner."""
TEST_BYTES = 128 * 1024
"""About 90 full-size packets of Ethernet: a second at 1 Mbit/s."""
_MARK = b"\1"
_SIZE = struct.Struct("!Q")
_SMALLER_MTUS = (1500, 1280)
"""Sizes of packets to try where full-size ones vanish: that of Ethernet, and the smallest of IPv6."""
_RETRANSMITTED_OFFSET, _SEGMENTS_OFFSET = 100, 136
"""Places of two 32-bit counters in the kernel's struct tcp_info."""
_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to its network",
    errno.EACCES: "not permitted here",
    errno.EPERM: "not permitted here",
}

Stage = Literal["connect", "send", "receive", "passed"]


@dataclass(frozen=True)
class LinkResult:
    """What came of testing the way to another host."""

    stage: Stage
    """How far the test came: it failed to connect, or its data did not arrive there, or none came back."""
    port: int
    addresses: Sequence[str] = ()
    """The address at which the other host answered, or all that were tried in vain."""
    reason: str = ""
    """Why it could not connect: "no answer", "connection refused", …"""
    mtu: int | None = None
    """Largest packet of the interface here, in bytes."""
    passing_mtu: int | None = None
    """Largest packet that was tried and passes, where larger ones vanish."""
    num_segments: int = 0
    num_retransmitted: int = 0
    """Packets sent from here, and those of them that had to be sent again."""

    @property
    def has_passed(self) -> bool:
        """Whether data arrived in both directions."""
        return self.stage == "passed"


class LinkListeners:
    """Listens as a run will: at several ports of a range, or at one free port; answers who knows the secret."""

    def __init__(self, secret: str, ports: range | None = None, num_ports: int = 1) -> None:
        self._servers: list[SecretServer] = []
        try:
            for _ in range(num_ports if ports else 1):
                self._servers.append(SecretServer(ALL_ADDRESSES, ports, secret, _answer))
        except BaseException:
            self.close()
            raise

    @property
    def ports(self) -> list[int]:
        """The ports that were free."""
        return [server.port for server in self._servers]

    def close(self) -> None:
        """Frees the ports."""
        for server in self._servers:
            server.close()


def _answer(peer: socket.socket) -> None:
    """Receives data, says so, and sends as much back."""
    peer.settimeout(STALL_SECONDS)
    [size] = _SIZE.unpack(receive_exactly(peer, _SIZE.size))
    receive_exactly(peer, min(size, TEST_BYTES))
    peer.sendall(_MARK)
    _send(peer, min(size, TEST_BYTES))
    peer.recv(1)  # keeps the connection until the other end has everything


def check_link(addresses: Sequence[str], ports: Sequence[int], secret: str) -> LinkResult:
    """Tests the way to a host that listens at these ports; all its addresses are tried at once."""
    with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
        tried = dict(zip(addresses, pool.map(lambda each: _greet(each, ports[0], secret), addresses), strict=True))
    address = next((each for each, reason in tried.items() if reason is None), None)
    if address is None:
        others = tuple(each for each in addresses if not is_loopback(each))
        return LinkResult("connect", ports[0], others, reason=_most_telling(list(filter(None, tried.values()))))
    with ThreadPoolExecutor(max_workers=len(ports)) as pool:
        reasons = list(pool.map(lambda port: _greet(address, port, secret), ports))
    for port, reason in zip(ports, reasons, strict=True):
        if reason is not None:
            return LinkResult("connect", port, (address,), reason=reason)
    return _send_and_receive(address, ports[0], secret)


def _greet(address: str, port: int, secret: str) -> str | None:
    """Connects and exchanges the secret, which are small packets; returns why that failed."""
    try:
        with _connect(address, port) as connection:
            return None if introduce(connection, secret) else "another machine answers there"
    except TimeoutError:
        return "no answer"
    except ConnectionRefusedError:
        return _WORDS[errno.ECONNREFUSED]
    except ConnectionError:
        return "another machine answers there"
    except OSError as error:
        return _WORDS.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))


def _most_telling(reasons: Sequence[str]) -> str:
    """Chooses one of several reasons: that another machine answers at 127.0.0.1 says nothing."""
    order = ["no answer", *_WORDS.values()]
    known = [reason for reason in order if reason in reasons]
    return (known or list(reasons) or ["it has no address"])[0]


def _connect(address: str, port: int, segment_bytes: int | None = None) -> socket.socket:
    connection = socket.socket(socket.AF_INET6 if is_ipv6(address) else socket.AF_INET)
    try:
        if segment_bytes:
            # Announced to the other end too, so that packets are small in both directions.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
        connection.settimeout(CONNECT_SECONDS)
        connection.connect((address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _send_and_receive(address: str, port: int, secret: str) -> LinkResult:
    result = _exchange(address, port, secret)
    if result.has_passed:
        return result
    header_bytes = 60 if is_ipv6(address) else 40
    for mtu in _SMALLER_MTUS:
        if _exchange(address, port, secret, mtu - header_bytes).has_passed:
            return replace(result, passing_mtu=mtu)
    return result


def _exchange(address: str, port: int, secret: str, segment_bytes: int | None = None) -> LinkResult:
    stage: Stage = "send"
    mtu, counters = None, (0, 0)
    with contextlib.suppress(OSError), _connect(address, port, segment_bytes) as connection:
        introduce(connection, secret)
        connection.settimeout(STALL_SECONDS)
        mtu = _mtu_towards(connection)
        try:
            connection.sendall(_SIZE.pack(TEST_BYTES))
            _send(connection, TEST_BYTES)
            receive_exactly(connection, len(_MARK))
            stage = "receive"
            receive_exactly(connection, TEST_BYTES)
            stage = "passed"
        finally:
            counters = _count_segments(connection)
    num_segments, num_retransmitted = counters
    return LinkResult(stage, port, (address,), "", mtu, None, num_segments, num_retransmitted)


def _send(connection: socket.socket, num_bytes: int) -> None:
    """Sends; unlike in `sendall`, the time limit is for each part and not for all."""
    rest = memoryview(bytes(num_bytes))
    while rest:
        rest = rest[connection.send(rest) :]


def _mtu_towards(connection: socket.socket) -> int | None:
    interface = interface_of(str(connection.getsockname()[0]))
    return int(psutil.net_if_stats()[interface].mtu) if interface else None


def _count_segments(connection: socket.socket) -> tuple[int, int]:
    """Returns the packets sent on a connection and those sent again; zeros on systems that do not tell."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        [num_retransmitted] = struct.unpack_from("=I", info, _RETRANSMITTED_OFFSET)
        [num_segments] = struct.unpack_from("=I", info, _SEGMENTS_OFFSET)
    except (OSError, AttributeError, struct.error):
        return 0, 0
    return int(num_segments), int(num_retransmitted)
