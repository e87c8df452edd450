"""Dropout, on a CPU from raw random bytes and in few passes over memory.

torch draws one Bernoulli sample per element in a single thread, and keeps masks as numbers of four bytes. Here a byte
decides about an element and then serves as its mask. Each draw rounds the probability to one of the two nearest
multiples of 1/256, at random and such that the mean is the probability.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_LEVELS = 256
_BYTES_PER_WORD = 8


class Kept(NamedTuple):
    """Which elements dropout keeps."""

    mask: Tensor
    """1 where an element is kept and 0 elsewhere, as bytes."""
    scale: float
    """Factor on kept elements that preserves the mean."""


class Dropout(nn.Module):
    """Zeroes elements with a probability and scales the rest to keep the mean."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    @property
    def is_active(self) -> bool:
        """Whether anything is dropped."""
        return self.training and self.probability > 0

    def forward(self, x: Tensor) -> Tensor:
        """Drops elements of x; returns x itself outside training."""
        if not self.is_active:
            return x
        if not _has_own_kernels(x):
            return torch.dropout(x, self.probability, train=True)
        dropped: Tensor = _Drop.apply(x, *self.draw(x.shape))  # type: ignore[no-untyped-call]
        return dropped

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns residual + dropped x."""
        if not self.is_active or not _has_own_kernels(x):
            return residual + self.forward(x)
        added: Tensor = _AddDropped.apply(residual, x, *self.draw(x.shape))  # type: ignore[no-untyped-call]
        return added

    def relu(self, x: Tensor) -> Tensor:
        """Returns dropped relu(x); may use the memory of x, which must be the result of an operation."""
        if not self.is_active or not _has_own_kernels(x):
            return self.forward(torch.relu(x))
        dropped: Tensor = _DropRelu.apply(x, *self.draw(x.shape))  # type: ignore[no-untyped-call]
        return dropped

    def draw(self, shape: torch.Size) -> Kept:
        """Draws which elements are kept; torch's generator is only asked for a seed, numpy's is faster."""
        seed = int(torch.empty((), dtype=torch.int64).random_())
        generator = np.random.SFC64(seed)
        rounding = generator.random_raw() / 2**64
        num_dropped_levels = min(math.floor(self.probability * _LEVELS + rounding), _LEVELS - 1)
        num_elements = shape.numel()
        words = generator.random_raw(-(-num_elements // _BYTES_PER_WORD))
        mask = torch.from_numpy(words.view(np.uint8))[:num_elements].view(shape).ge_(num_dropped_levels)
        return Kept(mask, _LEVELS / (_LEVELS - num_dropped_levels))


def _has_own_kernels(x: Tensor) -> bool:
    """Whether the functions below compute: on a CPU, unless torch compiles, which joins passes by itself."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class _Drop(torch.autograd.Function):
    """Drops elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return mask.to(x.dtype).mul_(x).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return mask.to(grad.dtype).mul_(grad).mul_(ctx.scale), None, None


class _AddDropped(torch.autograd.Function):
    """Adds dropped elements to a residual."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale, ctx.dtype = scale, x.dtype
        return torch.addcmul(residual, x.to(residual.dtype), mask.to(residual.dtype), value=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return grad, mask.to(grad.dtype).mul_(grad).mul_(ctx.scale).to(ctx.dtype), None, None


class _DropRelu(torch.autograd.Function):
    """Drops elements of relu(x), in the memory of x; keeps only the result, which says by itself where it is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.mark_dirty(x)
        x.relu_().mul_(mask.to(x.dtype).mul_(scale))
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (dropped,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, dropped, 0).mul_(ctx.scale), None, None
