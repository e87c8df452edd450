"""Sums the gradients of a step over all ranks while backward is still computing.

torch's DistributedDataParallel is deliberately not used: it rearranges its buckets after the first step, so a resumed
run would add numbers in another order than an uninterrupted one and could not end bit-identical. Here the layout is
fixed: gradients are views into one flat buffer, in the order in which backward completes them, divided into buckets.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.cluster.heartbeat import waiting
from dragoman.cluster.step_clock import StepClock
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch

BUCKET_BYTES = 16 * 2**20
ALIGNMENT_ELEMENTS = 16
"""Each gradient starts at a multiple of 64 bytes: otherwise matrix kernels may add in another order in each run."""


class GradientSum:
    """Sums gradients over ranks with one all-reduce per bucket, overlapped with backward."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        world: World,
        bucket_bytes: int = BUCKET_BYTES,
        clock: StepClock | None = None,
    ) -> None:
        self.group = world.everyone
        """The ranks whose gradients are summed."""
        self._clock = clock or StepClock(is_on=False)
        # Backward finishes parameters roughly in the reverse of the order the model declares them.
        parameters = list(parameters)[::-1]
        begins, num_elements = _lay_out(parameters)
        self.flat = torch.zeros(num_elements, dtype=torch.float32, device=parameters[0].device)
        for parameter, begin in zip(parameters, begins, strict=True):
            parameter.grad = self.flat[begin : begin + parameter.numel()].view_as(parameter)
            if world.size > 1:
                parameter.register_post_accumulate_grad_hook(self._on_gradient_complete)  # type: ignore[no-untyped-call]
        cuts = [begin // (bucket_bytes // self.flat.itemsize) for begin in begins]
        bucket_of = [sorted(set(cuts)).index(cut) for cut in cuts]
        self._bucket_of = dict(zip(parameters, bucket_of, strict=True))
        self._bucket_sizes = [bucket_of.count(bucket) for bucket in range(bucket_of[-1] + 1)]
        first_begins = [begins[bucket_of.index(bucket)] for bucket in range(len(self._bucket_sizes))]
        self._buckets = list(self.flat.tensor_split(first_begins[1:]))
        self._pending: list[int] = []
        self._works: list[dist.Work] = []
        self._sums_kept: dict[int, Tensor] = {}
        self._is_last_backward = False

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """Size of each bucket, in the order in which buckets are sent."""
        return tuple(bucket.nbytes for bucket in self._buckets)

    @property
    def num_exchanged_bytes(self) -> int:
        """Bytes of one exchange of gradients between machines, as one of them sends it."""
        return self.flat.nbytes

    def contributions(self, batches: dict[int, MicroBatch]) -> Iterator[dict[int, MicroBatch]]:
        """Yields the batches of this rank, part by part, between which gradients must not be mixed."""
        yield batches

    def start_step(self) -> None:
        """Sets the gradients of the last step to zero."""
        self._works, self._sums_kept = [], {}
        self._begin_pass()

    def start_again(self) -> None:
        """Forgets what was added since `start_step`, except buckets that were sent: those were complete."""
        for bucket, work in enumerate(self._works):
            if bucket not in self._sums_kept:
                with waiting("the gradients of all ranks"):
                    work.wait()
                self._sums_kept[bucket] = self._buckets[bucket].clone()
        self._begin_pass()

    def _begin_pass(self) -> None:
        self.flat.zero_()
        self._pending = list(self._bucket_sizes)
        self._is_last_backward = False

    def expect_last_backward(self) -> None:
        """Announces the last backward pass of the step: from here on each complete bucket is sent at once."""
        self._is_last_backward = True

    def finish(self) -> Tensor:
        """Collective: returns the flat gradient summed over all ranks; the gradients of parameters are views of it."""
        if self.group.size > 1:
            while len(self._works) < len(self._buckets):  # all buckets, on a rank that had no batch
                self._send_next_bucket()
            for work in self._works:
                with waiting("the gradients of all ranks"):
                    work.wait()
            for bucket, summed in self._sums_kept.items():
                self._buckets[bucket].copy_(summed)
        return self.flat

    def _on_gradient_complete(self, parameter: nn.Parameter) -> None:
        if not self._is_last_backward or self.group.size == 1:
            return
        self._pending[self._bucket_of[parameter]] -= 1
        # In a fixed order, whatever order backward takes: ranks must send the same bucket at the same time.
        while len(self._works) < len(self._buckets) and self._pending[len(self._works)] == 0:
            self._send_next_bucket()

    def _send_next_bucket(self) -> None:
        work = dist.all_reduce(self._buckets[len(self._works)], group=self.group.handle, async_op=True)
        assert work is not None
        self._clock.follow(work)
        self._works.append(work)


def _lay_out(parameters: list[nn.Parameter]) -> tuple[list[int], int]:
    """Returns where each gradient begins in the flat buffer, and the length of the buffer."""
    begins, end = [], 0
    for parameter in parameters:
        begins.append(end)
        end += -(-parameter.numel() // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
    return begins, end
