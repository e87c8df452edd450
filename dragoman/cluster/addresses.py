"""Finds the address at which the hosts of a run reach each other: each host listens, every other one tries.

A list of interfaces is not enough: docker's bridge has the same address on every machine, a second network card may
lead elsewhere, a firewall may block. So a connection counts only if the other end knows a secret of this check.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence

import psutil

TRY_SECONDS = 3.0


class Listener:
    """Answers every connection with a secret, until closed."""

    def __init__(self, secret: str, port: int = 0) -> None:
        self._secret = secret.encode()
        self._socket = socket.create_server(("0.0.0.0", port), backlog=64)  # noqa: S104 - its purpose is to be found
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()

    def close(self) -> None:
        """Frees the port."""
        # Closing alone would leave the thread in accept, and the port taken.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                with contextlib.suppress(OSError), peer:
                    peer.sendall(self._secret)


def reachable_address(addresses: Sequence[str], port: int, secret: str) -> str | None:
    """Returns the first address at which the right host answers."""
    for address in addresses:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=TRY_SECONDS) as peer:
            if _read(peer, len(secret)) == secret.encode():
                return address
    return None


def _read(peer: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes and (chunk := peer.recv(num_bytes - len(received))):
        received += chunk
    return received


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface that has an address."""
    return next((name for name, own in own_addresses() if own == address), None)


def free_port() -> int:
    """Returns a port that is not in use now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def own_addresses() -> list[tuple[str, str]]:
    """Returns (interface, address) pairs of this machine, IPv4, loopback last."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    ]
    return sorted(found, key=lambda item: item[1].startswith("127."))
