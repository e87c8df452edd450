"""Cuts text into lines to translate and what stays as it is, and puts them together again."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from dragoman.translation.translator import Translation

_LINE_BREAK = re.compile("(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b\ufeff]")

_plain = attrgetter("text")


@dataclass
class CutText:
    """A text in parts, some of which are to be translated."""

    parts: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Indices of the parts to translate."""
    lines: list[str] = field(default_factory=list)
    """The lines to translate, one for each place."""
    writers: list[Callable[[Translation], str]] = field(default_factory=list)
    """For each line what writes its translation in the format of the text."""
    line_numbers: list[int] = field(default_factory=list)
    """The number of each of these lines in the text, counted from 0."""
    num_lines: int = 0
    needs_alignment: bool = False
    """Whether a writer asks which words belong together."""

    def add_line(self, line: str, write: Callable[[Translation], str] = _plain) -> None:
        """Adds a line to translate."""
        self.places.append(len(self.parts))
        self.parts.append("")
        self.lines.append(line)
        self.writers.append(write)

    def fill(self, translations: Sequence[Translation]) -> str:
        """Returns the text with the translations in place of its lines."""
        parts = list(self.parts)
        for place, write, translation in zip(self.places, self.writers, translations, strict=True):
            parts[place] = write(translation)
        return "".join(parts)


def cut_text(text: str) -> CutText:
    """Cuts plain text at its line breaks; breaks, indentation and lines without any letter stay as they are."""
    pieces = _LINE_BREAK.split(text)
    cut = CutText(num_lines=len(pieces) // 2 + 1)
    for index, piece in enumerate(pieces):
        if index % 2 or not has_letter(piece):
            cut.parts.append(piece)
            continue
        begin, line, end = split_ends(piece)
        cut.parts.append(begin)
        cut.add_line(line)
        cut.parts.append(end)
        cut.line_numbers.append(index // 2)
    return cut


def has_letter(text: str) -> bool:
    """Whether there is something to translate."""
    return any(map(str.isalpha, text))


def split_ends(text: str) -> tuple[str, str, str]:
    """Splits off the blanks at both ends, which stay as they are; control characters inside become blanks."""
    clean = _CONTROL.sub(" ", text)
    line = clean.strip()
    begin = clean.index(line)
    return text[:begin], line, text[begin + len(line) :]
