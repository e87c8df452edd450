"""Normalises text, and finds duplicate pairs by keys."""

import re
import string
import unicodedata
from collections.abc import Iterable

from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.language import is_latin_1


def normalise(text: str) -> str:
    """Converts text to Unicode NFC, each run of white space to one space, and strips the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    # The plain space is the only printable white space: nearly every line of a usual corpus returns here.
    if text.isprintable() and "  " not in text:
        return text.strip()
    return " ".join(text.split())


def strip_only(text: str) -> str:
    """Strips white space at the ends and changes nothing else."""
    return text.strip()


_LATIN_1_PUNCTUATION = "\x80-©«-±´¶-¸»-¿"
# Unicode's punctuation outside ASCII, and invisible characters. Combining marks stay: in Indic scripts they are vowels.
_PUNCTUATION = re.compile(
    f"[{_LATIN_1_PUNCTUATION}"
    r"\u0589-\u058a\u05be\u05f3-\u05f4\u060c\u061b-\u061f\u066a-\u066d\u06d4\u0964-\u0965\u0df4\u0e5a-\u0e5b\u0f0b-\u0f12"
    r"\u104a-\u104f\u10fb\u1360-\u1368\u1680\u17d4-\u17da\u2000-\u206f\u2e00-\u2e7f\u3000-\u3003\u3008-\u301f\u30fb"
    r"\ufe30-\ufe6f\ufeff]+"
)
_FOREIGN_DIGITS = re.compile(r"[^\D0-9]+")
_ZEROS = re.compile(b"0{2,}")
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_ASCII_LEFT_OUT = (string.punctuation + string.whitespace).encode()
_LATIN_1_LEFT_OUT = _ASCII_LEFT_OUT + bytes(
    code for code in range(0x80, 0x100) if re.match(f"[{_LATIN_1_PUNCTUATION}]", chr(code))
)


def near_key(source: str, target: str) -> str:
    """Returns a key that is equal for pairs that differ only in case, digits, punctuation and white space."""
    return f"{_side_key(source)}\t{_side_key(target)}"


def _side_key(text: str) -> str:
    """Returns the reduced text of one side, or the text itself if nothing is left."""
    if text.isascii():
        return _reduce(text.lower(), "ascii", _ASCII_LEFT_OUT) or text
    simple = unicodedata.normalize("NFKC", text).casefold()
    if is_latin_1(simple):
        return _reduce(simple, "latin-1", _LATIN_1_LEFT_OUT) or text
    simple = _FOREIGN_DIGITS.sub("0", _PUNCTUATION.sub("", simple))
    return _reduce(simple, "utf-8", _ASCII_LEFT_OUT) or text


def _reduce(text: str, encoding: str, left_out: bytes) -> str:
    """Returns text without certain characters, and with "0" for each run of digits.

    In all three encodings a byte below 128 is always an ASCII character, and bytes.translate is 20 times as fast as
    str.translate.
    """
    key = text.encode(encoding, "surrogatepass").translate(_DIGITS_TO_ZERO, left_out)
    if b"00" in key:
        key = _ZEROS.sub(b"0", key)
    return key.decode(encoding, "surrogatepass")


def find_repeats(sources: Iterable[str], targets: Iterable[str], rules: Rules) -> dict[str, list[int]]:
    """Returns the indices of pairs that repeat an earlier one, by the filter that finds them."""
    found: dict[str, list[int]] = {"duplicates": [], "near_duplicates": []}
    if not (rules.duplicates or rules.near_duplicates):
        return found
    seen: set[str] = set()
    seen_nearly: set[str] = set()
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if rules.duplicates and _is_repeated(f"{source}\n{target}", seen):
            found["duplicates"].append(index)
        elif rules.near_duplicates and _is_repeated(near_key(source, target), seen_nearly):
            found["near_duplicates"].append(index)
    return found


def _is_repeated(key: str, seen: set[str]) -> bool:
    """Whether the key was seen before; adds it to the seen ones."""
    num_seen = len(seen)
    seen.add(key)
    return len(seen) == num_seen
