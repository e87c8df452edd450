"""Is one run's BLEU better than another's, or is it chance? Paired bootstrap over the sentences both translated."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.run.folder import RunFolder

NUM_RESAMPLES = 2_000
NUM_COUNTS = 10
"""Of a sentence: both lengths, matching and possible n-grams of 1 to 4 words."""
MAX_SENTENCES = 100_000
MOST_WORDS = 1e9
"""Of a sentence; sums of more might overflow."""
SIGNIFICANT = 0.05

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """The dev set as a run translated it last."""

    step: int
    sources: list[str]
    references: list[str]
    counts: Counts


@dataclass(frozen=True)
class Difference:
    """How much better the second is than the first, in points of BLEU."""

    points: float
    low: float
    high: float
    """Nineteen times of twenty it is between these."""
    p: float
    """How likely at least such a difference is by the choice of sentences alone, either way round."""

    @property
    def is_significant(self) -> bool:
        """Whether one may speak of a difference."""
        return self.p < SIGNIFICANT


def read_judged(run: RunFolder) -> Judged | None:
    """The sentences of translations.jsonl; None where it is missing, damaged or not ours."""
    try:
        with run.translations.open(encoding="utf-8") as file:
            head = json.loads(file.readline())
            rows = [json.loads(line) for _, line in zip(range(MAX_SENTENCES), file, strict=False)]
        counts = np.array([row["bleu_counts"] for row in rows], dtype=np.float64).reshape(len(rows), NUM_COUNTS)
        texts = [[str(row[name]) for row in rows] for name in ("source", "reference")]
        return Judged(int(head["step"]), texts[0], texts[1], counts) if rows and _are_counts(counts) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _are_counts(counts: Counts) -> bool:
    """Whether BLEU can be reckoned from them: no more n-grams match than there are, nor are there more long ones."""
    matches, totals = counts[:, 2:6], counts[:, 6:]
    is_bounded = np.all((counts >= 0) & (counts <= MOST_WORDS))
    return bool(is_bounded and np.all(matches <= totals) and np.all(np.diff(totals, axis=1) <= 0))


def compare_bleu(first: Judged, second: Judged) -> Difference | None:
    """Paired bootstrap; None unless both translated the same sentences."""
    if first.sources != second.sources or first.references != second.references:
        return None
    num_sentences = len(first.counts)
    random = np.random.default_rng(0)
    differences = np.empty(NUM_RESAMPLES)
    for index in range(NUM_RESAMPLES):
        times = np.bincount(random.integers(0, num_sentences, num_sentences), minlength=num_sentences)
        differences[index] = bleu_of(times @ second.counts) - bleu_of(times @ first.counts)
    points = bleu_of(second.counts.sum(axis=0)) - bleu_of(first.counts.sum(axis=0))
    low, high = np.quantile(differences, [0.025, 0.975])
    wrong_way = float(np.mean(differences <= 0 if points > 0 else differences >= 0))
    return Difference(points, float(low), float(high), min(1.0, 2 * max(wrong_way, 1 / NUM_RESAMPLES)))


def bleu_of(counts: Sequence[float] | Counts) -> float:
    """Corpus BLEU, 0 to 100, from summed counts, smoothed as sacreBLEU does by default."""
    length, reference_length, *rest = (float(count) for count in counts)
    matches, totals = rest[:4], rest[4:]
    if not length or not totals[3] or not matches[0]:
        return 0.0
    log_precision, smoothing = 0.0, 1.0
    for match, total in zip(matches, totals, strict=True):
        if match == 0:
            smoothing *= 2
            log_precision += math.log(1 / (smoothing * total))
        else:
            log_precision += math.log(match / total)
    brevity = min(0.0, 1 - reference_length / length)
    return 100 * math.exp(log_precision / 4 + brevity)
