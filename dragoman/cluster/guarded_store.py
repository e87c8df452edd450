"""The store through which the processes of a run find each other, closed to everybody else.

torch's TCPStore listens on all interfaces and answers whoever connects. So ours listens on loopback only. Beside it, a
gate admits connections from other machines that know the secret of the run; on each of those machines a passage on
loopback connects the processes there to the gate. What the store holds is small, so the detour costs nothing.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from dragoman.cluster.addresses import LOOPBACK
from dragoman.cluster.secret_server import SecretServer, introduce

CONNECT_SECONDS = 3.0
_CHUNK_BYTES = 1 << 16


def open_local_store(timeout_seconds: float) -> TCPStore:
    """Opens a store that only this machine reaches; its `port` attribute tells where.

    Stores that this process opens as master at the same port share it.
    """
    with socket.create_server((LOOPBACK, 0), backlog=128) as listening:
        return TCPStore(
            LOOPBACK,
            listening.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
            multi_tenant=True,
            master_listen_fd=listening.detach(),
        )


class StoreGate:
    """Admits other machines of the run to the store on this machine's loopback."""

    def __init__(self, address: str, ports: range | None, secret: str, store_port: int) -> None:
        self._server = SecretServer(address, ports, secret, self._let_through)
        self._store_port = store_port
        self.port = self._server.port

    def close(self) -> None:
        """Ends all connections through the gate."""
        self._server.close()

    def _let_through(self, peer: socket.socket) -> None:
        with socket.create_connection((LOOPBACK, self._store_port), CONNECT_SECONDS) as store:
            relay(peer, store)


class StorePassage:
    """A port on this machine's loopback that leads through the gate of another machine to its store."""

    def __init__(self, addresses: Sequence[str], port: int, secret: str) -> None:
        """`addresses` are tried in turn: the first at which the gate answers is used."""
        self._addresses, self._gate_port, self._secret = addresses, port, secret
        self._listening = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, name="store passage", daemon=True).start()

    def close(self) -> None:
        """Frees the port; connections end with the gate."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def find_gate(self) -> str | None:
        """Returns the address at which the gate answers; None if it answers at none."""
        if (gate := self._connect()) is None:
            return None
        with gate:
            return str(gate.getpeername()[0])

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._lead, args=(client,), daemon=True).start()

    def _lead(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if (gate := self._connect()) is not None:
                with gate:
                    relay(client, gate)

    def _connect(self) -> socket.socket | None:
        for address in self._addresses:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                gate = stack.enter_context(socket.create_connection((address, self._gate_port), CONNECT_SECONDS))
                if introduce(gate, self._secret):  # otherwise another machine has this address: all have a 127.0.0.1
                    stack.pop_all()
                    return gate
        return None


def relay(first: socket.socket, second: socket.socket) -> None:
    """Copies what each end sends to the other, until either closes."""
    for each in (first, second):
        each.settimeout(None)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    backwards = threading.Thread(target=_copy, args=(second, first), daemon=True)
    backwards.start()
    _copy(first, second)
    backwards.join()


def _copy(sender: socket.socket, receiver: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := sender.recv(_CHUNK_BYTES):
            receiver.sendall(chunk)
    for each in (sender, receiver):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
