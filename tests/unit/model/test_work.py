"""What a shape computes and keeps, against counts made by hand and by the built model."""

import dataclasses

import pytest

from dragoman.model.shape import (
    activation_elements_per_token,
    count_operations,
    count_parameters,
    forward_flops_per_target_token,
    load_preset,
    training_flops_per_target_token,
)

BASE = load_preset("transformer-base")


def test_small_costs_44_million_as_the_benchmarks_count():
    """FACTS §11: 3+3 layers, 256/1024, 8,000 pieces."""
    shape = dataclasses.replace(load_preset("small"), source_vocab_size=8_000, target_vocab_size=8_000)
    assert training_flops_per_target_token(shape) == pytest.approx(44e6, rel=0.1)


def test_every_weight_of_a_matrix_is_met_once():
    """With as many source as target tokens: two operations a weight, biases and norms left out."""
    assert forward_flops_per_target_token(BASE) == pytest.approx(2 * count_parameters(BASE), rel=0.005)


def test_backward_is_twice_forward():
    assert training_flops_per_target_token(BASE, 1.3) == 3 * forward_flops_per_target_token(BASE, 1.3)


def test_longer_sources_cost_more():
    assert forward_flops_per_target_token(BASE, 2.0) > forward_flops_per_target_token(BASE, 1.0)


def test_larger_models_keep_and_start_more():
    tiny = load_preset("tiny")
    assert activation_elements_per_token(BASE) > activation_elements_per_token(tiny)
    assert count_operations(BASE) > count_operations(tiny) > 0
