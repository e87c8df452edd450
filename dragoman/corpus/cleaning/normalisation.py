"""How a sentence is written before anything judges or learns from it."""

import unicodedata


def normalise(text: str) -> str:
    """Brings text into Unicode NFC, with one plain space for each run of white space and none at the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    # Of all white space only the plain space is printable: nearly every line of a usual corpus ends here.
    if text.isprintable() and "  " not in text:
        return text.strip()
    return " ".join(text.split())


def strip_only(text: str) -> str:
    """Strips white space at the ends and changes nothing else."""
    return text.strip()
