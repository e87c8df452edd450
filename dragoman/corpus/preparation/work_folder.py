"""Folders that hold the work of a preparation, so that an interrupted or similar preparation does not repeat it.

.NAME.partial/     unfinished work for the output NAME, used by one process at a time
  text-KEY/        cleaned and shuffled training text (settings of the tokenizer do not change it)
  shards-KEY/      tokenizers and encoded shards (names and weights of the corpora do not change them)
  corpus/          the prepared corpus while it is put together
.dragoman-work/    text-KEY of the last finished preparation in this folder, kept for the next one

KEY is a hash of all that decides the content of the stage's files, so equal names mean equal content.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from dragoman.corpus.preparation.engine import Engine, Interrupted
from dragoman.corpus.preparation.inputs import StageKeys
from dragoman.run.errors import UserError
from dragoman.run.files import fsync_folder, read_json, try_lock, write_json, write_text

Say = Callable[[str], None]
"""Shows a message to the user."""
Progress = Callable[[str, int, int | None], None]
"""(what is being done, pairs done, pairs in all if known)"""


@dataclass(frozen=True)
class StageContext:
    """The engine that runs the tasks of a stage, and how the stage reports to the user."""

    engine: Engine
    say: Say
    progress: Progress


class TaskRecord(BaseModel):
    """Result of a finished task, saved after all files that the task writes."""

    model_config = ConfigDict(extra="forbid")

    def save(self, path: Path, *folders: Path) -> None:
        """Writes the record after the names of all files beside it and in `folders` are on disk, like their content.

        Otherwise a power failure could leave a record of files that are gone.
        """
        for folder in (path.parent, *folders):
            fsync_folder(folder)
        write_text(path, self.model_dump_json())
        fsync_folder(path.parent)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a record that `save` wrote."""
        return cls.model_validate_json(path.read_bytes())


@dataclass
class SentenceSet:
    """Source sentences and target sentences that training text must not share."""

    sources: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)

    def add(self, source: str, target: str) -> None:
        """Adds both sentences of a pair."""
        self.sources.add(source)
        self.targets.add(target)

    def has_either(self, source: str, target: str) -> bool:
        """Whether one of the two sentences is in the set."""
        return source in self.sources or target in self.targets

    def has_both(self, source: str, target: str) -> bool:
        """Whether both sentences are in the set."""
        return source in self.sources and target in self.targets

    def save(self, path: Path) -> None:
        """Writes the set for worker processes."""
        write_json(path, [sorted(self.sources), sorted(self.targets)], is_durable=False)


@lru_cache(maxsize=2)
def load_sentences(path: Path) -> SentenceSet:
    """Reads a set that `save` wrote, once per process."""
    sources, targets = read_json(path)
    return SentenceSet(set(sources), set(targets))


_KEY_LETTERS = 12
_LOCK_NAME = "lock"
KEPT_FOLDER = ".dragoman-work"


@dataclass(frozen=True)
class TextFolder:
    """File names of the cleaned and shuffled training text."""

    path: Path

    def make(self) -> None:
        """Makes the folders for the files."""
        for folder in (self.blocks, self.shuffled):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def record(self) -> Path:
        """Result of the stages; written last."""
        return self.path / "text.json"

    @property
    def given_sentences(self) -> Path:
        """Sentences of the dev and test sets that the user gave."""
        return self.path / "given_sentences.json"

    @property
    def block_origins(self) -> Path:
        """List with the input of each cleaned block."""
        return self.path / "blocks.json"

    @property
    def blocks(self) -> Path:
        """Folder of the cleaned blocks; removed when they are shuffled."""
        return self.path / "cleaned"

    @property
    def shuffled(self) -> Path:
        """Folder of the shuffled shards."""
        return self.path / "shuffled"

    def block(self, index: int, ending: str) -> Path:
        """A file of one cleaned block."""
        return self.blocks / f"{index:06d}.{ending}"

    def shard(self, index: int, ending: str) -> Path:
        """A file of one shuffled shard, still text."""
        return self.shuffled / f"{index:05d}.{ending}"


