"""Text from people inside scripts and manifests: it stays text, whatever is in it."""

import textwrap
import unicodedata

from dragoman.run.errors import UsageError

_NOT_ON_A_LINE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories of what ends lines, steers terminals or is no character at all."""


def require_one_line(text: str, what: str) -> None:
    """Refuses what could end a line: scripts have comments and directives, which no quoting protects."""
    if any(unicodedata.category(character) in _NOT_ON_A_LINE for character in text):
        raise UsageError(f"{what} {text!r} has a character that cannot stand in a job file: rename it.")


def yaml_text(text: str) -> str:
    """A YAML scalar that reads as exactly this text."""
    return '"' + "".join(_yaml_character(character) for character in text) + '"'


def _yaml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def yaml_list(texts: list[str], indent: int) -> str:
    """A YAML list of texts, one a line, to stand under its key."""
    return "\n".join(f"{' ' * indent}- {yaml_text(text)}" for text in texts)


def yaml_block(text: str, indent: int) -> str:
    """Lines of text as a YAML value that people can read, or as one scalar where a block could change them."""
    if not _survives_as_block(text):
        return yaml_text(text)
    return "|\n" + textwrap.indent(text.removesuffix("\n"), " " * indent)


def _survives_as_block(text: str) -> bool:
    """Whether a block keeps it all: YAML counts the first line's margin, and may drop blanks and further line ends."""
    *lines, rest = text.split("\n")
    if rest or not lines or not lines[-1] or lines[0] != lines[0].strip() or not lines[0]:
        return False
    return all(line.isprintable() and not line.isspace() for line in lines)


def double_dollars(text: str) -> str:
    """Text that survives the expansion of $VARIABLES by Compose, or of $(VARIABLES) by Kubernetes."""
    return text.replace("$", "$$")
