"""Where blocks are cut, how bad lines are counted, and how cut text is put together again."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.formats import blocks
from dragoman.corpus.formats.blocks import BadLines, Block, cut_blocks
from dragoman.corpus.formats.plain import put_together, recognise_pieces
from dragoman.run.errors import UserError

PAIRS = st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=30)
LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20), max_size=8)


def block_of(first_number: int, pairs: list[tuple[str, str]]) -> Block:
    return Block(first_number, [source for source, _ in pairs], [target for _, target in pairs])


@given(PAIRS, st.lists(st.integers(0, 30), max_size=4), st.integers(1, 40))
def test_cuts_depend_on_the_text_and_not_on_the_pieces(
    pairs: list[tuple[str, str]], cuts: list[int], block_size: int
) -> None:
    bounds = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    pieces = [block_of(start + 1, pairs[start:stop]) for start, stop in pairwise(bounds)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_size)
        in_pieces, in_one = list(cut_blocks(pieces)), list(cut_blocks([block_of(1, pairs)]))
    assert in_pieces == in_one
    assert [pair for block in in_one for pair in zip(block.sources, block.targets, strict=True)] == pairs
    sizes = [[len(pair[0] + pair[1]) + 2 for pair in zip(b.sources, b.targets, strict=True)] for b in in_one]
    assert all(sum(size[:-1]) < block_size for size in sizes)
    assert all(sum(size) >= block_size for size in sizes[:-1])


def test_gap_in_the_numbers_ends_a_block() -> None:
    pieces = [
        Block(1, ["a"], ["A"]),
        Block(2, ["b"], ["B"]),
        Block(4, ["d"], ["D"]),
        Block(6, [], []),
        Block(9, [], []),
    ]
    assert list(cut_blocks(pieces)) == [Block(1, ["a", "b"], ["A", "B"]), Block(4, ["d"], ["D"])]


def test_blank_lines_fill_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 20)
    assert [len(block.sources) for block in cut_blocks([Block(1, [""] * 25, [""] * 25)])] == [10, 10, 5]


def test_first_bad_line_is_an_error_if_none_is_allowed() -> None:
    with pytest.raises(UserError) as failure:
        BadLines(0).add(Path("a.tsv"), 12, "has 1 column", "correct it")
    assert str(failure.value) == (
        "a.tsv, line 12 has 1 column; correct it, or continue past it with --skip-bad-lines N."
    )


def test_bad_lines_are_kept_until_there_are_too_many() -> None:
    bad_lines = BadLines(2)
    bad_lines.add(Path("a.tsv"), 12, "has 1 column")
    bad_lines.add(Path("a.tmx"), 3, "has no de", what="unit")
    assert [record.sentence for record in bad_lines.records] == [
        "a.tsv, line 12: has 1 column.",
        "a.tmx, unit 3: has no de.",
    ]
    with pytest.raises(UserError) as failure:
        bad_lines.add(Path("b.tsv"), 7, "has 1 column")
    assert "b.tsv, line 7 has 1 column, and 2 bad lines, as many as were allowed" in str(failure.value)
    assert "--skip-bad-lines" in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "cut", "whole"),
    [
        ("sentencepiece", "▁The ▁to ur", "The tour"),
        ("sentencepiece", "▁ A ▁▁ b", "A  b"),
        ("sentencepiece", "", ""),
        ("subword-nmt", "un@@ related words", "unrelated words"),
        ("subword-nmt", "cut off at the end@@", "cut off at the end"),
        ("subword-nmt", "me@@example.org @@", "me@@example.org "),
        ("none", "▁a b@@ c", "▁a b@@ c"),
    ],
)
def test_pieces_are_put_together(kind: str, cut: str, whole: str) -> None:
    assert put_together(kind, ["", cut, cut]) == ["", whole, whole]  # type: ignore[arg-type]


@given(LINES)
def test_sentencepiece_comes_back_as_it_was(lines: list[str]) -> None:
    lines = [line.replace("▁", "") for line in lines]
    cut = [" ".join("▁" + line.replace(" ", "▁")) for line in lines]
    assert put_together("sentencepiece", cut) == lines


@given(LINES, st.sampled_from(["sentencepiece", "subword-nmt"]))
def test_lines_put_together_at_once_are_as_one_by_one(lines: list[str], kind: str) -> None:
    one_by_one = [put_together(kind, [line])[0] for line in lines]  # type: ignore[arg-type]
    assert put_together(kind, lines) == one_by_one  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["▁a b", "", " ", "▁c"], "sentencepiece"),
        (["▁a b", "c"], "none"),
        (["", " "], "none"),
        ([], "none"),
        (["a@@ b", "c", "d", "e", "f"], "subword-nmt"),
        (["a@@ b", "c", "d", "e", "f", "g"], "none"),
        (["a@@b"], "none"),
    ],
)
def test_pieces_are_recognised(lines: list[str], kind: str) -> None:
    assert recognise_pieces(lines) == kind
