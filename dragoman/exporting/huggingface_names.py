"""Names of weights in the Hugging Face layouts Marian and Blenderbot, which differ from ours in name and packing only.

Ours packs query, key and value in one matrix; theirs are separate. Both layouts have biases everywhere.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dragoman.model.shape import ModelShape

_ENCODER_MODULES: dict[str, tuple[str, ...]] = {
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
_DECODER_MODULES: dict[str, tuple[str, ...]] = _ENCODER_MODULES | {
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention_norm": ("encoder_attn_layer_norm",),
}
_RESIDUAL_OUTPUTS = ("attention.output", "cross_attention.output", "feed_forward.outer")

SHARED_EMBEDDING = "model.shared.weight"
SOURCE_EMBEDDING = "model.encoder.embed_tokens.weight"
TARGET_EMBEDDING = "model.decoder.embed_tokens.weight"
OUTPUT_EMBEDDING = "lm_head.weight"
OUTPUT_BIAS = "final_logits_bias"
SOURCE_POSITIONS = "model.encoder.embed_positions.weight"
TARGET_POSITIONS = "model.decoder.embed_positions.weight"


class ModuleNames(NamedTuple):
    """One of our modules, and the modules of Hugging Face that hold its rows in this order."""

    ours: str
    theirs: tuple[str, ...]

    @property
    def is_residual_output(self) -> bool:
        """Whether its output is added to the residual."""
        return self.ours.endswith(_RESIDUAL_OUTPUTS)


def layer_modules(shape: ModelShape) -> Iterator[ModuleNames]:
    """Lists the modules of all layers."""
    for side, num_layers, modules in (
        ("encoder", shape.encoder_layers, _ENCODER_MODULES),
        ("decoder", shape.decoder_layers, _DECODER_MODULES),
    ):
        for number in range(num_layers):
            prefix = f"{side}.layers.{number}."
            for ours, theirs in modules.items():
                yield ModuleNames(prefix + ours, tuple(f"model.{prefix}{name}" for name in theirs))


def weight_size(name: str, shape: ModelShape) -> tuple[int, ...]:
    """Returns the size of a weight of a layer by its name at Hugging Face."""
    *_, module, kind = name.split(".")
    sizes = {"fc1": (shape.feed_forward, shape.width), "fc2": (shape.width, shape.feed_forward)}
    size = sizes.get(module, (shape.width, shape.width))
    return size[:1] if kind == "bias" or module.endswith("layer_norm") else size
