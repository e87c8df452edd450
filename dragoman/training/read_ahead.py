"""Reads and pads the batches of the next step in a thread, while this one computes.

One step is read ahead, never more: the thread is idle most of the time, and a checkpoint needs only the position behind
the last step that was made.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import torch

from dragoman.corpus.batching import BatchPosition, BatchStream, Indices, MicroBatch, StepPlan
from dragoman.model.device import is_accelerator
from dragoman.training.learner import read_micro_batches


@dataclass(frozen=True)
class ReadStep:
    """A step that is ready to be computed."""

    plan: StepPlan
    batches: dict[int, MicroBatch]
    """Micro-batches of this rank's virtual workers."""
    position: BatchPosition
    """Where the step after it begins."""


class ReadAhead:
    """The steps of a stream, in their order; as a context manager, ends its thread."""

    def __init__(self, stream: BatchStream, share: Iterable[int], device: torch.device) -> None:
        """`share`: the virtual workers of this rank."""
        self._stream, self._share, self._is_pinned = stream, list(share), is_accelerator(device)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._next: Future[ReadStep] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self) -> ReadStep:
        """Returns the next step and begins to read the one after it; raises what went wrong in the thread."""
        step = self._read() if self._next is None else self._next.result()
        self._next = self._thread.submit(self._read)
        return step

    def rest(self) -> None:
        """Waits until nothing is read: an evaluation forks, which is safe only while no thread holds a lock."""
        if self._next is not None:
            with suppress(Exception):  # raised where the step is taken, if it ever is
                self._next.exception()

    def _read(self) -> ReadStep:
        plan = self._stream.next_step()
        batches = read_micro_batches(self._stream, plan, self._share)
        if self._is_pinned:
            batches = {worker: _pin(batch) for worker, batch in batches.items()}
        return ReadStep(plan, batches, self._stream.position)


def _pin(batch: MicroBatch) -> MicroBatch:
    """Moves arrays to memory from which an accelerator copies without the host's help."""

    def pin(array: Indices) -> Indices:
        return torch.from_numpy(array).pin_memory().numpy()

    # Lengths stay: the host itself reads them.
    return MicroBatch(pin(batch.source), batch.source_lengths, pin(batch.target_input), batch.target_output)
