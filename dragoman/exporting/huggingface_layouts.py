"""Maps our models onto layouts of Hugging Face: Marian for post-norm models, Blenderbot for pre-norm ones.

Blenderbot is the layout that has pre-norm layers, final norms, scaled embeddings and a table of positions, which we
fill with our sinusoids. Both layouts fix the epsilon of norms at 1e-5. In a pre-norm model every value of the residual
can be multiplied by sqrt(1e-5 / epsilon): norms with 1e-5 then give exactly what norms with our epsilon gave before.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID
from dragoman.exporting.huggingface_names import (
    OUTPUT_BIAS,
    OUTPUT_EMBEDDING,
    SHARED_EMBEDDING,
    SOURCE_EMBEDDING,
    SOURCE_POSITIONS,
    TARGET_EMBEDDING,
    TARGET_POSITIONS,
    layer_modules,
)
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer, sinusoidal_positions
from dragoman.run.errors import UserError

Layout = Literal["marian", "blenderbot"]
NORM_EPSILON = 1e-5
"""The epsilon of all norms in both layouts; no setting changes it."""
_ARCHITECTURES: dict[Layout, str] = {
    "marian": "MarianMTModel",
    "blenderbot": "BlenderbotForConditionalGeneration",
}
_IMPOSSIBLE_LOGIT = -1e9
"""Bias of rows that only fill up a matrix: their probability is 0."""


def choose_layout(shape: ModelShape) -> Layout:
    """Returns the layout that computes exactly what our model computes; a UserError says why there is none."""
    if shape.activation == "swiglu":
        raise _no_layout("its feed-forward layers are gated (swiglu)")
    if shape.norm == "pre":
        return "blenderbot"
    if shape.positions != "marian":
        raise _no_layout("it is post-norm with model.positions = tensor2tensor; only marian positions fit")
    if shape.norm_epsilon != NORM_EPSILON:
        raise _no_layout(
            f"it is post-norm with model.norm_epsilon = {shape.norm_epsilon:g}; only {NORM_EPSILON:g} fits"
        )
    return "marian"


def _no_layout(reason: str) -> UserError:
    return UserError(
        f"No layout of Hugging Face computes exactly what this model computes: {reason}. "
        "Use --format ctranslate2 or --format safetensors."
    )


def model_config(shape: ModelShape, num_positions: int) -> dict[str, Any]:
    """Returns the content of config.json."""
    layout = choose_layout(shape)
    config = {
        "architectures": [_ARCHITECTURES[layout]],
        "model_type": layout,
        "dtype": "float32",
        "is_encoder_decoder": True,
        "d_model": shape.width,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "encoder_attention_heads": shape.heads,
        "decoder_attention_heads": shape.heads,
        "encoder_ffn_dim": shape.feed_forward,
        "decoder_ffn_dim": shape.feed_forward,
        "activation_function": shape.activation,
        "dropout": shape.dropout,
        "attention_dropout": shape.attention_dropout,
        "activation_dropout": shape.relu_dropout,
        "scale_embedding": True,
        "max_position_embeddings": num_positions,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": None,
    }
    return config | (_marian_vocabulary(shape) if layout == "marian" else _blenderbot_vocabulary(shape))


def _marian_vocabulary(shape: ModelShape) -> dict[str, Any]:
    return {
        "vocab_size": shape.source_vocab_size,
        "decoder_vocab_size": shape.target_vocab_size,
        "share_encoder_decoder_embeddings": _shares_all(shape),
        "tie_word_embeddings": shape.embeddings == "tied",
    }


def _blenderbot_vocabulary(shape: ModelShape) -> dict[str, Any]:
    """Returns settings of a layout that has one size for both vocabularies, and ties either all matrices or none."""
    return {
        "vocab_size": max(shape.source_vocab_size, shape.target_vocab_size),
        "tie_word_embeddings": _shares_all(shape),
        "encoder_no_repeat_ngram_size": 0,
    }


def _shares_all(shape: ModelShape) -> bool:
    """Whether source, target and softmax have one matrix."""
    return shape.shares_vocabulary and shape.embeddings == "tied"


@torch.no_grad()
def model_weights(model: Transformer, num_positions: int) -> dict[str, Tensor]:
    """Returns the weights by their names at Hugging Face."""
    if choose_layout(model.shape) == "marian":
        return _layer_weights(model, 1.0) | _marian_embeddings(model)
    scale = math.sqrt(NORM_EPSILON / model.shape.norm_epsilon)
    return (
        _layer_weights(model, scale) | _final_norms(model, scale) | _blenderbot_embeddings(model, scale, num_positions)
    )


def _layer_weights(model: Transformer, residual_scale: float) -> dict[str, Tensor]:
    """Unpacks the weights of layers; what is added to the residual is multiplied by `residual_scale`."""
    ours, weights = dict(model.named_parameters()), {}
    for module in layer_modules(model.shape):
        num_rows = ours[f"{module.ours}.weight"].shape[0]
        for kind in ("weight", "bias"):
            # Attention of ours may have no bias.
            found = ours.get(f"{module.ours}.{kind}", model.target_embedding.new_zeros(num_rows))
            scaled = _scaled(found, residual_scale if module.is_residual_output else 1.0)
            for name, part in zip(module.theirs, scaled.chunk(len(module.theirs)), strict=True):
                weights[f"{name}.{kind}"] = part
    return weights


def _final_norms(model: Transformer, scale: float) -> dict[str, Tensor]:
    """Divides the decoder's by the scale that all embeddings, and so the softmax, are multiplied by."""
    weights = {}
    for side, divisor in (("encoder", 1.0), ("decoder", scale)):
        norm = getattr(model, side).norm
        weights[f"model.{side}.layer_norm.weight"] = _scaled(norm.weight, 1 / divisor)
        weights[f"model.{side}.layer_norm.bias"] = _scaled(norm.bias, 1 / divisor)
    return weights


