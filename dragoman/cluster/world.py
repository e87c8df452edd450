"""The processes of a run and the few ways they talk; a world of one has the same interface and sends nothing.

Gradients apart (see synchronisation), everything that crosses between ranks crosses here.
"""

import json
import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

CPU = torch.device("cpu")
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Long, because ranks wait here while rank 0 writes a checkpoint."""


@dataclass(frozen=True)
class World:
    """This process's place among all."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = CPU

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

    def gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        """Collective: every rank gives numbered texts; every rank gets all of them, in order of their numbers."""
        if self.size == 1:
            return [text for _, text in sorted(indexed)]
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

    def start_vote(self, code: int) -> "Vote":
        """Collective: begins agreeing on the largest code any rank gives; the answer is read later, hiding the wait."""
        ballot = torch.tensor([code], dtype=torch.int32)
        work = dist.all_reduce(ballot, op=dist.ReduceOp.MAX, async_op=True) if self.size > 1 else None
        return Vote(ballot, work)

    def _reduce_numbers(self, numbers: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
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
            self.work.wait()
        return int(self.ballot)


def join_world() -> World:
    """Collective: takes this process's place from the variables torchrun sets; alone where there are none."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = choose_device(local_rank)
    if size > 1:
        # Host tensors go over gloo even beside GPUs: votes and counts must not wait behind kernels.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return World(rank, size, local_rank, device)


def leave_world(world: World) -> None:
    """Ends communication, so that no peer is left waiting."""
    if world.size > 1:
        dist.destroy_process_group()


def num_gpus() -> int:
    """GPUs this process may use."""
    return torch.cuda.device_count()


def choose_device(local_rank: int = 0) -> torch.device:
    """The GPU of this rank where there is one, otherwise the CPU."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")
