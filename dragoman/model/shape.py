"""The size of a model, without torch: presets, parameters, and floating-point operations per token."""

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dragoman.run.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    # Not at run time: it builds all sections of the config, which takes 20 ms that `dragoman plan` does not need.
    from dragoman.run.config import Activation, Embeddings, ModelSettings, Norm, Positions

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
    """One vocabulary for source and target."""
    norm: "Norm" = "pre"
    activation: "Activation" = "relu"
    embeddings: "Embeddings" = "tied"
    """"tied": one matrix for target, softmax and, with a shared vocabulary, the source; "untied": three matrices."""
    positions: "Positions" = "tensor2tensor"
    attention_bias: bool = False
    output_bias: bool = False
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(
                f"model.width {self.width} is not a multiple of model.heads {self.heads}: change one of them."
            )
        if self.width % 2:
            raise UsageError(f"model.width must be even (positions are sines and cosines), not {self.width}.")

    @property
    def alignment_layer(self) -> int:
        """Index of the decoder layer whose attention to the source agrees best with word alignments.

        In a decoder of 6 layers that is the one before the last (Garg et al. 2019, arXiv 1909.02074). In decoders of 2
        layers (the demo) and 3 layers (Multi30k) the last pointed at the translated subword more often.
        """
        return self.decoder_layers - (2 if self.decoder_layers > 3 else 1)

    def differences(self, other: "ModelShape") -> list[str]:
        """Lists the fields that change the weights and differ, as `name: mine, theirs`."""
        mine, theirs = asdict(self), asdict(other)
        names = [name for name in mine if not name.endswith("dropout")]  # dropout may change between restarts
        return [f"{name}: {mine[name]}, {theirs[name]}" for name in names if mine[name] != theirs[name]]


_NEWER_FIELDS = (
    "norm",
    "activation",
    "embeddings",
    "positions",
    "attention_bias",
    "output_bias",
    "norm_epsilon",
)


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
    """Returns the shape saved in a checkpoint, also by earlier programs, which knew fewer choices; raises on others."""
    known = {field.name for field in fields(ModelShape)}
    if not known.difference(_NEWER_FIELDS) <= set(values) <= known:
        raise ValueError(f"model shape has fields {sorted(values)}, expected {sorted(known)}")
    _check_values(values)
    return ModelShape(**values)


def _check_values(values: dict[str, Any]) -> None:
    """Raises a ValueError for values that no run has saved; what the settings refuse is among them."""
    from pydantic import ValidationError

    from dragoman.run.config import ModelSettings
    from dragoman.run.tables import first_problem

    sizes = values["source_vocab_size"], values["target_vocab_size"]
    if not all(type(size) is int and 1 <= size <= 10**12 for size in sizes):
        raise ValueError(f"model shape has vocabularies of {sizes[0]} and {sizes[1]} subwords")
    if type(values["shares_vocabulary"]) is not bool:
        raise ValueError("model shape does not say whether source and target share a vocabulary")
    if missing := [name for name, value in values.items() if value is None]:
        raise ValueError(f"model shape has no value for {missing[0]}")
    try:
        ModelSettings.model_validate({name: values[name] for name in ModelSettings.model_fields if name in values})
    except ValidationError as error:
        raise ValueError(f"model shape: {first_problem(error, ModelSettings).removesuffix('.')}") from None


def count_parameters(shape: ModelShape) -> int:
    """Computes the number of trainable parameters without building the model."""
    norm = 2 * shape.width
    attention = 4 * (shape.width**2 + (shape.width if shape.attention_bias else 0))  # query, key, value, output
    feed_forward = _feed_forward_weights(shape) + _num_inner_matrices(shape) * shape.feed_forward + shape.width
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return (
        _num_embedded(shape) * shape.width
        + (shape.target_vocab_size if shape.output_bias else 0)
        + shape.encoder_layers * encoder_layer
        + shape.decoder_layers * decoder_layer
        + (2 * norm if shape.norm == "pre" else 0)
    )


def _num_embedded(shape: ModelShape) -> int:
    """Counts the rows of all embeddings."""
    if shape.embeddings == "untied":
        return shape.source_vocab_size + 2 * shape.target_vocab_size
    return shape.target_vocab_size + (0 if shape.shares_vocabulary else shape.source_vocab_size)


def _num_inner_matrices(shape: ModelShape) -> int:
    """Counts the matrices that lead into the feed-forward layer: swiglu's gate is a second one."""
    return 2 if shape.activation == "swiglu" else 1


def _feed_forward_weights(shape: ModelShape) -> int:
    """Counts the weights of a feed-forward layer's matrices, without biases."""
    return (_num_inner_matrices(shape) + 1) * shape.width * shape.feed_forward


_FLOPS_PER_WEIGHT = 2
"""A multiplication and an addition per token and weight of a matrix."""
BACKWARD_PER_FORWARD = 2
"""Backward computes gradients of inputs and of weights: two products for each one of forward."""
_OPERATIONS_PER_ENCODER_LAYER = 60
_OPERATIONS_PER_DECODER_LAYER = 100
"""Kernels started in forward and backward: a rough count that matters only for very small batches."""


def forward_flops_per_target_token(shape: ModelShape, source_tokens_per_target_token: float = 1.0) -> float:
    """Counts floating-point operations of matrix products with weights, without attention between positions."""
    attention, feed_forward = shape.width**2, _feed_forward_weights(shape)
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
    # What the activation needs, dropout's mask and its result; a gate also keeps both factors of its product.
    feed_forward = (5 if shape.activation == "swiglu" else 3) * shape.feed_forward
    encoder_layer = 8 * shape.width + feed_forward
    decoder_layer = 14 * shape.width + feed_forward
    return shape.encoder_layers * encoder_layer + shape.decoder_layers * decoder_layer