def _marian_embeddings(model: Transformer) -> dict[str, Tensor]:
    weights = {OUTPUT_BIAS: _output_bias(model)[None]}
    if _shares_all(model.shape):
        return weights | {SHARED_EMBEDDING: model.target_embedding}
    weights |= {SOURCE_EMBEDDING: _source_matrix(model), TARGET_EMBEDDING: model.target_embedding}
    return weights if model.output_embedding is None else weights | {OUTPUT_EMBEDDING: model.output_embedding}


def _blenderbot_embeddings(model: Transformer, scale: float, num_positions: int) -> dict[str, Tensor]:
    shape = model.shape
    num_rows = max(shape.source_vocab_size, shape.target_vocab_size)
    positions = sinusoidal_positions(num_positions, shape.width, shape.positions).to(model.target_embedding.dtype)
    bias = _output_bias(model)
    filled = bias.new_full((num_rows,), _IMPOSSIBLE_LOGIT)
    filled[: len(bias)] = bias
    weights = {
        SOURCE_POSITIONS: _scaled(positions, scale),
        TARGET_POSITIONS: _scaled(positions, scale),
        OUTPUT_BIAS: filled[None],
    }
    if _shares_all(shape):
        return weights | {SHARED_EMBEDDING: _scaled(model.target_embedding, scale)}
    matrices = {
        SHARED_EMBEDDING: _source_matrix(model),  # not used by any layer, but Hugging Face wants the weight
        SOURCE_EMBEDDING: _source_matrix(model),
        TARGET_EMBEDDING: model.target_embedding,
        OUTPUT_EMBEDDING: model.output_matrix,
    }
    return weights | {name: _with_rows(_scaled(matrix, scale), num_rows) for name, matrix in matrices.items()}


def _source_matrix(model: Transformer) -> Tensor:
    return model.target_embedding if model.source_embedding is None else model.source_embedding


def _output_bias(model: Transformer) -> Tensor:
    if model.output_bias is None:
        return model.target_embedding.new_zeros(model.shape.target_vocab_size)
    return model.output_bias


def _with_rows(matrix: Tensor, num_rows: int) -> Tensor:
    """Adds rows of zeros."""
    filled = matrix.new_zeros(num_rows, matrix.shape[1])
    filled[: len(matrix)] = matrix
    return filled


def _scaled(weight: Tensor, factor: float) -> Tensor:
    """Multiplies with one rounding."""
    return (weight.double() * factor).to(weight.dtype) if factor != 1 else weight
