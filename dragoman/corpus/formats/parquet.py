"""Reads Parquet: two columns of text, or a column "translation" with a field per language. Needs pyarrow."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from dragoman.corpus.formats.blocks import (
    MAX_LINE_BYTES,
    Block,
    Reading,
    Unreadable,
    decode_sentence,
    join_lines,
    too_long,
)
from dragoman.corpus.formats.compression import check_expansion, expansion_as_user_error, open_seekable
from dragoman.corpus.formats.tsv_and_jsonl import (
    SIDE_KEYS,
    TRANSLATION_KEY,
    Languages,
    ask_for_languages,
    assumed_languages,
    find_language,
)
from dragoman.run.errors import UserError

# Sentences of the largest size allowed, on both sides, take 128 MiB.
_ROWS_PER_BATCH = 1024
_BATCH_BYTES = _ROWS_PER_BATCH * MAX_LINE_BYTES

ColumnPath = tuple[str, ...]
"""A column, or a field of a column: ("translation", "en")."""


class ParquetReader:
    """Reads the rows of a Parquet file."""

    what = "row"

    def __init__(self, path: Path, languages: Languages | None, reading: Reading) -> None:
        self._path, self._languages, self._reading = path, languages, reading
        self._notices: list[str] = []

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad row between them."""
        pyarrow = _import_pyarrow()
        with open_seekable(self._path, self._reading.max_expansion) as file:
            try:
                yield from self._read_rows(file)
            except (pyarrow.ArrowException, OSError) as problem:
                detail = str(problem).splitlines()[0]
                raise UserError(f"{self._path} is not a Parquet file, or it is damaged: {detail}") from None

    def notices(self) -> list[str]:
        """Returns messages about the file for the user."""
        return self._notices

    def _read_rows(self, file: IO[bytes]) -> Iterator[Block]:
        from pyarrow import parquet

        # Without pre-buffering, only the current pages are in memory.
        table = parquet.ParquetFile(file, pre_buffer=False)
        if table.metadata.num_rows == 0:
            raise UserError(f"{self._path} is empty: it has no rows.")
        columns = self._choose_columns(table.schema_arrow)
        num_bytes = file.seek(0, os.SEEK_END)
        self._check_size(table.metadata, columns, num_bytes)
        number, num_text_bytes = 1, 0
        for batch in _read_batches(file, table, columns):
            sides = [_values(batch, column) for column in columns]
            num_text_bytes += sum(len(value) for side in sides for value in side if value)
            with expansion_as_user_error(self._path, self._reading.max_expansion):
                check_expansion(num_text_bytes, num_bytes, self._reading.max_expansion)
            yield from self._pairs(number, columns, sides)
            number += batch.num_rows
            self._reading.note_bytes(num_bytes * batch.num_rows // table.metadata.num_rows)

    def _choose_columns(self, schema: Any) -> tuple[ColumnPath, ColumnPath]:
        source, target = self._find_columns(schema)
        for column in (source, target):
            _check_is_text(self._path, schema, column)
        return source, target

    def _find_columns(self, schema: Any) -> tuple[ColumnPath, ColumnPath]:
        for source, target in SIDE_KEYS:
            if source in schema.names and target in schema.names:
                return (source,), (target,)
        names: list[str] = schema.names
        parents: ColumnPath = ()
        if TRANSLATION_KEY in names and _is_struct(schema.field(TRANSLATION_KEY).type):
            names, parents = [child.name for child in schema.field(TRANSLATION_KEY).type], (TRANSLATION_KEY,)
        source, target = self._find_languages(names)
        return (*parents, source), (*parents, target)

    def _find_languages(self, names: list[str]) -> Languages:
        """Returns the columns of the languages; if no languages are given, two columns are taken in their order."""
        if self._languages is None:
            if len(names) != 2:
                raise ask_for_languages(self._path, names)
            self._notices.append(assumed_languages(self._path, (names[0], names[1])))
            return names[0], names[1]
        source, target = (find_language(language, names) for language in self._languages)
        if source is None or target is None:
            raise UserError(
                f"{self._path} has the columns {', '.join(names)}; name the two with the text source and target, "
                f"or {self._languages[0]} and {self._languages[1]}."
            )
        return source, target

    def _check_size(self, metadata: Any, columns: tuple[ColumnPath, ColumnPath], num_file_bytes: int) -> None:
        """Refuses a small file whose pages would expand too much."""
        names = {".".join(column) for column in columns}
        num_bytes = sum(
            chunk.total_uncompressed_size
            for group in map(metadata.row_group, range(metadata.num_row_groups))
            for chunk in map(group.column, range(group.num_columns))
            if chunk.path_in_schema in names
        )
        with expansion_as_user_error(self._path, self._reading.max_expansion):
            check_expansion(num_bytes, num_file_bytes, self._reading.max_expansion)

    def _pairs(
        self, number: int, columns: tuple[ColumnPath, ColumnPath], sides: list[list[bytes | None]]
    ) -> Iterator[Block]:
        source_name, target_name = (f"column '{'.'.join(column)}'" for column in columns)
        run = Block(number, [], [])
        for source_value, target_value in zip(*sides, strict=True):
            try:
                source, target = _sentence(source_value, source_name), _sentence(target_value, target_name)
            except Unreadable as fault:
                self._reading.add_bad_line(self._path, number, fault)
                yield run
                run = Block(number + 1, [], [])
            else:
                run.sources.append(source)
                run.targets.append(target)
            number += 1
        yield run


def _import_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'dragoman[parquet]'") from None
    return pyarrow


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind))


