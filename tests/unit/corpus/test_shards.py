"""What is written to shards is what is read from them, and damage is named."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.shards import ParallelIds, Shards, write_split
from dragoman.run.errors import UserError

SENTENCES = st.lists(st.integers(0, 99), max_size=5)
PAIRS = [([4, 5, 6], [7]), ([8], [9, 10]), ([11, 12], [13, 14, 15])]


def open_again(folder: Path, shards: Shards) -> ParallelIds:
    return ParallelIds.open(folder, Shards.model_validate_json(shards.model_dump_json()))


@given(st.lists(st.tuples(SENTENCES, SENTENCES), max_size=12), st.integers(1, 5), st.sampled_from([100, 70_000]))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[tuple[list[int], list[int]]],
    pairs_per_shard: int,
    vocab_size: int,
) -> None:
    folder = tmp_path_factory.mktemp("split")
    shards = write_split(folder, iter(pairs), vocab_size, pairs_per_shard)
    ids = open_again(folder, shards)
    assert ids.num_pairs == len(ids) == shards.num_pairs == len(pairs)
    assert [(ids.source(i).tolist(), ids.target(i).tolist()) for i in range(len(pairs))] == pairs
    assert ids.source_lengths.tolist() == [len(source) for source, _ in pairs]
    assert ids.target_lengths.tolist() == [len(target) for _, target in pairs]
    assert shards.num_source_tokens == sum(len(source) for source, _ in pairs)
    assert len(shards.shards) == -(-len(pairs) // pairs_per_shard)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_take_two_bytes_where_the_vocabulary_allows(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    largest_id = vocab_size - 1
    ids = open_again(tmp_path, write_split(tmp_path, [([largest_id], [0])], vocab_size))
    assert ids.source(0).dtype == dtype
    assert ids.source(0).tolist() == [largest_id]


def test_id_outside_the_vocabulary_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OverflowError):
        write_split(tmp_path, [([70_000], [0])], vocab_size=100)
    assert list(tmp_path.iterdir()) == []


def test_files_are_little_endian_and_flat(tmp_path: Path) -> None:
    write_split(tmp_path, PAIRS, vocab_size=100)
    assert (tmp_path / "00000.source.ids").read_bytes() == np.array([4, 5, 6, 8, 11, 12], dtype="<u2").tobytes()
    assert (tmp_path / "00000.source.offsets").read_bytes() == np.array([0, 3, 4, 6], dtype="<i8").tobytes()
    assert len(list(tmp_path.iterdir())) == 4


def test_sentences_are_views_into_the_file(tmp_path: Path) -> None:
    ids = open_again(tmp_path, write_split(tmp_path, PAIRS, vocab_size=100))
    assert isinstance(ids.source(0), np.memmap)
    assert not ids.source(0).flags.owndata
    assert not ids.source(0).flags.writeable
    assert ids.source_lengths.dtype == np.int32


def test_buffer_is_flushed_in_the_right_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.corpus.shards.NUM_IDS_BUFFERED", 2)
    ids = open_again(tmp_path, write_split(tmp_path, PAIRS, vocab_size=100))
    assert [(ids.source(i).tolist(), ids.target(i).tolist()) for i in range(3)] == PAIRS


@pytest.mark.parametrize("index", [-1, 3])
def test_index_outside_is_an_error(tmp_path: Path, index: int) -> None:
    ids = open_again(tmp_path, write_split(tmp_path, PAIRS, vocab_size=100))
    with pytest.raises(IndexError):
        ids.source(index)
    with pytest.raises(IndexError):
        ids.target(index)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", ["ids", "offsets"])
def test_missing_and_cut_off_files_are_named(tmp_path: Path, side: str, kind: str) -> None:
    shards = write_split(tmp_path, PAIRS, vocab_size=100, pairs_per_shard=2)
    path = tmp_path / f"00001.{side}.{kind}"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"00001\.{side}\.{kind} has \d+ bytes instead of \d+"):
        ParallelIds.open(tmp_path, shards)
    path.unlink()
    with pytest.raises(UserError, match=rf"00001\.{side}\.{kind} is missing"):
        ParallelIds.open(tmp_path, shards)


def test_failed_writing_leaves_no_half_shard(tmp_path: Path) -> None:
    def failing_pairs() -> Iterator[tuple[list[int], list[int]]]:
        yield PAIRS[0]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_split(tmp_path, failing_pairs(), vocab_size=100)
    assert list(tmp_path.iterdir()) == []
