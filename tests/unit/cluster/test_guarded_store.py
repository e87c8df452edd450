"""The store is reached on loopback only; other machines come through a gate that asks for the secret of the run."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import psutil
import pytest
from free_ports import free_port, free_range
from torch._C._distributed_c10d import TCPStore

from dragoman.cluster import guarded_store, secret_server
from dragoman.cluster.addresses import LOOPBACK, own_addresses
from dragoman.cluster.guarded_store import StoreGate, StorePassage, open_local_store
from dragoman.cluster.secret_server import receive_exactly

SECRET = "0123456789abcdef"
SECONDS = 30.0
NUM_GREETING_BYTES = 32
PING = b"\x0b" + bytes(32)


@pytest.fixture
def store() -> TCPStore:
    return open_local_store(SECONDS)


@contextmanager
def gate_of(store: TCPStore, address: str = LOOPBACK, ports: range | None = None) -> Iterator[StoreGate]:
    gate = StoreGate(address, ports, SECRET, store.port)
    try:
        yield gate
    finally:
        gate.close()


@contextmanager
def passage_to(port: int, *addresses: str, secret: str = SECRET) -> Iterator[StorePassage]:
    passage = StorePassage(addresses or (LOOPBACK,), port, secret)
    try:
        yield passage
    finally:
        passage.close()


def connect(port: int, seconds: float = SECONDS) -> TCPStore:
    """Connects as an agent or a worker does."""
    return TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=seconds))


# The store


def test_a_store_is_reached_at_its_port(store):
    other = connect(store.port)
    other.set("colour", "green")
    assert store.get("colour") == b"green"


def test_the_store_listens_on_loopback_only(store):
    listening = [
        each.laddr
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == store.port
    ]
    assert [address.ip for address in listening] == [LOOPBACK]


def test_the_store_is_not_reached_at_other_addresses_of_this_machine(store):
    others = [address for _, address in own_addresses() if address != LOOPBACK]
    for address in [*others, "127.0.0.2"]:
        with pytest.raises(OSError):
            socket.create_connection((address, store.port), timeout=1).close()


def test_an_agent_that_opens_the_store_again_in_this_process_shares_it(store):
    """The agent of the first host opens a store at the port it is given, and finds ours there."""
    again = TCPStore(
        LOOPBACK,
        store.port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        timeout=timedelta(seconds=SECONDS),
    )
    again.set("colour", "green")
    assert store.get("colour") == b"green"


# The gate


@pytest.mark.parametrize("address", [LOOPBACK, "::1"])
def test_a_passage_leads_through_the_gate_to_the_store(store, address):
    with gate_of(store, address) as gate, passage_to(gate.port, address) as passage:
        there = connect(passage.port)
        there.set("colour", "green")
        assert store.get("colour") == b"green"
        store.set("big", "x" * 1_000_000)
        assert len(there.get("big")) == 1_000_000
        assert there.add("count", 2) == 2
        assert passage.find_gate() == address


def test_many_processes_use_one_passage(store):
    with gate_of(store) as gate, passage_to(gate.port) as passage:
        others = [connect(passage.port) for _ in range(8)]
        for number, each in enumerate(others):
            each.set(f"key{number}", str(number))
        assert [store.get(f"key{number}") for number in range(8)] == [b"%d" % number for number in range(8)]


def test_one_process_may_wait_for_a_value_while_others_go_on(store):
    """Waiting blocks a connection, which must not block the others."""
    with gate_of(store) as gate, passage_to(gate.port) as passage:
        waiting, working = connect(passage.port), connect(passage.port)
        thread = threading.Thread(target=lambda: waiting.wait(["late"], timedelta(seconds=SECONDS)), daemon=True)
        thread.start()
        working.set("early", "1")
        assert working.get("early") == b"1"
        assert thread.is_alive()
        store.set("late", "1")
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_the_gate_uses_a_port_of_the_range(store):
    ports = free_range(3)
    with socket.create_server((LOOPBACK, ports[0])), gate_of(store, ports=ports) as gate:
        assert gate.port == ports[1]


def test_a_stranger_gets_nothing_from_the_gate(store):
    store.set("secret", "of the run")
    with gate_of(store) as gate, socket.create_connection((LOOPBACK, gate.port), timeout=SECONDS) as stranger:
        receive_exactly(stranger, NUM_GREETING_BYTES)
        stranger.sendall(PING * 10)
        assert _receive(stranger) == b""


def test_a_store_client_without_the_secret_cannot_join(store):
    """torch would take what the gate sends for an answer, or wait: it ends with an error, and the store has nothing."""
    num_keys = store.num_keys()
    with gate_of(store) as gate:
        with pytest.raises((RuntimeError, OSError)):
            connect(gate.port, seconds=1).set("colour", "red")
        with passage_to(gate.port, secret="f" * 16) as passage:
            assert passage.find_gate() is None
            with pytest.raises((RuntimeError, OSError)):
                connect(passage.port, seconds=1).set("colour", "red")
    assert store.num_keys() == num_keys


def test_strangers_at_the_gate_do_not_keep_the_run_out(store, monkeypatch):
    monkeypatch.setattr(secret_server, "MOST_UNPROVEN", 4)
    monkeypatch.setattr(secret_server, "GREETING_SECONDS", 0.3)
    with gate_of(store) as gate, ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection((LOOPBACK, gate.port))) for _ in range(50)]
        for stranger in strangers:
            stranger.settimeout(SECONDS)
            while _receive(stranger):  # until it is closed: most at once, some after a while
                pass
        with passage_to(gate.port) as passage:
            connect(passage.port).set("colour", "green")
            assert store.get("colour") == b"green"


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1024)
    except ConnectionResetError:
        return b""


def test_the_address_of_another_machine_is_passed_over(store):
    """Every machine has a 127.0.0.1: only the gate that knows the secret counts."""
    with gate_of(store) as gate, socket.create_server(("127.0.0.3", gate.port)) as other:
        threading.Thread(target=_answer_wrongly, args=(other,), daemon=True).start()
        with passage_to(gate.port, "127.0.0.2", "127.0.0.3", LOOPBACK) as passage:
            assert passage.find_gate() == LOOPBACK
            connect(passage.port).set("colour", "green")
            assert store.get("colour") == b"green"


def _answer_wrongly(listening: socket.socket) -> None:
    while True:
        try:
            peer, _ = listening.accept()
        except OSError:
            return
        with peer:
            peer.sendall(os.urandom(2 * NUM_GREETING_BYTES))


def test_without_a_gate_there_is_none_to_find():
    with passage_to(free_port()) as passage:
        assert passage.find_gate() is None
        with pytest.raises((RuntimeError, OSError)):
            connect(passage.port, seconds=1).set("colour", "red")


def test_a_gate_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(secret_server, "GREETING_SECONDS", 0.1)
    with socket.create_server((LOOPBACK, 0)) as silent, passage_to(silent.getsockname()[1]) as passage:
        begin = time.monotonic()
        assert passage.find_gate() is None
        assert time.monotonic() - begin < SECONDS


def test_closing_the_gate_ends_the_connections_through_it(store):
    """Workers that wait for a value end with an error instead of waiting for ever."""
    errors: list[Exception] = []
    with gate_of(store) as gate, passage_to(gate.port) as passage:
        there = connect(passage.port)

        def wait() -> None:
            try:
                there.wait(["never"], timedelta(seconds=SECONDS))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        time.sleep(0.1)
        gate.close()
        thread.join(SECONDS / 2)
        assert not thread.is_alive()
    assert len(errors) == 1
    store.set("colour", "green")  # the store itself goes on


def test_closing_a_passage_frees_its_port(store):
    with gate_of(store) as gate, passage_to(gate.port) as passage:
        passage.close()
        with pytest.raises(OSError):
            socket.create_connection((LOOPBACK, passage.port), timeout=1).close()


def test_a_gate_whose_store_has_ended_closes_the_connection(monkeypatch):
    monkeypatch.setattr(guarded_store, "CONNECT_SECONDS", 1.0)
    gate = StoreGate(LOOPBACK, None, SECRET, free_port())
    try:
        with passage_to(gate.port) as passage, socket.create_connection((LOOPBACK, passage.port)) as client:
            client.settimeout(SECONDS)
            assert client.recv(1) == b""
    finally:
        gate.close()
