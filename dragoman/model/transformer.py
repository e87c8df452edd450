"""The Transformer of Vaswani et al. 2017, pre-norm, with shared embeddings.

Shape suffixes: B batch, S source positions, T target positions, D model width, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, relu

from dragoman.model.attention import CrossAttention, Dropout, KeyValueCache, SelfAttention, padding_mask
from dragoman.model.shape import ModelShape

NORM_EPSILON = 1e-6


class FeedForward(nn.Module):
    """Two linear maps with ReLU and dropout between."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feed_forward)
        self.outer = nn.Linear(shape.feed_forward, shape.width)
        self.dropout = Dropout(shape.relu_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to each position separately."""
        output: Tensor = self.outer(self.dropout(relu(self.inner(x))))
        return output


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each on normalised input and added to the residual."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.attention = SelfAttention(shape.width, shape.heads, shape.attention_dropout)
        self.feed_forward_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(shape)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Applies the layer to the source."""
        x_BSD = self.dropout.add_to(x_BSD, self.attention(self.attention_norm(x_BSD), mask_B11S))
        return self.dropout.add_to(x_BSD, self.feed_forward(self.feed_forward_norm(x_BSD)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.attention = SelfAttention(shape.width, shape.heads, shape.attention_dropout)
        self.cross_attention_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.cross_attention = CrossAttention(shape.width, shape.heads, shape.attention_dropout)
        self.feed_forward_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(shape)
        self.dropout = Dropout(shape.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        memory_BHSK: tuple[Tensor, Tensor],
        mask_B11S: Tensor | None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Applies the layer to the target: all positions at once, or the next one given a cache of earlier ones."""
        attended = self.attention(self.attention_norm(x_BTD), is_causal=cache is None, cache=cache)
        x_BTD = self.dropout.add_to(x_BTD, attended)
        attended = self.cross_attention(self.cross_attention_norm(x_BTD), memory_BHSK, mask_B11S)
        x_BTD = self.dropout.add_to(x_BTD, attended)
        return self.dropout.add_to(x_BTD, self.feed_forward(self.feed_forward_norm(x_BTD)))


class Encoder(nn.Module):
    """The layers over the source, and a final norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.encoder_layers))
        self.norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)

    def forward(self, x_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Encodes embedded source positions."""
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask_B11S)
        encoded: Tensor = self.norm(x_BSD)
        return encoded


class Decoder(nn.Module):
    """The layers over the target, and a final norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)

    def project_memory(self, memory_BSD: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Computes keys and values of the source, one pair per layer."""
        return [layer.cross_attention.project_memory(memory_BSD) for layer in self.layers]  # type: ignore[union-attr, operator]

    def forward(
        self,
        x_BTD: Tensor,
        memories: list[tuple[Tensor, Tensor]],
        mask_B11S: Tensor | None,
        caches: list[KeyValueCache] | None = None,
    ) -> Tensor:
        """Decodes embedded target positions."""
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, memories[index], mask_B11S, None if caches is None else caches[index])
        decoded: Tensor = self.norm(x_BTD)
        return decoded


@dataclass
class DecodingState:
    """The state of decoding one batch, between steps."""

    memories: list[tuple[Tensor, Tensor]]
    mask_B11S: Tensor | None
    caches: list[KeyValueCache]
    num_decoded: int = 0

    def select_targets(self, rows: Tensor) -> None:
        """Reorders the state of the hypotheses, not that of the sources."""
        for cache in self.caches:
            cache.select(rows)

    def select_sources(self, rows: Tensor) -> None:
        """Keeps the given sources; the others are finished."""
        self.memories = [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in self.memories]
        if self.mask_B11S is not None:
            self.mask_B11S = self.mask_B11S.index_select(0, rows)


class Transformer(nn.Module):
    """Encoder, decoder and their embeddings."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.target_embedding = nn.Parameter(torch.empty(shape.target_vocab_size, shape.width))
        self.source_embedding = (
            None if shape.shares_vocabulary else nn.Parameter(torch.empty(shape.source_vocab_size, shape.width))
        )
        self.encoder = Encoder(shape)
        self.decoder = Decoder(shape)
        self.dropout = Dropout(shape.dropout)
        self.register_buffer("positions_TD", sinusoidal_positions(256, shape.width), persistent=False)
        self.positions_TD: Tensor
        self._initialise()

    def forward(self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """Returns decoder states [B, T, D] for teacher-forced targets; the loss turns them into vocabulary scores.

        Targets need no mask: padding comes last, and a causal decoder never looks ahead.
        """
        memories, mask_B11S = self._encode(source_BS, source_lengths_B)
        states_BTD: Tensor = self.decoder(self._embed(target_BT, self.target_embedding), memories, mask_B11S)
        return states_BTD

    def start_decoding(self, source_BS: Tensor, source_lengths_B: Tensor) -> DecodingState:
        """Encodes sources once, ready for `decode_next`."""
        return DecodingState(*self._encode(source_BS, source_lengths_B), [KeyValueCache() for _ in self.decoder.layers])

    def decode_next(self, token_B: Tensor, state: DecodingState) -> Tensor:
        """Returns logits [B, V] of the token after `token_B` and advances the state by one position."""
        x_B1D = self._embed(token_B[:, None], self.target_embedding, first_position=state.num_decoded)
        states_B1D = self.decoder(x_B1D, state.memories, state.mask_B11S, state.caches)
        state.num_decoded += 1
        return linear(states_B1D[:, 0], self.target_embedding)

    def _encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Returns keys and values of the source for each decoder layer, and the padding mask."""
        mask_B11S = padding_mask(source_lengths_B, source_BS.shape[1], source_BS.device)
        table_VD = self.target_embedding if self.source_embedding is None else self.source_embedding
        memory_BSD = self.encoder(self._embed(source_BS, table_VD), mask_B11S)
        return self.decoder.project_memory(memory_BSD), mask_B11S

    def _embed(self, token_BT: Tensor, table_VD: Tensor, first_position: int = 0) -> Tensor:
        end = first_position + token_BT.shape[1]
        if end > self.positions_TD.shape[0]:
            with torch.inference_mode(False):  # decoding may grow the table, and training must be able to use it
                longer_TD = sinusoidal_positions(2 * end, self.shape.width)
                self.positions_TD = longer_TD.to(self.positions_TD.device)
        positions_TD = self.positions_TD[first_position:end]
        embedded_BTD = torch.add(positions_TD, embedding(token_BT, table_VD), alpha=math.sqrt(self.shape.width))
        dropped: Tensor = self.dropout(embedded_BTD)
        return dropped

    def _initialise(self) -> None:
        """Draws embeddings of mean length 1 and Xavier matrices; biases are zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("_embedding"):
                nn.init.normal_(parameter, std=self.shape.width**-0.5)
            elif parameter.dim() == 2:
                # Packed query/key/value matrices are several square ones, each with its own fan-out.
                for square in torch.split(parameter, self.shape.width) if "attention" in name else [parameter]:
                    nn.init.xavier_uniform_(square)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def sinusoidal_positions(num_positions: int, width: int) -> Tensor:
    """Returns position encodings [T, D] as in tensor2tensor: sines in the first half of the width, then cosines."""
    num_scales = width // 2
    scales_K = torch.exp(torch.arange(num_scales, dtype=torch.float64) * -(math.log(1e4) / max(num_scales - 1, 1)))
    angles_TK = torch.arange(num_positions, dtype=torch.float64)[:, None] * scales_K
    return torch.cat([angles_TK.sin(), angles_TK.cos()], dim=1).float()
