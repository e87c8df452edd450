"""Processes exchange data through gloo at a chosen address, and at ports of a chosen range only."""

import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing import Queue
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event

import psutil
import pytest
import torch
import torch.distributed as dist
from free_ports import free_range
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from dragoman.cluster import gloo
from dragoman.cluster.addresses import LOOPBACK
from dragoman.cluster.gloo import CorrectedStore, place_gloo, socket_address
from dragoman.cluster.guarded_store import open_local_store
from dragoman.cluster.rendezvous import Rendezvous
from dragoman.cluster.world import join_world
from dragoman.run.errors import UserError

SECONDS = 60.0
FIRST_EPHEMERAL = 33_000
"""The system may give out these ports for other purposes."""


# Real processes


def train(
    rank: int, size: int, store_port: int, address: str, ports: range | None, answers: Queue, done: Event
) -> None:
    """Sums tensors with the other ranks; at module level, so that a process can start it."""
    try:
        gloo.is_loopback = lambda _address: False  # a range is used only between machines
        store = TCPStore(LOOPBACK, store_port, is_master=False, timeout=timedelta(seconds=SECONDS))
        world = join_world(Rendezvous(store, rank, size, rank, size, ("here",) * size, address, ports))
        gradients = torch.full((100_000,), float(rank + 1))
        dist.all_reduce(gradients)
        # Groups of some ranks are made while training, with sockets of their own.
        pair = dist.new_group([0, size - 1])
        of_pair = torch.tensor([float(rank)])
        if rank in (0, size - 1):
            dist.all_reduce(of_pair, group=pair)
        world.wait_for_all()
        answers.put((rank, (set(gradients.tolist()), float(of_pair), listening_ports(address))))
        done.wait(SECONDS)
    except BaseException as error:
        answers.put((rank, f"{type(error).__name__}: {error}"))
        traceback.print_exc(file=sys.stderr)


def listening_ports(address: str) -> list[int]:
    """Returns the ports at which this process listens."""
    found = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert {each.laddr.ip for each in found} == {address}
    return sorted(each.laddr.port for each in found)


Answer = tuple[set[float], float, list[int]]
"""The values of the sum over all ranks, the sum over the pair, and the ports at which the rank listens."""
Train = Callable[[Sequence[str], range | None], list[Answer]]


@pytest.fixture
def train_together(processes: ForkServerContext) -> Train:
    """Returns a function that starts a rank at each address and returns their answers."""

    def start(addresses: Sequence[str], ports: range | None) -> list[Answer]:
        store, answers, done = open_local_store(SECONDS), processes.Queue(), processes.Event()
        size = len(addresses)
        started = [
            processes.Process(target=train, args=(rank, size, store.port, address, ports, answers, done))
            for rank, address in enumerate(addresses)
        ]
        for process in started:
            process.start()
        try:
            found = dict(answers.get(timeout=SECONDS) for _ in started)
        finally:
            done.set()
            for process in started:
                process.join(timeout=10)
                process.kill()
        return [found[rank] for rank in range(size)]

    return start


def check_sums(answers: Sequence[Answer]) -> None:
    """The values are the ranks counted from 1 for all ranks, and from 0 for the pair of the first and the last."""
    size, last = len(answers), len(answers) - 1
    assert [of_all for of_all, _, _ in answers] == [{size * (size + 1) / 2}] * size
    assert [of_pair for _, of_pair, _ in answers] == [last if rank in (0, last) else rank for rank in range(size)]


@pytest.mark.parametrize(
    "addresses",
    [
        [LOOPBACK] * 2,
        ["::1"] * 2,
        [LOOPBACK] * 3,
        ["::1"] * 3,
        [LOOPBACK, LOOPBACK, "127.0.0.2", "127.0.0.2"],
    ],
    ids=lambda addresses: f"{len(addresses)} at {' and '.join(dict.fromkeys(addresses))}",
)
def test_ranks_sum_at_ports_of_the_range(train_together, addresses):
    ports = free_range(3 * len(addresses))
    answers = train_together(addresses, ports)
    check_sums(answers)
    used = [(address, port) for address, (_, _, of_rank) in zip(addresses, answers, strict=True) for port in of_rank]
    assert {port for _, port in used} <= set(ports)
    assert len(set(used)) == len(used) >= len(addresses)


