"""Tests of the shuffle over the whole corpus: a permutation decided by the seed, unrelated to the input order."""

from pathlib import Path

import numpy as np
import pytest
from corpora import TextPair, decode_split, make_pairs, prepare_pairs, write_pairs

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import TokenizerSettings

NUM_PAIRS = 1200
BY_PLACE = {"cleaning": "none"}
"""Without the filter for duplicates, the bucket of a pair follows from its place and not from its text."""

pytestmark = pytest.mark.usefixtures("small_shards")


def shuffle(folder: Path, pairs: list[TextPair], seed: int = 1, **changes: object) -> PreparedCorpus:
    tokenizer = TokenizerSettings(vocab_size=80, sample_lines=200)
    return prepare_pairs(folder, pairs, tokenizer=tokenizer, held_out=1, seed=seed, **changes)


def input_numbers(corpus: PreparedCorpus) -> np.ndarray:
    """Where the pairs of train stood in the input, in their new order."""
    return np.array([int(source.rpartition(" ")[2]) for source, _ in decode_split(corpus, "train")])


@pytest.fixture(scope="module")
def all_pairs() -> list[TextPair]:
    return make_pairs(NUM_PAIRS)


@pytest.mark.parametrize("changes", [{}, BY_PLACE])
def test_it_is_a_permutation_without_memory_of_the_input(
    tmp_path: Path, all_pairs: list[TextPair], changes: dict[str, object]
) -> None:
    corpus = shuffle(tmp_path, all_pairs, **changes)
    numbers = input_numbers(corpus)
    kept_apart = {int(corpus.text(name)[0][0].rpartition(" ")[2]) for name in ("dev", "test")}  # type: ignore[arg-type]
    assert sorted(numbers) == sorted(set(range(NUM_PAIRS)) - kept_apart)
    # In a random order, the rank correlation has a standard deviation of 1 / sqrt(number of pairs).
    assert abs(np.corrcoef(numbers, np.arange(len(numbers)))[0, 1]) < 5 / np.sqrt(NUM_PAIRS)
    # Neighbours in the input are far apart: their mean distance is a third of all in a random order.
    places = np.argsort(numbers)
    assert np.abs(np.diff(places)).mean() == pytest.approx(NUM_PAIRS / 3, rel=0.15)


@pytest.mark.parametrize("changes", [{}, BY_PLACE])
def test_every_shard_is_drawn_from_the_whole_input(
    tmp_path: Path, all_pairs: list[TextPair], changes: dict[str, object]
) -> None:
    corpus = shuffle(tmp_path, all_pairs, **changes)
    shards = corpus.manifest.splits["train"].shards.shards
    assert len(shards) > 15
    numbers = input_numbers(corpus)
    sizes = [shard.num_pairs for shard in shards]
    for part in np.split(numbers, np.cumsum(sizes)[:-1]):
        is_late = part >= NUM_PAIRS / 2
        # Each pair is late with chance 1/2: five standard deviations, so that no seed is unlucky.
        assert abs(is_late.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(part))
        assert abs(np.corrcoef(part, np.arange(len(part)))[0, 1]) < 5 / np.sqrt(len(part))
    assert np.std(sizes) < 5 * np.sqrt(np.mean(sizes))


def test_the_seed_decides_the_order(tmp_path: Path, all_pairs: list[TextPair]) -> None:
    first, again, other = (
        input_numbers(shuffle(tmp_path / name, all_pairs[:300], seed))
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    shared = np.intersect1d(first, other)
    ranks = [np.argsort(numbers)[np.searchsorted(np.sort(numbers), shared)] for numbers in (first, other)]
    assert abs(np.corrcoef(*ranks)[0, 1]) < 5 / np.sqrt(len(shared))


def test_copies_that_are_kept_do_not_stay_together(tmp_path: Path) -> None:
    dev, test = (write_pairs(tmp_path, name, [(name, name)]) for name in ("dev", "test"))
    given = {"dev": ([dev[0]], [dev[1]]), "test": ([test[0]], [test[1]])}
    corpus = shuffle(tmp_path, [("ab cd", "AB CD")] * 300 + make_pairs(300), cleaning="none", **given)
    is_copy = np.array([source == "ab cd" for source, _ in decode_split(corpus, "train")])
    assert is_copy.sum() == 300
    # In a random order every second pair follows one of the other kind.
    assert (is_copy[1:] != is_copy[:-1]).sum() > 240
