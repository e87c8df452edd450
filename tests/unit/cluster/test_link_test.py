"""The test of the way to another host: data goes both ways on the ports of the run, and what failed is named."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

import pytest
from free_ports import free_port, free_range

from dragoman.cluster import link_test, secret_server
from dragoman.cluster.link_test import LinkListeners, LinkResult, check_link
from dragoman.cluster.secret_server import admit, receive_exactly
from dragoman.run.errors import UserError

LOOPBACK = "127.0.0.1"
SECRET = "0123456789abcdef-host-b"
SECONDS = 30.0


@contextmanager
def listening(ports: range | None = None, num_ports: int = 1, secret: str = SECRET) -> Iterator[LinkListeners]:
    listeners = LinkListeners(secret, ports, num_ports)
    try:
        yield listeners
    finally:
        listeners.close()


@contextmanager
def server(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Runs another server; returns its port."""
    with socket.create_server((LOOPBACK, 0)) as accepting:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = accepting.accept()
                    threading.Thread(target=answer_quietly, args=[peer], daemon=True).start()

        def answer_quietly(peer: socket.socket) -> None:
            with suppress(OSError):
                answer(peer)

        threading.Thread(target=serve, daemon=True).start()
        yield accepting.getsockname()[1]
        accepting.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def impatient(monkeypatch):
    """Waits for fractions of a second."""
    monkeypatch.setattr(link_test, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(link_test, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(secret_server, "GREETING_SECONDS", 0.5)


# Ways that work


@pytest.mark.parametrize("address", [LOOPBACK, "::1"])
def test_data_goes_both_ways_on_loopback(address):
    with listening() as listeners:
        result = check_link([address], listeners.ports, SECRET)
    assert result.has_passed
    assert (result.addresses, result.port) == ((address,), listeners.ports[0])
    assert result.mtu == 65536
    assert result.num_segments > 0
    assert result.num_retransmitted == 0
    assert result.passing_mtu is None


def test_all_ports_of_a_run_are_tried():
    ports = free_range(5)
    with listening(ports, 4) as listeners:
        assert listeners.ports == list(ports[:4])
        assert check_link([LOOPBACK], listeners.ports, SECRET).has_passed


def test_without_a_range_one_free_port_is_enough():
    with listening(None, 4) as listeners:
        assert len(listeners.ports) == 1


def test_the_first_address_that_answers_is_used():
    """The order is that of the host, which knows best."""
    with listening() as listeners:
        assert check_link(["127.0.0.2", LOOPBACK], listeners.ports, SECRET).addresses == ("127.0.0.2",)


def test_one_host_is_tested_by_several_at_once():
    with listening() as listeners:
        results: list[LinkResult] = []
        threads = [
            threading.Thread(target=lambda: results.append(check_link([LOOPBACK], listeners.ports, SECRET)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert [result.has_passed for result in results] == [True] * 4


def test_a_range_without_enough_free_ports_frees_those_it_had():
    ports = free_range(3)
    with pytest.raises(UserError, match=f"between {ports[0]} and {ports[2]}"):
        LinkListeners(SECRET, ports, 4)
    with listening(ports, 3) as listeners:
        assert listeners.ports == list(ports)


def test_a_result_is_sent_as_plain_values():
    with listening() as listeners:
        result = check_link([LOOPBACK], listeners.ports, SECRET)
    again = LinkResult(**asdict(result) | {"addresses": list(result.addresses)})
    assert asdict(again) == asdict(result) | {"addresses": [LOOPBACK]}


# Ways that do not


def test_a_closed_port_is_refused():
    result = check_link(["127.0.0.2", LOOPBACK], [port := free_port()], SECRET)
    assert (result.stage, result.port, result.reason) == ("connect", port, "connection refused")
    assert not result.has_passed


def test_no_answer_is_named_after_a_while(impatient):
    """As a firewall that drops packets does: a full queue of connections answers nothing."""
    with socket.socket() as full:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((LOOPBACK, port))
        try:
            begin = time.monotonic()
            assert check_link([LOOPBACK], [port], SECRET).reason == "no answer"
            assert time.monotonic() - begin < SECONDS
        finally:
            for each in waiting:
                each.close()


def test_a_server_that_says_nothing_gives_no_answer(impatient):
    with server(lambda peer: time.sleep(SECONDS)) as port:
        assert check_link([LOOPBACK], [port], SECRET).reason == "no answer"


def test_another_secret_is_another_machine():
    with listening(secret="of another host") as listeners:
        result = check_link([LOOPBACK], listeners.ports, SECRET)
    assert (result.stage, result.reason) == ("connect", "another machine answers there")


@pytest.mark.parametrize("answer", [socket.socket.close, lambda peer: peer.sendall(os.urandom(64))])
def test_another_program_is_another_machine(answer, impatient):
    with server(answer) as port:
        assert check_link([LOOPBACK], [port], SECRET).reason == "another machine answers there"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EHOSTUNREACH, "no route to it"),
        (errno.ENETUNREACH, "no route to its network"),
        (errno.EPERM, "not permitted here"),
        (errno.EACCES, "not permitted here"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
    ],
)
def test_what_the_system_answers_is_put_in_words(monkeypatch, number, words):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(link_test, "_connect", refuse)
    assert check_link(["10.0.0.7"], [1], SECRET).reason == words


def test_the_addresses_tried_are_named_without_those_of_loopback():
    """Every machine has a 127.0.0.1."""
    result = check_link([LOOPBACK, "::1"], [free_port()], SECRET)
    assert result.addresses == ()
    assert check_link([], [1], SECRET).reason == "it has no address"


def test_of_several_reasons_the_most_telling_is_named(monkeypatch):
    reasons = {
        "10.0.0.1": "no answer",
        "10.0.0.2": "connection refused",
        LOOPBACK: "another machine answers there",
    }
    monkeypatch.setattr(link_test, "_greet", lambda address, *_: reasons[address])
    assert check_link(list(reasons), [1], SECRET).reason == "no answer"
    assert check_link(["10.0.0.2", LOOPBACK], [1], SECRET).reason == "connection refused"
    assert check_link([LOOPBACK], [1], SECRET).reason == "another machine answers there"


def test_a_port_that_is_blocked_is_named_though_the_first_is_open():
    """A firewall that lets only cluster.port through, and not the range after it."""
    with listening() as listeners:
        blocked = free_port()
        result = check_link([LOOPBACK], [*listeners.ports, blocked], SECRET)
    assert (result.stage, result.port, result.addresses) == ("connect", blocked, (LOOPBACK,))
    assert result.reason == "connection refused"


# Data that vanishes


def swallow(peer: socket.socket) -> None:
    """Receives nothing after the greeting."""
    with peer:
        admit(peer, SECRET)
        time.sleep(SECONDS)


def receive_only(peer: socket.socket) -> None:
    """Receives everything and sends no data."""
    with peer:
        admit(peer, SECRET)
        receive_exactly(peer, 8 + link_test.TEST_BYTES)
        peer.sendall(b"\1")
        time.sleep(SECONDS)


@pytest.mark.parametrize(("answer", "stage"), [(swallow, "send"), (receive_only, "receive")])
def test_data_that_does_not_arrive_is_noticed_in_its_direction(impatient, answer, stage):
    with server(answer) as port:
        begin = time.monotonic()
        result = check_link([LOOPBACK], [port], SECRET)
        assert time.monotonic() - begin < SECONDS / 2
    assert (result.stage, result.passing_mtu) == (stage, None)
    assert result.mtu == 65536


def test_where_only_small_packets_pass_their_size_is_named(impatient):
    """The server here answers as the network would: only who announced small packets gets everything."""

    def pass_small_packets(peer: socket.socket) -> None:
        with peer:
            segment_bytes = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            admit(peer, SECRET)
            if segment_bytes > 1300:
                time.sleep(SECONDS)
            link_test._answer(peer)

    with server(pass_small_packets) as port:
        result = check_link([LOOPBACK], [port], SECRET)
    assert (result.stage, result.passing_mtu) == ("send", 1280)


def test_a_stranger_cannot_make_a_host_receive_much(impatient):
    """The size it announces is bounded."""
    with listening() as listeners, socket.create_connection((LOOPBACK, listeners.ports[0])) as peer:
        assert secret_server.introduce(peer, SECRET)
        peer.settimeout(SECONDS)
        peer.sendall((2**40).to_bytes(8, "big") + bytes(link_test.TEST_BYTES))
        assert receive_exactly(peer, 1) == b"\1"
        receive_exactly(peer, link_test.TEST_BYTES)


def test_a_system_that_does_not_count_packets_gives_zeros():
    here, there = socket.socketpair()
    with here, there:
        assert link_test._count_segments(here) == (0, 0)
