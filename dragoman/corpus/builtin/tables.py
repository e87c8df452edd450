"""Reads the lexicon's tables: one entry a line, English and German on either side of `=`."""

from collections.abc import Iterator


def read_entries(table: str) -> Iterator[tuple[str, str]]:
    """The two sides of every line that is not empty."""
    for line in table.strip().splitlines():
        english, german = line.split(" = ")
        yield english.strip(), german.strip()
