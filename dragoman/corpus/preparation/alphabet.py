"""Which characters a text has, found fast."""

from collections.abc import Sequence

_ASCII = bytes(range(128))


def characters_of(lines: Sequence[str]) -> set[str]:
    """The different characters of all lines."""
    text = "".join(lines).encode()
    # Most text is mostly ASCII: that is looked up byte by byte, and only the rest is taken apart.
    ascii_part = {chr(byte) for byte in _ASCII if byte in text}
    return ascii_part | set(text.translate(None, _ASCII).decode())
