"""What a sentence must be in every format: valid UTF-8 without NUL, of bounded length, on one line."""

from dragoman.corpus.formats.bad_lines import Unreadable
from dragoman.corpus.formats.blocks import MAX_LINE_BYTES

SAFE_CHARACTERS = MAX_LINE_BYTES // 4
"""So many characters are within the limit, however many bytes each of them takes."""


def too_long(num_bytes: int, max_bytes: int = MAX_LINE_BYTES, what: str = "a sentence") -> Unreadable:
    """The finding about text over the limit."""
    return Unreadable(
        f"has {num_bytes:,} bytes, more than the {max_bytes:,} {what} may have",
        "split it into sentences, one a line, or delete it",
    )


def decode_sentence(content: bytes, is_after_utf8: bool = False, unit: str = "line") -> str:
    """Decodes strictly; byte offsets in messages count from 0 at the start of the content."""
    if (offset := content.find(b"\0")) >= 0:
        raise Unreadable(
            f"has a NUL byte (0x00) at byte offset {offset}, as damaged files and UTF-16 text have",
            "convert the file to UTF-8 or correct the line",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        contrast = ", although lines before it are" if is_after_utf8 else ""
        raise Unreadable(
            f"is not UTF-8 at byte offset {problem.start} of the {unit} (0x{content[problem.start]:02x}){contrast}",
            "convert the file to UTF-8 or correct the line",
        ) from None


def check_sentence(text: str) -> str:
    """Checks text from a format with escapes or line breaks of its own, and makes one line of it."""
    if "\0" in text:
        raise Unreadable(f"has a NUL character (U+0000) at character offset {text.index(chr(0))}")
    try:
        num_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError as problem:
        half = f"\\u{ord(text[problem.start]):04x}"
        raise Unreadable(f"has half a character ({half}) at character offset {problem.start}") from None
    if num_bytes > MAX_LINE_BYTES:
        raise too_long(num_bytes)
    return join_lines(text)


def join_lines(text: str) -> str:
    """Makes one line of a sentence that a format let run over several."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text
