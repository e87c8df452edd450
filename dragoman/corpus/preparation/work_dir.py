"""The work folder of a preparation: finished tasks are found there again after an interruption."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from dragoman.corpus.preparation.engine import Engine, Interrupted
from dragoman.run.errors import UserError
from dragoman.run.files import fsync_folder, read_json, write_json, write_text

KEY_LETTERS = 12


@dataclass(frozen=True)
class WorkFolder:
    """The names of all that a preparation keeps between its stages."""

    path: Path

    @property
    def corpus(self) -> Path:
        """The prepared corpus as far as it is made."""
        return self.path / "corpus"

    @property
    def given_sentences(self) -> Path:
        """The sentences of the dev and test sets that were given."""
        return self.path / "given_sentences.json"

    @property
    def held_out_sentences(self) -> Path:
        """The sentences of the dev and test sets that were held out."""
        return self.path / "held_out_sentences.json"

    @property
    def blocks(self) -> Path:
        """Which input each cleaned block came from."""
        return self.path / "blocks.json"

    def sample(self, side: str) -> Path:
        """The lines a tokenizer is trained on."""
        return self.path / f"sample.{side}.txt"

    def cleaned(self, index: int, ending: str) -> Path:
        """A file of one cleaned block."""
        return self.path / "cleaned" / f"{index:06d}.{ending}"

    def shuffled(self, index: int, ending: str) -> Path:
        """A file of one shuffled shard, still text."""
        return self.path / "shuffled" / f"{index:05d}.{ending}"

    def encoded(self, split: str, index: int, ending: str) -> Path:
        """A file about one encoded shard."""
        return self.path / "encoded" / f"{split}.{index:05d}.{ending}"


@contextmanager
def open_work_folder(out: Path, key: str) -> Iterator[WorkFolder]:
    """Gives the folder to work in, new or as it was left; it is this process's alone for the block.

    It is removed if the block ends with an error in the input, and kept if it was interrupted.
    """
    work = WorkFolder(out.resolve().with_name(f".{out.name}.{key[:KEY_LETTERS]}.partial"))
    for folder in ("cleaned", "shuffled", "encoded", "corpus/train", "corpus/dev", "corpus/test"):
        (work.path / folder).mkdir(parents=True, exist_ok=True)
    with (work.path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{out} is being prepared by another process; wait for it, or stop it first.") from None
        _remove_half_written_files(work)
        try:
            yield work
        except Interrupted:
            raise
        except UserError:
            shutil.rmtree(work.path, ignore_errors=True)
            raise


def _remove_half_written_files(work: WorkFolder) -> None:
    """Removes what `write_aside` leaves where a process was killed; in the corpus it would be published."""
    for path in work.path.rglob(".*.partial"):
        path.unlink()


def publish(work: WorkFolder, out: Path) -> None:
    """Makes the finished corpus appear at `out`, whole, and removes the rest."""
    for folder in (*(work.corpus / name for name in ("train", "dev", "test")), work.corpus):
        fsync_folder(folder)
    work.corpus.replace(out)
    fsync_folder(out.resolve().parent)
    shutil.rmtree(work.path, ignore_errors=True)


def other_leftovers(out: Path, key: str) -> list[Path]:
    """Work folders of other preparations for the same output, which are not touched."""
    ours = f".{out.name}.{key[:KEY_LETTERS]}.partial"
    return [path for path in sorted(out.resolve().parent.glob(f".{out.name}.*.partial")) if path.name != ours]


Say = Callable[[str], None]
"""Tells a sentence."""
Progress = Callable[[str, int, int | None], None]
"""(what is being done, pairs done, pairs in all if known)"""


@dataclass(frozen=True)
class Workshop:
    """The folder to work in, who does the work, and how to speak to whoever started it."""

    folder: WorkFolder
    engine: Engine
    say: Say
    progress: Progress


class Finished(BaseModel):
    """The record of a finished piece of work, written after everything else of it."""

    model_config = ConfigDict(extra="forbid")

    def save(self, path: Path) -> None:
        """Writes the record."""
        write_text(path, self.model_dump_json(), is_durable=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the record that an earlier run of the same preparation wrote."""
        return cls.model_validate_json(path.read_bytes())


@dataclass
class Sentences:
    """A set of sentences for each side."""

    sources: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)

    def add(self, source: str, target: str) -> None:
        """Adds both sentences of a pair."""
        self.sources.add(source)
        self.targets.add(target)

    def share(self, source: str, target: str) -> bool:
        """Whether one of the two sentences is in the set."""
        return source in self.sources or target in self.targets

    def share_both(self, source: str, target: str) -> bool:
        """Whether both sentences are in the set, as those of its own pairs are."""
        return source in self.sources and target in self.targets

    def save(self, path: Path) -> None:
        """Writes them for worker processes."""
        write_json(path, [sorted(self.sources), sorted(self.targets)], is_durable=False)

    @classmethod
    def load(cls, path: Path) -> "Sentences":
        """Reads what `save` wrote."""
        sources, targets = read_json(path)
        return cls(set(sources), set(targets))


@lru_cache(maxsize=2)
def load_sentences(path: Path) -> Sentences:
    """Reads them once for all the pieces of work a process does."""
    return Sentences.load(path)
