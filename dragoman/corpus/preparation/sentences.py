"""The sentences of dev and test, which training must not see on either side."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dragoman.run.files import read_json, write_json


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
