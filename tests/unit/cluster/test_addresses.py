"""An address counts only if the right host answers there, in a limited time."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Thread

import pytest

from dragoman.cluster import addresses
from dragoman.cluster.addresses import Listener, free_port, interface_of, own_addresses, reachable_address

LOOPBACK = "127.0.0.1"
SECRET = "0123456789abcdef" * 2 + "host-b"


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Runs another program's server; returns its port."""
    with socket.create_server(("", 0)) as listening:

        def serve() -> None:
            try:
                while True:
                    peer, _ = listening.accept()
                    Thread(target=answer, args=[peer], daemon=True).start()
            except OSError:
                return

        Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def seconds_of(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def test_the_right_host_is_found():
    with closing(Listener(SECRET)) as listener:
        assert reachable_address([LOOPBACK], listener.port, SECRET) == LOOPBACK


def test_a_listener_answers_everybody_who_asks():
    with closing(Listener(SECRET)) as listener:
        assert {reachable_address([LOOPBACK], listener.port, SECRET) for _ in range(5)} == {LOOPBACK}


@pytest.mark.parametrize("other", ["f" * len(SECRET), SECRET[:-1] + "c", SECRET[:-1], ""])
def test_another_host_at_the_same_address_is_refused(other):
    with closing(Listener(other)) as listener:
        assert reachable_address([LOOPBACK], listener.port, SECRET) is None


def test_the_first_address_that_answers_is_taken():
    with closing(Listener(SECRET)) as listener:
        assert reachable_address(["127.0.0.2", LOOPBACK], listener.port, SECRET) == "127.0.0.2"
        assert reachable_address(["256.0.0.1", LOOPBACK], listener.port, SECRET) == LOOPBACK


def test_no_host_is_found_if_none_listens():
    assert reachable_address([LOOPBACK], free_port(), SECRET) is None
    assert reachable_address([], 1, SECRET) is None


def test_the_port_is_free_again_after_closing():
    """Workers listen there next."""
    with closing(Listener(SECRET)) as listener:
        port = listener.port
        reachable_address([LOOPBACK], port, SECRET)
        with pytest.raises(OSError, match="in use"):
            Listener(SECRET, port)
    assert reachable_address([LOOPBACK], port, SECRET) is None
    with closing(Listener("another", port)) as again:
        assert again.port == port
        assert reachable_address([LOOPBACK], port, "another") == LOOPBACK


def test_a_server_that_never_answers_is_left_after_the_timeout(monkeypatch):
    monkeypatch.setattr(addresses, "TRY_SECONDS", 0.05)
    with server(lambda peer: time.sleep(30)) as port:
        assert 0.1 <= seconds_of(lambda: reachable_address([LOOPBACK, "127.0.0.2"], port, SECRET)) < 20


def test_a_server_that_hangs_up_is_not_the_right_one():
    with server(lambda peer: peer.close()) as port:
        assert reachable_address([LOOPBACK], port, SECRET) is None


def test_an_interface_is_found_by_its_address():
    for name, address in own_addresses():
        assert interface_of(address) in {other for other, same in own_addresses() if same == address}, name
    assert interface_of("192.0.2.1") is None


def test_addresses_of_loopback_come_last():
    addresses = [address for _, address in own_addresses()]
    assert "127.0.0.1" in addresses
    are_loopback = [address.startswith("127.") for address in addresses]
    assert are_loopback == sorted(are_loopback)


def test_free_ports_can_be_listened_at():
    with closing(Listener(SECRET, free_port())) as listener:
        assert reachable_address([LOOPBACK], listener.port, SECRET) == LOOPBACK
