"""How much a model of a shape computes and keeps for a token, by arithmetic. Needs no torch."""

from dragoman.model.presets import ModelShape

FLOPS_PER_WEIGHT = 2
"""A multiplication and an addition for each token that meets a weight of a matrix."""
BACKWARD_PER_FORWARD = 2
"""Gradients of the inputs and of the weights: two products for each one of forward."""
OPERATIONS_PER_ENCODER_LAYER = 60
OPERATIONS_PER_DECODER_LAYER = 100
"""Kernels started in forward and backward: a rough count, which matters only for very small batches."""


def forward_flops_per_target_token(shape: ModelShape, source_tokens_per_target_token: float = 1.0) -> float:
    """Useful floating-point operations of matrix products with weights; attention between positions is left out."""
    attention, feed_forward = shape.width**2, 2 * shape.width * shape.feed_forward
    # The decoder's six: four of self-attention, query and output of cross-attention. Its keys and values are made
    # from source tokens.
    target_weights = shape.decoder_layers * (6 * attention + feed_forward) + shape.target_vocab_size * shape.width
    source_weights = shape.encoder_layers * (4 * attention + feed_forward) + shape.decoder_layers * 2 * attention
    return FLOPS_PER_WEIGHT * (target_weights + source_weights * source_tokens_per_target_token)


def training_flops_per_target_token(shape: ModelShape, source_tokens_per_target_token: float = 1.0) -> float:
    """Forward and backward."""
    return (1 + BACKWARD_PER_FORWARD) * forward_flops_per_target_token(shape, source_tokens_per_target_token)


def count_operations(shape: ModelShape) -> int:
    """About how many kernels a step starts, however small its batch."""
    return (
        shape.encoder_layers * OPERATIONS_PER_ENCODER_LAYER + shape.decoder_layers * OPERATIONS_PER_DECODER_LAYER
    ) * (1 + BACKWARD_PER_FORWARD)


def activation_elements_per_token(shape: ModelShape) -> int:
    """About how many values forward keeps for backward, for a source and a target token together.

    An estimate: what attention, norms, dropout and residuals keep, counted in widths; scores of the vocabulary are
    never kept (model/loss.py).
    """
    encoder_layer = 8 * shape.width + 3 * shape.feed_forward
    decoder_layer = 14 * shape.width + 3 * shape.feed_forward
    return shape.encoder_layers * encoder_layer + shape.decoder_layers * decoder_layer
