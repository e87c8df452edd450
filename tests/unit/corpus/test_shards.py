"""Tests of shards: reading gives what was written, and errors name damaged files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.corpus.shards import (
    IdDtype,
    ParallelIds,
    Shard,
    Shards,
    StoredFile,
    WrittenSide,
    id_dtype,
    pack_ids,
    write_shard,
)
from dragoman.run.errors import UserError

SENTENCES = st.lists(st.integers(0, 99), max_size=5)
PAIRS = [([4, 5, 6], [7]), ([8], [9, 10]), ([11, 12], [13, 14, 15])]


IdPairs = list[tuple[list[int], list[int]]]


def write(folder: Path, index: int, pairs: IdPairs, dtype: IdDtype = "<u2") -> tuple[Shard, WrittenSide, WrittenSide]:
    sources, targets = (pack_ids([pair[side] for pair in pairs], dtype) for side in (0, 1))
    return write_shard(folder, index, sources, targets, dtype)


def write_shards(folder: Path, pairs: IdPairs, pairs_per_shard: int = 100, dtype: IdDtype = "<u2") -> Shards:
    parts = [pairs[begin : begin + pairs_per_shard] for begin in range(0, len(pairs), pairs_per_shard)]
    shards = [write(folder, index, part, dtype)[0] for index, part in enumerate(parts)]
    return Shards(dtype=dtype, shards=tuple(shards))


def open_again(folder: Path, shards: Shards) -> ParallelIds:
    return ParallelIds.open(folder, Shards.model_validate_json(shards.model_dump_json()))


@settings(max_examples=50)
@given(
    pairs=st.lists(st.tuples(SENTENCES, SENTENCES), max_size=12),
    pairs_per_shard=st.integers(1, 5),
    dtype=st.sampled_from(["<u2", "<u4"]),
    data=st.data(),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: IdPairs,
    pairs_per_shard: int,
    dtype: IdDtype,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("split")
    shards = write_shards(folder, pairs, pairs_per_shard, dtype)
    ids = open_again(folder, shards)
    assert ids.num_pairs == len(ids) == shards.num_pairs == len(pairs)
    assert [(ids.source(i).tolist(), ids.target(i).tolist()) for i in range(len(pairs))] == pairs
    assert shards.num_source_tokens == sum(len(source) for source, _ in pairs)
    assert shards.num_target_tokens == sum(len(target) for _, target in pairs)
    indices = data.draw(st.lists(st.sampled_from(range(len(pairs))), max_size=8)) if pairs else []
    source_lengths, target_lengths = ids.lengths(np.array(indices, np.int64))
    assert source_lengths.tolist() == [len(pairs[index][0]) for index in indices]
    assert target_lengths.tolist() == [len(pairs[index][1]) for index in indices]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_take_two_bytes_where_the_vocabulary_allows(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    largest_id = vocab_size - 1
    ids = open_again(tmp_path, write_shards(tmp_path, [([largest_id], [0])], dtype=id_dtype(vocab_size)))
    assert ids.source(0).dtype == dtype
    assert ids.source(0).tolist() == [largest_id]


def test_id_that_does_not_fit_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OverflowError):
        write_shards(tmp_path, [([70_000], [0])])
    assert list(tmp_path.iterdir()) == []


def test_files_are_little_endian_and_flat(tmp_path: Path) -> None:
    write_shards(tmp_path, PAIRS)
    assert (tmp_path / "00000.source.ids").read_bytes() == np.array([4, 5, 6, 8, 11, 12], dtype="<u2").tobytes()
    assert (tmp_path / "00000.source.offsets").read_bytes() == np.array([0, 3, 4, 6], dtype="<i8").tobytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        f"00000.{side}.{kind}" for side in ("source", "target") for kind in ("ids", "offsets")
    }


def test_an_empty_shard_can_be_read(tmp_path: Path) -> None:
    shards = Shards(dtype="<u2", shards=(write(tmp_path, 0, [])[0],))
    ids = open_again(tmp_path, shards)
    assert len(ids) == len(ids.lengths(np.zeros(0, np.int64))[0]) == shards.num_pairs == 0


def test_sentences_are_views_into_the_file(tmp_path: Path) -> None:
    ids = open_again(tmp_path, write_shards(tmp_path, PAIRS))
    assert isinstance(ids.source(0), np.memmap)
    assert not ids.source(0).flags.owndata
    assert not ids.source(0).flags.writeable


def test_opening_maps_nothing_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path, PAIRS, pairs_per_shard=1)
    mapped: list[Path] = []
    map_file = np.memmap
    monkeypatch.setattr(np, "memmap", lambda path, **options: (mapped.append(path), map_file(path, **options))[1])
    ids = open_again(tmp_path, shards)
    assert mapped == []
    ids.source(1)
    assert {path.name for path in mapped} == {"00001.source.ids", "00001.source.offsets"}


@pytest.mark.parametrize("index", [-1, 3])
def test_index_outside_is_an_error(tmp_path: Path, index: int) -> None:
    ids = open_again(tmp_path, write_shards(tmp_path, PAIRS))
    with pytest.raises(IndexError):
        ids.source(index)
    with pytest.raises(IndexError):
        ids.target(index)
    with pytest.raises(IndexError):
        ids.lengths(np.array([0, index]))


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", ["ids", "offsets"])
def test_missing_and_cut_off_files_are_named(tmp_path: Path, side: str, kind: str) -> None:
    shards = write_shards(tmp_path, PAIRS, pairs_per_shard=2)
    path = tmp_path / f"00001.{side}.{kind}"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"00001\.{side}\.{kind} has \d+ bytes instead of \d+"):
        ParallelIds.open(tmp_path, shards)
    path.unlink()
    with pytest.raises(UserError, match=rf"00001\.{side}\.{kind} is missing"):
        ParallelIds.open(tmp_path, shards)


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_written_shard_is_measured(tmp_path: Path, dtype: IdDtype) -> None:
    shard, source, target = write(tmp_path, 3, [*PAIRS, ([], [7, 7])], dtype)
    assert (shard.num_pairs, shard.num_source_tokens, shard.num_target_tokens) == (4, 6, 8)
    assert source.lengths.tolist() == [3, 1, 2, 0]
    assert target.lengths.tolist() == [1, 2, 3, 2]
    assert {number: count for number, count in enumerate(target.id_counts.tolist()) if count} == {
        7: 3, 9: 1, 10: 1, 13: 1, 14: 1, 15: 1,
    }  # fmt: skip
    stored = {path.name: StoredFile.describe(path) for path in tmp_path.iterdir()}
    assert source.files | target.files == stored
