"""The Transformer of Vaswani et al. 2017, and the variants of it that a ModelShape can choose.

Shape suffixes: B batch, S source positions, T target positions, D model width, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from dragoman.model.attention import KeyValueCache, padding_mask
from dragoman.model.dropout import Dropout
from dragoman.model.layers import DecoderLayer, EncoderLayer, build_norm
from dragoman.model.shape import ModelShape
from dragoman.run.config import Positions


class Encoder(nn.Module):
    """The layers over the source, and a final norm; post-norm layers end with one already."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.encoder_layers))
        self.norm = build_norm(shape) if shape.norm == "pre" else nn.Identity()

    def forward(self, x_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Encodes embedded source positions."""
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask_B11S)
        encoded: Tensor = self.norm(x_BSD)
        return encoded


class Decoder(nn.Module):
    """The layers over the target, and a final norm; post-norm layers end with one already."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.norm = build_norm(shape) if shape.norm == "pre" else nn.Identity()

    def project_memory(self, memory_BSD: Tensor) -> list[Tensor]:
        """Computes keys and values of the source, packed, for each layer."""
        return [layer.cross_attention.project_memory(memory_BSD) for layer in self.layers]  # type: ignore[union-attr, operator]

    def forward(
        self,
        x_BTD: Tensor,
        memories: list[Tensor],
        mask_B11S: Tensor | None,
        caches: list[KeyValueCache] | None = None,
    ) -> Tensor:
        """Decodes embedded target positions."""
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, memories[index], mask_B11S, None if caches is None else caches[index])
        decoded: Tensor = self.norm(x_BTD)
        return decoded

    def attention_to_source(
        self, layer_index: int, x_BTD: Tensor, memories: list[Tensor], mask_B11S: Tensor | None
    ) -> Tensor:
        """Returns the weights [B, T, S] with which one layer attends to the source, mean over its heads."""
        for layer, memory in zip(self.layers[:layer_index], memories, strict=False):
            x_BTD = layer(x_BTD, memory, mask_B11S)
        weights_BTS: Tensor = self.layers[layer_index].attention_to_source(x_BTD, memories[layer_index], mask_B11S)  # type: ignore[operator]
        return weights_BTS


@dataclass
class DecodingState:
    """The state of decoding one batch, between steps."""

    memories: list[Tensor]
    mask_B11S: Tensor | None
    caches: list[KeyValueCache]
    num_decoded: int = 0

    def select_targets(self, rows: Tensor) -> None:
        """Reorders the state of the hypotheses, not that of the sources."""
        for cache in self.caches:
            cache.select(rows)

    def select_sources(self, rows: Tensor) -> None:
        """Keeps the given sources; the others are finished."""
        self.memories = [memory_2BHSK.index_select(1, rows) for memory_2BHSK in self.memories]
        if self.mask_B11S is not None:
            self.mask_B11S = self.mask_B11S.index_select(0, rows)


class Transformer(nn.Module):
    """Encoder, decoder and their embeddings."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        is_tied = shape.embeddings == "tied"
        self.target_embedding = _empty_parameter(shape.target_vocab_size, shape.width)
        self.source_embedding = (
            None if shape.shares_vocabulary and is_tied else _empty_parameter(shape.source_vocab_size, shape.width)
        )
        self.output_embedding = None if is_tied else _empty_parameter(shape.target_vocab_size, shape.width)
        self.output_bias = _empty_parameter(shape.target_vocab_size) if shape.output_bias else None
        self.encoder = Encoder(shape)
        self.decoder = Decoder(shape)
        self.dropout = Dropout(shape.dropout)
        self.register_buffer("positions_TD", sinusoidal_positions(256, shape.width, shape.positions), persistent=False)
        self.positions_TD: Tensor
        self._initialise()

    @property
    def output_matrix(self) -> Tensor:
        """The weights [V, D] of the softmax; `output_bias` [V] is added to their product where it is not None."""
        return self.target_embedding if self.output_embedding is None else self.output_embedding

    def logits(self, states: Tensor) -> Tensor:
        """Turns decoder states [..., D] into vocabulary scores [..., V]."""
        return linear(states, self.output_matrix, self.output_bias)

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
        return self.logits(states_B1D[:, 0])

    @torch.no_grad()
    def attend(self, source_BS: Tensor, source_lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """Returns weights [B, T, S] of attention to the source for teacher-forced targets, for word alignment.

        Row t belongs to the position that reads target_BT[:, t] and predicts the token after it: with BOS in front, the
        largest weight of row t is where token t comes from. Rows sum to 1, padded source positions have weight 0. The
        model should be in eval mode.
        """
        memories, mask_B11S = self._encode(source_BS, source_lengths_B)
        embedded_BTD = self._embed(target_BT, self.target_embedding)
        return self.decoder.attention_to_source(self.shape.alignment_layer, embedded_BTD, memories, mask_B11S)

    def _encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Returns keys and values of the source for each decoder layer, and the padding mask."""
        mask_B11S = padding_mask(source_lengths_B, source_BS.shape[1], source_BS.device)
        table_VD = self.target_embedding if self.source_embedding is None else self.source_embedding
        memory_BSD = self.encoder(self._embed(source_BS, table_VD), mask_B11S)
        return self.decoder.project_memory(memory_BSD), mask_B11S

    def _embed(self, token_BT: Tensor, table_VD: Tensor, first_position: int = 0) -> Tensor:
        end = first_position + token_BT.shape[1]
        if end > self.positions_TD.shape[0]:
            with torch.inference_mode(False):  # decoding may grow the table, and training must be able to use it
                longer_TD = sinusoidal_positions(2 * end, self.shape.width, self.shape.positions)
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


def _empty_parameter(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(sizes))


def sinusoidal_positions(num_positions: int, width: int, kind: Positions = "tensor2tensor") -> Tensor:
    """Returns position encodings [T, D]: sines in the first half of the width, then cosines.

    Wavelengths grow from 2π to 10,000 · 2π; tensor2tensor reaches that at the last pair, Marian would one pair later.
    """
    num_scales = width // 2
    num_intervals = max(num_scales - 1, 1) if kind == "tensor2tensor" else num_scales
    scales_K = torch.exp(torch.arange(num_scales, dtype=torch.float64) * -(math.log(1e4) / num_intervals))
    angles_TK = torch.arange(num_positions, dtype=torch.float64)[:, None] * scales_K
    return torch.cat([angles_TK.sin(), angles_TK.cos()], dim=1).float()
