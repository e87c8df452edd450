"""Measures the links between ranks as training uses them: same processes, interface, sockets and collectives."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.heartbeat import beat
from dragoman.cluster.world import World, wait_for_device

SMALLEST_BYTES = 1024
GROWTH = 4
WANTED_SECONDS = 0.3
"""Time to spend on each size, by repeating it: short transfers vary most."""
MOST_REPEATS = 10
NUM_PINGS = 20
PING_BYTES = 4
LINK_BYTES = 64 * 1024
"""Size of the first message timed for throughput; the following are larger until one takes long enough."""
LINK_SECONDS = 0.4
LARGEST_LINK_BYTES = 64 * 2**20
NUM_AGAIN = 2
FLOAT_BYTES = 4
TCP_COUNTERS = Path("/proc/net/snmp")
"""Counters of TCP over IPv4 and IPv6, of the network namespace that the reader is in."""

Transfer = tuple[int, float]
"""Bytes, and the seconds they took."""


@dataclass(frozen=True)
class ProbedLink:
    """The link from the first rank of one machine to the first rank of another."""

    sender: str
    receiver: str
    latency_seconds: float
    bytes_per_second: float
    retransmitted_share: float | None
    """Share of the segments sent meanwhile that had to be sent again; None where the kernel does not count them."""


def sweep_sizes(largest_bytes: int) -> list[int]:
    """Returns sizes from a kilobyte to the largest, each four times the one before."""
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * GROWTH < largest_bytes:
        sizes.append(sizes[-1] * GROWTH)
    return [*sizes, largest_bytes] if largest_bytes > sizes[-1] else sizes


def measure_all_reduce(
    world: World,
    sizes: Sequence[int],
    seconds: float,
    group: dist.ProcessGroup | None = None,
    time_once: Callable[[Tensor, dist.ProcessGroup | None], float] | None = None,
) -> list[Transfer]:
    """Collective: times all-reduces of these sizes, as many as fit into the time; the slowest rank counts.

    With a group, only its ranks may call it. `time_once` times another exchange instead.
    """
    time_once = time_once or _all_reduce_seconds
    buffer = torch.zeros(-(-sizes[-1] // FLOAT_BYTES), dtype=torch.float32, device=world.device)
    begin = time.perf_counter()
    found: list[Transfer] = []
    for size in sizes:
        beat(f"measuring an exchange of {size} bytes")
        part = buffer[: max(1, size // FLOAT_BYTES)]
        first = _agreed_largest(time_once(part, group), group)
        spent = _agreed_largest(time.perf_counter() - begin, group)
        # The first of a size may enlarge socket buffers: it counts only if there is no time for another.
        num_more = _repeats(first, seconds - spent)
        times = [_agreed_largest(time_once(part, group), group) for _ in range(num_more)] or [first]
        found.append((part.numel() * FLOAT_BYTES, sum(times) / len(times)))
        spent = _agreed_largest(time.perf_counter() - begin, group)
        if spent + GROWTH * found[-1][1] > seconds:
            break
    return found


def _repeats(seconds_each: float, seconds_left: float) -> int:
    wanted = min(WANTED_SECONDS / max(seconds_each, 1e-6), seconds_left / max(seconds_each, 1e-6) / GROWTH)
    return max(0, min(MOST_REPEATS, int(wanted)))


def _all_reduce_seconds(part: Tensor, group: dist.ProcessGroup | None) -> float:
    dist.barrier(group)
    begin = time.perf_counter()
    dist.all_reduce(part, group=group)
    wait_for_device(part.device)
    return time.perf_counter() - begin


def _all_gather_seconds(part: Tensor, group: dist.ProcessGroup | None) -> float:
    gathered = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.barrier(group)
    begin = time.perf_counter()
    dist.all_gather(gathered, part, group=group)
    wait_for_device(part.device)
    return time.perf_counter() - begin


def _agreed_largest(seconds: float, group: dist.ProcessGroup | None) -> float:
    number = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(number, op=dist.ReduceOp.MAX, group=group)
    return float(number)


def measure_inside(world: World, sizes: Sequence[int], seconds: float) -> list[Transfer]:
    """Collective: times all-reduces between the ranks of the first machine; empty if it has only one."""
    inside = [rank for rank, machine in enumerate(world.machines) if machine == world.machines[0]]
    if len(inside) == 1:
        return []
    group = dist.new_group(inside)
    found = measure_all_reduce(world, sizes, seconds, group) if world.rank in inside else []
    world.wait_for_all()
    if world.rank in inside:
        dist.destroy_process_group(group)
    return found


def measure_gather(world: World, sizes: Sequence[int], seconds: float) -> list[Transfer]:
    """Collective: times all-gathers between one rank of each machine; the bytes are those that a machine sends.

    Empty on ranks that take no part.
    """
    leaders = [world.machines.index(machine) for machine in dict.fromkeys(world.machines)]
    group = dist.new_group(leaders)
    found = []
    if world.rank in leaders:
        timed = measure_all_reduce(world, sizes, seconds, group, _all_gather_seconds)
        found = [((len(leaders) - 1) * num_bytes, taken) for num_bytes, taken in timed]
    world.wait_for_all()
    if world.rank in leaders:
        dist.destroy_process_group(group)
    return found


class BackgroundAllReduce:
    """An all-reduce that runs while this rank computes."""

    def __init__(self, world: World, num_bytes: int) -> None:
        self._buffer = torch.zeros(max(1, num_bytes // FLOAT_BYTES), dtype=torch.float32, device=world.device)
        self._begin = self._end = 0.0

    def start(self) -> None:
        """Collective: starts the all-reduce."""
        dist.barrier()
        # Reset the end: the wait may return before the callback that sets it, which would leave the last round's end.
        self._begin, self._end = time.perf_counter(), 0.0
        work = dist.all_reduce(self._buffer, async_op=True)
        assert work is not None
        self._work = work
        work.get_future().add_done_callback(self._note_end)

    def _note_end(self, _: object) -> None:
        self._end = time.perf_counter()

    def finish(self) -> float:
        """Collective: waits for the end; returns the seconds since the start, on the slowest rank."""
        self._work.wait()
        wait_for_device(self._buffer.device)
        return _agreed_largest((self._end or time.perf_counter()) - self._begin, None)


def measure_links(world: World) -> list[ProbedLink]:
    """Collective: measures latency and throughput from each machine to the next in the ring."""
    leaders = list(dict.fromkeys(world.machines.index(machine) for machine in world.machines))
    found: list[list[float]] = []
    pairs = _ring_pairs(leaders)
    for together in _rounds(pairs):
        world.wait_for_all()
        for sender, receiver in together:
            if world.rank == sender:
                found.append([pairs.index((sender, receiver)), *_measure_sending(world, receiver)])
            elif world.rank == receiver:
                _answer_messages(world, sender)
        world.wait_for_all()
    return [
        _named_link(world, *pairs[int(index)], *figures)
        for index, *figures in sorted(_gather_rows(world, found, len(pairs)))
    ]


def _named_link(
    world: World, sender: int, receiver: int, latency_seconds: float, bytes_per_second: float, share: float
) -> ProbedLink:
    names = world.machines[sender], world.machines[receiver]
    return ProbedLink(*names, latency_seconds, bytes_per_second, share if share >= 0 else None)


def _ring_pairs(leaders: Sequence[int]) -> list[tuple[int, int]]:
    """Returns each machine with the next one; with two machines, both directions."""
    return [(leader, leaders[(index + 1) % len(leaders)]) for index, leader in enumerate(leaders)]


def _rounds(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Groups pairs that share no machine: even ones, odd ones, and the last of an odd number."""
    last = [pairs[-1]] if len(pairs) % 2 else []
    paired = pairs[: len(pairs) - len(last)]
    for together in (paired[::2], paired[1::2], last):
        if together:
            yield list(together)