def _check_is_text(path: Path, schema: Any, column: ColumnPath) -> None:
    """Refuses a column that does not hold text: every row of it would be bad."""
    from pyarrow import types

    kind = schema.field(column[0]).type
    for name in column[1:]:
        kind = kind.field(name).type
    value_kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(value_kind) or types.is_large_string(value_kind) or types.is_string_view(value_kind)):
        raise UserError(f"{path}: column '{'.'.join(column)}' holds {kind}, not text (string).")


def _read_batches(file: IO[bytes], table: Any, columns: Sequence[ColumnPath]) -> Iterator[Any]:
    """Yields the rows of a table in batches of bounded size."""
    from pyarrow import parquet

    names = [".".join(column) for column in columns]
    dictionaries = parquet.ParquetFile(file, read_dictionary=names, pre_buffer=False)
    for group in range(table.metadata.num_row_groups):
        # A long value in a dictionary takes little space in the file, but a copy for each row once it is read.
        longest = _longest_in_dictionaries(dictionaries, group, columns)
        num_rows = min(_ROWS_PER_BATCH, max(1, _BATCH_BYTES // max(1, longest)))
        yield from table.iter_batches(num_rows, row_groups=[group], columns=names, use_threads=False)


def _longest_in_dictionaries(table: Any, group: int, columns: Sequence[ColumnPath]) -> int:
    """Returns the size in bytes of the longest value in the dictionaries of a group of rows; 0 if it has none."""
    from pyarrow import compute, types

    names = [".".join(column) for column in columns]
    first_row = next(table.iter_batches(1, row_groups=[group], columns=names, use_threads=False), None)
    if first_row is None:
        return 0
    arrays = [_array(first_row, column) for column in columns]
    sizes = [
        compute.max(compute.binary_length(array.dictionary)).as_py()
        for array in arrays
        if types.is_dictionary(array.type)
    ]
    return max((size for size in sizes if size), default=0)


def _array(batch: Any, column: ColumnPath) -> Any:
    values = batch.column(column[0])
    for name in column[1:]:
        # A null pair has null texts, which `field` would ignore.
        (index,) = (i for i in range(values.type.num_fields) if values.type.field(i).name == name)
        values = values.flatten()[index]
    return values


def _values(batch: Any, column: ColumnPath) -> list[bytes | None]:
    """Returns the values of a column as bytes, because Parquet promises UTF-8 but does not check it."""
    from pyarrow import large_binary, large_string

    values = _array(batch, column)
    if not values.type.equals(large_string()):
        values = values.cast(large_string(), safe=False)
    values_as_bytes: list[bytes | None] = values.view(large_binary()).to_pylist()
    return values_as_bytes


def _sentence(value: bytes | None, name: str) -> str:
    if value is None:
        raise Unreadable(f"has no text in {name}")
    if len(value) > MAX_LINE_BYTES:
        raise too_long(len(value))
    return join_lines(decode_sentence(value, unit=name))
