"""Cleans a block of pairs with every filter in order, and records which filter dropped a pair."""

import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.language import (
    build_language_check,
    build_script_check,
    has_known_script,
    is_known_language,
    is_mostly_without_spaces,
    length_in_letters,
)
from dragoman.corpus.cleaning.normalisation import normalise, strip_only
from dragoman.corpus.tokenizer import RESERVED_CHARACTERS

# Spaces belong to a number only before groups of three digits: "10 000", but not "in 2001 15 people".
_NUMBER = re.compile(r"\d+(?:[.,'’]\d+|(?<!\d{4})[ \u00a0\u2009\u202f]\d{3}(?!\d))*")
_SEPARATORS = re.compile(r"\D")


def _numbers_differ(source: str, target: str) -> bool:
    """Whether the two sides have different numbers; "1,000.5" and "1.000,5" are the same."""
    return _numbers(source) != _numbers(target)


def _numbers(text: str) -> list[str]:
    return sorted(map(_digits, _NUMBER.findall(text)))


def _digits(number: str) -> str:
    """Returns only the digits, as ASCII."""
    digits = _SEPARATORS.sub("", number)
    return digits if digits.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in digits)


Check = Callable[[str, str], bool]
SideCheck = Callable[[str], bool]

_SPACE_MARK, _UNKNOWN_MARK = tuple(RESERVED_CHARACTERS)
_REPLACEMENT = "\ufffd"
# Unicode categories Cc (except the tab, which text keeps if it is not normalised), Cs and Co, and noncharacters. Lone
# surrogates cannot come from UTF-8, but from escapes in JSON.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufffd-\uffff"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0x10000, 0xF0000, 0x10000))
    + "\U000f0000-\U0010ffff]"
)


def build_checks(rules: Rules) -> list[tuple[str, Check]]:
    """Returns the filters for single pairs that are on, by name: fast ones first, so that slow ones see less text."""
    num_words = _num_words_if_normalised if rules.normalise else _num_words
    checks: list[tuple[str, Check]] = []
    if rules.empty:
        checks.append(("empty", _has_empty_side))
    if rules.reserved_characters:
        checks.append(("reserved_characters", _has_reserved_character))
    if rules.control_characters:
        checks.append(("control_characters", _has_control_character))
    if rules.length_words is not None:
        checks.append(("length_words", _build_length_check(num_words, *rules.length_words)))
    if rules.length_characters is not None:
        checks.append(("length_characters", _build_length_check(len, *rules.length_characters)))
    if rules.length_ratio is not None:
        checks.append(("length_ratio", _build_ratio_check(num_words, rules.length_ratio)))
    if rules.identical:
        checks.append(("identical", operator.eq))
    checks += _build_language_checks(rules)
    if rules.numbers:
        checks.append(("numbers", _numbers_differ))
    return checks


def _build_language_checks(rules: Rules) -> list[tuple[str, Check]]:
    """Returns the filters that need the languages; a side in a language they do not know passes."""
    if rules.languages is None:
        return []
    source, target = rules.languages
    checks = []
    if (share := rules.script) is not None:
        sides = [build_script_check(code, share) if has_known_script(code) else _passes for code in (source, target)]
        checks.append(("script", _build_either_side_check(*sides)))
    if (least := rules.language) is not None:
        sides = [
            build_language_check(code, other, least) if is_known_language(code) else _passes
            for code, other in ((source, target), (target, source))
        ]
        checks.append(("language", _build_either_side_check(*sides)))
    return checks


def _passes(text: str) -> bool:
    return False


def _build_either_side_check(source_fails: SideCheck, target_fails: SideCheck) -> Check:
    return lambda source, target: source_fails(source) or target_fails(target)


def _has_empty_side(source: str, target: str) -> bool:
    return not source or not target


def _has_reserved_character(source: str, target: str) -> bool:
    return _SPACE_MARK in source or _SPACE_MARK in target or _UNKNOWN_MARK in source or _UNKNOWN_MARK in target


def _has_control_character(source: str, target: str) -> bool:
    return _is_damaged(source) or _is_damaged(target)


