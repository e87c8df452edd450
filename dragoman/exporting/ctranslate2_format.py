"""Writes a model in CTranslate2's format: each weight goes to its place in the specification of a Transformer."""

from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, UNK_ID
from dragoman.exporting.source import ExportSource
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import sinusoidal_positions
from dragoman.translation.ctranslate2_backend import vocabulary_entries

Weights = dict[str, Tensor]


def write_ctranslate2(source: ExportSource, folder: Path, max_positions: int, quantization: str | None = None) -> None:
    """Writes model.bin, config.json and the vocabularies into a folder; the weights stay as they are in float32."""
    # Copies, since CTranslate2 quantises in place.
    weights = {name: parameter.detach().float().clone() for name, parameter in source.model.named_parameters()}
    spec = _build_spec(source.shape, weights, max_positions)
    source_entries, target_entries = map(vocabulary_entries, (source.source_tokenizer, source.target_tokenizer))
    spec.register_source_vocabulary(source_entries)
    spec.register_target_vocabulary(target_entries)
    spec.config.bos_token = spec.config.decoder_start_token = target_entries[BOS_ID]
    spec.config.eos_token, spec.config.unk_token = target_entries[EOS_ID], target_entries[UNK_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = source.shape.norm_epsilon
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def _build_spec(shape: ModelShape, weights: Weights, max_positions: int) -> Any:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "swish": Activation.SWISH,
        "swiglu": Activation.SWISH,
    }
    spec = TransformerSpec.from_config(
        (shape.encoder_layers, shape.decoder_layers),
        shape.heads,
        pre_norm=shape.norm == "pre",
        activation=activations[shape.activation],
        ffn_glu=shape.activation == "swiglu",
        alignment_layer=shape.alignment_layer,
        alignment_heads=0,  # the mean of all
    )
    target = weights["target_embedding"]
    positions = sinusoidal_positions(max_positions, shape.width, shape.positions)
    spec.encoder.embeddings[0].weight = weights.get("source_embedding", target)
    spec.decoder.embeddings.weight = target
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = positions
    spec.decoder.projection.weight = weights.get("output_embedding", target)
    if shape.output_bias:
        spec.decoder.projection.bias = weights["output_bias"]
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if shape.norm == "pre":
            _set_norm(stack.layer_norm, weights, f"{side}.norm")
        for number, layer in enumerate(stack.layer):
            _set_layer(layer, weights, f"{side}.layers.{number}")
    return spec


def _set_layer(layer: Any, weights: Weights, prefix: str) -> None:
    attention = f"{prefix}.attention"
    _set_norm(layer.self_attention.layer_norm, weights, f"{attention}_norm")
    _set_linear(layer.self_attention.linear[0], weights, f"{attention}.query_key_value")
    _set_linear(layer.self_attention.linear[1], weights, f"{attention}.output")
    if hasattr(layer, "attention"):
        cross = f"{prefix}.cross_attention"
        _set_norm(layer.attention.layer_norm, weights, f"{cross}_norm")
        for linear, name in zip(layer.attention.linear, ("query", "key_value", "output"), strict=True):
            _set_linear(linear, weights, f"{cross}.{name}")
    _set_norm(layer.ffn.layer_norm, weights, f"{prefix}.feed_forward_norm")
    is_gated = f"{prefix}.feed_forward.gate.weight" in weights
    _set_linear(layer.ffn.linear_0, weights, f"{prefix}.feed_forward.{'gate' if is_gated else 'inner'}")
    if is_gated:  # CTranslate2 activates linear_0 and multiplies it by linear_0_noact
        _set_linear(layer.ffn.linear_0_noact, weights, f"{prefix}.feed_forward.inner")
    _set_linear(layer.ffn.linear_1, weights, f"{prefix}.feed_forward.outer")


def _set_norm(spec: Any, weights: Weights, name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def _set_linear(spec: Any, weights: Weights, name: str) -> None:
    spec.weight = weights[f"{name}.weight"]
    if (bias := weights.get(f"{name}.bias")) is not None:
        spec.bias = bias
