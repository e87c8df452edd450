"""The model against torch's own layers with the same weights, and decoding with a cache against decoding without."""

import dataclasses
import math

import pytest
import torch
from reference_model import build_batch, build_model, decode_all, reference_positions, reference_states
from torch import Tensor, nn

from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer, sinusoidal_positions

SHAPE = ModelShape(24, 40, 3, 2, 2, 0.0, 0.0, 0.0, source_vocab_size=19, target_vocab_size=19)
SEPARATE = dataclasses.replace(SHAPE, source_vocab_size=23, shares_vocabulary=False)


@pytest.mark.parametrize("shape", [SHAPE, SEPARATE], ids=["shared", "separate"])
@pytest.mark.parametrize("lengths", [(7, 3, 5), (4, 4), (1, 9)], ids=["padded", "full", "one_token"])
def test_states_equal_those_of_torchs_own_layers(shape, lengths):
    model = build_model(shape)
    batch = build_batch(shape, lengths)
    with torch.no_grad():
        torch.testing.assert_close(model(*batch), reference_states(model, *batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", [1, 2, 4, 12])
def test_heads_cut_the_width_as_torchs_do(heads):
    model = build_model(dataclasses.replace(SHAPE, heads=heads))
    batch = build_batch(model.shape)
    with torch.no_grad():
        torch.testing.assert_close(model(*batch), reference_states(model, *batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [SHAPE, SEPARATE], ids=["shared", "separate"])
def test_gradients_equal_those_through_torchs_own_layers(shape):
    model = build_model(shape)
    batch = build_batch(shape)
    direction = torch.randn(3, 6, shape.width, dtype=torch.float64)
    tables = [table for table in (model.target_embedding, model.source_embedding) if table is not None]
    ours = torch.autograd.grad((model(*batch) * direction).sum(), tables)
    reference = torch.autograd.grad((reference_states(model, *batch) * direction).sum(), tables)
    torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-5)


def test_single_precision_agrees_with_double():
    model = build_model(SHAPE)
    batch = build_batch(SHAPE)
    with torch.no_grad():
        in_double = model(*batch)
        torch.testing.assert_close(model.float()(*batch).double(), in_double, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_sentence_does_not_feel_its_neighbours_or_its_padding():
    model = build_model(SHAPE)
    source, lengths, target = build_batch(SHAPE)
    together = model(source, lengths, target)
    for row in range(len(lengths)):
        alone = model(source[row : row + 1, : lengths[row]], lengths[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], atol=1e-9, rtol=0)


@torch.no_grad()
def test_what_stands_in_padded_positions_does_not_matter():
    model = build_model(SHAPE)
    source, lengths, target = build_batch(SHAPE)
    scribbled = source.clone()
    scribbled[torch.arange(source.shape[1]) >= lengths[:, None]] = 11
    assert torch.equal(scribbled, source) is False
    torch.testing.assert_close(model(scribbled, lengths, target), model(source, lengths, target), atol=1e-9, rtol=0)


@torch.no_grad()
def test_the_decoder_never_looks_ahead():
    model = build_model(SHAPE)
    source, lengths, target = build_batch(SHAPE)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % SHAPE.target_vocab_size
    before, after = model(source, lengths, target), model(source, lengths, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], atol=1e-12, rtol=0)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


@pytest.mark.parametrize("shape", [SHAPE, SEPARATE], ids=["shared", "separate"])
@pytest.mark.parametrize("lengths", [(7, 3, 5), (4, 4)], ids=["padded", "full"])
@torch.no_grad()
def test_decoding_with_a_cache_gives_the_teacher_forced_scores(shape, lengths):
    model = build_model(shape)
    batch = build_batch(shape, lengths)
    expected = model(*batch) @ model.target_embedding.T
    torch.testing.assert_close(decode_all(model, *batch), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_decoding_past_the_prepared_positions_goes_on_correctly():
    shape = dataclasses.replace(SHAPE, encoder_layers=1, decoder_layers=1)
    batch = build_batch(shape, lengths=(300, 2), target_length=270)
    expected = build_model(shape)(*batch) @ build_model(shape).target_embedding.T
    torch.testing.assert_close(decode_all(build_model(shape), *batch), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_reordered_hypotheses_continue_from_their_own_past():
    model = build_model(SHAPE)
    source, lengths, target = build_batch(SHAPE, lengths=(7, 3, 5))
    state = model.start_decoding(source, lengths)
    for token in target[:, :3].unbind(1):
        model.decode_next(token, state)
    rows = torch.tensor([2, 0])
    state.select_targets(rows)
    state.select_sources(rows)
    continued = model.decode_next(target[rows, 3], state)
    expected = model(source[rows], lengths[rows], target[rows, :4])[:, -1] @ model.target_embedding.T
    torch.testing.assert_close(continued, expected, atol=1e-5, rtol=0)


def test_positions_are_sines_then_cosines_of_falling_frequency():
    torch.testing.assert_close(sinusoidal_positions(50, 24).double(), reference_positions(50, 24), atol=1e-6, rtol=0)
    assert torch.isfinite(sinusoidal_positions(5, 2)).all()


def test_every_parameter_takes_part_in_learning():
    model = build_model(SEPARATE).train()
    model(*build_batch(SEPARATE)).pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_initial_weights_have_the_promised_spread():
    torch.manual_seed(3)
    model = Transformer(ModelShape(64, 256, 4, 1, 1, 0.1, 0.1, 0.1, 2_000, 2_000))
    assert model.target_embedding.norm(dim=1).mean().item() == pytest.approx(1, rel=0.02)
    square_bound, wide_bound = math.sqrt(6 / (64 + 64)), math.sqrt(6 / (64 + 256))
    layer = model.decoder.layers[0]
    for weight in (layer.attention.query_key_value.weight, layer.cross_attention.key_value.weight):
        for square in weight.split(64):
            assert 0.98 * square_bound < square.abs().max() <= square_bound
    assert 0.98 * wide_bound < layer.feed_forward.inner.weight.abs().max() <= wide_bound
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
    assert all((p == 1).all() for name, p in model.named_parameters() if name.endswith("norm.weight"))


def test_the_seed_decides_the_initial_weights():
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(Transformer(SHAPE).parameters())

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))


def test_dropout_acts_in_training_and_rests_in_evaluation():
    model = build_model(dataclasses.replace(SHAPE, dropout=0.3, attention_dropout=0.3, relu_dropout=0.3))
    batch = build_batch(SHAPE)
    with torch.no_grad():
        assert torch.equal(model(*batch), model(*batch))
        model.train()
        assert not torch.equal(model(*batch), model(*batch))


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "relu_dropout"])
def test_each_kind_of_dropout_does_something_by_itself(kind):
    model = build_model(dataclasses.replace(SHAPE, **{kind: 0.5})).train()
    batch = build_batch(SHAPE)
    with torch.no_grad():
        assert not torch.equal(model(*batch), model(*batch))
