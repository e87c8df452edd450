"""Label-smoothed cross-entropy as a *sum*, without storing all scores of the vocabulary.

Scores of a few hundred positions at a time are computed, turned into their gradient in place, and freed: with 4096
positions and 8000 subwords this saves 260 MB of memory traffic per step, and a third of the step on a CPU.
Shape suffixes: N positions, C positions of a chunk, D model width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from dragoman.model.device import loss_positions


class LossSums(NamedTuple):
    """Sums over target tokens; divide by their number for the mean."""

    smoothed: Tensor
    """The training loss: (1 - s) · -log p(target) + s · mean over the vocabulary of -log p."""
    plain: Tensor
    """-log p(target) alone; the exponential of its mean is the perplexity. Has no gradient."""


def cross_entropy_sums(
    states_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    smoothing: float,
    gradient_scale: float | Tensor = 1.0,
    bias_V: Tensor | None = None,
) -> LossSums:
    """Sums the loss over positions; the caller has removed padding.

    Gradients come out `gradient_scale` times as large: fp16 would lose small ones if they were scaled afterwards.
    """
    smoothed, plain = _ChunkedCrossEntropy.apply(states_ND, weight_VD, bias_V, target_N, smoothing, gradient_scale)  # type: ignore[no-untyped-call]
    return LossSums(smoothed, plain)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward pass, since the loss is always the last thing before backward."""

    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        smoothing: float,
        gradient_scale: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        compute_dtype = _autocast_dtype(states_ND.device.type) or states_ND.dtype
        states_ND, weight = states_ND.to(compute_dtype), weight_VD.to(compute_dtype)
        bias = None if bias_V is None else bias_V.to(compute_dtype)
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_states_ND = torch.empty_like(states_ND) if needs_states else None
        grad_weight_VD = torch.zeros_like(weight_VD) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V) if bias_V is not None and needs_bias else None
        smoothed = states_ND.new_zeros((), dtype=torch.float32)
        plain = torch.zeros_like(smoothed)
        num_positions = loss_positions(states_ND.device, weight_VD.shape[0])
        for begin in range(0, states_ND.shape[0], num_positions):
            chunk = slice(begin, begin + num_positions)
            log_p_CV = torch.log_softmax(linear(states_ND[chunk], weight, bias), dim=-1, dtype=torch.float32)
            target_C1 = target_N[chunk, None]
            plain_sum = -log_p_CV.gather(1, target_C1).sum()
            plain += plain_sum
            smoothed += (1 - smoothing) * plain_sum
            if smoothing:
                smoothed -= smoothing / log_p_CV.shape[1] * log_p_CV.sum()
            if not any(ctx.needs_input_grad):
                continue
            grad_CV = _score_gradient(log_p_CV, target_C1, smoothing)
            if isinstance(gradient_scale, Tensor) or gradient_scale != 1:
                grad_CV *= gradient_scale
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(0)
            grad_CV = grad_CV.to(compute_dtype)
            if grad_states_ND is not None:
                torch.mm(grad_CV, weight, out=grad_states_ND[chunk])
            if grad_weight_VD is not None:
                _add_product(grad_weight_VD, grad_CV.T, states_ND[chunk])
        ctx.save_for_backward(grad_states_ND, grad_weight_VD, grad_bias_V)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_smoothed: Tensor, _grad_plain: Tensor) -> tuple[Tensor | None, ...]:
        # In place: the loss is differentiated once, and a second copy of the vocabulary's gradient would be large.
        gradients = [None if gradient is None else gradient.mul_(grad_smoothed) for gradient in ctx.saved_tensors]
        return *gradients, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds a matrix product, without memory for it where number types allow."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _score_gradient(log_p_CV: Tensor, target_C1: Tensor, smoothing: float) -> Tensor:
    """Computes softmax minus the smoothed target distribution, in the memory of the log-probabilities."""
    grad_CV = log_p_CV.exp_()
    if smoothing:
        grad_CV -= smoothing / grad_CV.shape[1]
    return grad_CV.scatter_add_(1, target_C1, grad_CV.new_full(target_C1.shape, smoothing - 1))


def _autocast_dtype(device_type: str) -> torch.dtype | None:
    is_on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if is_on else None
