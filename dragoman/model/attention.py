"""Attention, and the dropout that all layers use."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zeroes elements with a probability (rounded to 1/65536 on a CPU) and scales the rest to keep the mean."""

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
        """Returns residual + dropped x, in one pass over memory on a CPU."""
        if not self.training or self._num_dropped_levels == 0 or x.device.type != "cpu":
            return residual + self.forward(x)
        return torch.addcmul(residual, x.to(residual.dtype), self._draw_mask(residual), value=self._scale)

    @property
    def _scale(self) -> float:
        return _LEVELS / (_LEVELS - self._num_dropped_levels)

    def _draw_mask(self, like: Tensor) -> Tensor:
        """Draws ones where an element is kept and zeros elsewhere, in the type of `like`."""
        num_elements = like.numel()
        words = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(1 << 63), None)
        bits = words.view(torch.int16)[:num_elements].view(like.shape)
        mask = torch.empty(like.shape, dtype=like.dtype)
        threshold = self._num_dropped_levels - _LEVELS // 2
        torch.ge(bits, threshold, out=mask)
        return mask


@dataclass
class KeyValueCache:
    """Keys and values of the positions decoded so far; one per decoder layer."""

    keys_BHSK: Tensor | None = None
    values_BHSK: Tensor | None = None

    def append(self, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the new positions and returns all keys and values so far."""
        if self.keys_BHSK is not None and self.values_BHSK is not None:
            keys_BHTK = torch.cat([self.keys_BHSK, keys_BHTK], dim=2)
            values_BHTK = torch.cat([self.values_BHSK, values_BHTK], dim=2)
        self.keys_BHSK, self.values_BHSK = keys_BHTK, values_BHTK
        return keys_BHTK, values_BHTK

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows of the batch in the given order; rows may repeat or be missing."""
        if self.keys_BHSK is not None and self.values_BHSK is not None:
            self.keys_BHSK = self.keys_BHSK.index_select(0, rows)
            self.values_BHSK = self.values_BHSK.index_select(0, rows)


class SelfAttention(nn.Module):
    """Attention between positions of one text; query, key and value come from one matrix product."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
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
        query, key, value = (_split_heads(x, self.heads) for x in self.query_key_value(x_BTD).chunk(3, dim=-1))
        if cache is not None:
            key, value = cache.append(key, value)
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask_B11S,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.output(_join_heads(mixed))
        return output


class CrossAttention(nn.Module):
    """Attention of target positions to the encoded source."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def project_memory(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Computes keys and values of the source, once per sentence and not once per decoding step."""
        key, value = self.key_value(memory_BSD).chunk(2, dim=-1)
        return _split_heads(key, self.heads), _split_heads(value, self.heads)

    def forward(self, x_BTD: Tensor, memory_BHSK: tuple[Tensor, Tensor], mask_B11S: Tensor | None) -> Tensor:
        """Attends to projected memory under the source's padding mask.

        x may have several rows per source (the hypotheses of a beam): they become positions of one row, so that the
        memory need not be repeated. Cross-attention treats all positions in the same way.
        """
        query = _split_heads(self.query(x_BTD).view(memory_BHSK[0].shape[0], -1, x_BTD.shape[2]), self.heads)
        mixed = scaled_dot_product_attention(
            query, *memory_BHSK, attn_mask=mask_B11S, dropout_p=self.dropout if self.training else 0.0
        )
        output: Tensor = self.output(_join_heads(mixed).view_as(x_BTD))
        return output

    def mean_weights(self, x_BTD: Tensor, keys_BHSK: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Returns the weights [B, T, S] that `forward` mixes values with, mean over heads, without dropout."""
        query_BHTK = _split_heads(self.query(x_BTD), self.heads)
        scores_BHTS = query_BHTK @ keys_BHSK.transpose(2, 3) / math.sqrt(query_BHTK.shape[3])
        if mask_B11S is not None:
            scores_BHTS = scores_BHTS.masked_fill(~mask_B11S, -torch.inf)
        return scores_BHTS.softmax(dim=-1).mean(dim=1)


def _split_heads(x_BTD: Tensor, heads: int) -> Tensor:
    B, T, D = x_BTD.shape
    return x_BTD.view(B, T, heads, D // heads).transpose(1, 2)


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
