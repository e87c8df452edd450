"""Reads parallel text of any format as blocks of pairs, and joins subwords that the text was split into."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

from dragoman.corpus.formats.blocks import BadLines, Block, Reading, Unreadable, cut_blocks
from dragoman.corpus.formats.lines import PlainReader
from dragoman.corpus.formats.parquet import ParquetReader
from dragoman.corpus.formats.tmx import TmxReader
from dragoman.corpus.formats.tsv_and_jsonl import JsonlReader, Languages, TsvReader
from dragoman.corpus.settings import Format, SubwordSetting, TextSettings
from dragoman.run.decompressors import COMPRESSION_ENDINGS
from dragoman.run.errors import UsageError, UserError

_SAMPLE_LINES = 1000
_MIN_SHARE_OF_SPLIT_LINES = 0.2
_JOINER = re.compile("@@( |$)", re.MULTILINE)
SubwordKind = Literal["none", "sentencepiece", "subword-nmt"]

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

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs of any length, in order."""

    def notices(self) -> list[str]:
        """Returns messages for the user."""


class ParallelText:
    """Opens the files of one TextSettings for reading."""

    def __init__(
        self, settings: TextSettings, languages: Languages | None, bad_lines: BadLines, max_expansion: int
    ) -> None:
        self.num_read = 0
        """Pairs read so far, bad ones included."""
        self.num_bytes_read = 0
        """Bytes of the files read so far, of `num_bytes`; compressed bytes if they are compressed."""
        self.num_bytes = sum(path.stat().st_size for path in settings.paths if path.is_file())
        self._settings = settings
        self._bad_lines = bad_lines
        self._reader = self._build_reader(languages, max_expansion)
        self._kinds: tuple[SubwordKind, SubwordKind] = ("none", "none")

    @property
    def what(self) -> str:
        """What is numbered: "line", "row" or "unit"."""
        return self._reader.what

    def blocks(self) -> Iterator[Block]:
        """Yields all pairs in order; a bad line ends a block, so that the numbers in it stay correct."""
        blocks = cut_blocks(self._reader.runs())
        first_blocks = _take_sample(blocks)
        self._kinds = self._choose_kinds(first_blocks)
        for block in chain(first_blocks, blocks):
            self.num_read += len(block.sources)
            yield Block(
                block.first_number,
                join_subwords(self._kinds[0], block.sources),
                join_subwords(self._kinds[1], block.targets),
            )

    def notices(self) -> list[str]:
        """Returns messages about the text for the user, once it is read."""
        messages = self._reader.notices()
        for side, kind in zip(self._names_of_sides(), self._kinds, strict=True):
            if kind != "none":
                splitter = "SentencePiece (▁)" if kind == "sentencepiece" else "subword-nmt (@@)"
                messages.append(f"{side} was split into subwords by {splitter}; they were joined again.")
        return messages

    def _build_reader(self, languages: Languages | None, max_expansion: int) -> PairReader:
        settings, reading = self._settings, Reading(max_expansion, self._add_bad_line, self._note_bytes)
        if settings.source is not None and settings.target is not None:
            return PlainReader(settings.source, settings.target, reading)
        assert settings.file is not None, "TextSettings has either two files or one"
        match settings.format or format_of(settings.file):
            case "tsv":
                return TsvReader(settings.file, settings.columns, reading)
            case "jsonl":
                return JsonlReader(settings.file, languages, reading)
            case "tmx":
                return TmxReader(settings.file, languages, reading)
            case "parquet":
                return ParquetReader(settings.file, languages, reading)
            case "plain":
                raise UsageError(f"{settings.file}: plain text is two files; set source and target instead of file.")

    def _add_bad_line(self, path: Path, number: int, fault: Unreadable) -> None:
        self.num_read += 1
        self._bad_lines.add(path, number, fault.reason, fault.advice, self.what)

    def _note_bytes(self, num_bytes: int) -> None:
        self.num_bytes_read += num_bytes

    def _choose_kinds(self, blocks: list[Block]) -> tuple[SubwordKind, SubwordKind]:
        sources = [line for block in blocks for line in block.sources]
        targets = [line for block in blocks for line in block.targets]
        setting = self._settings.pieces
        return _choose_kind(setting, sources[:_SAMPLE_LINES]), _choose_kind(setting, targets[:_SAMPLE_LINES])

    def _names_of_sides(self) -> tuple[str, str]:
        if self._settings.file is None:
            return str(self._settings.source), str(self._settings.target)
        return f"The source of {self._settings.file}", f"The target of {self._settings.file}"


def _take_sample(blocks: Iterator[Block]) -> list[Block]:
    """Takes enough blocks to detect subwords: the first one, or more if bad lines made it short."""
    sample: list[Block] = []
    while sum(len(block.sources) for block in sample) < _SAMPLE_LINES:
        block = next(blocks, None)
        if block is None:
            break
        sample.append(block)
    return sample


def format_of(path: Path) -> Format:
    """Returns the format by the file name; an ending such as .gz is ignored."""
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in COMPRESSION_ENDINGS:
        endings.pop()
    if endings and (found := _FORMATS_BY_ENDING.get(endings[-1])):
        return found
    known = ", ".join(_FORMATS_BY_ENDING)
    raise UserError(f"The name of {path} does not show its format ({known}); set format to tsv, jsonl, tmx or parquet.")


def detect_subwords(lines: Sequence[str]) -> SubwordKind:
    """Detects which program split the first lines of a side into subwords, if any."""
    filled = [line for line in lines if line and not line.isspace()]
    if filled and all(line.startswith("▁") for line in filled):
        return "sentencepiece"
    num_split = sum("@@ " in line for line in lines)
    if num_split and num_split >= _MIN_SHARE_OF_SPLIT_LINES * len(lines):
        return "subword-nmt"
    return "none"


def _choose_kind(setting: SubwordSetting, lines: Sequence[str]) -> SubwordKind:
    return detect_subwords(lines) if setting == "auto" else setting


def join_subwords(kind: SubwordKind, lines: list[str]) -> list[str]:
    """Restores the lines before they were split; all at once, because that is much faster."""
    if kind == "none" or not lines:
        return lines
    text = "\n".join(lines)
    if kind == "subword-nmt":
        return _JOINER.sub("", text).split("\n")
    # Spaces separate the subwords, and ▁ was a space, except for the one that SentencePiece adds before a sentence.
    return text.replace(" ", "").replace("▁", " ").replace("\n ", "\n").removeprefix(" ").split("\n")
