"""Things that all stages of a preparation use: their engine and messages, records of finished tasks, sentence sets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from dragoman.corpus.preparation.engine import Engine
from dragoman.run.files import read_json, write_json, write_text

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

    def save(self, path: Path) -> None:
        """Writes the record."""
        write_text(path, self.model_dump_json(), is_durable=False)

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
