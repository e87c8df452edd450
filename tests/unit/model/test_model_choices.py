"""Every choice of a model shape against another implementation, in training and in decoding."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import SMALL_SHAPE, learn_steps, small_learner
from reference_model import (
    build_batch,
    build_model,
    decode_all,
    reference_attention,
    reference_logits,
    reference_positions,
)
from torch import Tensor

from dragoman.corpus.batching import pad_pairs
from dragoman.corpus.tokenizer import PAD_ID
from dragoman.model.shape import ModelShape, activation_elements_per_token
from dragoman.model.teacher_forcing import teacher_forced_loss, teacher_forced_predictions
from dragoman.model.transformer import Transformer, sinusoidal_positions
from dragoman.model.weights import load_tensors, load_weights, save_tensors
from dragoman.training.learner import optimizer_tensors, restore_optimizer

SHAPE = ModelShape(12, 20, 2, 2, 2, 0.0, 0.0, 0.0, source_vocab_size=17, target_vocab_size=17)
EVERY_CHOICE = [
    {},
    {"norm": "post"},
    {"activation": "gelu"},
    {"activation": "swish"},
    {"activation": "swiglu"},
    {"embeddings": "untied"},
    {"embeddings": "untied", "shares_vocabulary": False, "source_vocab_size": 23},
    {"positions": "marian"},
    {"attention_bias": True},
    {"output_bias": True},
    {"norm_epsilon": 0.01},
]
each_choice = pytest.mark.parametrize("choice", EVERY_CHOICE, ids=str)
CHOSEN = {"norm": "post", "activation": "swiglu", "embeddings": "untied", "attention_bias": True, "output_bias": True}

choices = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["pre", "post"]),
        "activation": st.sampled_from(["relu", "gelu", "swish", "swiglu"]),
        "embeddings": st.sampled_from(["tied", "untied"]),
        "positions": st.sampled_from(["tensor2tensor", "marian"]),
        "attention_bias": st.booleans(),
        "output_bias": st.booleans(),
        "norm_epsilon": st.sampled_from([1e-6, 1e-5, 0.01]),
        "shares_vocabulary": st.booleans(),
        "encoder_layers": st.integers(1, 2),
        "decoder_layers": st.integers(1, 3),
    }
)


def choose(choice: dict[str, Any], shape: ModelShape = SHAPE) -> ModelShape:
    return dataclasses.replace(shape, **choice)


def sample_sentences() -> list[np.ndarray]:
    return [np.random.default_rng(0).integers(4, 12, length) for length in (1, 3, 8, 5, 5)]


# The same function as torch's layers


@torch.no_grad()
def check_against_reference(shape: ModelShape) -> None:
    model, batch = build_model(shape), build_batch(shape)
    expected = reference_logits(model, *batch)
    torch.testing.assert_close(model.logits(model(*batch)), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(decode_all(model, *batch), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.attend(*batch), reference_attention(model, *batch), atol=1e-6, rtol=0)


@each_choice
def test_each_choice_computes_what_torchs_layers_do(choice):
    check_against_reference(choose(choice))


@settings(max_examples=20, deadline=None)
@given(choices)
def test_any_combination_computes_what_torchs_layers_do(choice):
    check_against_reference(choose(choice))


@each_choice
@torch.no_grad()
def test_each_choice_changes_the_result(choice):
    """Otherwise the comparison above would prove nothing."""
    batch = build_batch(SHAPE)
    is_changed = not torch.allclose(
        *(build_model(shape).logits(build_model(shape)(*batch)) for shape in (SHAPE, choose(choice))), atol=1e-3
    )
    assert is_changed == bool(choice)


@pytest.mark.slow  # importing transformers takes seconds
@torch.no_grad()
def test_post_norm_with_biases_and_marian_positions_is_hugging_faces_marian():
    transformers = pytest.importorskip("transformers")
    config = transformers.MarianConfig(
        vocab_size=17,
        d_model=12,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=0,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    marian = transformers.MarianMTModel(config).double().eval()
    choice = {"norm": "post", "activation": "swish", "positions": "marian", "norm_epsilon": 1e-5}
    model = build_model(choose(choice | {"attention_bias": True, "output_bias": True}))
    copy_to_marian(model, marian)
    source, lengths, target = build_batch(model.shape)
    mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    output = marian(input_ids=source, attention_mask=mask, decoder_input_ids=target, output_attentions=True)
    torch.testing.assert_close(model.logits(model(source, lengths, target)), output.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        model.attend(source, lengths, target), output.cross_attentions[-1].mean(1), atol=1e-5, rtol=0
    )


def copy_to_marian(model: Transformer, marian: Any) -> None:
    marian.model.shared.weight.copy_(model.target_embedding)
    marian.final_logits_bias.copy_(model.output_bias[None])
    for ours, theirs in zip(model.encoder.layers, marian.model.encoder.layers, strict=True):
        copy_layer_to_marian(ours, theirs)
    for ours, theirs in zip(model.decoder.layers, marian.model.decoder.layers, strict=True):
        copy_layer_to_marian(ours, theirs)
        cross = ours.cross_attention
        copy_attention_to_marian([cross.query, cross.key_value], cross.output, theirs.encoder_attn)
        theirs.encoder_attn_layer_norm.load_state_dict(ours.cross_attention_norm.state_dict())


def copy_layer_to_marian(ours: Any, theirs: Any) -> None:
    copy_attention_to_marian([ours.attention.query_key_value], ours.attention.output, theirs.self_attn)
    theirs.self_attn_layer_norm.load_state_dict(ours.attention_norm.state_dict())
    theirs.fc1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.fc2.load_state_dict(ours.feed_forward.outer.state_dict())
    theirs.final_layer_norm.load_state_dict(ours.feed_forward_norm.state_dict())


def copy_attention_to_marian(inputs: list[Any], output: Any, theirs: Any) -> None:
    weights = torch.cat([linear.weight for linear in inputs]).chunk(3)
    biases = torch.cat([linear.bias for linear in inputs]).chunk(3)
    for linear, weight, bias in zip((theirs.q_proj, theirs.k_proj, theirs.v_proj), weights, biases, strict=True):
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    theirs.out_proj.load_state_dict(output.state_dict())


@pytest.mark.parametrize("kind", ["tensor2tensor", "marian"])
@pytest.mark.parametrize("width", [4, 24])
def test_positions_are_those_of_the_formula(kind, width):
    positions = sinusoidal_positions(300, width, kind)
    torch.testing.assert_close(positions.double(), reference_positions(300, width, kind), atol=1e-6, rtol=0)


@torch.no_grad()
def test_positions_of_the_chosen_kind_go_on_after_the_prepared_ones():
    shape = choose({"positions": "marian", "encoder_layers": 1, "decoder_layers": 1})
    model, batch = build_model(shape), build_batch(shape, lengths=(280,), target_length=260)
    torch.testing.assert_close(model.logits(model(*batch)), reference_logits(model, *batch), atol=1e-5, rtol=0)


# Names of weights


@pytest.mark.parametrize(
    ("choice", "added", "removed"),
    [
        (
            {"norm": "post"},
            [],
            ["decoder.norm.bias", "decoder.norm.weight", "encoder.norm.bias", "encoder.norm.weight"],
        ),
        ({"embeddings": "untied"}, ["output_embedding", "source_embedding"], []),
        ({"output_bias": True}, ["output_bias"], []),
        (
            {"activation": "swiglu"},
            [
                f"{part}.layers.0.feed_forward.gate.{kind}"
                for part in ("decoder", "encoder")
                for kind in ("bias", "weight")
            ],
            [],
        ),
        (
            {"attention_bias": True},
            [
                "decoder.layers.0.attention.output.bias",
                "decoder.layers.0.attention.query_key_value.bias",
                "decoder.layers.0.cross_attention.key_value.bias",
                "decoder.layers.0.cross_attention.output.bias",
                "decoder.layers.0.cross_attention.query.bias",
                "encoder.layers.0.attention.output.bias",
                "encoder.layers.0.attention.query_key_value.bias",
            ],
            [],
        ),
        ({"activation": "gelu", "positions": "marian", "norm_epsilon": 0.01}, [], []),
    ],
    ids=str,
)
def test_choices_add_and_remove_weights_by_these_names(choice, added, removed):
    """Exports and files of other programs rely on them."""
    one_layer = choose({"encoder_layers": 1, "decoder_layers": 1})
    before, after = (set(Transformer(shape).state_dict()) for shape in (one_layer, choose(choice, one_layer)))
    assert (sorted(after - before), sorted(before - after)) == (added, removed)


def test_new_weights_start_as_others_of_their_kind():
    torch.manual_seed(3)
    model = Transformer(choose(CHOSEN | {"width": 64, "feed_forward": 128, "target_vocab_size": 2_000}))
    assert model.output_embedding.norm(dim=1).mean().item() == pytest.approx(1, rel=0.02)
    gate = model.encoder.layers[0].feed_forward.gate.weight
    bound = (6 / (64 + 128)) ** 0.5
    assert 0.98 * bound < gate.abs().max() <= bound
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)


# Attention to the source, for word alignment


@pytest.mark.parametrize(("decoder_layers", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (6, 4)])
def test_alignment_uses_the_layer_before_the_last_of_deep_decoders(decoder_layers, expected):
    shape = choose({"decoder_layers": decoder_layers})
    assert shape.alignment_layer == expected
    model, batch = build_model(shape), build_batch(shape)
    with torch.no_grad():
        torch.testing.assert_close(model.attend(*batch), reference_attention(model, *batch), atol=1e-6, rtol=0)


@pytest.mark.parametrize("lengths", [(7, 3, 5), (4, 4)], ids=["padded", "full"])
def test_attention_is_a_distribution_over_the_source_without_padding(lengths):
    model = build_model(SHAPE)
    source, source_lengths, target = build_batch(SHAPE, lengths)
    weights = model.attend(source, source_lengths, target)
    assert weights.shape == (len(lengths), target.shape[1], max(lengths))
    assert not weights.requires_grad
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2], dtype=torch.float64))
    for row, length in enumerate(lengths):
        assert not weights[row, :, length:].any()


# Learning


@each_choice
def test_every_weight_takes_part_in_learning(choice):
    torch.manual_seed(0)
    model = Transformer(choose(choice))
    sentences = sample_sentences()
    teacher_forced_loss(model, pad_pairs(sentences, sentences[::-1]), "fp32", 0.1).smoothed.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@each_choice
def test_loss_and_predictions_use_the_models_own_scores(choice):
    model = build_model(choose(choice))
    sentences = sample_sentences()
    batch = pad_pairs(sentences, sentences)
    loss, expected, reference = _loss_of(model, batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert teacher_forced_predictions(model, batch, "fp32") == reference


@torch.no_grad()
def _loss_of(model: Transformer, batch: Any) -> tuple[float, float, list[list[int]]]:
    arrays = (torch.from_numpy(array) for array in (batch.source, batch.source_lengths, batch.target_input))
    log_p = reference_logits(model, *arrays).log_softmax(-1)
    target = torch.from_numpy(batch.target_output)
    is_filled = target != PAD_ID
    expected = -log_p.gather(2, target[:, :, None])[:, :, 0][is_filled].sum().item()
    best = [row[filled].tolist() for row, filled in zip(log_p.argmax(-1), is_filled, strict=True)]
    return teacher_forced_loss(model, batch, "fp32", 0.0).smoothed.item(), expected, best


@each_choice
def test_half_precision_comes_close(choice):
    model = build_model(choose(choice)).float()
    sentences = sample_sentences()
    batch = pad_pairs(sentences, sentences)
    exact, rounded = (teacher_forced_loss(model, batch, precision, 0.1).smoothed for precision in ("fp32", "bf16"))
    assert rounded.item() == pytest.approx(exact.item(), rel=2e-2)


def test_a_model_of_other_choices_learns():
    learner = small_learner(choose(CHOSEN, SMALL_SHAPE), rate=1e-2)
    losses = [_loss_on_first_sentence(learner.model)]
    learn_steps(learner, *[0] * 30)
    losses.append(_loss_on_first_sentence(learner.model))
    assert losses[1] < 0.7 * losses[0]


def test_a_model_of_other_choices_resumes_bit_for_bit(tmp_path):
    shape = choose(CHOSEN, SMALL_SHAPE)
    uninterrupted, resumed = small_learner(shape), small_learner(shape, model_seed=99)
    learn_steps(uninterrupted, 0, 1, 2)
    save_tensors(tmp_path / "model", dict(uninterrupted.model.named_parameters()))
    save_tensors(tmp_path / "moments", optimizer_tensors(uninterrupted.model, uninterrupted.optimizer))
    load_weights(resumed.model, tmp_path / "model")
    restore_optimizer(resumed.model, resumed.optimizer, load_tensors(tmp_path / "moments"), num_updates=3)
    for learner in (uninterrupted, resumed):
        learn_steps(learner, 3, 4, 5)
    for (name, old), new in zip(uninterrupted.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(old, new), name


@torch.no_grad()
def _loss_on_first_sentence(model: Transformer) -> float:
    sentence = np.random.default_rng(0).integers(4, 12, 6)
    return teacher_forced_loss(model, pad_pairs([sentence], [sentence]), "fp32", 0.1).plain.item()


def kept_values(shape: ModelShape) -> int:
    """Counts the values that forward keeps for backward, besides weights, where no kernel is made for the device."""
    model = Transformer(shape).to("meta").train()
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    source, lengths, target = build_batch(shape, lengths=(40,) * 5, target_length=40)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model(source.to("meta"), lengths, target.to("meta"))
    num_values = sum(tensor.untyped_storage().nbytes() // 4 for tensor in kept.values())
    del states
    return num_values


@pytest.mark.parametrize("choice", [{"activation": "swiglu"}, {"activation": "gelu"}, {"norm": "post"}], ids=str)
def test_choices_keep_as_many_more_values_for_backward_as_counted(choice):
    """What the layers of the default keep is an estimate; what a choice adds to it must not be off by much."""
    default = choose({"relu_dropout": 0.1, "dropout": 0.1, "feed_forward": 600})
    added = kept_values(choose(choice, default)) - kept_values(default)
    counted = activation_elements_per_token(choose(choice, default)) - activation_elements_per_token(default)
    assert added == pytest.approx(200 * counted, abs=0.02 * kept_values(default))
