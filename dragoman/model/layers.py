"""The layers of encoder and decoder: attention and feed-forward, each added to its own input.

Shape suffixes: B batch, S source positions, T target positions, D model width, H heads, K head size.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from dragoman.model.attention import CrossAttention, KeyValueCache, SelfAttention
from dragoman.model.dropout import Dropout
from dragoman.model.shape import ModelShape

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "gelu": gelu, "swish": silu, "swiglu": silu}


class FeedForward(nn.Module):
    """Two linear maps with an activation and dropout between; for swiglu a third one, activated, gates the first."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.activate = _ACTIVATIONS[shape.activation]
        self.inner = nn.Linear(shape.width, shape.feed_forward)
        self.gate = nn.Linear(shape.width, shape.feed_forward) if shape.activation == "swiglu" else None
        self.outer = nn.Linear(shape.feed_forward, shape.width)
        self.dropout = Dropout(shape.relu_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to each position separately."""
        output: Tensor = self.outer(self._hidden(x))
        return output

    def _hidden(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        if self.activate is relu:
            return self.dropout.relu(inner)
        activated = self.activate(inner) if self.gate is None else self.activate(self.gate(x)) * inner
        hidden: Tensor = self.dropout(activated)
        return hidden


class Residual(nn.Module):
    """Adds a sublayer's output to its input; norms the input of the sublayer ("pre") or the sum ("post")."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.is_pre_norm = shape.norm == "pre"
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Applies a sublayer with its norm."""
        added = self.dropout.add_to(x, sublayer(self.sublayer_input(x, norm)))
        return added if self.is_pre_norm else norm(added)

    def sublayer_input(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Returns what the sublayer sees."""
        return norm(x) if self.is_pre_norm else x


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = build_norm(shape)
        self.attention = SelfAttention(shape.width, shape.heads, shape.attention_dropout, shape.attention_bias)
        self.feed_forward_norm = build_norm(shape)
        self.feed_forward = FeedForward(shape)
        self.residual = Residual(shape)

    def forward(self, x_BSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Applies the layer to the source."""
        x_BSD = self.residual(x_BSD, self.attention_norm, lambda x: self.attention(x, mask_B11S))
        output: Tensor = self.residual(x_BSD, self.feed_forward_norm, self.feed_forward)
        return output


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = build_norm(shape)
        self.attention = SelfAttention(shape.width, shape.heads, shape.attention_dropout, shape.attention_bias)
        self.cross_attention_norm = build_norm(shape)
        self.cross_attention = CrossAttention(shape.width, shape.heads, shape.attention_dropout, shape.attention_bias)
        self.feed_forward_norm = build_norm(shape)
        self.feed_forward = FeedForward(shape)
        self.residual = Residual(shape)

    def forward(
        self,
        x_BTD: Tensor,
        memory_2BHSK: Tensor,
        mask_B11S: Tensor | None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Applies the layer to the target: all positions at once, or the next one given a cache of earlier ones."""
        x_BTD = self._attend_to_target(x_BTD, cache)
        x_BTD = self.residual(
            x_BTD, self.cross_attention_norm, lambda x: self.cross_attention(x, memory_2BHSK, mask_B11S)
        )
        output: Tensor = self.residual(x_BTD, self.feed_forward_norm, self.feed_forward)
        return output

    def attention_to_source(self, x_BTD: Tensor, memory_2BHSK: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Returns weights [B, T, S] of attention to the source, mean over heads."""
        x_BTD = self.residual.sublayer_input(self._attend_to_target(x_BTD), self.cross_attention_norm)
        return self.cross_attention.mean_weights(x_BTD, memory_2BHSK, mask_B11S)

    def _attend_to_target(self, x_BTD: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        attended: Tensor = self.residual(
            x_BTD, self.attention_norm, lambda x: self.attention(x, is_causal=cache is None, cache=cache)
        )
        return attended


def build_norm(shape: ModelShape) -> nn.LayerNorm:
    """Returns a layer norm with gain and bias."""
    return nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
