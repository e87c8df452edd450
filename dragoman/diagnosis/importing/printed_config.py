"""A Python dict that a program printed into its log, read without running anything.

What is no plain value (`<class …>`, `<function …>`, a call) becomes its name. Damaged text is read as far as it makes
sense: other processes write into the same log.
"""

import re
from typing import Any

from dragoman.diagnosis.importing.foreign_run import LARGEST_NUMBER

MAX_CHARACTERS = 200_000
MAX_DEPTH = 20
MAX_FOREIGN_LINES = 50
"""Lines of other processes in a row, after which the end of the dict is no longer waited for."""
MAX_NAME_CHARACTERS = 300

# A string that is not closed ends with its line: so no text makes the search go over a line twice.
_STRING = re.compile(
    r"[bBuUrR]{0,2}(?:'((?:[^'\\\n]|\\[^\n])*+)(?:'|\\?$)|\"((?:[^\"\\\n]|\\[^\n])*+)(?:\"|\\?$))", re.MULTILINE
)
_WORD = re.compile(r"[-+]?[\w.][\w.+-]*")
_QUOTED_NAME = re.compile(r"'([^']*)'")
_BRACKETS = re.compile(r"[{}\[\]()]")
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_CONSTANTS: dict[str, Any] = {"True": True, "False": False, "None": None}
_ENDS = frozenset("}]),:")


def parse_printed_dict(text: str) -> dict[str, Any]:
    """The dict at the beginning of the text; empty where there is none."""
    start = text.find("{", 0, MAX_CHARACTERS)
    if start < 0:
        return {}
    value = _Parser(text[start:MAX_CHARACTERS]).parse_value(0)
    return value if isinstance(value, dict) else {}


class ConfigCollector:
    """Gathers the lines of one printed dict, given the lines behind its heading."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._num_characters = 0
        self._num_foreign_lines = 0
        self.is_open = True

    def add(self, line: str) -> bool:
        """Takes a line; whether it belongs to the dict. The last one closes the collector."""
        if not line.startswith(("{", " ", "'", '"', "}")):
            self._num_foreign_lines += 1
            self.is_open = self._num_foreign_lines <= MAX_FOREIGN_LINES
            return False
        self._num_foreign_lines = 0
        self._lines.append(line)
        self._num_characters += len(line)
        self._depth += _depth_change(line)
        self.is_open = self._depth > 0 and self._num_characters <= MAX_CHARACTERS
        return True

    def parse(self) -> dict[str, Any]:
        """What was gathered so far."""
        return parse_printed_dict("\n".join(self._lines))


def _depth_change(line: str) -> int:
    brackets = _BRACKETS.findall(_STRING.sub("", line))
    return sum(1 if bracket in _CLOSING else -1 for bracket in brackets)


class _Parser:
    """Goes through the text once; every call moves on, so the work is bounded by the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse_value(self, depth: int) -> Any:
        """The value that begins here; None at the end of the text and for what cannot be read."""
        opening = self._peek()
        if opening in _CLOSING:
            self._at += 1
            return self._skip(_CLOSING[opening]) if depth >= MAX_DEPTH else self._parse_items(opening, depth + 1)
        if opening == "<":
            return self._parse_object()
        if string := _STRING.match(self._text, self._at):
            return self._parse_strings(string)
        if word := _WORD.match(self._text, self._at):
            return self._parse_word(word, depth)
        if opening not in _ENDS:
            self._at += 1
        return None

    def _parse_items(self, opening: str, depth: int) -> Any:
        """A dict, or a list of what stands in brackets."""
        pairs: dict[str, Any] = {}
        items: list[Any] = []
        while (sign := self._peek()) and sign != _CLOSING[opening]:
            if sign in _ENDS:
                self._at += 1
                continue
            value = self.parse_value(depth)
            if opening == "{" and self._peek() == ":":
                self._at += 1
                pairs[str(value)] = self.parse_value(depth)
            else:
                items.append(value)
        self._at += 1
        return pairs if opening == "{" and (pairs or not items) else items

    def _parse_strings(self, string: re.Match[str]) -> str:
        """A string, or several in a row: one that was too long for a line."""
        parts = []
        following: re.Match[str] | None = string
        while following:
            parts.append(_unescape(following[1] if following[1] is not None else following[2]))
            self._at = following.end()
            self._peek()
            following = _STRING.match(self._text, self._at)
        return "".join(parts)

    def _parse_word(self, word: re.Match[str], depth: int) -> Any:
        self._at = word.end()
        if self._peek() != "(" or depth >= MAX_DEPTH:
            return _plain_value(word[0])
        self._at += 1
        arguments = self._parse_items("(", depth + 1)
        return _as_dict(arguments) if word[0].lower().endswith("dict") else word[0][:MAX_NAME_CHARACTERS]

    def _parse_object(self) -> str:
        """`<class 'a.B'>` is a.B, `<function f at 0x7f>` is f, `<dtype: 'float32'>` is float32."""
        start = self._at
        self._skip_angles()
        text = self._text[start + 1 : min(self._at - 1, start + MAX_NAME_CHARACTERS)]
        if quoted := _QUOTED_NAME.search(text):
            return quoted[1]
        words = text.split()
        return words[1] if len(words) > 1 and words[0] in ("function", "class") else text

    def _skip_angles(self) -> None:
        depth = 0
        while self._at < len(self._text):
            sign = self._text[self._at]
            if sign == "\n":
                return
            self._at += 1
            depth += (sign == "<") - (sign == ">")
            if depth == 0:
                return

    def _skip(self, closing: str) -> None:
        end = self._text.find(closing, self._at)
        self._at = len(self._text) if end < 0 else end + 1

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]


def _plain_value(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    for number in (int, float):
        try:
            value = number(word)
        except ValueError:
            continue
        if abs(value) <= LARGEST_NUMBER:
            return value
    return word[:MAX_NAME_CHARACTERS]


def _as_dict(arguments: Any) -> dict[str, Any]:
    """Of OrderedDict([('a', 1), …]) or defaultdict(<class 'int'>, {…})."""
    for argument in arguments if isinstance(arguments, list) else ():
        if isinstance(argument, dict):
            return argument
        if isinstance(argument, list):
            return {str(pair[0]): pair[1] for pair in argument if isinstance(pair, list) and len(pair) == 2}
    return {}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text, flags=re.DOTALL)
