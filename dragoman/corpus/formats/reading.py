"""Parallel text of any format as blocks of pairs: the way into this package."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Protocol

from dragoman.corpus.formats.blocks import BadLines, Block, Unreadable, cut_blocks
from dragoman.corpus.formats.compression import COMPRESSION_ENDINGS
from dragoman.corpus.formats.parquet import ParquetReader
from dragoman.corpus.formats.plain import (
    SAMPLE_LINES,
    KindOfPieces,
    PlainReader,
    choose_pieces,
    put_together,
    tell_pieces,
)
from dragoman.corpus.formats.records import JsonlReader, Languages, TsvReader
from dragoman.corpus.formats.tmx import TmxReader
from dragoman.corpus.settings import Format, TextSettings
from dragoman.run.errors import UsageError, UserError

_FORMATS_BY_ENDING: dict[str, Format] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".tmx": "tmx",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class PairReader(Protocol):
    """Reads one format."""

    what: str

    def pieces(self) -> Iterator[Block]:
        """Yields runs of pairs of any length, in order."""

    def notices(self) -> list[str]:
        """What the user should know, one sentence each."""


class ParallelText:
    """One TextSettings opened for reading."""

    def __init__(
        self, settings: TextSettings, languages: Languages | None, bad_lines: BadLines, max_expansion: int
    ) -> None:
        self.num_read = 0
        """Pairs read so far, bad ones included."""
        self.num_bytes_read = 0
        """Bytes of the files read so far, of `num_bytes`; compressed ones, if they are."""
        self.num_bytes = sum(path.stat().st_size for path in settings.paths if path.is_file())
        self._settings = settings
        self._bad_lines = bad_lines
        self._reader = self._build_reader(languages, max_expansion)
        self._kinds: tuple[KindOfPieces, KindOfPieces] = ("none", "none")

    @property
    def what(self) -> str:
        """What the numbers count: "line", "row" or "unit"."""
        return self._reader.what

    def blocks(self) -> Iterator[Block]:
        """Yields all pairs in order; a bad line ends a block, so that the numbers in it stay true."""
        blocks = cut_blocks(self._reader.pieces())
        first_blocks = _take_sample(blocks)
        self._kinds = self._choose_kinds(first_blocks)
        for block in chain(first_blocks, blocks):
            self.num_read += len(block.sources)
            yield Block(
                block.first_number,
                put_together(self._kinds[0], block.sources),
                put_together(self._kinds[1], block.targets),
            )

    def notices(self) -> list[str]:
        """What the user should know about the text, once it is read; one sentence each."""
        sentences = self._reader.notices()
        for side, kind in zip(self._names_of_sides(), self._kinds, strict=True):
            if kind != "none":
                sentences.append(tell_pieces(side, kind))
        return sentences

    def _build_reader(self, languages: Languages | None, max_expansion: int) -> PairReader:
        settings, add, note = self._settings, self._add_bad_line, self._note_bytes
        if settings.source is not None and settings.target is not None:
            return PlainReader(settings.source, settings.target, max_expansion, add, note)
        assert settings.file is not None, "TextSettings has either two files or one"
        match settings.format or format_of(settings.file):
            case "tsv":
                return TsvReader(settings.file, settings.columns, max_expansion, add, note)
            case "jsonl":
                return JsonlReader(settings.file, languages, max_expansion, add, note)
            case "tmx":
                return TmxReader(settings.file, languages, max_expansion, add, note)
            case "parquet":
                return ParquetReader(settings.file, languages, max_expansion, add, note)
            case "plain":
                raise UsageError(f"{settings.file}: plain text is two files; set source and target instead of file.")

    def _add_bad_line(self, path: Path, number: int, fault: Unreadable) -> None:
        self.num_read += 1
        self._bad_lines.add(path, number, fault.reason, fault.advice, self.what)

    def _note_bytes(self, num_bytes: int) -> None:
        self.num_bytes_read += num_bytes

    def _choose_kinds(self, blocks: list[Block]) -> tuple[KindOfPieces, KindOfPieces]:
        sources = [line for block in blocks for line in block.sources]
        targets = [line for block in blocks for line in block.targets]
        setting = self._settings.pieces
        return choose_pieces(setting, sources[:SAMPLE_LINES]), choose_pieces(setting, targets[:SAMPLE_LINES])

    def _names_of_sides(self) -> tuple[str, str]:
        if self._settings.file is None:
            return str(self._settings.source), str(self._settings.target)
        return f"The source of {self._settings.file}", f"The target of {self._settings.file}"


def _take_sample(blocks: Iterator[Block]) -> list[Block]:
    """Blocks enough to judge the text by: the first one, but where bad lines made it short, more."""
    sample: list[Block] = []
    while sum(len(block.sources) for block in sample) < SAMPLE_LINES:
        block = next(blocks, None)
        if block is None:
            break
        sample.append(block)
    return sample


def format_of(path: Path) -> Format:
    """The format a file's name tells, with or without the ending of a compression."""
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in COMPRESSION_ENDINGS:
        endings.pop()
    if endings and (found := _FORMATS_BY_ENDING.get(endings[-1])):
        return found
    known = ", ".join(_FORMATS_BY_ENDING)
    raise UserError(f"The name of {path} does not tell its format ({known}); set format to tsv, jsonl, tmx or parquet.")
