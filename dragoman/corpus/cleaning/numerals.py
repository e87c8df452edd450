"""The numbers of a sentence, however its language writes them."""

import re
import unicodedata

# Blanks count as part of a number only before groups of three digits: "10 000", but not "in 2001 15 people".
_NUMBER = re.compile(r"\d+(?:[.,'’]\d+|(?<!\d{4})[ \u00a0\u2009\u202f]\d{3}(?!\d))*")
_SEPARATORS = re.compile(r"\D")


def numbers_differ(source: str, target: str) -> bool:
    """Whether the two sides hold different numbers; "1,000.5" and "1.000,5" are the same."""
    return _numbers(source) != _numbers(target)


def _numbers(text: str) -> list[str]:
    return sorted(map(_digits, _NUMBER.findall(text)))


def _digits(number: str) -> str:
    """The digits alone, as ASCII."""
    digits = _SEPARATORS.sub("", number)
    return digits if digits.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in digits)
