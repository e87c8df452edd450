"""The model against torch's own layers with the same weights, and decoding with a cache against decoding without."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer, sinusoidal_positions

SHAPE = ModelShape(24, 40, 3, 2, 2, 0.0, 0.0, 0.0, source_vocab_size=19, target_vocab_size=19)
SEPARATE = dataclasses.replace(SHAPE, source_vocab_size=23, shares_vocabulary=False)


def build_model(shape: ModelShape = SHAPE, seed: int = 0) -> Transformer:
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


# The reference: torch's layers, fed with our weights.


def reference_positions(num_positions: int, width: int) -> Tensor:
    rows = []
    for position in range(num_positions):
        angles = [position / 10_000 ** (i / (width // 2 - 1)) for i in range(width // 2)]
        rows.append([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    return torch.tensor(rows, dtype=torch.float64)


def reference_embedding(tokens: Tensor, table: Tensor) -> Tensor:
    width = table.shape[1]
    return table[tokens] * width**0.5 + reference_positions(tokens.shape[1], width)


def copy_module(reference: nn.Module, ours: nn.Module) -> None:
    reference.load_state_dict(ours.state_dict())


@torch.no_grad()
def copy_attention(reference: nn.MultiheadAttention, packed: Tensor, output: Tensor) -> None:
    reference.in_proj_weight.copy_(packed)
    reference.in_proj_bias.zero_()
    reference.out_proj.weight.copy_(output)
    reference.out_proj.bias.zero_()


def layer_options(shape: ModelShape) -> dict[str, object]:
    sizes = {"d_model": shape.width, "nhead": shape.heads, "dim_feedforward": shape.feed_forward, "dropout": 0.0}
    return sizes | {"layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True, "dtype": torch.float64}


def reference_encoder_layer(ours: nn.Module, shape: ModelShape) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(**layer_options(shape))
    copy_attention(layer.self_attn, ours.attention.query_key_value.weight, ours.attention.output.weight)
    copy_module(layer.linear1, ours.feed_forward.inner)
    copy_module(layer.linear2, ours.feed_forward.outer)
    copy_module(layer.norm1, ours.attention_norm)
    copy_module(layer.norm2, ours.feed_forward_norm)
    return layer


def reference_decoder_layer(ours: nn.Module, shape: ModelShape) -> nn.TransformerDecoderLayer:
    layer = nn.TransformerDecoderLayer(**layer_options(shape))
    cross = ours.cross_attention
    copy_attention(layer.self_attn, ours.attention.query_key_value.weight, ours.attention.output.weight)
    copy_attention(layer.multihead_attn, torch.cat([cross.query.weight, cross.key_value.weight]), cross.output.weight)
    copy_module(layer.linear1, ours.feed_forward.inner)
    copy_module(layer.linear2, ours.feed_forward.outer)
    copy_module(layer.norm1, ours.attention_norm)
    copy_module(layer.norm2, ours.cross_attention_norm)
    copy_module(layer.norm3, ours.feed_forward_norm)
    return layer


def reference_states(model: Transformer, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
    """Layers stay in training mode (dropout is 0): in evaluation mode torch would take a fused path of its own."""
    shape = model.shape
    is_padding = torch.arange(source.shape[1]) >= source_lengths[:, None]
    source_table = model.target_embedding if model.source_embedding is None else model.source_embedding
    memory = reference_embedding(source, source_table)
    for ours in model.encoder.layers:
        memory = reference_encoder_layer(ours, shape)(memory, src_key_padding_mask=is_padding)
    memory = model.encoder.norm(memory)
    states = reference_embedding(target, model.target_embedding)
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    for ours in model.decoder.layers:
        layer = reference_decoder_layer(ours, shape)
        states = layer(states, memory, tgt_mask=causal, memory_key_padding_mask=is_padding)
    return model.decoder.norm(states)


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
    model = build_model()
    batch = build_batch(SHAPE)
    with torch.no_grad():
        in_double = model(*batch)
        torch.testing.assert_close(model.float()(*batch).double(), in_double, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_sentence_does_not_feel_its_neighbours_or_its_padding():
    model = build_model()
    source, lengths, target = build_batch(SHAPE)
    together = model(source, lengths, target)
    for row in range(len(lengths)):
        alone = model(source[row : row + 1, : lengths[row]], lengths[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], atol=1e-9, rtol=0)


@torch.no_grad()
def test_what_stands_in_padded_positions_does_not_matter():
    model = build_model()
    source, lengths, target = build_batch(SHAPE)
    scribbled = source.clone()
    scribbled[torch.arange(source.shape[1]) >= lengths[:, None]] = 11
    assert torch.equal(scribbled, source) is False
    torch.testing.assert_close(model(scribbled, lengths, target), model(source, lengths, target), atol=1e-9, rtol=0)


@torch.no_grad()
def test_the_decoder_never_looks_ahead():
    model = build_model()
    source, lengths, target = build_batch(SHAPE)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % SHAPE.target_vocab_size
    before, after = model(source, lengths, target), model(source, lengths, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], atol=1e-12, rtol=0)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


@torch.no_grad()
def decode_all(model: Transformer, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    state = model.start_decoding(source, lengths)
    return torch.stack([model.decode_next(token, state) for token in target.unbind(1)], dim=1)


@pytest.mark.parametrize("shape", [SHAPE, SEPARATE], ids=["shared", "separate"])
@pytest.mark.parametrize("lengths", [(7, 3, 5), (4, 4)], ids=["padded", "full"])
@torch.no_grad()
def test_decoding_with_a_cache_gives_the_teacher_forced_scores(shape, lengths):
    model = build_model(shape)
    batch = build_batch(shape, lengths)
    expected = linear(model(*batch), model.target_embedding)
    torch.testing.assert_close(decode_all(model, *batch), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_decoding_past_the_prepared_positions_goes_on_correctly():
    shape = dataclasses.replace(SHAPE, encoder_layers=1, decoder_layers=1)
    batch = build_batch(shape, lengths=(300, 2), target_length=270)
    expected = linear(build_model(shape)(*batch), build_model(shape).target_embedding)
    torch.testing.assert_close(decode_all(build_model(shape), *batch), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_reordered_hypotheses_continue_from_their_own_past():
    model = build_model()
    source, lengths, target = build_batch(SHAPE, lengths=(7, 3, 5))
    state = model.start_decoding(source, lengths)
    for token in target[:, :3].unbind(1):
        model.decode_next(token, state)
    rows = torch.tensor([2, 0])
    state.select_targets(rows)
    state.select_sources(rows)
    continued = model.decode_next(target[rows, 3], state)
    expected = linear(model(source[rows], lengths[rows], target[rows, :4])[:, -1], model.target_embedding)
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
