import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.serving.cut_text import cut_text
from dragoman.translation.translator import Translation


def shout(text: str) -> str:
    cut = cut_text(text)
    return cut.fill([Translation(line.upper(), 0.0) for line in cut.lines])


@given(st.text())
def test_text_filled_with_its_own_lines_is_the_same_but_for_control_characters(text):
    cut = cut_text(text)
    assert len(cut.fill([Translation(line, 0.0) for line in cut.lines])) == len(text)
    assert not any(line != line.strip() or "\n" in line for line in cut.lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\n  b \r\nc", "A\n\n  B \r\nC"),
        ("\n" * 5_000, "\n" * 5_000),
        ("", ""),
        ("😀 !\n123\n---", "😀 !\n123\n---"),
        ("שלום\u2028a\x0bb\tc", "שלום\u2028A\x0bB\tC".replace("\t", " ")),
        ("a\x00b", "A B"),
    ],
)
def test_only_lines_with_letters_are_translated_and_all_else_is_kept(text, expected):
    assert shout(text) == expected


def test_lines_know_their_number_in_the_text():
    cut = cut_text("a\n\n1\nb")
    assert (cut.line_numbers, cut.num_lines) == ([0, 3], 4)
