"""How ranks agree on a step's gradient: summed over all of them, sent while backward is still computing.

torch's DistributedDataParallel is not used on purpose: it rearranges its buckets after the first step, so a resumed
run would add numbers in another order than the uninterrupted one and could not end bit-identical. Here the layout is
fixed: gradients are views into one flat buffer, in the order backward completes them, cut into buckets.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.cluster.heartbeat import waiting
from dragoman.cluster.part_clock import PartClock
from dragoman.cluster.world import World

BUCKET_BYTES = 16 * 2**20
ALIGNMENT_ELEMENTS = 16
"""Each gradient starts on a 64-byte line: matrix kernels may add in another order otherwise, run to run."""


class GradientSum:
    """Sums gradients over ranks with all-reduce, bucket after bucket, overlapping backward."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        world: World,
        bucket_bytes: int = BUCKET_BYTES,
        clock: PartClock | None = None,
    ) -> None:
        self._world = world
        self._clock = clock or PartClock(is_on=False)
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
        self._is_last_backward = False

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """The size of each bucket, in the order they are sent."""
        return tuple(bucket.nbytes for bucket in self._buckets)

    def start_step(self) -> None:
        """Forgets the last step's gradients."""
        self.flat.zero_()
        self._pending = list(self._bucket_sizes)
        self._works = []
        self._is_last_backward = False

    def expect_last_backward(self) -> None:
        """From now on gradients are complete as they come: each full bucket is sent at once."""
        self._is_last_backward = True

    def finish(self) -> Tensor:
        """Collective: the summed gradient of all ranks, flat; the parameters' gradients are views of it."""
        if self._world.size > 1:
            while len(self._works) < len(self._buckets):  # all of them, on a rank that had nothing to learn from
                self._send_next_bucket()
            with waiting("the gradients of all ranks"):
                for work in self._works:
                    work.wait()
        return self.flat

    def _on_gradient_complete(self, parameter: nn.Parameter) -> None:
        if not self._is_last_backward:
            return
        self._pending[self._bucket_of[parameter]] -= 1
        # In fixed order, whatever order backward takes: ranks must send the same bucket at the same time.
        while len(self._works) < len(self._buckets) and self._pending[len(self._works)] == 0:
            self._send_next_bucket()

    def _send_next_bucket(self) -> None:
        work = dist.all_reduce(self._buckets[len(self._works)], async_op=True)
        assert work is not None
        self._clock.follow(work)
        self._works.append(work)


def _lay_out(parameters: list[nn.Parameter]) -> tuple[list[int], int]:
    """Where each gradient begins in the flat buffer, and how long that is."""
    begins, end = [], 0
    for parameter in parameters:
        begins.append(end)
        end += -(-parameter.numel() // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
    return begins, end
