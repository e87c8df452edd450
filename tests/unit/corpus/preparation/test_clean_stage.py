"""Tests of block files: ranges of buckets give back their pairs."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.preparation.clean_stage import NUM_BUCKETS, read_slice, write_block_file

LINES = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=5)
BUCKETS = st.sampled_from([0, 1, 2, 100, NUM_BUCKETS - 2, NUM_BUCKETS - 1])


@given(
    pairs=st.lists(st.tuples(LINES, LINES, BUCKETS), max_size=12),
    inner_bounds=st.lists(st.integers(0, NUM_BUCKETS), max_size=4),
)
def test_slices_hold_the_pairs_of_their_buckets(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str, int]], inner_bounds: list[int]
) -> None:
    path = tmp_path_factory.mktemp("block") / "0.pairs"
    numbers = 7 + np.arange(len(pairs))
    buckets = np.array([bucket for _, _, bucket in pairs], np.int64)
    num_bytes = write_block_file(path, [p[0] for p in pairs], [p[1] for p in pairs], numbers, buckets)
    assert num_bytes == sum(len(f"{source}\n{target}\n".encode()) for source, target, _ in pairs)
    for first, end in pairwise([0, *sorted(inner_bounds), NUM_BUCKETS]):
        part = read_slice(path, first, end)
        # Sorting is stable: within a bucket, pairs keep their order, so the first copy of a pair stays the first.
        expected = sorted(
            ((bucket, i) for i, (_, _, bucket) in enumerate(pairs) if first <= bucket < end), key=lambda pair: pair[0]
        )
        assert [(s, t, n) for s, t, n in zip(part.sources, part.targets, part.numbers.tolist(), strict=True)] == [
            (pairs[i][0], pairs[i][1], 7 + i) for _, i in expected
        ]


def test_writing_leaves_the_file_only(tmp_path: Path) -> None:
    write_block_file(tmp_path / "0.pairs", ["a"], ["b"], np.array([1]), np.array([5]))
    assert [path.name for path in tmp_path.iterdir()] == ["0.pairs"]