@dataclass(frozen=True)
class ShardsFolder:
    """File names of the tokenizers and the encoded shards."""

    path: Path

    def make(self) -> None:
        """Makes the folders for the files."""
        for folder in (self.path / "encoded", *(self.corpus / split for split in ("train", "dev", "test"))):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def corpus(self) -> Path:
        """Those files that become part of the prepared corpus."""
        return self.path / "corpus"

    @property
    def vocabulary(self) -> Path:
        """Record of the tokenizers; written when they are finished."""
        return self.path / "vocabulary.json"

    @property
    def held_out_sentences(self) -> Path:
        """Sentences of the dev and test sets that were held out of the training text."""
        return self.path / "held_out_sentences.json"

    def sample(self, side: str) -> Path:
        """Lines that a tokenizer is trained on."""
        return self.path / f"sample.{side}.txt"

    def encoded(self, split: str, index: int, ending: str) -> Path:
        """A file about one encoded shard."""
        return self.path / "encoded" / f"{split}.{index:05d}.{ending}"


@dataclass(frozen=True)
class WorkFolder:
    """Work of one preparation."""

    path: Path
    text: TextFolder
    shards: ShardsFolder

    @property
    def corpus(self) -> Path:
        """The prepared corpus while it is put together."""
        return self.path / "corpus"

    @property
    def kept(self) -> Path:
        """Folder that keeps finished stages for the next preparation."""
        return self.path.parent / KEPT_FOLDER


@contextmanager
def open_work_folder(out: Path, keys: StageKeys) -> Iterator[WorkFolder]:
    """Opens the work for an output, with the stages that an earlier preparation finished; one process at a time.

    An error keeps the stages that are finished, for any preparation that can use them. An interruption leaves
    everything in place, for the same command to continue.
    """
    path = out.resolve().with_name(f".{out.name}.partial")
    text = TextFolder(path / f"text-{keys.text[:_KEY_LETTERS]}")
    shards = ShardsFolder(path / f"shards-{keys.shards[:_KEY_LETTERS]}")
    work = WorkFolder(path, text, shards)
    path.mkdir(parents=True, exist_ok=True)
    with try_lock(path / _LOCK_NAME) as is_ours:
        if not is_ours:
            raise UserError(f"{out} is being prepared by another process; wait for it, or stop it first.")
        _remove_other_work(work)
        for stage in (text, shards):
            if not stage.path.exists():
                _take_over(stage.path, path.parent)
            stage.make()
        try:
            yield work
        except Interrupted:
            raise
        except UserError:
            keep_finished_stages(work)
            shutil.rmtree(path, ignore_errors=True)
            raise


def _remove_other_work(work: WorkFolder) -> None:
    """Removes stages for other settings, and files that `write_then_rename` left incomplete when it was killed."""
    for path in work.path.iterdir():
        if path.is_dir() and path not in (work.text.path, work.shards.path):
            shutil.rmtree(path)
    for path in work.path.rglob(".*.partial"):
        path.unlink()


def _take_over(stage: Path, outputs: Path) -> None:
    """Moves a stage here from the last finished preparation in the folder, or from one that was interrupted."""
    # A rename either succeeds or finds nothing, so two processes cannot take the same stage.
    with suppress(OSError):
        (outputs / KEPT_FOLDER / stage.name).rename(stage)
        return
    for found in outputs.glob(f".*.partial/{stage.name}"):
        with suppress(OSError), try_lock(found.parent / _LOCK_NAME) as is_ours:
            if is_ours:
                found.rename(stage)
                return


def keep_finished_stages(work: WorkFolder) -> Path | None:
    """Moves finished stages to the kept folder, in place of its content; returns the folder if any is finished."""
    finished = [
        stage
        for stage, record in ((work.text.path, work.text.record), (work.shards.path, work.shards.vocabulary))
        if record.exists()
    ]
    if not finished:
        return None
    work.kept.mkdir(exist_ok=True)
    for number, old in enumerate(work.kept.iterdir()):
        with suppress(OSError):
            old.rename(work.path / f"replaced-{number}")
    for stage in finished:
        with suppress(OSError):  # another process may keep the same stage at this moment
            stage.rename(work.kept / stage.name)
    return work.kept


def publish(work: WorkFolder, out: Path) -> None:
    """Makes the finished corpus appear at `out`, completely or not at all."""
    for folder in (*(work.corpus / name for name in ("train", "dev", "test")), work.corpus):
        fsync_folder(folder)
    work.corpus.replace(out)
    fsync_folder(out.resolve().parent)


def remove_work(work: WorkFolder) -> None:
    """Removes everything that was not kept."""
    shutil.rmtree(work.path, ignore_errors=True)
    if not any(work.kept.glob("text-*")):  # shards are of no use without their text
        shutil.rmtree(work.kept, ignore_errors=True)


def link_tree(source: Path, target: Path) -> None:
    """Gives the files of a folder a second name; copies them where the file system has no hard links."""
    shutil.copytree(source, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with Path(target).open("rb+") as file:
            os.fsync(file.fileno())
