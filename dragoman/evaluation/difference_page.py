"""The page that shows compared systems sentence by sentence; one file that opens offline."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from dragoman.evaluation.evaluation_set import EvaluationSet
from dragoman.evaluation.scores import Judge
from dragoman.evaluation.significance import METRIC_TITLES, METRICS, MetricResult, SystemComparison, TestName
from dragoman.report.rendering import make_environment, render_frame
from dragoman.run.units import counted


def render_difference_page(
    comparison: SystemComparison, test_set: EvaluationSet, judge: Judge, notes: Sequence[str] = ()
) -> str:
    """Renders the page; all text of the test set and of the systems is escaped."""
    names = [system.name for system in comparison.systems]
    title = f"{names[0]} compared with {' and '.join(names[1:])}"
    tests = list(comparison.num_samples)
    body = (
        make_environment("dragoman.evaluation")
        .get_template("differences.html.j2")
        .render(
            title=title,
            summary=f"{counted(test_set.num_sentences, 'sentence')} of {test_set.name}. The baseline is {names[0]}.",
            verdicts=comparison.verdicts(),
            tests=tests,
            score_rows=_score_rows(comparison, tests),
            notes=[*notes, *comparison.describe_signatures()],
            systems=names,
            data={"systems": names, "sentences": _sentences(comparison, test_set, judge)},
        )
    )
    script = files("dragoman.evaluation").joinpath("differences.js").read_text(encoding="utf-8")
    return render_frame(title, Markup(body), own_scripts=[script])  # noqa: S704 the template escapes


def _score_rows(comparison: SystemComparison, tests: Sequence[TestName]) -> list[list[str]]:
    """Returns the cells of the table of scores."""
    return [
        [METRIC_TITLES[metric], system.name, *_cells(results[metric], tests)]
        for metric in METRICS
        for system, results in zip(comparison.systems, comparison.results, strict=True)
    ]


def _cells(result: MetricResult, tests: Sequence[TestName]) -> list[str]:
    if result.difference is None or result.p_values is None:
        return [f"{result.score:.2f}", "", "", *("" for _ in tests)]
    p_values = [f"{result.p_values[test]:.2g}" for test in tests]
    return [f"{result.score:.2f}", f"{result.difference:+.2f}", f"{result.low:+.2f} to {result.high:+.2f}", *p_values]


def _sentences(comparison: SystemComparison, test_set: EvaluationSet, judge: Judge) -> list[dict[str, Any]]:
    """Returns what the page's script shows of each line; rounded, to keep the page small."""
    texts = zip(*(system.translations for system in comparison.systems), strict=True)
    scores = zip(*(judge.score_sentences(system.translations) for system in comparison.systems), strict=True)
    sources: Sequence[str | None] = test_set.sources or [None] * test_set.num_sentences
    rows = zip(sources, test_set.references_by_line, texts, scores, strict=True)
    return [
        {
            "line": line,
            "source": source,
            "references": references,
            "texts": translations,
            "scores": [[round(each.bleu, 2), round(each.chrfpp, 2), round(each.ter, 2)] for each in found],
        }
        for line, (source, references, translations, found) in enumerate(rows, 1)
    ]
