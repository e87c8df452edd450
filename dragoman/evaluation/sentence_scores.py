"""Scores sentence by sentence: as a table for other programs, and the worst ones for people."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.evaluation.evaluation_set import EvaluationSet
from dragoman.evaluation.scores import SentenceScore

# What a reader of tables takes for the end of a cell or of a line, and NUL, which ends text in some.
_ENDS_A_CELL = re.compile(r"[\t\n\v\f\r\0\x1c-\x1e\x85\u2028\u2029]")


@dataclass(frozen=True)
class JudgedSentence:
    """One translation with its scores."""

    line: int
    """Counted from 1."""
    source: str | None
    references: list[str]
    translation: str
    score: SentenceScore

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return {
            "line": self.line,
            "source": self.source,
            "references": self.references,
            "translation": self.translation,
        } | vars(self.score)

    def describe(self) -> str:
        """Shows the sentence with its scores."""
        score = self.score
        lines = [f"line {self.line:,}: chrF2++ {score.chrfpp:.1f}, BLEU {score.bleu:.1f}, TER {score.ter:.1f}"]
        lines += [f"  source       {self.source}"] if self.source is not None else []
        lines += [f"  reference    {reference}" for reference in self.references]
        return "\n".join([*lines, f"  translation  {self.translation}"])


def join_sentences(
    test_set: EvaluationSet, translations: Sequence[str], scores: Sequence[SentenceScore]
) -> list[JudgedSentence]:
    """Puts together what belongs to each line."""
    sources: Sequence[str | None] = test_set.sources or [None] * test_set.num_sentences
    rows = zip(sources, test_set.references_by_line, translations, scores, strict=True)
    return [JudgedSentence(line, *row) for line, row in enumerate(rows, 1)]


def worst_sentences(sentences: Sequence[JudgedSentence], num_worst: int) -> list[JudgedSentence]:
    """Returns the sentences with the lowest chrF2++, which tells bad ones apart where BLEU is 0 for many."""
    return sorted(sentences, key=lambda each: (each.score.chrfpp, -each.score.ter, each.line))[:num_worst]


def write_table(sentences: Sequence[JudgedSentence], num_references: int, comet: Sequence[float] | None = None) -> str:
    """Returns a table with tabs between its cells and a line of titles; white space inside a cell becomes a blank."""
    titles = ["reference"] if num_references == 1 else [f"reference_{n}" for n in range(1, num_references + 1)]
    titles = ["line", "source", *titles, "translation", "bleu", "chrfpp", "ter", *(["comet"] if comet else [])]
    table = io.StringIO()
    table.write("\t".join(titles) + "\n")
    for index, each in enumerate(sentences):
        references = each.references + [""] * (num_references - len(each.references))
        texts = [_ENDS_A_CELL.sub(" ", text) for text in (each.source or "", *references, each.translation)]
        figures = [f"{each.score.bleu:.2f}", f"{each.score.chrfpp:.2f}", f"{each.score.ter:.2f}"]
        figures += [f"{comet[index]:.4f}"] if comet else []
        table.write("\t".join([str(each.line), *texts, *figures]) + "\n")
    return table.getvalue()
