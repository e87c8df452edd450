"""Copies of a pair: exact ones, and those that differ in typography only."""

from collections.abc import Iterable

from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.keys import near_key


def find_repeats(sources: Iterable[str], targets: Iterable[str], rules: Rules) -> dict[str, list[int]]:
    """The indices of pairs that were there before, by the filter that finds them; the first of them is no copy."""
    found: dict[str, list[int]] = {"duplicates": [], "near_duplicates": []}
    if not (rules.duplicates or rules.near_duplicates):
        return found
    seen: set[str] = set()
    seen_nearly: set[str] = set()
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if rules.duplicates and _is_repeated(f"{source}\n{target}", seen):
            found["duplicates"].append(index)
        elif rules.near_duplicates and _is_repeated(near_key(source, target), seen_nearly):
            found["near_duplicates"].append(index)
    return found


def _is_repeated(key: str, seen: set[str]) -> bool:
    """Whether the key was seen before; from now on it is."""
    num_seen = len(seen)
    seen.add(key)
    return len(seen) == num_seen
