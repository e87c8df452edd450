"""Measuring links: which sizes, how often and in which rounds; and real measurements between four processes."""

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
from dragoman.cluster.probe import GROWTH, MOST_REPEATS, SMALLEST_BYTES, BackgroundAllReduce, ProbedLink, sweep_sizes
from dragoman.cluster.world import World

TIMEOUT = timedelta(seconds=60)


@given(st.integers(1, 10**10))
def test_sizes_rise_from_a_kilobyte_to_the_largest(largest):
    sizes = sweep_sizes(largest)
    assert sizes[0] == SMALLEST_BYTES
    assert sizes[-1] == max(largest, SMALLEST_BYTES)
    assert all(small < large <= GROWTH * small for small, large in itertools.pairwise(sizes))


@given(st.floats(0, 100), st.floats(-10, 100))
def test_no_size_takes_more_than_its_share_of_the_time(seconds_each, seconds_left):
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


SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm ActiveOpens InSegs OutSegs RetransSegs InErrs
Tcp: 1 900 5000 {sent} {again} 0
Udp: InDatagrams
Udp: 7
"""


def test_segments_are_read_from_the_counters_of_tcp(monkeypatch, tmp_path):
    path = tmp_path / "snmp"
    monkeypatch.setattr(probe, "TCP_COUNTERS", path)
    path.write_text(SNMP.format(sent=12_000, again=240))
    assert probe.read_tcp_segments() == (12_000, 240)
    for text in ("", "Tcp: OutSegs\n", "Tcp: OutSegs RetransSegs\nTcp: 1\n", "Tcp: OutSegs RetransSegs\nTcp: a b\n"):
        path.write_text(text)
        assert probe.read_tcp_segments() is None
    path.unlink()
    assert probe.read_tcp_segments() is None


def test_segments_of_this_machine_only_rise():
    before = probe.read_tcp_segments()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x")
        after = probe.read_tcp_segments()
    assert before is not None
    assert after is not None
    assert after[0] > before[0]
    assert after[1] >= before[1]


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((100, 5), (1_100, 25), 0.02),
        ((100, 5), (1_100, 5), 0.0),
        ((100, 5), (101, 50), 1.0),  # a link that lets nothing through
        ((100, 5), (100, 5), None),
        ((100, 5), (50, 0), None),  # another network namespace
        (None, (1_100, 25), None),
        ((100, 5), None, None),
    ],
)
def test_the_share_that_was_sent_again(before, after, share):
    assert probe.retransmitted_share(before, after) == share


class FakeWork:
    """An all-reduce that ends at once; a test decides whether its callback comes in time."""

    has_callback = True

    def get_future(self) -> "FakeWork":
        return self

    def add_done_callback(self, callback) -> None:
        if self.has_callback:
            callback(None)

    def wait(self) -> None:
        pass


def test_the_end_of_an_earlier_round_is_not_used(monkeypatch):
    work = FakeWork()
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **options: work if options.get("async_op") else None)
    all_reduce = BackgroundAllReduce(World(size=2), 64)
    all_reduce.start()
    all_reduce.finish()
    work.has_callback = False
    all_reduce.start()
    assert all_reduce.finish() >= 0


def run_rank(rank: int, port: int, answers: multiprocessing.Queue) -> None:
    """Runs one of four ranks, as if on two machines; at module level, so that a process can start it."""
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
    all_reduce = BackgroundAllReduce(world, 2**16)
    seconds = []
    for _ in range(2):
        all_reduce.start()
        seconds.append(all_reduce.finish())
    numbers = world.gather_numbers([float(rank), rank / 2])
    smallest = world.smallest_numbers([float(rank), -float(rank)])
    found = [[link.__dict__ for link in links], whole, cut_short, inside, seconds, numbers, smallest]
    answers.put((rank, json.dumps(found)))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def answers(processes) -> list[list]:
    """The measurements of each of four ranks."""
    queue = processes.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    ranks = [processes.Process(target=run_rank, args=(rank, port, queue)) for rank in range(4)]
    for process in ranks:
        process.start()
    try:
        found = dict(queue.get(timeout=60) for _ in ranks)
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
        del store
    return [json.loads(found[rank]) for rank in range(4)]


def test_every_rank_knows_every_link(answers):
    for links, *_ in answers:
        assert links == answers[0][0]
        found = [ProbedLink(**link) for link in links]
        assert [(link.sender, link.receiver) for link in found] == [("a", "b"), ("b", "a")]
        assert all(0 < link.latency_seconds < 1 and link.bytes_per_second > 1e5 for link in found)
        assert all(0 <= link.retransmitted_share < 0.5 for link in found)


def test_all_ranks_agree_on_the_time_of_an_all_reduce(answers):
    for _, whole, cut_short, *_ in answers:
        assert whole == answers[0][1]
        assert [size for size, _ in whole] == sweep_sizes(2**18)
        assert all(seconds > 0 for _, seconds in whole)
        assert len(cut_short) == 1  # no time: the first size only


def test_inside_a_machine_only_its_ranks_measure(answers):
    assert answers[0][3] == answers[1][3]
    assert [size for size, _ in answers[0][3]] == sweep_sizes(2**14)
    assert answers[2][3] == answers[3][3] == []


def test_a_background_all_reduce_is_timed_in_each_round(answers):
    assert all(seconds > 0 for *_, measured, _, _ in answers for seconds in measured)


def test_numbers_are_gathered_in_the_order_of_ranks_and_the_smallest_found(answers):
    for *_, numbers, smallest in answers:
        assert numbers == [[0.0, 0.0], [1.0, 0.5], [2.0, 1.0], [3.0, 1.5]]
        assert smallest == [0.0, -3.0]


def test_a_world_of_one_gathers_its_own_numbers():
    assert World().gather_numbers([1.5, 2.0]) == [[1.5, 2.0]]
    assert World().smallest_numbers([1.5]) == [1.5]
