"""Model shapes: the exact number of parameters, operations per token, and errors for shapes that cannot be."""

import dataclasses
import json
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.model.shape import (
    ModelShape,
    activation_elements_per_token,
    count_operations,
    count_parameters,
    forward_flops_per_target_token,
    load_preset,
    preset_about,
    preset_names,
    resolve_shape,
    shape_from_dict,
    training_flops_per_target_token,
)
from dragoman.model.transformer import Transformer
from dragoman.run.config import Activation, Embeddings, ModelSettings, Norm, Positions
from dragoman.run.errors import UsageError

CHOICES = ("norm", "activation", "embeddings", "positions", "attention_bias", "output_bias", "norm_epsilon")


def build_without_memory(shape: ModelShape) -> Transformer:
    with torch.device("meta"):
        return Transformer(shape)


def num_built(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def make_shape(**changes: object) -> ModelShape:
    return dataclasses.replace(ModelShape(16, 32, 2, 1, 2, 0.1, 0.1, 0.1, 40, 40), **changes)


def test_transformer_base_has_exactly_the_parameters_of_openseq2seq():
    shape = load_preset("transformer-base")
    model = build_without_memory(shape)
    assert count_parameters(shape) == 60_880_896
    assert num_built(model) == 60_880_896


def test_transformer_base_has_the_parameters_in_the_right_layers():
    model = build_without_memory(load_preset("transformer-base"))
    assert model.target_embedding.numel() == 16_777_216
    assert model.source_embedding is None
    assert [num_built(layer) for layer in model.encoder.layers] == [3_150_336] * 6
    assert [num_built(layer) for layer in model.decoder.layers] == [4_199_936] * 6
    assert num_built(model.encoder.norm) + num_built(model.decoder.norm) == 2_048


def test_separate_vocabularies_add_one_source_embedding_to_transformer_base():
    shape = dataclasses.replace(load_preset("transformer-base"), shares_vocabulary=False)
    assert count_parameters(shape) == 60_880_896 + 16_777_216
    assert num_built(build_without_memory(shape)) == count_parameters(shape)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    heads, target_vocab_size, shares = draw(st.integers(1, 4)), draw(st.integers(1, 90)), draw(st.booleans())
    return make_shape(
        width=2 * heads * draw(st.integers(1, 5)),
        heads=heads,
        feed_forward=draw(st.integers(1, 50)),
        encoder_layers=draw(st.integers(1, 3)),
        decoder_layers=draw(st.integers(1, 3)),
        source_vocab_size=target_vocab_size if shares else draw(st.integers(1, 90)),
        target_vocab_size=target_vocab_size,
        shares_vocabulary=shares,
        norm=draw(st.sampled_from(get_args(Norm))),
        activation=draw(st.sampled_from(get_args(Activation))),
        embeddings=draw(st.sampled_from(get_args(Embeddings))),
        positions=draw(st.sampled_from(get_args(Positions))),
        attention_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        norm_epsilon=draw(st.floats(1e-9, 1)),
    )


@settings(max_examples=50)
@given(shapes())
def test_counting_agrees_with_building(shape):
    assert count_parameters(shape) == num_built(build_without_memory(shape))


@settings(max_examples=30)
@given(shapes())
def test_every_weight_of_a_layers_matrix_costs_two_operations_per_token(shape):
    """With as many source as target tokens; embeddings are looked up, and the softmax uses one of them."""
    layers = build_without_memory(shape).named_parameters()
    in_layers = sum(weight.numel() for name, weight in layers if "layers" in name and weight.dim() == 2)
    assert forward_flops_per_target_token(shape) == 2 * (in_layers + shape.target_vocab_size * shape.width)


@given(shapes())
def test_a_shape_survives_being_saved_as_json(shape):
    assert shape_from_dict(json.loads(json.dumps(dataclasses.asdict(shape)))) == shape


@pytest.mark.parametrize(
    ("name", "width", "feed_forward", "heads", "encoder_layers", "decoder_layers", "dropout"),
    [
        ("transformer-base", 512, 2048, 8, 6, 6, 0.1),
        ("transformer-big", 1024, 4096, 16, 6, 6, 0.3),
        ("small", 256, 1024, 4, 3, 3, 0.1),
        ("tiny", 128, 512, 4, 2, 2, 0.1),
        ("deep-encoder", 512, 2048, 8, 12, 1, 0.1),
        ("small-deep-encoder", 256, 1024, 4, 6, 1, 0.1),
    ],
)
def test_presets_are_the_documented_shapes(name, width, feed_forward, heads, encoder_layers, decoder_layers, dropout):
    shape = load_preset(name)
    assert (shape.width, shape.feed_forward, shape.heads) == (width, feed_forward, heads)
    assert (shape.encoder_layers, shape.decoder_layers) == (encoder_layers, decoder_layers)
    assert (shape.dropout, shape.attention_dropout, shape.relu_dropout) == (dropout, 0.1, 0.1)


def test_every_preset_loads_and_says_what_it_is_for():
    assert "transformer-base" in preset_names()
    for name in preset_names():
        assert count_parameters(load_preset(name)) > 0
        assert preset_about(name).strip()


@pytest.mark.parametrize(
    ("wrong", "meant"), [("transformer_base", "transformer-base"), ("smal", "small"), ("Tiny", "tiny")]
)
def test_an_unknown_preset_is_answered_with_the_nearest(wrong, meant):
    with pytest.raises(UsageError, match=f"{wrong}.*did you mean '{meant}'"):
        load_preset(wrong)


def test_a_preset_like_no_other_still_lists_the_known_ones():
    with pytest.raises(UsageError, match=", ".join(preset_names())):
        load_preset("ßßß")


@pytest.mark.parametrize(
    ("changes", "words"), [({"heads": 3}, "not a multiple of model.heads 3"), ({"width": 7, "heads": 7}, "even")]
)
def test_impossible_shapes_are_refused_in_words(changes, words):
    with pytest.raises(UsageError, match=words):
        make_shape(**changes)


def test_settings_override_a_preset_and_the_corpus_decides_the_vocabulary():
    settings = ModelSettings(preset="tiny", width=64, dropout=0.0)
    shape = resolve_shape(settings, source_vocab_size=100, target_vocab_size=200, shares_vocabulary=False)
    expected = dataclasses.replace(
        load_preset("tiny"),
        width=64,
        dropout=0.0,
        source_vocab_size=100,
        target_vocab_size=200,
        shares_vocabulary=False,
    )
    assert shape == expected


def test_settings_choose_the_architecture():
    settings = ModelSettings(norm="post", activation="swiglu", embeddings="untied", positions="marian")
    settings = settings.model_copy(update={"attention_bias": True, "output_bias": True, "norm_epsilon": 1e-5})
    shape = resolve_shape(settings, source_vocab_size=100, target_vocab_size=100, shares_vocabulary=True)
    assert (shape.norm, shape.activation, shape.embeddings, shape.positions) == ("post", "swiglu", "untied", "marian")
    assert (shape.attention_bias, shape.output_bias, shape.norm_epsilon) == (True, True, 1e-5)


def test_a_shape_saved_before_there_were_choices_is_the_default_one():
    saved = {name: value for name, value in dataclasses.asdict(make_shape()).items() if name not in CHOICES}
    assert shape_from_dict(saved) == make_shape()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "sideways"}, "norm = 'sideways'"),
        ({"activation": None}, "no value for activation"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"norm_epsilon": 0.0}, "norm_epsilon"),
        ({"width": "16"}, "width"),
        ({"heads": 0}, "heads"),
        ({"dropout": 1.5}, "dropout"),
        ({"target_vocab_size": -40}, "vocabularies of 40 and -40"),
        ({"source_vocab_size": 10**13}, "vocabularies"),
        ({"source_vocab_size": True}, "vocabularies"),
        ({"shares_vocabulary": 1}, "share a vocabulary"),
    ],
    ids=str,
)
def test_a_saved_shape_with_a_value_no_run_has_is_an_error(change, words):
    with pytest.raises(ValueError, match=f"^model shape.*{words}"):
        shape_from_dict(dataclasses.asdict(make_shape()) | change)


