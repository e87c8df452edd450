"""The processes of a run and the few ways they talk; a world of one has the same interface and sends nothing.

Gradients apart (see synchronisation), everything that crosses between ranks crosses here.
"""

import json
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from dragoman.cluster.heartbeat import waiting
from dragoman.cluster.rendezvous import Meeting

CPU = torch.device("cpu")
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Long, because ranks wait here while one of them judges or samples; hangs are found by their heartbeats."""


@dataclass(frozen=True)
class World:
    """This process's place among all."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = CPU
    machines: tuple[str, ...] = ("",)
    """The machine of each rank, by a name no other machine of the run has."""

    @property
    def machine(self) -> str:
        """The one this process is on."""
        return self.machines[self.rank]

    @property
    def num_machines(self) -> int:
        """How many take part."""
        return len(set(self.machines))

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and speaks to the person."""
        return self.rank == 0

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        """Collective: adds up each of the numbers over all ranks, in double precision on the host."""
        return self._reduce_numbers(numbers, dist.ReduceOp.SUM)

    def largest_numbers(self, numbers: list[float]) -> list[float]:
        """Collective: the largest over all ranks of each of the numbers."""
        return self._reduce_numbers(numbers, dist.ReduceOp.MAX)

    def smallest_numbers(self, numbers: list[float]) -> list[float]:
        """Collective: the smallest over all ranks of each of the numbers."""
        return self._reduce_numbers(numbers, dist.ReduceOp.MIN)

    def gather_numbers(self, numbers: list[float]) -> list[list[float]]:
        """Collective: what every rank gives, in the order of ranks; all give equally many."""
        row = len(numbers)
        table = [0.0] * (row * self.size)
        table[self.rank * row : (self.rank + 1) * row] = numbers
        summed = self.sum_numbers(table)
        return [summed[rank * row : (rank + 1) * row] for rank in range(self.size)]

    def gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        """Collective: every rank gives numbered texts; every rank gets all of them, in order of their numbers."""
        if self.size == 1:
            return [text for _, text in sorted(indexed)]
        with waiting("the texts of all ranks"):
            return self._gather_texts(indexed)

    def _gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        # JSON, not torch's object collectives: those unpickle what they receive.
        mine = torch.frombuffer(bytearray(json.dumps(indexed).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([mine.numel()]))
        longest = max(int(size) for size in sizes)
        buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(buffers, torch.nn.functional.pad(mine, (0, longest - mine.numel())))
        everything = [
            tuple(item)
            for buffer, size in zip(buffers, sizes, strict=True)
            for item in json.loads(buffer[: int(size)].numpy().tobytes())
        ]
        return [text for _, text in sorted(everything)]

    def send_tensor(self, tensor: Tensor, sender: int) -> None:
        """Collective: gives every rank the sender's values, in place."""
        if self.size > 1:
            with waiting(f"weights from rank {sender}"):
                dist.broadcast(tensor, src=sender)

    def wait_for_all(self) -> None:
        """Collective: returns when every rank has come here."""
        self.sum_numbers([0.0])

    def start_vote(self, code: int) -> "Vote":
        """Collective: begins agreeing on the largest code any rank gives; the answer is read later, hiding the wait."""
        ballot = torch.tensor([code], dtype=torch.int32)
        work = dist.all_reduce(ballot, op=dist.ReduceOp.MAX, async_op=True) if self.size > 1 else None
        return Vote(ballot, work)

    def _reduce_numbers(self, numbers: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        with waiting("the figures of all ranks"):
            dist.all_reduce(tensor, op=operation)
        return [float(number) for number in tensor]


@dataclass(frozen=True)
class Vote:
    """A decision under way."""

    ballot: Tensor
    work: dist.Work | None

    def result(self) -> int:
        """Waits for the other ranks' votes; the same on every rank."""
        if self.work is not None:
            with waiting("the votes of all ranks"):
                self.work.wait()
        return int(self.ballot)


def join_world(meeting: Meeting | None) -> World:
    """Collective: begins communication with those that were met; a world of one where nobody was."""
    if meeting is None:
        return World(device=choose_device(), machines=(socket.gethostname(),))
    device = choose_device(meeting.local_rank)
    if meeting.size > 1:
        # Host tensors go over gloo even beside GPUs: votes and counts must not wait behind kernels.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = PrefixStore("world", meeting.store)
        dist.init_process_group(
            backend, store=store, rank=meeting.rank, world_size=meeting.size, timeout=COLLECTIVE_TIMEOUT
        )
    return World(meeting.rank, meeting.size, meeting.local_rank, device, meeting.machines)


def leave_world(world: World) -> None:
    """Ends communication, so that no peer is left waiting."""
    if world.size > 1:
        dist.destroy_process_group()


def choose_device(local_rank: int = 0) -> torch.device:
    """The GPU of this rank where there is one, otherwise the CPU."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")
