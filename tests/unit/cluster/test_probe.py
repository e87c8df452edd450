"""Measuring the way between ranks: which sizes, how often and in which rounds; and real figures of two processes."""

import itertools
import json
import multiprocessing
import os
import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster import probe
from dragoman.cluster.probe import GROWTH, MOST_REPEATS, SMALLEST_BYTES, BackgroundExchange, ProbedLink, sweep_sizes
from dragoman.cluster.world import World

TIMEOUT = timedelta(seconds=60)


@given(st.integers(1, 10**10))
def test_sizes_rise_from_a_kilobyte_to_the_largest(largest):
    sizes = sweep_sizes(largest)
    assert sizes[0] == SMALLEST_BYTES
    assert sizes[-1] == max(largest, SMALLEST_BYTES)
    assert all(small < large <= GROWTH * small for small, large in itertools.pairwise(sizes))


@given(st.floats(0, 100), st.floats(-10, 100))
def test_no_size_is_repeated_beyond_its_share_of_the_time(seconds_each, seconds_left):
    repeats = probe._repeats(seconds_each, seconds_left)
    assert 0 <= repeats <= MOST_REPEATS
    assert repeats == 0 or repeats * seconds_each * GROWTH <= seconds_left + 1e-6


def test_with_two_machines_both_directions_are_measured():
    assert probe._ring_pairs([0, 2]) == [(0, 2), (2, 0)]


@given(st.integers(2, 40))
def test_rounds_hold_every_link_once_and_no_machine_twice(num_machines):
    pairs = probe._ring_pairs([2 * index for index in range(num_machines)])
    rounds = list(probe._rounds(pairs))
    assert sorted(pair for together in rounds for pair in together) == sorted(pairs)
    for together in rounds:
        busy = [rank for pair in together for rank in pair]
        assert len(busy) == len(set(busy))
    assert len(rounds) <= 3


class FakeWork:
    """An all-reduce that is over as soon as it is waited for; whether it says so in time is up to the test."""

    says_so = True

    def get_future(self) -> "FakeWork":
        return self

    def add_done_callback(self, callback) -> None:
        if self.says_so:
            callback(None)

    def wait(self) -> None:
        pass


def test_a_late_word_of_arrival_is_not_taken_from_the_round_before(monkeypatch):
    work = FakeWork()
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **options: work if options.get("async_op") else None)
    exchange = BackgroundExchange(World(size=2), 64)
    exchange.start()
    exchange.finish()
    work.says_so = False
    exchange.start()
    assert exchange.finish() >= 0


def play_rank(rank: int, port: int, answers: multiprocessing.Queue) -> None:
    """One of four ranks on two machines that are this one; module-level, so that it can be started."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    probe.LINK_SECONDS, probe.LARGEST_LINK_BYTES = 0.01, 2**18
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=TIMEOUT)
    world = World(rank, 4, rank % 2, machines=("a", "a", "b", "b"))
    links = probe.measure_links(world)
    whole = probe.measure_all_reduce(world, sweep_sizes(2**18), seconds=2.0)
    cut_short = probe.measure_all_reduce(world, sweep_sizes(2**22), seconds=0.0)
    inside = probe.measure_inside(world, sweep_sizes(2**14), seconds=1.0)
    exchange = BackgroundExchange(world, 2**16)
    travels = []
    for _ in range(2):
        exchange.start()
        travels.append(exchange.finish())
    numbers = world.gather_numbers([float(rank), rank / 2])
    smallest = world.smallest_numbers([float(rank), -float(rank)])
    found = [[link.__dict__ for link in links], whole, cut_short, inside, travels, numbers, smallest]
    answers.put((rank, json.dumps(found)))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told() -> list[list]:
    """What each of four ranks found."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dragoman.cluster.probe"])  # torch is imported once for all four
    answers = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    ranks = [context.Process(target=play_rank, args=(rank, port, answers)) for rank in range(4)]
    for process in ranks:
        process.start()
    try:
        found = dict(answers.get(timeout=60) for _ in ranks)
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
        del store
    return [json.loads(found[rank]) for rank in range(4)]


def test_every_rank_knows_every_link(told):
    for links, *_ in told:
        assert links == told[0][0]
        found = [ProbedLink(**link) for link in links]
        assert [(link.sender, link.receiver) for link in found] == [("a", "b"), ("b", "a")]
        assert all(0 < link.latency_seconds < 1 and link.bytes_per_second > 1e5 for link in found)


def test_all_ranks_agree_on_how_long_an_exchange_takes(told):
    for _, whole, cut_short, *_ in told:
        assert whole == told[0][1]
        assert [size for size, _ in whole] == sweep_sizes(2**18)
        assert all(seconds > 0 for _, seconds in whole)
        assert len(cut_short) == 1  # no time: the first size only


def test_inside_a_machine_only_its_ranks_measure(told):
    assert told[0][3] == told[1][3]
    assert [size for size, _ in told[0][3]] == sweep_sizes(2**14)
    assert told[2][3] == told[3][3] == []


def test_an_exchange_beside_computing_takes_its_time_each_round(told):
    assert all(seconds > 0 for *_, travels, _, _ in told for seconds in travels)


def test_numbers_are_gathered_in_the_order_of_ranks_and_the_smallest_found(told):
    for *_, numbers, smallest in told:
        assert numbers == [[0.0, 0.0], [1.0, 0.5], [2.0, 1.0], [3.0, 1.5]]
        assert smallest == [0.0, -3.0]


def test_a_world_of_one_gathers_itself():
    assert World().gather_numbers([1.5, 2.0]) == [[1.5, 2.0]]
    assert World().smallest_numbers([1.5]) == [1.5]
