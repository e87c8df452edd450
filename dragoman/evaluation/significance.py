"""Whether the difference between translations may be chance: sacreBLEU's paired tests against a baseline."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import psutil
from numpy.typing import NDArray
from sacrebleu.significance import PairedTest

from dragoman.evaluation.scores import Judge
from dragoman.run.errors import UserError

TestName = Literal["bootstrap", "randomisation"]
MetricName = Literal["bleu", "chrfpp", "ter"]
TESTS: tuple[TestName, ...] = get_args(TestName)
METRICS: tuple[MetricName, ...] = get_args(MetricName)
METRIC_TITLES: dict[MetricName, str] = {"bleu": "BLEU", "chrfpp": "chrF2++", "ter": "TER"}
"""Also sacreBLEU's own names."""
DEFAULT_SEED = 12345
"""That of the command sacrebleu."""
DEFAULT_SAMPLES: dict[TestName, int] = {"bootstrap": 1_000, "randomisation": 10_000}
_SACREBLEU_NAMES: dict[TestName, str] = {"bootstrap": "bs", "randomisation": "ar"}
_LEVEL = 0.05
_MOST_BYTES_PER_SAMPLE: dict[TestName, int] = {"bootstrap": 110, "randomisation": 20}
"""What sacreBLEU holds for each sample and sentence: the counts of chrF2++, or a choice as an integer."""


@dataclass(frozen=True)
class ComparedSystem:
    """Translations of a test set, with the name of who made them."""

    name: str
    translations: list[str]


@dataclass(frozen=True)
class MetricResult:
    """One metric of one system, compared with the baseline where it is not the baseline itself."""

    score: float
    mean: float | None = None
    ci: float | None = None
    """Mean of the bootstrap samples, and half the width of their 95 % interval, as sacreBLEU prints them."""
    difference: float | None = None
    """Score minus that of the baseline."""
    low: float | None = None
    high: float | None = None
    """Bounds of the difference in 95 % of the bootstrap samples."""
    p_values: dict[TestName, float] | None = None
    """By sacreBLEU, for each test: how likely so large a difference is if there were none."""

    @property
    def p_value(self) -> float | None:
        """The largest of the p-values: a difference is one only if every test finds it."""
        return max(self.p_values.values()) if self.p_values else None

    @property
    def is_significant(self) -> bool:
        """Whether the difference is no chance; sacreBLEU's p-value is small also where there is no difference."""
        return bool(self.difference) and self.p_value is not None and self.p_value < _LEVEL

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return {
            "score": self.score,
            "mean": self.mean,
            "ci": self.ci,
            "difference": self.difference,
            "difference_low": self.low,
            "difference_high": self.high,
            "p_values": self.p_values,
            "is_significant": None if self.difference is None else self.is_significant,
        }

    def summary(self) -> str:
        """Shows the score with its intervals and p-values in a line."""
        parts = [f"{self.score:6.2f}"]
        parts += [f"(mean {self.mean:.2f} ± {self.ci:.2f})"] if self.mean is not None else []
        if self.difference is not None:
            parts.append(f"difference {self.difference:+.2f} (95 %: {self.low:+.2f} to {self.high:+.2f})")
            parts += [f"p = {value:.2g} by {test}" for test, value in (self.p_values or {}).items()]
        return "  ".join(parts)

    def describe(self, metric: MetricName, name: str, baseline: str) -> str:
        """Says in plain words whether this system is better or worse than the baseline."""
        assert self.difference is not None
        title = METRIC_TITLES[metric]
        if self.difference == 0:
            return f"{name} and {baseline} have the same {title}."
        size = f"{abs(self.difference):.2f} {title}"
        if not self.is_significant:
            return f"The difference of {size} between {name} and {baseline} may be chance ({self._describe_range()})."
        is_better = (self.difference > 0) != (metric == "ter")  # less TER is better
        return f"{name} is {'better' if is_better else 'worse'} than {baseline} by {size} ({self._describe_range()})."

    def _describe_range(self) -> str:
        """Gives the range of the size of the difference; negative where it may also be the other way round."""
        assert self.difference
        assert self.low is not None
        assert self.high is not None
        low, high = (self.low, self.high) if self.difference > 0 else (-self.high, -self.low)
        return f"95 %: {low:.2f} to {high:.2f}, p = {self.p_value:.2g}"


@dataclass(frozen=True)
class SystemComparison:
    """Systems compared on one test set; the first is the baseline."""

    systems: Sequence[ComparedSystem]
    results: Sequence[dict[MetricName, MetricResult]]
    signatures: dict[TestName, dict[MetricName, str]]
    seed: int
    num_samples: dict[TestName, int]

    def verdicts(self) -> list[str]:
        """Says for each system and metric whether it differs from the baseline."""
        baseline = self.systems[0].name
        return [
            results[metric].describe(metric, system.name, baseline)
            for system, results in list(zip(self.systems, self.results, strict=True))[1:]
            for metric in METRICS
        ]

    def table(self) -> str:
        """Shows the scores and differences as text, a block for each metric."""
        width = max(len(system.name) for system in self.systems)
        blocks = []
        for metric in METRICS:
            lines = [METRIC_TITLES[metric] + (" (lower is better)" if metric == "ter" else "")]
            for system, results in zip(self.systems, self.results, strict=True):
                lines.append(f"  {system.name:<{width}}  {results[metric].summary()}")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)

    def describe_signatures(self) -> list[str]:
        """Names the signature of each metric in each test."""
        return [
            f"{METRIC_TITLES[metric]}, {test}: {signature}"
            for test, signatures in self.signatures.items()
            for metric, signature in signatures.items()
        ]

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return {
            "baseline": self.systems[0].name,
            "systems": [
                {"name": system.name} | {metric: results[metric].figures() for metric in METRICS}
                for system, results in zip(self.systems, self.results, strict=True)
            ],
            "signatures": self.signatures,
            "seed": self.seed,
            "samples": self.num_samples,
            "verdicts": self.verdicts(),
        }


