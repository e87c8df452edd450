"""Text of strangers that obeys nobody: control characters and changes of direction are spelled out."""

import re

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def plain_text(text: str) -> str:
    """Text in which control characters and changes of direction are spelled out instead of obeyed."""
    text = text.replace("\r\n", "\n")
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
