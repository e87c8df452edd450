"""A prepared corpus: a folder with tokenizers, memory-mapped splits, plain dev and test text, and a manifest.

manifest.json  tokenizer.model (joint) or tokenizer.source.model and tokenizer.target.model (separate)
train/ dev/ test/ (shards)  dev.source.txt dev.target.txt test.source.txt test.target.txt
train/CORPUS.members (indices of the training pairs of that corpus, if there are several)
cleaning.md statistics.md (for people)
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from dragoman.corpus.settings import CorpusName
from dragoman.corpus.shards import ParallelIds, Shards, Side, StoredFile, check_size, map_array
from dragoman.corpus.tokenizer import Tokenizer, padded_vocab_size
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import read_json, require_known_format

FORMAT_VERSION: Final = 2
MANIFEST_NAME = "manifest.json"
MEMBER_DTYPE = np.dtype("<i8")

SplitName = Literal["train", "dev", "test"]
SplitWithText = Literal["dev", "test"]
SPLIT_NAMES: tuple[SplitName, ...] = get_args(SplitName)
SPLITS_WITH_TEXT: tuple[SplitWithText, ...] = get_args(SplitWithText)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class InputRecord(_Record):
    """A file that the user gave."""

    path: str
    num_bytes: NonNegativeInt
    sha256: str


class SideRecord(_Record):
    """Measurements of one side of a split."""

    num_bytes: NonNegativeInt
    """UTF-8 bytes of the text, line ends included: the size of a plain text file."""
    num_words: NonNegativeInt
    num_tokens: NonNegativeInt
    """Number of subwords, without EOS."""
    num_piece_bytes: NonNegativeInt
    """Size of the text as a file of subwords separated by blanks, line ends included."""
    num_unknown: NonNegativeInt
    """Subwords that stand for characters the vocabulary lacks."""
    num_pieces_used: NonNegativeInt
    """Number of different subwords that occur."""
    length_counts: dict[NonNegativeInt, PositiveInt]
    """Number of sentences by number of subwords."""


class SplitRecord(_Record):
    """Sizes of one split, and the files it came from."""

    num_pairs: NonNegativeInt
    num_lines_read: NonNegativeInt
    """Pairs in the files that the split was taken from, before any was dropped."""
    source: SideRecord
    target: SideRecord
    longer_length_counts: dict[NonNegativeInt, PositiveInt]
    """Number of pairs by number of subwords of the longer side."""
    is_held_out: bool
    """Whether it was taken from the training files."""
    inputs: tuple[InputRecord, ...]
    shards: Shards


class CorpusRecord(_Record):
    """One corpus of the training text."""

    name: CorpusName
    weight: NonNegativeFloat
    num_pairs: NonNegativeInt


class TokenizerRecord(_Record):
    """Sizes of the vocabulary and of the text it was trained on."""

    is_joint: bool
    num_source_pieces: PositiveInt
    num_target_pieces: PositiveInt
    num_sample_lines: NonNegativeInt
    """Lines that each tokenizer was trained on; 0 if it was reused."""
    num_sample_bytes: NonNegativeInt


class Manifest(_Record):
    """Everything known about a prepared corpus; written last."""

    format_version: Literal[2]
    dragoman_version: str
    created: str
    key: str
    """SHA-256 of everything that decides the content: settings and hashes of the given files."""
    settings: dict[str, Any]
    """Settings, as `[prepare]` of a config file has them."""
    tokenizer: TokenizerRecord
    corpora: tuple[CorpusRecord, ...]
    cleaning: dict[str, Any]
    """Pairs that each filter dropped from the training text, with examples."""
    bad_lines: tuple[str, ...]
    """Lines that could not be read and were skipped, each with the reason."""
    splits: dict[SplitName, SplitRecord]
    files: dict[str, StoredFile]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the files that training reads, without dates and names of the user's files."""
        content = {
            "format_version": self.format_version,
            "splits": {name: split.shards.model_dump(mode="json") for name, split in self.splits.items()},
            # The pages for people contain the names of the user's files.
            "files": {name: record.sha256 for name, record in self.files.items() if not name.endswith(".md")},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tokenizer_path(folder: Path, side: Side, is_joint: bool) -> Path:
    """File of the tokenizer of one side; the same for both if it is joint."""
    return folder / ("tokenizer.model" if is_joint else f"tokenizer.{side}.model")


def text_path(folder: Path, split: SplitWithText, side: Side) -> Path:
    """File with the plain text of one side of dev or test."""
    return folder / f"{split}.{side}.txt"


def members_path(folder: Path, corpus_name: str) -> Path:
    """File with the indices of the training pairs of one corpus."""
    return folder / "train" / f"{corpus_name}.members"


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest; a missing or malformed one is a UserError."""
    path = folder / MANIFEST_NAME
    try:
        content = read_json(path)
    except FileNotFoundError:
        if not folder.exists():
            raise UserError(
                f"There is no folder {folder} with prepared data. If it was moved: --set data.prepared=FOLDER."
            ) from None
        raise UserError(f"{folder} is not a prepared corpus: it has no {MANIFEST_NAME}.") from None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {describe_os_error(problem)}.") from None
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
    require_known_format(path, version, FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version}, but this program reads version {FORMAT_VERSION}; "
            "prepare the corpus again with this program."
        )


@dataclass(frozen=True)
class TrainCorpus:
    """A named corpus within the training text."""

    name: str
    weight: float
    """How often each of its pairs is used per epoch, unless the config of the run changes it."""
    num_pairs: int
    members: NDArray[np.int64] | None
    """Sorted indices of its pairs in the training split, memory-mapped; None if it is the whole split."""


@dataclass(frozen=True)
class PreparedCorpus:
    """An open prepared corpus; its files are read when they are needed."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> "PreparedCorpus":
        """Reads the manifest and checks the size of every file, so that damage shows before training starts."""
        manifest = read_manifest(folder)
        for name, record in manifest.files.items():
            check_size(folder / name, record.num_bytes)
        return cls(folder, manifest)

    @property
    def is_joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self.manifest.tokenizer.is_joint

    @property
    def fingerprint(self) -> str:
        """Hash of the content, independent of where and when the corpus was prepared."""
        return self.manifest.fingerprint

    @property
    def source_vocab_size(self) -> int:
        """Number of rows of the source embedding, without loading the tokenizer."""
        return padded_vocab_size(self.manifest.tokenizer.num_source_pieces)

    @property
    def target_vocab_size(self) -> int:
        """Number of rows of the target embedding, without loading the tokenizer."""
        return padded_vocab_size(self.manifest.tokenizer.num_target_pieces)

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        """Tokenizer of the source language."""
        return Tokenizer.load(tokenizer_path(self.folder, "source", self.is_joint))

    @cached_property
    def target_tokenizer(self) -> Tokenizer:
        """Tokenizer of the target language; that of the source if the vocabulary is joint."""
        if self.is_joint:
            return self.source_tokenizer
        return Tokenizer.load(tokenizer_path(self.folder, "target", self.is_joint))

    @cached_property
    def train_corpora(self) -> tuple[TrainCorpus, ...]:
        """Corpora of the training text, in the order they were given."""
        records = self.manifest.corpora
        if len(records) == 1:
            return (TrainCorpus(records[0].name, records[0].weight, records[0].num_pairs, members=None),)
        return tuple(
            TrainCorpus(
                record.name,
                record.weight,
                record.num_pairs,
                map_array(members_path(self.folder, record.name), MEMBER_DTYPE, record.num_pairs),
            )
            for record in records
        )

    def facts(self) -> dict[str, Any]:
        """Manifest without the shards: what a report needs even if the corpus is gone."""
        return self.manifest.model_dump(mode="json", exclude={"files": True, "splits": {"__all__": {"shards"}}})

    @property
    def train_length_counts(self) -> dict[int, int]:
        """Number of training pairs by number of subwords of the longer side, EOS not counted."""
        return self.manifest.splits["train"].longer_length_counts

    def split(self, name: SplitName) -> ParallelIds:
        """Opens one split memory-mapped."""
        return ParallelIds.open(self.folder / name, self.manifest.splits[name].shards)

    def text(self, name: SplitWithText) -> tuple[list[str], list[str]]:
        """Reads the plain source and target lines of dev or test, for scores against untokenised references."""
        return self._read_text(name, "source"), self._read_text(name, "target")

    def _read_text(self, name: SplitWithText, side: Side) -> list[str]:
        path = text_path(self.folder, name, side)
        # Bytes, because text mode would also split at \r; only \n ends a line.
        lines = path.read_bytes().decode("utf-8").split("\n")[:-1]
        if len(lines) != self.manifest.splits[name].num_pairs:
            raise UserError(f"{path} has {len(lines):,} lines instead of one per pair; prepare the corpus again.")
        return lines
