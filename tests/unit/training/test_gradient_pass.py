"""Batches that do not fit into memory are computed in pieces: the same sums, and no gradient counted twice."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import SMALL_SHAPE, small_learner

from dragoman.corpus.batching import MicroBatch, pad_pairs
from dragoman.model.shape import ModelShape
from dragoman.training.gradient_pass import Piece, is_out_of_memory
from dragoman.training.learner import Learner

WITHOUT_DROPOUT = ModelShape(8, 16, 2, 1, 1, 0.0, 0.0, 0.0, source_vocab_size=12, target_vocab_size=12)


def batch_of(num_pairs: int, seed: int = 0) -> MicroBatch:
    generator = torch.Generator().manual_seed(seed)
    sentences = [torch.randint(4, 12, (3 + place % 5,), generator=generator).numpy() for place in range(num_pairs)]
    return pad_pairs(sentences, sentences[::-1])


def num_targets(*batches: MicroBatch) -> int:
    return sum(batch.num_target_tokens for batch in batches)


class SmallMemory:
    """A device whose memory ends in forward or backward where a batch has too many pairs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, largest: int, place: str = "forward") -> None:
        self.num_failures = 0
        original = Learner.forward

        def forward(learner: Learner, batch: MicroBatch, scale: float) -> object:
            sums = original(learner, batch, scale)
            if len(batch.source) > largest:
                if place == "forward":
                    self.fail()
                # Deep in backward: gradients of the decoder are added by then, those of the encoder are not.
                parameter = learner.model.encoder.norm.weight
                parameter.register_hook(lambda gradient: self.fail() if self.is_big else gradient)
            self.is_big = len(batch.source) > largest
            return sums

        self.is_big = False
        monkeypatch.setattr(Learner, "forward", forward)

    def fail(self) -> None:
        self.num_failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize(("largest", "num_failures"), [(8, 1), (5, 2), (1, 4)])
def test_pieces_add_up_to_the_gradient_of_the_whole(monkeypatch, place, largest, num_failures):
    batches = {0: batch_of(9), 1: batch_of(16, seed=1), 2: batch_of(3, seed=2)}
    whole = small_learner(WITHOUT_DROPOUT)
    expected = whole.learn(0, batches, num_targets(*batches.values()))
    memory = SmallMemory(monkeypatch, largest, place)
    cut = small_learner(WITHOUT_DROPOUT)
    found = cut.learn(0, batches, num_targets(*batches.values()))
    assert 1 <= memory.num_failures <= num_failures + 2
    torch.testing.assert_close(cut.gradients.flat, whole.gradients.flat, atol=1e-6, rtol=1e-5)
    assert found.own_loss == pytest.approx(expected.own_loss, rel=1e-6)
    before = memory.num_failures
    cut.learn(1, batches, num_targets(*batches.values()))
    assert memory.num_failures == before  # it knows what fits


def test_the_same_cut_draws_the_same_masks_and_another_one_others():
    batch = batch_of(8)
    gradients = []
    for limit in (60, 60, 10**9):
        learner = small_learner(SMALL_SHAPE)
        learner.passes.largest_size = limit
        learner.learn(0, {0: batch}, num_targets(batch))
        gradients.append(learner.gradients.flat.clone())
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_one_pair_that_does_not_fit_is_an_error(monkeypatch):
    SmallMemory(monkeypatch, largest=0)
    with pytest.raises(torch.OutOfMemoryError):
        small_learner().learn(0, {0: batch_of(1)}, 10)


def test_another_error_is_not_taken_for_full_memory(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Learner, "forward", refuse)
    with pytest.raises(RuntimeError, match="mat1"):
        small_learner().learn(0, {0: batch_of(4)}, 10)


def test_what_a_host_without_memory_says_is_known():
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("out of range"))


@settings(deadline=None)
@given(st.integers(2, 40))
def test_halves_hold_every_pair_once_and_pieces_have_numbers_of_their_own(num_pairs):
    pieces = [Piece(0, batch_of(num_pairs))]
    while any(piece.can_be_cut for piece in pieces):
        pieces = [each for piece in pieces for each in (piece.cut() if piece.can_be_cut else [piece])]
    assert len(pieces) == num_pairs == len({piece.number for piece in pieces})
    assert sum(num_targets(piece.batch) for piece in pieces) == num_targets(batch_of(num_pairs))
    for piece in pieces:
        assert piece.batch.source.shape[1] == piece.batch.source_lengths.max()