def _measure_sending(world: World, receiver: int) -> tuple[float, float, float]:
    """Returns latency in seconds, bytes per second and the share sent again to another rank; -1 if it is not known."""
    beat("measuring a link")
    before = read_tcp_segments()
    pings = [_timed_message(world, PING_BYTES, receiver) for _ in range(NUM_PINGS)]
    round_trip = sorted(pings)[NUM_PINGS // 2]
    size = LINK_BYTES
    while True:
        seconds = max(1e-9, _timed_message(world, size, receiver) - round_trip)
        if seconds >= LINK_SECONDS or size >= LARGEST_LINK_BYTES:
            break
        growth = min(16.0, max(2.0, 1.2 * LINK_SECONDS / seconds))
        size = min(LARGEST_LINK_BYTES, int(size * growth))
    # A lost packet or a busy machine may delay one message: the best of several is what the link can carry.
    again = [max(1e-9, _timed_message(world, size, receiver) - round_trip) for _ in range(NUM_AGAIN)]
    _send_size(0, receiver)
    share = retransmitted_share(before, read_tcp_segments())
    return round_trip / 2, size / min(seconds, *again), -1.0 if share is None else share


def read_tcp_segments() -> tuple[int, int] | None:
    """Returns the TCP segments that this host has sent and sent again, over all connections; None outside Linux."""
    with suppress(OSError, ValueError, KeyError):
        names, numbers = (
            line.split()[1:]
            for line in TCP_COUNTERS.read_text(encoding="ascii").splitlines()
            if line.startswith("Tcp:")
        )
        counters = dict(zip(names, map(int, numbers), strict=True))
        return counters["OutSegs"], counters["RetransSegs"]
    return None


def retransmitted_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Returns which share of the segments sent between two readings was sent again; None if none was sent."""
    if before is None or after is None:
        return None
    # OutSegs does not count what is sent again.
    sent, again = after[0] - before[0], after[1] - before[1]
    return min(1.0, again / sent) if sent > 0 and again >= 0 else None


def _timed_message(world: World, size: int, receiver: int) -> float:
    """Returns the seconds until a message of this size was received and answered."""
    _send_size(size, receiver)
    message, answer = _message(world, size), _message(world, PING_BYTES)
    begin = time.perf_counter()
    dist.send(message, receiver)
    dist.recv(answer, receiver)
    wait_for_device(answer.device)
    return time.perf_counter() - begin


def _answer_messages(world: World, sender: int) -> None:
    """Answers messages of announced sizes until one of size 0."""
    announced = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(announced, sender)
        if not (size := int(announced)):
            return
        message = _message(world, size)
        dist.recv(message, sender)
        wait_for_device(message.device)
        dist.send(_message(world, PING_BYTES), sender)


def _send_size(size: int, receiver: int) -> None:
    dist.send(torch.tensor([size]), receiver)


def _message(world: World, size: int) -> Tensor:
    return torch.zeros(max(1, size // FLOAT_BYTES), dtype=torch.float32, device=world.device)


def _gather_rows(world: World, rows: list[list[float]], num_rows: int) -> list[list[float]]:
    """Collective: returns the rows of all ranks, which may have different numbers of rows."""
    width = 4
    padded = [number for row in rows for number in row] + [-1.0] * (width * (num_rows - len(rows)))
    tables = world.gather_numbers(padded)
    cut = (table[begin : begin + width] for table in tables for begin in range(0, len(table), width))
    return [row for row in cut if row[0] >= 0]
