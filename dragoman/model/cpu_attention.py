"""Attention for training on a CPU: the short rows of sentences as a few batched products.

torch's own attention spends most of its time between its products there: its softmax takes ten times as long for rows
of fewer than 16 positions, its dropout draws one sample after the other, and its products read keys across the grain.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.model.dropout import Dropout


def is_faster(packed: Tensor) -> bool:
    """Whether attention is computed here: in training, unless torch compiles it, or has better kernels (fp16, bf16)."""
    is_training = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return is_training and packed.device.type == "cpu" and packed.dtype in (torch.float32, torch.float64)


def attend(
    packed_PBHTK: Tensor, memory_2BHSK: Tensor | None, mask_B11S: Tensor | None, is_causal: bool, dropout: Dropout
) -> Tensor:
    """Mixes values [B, H, T, K] by the weights of softmax(query · key / √K).

    `packed` holds queries, keys and values, or queries alone where keys and values come from `memory`.
    """
    bias = _mask_as_bias(packed_PBHTK, mask_B11S, is_causal)
    kept, scale = None, 1.0
    if dropout.is_active:
        _, B, H, T, _ = packed_PBHTK.shape
        S = T if memory_2BHSK is None else memory_2BHSK.shape[3]
        kept, scale = dropout.draw(torch.Size((B * H, T, S)))
    memory = None if memory_2BHSK is None else memory_2BHSK.contiguous()
    mixed: Tensor = _Attention.apply(packed_PBHTK.contiguous(), memory, bias, kept, scale)  # type: ignore[no-untyped-call]
    return mixed


def _mask_as_bias(packed_PBHTK: Tensor, mask_B11S: Tensor | None, is_causal: bool) -> Tensor | None:
    """Returns what is added to scores [B · H, T, S]: minus infinity where a position must not be seen."""
    _, B, H, T, _ = packed_PBHTK.shape
    if is_causal:
        return packed_PBHTK.new_full((T, T), -torch.inf).triu_(1)
    if mask_B11S is None:
        return None
    bias_B11S = packed_PBHTK.new_zeros(mask_B11S.shape).masked_fill_(~mask_B11S, -torch.inf)
    return bias_B11S.expand(B, H, 1, -1).reshape(B * H, 1, -1)


class _Attention(torch.autograd.Function):
    """Attention over heads that lie one after the other; keeps its input, and the weights with dropout and without.

    Shape suffixes: M = B · H matrices, one per head.
    """

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, memory: Tensor | None, bias: Tensor | None, kept_MTS: Tensor | None, scale: float
    ) -> Tensor:
        query_MTK, key_MSK, value_MSK = _unpack(packed, memory)
        root = math.sqrt(query_MTK.shape[2])
        # The copy of the keys costs less than products that read them across.
        weights_MTS = _product(query_MTK, key_MSK.mT.contiguous(), 1 / root, bias)
        weights_MTS.sub_(weights_MTS.amax(-1, keepdim=True)).exp_()
        weights_MTS.div_(weights_MTS.sum(-1, keepdim=True))
        used_MTS = weights_MTS if kept_MTS is None else kept_MTS.to(weights_MTS.dtype).mul_(weights_MTS)
        ctx.save_for_backward(packed, memory, weights_MTS, used_MTS)
        ctx.root, ctx.scale = root, scale
        _, B, H, T, K = packed.shape
        return _product(used_MTS, value_MSK, scale).view(B, H, T, K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHTK: Tensor) -> tuple[Tensor | None, ...]:
        packed, memory, weights_MTS, used_MTS = ctx.saved_tensors
        query_MTK, key_MSK, value_MSK = _unpack(packed, memory)
        grad_packed, grad_memory = torch.empty_like(packed), None if memory is None else torch.empty_like(memory)
        grad_query_MTK, grad_key_MSK, grad_value_MSK = _unpack(grad_packed, grad_memory)
        grad_MTK = grad_BHTK.contiguous().flatten(0, 1)
        _product(used_MTS.mT, grad_MTK, ctx.scale, out=grad_value_MSK)
        # Softmax: grad_scores = weights · (grad_weights - sum of weights · grad_weights over the row).
        weighted_MTS = _product(grad_MTK, value_MSK.mT.contiguous(), ctx.scale).mul_(used_MTS)
        grad_scores_MTS = weighted_MTS.addcmul_(weights_MTS, weighted_MTS.sum(-1, keepdim=True), value=-1)
        _product(grad_scores_MTS, key_MSK, 1 / ctx.root, out=grad_query_MTK)
        _product(grad_scores_MTS.mT, query_MTK, 1 / ctx.root, out=grad_key_MSK)
        return grad_packed, grad_memory, None, None, None


def _unpack(packed_PBHTK: Tensor, memory_2BHSK: Tensor | None) -> list[Tensor]:
    """Returns queries, keys and values as batches of matrices, without copies."""
    tensors = [*packed_PBHTK.unbind(0), *(() if memory_2BHSK is None else memory_2BHSK.unbind(0))]
    return [tensor.flatten(0, 1) for tensor in tensors]


def _product(
    left: Tensor, right: Tensor, factor: float, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Returns factor · left @ right + bias."""
    if bias is None:
        ignored = left.new_zeros(()) if out is None else out
        return torch.baddbmm(ignored, left, right, beta=0, alpha=factor, out=out)
    return torch.baddbmm(bias, left, right, alpha=factor, out=out)