def _is_damaged(text: str) -> bool:
    # U+FFFD is the only printable one among these characters, and the regex takes several times as long.
    if text.isprintable():
        return _REPLACEMENT in text
    return _CONTROL.search(text) is not None


def _num_words(text: str) -> int:
    return len(text.split())


def _num_words_if_normalised(text: str) -> int:
    return text.count(" ") + 1 if text else 0


def _build_length_check(length: Callable[[str], int], least: int, most: int) -> Check:
    def is_out_of_range(source: str, target: str) -> bool:
        return not (least <= length(source) <= most and least <= length(target) <= most)

    return is_out_of_range


def _build_ratio_check(num_words: Callable[[str], int], most: float) -> Check:
    def is_unbalanced(source: str, target: str) -> bool:
        length = num_words
        if is_mostly_without_spaces(source) or is_mostly_without_spaces(target):
            length = length_in_letters
        source_length, target_length = length(source), length(target)
        return source_length > most * target_length or target_length > most * source_length

    return is_unbalanced


_MAX_EXAMPLES = 3
_MAX_EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class Example:
    """A dropped pair, shortened for display, and its place in the text."""

    place: str
    source: str
    target: str


@dataclass
class Dropped:
    """The number of pairs that one filter dropped, and the first few of them."""

    num_pairs: int = 0
    examples: list[Example] = field(default_factory=list)

    def count(self, source: str, target: str, index: int, place_of: Callable[[int], str]) -> None:
        """Counts one more pair; `place_of` is called only if the pair becomes an example."""
        self.num_pairs += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(Example(place_of(index), _cut_for_display(source), _cut_for_display(target)))

    def merge(self, later: "Dropped") -> None:
        """Adds the pairs that were dropped later in the text."""
        self.num_pairs += later.num_pairs
        self.examples += later.examples[: _MAX_EXAMPLES - len(self.examples)]


@dataclass
class CleanBlock:
    """The pairs that were kept, normalised and in order, and the dropped ones by filter."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """Index of each kept pair in the block before cleaning."""
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def count(self, name: str, positions: Iterable[int], place_of: Callable[[int], str]) -> None:
        """Counts kept pairs, by their positions, for a filter that needs more than the block."""
        for position in positions:
            found = self.dropped.setdefault(name, Dropped())
            found.count(self.sources[position], self.targets[position], self.indices[position], place_of)

    def remove(self, positions: Iterable[int]) -> None:
        """Removes pairs from those that were kept."""
        removed = set(positions)
        kept = [position for position in range(len(self.sources)) if position not in removed]
        self.sources = [self.sources[position] for position in kept]
        self.targets = [self.targets[position] for position in kept]
        self.indices = [self.indices[position] for position in kept]


def clean_block(
    block_sources: Sequence[str], block_targets: Sequence[str], rules: Rules, place_of: Callable[[int], str]
) -> CleanBlock:
    """Normalises and filters pairs; a dropped pair counts for the first filter of `build_checks` that it fails.

    `place_of` returns the place of the pair with an index, e.g. "my.en, line 12". Filters that need the whole corpus
    (duplicates, near_duplicates, overlap) are not applied here.
    """
    tidy = normalise if rules.normalise else strip_only
    checks = build_checks(rules)
    block = CleanBlock()
    pairs = zip(map(tidy, block_sources), map(tidy, block_targets), strict=True)
    for index, (source, target) in enumerate(pairs):
        failed = _first_failed(checks, source, target)
        if failed is None:
            block.sources.append(source)
            block.targets.append(target)
            block.indices.append(index)
        else:
            block.dropped.setdefault(failed, Dropped()).count(source, target, index, place_of)
    return block


def _first_failed(checks: list[tuple[str, Check]], source: str, target: str) -> str | None:
    for name, fails in checks:
        if fails(source, target):
            return name
    return None


def _cut_for_display(text: str) -> str:
    if len(text) > _MAX_EXAMPLE_CHARACTERS:
        text = text[: _MAX_EXAMPLE_CHARACTERS - 1] + "…"
    # Lone surrogates (from escapes in JSON) could not be written to a file.
    return text.encode("utf-8", "replace").decode("utf-8")
