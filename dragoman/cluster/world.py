"""The processes of a run and how they exchange data; a world of one process has the same interface and sends nothing.

Everything ranks exchange is exchanged here, except gradients (see gradient_sum).
"""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from dragoman.cluster.gloo import place_gloo
from dragoman.cluster.heartbeat import waiting
from dragoman.cluster.rendezvous import Rendezvous

CPU = torch.device("cpu")


@dataclass(frozen=True)
class RankGroup:
    """Some ranks that exchange data among themselves."""

    size: int
    handle: dist.ProcessGroup | None = None
    """None for all ranks, or where there is only one."""


PIECE_BYTES = 4 * 2**20
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Long, because ranks wait here while one of them evaluates; hangs are found by heartbeats."""


@dataclass(frozen=True)
class World:
    """This process's rank among all processes of the run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = CPU
    machines: tuple[str, ...] = ("",)
    """The machine of each rank, by a name no other machine of the run has."""

    @property
    def machine(self) -> str:
        """The machine this process runs on."""
        return self.machines[self.rank]

    @property
    def num_machines(self) -> int:
        """Number of machines in the run."""
        return len(set(self.machines))

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and prints messages."""
        return self.rank == 0

    @property
    def everyone(self) -> RankGroup:
        """All ranks."""
        return RankGroup(self.size)

    def start_group(self, ranks: Sequence[int]) -> RankGroup:
        """Collective: starts a group of some ranks; all ranks of the world start all groups in the same order."""
        if len(ranks) == 1 or self.size == 1:
            return RankGroup(1)
        if len(ranks) == self.size:
            return self.everyone
        handle = dist.new_group(list(ranks))
        return RankGroup(len(ranks), handle if self.rank in ranks else None)

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        """Collective: sums each number over all ranks, in double precision on the host."""
        return self._reduce_numbers(numbers, dist.ReduceOp.SUM)

    def largest_numbers(self, numbers: list[float]) -> list[float]:
        """Collective: returns the maximum of each number over all ranks."""
        return self._reduce_numbers(numbers, dist.ReduceOp.MAX)

    def smallest_numbers(self, numbers: list[float]) -> list[float]:
        """Collective: returns the minimum of each number over all ranks."""
        return self._reduce_numbers(numbers, dist.ReduceOp.MIN)

    def gather_numbers(self, numbers: list[float]) -> list[list[float]]:
        """Collective: returns the numbers of every rank, by rank; all ranks give equally many."""
        row = len(numbers)
        table = [0.0] * (row * self.size)
        table[self.rank * row : (self.rank + 1) * row] = numbers
        summed = self.sum_numbers(table)
        return [summed[rank * row : (rank + 1) * row] for rank in range(self.size)]

    def gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        """Collective: collects numbered texts of all ranks on every rank, sorted by number."""
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

    def first_error(self, error: str | None) -> str | None:
        """Collective: returns the error of the first rank that has one; None where no rank has one."""
        errors = self.gather_texts([] if error is None else [(self.rank, error)])
        return errors[0] if errors else None

    def send_tensor(self, tensor: Tensor, sender: int) -> None:
        """Collective: copies the sender's values to every rank, in place."""
        for piece in cut(tensor) if self.size > 1 else ():
            with waiting(f"weights from rank {sender}"):
                dist.broadcast(piece, src=sender)

    def wait_for_all(self) -> None:
        """Collective: returns when every rank has called it."""
        self.sum_numbers([0.0])

    def start_vote(self, code: int) -> "Vote":
        """Collective: starts a vote in which the largest code wins; its result is read later, which hides the wait."""
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
    """A vote that has started."""

    ballot: Tensor
    work: dist.Work | None

    def result(self) -> int:
        """Waits for the votes of all ranks; returns the same code on every rank."""
        if self.work is not None:
            with waiting("the votes of all ranks"):
                self.work.wait()
        return int(self.ballot)


def cut(tensor: Tensor) -> Sequence[Tensor]:
    """Cuts a tensor into views of a few megabytes, each of which is a heartbeat: a slow link must not seem to hang."""
    return torch.split(tensor.view(-1), PIECE_BYTES // tensor.itemsize)


def join_world(rendezvous: Rendezvous | None, device: torch.device = CPU) -> World:
    """Collective: starts communication between the processes of the rendezvous; without one, a world of one."""
    if rendezvous is None:
        return World(device=device, machines=(socket.gethostname(),))
    if rendezvous.size > 1:
        # Host tensors use gloo even with GPUs: votes and counts must not wait for kernels.
        gloo = place_gloo(rendezvous.address, rendezvous.ports)
        backend = gloo if device.type == "cpu" else f"cpu:{gloo},{device.type}:{device_backend(device)}"
        store = PrefixStore("world", rendezvous.store)
        dist.init_process_group(
            backend, store=store, rank=rendezvous.rank, world_size=rendezvous.size, timeout=COLLECTIVE_TIMEOUT
        )
    return World(rendezvous.rank, rendezvous.size, rendezvous.local_rank, device, rendezvous.machines)


def device_backend(device: torch.device) -> str:
    """Returns what exchanges tensors of an accelerator: nccl for CUDA, xccl for Intel's."""
    return str(dist.get_default_backend_for_device(device.type))


def wait_for_device(device: torch.device) -> None:
    """Returns when the device has computed everything; on a CPU, that is at once."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def leave_world(world: World) -> None:
    """Ends communication, so that no other rank waits for this one."""
    if world.size > 1:
        dist.destroy_process_group()
