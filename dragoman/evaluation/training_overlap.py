"""Counts test sentences that are also in the training data: a model may know their translations by heart.

The ids of the encoded test sentences are looked for in the shards of the training split, one shard at a time. A few
ids of every sentence rule nearly all of them out in numpy; the rest are compared whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.cleaning.normalisation import normalise, strip_only
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.shards import OFFSET_DTYPE, Shard, Side, ids_path, map_array, offsets_path, pack_ids
from dragoman.evaluation.evaluation_set import EvaluationSet

_BLOCK = 500_000
"""Sentences looked at together: about 30 MB."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class TrainingOverlap:
    """Number of lines of a test set that the training data contains too."""

    num_sentences: int
    sources: int
    references: int
    """Lines of which a reference is the target of some training pair."""
    pairs: int
    """Lines of which the source and a reference are one pair of the training data."""

    def figures(self) -> dict[str, int]:
        """Returns the values that --json prints."""
        return {"sources": self.sources, "references": self.references, "pairs": self.pairs}

    def describe(self) -> str:
        """Says it in a sentence."""
        if not self.sources + self.references:
            return f"None of the {self.num_sentences:,} test sentences is in the training data."
        return (
            f"In the training data are {self.sources:,} sources, {self.references:,} references and {self.pairs:,} "
            f"whole pairs of the {self.num_sentences:,} test sentences: the model may know them by heart."
        )


def count_overlap(test_set: EvaluationSet, corpus: PreparedCorpus) -> TrainingOverlap:
    """Counts the lines of a test set whose sentences are in the training split, after the corpus's normalisation."""
    wanted = _WantedSentences(test_set, corpus)
    shards = corpus.manifest.splits["train"].shards
    found_sources: set[bytes] = set()
    found_targets: set[bytes] = set()
    found_pairs: set[tuple[bytes, bytes]] = set()
    for index, shard in enumerate(shards.shards):
        sources, targets = (
            dict(_find(corpus.folder / "train", index, side, np.dtype(shards.dtype), shard, wanted.texts(side)))
            for side in ("source", "target")
        )
        found_sources.update(sources.values())
        found_targets.update(targets.values())
        found_pairs.update((sources[pair], targets[pair]) for pair in sources.keys() & targets.keys())
    return wanted.count(found_sources, found_targets, found_pairs)


class _WantedSentences:
    """The sentences of a test set as packed ids; a source has one variant for each tag of the training data."""

    def __init__(self, test_set: EvaluationSet, corpus: PreparedCorpus) -> None:
        settings = corpus.manifest.settings
        clean = normalise if settings.get("normalise", True) else strip_only
        tags = [each.get("tag") for each in settings.get("corpora", ())]
        tags = [tag for tag in dict.fromkeys(tags) if tag]
        dtype = corpus.manifest.splits["train"].shards.dtype
        self.num_sentences = test_set.num_sentences
        self._sources: list[list[bytes]] = [[] for _ in range(self.num_sentences)]
        if test_set.sources is not None:
            plain = [_without_tag(clean(source), tags) for source in test_set.sources]
            for tag in (None, *tags):
                tagged = [f"{tag} {source}" if tag else source for source in plain]
                for variants, ids in zip(
                    self._sources, pack_ids(corpus.source_tokenizer.encode_lines(tagged), dtype), strict=True
                ):
                    variants.append(ids)
        self._targets = [
            pack_ids(corpus.target_tokenizer.encode_lines([clean(each) for each in line]), dtype)
            for line in test_set.references_by_line
        ]

    def texts(self, side: Side) -> set[bytes]:
        """All different sentences of one side; empty ones are in no corpus."""
        lines = self._sources if side == "source" else self._targets
        return {ids for line in lines for ids in line if ids}

    def count(self, sources: set[bytes], targets: set[bytes], pairs: set[tuple[bytes, bytes]]) -> TrainingOverlap:
        """Counts the lines that have one of these sentences."""
        rows = list(zip(self._sources, self._targets, strict=True))
        return TrainingOverlap(
            self.num_sentences,
            sum(not sources.isdisjoint(line) for line, _ in rows),
            sum(not targets.isdisjoint(line) for _, line in rows),
            sum(any((source, target) in pairs for source in ours for target in theirs) for ours, theirs in rows),
        )


def _without_tag(source: str, tags: Sequence[str]) -> str:
    """Removes the tag that a prepared test set may carry."""
    return next((source.removeprefix(f"{tag} ") for tag in tags if source.startswith(f"{tag} ")), source)


def _find(
    folder: Path, index: int, side: Side, dtype: np.dtype[Any], shard: Shard, wanted: set[bytes]
) -> Iterator[tuple[int, bytes]]:
    """Yields the index of every sentence of a shard that is one of the wanted ones, and its ids."""
    if not wanted:
        return
    num_tokens = shard.num_source_tokens if side == "source" else shard.num_target_tokens
    ids = map_array(ids_path(folder, index, side), dtype, num_tokens)
    offsets = map_array(offsets_path(folder, index, side), OFFSET_DTYPE, shard.num_pairs + 1)
    known = _keys_of_texts(wanted, dtype)
    for begin in range(0, shard.num_pairs, _BLOCK):
        bounds = np.asarray(offsets[begin : begin + _BLOCK + 1])
        start = int(bounds[0])
        block = np.asarray(ids[start : int(bounds[-1])])
        for place in np.flatnonzero(np.isin(_keys(block, bounds - start), known)).tolist():
            sentence = block[bounds[place] - start : bounds[place + 1] - start].tobytes()
            if sentence in wanted:
                yield begin + place, sentence


def _keys_of_texts(texts: set[bytes], dtype: np.dtype[Any]) -> NDArray[np.uint64]:
    sentences = [np.frombuffer(text, dtype) for text in texts]
    bounds = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])]).astype(np.int64)
    return np.unique(_keys(np.concatenate(sentences), bounds))


def _keys(ids: NDArray[Any], bounds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns a number for every sentence, made of its length and five of its ids; 0 for an empty one."""
    begins, lengths = bounds[:-1], np.diff(bounds)
    keys = lengths.astype(np.uint64)
    filled = lengths > 0
    begins, lengths = begins[filled], lengths[filled]
    mixed = keys[filled]
    for quarter in range(5):
        places = begins + (lengths - 1) * quarter // 4
        mixed = (mixed ^ ids[places].astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    keys[filled] = mixed
    return keys
