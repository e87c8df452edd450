"""Attention of the layers, and what decoding keeps of it between steps.

Shape suffixes: B batch, S source positions, T target positions, D model width, H heads, K head size, P packed parts:
queries, keys and values, or some of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dragoman.model import cpu_attention
from dragoman.model.dropout import Dropout


@dataclass
class KeyValueCache:
    """Keys and values of the positions decoded so far; one per decoder layer."""

    memory_2BHSK: Tensor | None = None

    def append(self, key_value_2BHTK: Tensor) -> Tensor:
        """Adds the new positions and returns all keys and values so far."""
        if self.memory_2BHSK is not None:
            key_value_2BHTK = torch.cat([self.memory_2BHSK, key_value_2BHTK], dim=3)
        self.memory_2BHSK = key_value_2BHTK
        return key_value_2BHTK

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows of the batch in the given order; rows may repeat or be missing."""
        if self.memory_2BHSK is not None:
            self.memory_2BHSK = self.memory_2BHSK.index_select(1, rows)


class SelfAttention(nn.Module):
    """Attention between positions of one text; query, key and value come from one matrix product."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def forward(
        self,
        x_BTD: Tensor,
        mask_B11S: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attends under a padding mask (True = may be seen) or causally; with a cache, also to earlier positions."""
        packed_3BHTK = _split_heads(self.query_key_value(x_BTD), 3, self.heads)
        if cache is None:
            mixed_BHTK = _attend(packed_3BHTK, None, mask_B11S, is_causal, self.dropout)
        else:
            memory_2BHSK = cache.append(packed_3BHTK[1:])
            mixed_BHTK = _attend(packed_3BHTK[:1], memory_2BHSK, mask_B11S, is_causal, self.dropout)
        output: Tensor = self.output(_join_heads(mixed_BHTK))
        return output


class CrossAttention(nn.Module):
    """Attention of target positions to the encoded source."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def project_memory(self, memory_BSD: Tensor) -> Tensor:
        """Computes keys and values of the source, once per sentence and not once per decoding step."""
        return _split_heads(self.key_value(memory_BSD), 2, self.heads)

    def forward(self, x_BTD: Tensor, memory_2BHSK: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Attends to projected memory under the source's padding mask.

        x may have several rows per source (the hypotheses of a beam): they become positions of one row, so that the
        memory need not be repeated. Cross-attention treats all positions in the same way.
        """
        query_BTD = self.query(x_BTD).view(memory_2BHSK.shape[1], -1, x_BTD.shape[2])
        mixed_BHTK = _attend(_split_heads(query_BTD, 1, self.heads), memory_2BHSK, mask_B11S, False, self.dropout)
        output: Tensor = self.output(_join_heads(mixed_BHTK).view_as(x_BTD))
        return output

    def mean_weights(self, x_BTD: Tensor, memory_2BHSK: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Returns the weights [B, T, S] that `forward` mixes values with, mean over heads, without dropout."""
        (query_BHTK,) = _split_heads(self.query(x_BTD), 1, self.heads)
        scores_BHTS = query_BHTK @ memory_2BHSK[0].transpose(2, 3) / math.sqrt(query_BHTK.shape[3])
        if mask_B11S is not None:
            scores_BHTS = scores_BHTS.masked_fill(~mask_B11S, -torch.inf)
        weights_BTS: Tensor = scores_BHTS.softmax(dim=-1).mean(dim=1)
        return weights_BTS


def _attend(
    packed_PBHTK: Tensor, memory_2BHSK: Tensor | None, mask_B11S: Tensor | None, is_causal: bool, dropout: Dropout
) -> Tensor:
    """Returns mixed values [B, H, T, K]; where keys and values are not packed with the queries, they are the memory."""
    if cpu_attention.is_faster(packed_PBHTK):
        return cpu_attention.attend(packed_PBHTK, memory_2BHSK, mask_B11S, is_causal, dropout)
    packed = packed_PBHTK.unbind(0)
    query, key, value = packed if memory_2BHSK is None else (*packed, *memory_2BHSK.unbind(0))
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask_B11S,
        is_causal=is_causal,
        dropout_p=dropout.probability if dropout.is_active else 0.0,
    )


def _split_heads(packed_BTX: Tensor, num_parts: int, heads: int) -> Tensor:
    """Returns parts and heads of [B, T, P · D] as dimensions [P, B, H, T, K]."""
    B, T, X = packed_BTX.shape
    return packed_BTX.view(B, T, num_parts, heads, X // (num_parts * heads)).permute(2, 0, 3, 1, 4)


def _join_heads(x_BHTK: Tensor) -> Tensor:
    B, H, T, K = x_BHTK.shape
    return x_BHTK.transpose(1, 2).reshape(B, T, H * K)


def padding_mask(lengths_B: Tensor, max_length: int, device: torch.device) -> Tensor | None:
    """Returns True where a position holds a token; None where nothing is padded, which lets faster kernels run.

    The lengths must be on the host: asking a GPU whether anything is padded would stall it.
    """
    if int(lengths_B.min()) == max_length:
        return None
    lengths_B = lengths_B.to(device, non_blocking=True)
    return (torch.arange(max_length, device=device) < lengths_B[:, None])[:, None, None, :]
