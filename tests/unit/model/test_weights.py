"""Weights on disk: the same bits back, and words for every file that does not fit."""

import dataclasses
import hashlib
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_tensors, load_weights, save_tensors
from dragoman.run.errors import UserError

SHAPE = ModelShape(8, 16, 2, 1, 1, 0.1, 0.1, 0.1, 10, 10)


def named_weights(model: Transformer) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_tensors_come_back_bit_for_bit(tmp_path, dtype):
    tensors = {
        "matrix": (100 * torch.randn(5, 7)).to(dtype),
        "transposed": (100 * torch.randn(5, 7)).to(dtype).T,
        "scalar": torch.tensor(3).to(dtype),
        "empty": torch.zeros(0, 4).to(dtype),
    }
    save_tensors(tmp_path / "file.safetensors", tensors)
    loaded = load_tensors(tmp_path / "file.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@given(st.dictionaries(NAMES, SHAPES, max_size=6), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_the_bytes_are_those_of_safetensors_itself_and_the_hash_is_theirs(tmp_path_factory, shapes, dtype):
    path = tmp_path_factory.mktemp("weights") / "file.safetensors"
    tensors = {name: torch.ones(shape).cumsum(0).to(dtype) if shape else torch.tensor(3).to(dtype)
               for name, shape in shapes.items()}  # fmt: skip
    digest = save_tensors(path, tensors)
    assert path.read_bytes() == save(tensors)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_numbers_of_several_widths_lie_as_safetensors_lays_them(tmp_path):
    tensors = {"a": torch.ones(3).half(), "b": torch.ones(3), "c": torch.ones(3).long(), "d": torch.ones(1)}
    for order in (tensors, dict(reversed(tensors.items()))):
        save_tensors(tmp_path / "file.safetensors", order)
        assert (tmp_path / "file.safetensors").read_bytes() == save(tensors)


def test_not_a_number_and_infinity_survive_too(tmp_path):
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    save_tensors(tmp_path / "file.safetensors", {"odd": odd})
    loaded = load_tensors(tmp_path / "file.safetensors")["odd"]
    assert torch.equal(loaded.view(torch.int32), odd.view(torch.int32))


def test_a_model_takes_back_its_weights(tmp_path):
    torch.manual_seed(0)
    saved = Transformer(SHAPE)
    save_tensors(tmp_path / "model.safetensors", named_weights(saved))
    torch.manual_seed(1)
    other = Transformer(SHAPE)
    load_weights(other, tmp_path / "model.safetensors")
    for name, parameter in saved.named_parameters():
        assert torch.equal(named_weights(other)[name], parameter), name


def test_loading_keeps_the_parameters_themselves(tmp_path):
    """The optimizer and the flat gradient hold on to them."""
    model = Transformer(SHAPE)
    before = list(model.parameters())
    save_tensors(tmp_path / "model.safetensors", named_weights(model))
    load_weights(model, tmp_path / "model.safetensors")
    assert all(old is new for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 16}, "decoder.layers.0.attention.output.weight is 8 × 8 float32, expected 16 × 16 float32"),
        ({"encoder_layers": 2}, "encoder.layers.1.* is absent, expected"),
        (
            {"target_vocab_size": 12, "source_vocab_size": 12},
            "target_embedding is 10 × 8 float32, expected 12 × 8 float32",
        ),
        ({"shares_vocabulary": False}, "source_embedding is absent, expected 10 × 8 float32"),
    ],
)
def test_weights_of_another_model_are_refused_by_name_and_size(tmp_path, changes, words):
    path = tmp_path / "model.safetensors"
    save_tensors(path, named_weights(Transformer(SHAPE)))
    with pytest.raises(UserError, match=words):
        load_weights(Transformer(dataclasses.replace(SHAPE, **changes)), path)


def test_a_tensor_too_many_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, named_weights(Transformer(SHAPE)) | {"stray": torch.zeros(3)})
    with pytest.raises(UserError, match="stray is 3 float32, expected absent"):
        load_weights(Transformer(SHAPE), path)


def test_weights_of_another_number_type_are_refused(tmp_path):
    """`load_weights` promises that number types fit exactly; halved ones would be taken for the saved ones."""
    path = tmp_path / "model.safetensors"
    save_tensors(path, {name: weight.half() for name, weight in named_weights(Transformer(SHAPE)).items()})
    with pytest.raises(UserError, match=r"is 8 × 8 float16, expected 8 × 8 float32"):
        load_weights(Transformer(SHAPE), path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_with_what_to_do(tmp_path, value):
    path = tmp_path / "step-00000005" / "model.safetensors"
    path.parent.mkdir()
    weights = {name: weight.clone() for name, weight in named_weights(Transformer(SHAPE)).items()}
    weights["decoder.norm.bias"][-1] = value
    save_tensors(path, weights)
    expected = r"decoder.norm.bias has values that are NaN or infinite.*an earlier checkpoint.*remove .*step-00000005"
    with pytest.raises(UserError, match=expected):
        load_weights(Transformer(SHAPE), path)


def test_a_refused_file_changes_no_weight(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, named_weights(Transformer(SHAPE)) | {"stray": torch.zeros(3)})
    model = Transformer(SHAPE)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(UserError):
        load_weights(model, path)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.safetensors is missing"):
        load_tensors(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, -1])
def test_a_cut_off_file_is_named(tmp_path, keep):
    path = tmp_path / "cut.safetensors"
    save_tensors(path, {"weight": torch.randn(20, 20)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"cut.safetensors is not a readable safetensors file"):
        load_tensors(path)


def test_a_foreign_file_and_a_folder_are_refused(tmp_path):
    (tmp_path / "foreign.safetensors").write_text("hello, this is no weight at all")
    for path in (tmp_path / "foreign.safetensors", tmp_path):
        with pytest.raises(UserError, match="is not a readable safetensors file"):
            load_tensors(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"weight": torch.ones(3)})

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        save_tensors(path, {"weight": torch.zeros(3)})
    assert torch.equal(load_tensors(path)["weight"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]
