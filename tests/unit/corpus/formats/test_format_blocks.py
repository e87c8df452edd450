"""Where blocks are cut, and how bad lines are counted."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.formats import blocks
from dragoman.corpus.formats.blocks import BadLines, Block, cut_blocks
from dragoman.run.errors import UserError

PAIRS = st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=30)


def block_of(first_number: int, pairs: list[tuple[str, str]]) -> Block:
    return Block(first_number, [source for source, _ in pairs], [target for _, target in pairs])


@given(PAIRS, st.lists(st.integers(0, 30), max_size=4), st.integers(1, 40))
def test_cuts_depend_on_the_text_and_not_on_the_runs(
    pairs: list[tuple[str, str]], cuts: list[int], block_size: int
) -> None:
    bounds = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    runs = [block_of(start + 1, pairs[start:stop]) for start, stop in pairwise(bounds)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_size)
        in_runs, in_one = list(cut_blocks(runs)), list(cut_blocks([block_of(1, pairs)]))
    assert in_runs == in_one
    assert [pair for block in in_one for pair in zip(block.sources, block.targets, strict=True)] == pairs
    sizes = [[len(pair[0] + pair[1]) + 2 for pair in zip(b.sources, b.targets, strict=True)] for b in in_one]
    assert all(sum(size[:-1]) < block_size for size in sizes)
    assert all(sum(size) >= block_size for size in sizes[:-1])


def test_gap_in_the_numbers_ends_a_block() -> None:
    runs = [
        Block(1, ["a"], ["A"]),
        Block(2, ["b"], ["B"]),
        Block(4, ["d"], ["D"]),
        Block(6, [], []),
        Block(9, [], []),
    ]
    assert list(cut_blocks(runs)) == [Block(1, ["a", "b"], ["A", "B"]), Block(4, ["d"], ["D"])]


def test_blank_lines_fill_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 20)
    assert [len(block.sources) for block in cut_blocks([Block(1, [""] * 25, [""] * 25)])] == [10, 10, 5]


def test_first_bad_line_is_an_error_if_none_is_allowed() -> None:
    with pytest.raises(UserError) as failure:
        BadLines(0).add(Path("a.tsv"), 12, "has 1 column", "correct it")
    assert str(failure.value) == (
        "a.tsv, line 12 has 1 column; correct it, or skip up to N bad lines with --skip-bad-lines N."
    )


def test_bad_lines_are_kept_until_there_are_too_many() -> None:
    bad_lines = BadLines(2)
    bad_lines.add(Path("a.tsv"), 12, "has 1 column")
    bad_lines.add(Path("a.tmx"), 3, "has no de", what="unit")
    assert [record.message for record in bad_lines.records] == [
        "a.tsv, line 12: has 1 column.",
        "a.tmx, unit 3: has no de.",
    ]
    with pytest.raises(UserError) as failure:
        bad_lines.add(Path("b.tsv"), 7, "has 1 column")
    assert "b.tsv, line 7 has 1 column, after 2 bad lines, the most that --skip-bad-lines allows" in str(failure.value)