def compare_systems(
    systems: Sequence[ComparedSystem],
    judge: Judge,
    tests: Sequence[TestName] = TESTS,
    num_samples: int | None = None,
    seed: int = DEFAULT_SEED,
) -> SystemComparison:
    """Tests every system against the first; with the same seed as `sacrebleu --paired-bs` (or -ar), its p-values."""
    counts = {test: num_samples or DEFAULT_SAMPLES[test] for test in tests}
    num_sentences = len(systems[0].translations)
    _require_memory(num_sentences, counts)
    found = {test: _run_test(systems, judge, test, counts[test], seed) for test in tests}
    ranges = _difference_ranges(systems, judge, num_samples or DEFAULT_SAMPLES["bootstrap"], seed)
    results = [_join(judge, systems, found, ranges, index) for index in range(len(systems))]
    signatures = {test: {metric: str(found[test][0][METRIC_TITLES[metric]]) for metric in METRICS} for test in tests}
    return SystemComparison(systems, results, signatures, seed, counts)


def _join(
    judge: Judge,
    systems: Sequence[ComparedSystem],
    found: dict[TestName, tuple[Any, Any]],
    ranges: Sequence[dict[MetricName, tuple[float, float]]],
    index: int,
) -> dict[MetricName, MetricResult]:
    """Puts together what is known about one system."""
    scores, baseline = (vars(judge.score(systems[number].translations)) for number in (index, 0))
    joined: dict[MetricName, MetricResult] = {}
    for metric in METRICS:
        tests = {test: results[METRIC_TITLES[metric]][index] for test, (_, results) in found.items()}
        drawn = tests.get("bootstrap")
        mean, ci = (float(drawn.mean), float(drawn.ci)) if drawn else (None, None)
        joined[metric] = MetricResult(scores[metric], mean, ci)
        if index:
            p_values = {test: float(result.p_value) for test, result in tests.items()}
            difference = scores[metric] - baseline[metric]
            joined[metric] = MetricResult(scores[metric], mean, ci, difference, *ranges[index][metric], p_values)
    return joined


def _run_test(
    systems: Sequence[ComparedSystem], judge: Judge, test: TestName, num_samples: int, seed: int
) -> tuple[Any, Any]:
    """Returns sacreBLEU's signatures and results of one test, by its names of the metrics."""
    # Names may repeat; sacreBLEU keeps the order.
    named: list[tuple[str, Sequence[str]]] = [(system.name, system.translations) for system in systems]
    metrics = {str(metric): judge.metrics[metric] for metric in METRICS}
    with _sacrebleu_seed(seed):
        return PairedTest(named, metrics, None, _SACREBLEU_NAMES[test], num_samples)()


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Sets the seed, which sacreBLEU takes from the environment only."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def _difference_ranges(
    systems: Sequence[ComparedSystem], judge: Judge, num_samples: int, seed: int
) -> list[dict[MetricName, tuple[float, float]]]:
    """Returns the range of 95 % of the differences to the baseline, over the samples of sacreBLEU's bootstrap."""
    num_sentences = len(systems[0].translations)
    draws = np.random.default_rng(seed).choice(num_sentences, size=(num_samples, num_sentences), replace=True)
    times = np.stack([np.bincount(draw, minlength=num_sentences) for draw in draws]).astype(np.float64)
    ranges: list[dict[MetricName, tuple[float, float]]] = [{} for _ in systems]
    for metric in METRICS:
        scores = [_sample_scores(judge, metric, system, times) for system in systems]
        for found, each in zip(ranges, scores, strict=True):
            differences = np.sort(each - scores[0])
            outside = num_samples // 40  # one fortieth at each end, as sacreBLEU's own intervals leave out
            found[metric] = (float(differences[outside]), float(differences[-outside - 1]))
    return ranges


def _sample_scores(
    judge: Judge, metric: MetricName, system: ComparedSystem, times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scores a system on every sample, given how often each contains each sentence."""
    sums = times @ np.array(judge.counts(metric, system.translations), np.float64)
    score = judge.metrics[metric]._compute_score_from_stats
    return np.array([score(row).score for row in sums])


def _require_memory(num_sentences: int, counts: dict[TestName, int]) -> None:
    """Refuses more samples than sacreBLEU could hold: it draws all of them at once."""
    needed = max(counts[test] * num_sentences * _MOST_BYTES_PER_SAMPLE[test] for test in counts)
    available = psutil.virtual_memory().available
    if needed > available:
        raise UserError(
            f"{num_sentences:,} sentences with so many samples need about {needed / 2**30:.1f} GiB of memory, "
            f"but {available / 2**30:.1f} GiB are free: use fewer --samples, or only some of the sentences."
        )
