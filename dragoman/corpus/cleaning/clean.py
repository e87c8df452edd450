"""Cleans one block of pairs: what is left, and what was dropped for which reason."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dragoman.corpus.cleaning.checks import Check, build_checks
from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.normalisation import normalise, strip_only

MAX_EXAMPLES = 3
_MAX_EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class Example:
    """A dropped pair, cut for display, and where it stands."""

    place: str
    source: str
    target: str


@dataclass
class Dropped:
    """How many pairs one filter dropped, and the first few of them."""

    num_pairs: int = 0
    examples: list[Example] = field(default_factory=list)

    def count(self, source: str, target: str, index: int, place_of: Callable[[int], str]) -> None:
        """Counts one more pair; the place of its index is asked for only if the pair becomes an example."""
        self.num_pairs += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(Example(place_of(index), _cut_for_display(source), _cut_for_display(target)))

    def merge(self, later: "Dropped") -> None:
        """Adds what was dropped further on in the text."""
        self.num_pairs += later.num_pairs
        self.examples += later.examples[: MAX_EXAMPLES - len(self.examples)]


@dataclass
class CleanBlock:
    """The pairs that are left, normalised and in order, and those that are not, by filter."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """Where each pair that is left stood in the block as it was read."""
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def count(self, name: str, positions: Iterable[int], place_of: Callable[[int], str]) -> None:
        """Counts pairs that are left, by their positions, for a filter that knows more than the block."""
        for position in positions:
            found = self.dropped.setdefault(name, Dropped())
            found.count(self.sources[position], self.targets[position], self.indices[position], place_of)

    def remove(self, positions: Iterable[int]) -> None:
        """Takes pairs out of those that are left."""
        removed = set(positions)
        kept = [position for position in range(len(self.sources)) if position not in removed]
        self.sources = [self.sources[position] for position in kept]
        self.targets = [self.targets[position] for position in kept]
        self.indices = [self.indices[position] for position in kept]


def clean_block(
    block_sources: Sequence[str], block_targets: Sequence[str], rules: Rules, place_of: Callable[[int], str]
) -> CleanBlock:
    """Normalises and filters pairs; each dropped one is counted for the first filter of `rules.order()` it fails.

    `place_of` names the place of the pair with that index, e.g. "my.en, line 12". Filters that need the whole corpus
    (duplicates, near_duplicates, overlap) are not applied here.
    """
    tidy = normalise if rules.normalise else strip_only
    checks = build_checks(rules)
    block = CleanBlock()
    pairs = zip(map(tidy, block_sources), map(tidy, block_targets), strict=True)
    for index, (source, target) in enumerate(pairs):
        failed = _first_failed(checks, source, target)
        if failed is None:
            block.sources.append(source)
            block.targets.append(target)
            block.indices.append(index)
        else:
            block.dropped.setdefault(failed, Dropped()).count(source, target, index, place_of)
    return block


def _first_failed(checks: list[tuple[str, Check]], source: str, target: str) -> str | None:
    for name, fails in checks:
        if fails(source, target):
            return name
    return None


def _cut_for_display(text: str) -> str:
    if len(text) > _MAX_EXAMPLE_CHARACTERS:
        text = text[: _MAX_EXAMPLE_CHARACTERS - 1] + "…"
    # Lone surrogates (from escapes in JSON) could not be written to a file.
    return text.encode("utf-8", "replace").decode("utf-8")
