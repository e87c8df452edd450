"""The size of a model, without torch: presets, parameters, and floating-point operations per token."""

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dragoman.run.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    # Not at run time: it builds all sections of the config, which takes 20 ms that `dragoman plan` does not need.
    from dragoman.run.config import ModelSettings

PRESET_VOCAB_SIZE = 32_768


@dataclass(frozen=True)
class ModelShape:
    """All settings that decide which weights a model has and how they are used."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float
    attention_dropout: float
    relu_dropout: float
    source_vocab_size: int = PRESET_VOCAB_SIZE
    target_vocab_size: int = PRESET_VOCAB_SIZE
    shares_vocabulary: bool = True
    """One embedding for source, target and softmax; otherwise target and softmax share one, the source has its own."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(
                f"model.width {self.width} is not a multiple of model.heads {self.heads}: change one of them."
            )
        if self.width % 2:
            raise UsageError(f"model.width must be even (positions are sines and cosines), not {self.width}.")

    def differences(self, other: "ModelShape") -> list[str]:
        """Lists the fields that change the weights and differ, as `name: mine, theirs`."""
        mine, theirs = asdict(self), asdict(other)
        names = [name for name in mine if not name.endswith("dropout")]  # dropout may change between restarts
        return [f"{name}: {mine[name]}, {theirs[name]}" for name in names if mine[name] != theirs[name]]


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("dragoman.model").joinpath("presets.toml").read_text(encoding="utf-8"))


def preset_names() -> list[str]:
    """Returns the names in presets.toml."""
    return list(_presets())


def preset_about(name: str) -> str:
    """Returns the purpose of a preset in one line."""
    return str(_presets()[name]["about"])


def load_preset(name: str) -> ModelShape:
    """Returns the shape of a preset; the error for an unknown name suggests the nearest known ones."""
    if name not in _presets():
        hint = did_you_mean(name, preset_names())
        raise UsageError(f"There is no model preset {name!r}{hint} Known: {', '.join(preset_names())}.")
    return ModelShape(**{key: value for key, value in _presets()[name].items() if key != "about"})


def resolve_shape(
    settings: "ModelSettings", source_vocab_size: int, target_vocab_size: int, shares_vocabulary: bool
) -> ModelShape:
    """Returns a preset with the run's own settings and vocabulary."""
    overrides = settings.model_dump(exclude={"preset"}, exclude_none=True)
    return replace(
        load_preset(settings.preset),
        **overrides,
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        shares_vocabulary=shares_vocabulary,
    )


def shape_from_dict(values: dict[str, Any]) -> ModelShape:
    """Returns the shape saved in a checkpoint; raises on missing or unknown fields."""
    known = {field.name for field in fields(ModelShape)}
    if set(values) != known:
        raise ValueError(f"model shape has fields {sorted(values)}, expected {sorted(known)}")
    return ModelShape(**values)


def count_parameters(shape: ModelShape) -> int:
    """Computes the number of trainable parameters without building the model."""
    attention = 4 * shape.width**2  # query, key, value, output; no biases
    feed_forward = 2 * shape.width * shape.feed_forward + shape.feed_forward + shape.width
    norm = 2 * shape.width
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    vocabulary = shape.target_vocab_size + (0 if shape.shares_vocabulary else shape.source_vocab_size)
    return (
        vocabulary * shape.width
        + shape.encoder_layers * encoder_layer
        + shape.decoder_layers * decoder_layer
        + 2 * norm
    )


_FLOPS_PER_WEIGHT = 2
"""A multiplication and an addition per token and weight of a matrix."""
BACKWARD_PER_FORWARD = 2
"""Backward computes gradients of inputs and of weights: two products for each one of forward."""
_OPERATIONS_PER_ENCODER_LAYER = 60
_OPERATIONS_PER_DECODER_LAYER = 100
"""Kernels started in forward and backward: a rough count that matters only for very small batches."""


def forward_flops_per_target_token(shape: ModelShape, source_tokens_per_target_token: float = 1.0) -> float:
    """Counts floating-point operations of matrix products with weights, without attention between positions."""
    attention, feed_forward = shape.width**2, 2 * shape.width * shape.feed_forward
    # The decoder's six: four of self-attention, query and output of cross-attention. Its keys and values are computed
    # from source tokens.
    target_weights = shape.decoder_layers * (6 * attention + feed_forward) + shape.target_vocab_size * shape.width
    source_weights = shape.encoder_layers * (4 * attention + feed_forward) + shape.decoder_layers * 2 * attention
    return _FLOPS_PER_WEIGHT * (target_weights + source_weights * source_tokens_per_target_token)


def training_flops_per_target_token(shape: ModelShape, source_tokens_per_target_token: float = 1.0) -> float:
    """Counts floating-point operations of forward and backward."""
    return (1 + BACKWARD_PER_FORWARD) * forward_flops_per_target_token(shape, source_tokens_per_target_token)


def count_operations(shape: ModelShape) -> int:
    """Estimates how many kernels a step starts; it does not depend on the batch size."""
    return (
        shape.encoder_layers * _OPERATIONS_PER_ENCODER_LAYER + shape.decoder_layers * _OPERATIONS_PER_DECODER_LAYER
    ) * (1 + BACKWARD_PER_FORWARD)


def activation_elements_per_token(shape: ModelShape) -> int:
    """Estimates how many values forward keeps for backward, for a source and a target token together.

    Counts what attention, norms, dropout and residuals keep; scores of the vocabulary are never kept (model/loss.py).
    """
    encoder_layer = 8 * shape.width + 3 * shape.feed_forward
    decoder_layer = 14 * shape.width + 3 * shape.feed_forward
    return shape.encoder_layers * encoder_layer + shape.decoder_layers * decoder_layer
