"""Notices about lines of text: the first few of a kind are shown, all are counted."""

import unicodedata
from collections.abc import Callable, Sequence

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.run.units import counted

Say = Callable[[str], None]
_MAX_LINES_SHOWN = 10
_MAX_CHARACTERS_SHOWN = 5
_MAX_WORD_SHOWN = 40
SPLIT_NOTICE = "Lines of several sentences are translated sentence by sentence and joined again."


class FirstNotices:
    """Says the first few notices of one kind at once, and only counts the others."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.num_lines = 0

    @property
    def has_unsaid(self) -> bool:
        """Whether some were only counted."""
        return self.num_lines > _MAX_LINES_SHOWN

    def add(self, message: str) -> None:
        """Adds the notice about one line."""
        self.num_lines += 1
        if not self.has_unsaid:
            self._say(message)


class UnknownCharacters:
    """Characters of some lines that a vocabulary lacks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._first_lines: dict[str, int] = {}
        """Number of the line on which each was first seen."""
        self._num_lines = 0

    def add(self, number: int, line: str, ids: Sequence[int]) -> None:
        """Looks for unknown characters in an encoded line."""
        if unknown := self._tokenizer.unknown_characters(line, ids):
            self._num_lines += 1
            for character in sorted(unknown, key=line.index):
                self._first_lines.setdefault(character, number)

    def describe(self, where: str, consequence: str) -> str | None:
        """Says how many there are on the lines of `where`, with examples and what follows; None without any."""
        if not self._first_lines:
            return None
        shown = list(self._first_lines.items())[:_MAX_CHARACTERS_SHOWN]
        examples = ", ".join(f"{_name(character)} (line {number:,})" for character, number in shown)
        num_more = len(self._first_lines) - len(shown)
        more = f" and {num_more:,} more" if num_more else ""
        return (
            f"{counted(len(self._first_lines), 'character')} on {counted(self._num_lines, 'line')} of {where} "
            f"{'is' if len(self._first_lines) == 1 else 'are'} not in the model's vocabulary: {examples}{more}. "
            f"{consequence}"
        )


class SourceNotices:
    """Notices about lines to translate: too long for the model, or with characters it cannot read."""

    def __init__(self, say: Say, tokenizer: Tokenizer, max_subwords: int) -> None:
        self._say, self._tokenizer, self._max_subwords = say, tokenizer, max_subwords
        self._has_said_sentences = False
        self._start_again()

    def _start_again(self) -> None:
        self._long_lines = FirstNotices(self._say)
        self._broken_demands = FirstNotices(self._say)
        self._unknown = UnknownCharacters(self._tokenizer)

    def add(self, number: int, line: str, ids: Sequence[int], num_segments: int) -> None:
        """Looks at a line as it will be translated."""
        self._unknown.add(number, line, ids)
        if num_segments > 1 and len(ids) <= self._max_subwords:
            self._say_sentences()
        elif num_segments > 1:
            self._long_lines.add(
                f"Line {number:,} has {len(ids):,} subwords, more than the {self._max_subwords:,} the model was "
                f"trained on; it is translated in {num_segments:,} segments."
            )

    def add_broken_demand(self, number: int, verb: str, word: str, demand: str) -> None:
        """Notes that the translation of a line lacks what is required, or has what is forbidden."""
        shown = word if len(word) <= _MAX_WORD_SHOWN else f"{word[:_MAX_WORD_SHOWN]}…"
        self._broken_demands.add(f"Line {number:,}: its translation {verb} {shown!r}, which is {demand}.")

    def _say_sentences(self) -> None:
        """Says once that lines are split."""
        if not self._has_said_sentences:
            self._has_said_sentences = True
            self._say(SPLIT_NOTICE)

    def finish(self) -> None:
        """Says what was only counted since the last call."""
        if self._long_lines.has_unsaid:
            self._say(f"{self._long_lines.num_lines:,} lines in all were translated in segments.")
        if self._broken_demands.has_unsaid:
            self._say(f"{self._broken_demands.num_lines:,} required or forbidden words in all were not heeded.")
        if message := self._unknown.describe(
            "the input", "The model cannot read such a character; translations of these lines may lack something."
        ):
            self._say(message)
        self._start_again()


def _name(character: str) -> str:
    """Shows a character with its code point; the code point alone if it would not be visible."""
    code = f"U+{ord(character):04X}"
    is_visible = character.isprintable() and not unicodedata.category(character).startswith("M")
    return f"{character} {code}" if is_visible else code
