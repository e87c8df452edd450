"""The filters themselves: plain functions of source and target that are true of a pair to be dropped."""

import operator
import re
from collections.abc import Callable

from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.language import build_language_check, is_known_language
from dragoman.corpus.cleaning.numerals import numbers_differ
from dragoman.corpus.cleaning.scripts import (
    build_script_check,
    has_known_script,
    is_mostly_without_spaces,
    length_in_letters,
)
from dragoman.corpus.tokenizer import RESERVED_CHARACTERS

Check = Callable[[str, str], bool]
SideCheck = Callable[[str], bool]

_SPACE_MARK, _UNKNOWN_MARK = tuple(RESERVED_CHARACTERS)
_REPLACEMENT = "\ufffd"
# Cc but for the tab, which is white space that text keeps if it is not normalised; Cs, Co, and noncharacters. Lone
# surrogates cannot come from UTF-8, but from escapes in JSON.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufffd-\uffff"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0x10000, 0xF0000, 0x10000))
    + "\U000f0000-\U0010ffff]"
)


def build_checks(rules: Rules) -> list[tuple[str, Check]]:
    """The filters of `rules.order()` by name, in that order."""
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
        checks.append(("numbers", numbers_differ))
    return checks


def _build_language_checks(rules: Rules) -> list[tuple[str, Check]]:
    """The filters that need the languages; a side whose language they do not know passes."""
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
    # Of the characters looked for, only U+FFFD is printable; the search takes several times as long.
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
