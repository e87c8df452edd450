"""Forced beginnings, forbidden and required subwords, against a search through all outputs."""

import itertools
from functools import lru_cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_decoders import SOURCES, VOCAB_SIZE, WORDS, all_log_probabilities, build_model, penalty

from dragoman.corpus.tokenizer import EOS_ID, UNK_ID
from dragoman.run.errors import UsageError
from dragoman.translation.possible_outputs import contains, has_forbidden
from dragoman.translation.search import Hypothesis, Sampling, SearchSettings, SourceSegment
from dragoman.translation.torch_search.required_subwords import RequiredSubwords
from dragoman.translation.torch_search.torch_backend import TorchBackend

LIMIT = 4
ALPHA = 0.6
EVERYTHING = 400
"""Size of a beam that holds all outputs within the limit."""

words = st.integers(WORDS[0], WORDS[-1])
sequences = st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)
seeds = st.integers(0, 5)


@lru_cache
def model(seed: int):
    return build_model(seed, end_bias=0.3)


@lru_cache
def log_probabilities(seed: int, index: int) -> dict:
    return all_log_probabilities([model(seed)], SOURCES[index], LIMIT)


def search(seed: int, segments: list[SourceSegment], **options) -> list[list[Hypothesis]]:
    limits = {"max_length_factor": 0, "max_length_extra": LIMIT, "length_penalty": ALPHA}
    [(_, found)] = TorchBackend(model(seed), VOCAB_SIZE).search_batches([segments], SearchSettings(**limits, **options))
    return found


def segment(index: int, **options) -> SourceSegment:
    return SourceSegment(SOURCES[index][:-1], number=index, **options)


def is_allowed(tokens, wanted: SourceSegment, forbidden) -> bool:
    return (
        tuple(tokens[: len(wanted.prefix)]) == wanted.prefix
        and all(contains(tokens, each) for each in wanted.required)
        and not any(contains(tokens, each) for each in forbidden)
    )


def best_of_all(seed: int, wanted: SourceSegment, forbidden) -> Hypothesis | None:
    """The best output that ends within the limit; without one, the best that is cut there."""
    table = log_probabilities(seed, wanted.number)
    for lengths, end in ((range(LIMIT), (EOS_ID,)), ((LIMIT,), ())):
        outputs = [tokens for length in lengths for tokens in itertools.product(WORDS, repeat=length)]
        found = []
        for tokens in outputs:
            if is_allowed(tokens, wanted, forbidden):
                whole = (*tokens, *end)
                total = sum(table[whole[:place]][whole[place]] for place in range(len(whole)))
                found.append(Hypothesis(list(tokens), total / penalty(len(whole), ALPHA), total))
        if found:
            return max(found, key=lambda each: each.score)
    return None


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 3), sequences, st.lists(words, max_size=2).map(tuple), sequences)
def test_a_beam_that_holds_all_outputs_finds_the_best_allowed_one(seed, index, required, prefix, forbidden) -> None:
    wanted = segment(index, prefix=prefix, required=required)
    assume(not any(contains(each, bad) for each in (prefix, *required) for bad in forbidden))
    expected = best_of_all(seed, wanted, forbidden)
    [[found]] = search(seed, [wanted], beam_size=EVERYTHING, forbidden=forbidden)
    assert tuple(found.tokens[: len(prefix)]) == prefix
    assert not any(contains(found.tokens, each) for each in forbidden)
    if expected is not None:
        assert found.tokens == expected.tokens
        assert found.score == pytest.approx(expected.score)
        assert found.log_probability == pytest.approx(expected.log_probability)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 3), sequences)
def test_sequences_forbidden_where_a_word_begins_are_allowed_elsewhere(seed, index, starts) -> None:
    """The model's last word ends words, as a quotation mark does."""
    options = {"forbidden_starts": starts, "word_ends": (WORDS[-1],)}
    allowed = {
        tokens: row[EOS_ID]
        for tokens, row in log_probabilities(seed, index).items()
        if not any(contains(("start", *tokens), (end, *each)) for end in ("start", WORDS[-1]) for each in starts)
    }
    [[found]] = search(seed, [segment(index)], beam_size=EVERYTHING, **options)
    assert tuple(found.tokens) in allowed or len(found.tokens) == LIMIT
    drawn = search(seed, [segment(index)], sampling=Sampling(temperature=3.0), num_best=20, **options)[0]
    for each in (found, *drawn):
        assert not has_forbidden(each.tokens, SearchSettings(**options))


