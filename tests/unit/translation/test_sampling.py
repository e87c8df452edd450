"""Drawn outputs against the true distribution; they depend on seed, line and draw alone."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import SOURCES, VOCAB_SIZE, WORDS, all_log_probabilities, build_model, penalty

from dragoman.corpus.tokenizer import EOS_ID
from dragoman.run.errors import UsageError
from dragoman.translation.search import Hypothesis, Sampling, SearchSettings, SourceSegment
from dragoman.translation.torch_search.sampling import draw
from dragoman.translation.torch_search.torch_backend import TorchBackend

MODEL = build_model(4, end_bias=0.3)
LIMIT = 2


def search(segments: list[SourceSegment], sampling: Sampling, num_workers: int = 1, batch_size: int = 99, **options):
    limits = {"max_length_factor": 0, "max_length_extra": LIMIT} | options
    batches = [segments[begin : begin + batch_size] for begin in range(0, len(segments), batch_size)]
    backend = TorchBackend(MODEL, VOCAB_SIZE, num_workers)
    found = dict(backend.search_batches(batches, SearchSettings(sampling=sampling, **limits)))
    return [hypotheses for index in range(len(batches)) for hypotheses in found[index]]


def tokens_of(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[each.tokens for each in drawn] for drawn in found]


def reshape(log_p: list[float], sampling: Sampling) -> dict[int, float]:
    """The definition: probabilities of what may follow, after temperature, top-k and top-p."""
    possible = {token: math.exp(log_p[token] / sampling.temperature) for token in (EOS_ID, *WORDS)}
    ranked = sorted(possible, key=lambda token: -possible[token])[: sampling.top_k or None]
    total = sum(possible[token] for token in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached < sampling.top_p:
            kept.append(token)
        reached += possible[token] / total
    total = sum(possible[token] for token in kept)
    return {token: possible[token] / total for token in kept}


def true_distribution(source: list[int], sampling: Sampling) -> dict[tuple[int, ...], float]:
    table = all_log_probabilities([MODEL], source, LIMIT)
    found: Counter[tuple[int, ...]] = Counter()
    first = reshape(table[()], sampling)
    found[()] = first.get(EOS_ID, 0.0)
    for word, p in first.items():
        if word != EOS_ID:
            for last, q in reshape(table[word,], sampling).items():
                found[(word,) if last == EOS_ID else (word, last)] += p * q
    return {tokens: p for tokens, p in found.items() if p}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5, seed=2),
        Sampling(temperature=1.7, top_k=3),
        Sampling(top_p=0.7),
        Sampling(top_k=4, top_p=0.8, seed=3),
        Sampling(top_k=1),
    ],
)
def test_outputs_are_drawn_from_the_true_distribution(sampling: Sampling) -> None:
    """The chi-square statistic has mean k and variance 2k; seeds are fixed, so this never fails by chance."""
    num_lines, num_draws = 6, 1000
    segments = [SourceSegment(SOURCES[2][:-1], number=number) for number in range(num_lines)]
    counts = Counter(tuple(each.tokens) for drawn in search(segments, sampling, num_best=num_draws) for each in drawn)
    expected = {tokens: p * num_lines * num_draws for tokens, p in true_distribution(SOURCES[2], sampling).items()}
    assert set(counts) <= set(expected)
    frequent = {tokens: number for tokens, number in expected.items() if number >= 5}
    statistic = sum((counts[tokens] - number) ** 2 / number for tokens, number in frequent.items())
    freedom = max(1, len(frequent) - 1)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_draws_depend_on_seed_line_and_draw_alone() -> None:
    segments = [SourceSegment(SOURCES[number % 4][:-1], number=number) for number in range(12)]
    options = {"num_best": 3, "max_length_extra": 8}
    together = search(segments, Sampling(), **options)
    assert tokens_of(search(segments[::-1], Sampling(), **options)[::-1]) == tokens_of(together)
    assert tokens_of(search(segments, Sampling(), batch_size=5, num_workers=2, **options)) == tokens_of(together)
    fewer = search(segments, Sampling(), batch_size=1, num_best=1, max_length_extra=8)
    assert [drawn[0].tokens for drawn in fewer] == [drawn[0].tokens for drawn in together]
    other = search(segments, Sampling(seed=2), **options)
    assert [each[0].tokens for each in other] != [each[0].tokens for each in together]


def test_draws_and_lines_differ() -> None:
    segments = [SourceSegment(SOURCES[2][:-1], number=number) for number in range(3)]
    found = search(segments, Sampling(temperature=2.0), num_best=4, max_length_extra=12)
    assert len({tuple(each.tokens) for drawn in found for each in drawn}) > 8


def test_scores_are_those_of_the_model_whatever_the_temperature() -> None:
    table = all_log_probabilities([MODEL], SOURCES[0], LIMIT)
    sampling = Sampling(temperature=0.3, top_k=2)
    [found] = search([SourceSegment(SOURCES[0][:-1], number=5)], sampling, num_best=50)
    for each in found:
        whole = [*each.tokens, EOS_ID][:LIMIT]
        total = sum(table[tuple(whole[:place])][whole[place]] for place in range(len(whole)))
        assert each.log_probability == pytest.approx(total)
        assert each.score == pytest.approx(total / penalty(len(whole), 0.6))


def test_beginnings_are_kept_and_forbidden_sequences_never_drawn() -> None:
    segments = [
        SourceSegment(SOURCES[number % 4][:-1], prefix=(7, 4)[: number % 3], number=number) for number in range(9)
    ]
    forbidden = ((5,), (4, 6), (7, 7))
    found = search(segments, Sampling(temperature=3.0), num_best=20, max_length_extra=10, forbidden=forbidden)
    for segment, drawn in zip(segments, found, strict=True):
        for each in drawn:
            assert tuple(each.tokens[: len(segment.prefix)]) == segment.prefix
            assert 5 not in each.tokens
            assert not {(4, 6), (7, 7)} & set(itertools.pairwise(each.tokens))


def test_required_words_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match="beam search"):
        search([SourceSegment([4], required=((5,),))], Sampling())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=60),
    st.integers(0, 2**32 - 1),
    st.integers(0, 70),
    st.floats(0.01, 1.0),
)
def test_only_possible_subwords_are_drawn(logits, random, top_k, top_p) -> None:
    """Half of the subwords are impossible; the largest random number chooses the last possible one, not one of them."""
    logits = [value if index % 2 == 0 else -math.inf for index, value in enumerate(logits)]
    log_p = torch.tensor([logits, logits, logits], dtype=torch.float64).log_softmax(-1)
    numbers = torch.tensor([0, random, 2**32 - 1], dtype=torch.float64) / 2**32
    drawn = draw(log_p, numbers, Sampling(top_k=top_k, top_p=top_p))
    assert all(logits[token] > -math.inf for token in drawn.tolist())


def test_hypotheses_are_in_the_order_drawn() -> None:
    [few] = search([SourceSegment([4, 5], number=1)], Sampling(), num_best=5)
    [many] = search([SourceSegment([4, 5], number=1)], Sampling(), num_best=50)
    assert [each.tokens for each in few] == [each.tokens for each in many[:5]]
