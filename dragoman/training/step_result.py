"""What came out of one update. A CPU tells it at once; an accelerator is asked a step later, so that it never idles.

Until then, whatever depends on the outcome (loss scale, learning rate) is chosen on the device, by the same rules.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from dragoman.cluster.heartbeat import beat, waiting
from dragoman.model.device import is_accelerator
from dragoman.model.loss import LossSums


class StepResult:
    """Loss and gradient norm of one step; the copy to the host begins at once, and reading waits for it."""

    def __init__(self, loss_sums: LossSums, norm: Tensor, is_waiting_for_others: bool = False) -> None:
        """`norm` is in double precision; `is_waiting_for_others`: other ranks take part in what is waited for."""
        self.loss_sums = loss_sums
        """Sums over this rank's target tokens only; they stay on the device."""
        self._norm, self._is_waiting_for_others = norm, is_waiting_for_others
        self.is_finite_on_device = torch.isfinite(norm)
        figures = torch.stack([norm, loss_sums.smoothed.double()])
        self._copied: torch.Event | None = None
        if is_accelerator(norm.device):
            figures = torch.empty(2, dtype=figures.dtype, pin_memory=True).copy_(figures, non_blocking=True)
            self._copied = torch.Event(norm.device)
            self._copied.record()
        self._figures = figures

    @classmethod
    def join(cls, results: Sequence["StepResult"], device: torch.device) -> Self:
        """Adds up the losses of the replicas of one rank; the norm is their mean."""
        zero = torch.zeros((), device=device)
        if not results:
            return cls(LossSums(zero, zero), zero.double())
        smoothed, plain, norm = results[0].loss_sums.smoothed, results[0].loss_sums.plain, results[0]._norm
        for each in results[1:]:
            smoothed, plain = smoothed + each.loss_sums.smoothed, plain + each.loss_sums.plain
            norm = norm + each._norm
        return cls(LossSums(smoothed, plain), norm / len(results), results[0]._is_waiting_for_others)

    @property
    def gradient_norm(self) -> float:
        """Norm of the gradient of the mean loss over the global batch, before clipping; the same on every rank. Where
        replicas learn apart, the mean over this rank's replicas."""
        return self._read[0]

    @property
    def own_loss(self) -> float:
        """The smoothed loss in `loss_sums`, as a number."""
        return self._read[1]

    @property
    def is_finite(self) -> bool:
        """Whether the gradient could be used."""
        return math.isfinite(self.gradient_norm)

    def choose(self, if_finite: float, if_not: float) -> Tensor:
        """Returns a number that follows from the outcome, in double precision on the device, without waiting."""
        return torch.where(self.is_finite_on_device, self._norm.new_full((), if_finite), if_not)

    @cached_property
    def _read(self) -> tuple[float, float]:
        """Norm and loss, once the device has computed them."""
        if self._copied is not None:
            if self._is_waiting_for_others:
                with waiting("the gradients of all ranks"):
                    self._copied.synchronize()
            else:
                beat("waiting for the device")
                self._copied.synchronize()
        norm, own_loss = self._figures.tolist()
        return norm, own_loss
