"""A server that serves only those who know a secret, and proves in turn that it knows it too.

Nobody else can make it read more than one greeting, keep many connections open, or wait long: strangers may knock at
every port that is open to a network.
"""

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from dragoman.cluster.addresses import listen

GREETING_SECONDS = 5.0
MOST_UNPROVEN = 64
"""Connections of one address whose greeting has not come yet; further ones are closed at once."""
MOST_UNPROVEN_IN_ALL, MOST_CONNECTIONS = 256, 1024
PAUSE_SECONDS = 0.1
_NONCE_BYTES, _PROOF_BYTES = 32, 32


class SecretServer:
    """Listens at one address and one port until closed; serves every admitted connection in a thread of its own."""

    def __init__(self, address: str, ports: range | None, secret: str, serve: Callable[[socket.socket], None]) -> None:
        self._secret = secret
        self._serve = serve
        self._socket = listen(address, ports)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._num_unproven: Counter[str] = Counter()
        self._open: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, name="secret server", daemon=True).start()

    def close(self) -> None:
        """Frees the port and closes all connections."""
        self._is_closed = True
        with self._lock:
            sockets = [self._socket, *self._open]
        for each in sockets:
            # Closing alone would leave the threads in accept and recv, and the port taken.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                peer, sender = self._socket.accept()
            except OSError:  # closed, or this process has too many open files for a while
                time.sleep(PAUSE_SECONDS)
                continue
            if self._take(peer, sender[0]):
                threading.Thread(target=self._greet, args=(peer, sender[0]), daemon=True).start()
            else:
                peer.close()

    def _take(self, peer: socket.socket, sender: str) -> bool:
        """Counts a new connection; False if there are too many."""
        with self._lock:
            is_full = len(self._open) >= MOST_CONNECTIONS or self._num_unproven.total() >= MOST_UNPROVEN_IN_ALL
            if is_full or self._num_unproven[sender] >= MOST_UNPROVEN:
                return False
            self._num_unproven[sender] += 1
            self._open.add(peer)
            return True

    def _greet(self, peer: socket.socket, sender: str) -> None:
        try:
            with contextlib.suppress(OSError), peer:
                try:
                    is_known = admit(peer, self._secret)
                finally:
                    self._forget_unproven(sender)
                if is_known:
                    self._serve(peer)
        finally:
            with self._lock:
                self._open.discard(peer)

    def _forget_unproven(self, sender: str) -> None:
        with self._lock:
            self._num_unproven[sender] -= 1
            if not self._num_unproven[sender]:
                del self._num_unproven[sender]


def admit(peer: socket.socket, secret: str) -> bool:
    """Greets a connection that was accepted; returns whether the other end knows the secret."""
    peer.settimeout(GREETING_SECONDS)
    challenge = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(challenge)
    answer = receive_exactly(peer, _NONCE_BYTES + _PROOF_BYTES, GREETING_SECONDS)
    counter_challenge, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _prove(secret, b"client", challenge, counter_challenge)):
        return False
    peer.sendall(_prove(secret, b"server", challenge, counter_challenge))
    peer.settimeout(None)
    return True


def introduce(connection: socket.socket, secret: str) -> bool:
    """Greets a server that this end has connected to; returns whether it knows the secret."""
    connection.settimeout(GREETING_SECONDS)
    challenge = receive_exactly(connection, _NONCE_BYTES, GREETING_SECONDS)
    counter_challenge = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(counter_challenge + _prove(secret, b"client", challenge, counter_challenge))
    proof = receive_exactly(connection, _PROOF_BYTES, GREETING_SECONDS)
    connection.settimeout(None)
    return hmac.compare_digest(proof, _prove(secret, b"server", challenge, counter_challenge))


def _prove(secret: str, role: bytes, challenge: bytes, counter_challenge: bytes) -> bytes:
    """The roles differ, so that no answer can be sent back as one's own."""
    return hmac.digest(secret.encode(), role + challenge + counter_challenge, "sha256")


def receive_exactly(connection: socket.socket, num_bytes: int, seconds: float | None = None) -> bytes:
    """Receives this many bytes; a ConnectionError if the other end closes before.

    `seconds` is the limit for all of them: by that of the socket, a stranger could stay with a byte now and then.
    """
    end = None if seconds is None else time.monotonic() + seconds
    received = bytearray()
    while len(received) < num_bytes:
        if end is not None:
            connection.settimeout(max(0.001, end - time.monotonic()))
        chunk = connection.recv(num_bytes - len(received))
        if not chunk:
            raise ConnectionError("the other end closed the connection")
        received += chunk
    return bytes(received)
