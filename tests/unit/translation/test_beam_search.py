"""Beam search against searches too plain to be wrong: exhaustive, step by step without cache, never stopping early."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import SOURCES, VOCAB_SIZE, build_model, next_log_probabilities, penalty, to_batch
from torch import Tensor
from torch.nn.functional import linear

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID
from dragoman.model.transformer import Transformer
from dragoman.run.errors import UsageError
from dragoman.translation.search import Hypothesis, Sampling, SearchSettings, SourceSegment
from dragoman.translation.torch_search.beam_search import beam_search, best_columns
from dragoman.translation.torch_search.torch_backend import TorchBackend


def search(model: Transformer, sources: list[list[int]], num_subwords: int = VOCAB_SIZE, **options: float):
    return beam_search(model, *to_batch(sources), SearchSettings(**options), num_subwords)


def plain_beam_search(model, source, beam_size, alpha, max_length, num_subwords=VOCAB_SIZE) -> list[Hypothesis]:
    """The definition, one list at a time: no cache, no early stop, all extensions sorted."""
    alive, finished = [([], 0.0)], []
    for length in range(1, max_length + 1):
        extensions = []
        for tokens, total in alive:
            log_p = next_log_probabilities(model, source, tokens)
            subwords = (EOS_ID, *range(NUM_SPECIAL_IDS, num_subwords))
            extensions += [([*tokens, subword], total + log_p[subword]) for subword in subwords]
        extensions.sort(key=lambda extension: -extension[1])
        for tokens, total in extensions[:beam_size]:
            if tokens[-1] == EOS_ID:
                finished.append(Hypothesis(tokens[:-1], total / penalty(length, alpha), total))
        alive = [extension for extension in extensions if extension[0][-1] != EOS_ID][:beam_size]
    if not finished:
        finished = [Hypothesis(tokens, total / penalty(max_length, alpha), total) for tokens, total in alive]
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=1e-6)
        assert mine.log_probability == pytest.approx(theirs.log_probability, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_wide_enough_finds_what_exhaustive_search_finds(alpha: float) -> None:
    model, max_length = build_model(), 4
    words = range(NUM_SPECIAL_IDS, VOCAB_SIZE)
    for source in SOURCES[:2]:
        everything = []
        for num_words in range(max_length):
            for tokens in itertools.product(words, repeat=num_words):
                total = sum(
                    next_log_probabilities(model, source, list(tokens[:position]))[subword]
                    for position, subword in enumerate((*tokens, EOS_ID))
                )
                everything.append(Hypothesis(list(tokens), total / penalty(num_words + 1, alpha), total))
        best = max(everything, key=lambda hypothesis: hypothesis.score)
        [found] = search(
            model, [source], beam_size=500, length_penalty=alpha, max_length_factor=0, max_length_extra=max_length
        )
        assert_same(found, [best])


@pytest.mark.parametrize("end_bias", [0.0, 0.5])
def test_greedy_is_the_likeliest_piece_at_every_step(end_bias: float) -> None:
    model = build_model(3, end_bias=end_bias)
    for source, [found] in zip(SOURCES, search(model, SOURCES, beam_size=1), strict=True):
        tokens, total, has_ended = [], 0.0, False
        while not has_ended and len(tokens) < 2 * len(source) + 20:
            log_p = next_log_probabilities(model, source, tokens)
            subword = max((EOS_ID, *range(NUM_SPECIAL_IDS, VOCAB_SIZE)), key=log_p.__getitem__)
            total += log_p[subword]
            has_ended = subword == EOS_ID
            tokens += [] if has_ended else [subword]
        assert_same([found], [Hypothesis(tokens, total / penalty(len(tokens) + has_ended, 0.6), total)])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    beam_size=st.integers(2, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    end_bias=st.sampled_from([-0.5, 0.0, 0.3, 0.6]),
)
def test_stopping_early_and_dropping_sources_change_nothing(seed, beam_size, alpha, end_bias) -> None:
    model = build_model(seed, end_bias=end_bias)
    found = search(
        model,
        SOURCES,
        beam_size=beam_size,
        length_penalty=alpha,
        max_length_factor=1,
        max_length_extra=3,
        num_best=2,
    )
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = plain_beam_search(model, source, beam_size, alpha, len(source) + 3)
        assert_same(hypotheses, expected[:2])


@pytest.mark.parametrize("seed", [2, 11, 31])
def test_a_much_longer_hypothesis_can_still_win(seed: int) -> None:
    """Seeds where a bound with the penalty of the next length, instead of the largest, stops too early."""
    model, max_length = build_model(seed, end_bias=0.3), 12
    limit = {"max_length_factor": 0, "max_length_extra": max_length}
    found = search(model, SOURCES, beam_size=3, length_penalty=2.0, **limit)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same(hypotheses, plain_beam_search(model, source, 3, 2.0, max_length)[:1])


def test_the_early_stop_does_stop_early(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows_decoded = build_model(end_bias=1.0), []
    decode_next = Transformer.decode_next

    def counting(self: Transformer, token_B: Tensor, state: object) -> Tensor:
        rows_decoded.append(len(token_B))
        return decode_next(self, token_B, state)

    monkeypatch.setattr(Transformer, "decode_next", counting)
    search(model, SOURCES, beam_size=3, length_penalty=0.0, max_length_extra=200)
    assert len(rows_decoded) < 50
    assert rows_decoded[0] == len(SOURCES), "the first step has one hypothesis per source"
    assert max(rows_decoded) <= 3 * len(SOURCES)
    assert rows_decoded[-1] < max(rows_decoded), "finished sources leave the batch"


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_sentence_does_not_depend_on_its_neighbours(beam_size: int) -> None:
    model = build_model(5, end_bias=0.2)
    together = search(model, SOURCES, beam_size=beam_size)
    backwards = search(model, SOURCES[::-1], beam_size=beam_size)[::-1]
    for source, one, other in zip(SOURCES, together, backwards, strict=True):
        assert_same(one, other)
        assert_same(one, search(model, [source], beam_size=beam_size)[0])


def test_no_hypothesis_beats_an_exhaustive_beam_without_length_penalty() -> None:
    """A wider beam may be worse in general; only one that holds every hypothesis cannot be."""
    model = build_model(8)
    limit = {"length_penalty": 0.0, "max_length_factor": 0, "max_length_extra": 4}
    exhaustive = search(model, SOURCES, beam_size=500, **limit)
    for beam_size in (2, 3, 8):
        for [best], [found] in zip(exhaustive, search(model, SOURCES, beam_size=beam_size, **limit), strict=True):
            assert best.score >= found.score - 1e-9 or len(found.tokens) == 4, "only a forced end may have no rival"


def test_hypotheses_come_best_first_and_score_is_the_penalised_log_probability() -> None:
    for hypotheses in search(build_model(2, end_bias=0.5), SOURCES, beam_size=5, num_best=5, length_penalty=0.6):
        assert hypotheses == sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses) > 1
        for hypothesis in hypotheses:
            length = len(hypothesis.tokens) + 1
            assert hypothesis.score == pytest.approx(hypothesis.log_probability / penalty(length, 0.6))


def test_special_and_unused_ids_are_never_generated() -> None:
    model = build_model(1, vocab_size=16)
    with torch.no_grad():
        for forbidden in (PAD_ID, BOS_ID, 3, 11, 15):
            model.decoder.norm.bias += model.target_embedding[forbidden]
    for beam_size in (1, 4):
        for [found] in search(model, SOURCES, num_subwords=11, beam_size=beam_size):
            assert set(found.tokens) <= set(range(NUM_SPECIAL_IDS, 11))


def test_without_any_end_the_limit_ends_it() -> None:
    model = build_model(1, end_bias=-50.0)
    for beam_size in (1, 3):
        found = search(model, SOURCES, beam_size=beam_size, max_length_factor=1.5, max_length_extra=2)
        assert [len(hypotheses[0].tokens) for hypotheses in found] == [len(s) * 3 // 2 + 2 for s in SOURCES]
        assert all(math.isfinite(hypotheses[0].score) for hypotheses in found)


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_an_absolute_limit_cuts_what_the_source_would_allow(sampling: Sampling | None) -> None:
    backend = TorchBackend(build_model(1, end_bias=-50.0), VOCAB_SIZE)
    chosen = SearchSettings(max_length_factor=0, max_length_extra=9, max_subwords=4, sampling=sampling)
    segments = [SourceSegment(source[:-1]) for source in SOURCES]
    [(_, found)] = backend.search_batches([segments], chosen)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [4] * len(SOURCES)
    assert SearchSettings(max_length_factor=0, max_length_extra=3, max_subwords=4).max_length(9) == 3


def test_a_diverged_model_ends_too() -> None:
    model = build_model()
    with torch.no_grad():
        model.decoder.norm.bias += math.nan
    assert all(math.isnan(hypotheses[0].score) for hypotheses in search(model, SOURCES))


def test_decoding_with_cache_gives_the_logits_of_forward() -> None:
    model = build_model()
    batch, targets = to_batch(SOURCES), torch.tensor([[BOS_ID, 4, 5, 6], [BOS_ID, 7, 7, 4]] * 2)
    with torch.no_grad():
        expected = linear(model(*batch, targets), model.target_embedding)
        state = model.start_decoding(*batch)
        for position in range(targets.shape[1]):
            logits = model.decode_next(targets[:, position], state)
            torch.testing.assert_close(logits, expected[:, position], atol=1e-5, rtol=0)


@settings(max_examples=50, deadline=None)
@given(columns=st.integers(1, 700), num_best=st.integers(1, 9), seed=st.integers(0, 99))
def test_best_columns_is_topk(columns: int, num_best: int, seed: int) -> None:
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(seed))
    num_best = min(num_best, columns)
    for mine, theirs in zip(best_columns(x, num_best), x.topk(num_best), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam_size": 0},
        {"num_best": 5},
        {"num_best": 0},
        {"length_penalty": -0.1},
        {"length_penalty": math.nan},
        {"max_length_extra": 0},
        {"max_subwords": 0},
        {"forbidden": ((),)},
        {"num_best": 1_001, "sampling": Sampling()},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        SearchSettings(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0}, {"temperature": math.inf}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}],
)
def test_sampling_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)