def test_without_a_range_any_port_is_used(train_together):
    check_sums(train_together(["::1"] * 2, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(20_000 // 256 * 256 + 250, id="across a multiple of 256"),
        pytest.param(FIRST_EPHEMERAL // 256 * 256 + 4, id="ephemeral"),
    ],
)
def test_ranks_sum_whatever_the_bytes_of_the_ports_are(train_together, begin):
    """Gloo compares ports by their bytes in another order, to decide who connects."""
    ports = range(begin, begin + 12)  # some may be taken: they are skipped
    answers = train_together([LOOPBACK] * 3, ports)
    check_sums(answers)
    assert {port for _, _, of_rank in answers for port in of_rank} <= set(ports)


def test_ports_of_the_range_that_are_taken_are_skipped(train_together):
    ports = free_range(16)
    with ExitStack() as stack:
        for port in ports[::2]:
            stack.enter_context(socket.create_server((LOOPBACK, port)))
        answers = train_together([LOOPBACK] * 2, ports)
    check_sums(answers)
    assert {port for _, _, of_rank in answers for port in of_rank} <= set(ports[1::2])


# One process


@pytest.fixture
def place(monkeypatch) -> Callable[[str, range | None], None]:
    """Places gloo without the exception for loopback; everything is as before after the test."""
    monkeypatch.setattr(gloo, "_place", gloo._Place())
    monkeypatch.setattr(gloo, "_kept_stores", [])
    monkeypatch.setattr(gloo, "is_loopback", lambda _address: False)
    return place_gloo


def build(store: Store | None = None) -> dist.ProcessGroup:
    return gloo._build_gloo(store or HashStore(), 0, 1, timedelta(seconds=SECONDS))


def test_an_exhausted_range_is_named(place):
    ports = free_range(4)
    place(LOOPBACK, ports)
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server((LOOPBACK, port)))
        with pytest.raises(UserError, match=r"All . ports of cluster\.port between "):
            build()


def test_the_sockets_of_gloo_are_replaced_and_none_is_left_over(place):
    ports = free_range(4)
    place(LOOPBACK, ports)
    before = gloo._listening_sockets(LOOPBACK)
    groups = [build(), build()]
    opened = gloo._listening_sockets(LOOPBACK) - before
    assert {port for _, port in opened} == set(ports[:2])
    assert len(groups) == len(opened)


def test_inside_a_machine_no_range_is_needed(monkeypatch):
    monkeypatch.setattr(gloo, "_place", gloo._Place())
    place_gloo("::1", range(1, 2))
    assert gloo._place == gloo._Place("::1", None)
    place_gloo("192.0.2.1", range(1, 2))
    assert gloo._place == gloo._Place("192.0.2.1", range(1, 2))


def test_ports_are_compared_as_gloo_does():
    """As a number of this machine whose bytes are in the order of the network."""
    if sys.byteorder == "little":
        assert gloo._order(0x0102) == 0x0201
    assert sorted(range(0x00FE, 0x0102), key=gloo._order) == [0x0100, 0x0101, 0x00FE, 0x00FF]


def test_a_range_for_which_gloo_never_finds_a_port_is_refused(place, monkeypatch):
    monkeypatch.setattr(gloo, "_MOST_DRAWS", 3)
    monkeypatch.setattr(gloo, "_order", lambda _port: 0)  # no port is greater than another
    place(LOOPBACK, free_range(4))
    with pytest.raises(RuntimeError, match=r"no port that fits cluster\.port; choose another range"):
        build()


@pytest.mark.parametrize("ports", [range(29_500, 29_564), range(29_680, 29_700), range(60_920, 60_940)])
def test_one_of_256_ports_at_least_is_greater_than_all_that_gloo_uses(ports):
    usable = gloo._usable_ports(ports)
    assert set(usable) <= set(ports)
    assert len(usable) >= 3 * len(ports) // 4 - 1
    greatest = max(map(gloo._order, usable))
    ephemeral = range(32_768, 61_000)
    assert sum(gloo._order(port) > greatest for port in ephemeral) >= len(ephemeral) // 256 - 1


# What gloo announces


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_the_new_port_is_announced_instead_of_the_old_one(address):
    below = HashStore()
    store = CorrectedStore(below, 1, address, old_port=40_000, new_port=29_500)
    store.set("0/rank1", b"before" + socket_address(address, 40_000) + b"after")
    assert below.get("0/rank1") == b"before" + socket_address(address, 29_500) + b"after"
    store.set("text", "as it is")
    assert below.get("text") == b"as it is"


def test_an_address_is_written_as_the_system_does():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert socket_address("127.0.0.1", port)[2:] == port.to_bytes(2, "big") + bytes([127, 0, 0, 1])
    six = socket_address("::1", port)
    assert (len(six), six[2:4], six[-1]) == (24, port.to_bytes(2, "big"), 1)


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
@pytest.mark.parametrize(
    ("key", "is_to_connect"), [("gloo/0", True), ("gloo/1", True), ("gloo/2", False), ("gloo/3", False), ("x", False)]
)
def test_a_lower_rank_of_the_same_address_is_the_one_that_connects(address, key, is_to_connect):
    below = HashStore()
    store = CorrectedStore(below, 2, address, 40_000, 29_500)
    announced = b"before" + socket_address(address, 0x0A0D) + b"after"  # bytes that mean something to re
    below.set(key, announced)
    changed = b"before" + socket_address(address, 65_535) + b"after"
    assert store.get(key) == (changed if is_to_connect else announced)


def test_a_rank_of_another_address_is_left_as_it_is():
    below = HashStore()
    announced = socket_address("10.0.0.8", 29_500)
    below.set("gloo/0", announced)
    assert CorrectedStore(below, 2, "10.0.0.7", 40_000, 29_500).get("gloo/0") == announced


def test_everything_else_goes_to_the_store_below():
    below = HashStore()
    store = CorrectedStore(below, 0, "10.0.0.7", 40_000, 29_500)
    assert store.add("count", 3) == 3
    assert not store.check(["colour"])
    below.set("colour", "green")
    assert store.check(["colour"])
    store.wait(["colour"])
    store.wait(["colour"], timedelta(seconds=SECONDS))
    with pytest.raises(RuntimeError):
        store.wait(["shape"], timedelta(milliseconds=10))
