"""TSV as translators use it: raw text between tabs, no quoting, no header."""

from collections.abc import Iterator
from pathlib import Path

from dragoman.corpus.formats.bad_lines import AddBadLine, Unreadable
from dragoman.corpus.formats.blocks import Block
from dragoman.corpus.formats.compression import NoteBytes
from dragoman.corpus.formats.records import open_records, read_records
from dragoman.corpus.formats.sentences import SAFE_CHARACTERS, check_sentence


class TsvReader:
    """Reads two columns of a TSV file."""

    what = "line"

    def __init__(
        self, path: Path, columns: tuple[int, int], max_expansion: int, add_bad_line: AddBadLine, note_bytes: NoteBytes
    ) -> None:
        self._lines = open_records(path, max_expansion, note_bytes)
        self._columns = columns
        self._source_index, self._target_index = columns[0] - 1, columns[1] - 1
        # Columns after the last one of interest need not be told apart.
        self._max_splits = max(columns)
        self._add_bad_line = add_bad_line

    def pieces(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad line between them."""
        return read_records(self._lines, self._parse, self._add_bad_line, self._parse_all)

    def notices(self) -> list[str]:
        """What the user should know about the file, one sentence each."""
        return self._lines.notices()

    def _parse_all(self, lines: list[str]) -> tuple[list[str], list[str]] | None:
        if max(map(len, lines), default=0) > SAFE_CHARACTERS:
            return None
        source_index, target_index, max_splits = self._source_index, self._target_index, self._max_splits
        sources, targets = [], []
        try:
            for line in lines:
                fields = line.split("\t", max_splits)
                sources.append(fields[source_index])
                targets.append(fields[target_index])
        except IndexError:
            return None
        return sources, targets

    def _parse(self, line: str) -> tuple[str, str]:
        fields = line.split("\t", self._max_splits)
        try:
            source, target = fields[self._source_index], fields[self._target_index]
        except IndexError:
            raise self._too_few(len(fields)) from None
        if len(line) > SAFE_CHARACTERS:
            check_sentence(source)
            check_sentence(target)
        return source, target

    def _too_few(self, num_columns: int) -> Unreadable:
        noun = "column" if num_columns == 1 else "columns"
        return Unreadable(
            f"has {num_columns} {noun}, but columns {self._columns[0]} and {self._columns[1]} were asked for",
            "correct or delete it, or say which columns hold the text",
        )
