"""A prepared corpus: a folder with tokenizers, memory-mapped splits, plain dev and test text, and a manifest.

manifest.json  tokenizer.model (joint) or tokenizer.source.model and tokenizer.target.model (separate)
train/ dev/ test/ (shards)  dev.source.txt dev.target.txt test.source.txt test.target.txt
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from dragoman.corpus.shards import ParallelIds, Shards, Side, check_size
from dragoman.corpus.text import TextFile
from dragoman.corpus.tokenizer import Tokenizer, padded_vocab_size
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, sha256

FORMAT_VERSION: Final = 1
MANIFEST_NAME = "manifest.json"

SplitName = Literal["train", "dev", "test"]
SplitWithText = Literal["dev", "test"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputRecord(_Record):
    """A file the user gave."""

    path: str
    num_bytes: NonNegativeInt
    num_lines: NonNegativeInt
    sha256: str

    @classmethod
    def of(cls, file: TextFile) -> "InputRecord":
        """Records a file that was read to its end."""
        return cls(path=str(file.path), num_bytes=file.num_bytes, num_lines=file.num_lines, sha256=file.sha256)


class FileRecord(_Record):
    """A file of the prepared corpus."""

    num_bytes: NonNegativeInt
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """Records a file that was written."""
        return cls(num_bytes=path.stat().st_size, sha256=sha256(path))


class DroppedRecord(_Record):
    """Pairs that were given but are in no split, by reason."""

    blank: NonNegativeInt
    """One side was blank."""
    reserved_character: NonNegativeInt
    """One side held a character the tokenizer keeps for itself."""
    overlap: NonNegativeInt
    """A training pair shared its source or target sentence with dev or test."""


class SettingsRecord(_Record):
    """What the user asked for, besides the text."""

    vocab_size: PositiveInt | None
    separate: bool
    seed: NonNegativeInt
    held_out: PositiveInt | None


class SplitRecord(_Record):
    """One split: how much text, how many tokens, where it came from."""

    num_pairs: NonNegativeInt
    num_lines_read: NonNegativeInt
    """Lines a side in the files the split was taken from, before anything was left out."""
    num_source_bytes: NonNegativeInt
    num_target_bytes: NonNegativeInt
    """UTF-8 bytes of the split's own text, without line ends."""
    num_source_tokens: NonNegativeInt
    num_target_tokens: NonNegativeInt
    is_held_out: bool
    """Whether it was drawn from the training files."""
    source_files: tuple[InputRecord, ...]
    target_files: tuple[InputRecord, ...]
    shards: Shards


class Manifest(_Record):
    """All that is known about a prepared corpus; written last."""

    format_version: Literal[1]
    dragoman_version: str
    created: str
    settings: SettingsRecord
    num_source_pieces: PositiveInt
    num_target_pieces: PositiveInt
    dropped: DroppedRecord
    splits: dict[SplitName, SplitRecord]
    files: dict[str, FileRecord]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of what a training run would read: no dates, places, or names of the user's files."""
        content = {
            "format_version": self.format_version,
            "splits": {name: split.shards.model_dump(mode="json") for name, split in self.splits.items()},
            "files": {name: record.sha256 for name, record in self.files.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tokenizer_path(folder: Path, side: Side, is_joint: bool) -> Path:
    """Where the tokenizer of one side is stored; the same file for both if it is joint."""
    return folder / ("tokenizer.model" if is_joint else f"tokenizer.{side}.model")


def text_path(folder: Path, split: SplitWithText, side: Side) -> Path:
    """Where the plain text of one side of dev or test is stored."""
    return folder / f"{split}.{side}.txt"


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest; a missing, malformed or foreign one is a UserError."""
    path = folder / MANIFEST_NAME
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a prepared corpus: it has no {MANIFEST_NAME}.") from None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except ValueError:  # not JSON, or not UTF-8
        raise UserError(f"{path} is damaged (no valid JSON); prepare the corpus again.") from None
    _check_version(path, content)
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as problem:
        place = ".".join(str(part) for part in problem.errors()[0]["loc"])
        raise UserError(f"{path} is malformed at {place}; prepare the corpus again.") from None
    if missing := {"train", "dev", "test"} - set(manifest.splits):
        raise UserError(f"{path} is malformed: it lacks {min(missing)}; prepare the corpus again.")
    return manifest


def _check_version(path: Path, content: Any) -> None:
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version}, but this program reads version {FORMAT_VERSION}; "
            "prepare the corpus again with this program."
        )


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus, opened: cheap, because nothing is read before it is asked for."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> "PreparedCorpus":
        """Reads the manifest and checks every file's size, so that damage shows before training and not in it."""
        manifest = read_manifest(folder)
        for name, record in manifest.files.items():
            check_size(folder / name, record.num_bytes)
        return cls(folder, manifest)

    @property
    def is_joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return not self.manifest.settings.separate

    @property
    def fingerprint(self) -> str:
        """Tells prepared corpora apart by content, wherever and whenever they were made."""
        return self.manifest.fingerprint

    @property
    def source_vocab_size(self) -> int:
        """Rows of the source embedding, known without loading the tokenizer."""
        return padded_vocab_size(self.manifest.num_source_pieces)

    @property
    def target_vocab_size(self) -> int:
        """Rows of the target embedding, known without loading the tokenizer."""
        return padded_vocab_size(self.manifest.num_target_pieces)

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the source language."""
        return Tokenizer.load(tokenizer_path(self.folder, "source", self.is_joint))

    @cached_property
    def target_tokenizer(self) -> Tokenizer:
        """The tokenizer of the target language; the source's own if the vocabulary is joint."""
        if self.is_joint:
            return self.source_tokenizer
        return Tokenizer.load(tokenizer_path(self.folder, "target", self.is_joint))

    def split(self, name: SplitName) -> ParallelIds:
        """Opens one split memory-mapped."""
        return ParallelIds.open(self.folder / name, self.manifest.splits[name].shards)

    def text(self, name: SplitWithText) -> tuple[list[str], list[str]]:
        """The plain source and target lines of dev or test, for scores against untokenised references."""
        return self._read_text(name, "source"), self._read_text(name, "target")

    def _read_text(self, name: SplitWithText, side: Side) -> list[str]:
        path = text_path(self.folder, name, side)
        # Bytes, because text mode would also split at \r; only \n ends a line.
        lines = path.read_bytes().decode("utf-8").split("\n")[:-1]
        if len(lines) != self.manifest.splits[name].num_pairs:
            raise UserError(f"{path} has {len(lines):,} lines, not one a pair; prepare the corpus again.")
        return lines
