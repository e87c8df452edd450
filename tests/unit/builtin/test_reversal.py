"""The reversal task: right answers, distinct and disjoint sequences, the same for the same seed."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.builtin.reversal import MIN_LENGTH, write_reversal_corpus
from dragoman.run.errors import UsageError

SPLITS = ("train", "dev", "test")


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1_000), max_length=st.integers(4, 30), num_train=st.integers(0, 200))
def test_targets_are_reversed_sources(
    tmp_path_factory: pytest.TempPathFactory, seed: int, max_length: int, num_train: int
) -> None:
    corpus = write_reversal_corpus(tmp_path_factory.mktemp("reversal"), num_train, 10, 10, seed, max_length)
    for name, size in zip(SPLITS, (num_train, 10, 10), strict=True):
        sources, targets = map(lines, getattr(corpus, name))
        assert len(sources) == size
        assert [source[::-1] for source in sources] == targets
        assert all(MIN_LENGTH <= len(source.split(" ")) <= max_length for source in sources)


def test_sequences_are_distinct_over_all_splits(tmp_path: Path) -> None:
    write_reversal_corpus(tmp_path, num_train=2_000, num_dev=100, num_test=100, max_length=4)
    sequences = [line for name in SPLITS for line in lines(tmp_path / f"{name}.source")]
    assert len(set(sequences)) == len(sequences) == 2_200


def test_seed_decides(tmp_path: Path) -> None:
    sources = [
        lines(write_reversal_corpus(tmp_path / str(run), 50, 5, 5, seed=seed).train[0])
        for run, seed in enumerate((1, 1, 2))
    ]
    assert sources[0] == sources[1] != sources[2]


@pytest.mark.parametrize("max_length", [1, 2])
def test_impossible_sizes_are_refused(tmp_path: Path, max_length: int) -> None:
    with pytest.raises(UsageError, match="max_length"):
        write_reversal_corpus(tmp_path, max_length=max_length)