@pytest.mark.parametrize("change", [{"new_field": 1}, {"width": None}])
def test_a_saved_shape_with_other_fields_is_an_error(change):
    values = {name: value for name, value in (dataclasses.asdict(make_shape()) | change).items() if value is not None}
    with pytest.raises(ValueError, match="model shape has fields"):
        shape_from_dict(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 32),
        ("feed_forward", 64),
        ("heads", 4),  # fits the same matrices, but cuts them into other heads: another function
        ("encoder_layers", 2),
        ("decoder_layers", 1),
        ("source_vocab_size", 41),
        ("target_vocab_size", 41),
        ("shares_vocabulary", False),
        ("norm", "post"),
        ("activation", "gelu"),
        ("embeddings", "untied"),
        ("positions", "marian"),
        ("attention_bias", True),
        ("output_bias", True),
        ("norm_epsilon", 1e-5),
    ],
)
def test_shapes_differ_in_everything_that_makes_weights_mean_something_else(name, value):
    differences = make_shape(**{name: value}).differences(make_shape())
    assert differences == [f"{name}: {value}, {getattr(make_shape(), name)}"]


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "relu_dropout"])
def test_dropout_may_change_without_making_another_model(name):
    assert make_shape(**{name: 0.5}).differences(make_shape()) == []


# Operations per token

BASE = load_preset("transformer-base")


def test_small_costs_44_million_as_the_benchmarks_count():
    """3+3 layers, 256/1024, 8,000 subwords."""
    shape = dataclasses.replace(load_preset("small"), source_vocab_size=8_000, target_vocab_size=8_000)
    assert training_flops_per_target_token(shape) == pytest.approx(44e6, rel=0.1)


def test_every_weight_of_a_matrix_is_used_once():
    """With as many source as target tokens: two operations per weight, without biases and norms."""
    assert forward_flops_per_target_token(BASE) == pytest.approx(2 * count_parameters(BASE), rel=0.005)


def test_backward_is_twice_forward():
    assert training_flops_per_target_token(BASE, 1.3) == 3 * forward_flops_per_target_token(BASE, 1.3)


def test_longer_sources_cost_more():
    assert forward_flops_per_target_token(BASE, 2.0) > forward_flops_per_target_token(BASE, 1.0)


def test_larger_models_keep_more_values_and_start_more_kernels():
    tiny = load_preset("tiny")
    assert activation_elements_per_token(BASE) > activation_elements_per_token(tiny)
    assert count_operations(BASE) > count_operations(tiny) > 0
