"""training.compile: kernels made by torch.compile, for batches that are padded to a few fixed sizes.

Every size is compiled once, which takes a minute; so sizes are few. Only encoder and decoder are compiled: embeddings
and loss have sizes of their own.
"""

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dragoman.corpus.batching import Indices, MicroBatch
from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID
from dragoman.model.transformer import Transformer
from dragoman.run.errors import UserError

_SMALLEST_STEP = 8
_COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class FixedSizes:
    """The sizes that batches are padded to: a few lengths, and for each a number of pairs and its halves."""

    batch_tokens: int
    """Token budget of a virtual worker."""
    longest: int
    """Longest side of a pair."""

    @property
    def lengths(self) -> list[int]:
        """Multiples of 8 up to 64, then four lengths from each power of two to the next."""
        lengths = [_SMALLEST_STEP]
        while lengths[-1] < self.longest:
            step = max(_SMALLEST_STEP, (1 << (lengths[-1].bit_length() - 1)) // 4)
            lengths.append(lengths[-1] + step)
        return lengths

    def pad(self, batch: MicroBatch) -> MicroBatch:
        """Pads a batch; added pairs have no target, so they count nowhere."""
        lengths = self.lengths
        place = bisect_left(lengths, max(batch.source.shape[1], batch.target_input.shape[1]))
        length = lengths[place]
        num_pairs = self._num_pairs(len(batch.source), shortest=lengths[place - 1] + 1 if place else 1)
        return MicroBatch(
            _fill(batch.source, num_pairs, length, first=EOS_ID),
            np.concatenate([batch.source_lengths, np.ones(num_pairs - len(batch.source), np.int64)]),
            _fill(batch.target_input, num_pairs, length, first=BOS_ID),
            _fill(batch.target_output, num_pairs, length, first=PAD_ID),
        )

    def _num_pairs(self, needed: int, shortest: int) -> int:
        """Returns the most pairs of a length that a batch can hold, halved as often as that suffices."""
        most = max(1, self.batch_tokens // shortest)
        while needed <= most // 2:
            most //= 2
        return max(needed, most)


def _fill(array: Indices, num_rows: int, num_columns: int, first: int) -> Indices:
    """Adds padding to rows, and rows that begin with a token of their own."""
    filled = np.full((num_rows, num_columns), PAD_ID, dtype=np.int64)
    filled[len(array) :, 0] = first
    filled[: len(array), : array.shape[1]] = array
    return filled


class CompiledModel:
    """Encoder and decoder as compiled functions, for training only: evaluation has other sizes."""

    def __init__(self, model: Transformer, sizes: FixedSizes) -> None:
        require_compiler(model.target_embedding.device)
        # Not at the top: it takes over a second, and few runs compile.
        import torch._dynamo.config

        # Beyond these numbers torch would silently go on without compiled kernels.
        torch._dynamo.config.recompile_limit = 1_000
        torch._dynamo.config.accumulated_recompile_limit = 10_000
        self.sizes = sizes
        self._parts: list[tuple[Any, Callable[..., Any]]] = [
            (part, torch.compile(part.forward, dynamic=False)) for part in (model.encoder, model.decoder)
        ]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Lets the model compute with compiled functions until the block ends."""
        for part, function in self._parts:
            part.forward = function
        try:
            yield
        finally:
            for part, _ in self._parts:
                del part.forward


def require_compiler(device: torch.device) -> None:
    """Refuses where nothing can be compiled: kernels of a CPU need a C++ compiler, those of a GPU also triton."""
    if not any(map(shutil.which, _COMPILERS)):
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install one (on Debian and Ubuntu: "
            "apt install g++) or set training.compile=false."
        )
    if device.type != "cpu" and not _has_triton():
        raise UserError(
            "training.compile needs triton to make kernels for a GPU, and it is not installed: install a build of "
            "torch for this GPU, which brings it, or set training.compile=false."
        )


def _has_triton() -> bool:
    from torch.utils._triton import has_triton_package

    return bool(has_triton_package())
