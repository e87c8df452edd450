"""Dropout that costs little on a CPU.

torch draws one Bernoulli sample per element on a single thread there: 19 ms for a million elements, a fifth of a
training step. Sixteen bits an element, cut from 64-bit draws of the same generator, take 2 ms.
"""

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zeroes elements with a probability (to 1/65536 on a CPU) and scales the rest, so that the mean stays."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self._num_dropped_levels = min(round(probability * _LEVELS), _LEVELS - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Drops elements of x; returns x itself outside training."""
        if not self.training or self._num_dropped_levels == 0:
            return x
        if x.device.type != "cpu":
            return torch.dropout(x, self.probability, train=True)
        dropped: Tensor = x * self._draw_mask(x).mul_(self._scale)
        return dropped

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropped x, in one pass over memory on a CPU."""
        if not self.training or self._num_dropped_levels == 0 or x.device.type != "cpu":
            return residual + self.forward(x)
        return torch.addcmul(residual, x.to(residual.dtype), self._draw_mask(residual), value=self._scale)

    @property
    def _scale(self) -> float:
        return _LEVELS / (_LEVELS - self._num_dropped_levels)

    def _draw_mask(self, like: Tensor) -> Tensor:
        """Ones where an element is kept, zeros elsewhere, in the type of `like`."""
        num_elements = like.numel()
        words = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(1 << 63), None)
        bits = words.view(torch.int16)[:num_elements].view(like.shape)
        mask = torch.empty(like.shape, dtype=like.dtype)
        threshold = self._num_dropped_levels - _LEVELS // 2
        torch.ge(bits, threshold, out=mask)
        return mask
