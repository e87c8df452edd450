"""Forward and backward of a rank's virtual workers; a batch that is large for the memory is computed in pieces.

Pieces are halves, or halves of halves: the loss is a sum, so their gradients add up to that of the whole batch. Only
dropout differs: a piece draws masks of its own, which depend on how its batch was cut and on nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.heartbeat import beat
from dragoman.cluster.step_clock import Part, StepClock
from dragoman.corpus.batching import MicroBatch
from dragoman.model.device import free_unused_memory, is_accelerator
from dragoman.model.loss import LossSums

Forward = Callable[[MicroBatch, float | Tensor], LossSums]
_CPU_PIECE_POSITIONS = 2_048
"""Larger batches are cut on a CPU: their pieces need a fraction of the memory, and less padding."""
_NEXT_LIMIT = 0.9
"""After a failure, batches above this share of the failed one are cut too: they would hardly fit."""


@dataclass(frozen=True)
class Piece:
    """A batch of a virtual worker, or a part of it; the parts of part n are 2n and 2n + 1."""

    virtual_worker: int
    batch: MicroBatch
    number: int = 1

    @property
    def size(self) -> int:
        """Padded positions of source and target."""
        return int(self.batch.source.size + self.batch.target_input.size)

    @property
    def can_be_cut(self) -> bool:
        """Whether it holds more than one pair."""
        return len(self.batch.source) > 1

    def cut(self) -> tuple["Piece", "Piece"]:
        """Returns both halves, without the padding that only the other one needs."""
        middle = len(self.batch.source) // 2
        first, second = self.batch.select(slice(0, middle)), self.batch.select(slice(middle, None))
        return Piece(self.virtual_worker, first, 2 * self.number), Piece(
            self.virtual_worker, second, 2 * self.number + 1
        )

    def seed(self, seed: int, step: int) -> int:
        """Returns the seed of its dropout masks."""
        return virtual_worker_seed(seed, step, self.virtual_worker, self.number)


def virtual_worker_seed(seed: int, step: int, virtual_worker: int, piece: int = 1) -> int:
    """Derives a seed that no other virtual worker, step or piece of a batch has."""
    facts = [seed, step, virtual_worker] if piece == 1 else [seed, step, virtual_worker, piece]
    return int(np.random.SeedSequence(facts).generate_state(1, np.uint64)[0] >> np.uint64(1))


class GradientPass:
    """Adds up gradients of batches, and remembers which size does not fit into memory."""

    def __init__(self, forward: Forward, gradients: GradientSum, clock: StepClock, seed: int) -> None:
        self._forward, self._gradients, self._clock, self._seed = forward, gradients, clock, seed
        self.largest_size: float = float("inf") if is_accelerator(gradients.flat.device) else _CPU_PIECE_POSITIONS
        """Padded positions up to which a batch is computed as a whole."""

    def add(
        self, step: int, batches: dict[int, MicroBatch], gradient_scale: float | Tensor, totals: LossSums
    ) -> LossSums:
        """Adds gradients of batches, by virtual worker, to those of the step; returns totals with their losses."""
        sums = None
        while sums is None:
            pieces = [piece for worker, batch in batches.items() for piece in self._cut(Piece(worker, batch))]
            sums = self._try(step, pieces, gradient_scale, totals)
        return sums

    def _cut(self, piece: Piece) -> Iterator[Piece]:
        if piece.size <= self.largest_size or not piece.can_be_cut:
            yield piece
            return
        for half in piece.cut():
            yield from self._cut(half)

    def _try(self, step: int, pieces: list[Piece], gradient_scale: float | Tensor, totals: LossSums) -> LossSums | None:
        """Returns None where memory ended; then nothing is added, and the next attempt makes smaller pieces."""
        for index, piece in enumerate(pieces, start=1):
            beat("computing a gradient")
            self._clock.switch(Part.FORWARD)
            if index == len(pieces):
                self._gradients.expect_last_backward()
            # Dropout depends on the virtual worker, not on the rank that computes it.
            torch.manual_seed(piece.seed(self._seed, step))
            try:
                sums = self._forward(piece.batch, gradient_scale)
                self._clock.switch(Part.BACKWARD)
                sums.smoothed.backward()  # type: ignore[no-untyped-call]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not piece.can_be_cut:
                    raise
                self.largest_size = int(_NEXT_LIMIT * piece.size)
            else:
                totals = LossSums(totals.smoothed + sums.smoothed.detach(), totals.plain + sums.plain)
                continue
            # After the except clause: the error holds on to everything that was computed.
            free_unused_memory(totals.plain.device)
            self._gradients.start_again()
            return None
        return totals


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or this host has no memory left for a tensor."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
