"""A second implementation of the model, of torch's own layers with our weights, for every choice a shape has."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer


def build_model(shape: ModelShape, seed: int = 0) -> Transformer:
    """Every weight random, gains and biases too: what starts at zero or one would hide mistakes."""
    torch.manual_seed(seed)
    model = Transformer(shape).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def build_batch(shape: ModelShape, lengths: tuple[int, ...] = (7, 3, 5), target_length: int = 6) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    source_lengths = torch.tensor(lengths)
    source = torch.randint(4, shape.source_vocab_size, (len(lengths), max(lengths)))
    source[torch.arange(max(lengths)) >= source_lengths[:, None]] = 0
    target = torch.randint(1, shape.target_vocab_size, (len(lengths), target_length))
    return source, source_lengths, target


@torch.no_grad()
def decode_all(model: Transformer, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    """Logits of every position, one position at a time."""
    state = model.start_decoding(source, lengths)
    return torch.stack([model.decode_next(token, state) for token in target.unbind(1)], dim=1)


def reference_states(model: Transformer, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
    """Layers stay in training mode (dropout is 0): in evaluation mode torch would take a fused path of its own."""
    memory, is_padding = reference_memory(model, source, source_lengths)
    states = _embed(target, model.target_embedding, model.shape)
    for ours in model.decoder.layers:
        layer = reference_decoder_layer(ours, model.shape)
        states = layer(states, memory, tgt_mask=_causal_mask(target), memory_key_padding_mask=is_padding)
    return model.decoder.norm(states) if model.shape.norm == "pre" else states


def reference_logits(model: Transformer, *batch: Tensor) -> Tensor:
    matrix = model.output_embedding if model.shape.embeddings == "untied" else model.target_embedding
    logits = reference_states(model, *batch) @ matrix.T
    return logits + model.output_bias if model.shape.output_bias else logits


def reference_attention(model: Transformer, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
    """Weights of attention to the source in the layer chosen for alignments, as torch reports them."""
    memory, is_padding = reference_memory(model, source, source_lengths)
    states = _embed(target, model.target_embedding, model.shape)
    layers = [reference_decoder_layer(ours, model.shape) for ours in model.decoder.layers]
    *before, chosen = layers[:-1] if len(layers) > 3 else layers
    for layer in before:
        states = layer(states, memory, tgt_mask=_causal_mask(target), memory_key_padding_mask=is_padding)
    is_pre = model.shape.norm == "pre"
    seen = chosen.norm1(states) if is_pre else states
    states = states + chosen.self_attn(seen, seen, seen, attn_mask=_causal_mask(target), need_weights=False)[0]
    states = chosen.norm2(states) if is_pre else chosen.norm1(states)
    return chosen.multihead_attn(states, memory, memory, key_padding_mask=is_padding)[1]


def reference_memory(model: Transformer, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, Tensor]:
    is_padding = torch.arange(source.shape[1]) >= source_lengths[:, None]
    table = model.target_embedding if model.source_embedding is None else model.source_embedding
    memory = _embed(source, table, model.shape)
    for ours in model.encoder.layers:
        memory = reference_encoder_layer(ours, model.shape)(memory, src_key_padding_mask=is_padding)
    return (model.encoder.norm(memory) if model.shape.norm == "pre" else memory), is_padding


def _causal_mask(target: Tensor) -> Tensor:
    return torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)


def _embed(tokens: Tensor, table: Tensor, shape: ModelShape) -> Tensor:
    return table[tokens] * shape.width**0.5 + reference_positions(tokens.shape[1], shape.width, shape.positions)


def reference_positions(num_positions: int, width: int, kind: str = "tensor2tensor") -> Tensor:
    rows = []
    for position in range(num_positions):
        exponents = [2 * i / width if kind == "marian" else i / (width // 2 - 1) for i in range(width // 2)]
        angles = [position / 10_000**exponent for exponent in exponents]
        rows.append([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    return torch.tensor(rows, dtype=torch.float64)


def reference_encoder_layer(ours: nn.Module, shape: ModelShape) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(**_layer_options(shape))
    _copy_attention(layer.self_attn, [ours.attention.query_key_value], ours.attention.output)
    _copy_feed_forward(layer, ours.feed_forward)
    _copy_module(layer.norm1, ours.attention_norm)
    _copy_module(layer.norm2, ours.feed_forward_norm)
    return layer


def reference_decoder_layer(ours: nn.Module, shape: ModelShape) -> nn.TransformerDecoderLayer:
    layer = nn.TransformerDecoderLayer(**_layer_options(shape))
    cross = ours.cross_attention
    _copy_attention(layer.self_attn, [ours.attention.query_key_value], ours.attention.output)
    _copy_attention(layer.multihead_attn, [cross.query, cross.key_value], cross.output)
    _copy_feed_forward(layer, ours.feed_forward)
    _copy_module(layer.norm1, ours.attention_norm)
    _copy_module(layer.norm2, ours.cross_attention_norm)
    _copy_module(layer.norm3, ours.feed_forward_norm)
    return layer


def _layer_options(shape: ModelShape) -> dict[str, object]:
    sizes = {"d_model": shape.width, "nhead": shape.heads, "dim_feedforward": shape.feed_forward, "dropout": 0.0}
    activations = {"relu": "relu", "gelu": "gelu", "swish": _swish, "swiglu": _gated_swish}
    return sizes | {
        "layer_norm_eps": shape.norm_epsilon,
        "batch_first": True,
        "norm_first": shape.norm == "pre",
        "activation": activations[shape.activation],
        "dtype": torch.float64,
    }


def _swish(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _gated_swish(inner_and_gate: Tensor) -> Tensor:
    """Halves the width; see `_copy_feed_forward`."""
    inner, gate = inner_and_gate.chunk(2, dim=-1)
    return inner * silu(gate)


def _copy_feed_forward(layer: nn.Module, ours: nn.Module) -> None:
    """Copies the matrices; for swiglu, inner and gate become one matrix whose halves the activation joins again."""
    if ours.gate is not None:
        layer.linear1 = nn.Linear(ours.inner.in_features, 2 * ours.inner.out_features, dtype=torch.float64)
        with torch.no_grad():
            layer.linear1.weight.copy_(torch.cat([ours.inner.weight, ours.gate.weight]))
            layer.linear1.bias.copy_(torch.cat([ours.inner.bias, ours.gate.bias]))
    else:
        _copy_module(layer.linear1, ours.inner)
    _copy_module(layer.linear2, ours.outer)


def _copy_module(reference: nn.Module, ours: nn.Module) -> None:
    reference.load_state_dict(ours.state_dict())


@torch.no_grad()
def _copy_attention(reference: nn.MultiheadAttention, inputs: list[nn.Linear], output: nn.Linear) -> None:
    """Copies weights, and biases or zeros."""
    reference.in_proj_weight.copy_(torch.cat([linear.weight for linear in inputs]))
    reference.in_proj_bias.copy_(torch.cat([_bias_of(linear) for linear in inputs]))
    reference.out_proj.weight.copy_(output.weight)
    reference.out_proj.bias.copy_(_bias_of(output))


def _bias_of(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
