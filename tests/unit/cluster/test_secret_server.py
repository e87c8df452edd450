"""A server serves only who knows the secret; nobody else can learn anything, keep many connections or stay long."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread

import pytest
from free_ports import free_port

from dragoman.cluster import secret_server
from dragoman.cluster.secret_server import SecretServer, admit, introduce, receive_exactly

LOOPBACK = "127.0.0.1"
SECRET = "0123456789abcdef"
SECONDS = 30.0
GREETING_BYTES = 32


def say_hello(peer: socket.socket) -> None:
    peer.sendall(b"hello")


@contextmanager
def serving(
    serve: Callable[[socket.socket], None] = say_hello, address: str = LOOPBACK, ports: range | None = None
) -> Iterator[SecretServer]:
    server = SecretServer(address, ports, SECRET, serve)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def knocking(server: SecretServer, address: str = LOOPBACK) -> Iterator[socket.socket]:
    with socket.create_connection((address, server.port), timeout=SECONDS) as connection:
        yield connection


def receive_all(connection: socket.socket) -> bytes:
    """Returns everything that comes before the other end closes."""
    connection.settimeout(SECONDS)
    received = b""
    try:
        while chunk := connection.recv(1024):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@pytest.mark.parametrize("address", [LOOPBACK, "::1"])
def test_who_knows_the_secret_is_served(address):
    with serving(address=address) as server:
        for _ in range(3):
            with knocking(server, address) as connection:
                assert introduce(connection, SECRET)
                assert receive_all(connection) == b"hello"


@pytest.mark.parametrize("other", ["f" * len(SECRET), SECRET[:-1], SECRET + "0", ""])
def test_who_knows_another_secret_gets_nothing(other):
    with serving() as server, knocking(server) as connection:
        with pytest.raises(ConnectionError):
            introduce(connection, other)
        assert receive_all(connection) == b""


def test_a_stranger_learns_only_a_random_number():
    with serving() as server:
        greetings = []
        for _ in range(2):
            with knocking(server) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100)
                greetings.append(receive_all(connection))
    assert [len(greeting) for greeting in greetings] == [GREETING_BYTES] * 2
    assert greetings[0] != greetings[1]


def test_an_answer_that_was_overheard_admits_nobody():
    """Every connection asks for an answer to another random number."""
    with serving() as server:
        with knocking(server) as connection:
            overheard = _answer_to(receive_exactly(connection, GREETING_BYTES))
            connection.sendall(overheard)
            assert receive_all(connection)[GREETING_BYTES:] == b"hello"
        with knocking(server) as connection:
            receive_exactly(connection, GREETING_BYTES)
            connection.sendall(overheard)
            assert receive_all(connection) == b""


def _answer_to(challenge: bytes) -> bytes:
    counter_challenge = bytes(GREETING_BYTES)
    return counter_challenge + secret_server._prove(SECRET, b"client", challenge, counter_challenge)


def test_the_server_must_know_the_secret_too():
    """Another program may have taken the port of one that ended."""
    here, there = socket.socketpair()
    with here, there:
        impostor = Thread(target=_greet_without_secret, args=(there,), daemon=True)
        impostor.start()
        assert not introduce(here, SECRET)
        impostor.join(SECONDS)


def _greet_without_secret(peer: socket.socket) -> None:
    peer.sendall(bytes(GREETING_BYTES))
    answer = receive_exactly(peer, 2 * GREETING_BYTES)
    peer.sendall(answer[GREETING_BYTES:])  # the best it can do: send back what it got


def test_both_ends_know_each_other():
    here, there = socket.socketpair()
    with here, there:
        results: list[bool] = []
        thread = Thread(target=lambda: results.append(admit(there, SECRET)), daemon=True)
        thread.start()
        assert introduce(here, SECRET)
        thread.join(SECONDS)
        assert results == [True]
        assert here.gettimeout() is None  # what follows may take as long as it needs
        assert there.gettimeout() is None


@pytest.mark.parametrize("sent", [b"", b"x"], ids=["silent", "too slow"])
def test_who_does_not_answer_is_closed_after_a_while(monkeypatch, sent):
    monkeypatch.setattr(secret_server, "GREETING_SECONDS", 0.2)
    with serving() as server, knocking(server) as connection:
        connection.sendall(sent)
        begin = time.monotonic()
        assert len(receive_all(connection)) == GREETING_BYTES
        assert 0.1 < time.monotonic() - begin < SECONDS


def test_a_stranger_cannot_stay_by_sending_a_byte_now_and_then(monkeypatch):
    monkeypatch.setattr(secret_server, "GREETING_SECONDS", 0.3)
    with serving() as server, knocking(server) as connection:
        begin = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012 - which of the sends fails is a matter of time
            while time.monotonic() - begin < SECONDS:
                connection.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - begin < 5


def test_a_stranger_cannot_keep_many_connections(monkeypatch):
    monkeypatch.setattr(secret_server, "MOST_UNPROVEN", 3)
    with serving() as server, ExitStack() as stack:
        waiting = [stack.enter_context(knocking(server)) for _ in range(3)]
        for connection in waiting:
            receive_exactly(connection, GREETING_BYTES)
        for _ in range(5):
            with knocking(server) as connection:
                assert receive_all(connection) == b""
        waiting.pop().close()
        wait_until(lambda: _is_greeted(server))


def _is_greeted(server: SecretServer) -> bool:
    with knocking(server) as connection:
        try:
            receive_exactly(connection, GREETING_BYTES)
        except ConnectionError:
            return False
        return True


def test_a_stranger_does_not_keep_others_out(monkeypatch):
    """Connections that wait for their greeting are counted for each address."""
    monkeypatch.setattr(secret_server, "MOST_UNPROVEN", 1)
    with serving(address="") as server, knocking(server) as stranger:
        receive_exactly(stranger, GREETING_BYTES)
        with knocking(server, "::1") as friend:
            assert introduce(friend, SECRET)
            assert receive_all(friend) == b"hello"


def test_many_who_know_the_secret_are_served_at_once_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(secret_server, "MOST_UNPROVEN", 2)
    monkeypatch.setattr(secret_server, "MOST_CONNECTIONS", 5)
    with serving(lambda peer: peer.recv(1)) as server, ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(5):
            opened.append(stack.enter_context(knocking(server)))
            assert introduce(opened[-1], SECRET)
            wait_until(lambda: not server._num_unproven)
        with knocking(server) as connection:
            assert receive_all(connection) == b""
        opened[0].close()
        wait_until(lambda: _is_greeted(server))


def test_closing_ends_all_connections_and_frees_the_port():
    port = free_port()
    ports = range(port, port + 1)
    with serving(lambda peer: peer.recv(1), ports=ports) as server, ExitStack() as stack:
        friend = stack.enter_context(knocking(server))
        assert introduce(friend, SECRET)
        stranger = stack.enter_context(knocking(server))
        receive_exactly(stranger, GREETING_BYTES)
        server.close()
        assert receive_all(friend) == b""
        assert receive_all(stranger) == b""
        with serving(ports=ports) as again:
            assert again.port == port


def test_an_error_while_serving_ends_only_that_connection():
    def fail(_peer: socket.socket) -> None:
        raise BrokenPipeError("gone")

    with serving(fail) as server:
        for _ in range(2):
            with knocking(server) as connection:
                assert introduce(connection, SECRET)
                assert receive_all(connection) == b""


def test_an_end_that_closes_too_early_is_an_error():
    here, there = socket.socketpair()
    with here:
        with there:
            there.sendall(b"half")
        with pytest.raises(ConnectionError, match="closed the connection"):
            receive_exactly(here, 8)