@settings(max_examples=40, deadline=None)
@given(seeds, st.lists(st.tuples(sequences, st.lists(words, max_size=2).map(tuple)), min_size=4, max_size=4))
def test_a_narrow_beam_finds_what_is_required_wherever_it_fits(seed, wishes) -> None:
    wanted = [segment(index, required=required, prefix=prefix) for index, (required, prefix) in enumerate(wishes)]
    for beam_size in (1, 2):
        for each, [found] in zip(wanted, search(seed, wanted, beam_size=beam_size), strict=True):
            assert tuple(found.tokens[: len(each.prefix)]) == each.prefix
            if any(is_allowed(tokens, each, ()) for tokens in itertools.product(WORDS, repeat=LIMIT)):
                assert all(contains(found.tokens, part) for part in each.required)


@settings(max_examples=40, deadline=None)
@given(st.lists(words, max_size=3), sequences)
def test_the_subwords_still_needed_are_those_of_the_shortest_completion(tokens, patterns) -> None:
    rules = RequiredSubwords(patterns)
    progress = rules.start()
    for token in tokens:
        progress = rules.advance(progress, token)
    assume(rules.need(progress) <= 5)  # longer completions take too long to list
    lengths = (
        length
        for length in itertools.count()
        for more in itertools.product(WORDS, repeat=length)
        if all(contains([*tokens, *more], pattern) for pattern in patterns)
    )
    assert rules.need(progress) == next(lengths)


def test_many_required_sequences_are_all_found() -> None:
    required = tuple((first, second) for first in WORDS for second in WORDS if first != second)
    wanted = segment(2, required=required)
    options = SearchSettings(beam_size=2, max_length_factor=0, max_length_extra=2 * len(required))
    [(_, [[found]])] = TorchBackend(model(0), VOCAB_SIZE).search_batches([[wanted]], options)
    assert all(contains(found.tokens, part) for part in required)


def test_what_does_not_fit_is_left_out_beginning_with_the_last() -> None:
    [[found]] = search(0, [segment(0, required=((4, 4), (5, 5), (6, 6)))], beam_size=3)
    assert contains(found.tokens, (4, 4))
    assert contains(found.tokens, (5, 5))


def test_neighbours_with_constraints_change_nothing() -> None:
    plain = [segment(index) for index in range(4)]
    alone = search(1, plain, beam_size=2)
    mixed = [segment(0, prefix=(7, 7)), plain[1], segment(2, required=((4, 6),)), plain[3]]
    together = search(1, mixed, beam_size=2)
    for index in (1, 3):
        assert together[index][0].tokens == alone[index][0].tokens
    for index in (0, 2):
        assert together[index][0].tokens == search(1, [mixed[index]], beam_size=2)[0][0].tokens


def test_a_prefix_longer_than_the_limit_is_kept() -> None:
    for sampling in (None, Sampling()):
        prefix = (4, 5, 6, 7, 4, 5)
        [[found]] = search(0, [segment(0, prefix=prefix)], beam_size=2, sampling=sampling)
        assert tuple(found.tokens[: len(prefix)]) == prefix


def test_n_best_hypotheses_all_obey() -> None:
    wanted = segment(2, prefix=(5,), required=((6,), (7,)))
    [found] = search(3, [wanted], beam_size=20, num_best=5, forbidden=((4,),))
    assert len(found) > 1
    assert len({tuple(each.tokens) for each in found}) == len(found)
    assert found == sorted(found, key=lambda each: -each.score)
    assert all(is_allowed(each.tokens, wanted, ((4,),)) for each in found)


def test_an_output_exists_even_if_all_words_are_forbidden() -> None:
    [[found]] = search(0, [segment(0)], beam_size=3, forbidden=tuple((word,) for word in WORDS))
    assert found.tokens == []
    everything_after_4 = tuple((4, word) for word in WORDS)
    [[found]] = search(0, [segment(0, required=((5,),), prefix=(4,))], beam_size=3, forbidden=everything_after_4)
    assert found.tokens == [4], "the beginning is kept, although nothing may follow it and something should"


@pytest.mark.parametrize("wish", [{"prefix": (4, 5, 6)}, {"required": ((7,), (4, 5))}])
def test_what_is_wanted_and_forbidden_is_refused(wish: dict) -> None:
    with pytest.raises(UsageError, match="also forbidden"):
        search(0, [segment(3, **wish)], forbidden=((4, 5),))


@pytest.mark.parametrize("wish", [{"prefix": (4, UNK_ID)}, {"required": ((UNK_ID,),)}])
def test_what_the_model_cannot_write_is_refused(wish: dict) -> None:
    with pytest.raises(UsageError, match=r"Line 3: .* lacks one of the characters"):
        search(0, [segment(3, **wish)])
