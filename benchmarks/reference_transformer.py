"""The reference for comparison: `torch.nn.Transformer` with the code it needs around it, written with care.

Same sizes, dropouts and embeddings as ours, and it can start from the same weights, so that both compute the same
function. Shape suffixes: B batch, S source positions, T target positions, D model width, V vocabulary.
"""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from dragoman.corpus.batching import MicroBatch
from dragoman.corpus.tokenizer import PAD_ID
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer, sinusoidal_positions

MAX_POSITIONS = 512
_RENAMED = (
    (".cross_attention.output.", ".multihead_attn.out_proj."),
    (".attention.output.", ".self_attn.out_proj."),
    (".attention.query_key_value.weight", ".self_attn.in_proj_weight"),
    (".feed_forward.inner.", ".linear1."),
    (".feed_forward.outer.", ".linear2."),
    (".attention_norm.", ".norm1."),
    (".feed_forward_norm.", ".norm2."),
)


class ReferenceTransformer(nn.Module):
    """nn.Transformer, pre-norm, with one embedding for source, target and softmax."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        assert shape.shares_vocabulary
        assert shape.dropout == shape.attention_dropout == shape.relu_dropout, "nn.Transformer knows one dropout only"
        self.embedding = nn.Embedding(shape.target_vocab_size, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        with warnings.catch_warnings():
            # It warns that nested tensors do not work with norm_first; they are for inference only.
            warnings.filterwarnings("ignore", message="enable_nested_tensor")
            self.transformer = nn.Transformer(
                d_model=shape.width,
                nhead=shape.heads,
                num_encoder_layers=shape.encoder_layers,
                num_decoder_layers=shape.decoder_layers,
                dim_feedforward=shape.feed_forward,
                dropout=shape.dropout,
                layer_norm_eps=shape.norm_epsilon,
                batch_first=True,
                norm_first=True,
            )
        self.scale = math.sqrt(shape.width)
        self.register_buffer("positions_TD", sinusoidal_positions(MAX_POSITIONS, shape.width), persistent=False)
        self.positions_TD: Tensor

    def encode(self, source_BS: Tensor) -> Tensor:
        """Returns encoder states [B, S, D]."""
        states: Tensor = self.transformer.encoder(self._embed(source_BS), src_key_padding_mask=source_BS == PAD_ID)
        return states

    def decode(self, target_BT: Tensor, memory_BSD: Tensor, source_BS: Tensor) -> Tensor:
        """Returns decoder states [B, T, D]; PAD comes last, so the causal mask hides it: no padding mask is needed."""
        T = target_BT.shape[1]
        states: Tensor = self.transformer.decoder(
            self._embed(target_BT),
            memory_BSD,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(T),
            tgt_is_causal=True,  # lets attention drop the mask for its own causal path
            memory_key_padding_mask=source_BS == PAD_ID,
        )
        return states

    def scores(self, states: Tensor) -> Tensor:
        """Returns logits over the vocabulary, with the shared embedding."""
        return linear(states, self.embedding.weight)

    def _embed(self, token_BT: Tensor) -> Tensor:
        embedded = self.embedding(token_BT) * self.scale + self.positions_TD[: token_BT.shape[1]]
        dropped: Tensor = self.dropout(embedded)
        return dropped


def reference_step(
    model: ReferenceTransformer, optimizer: torch.optim.Optimizer, batch: MicroBatch, smoothing: float
) -> Tensor:
    """Makes one update on one batch and returns the mean loss."""
    source, target_input, target_output = (
        torch.from_numpy(array) for array in (batch.source, batch.target_input, batch.target_output)
    )
    optimizer.zero_grad(set_to_none=True)
    scores_BTV = model.scores(model.decode(target_input, model.encode(source), source))
    loss = cross_entropy(
        scores_BTV.flatten(0, 1), target_output.flatten(), ignore_index=PAD_ID, label_smoothing=smoothing
    )
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def copy_weights(ours: Transformer, reference: ReferenceTransformer) -> None:
    """Copies our weights to the reference; its attention biases, which ours does not have, become zero."""
    weights = {_reference_name(name): weight for name, weight in ours.state_dict().items()}
    for layer in range(ours.shape.decoder_layers):
        prefix = f"transformer.decoder.layers.{layer}"
        packed = [weights.pop(f"{prefix}.cross_attention.{part}.weight") for part in ("query", "key_value")]
        weights[f"{prefix}.multihead_attn.in_proj_weight"] = torch.cat(packed)
    biases = {
        name: torch.zeros_like(weight)
        for name, weight in reference.state_dict().items()
        if name.endswith(("in_proj_bias", "out_proj.bias"))
    }
    reference.load_state_dict(weights | biases)  # strict: a name or shape that does not fit is an error


def _reference_name(name: str) -> str:
    """Returns nn.Transformer's name of one of our weights."""
    if name == "target_embedding":
        return "embedding.weight"
    for mine, its in _RENAMED:
        name = name.replace(mine, its)
    if name.startswith("decoder"):
        name = name.replace("norm2", "norm3").replace("cross_attention_norm", "norm2")
    return f"transformer.{name}"
