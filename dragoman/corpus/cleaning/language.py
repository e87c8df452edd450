"""Whether a sentence is in the language it should be in, as CLD2 sees it."""

from collections.abc import Callable

import pycld2

# Measured on Europarl: of English lines on a German side and the reverse, 99.8 % are found from 100 characters as from
# the whole line, in two thirds of the time.
_MAX_CHARACTERS_READ = 100
_IS_PLAIN_TEXT = True
_NO_DOMAIN = None

_UNKNOWN = "un"
_CLD2_CODES = {"he": "iw", "jv": "jw", "nb": "no", "sh": "hr"}
_DETECTABLE_NAMES = frozenset(pycld2.DETECTED_LANGUAGES)
_DETECTABLE = frozenset(code for name, code in pycld2.LANGUAGES if name in _DETECTABLE_NAMES)

_CHINESE = {"zh", "zh-Hant"}
# Languages that CLD2 takes for each other, in its own codes.
_RELATIVES = (
    _CHINESE,
    {"en", "sco"},
    {"no", "nn", "da"},
    {"hr", "sr", "bs", "sr-ME"},
    {"ms", "id"},
    {"bo", "dz"},
    {"xh", "zu", "ss", "nr"},
    {"rw", "rn"},
    {"hi", "bh"},
)


def is_known_language(code: str) -> bool:
    """Whether CLD2 can recognise the language."""
    return _cld2_code(code) in _DETECTABLE


def build_language_check(language: str, other_language: str, least_characters: int) -> Callable[[str], bool]:
    """Makes a test that is true of text, if long enough, that is surely neither in the language nor a close relative.

    A relative that is the other language of the pair is not accepted: Danish may not stand on a Norwegian side.
    """
    expected, other = _cld2_code(language), _cld2_code(other_language)
    hint = _hint(expected, other)
    accepted = frozenset((_relatives(expected) - {other}) | {expected, _UNKNOWN})
    detect = pycld2.detect

    def is_in_other_language(text: str) -> bool:
        if len(text) < least_characters:
            return False
        try:
            is_reliable, _, found = detect(text[:_MAX_CHARACTERS_READ], _IS_PLAIN_TEXT, _NO_DOMAIN, hint)
        except (pycld2.error, UnicodeEncodeError):
            # CLD2 refuses control characters and the like: nothing is known then.
            return False
        return is_reliable and found[0][1] not in accepted

    return is_in_other_language


def _cld2_code(code: str) -> str:
    return _CLD2_CODES.get(code, code)


def _relatives(expected: str) -> set[str]:
    return {code for group in _RELATIVES if expected in group for code in group}


def _hint(expected: str, other: str) -> str | None:
    """The language that CLD2 is told to expect, or None where that would mislead it.

    On short German sentences the hint cuts wrong answers from 2 % to 0.4 %. But it makes CLD2 blind to relatives of the
    language: told to expect Norwegian it takes Danish for it, and told to expect Chinese it takes text in traditional
    characters for Japanese.
    """
    is_misleading = expected in _CHINESE or (other != expected and other in _relatives(expected))
    return None if is_misleading else expected
