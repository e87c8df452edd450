"""Evaluates a model on a test set: translations by beam search, scored against plain-text references."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.evaluation.comet import CometJudge, CometScore
from dragoman.evaluation.evaluation_set import EvaluationSet, Say, read_files, read_lines
from dragoman.evaluation.judged_model import JudgedModel, describe_run
from dragoman.evaluation.scores import FullScore, Judge, SentenceScore, choose_tokenizer, require_tokenizer
from dragoman.evaluation.sentence_scores import JudgedSentence, join_sentences, worst_sentences, write_table
from dragoman.evaluation.training_overlap import TrainingOverlap
from dragoman.run.config import ScoreTokenizer
from dragoman.run.errors import UsageError
from dragoman.run.files import write_text
from dragoman.run.progress import progress_bars
from dragoman.run.units import counted

if TYPE_CHECKING:
    from dragoman.translation.loading import LoadedRun
    from dragoman.translation.translator import LineTranslator


@dataclass(frozen=True)
class FinalEvaluation:
    """Scores and translations of one model, or of one file of translations, on one test set."""

    test_set: EvaluationSet
    translations: list[str]
    score: FullScore
    sentence_scores: list[SentenceScore]
    model: JudgedModel | None = None
    seconds: float | None = None
    overlap: TrainingOverlap | None = None
    overlap_note: str = ""
    comet: CometScore | None = None

    @property
    def num_sentences(self) -> int:
        """Number of lines."""
        return self.test_set.num_sentences

    @property
    def sources(self) -> list[str]:
        """Lines that were translated."""
        return self.test_set.sources or []

    @property
    def references(self) -> list[str]:
        """The first reference of each line."""
        return [line[0] for line in self.test_set.references_by_line]

    @cached_property
    def sentences(self) -> list[JudgedSentence]:
        """Every line with its scores."""
        return join_sentences(self.test_set, self.translations, self.sentence_scores)

    def figures(self, num_worst: int | None = None) -> dict[str, Any]:
        """Returns the values that --json prints; with so many of the worst sentences, if given."""
        model = self.model
        return (
            vars(self.score)
            | (self.comet.figures() if self.comet else {})
            | {
                "sentences": self.num_sentences,
                "references": len(self.test_set.references),
                "test_set": self.test_set.name,
                "in_training": self.overlap.figures() if self.overlap else None,
                "in_training_note": self.overlap_note,
                "seconds": self.seconds,
                "sentences_per_second": self.num_sentences / self.seconds if self.seconds else None,
                "model": model.name if model else None,
                "weights": model.description if model else None,
                "checkpoint": str(model.checkpoint) if model and model.checkpoint else None,
                "step": model.step if model else None,
            }
            | ({"worst": [each.figures() for each in self.worst(num_worst)]} if num_worst is not None else {})
        )

    def table(self) -> str:
        """Returns the scores of every sentence with tabs between them."""
        return write_table(self.sentences, len(self.test_set.references), self.comet.sentences if self.comet else None)

    def worst(self, num_worst: int) -> list[JudgedSentence]:
        """Returns the sentences with the lowest scores."""
        return worst_sentences(self.sentences, num_worst)

    def summary(self) -> str:
        """Returns the scores as text."""
        score = self.score
        lines = [
            f"BLEU {score.bleu:.2f}  {score.signature}",
            f"chrF2++ {score.chrfpp:.2f}  {score.chrfpp_signature}",
            f"TER {score.ter:.2f} (lower is better)  {score.ter_signature}",
            f"chrF {score.chrf:.2f}  {score.chrf_signature}",
        ]
        if self.comet:
            lines.append(f"COMET {self.comet.comet:.4f}  {self.comet.comet_signature}")
        lines.append(self._describe_work())
        return "\n".join([*lines, *([self.overlap_note] if self.overlap_note else [])])

    def _describe_work(self) -> str:
        what = counted(self.num_sentences, "sentence")
        if self.model is None:
            return f"{what} of {self.test_set.name}"
        return f"{what} in {self.seconds or 0:.1f} s, {self.model.description}"


def evaluate_run(run: "LoadedRun", source: Path | None, reference: Path | None, say: Say) -> FinalEvaluation:
    """Scores a run on two files, or on the prepared test set if none are given; BLEU by the run's tokenizer."""
    model = describe_run(run)
    require_tokenizer(model.tokenizer)
    test_set = choose_test_set(model, source, [reference] if reference else [], say)
    return evaluate_model(model, test_set, say)


def choose_test_set(model: JudgedModel, source: Path | None, references: Sequence[Path], say: Say) -> EvaluationSet:
    """Reads the given files, or the test set of the model's corpus if there are none."""
    if (source is None) != (not references):
        raise UsageError("Give --source and --reference together, or neither of them.")
    return read_files(source, references, say) if source else model.read_test_set(say)


def evaluate_model(
    model: JudgedModel,
    test_set: EvaluationSet,
    say: Say,
    output: Path | None = None,
    tokenizer: ScoreTokenizer | None = None,
    comet: CometJudge | None = None,
) -> FinalEvaluation:
    """Translates a test set and scores it; records the scores in the run, if the model is of one."""
    tokenizer = tokenizer or model.tokenizer
    require_tokenizer(tokenizer)  # before translating, which takes long
    references = [line[0] for line in test_set.references_by_line]
    if message := model.translator.describe_unwritable(references):
        say(message)
    begin = time.perf_counter()
    translations = translate_set(model.translator, test_set)
    seconds = time.perf_counter() - begin
    if output is not None:
        write_text(output, "".join(f"{line}\n" for line in translations))
    tokenizer = choose_tokenizer(tokenizer, model.languages or test_set.languages, references)
    judge = Judge(test_set.references, tokenizer)
    result = FinalEvaluation(
        test_set,
        translations,
        judge.score(translations),
        judge.score_sentences(translations),
        model,
        seconds,
        *model.find_overlap(test_set),
        None if comet is None else comet.score(test_set.sources or [], translations, references),
    )
    _save_score(result)
    return result


def evaluate_translations(
    path: Path,
    test_set: EvaluationSet,
    say: Say,
    tokenizer: ScoreTokenizer | None = None,
    comet: CometJudge | None = None,
) -> FinalEvaluation:
    """Scores the lines of a file that any program wrote."""
    lines = read_lines(path, say)
    test_set.require_lines_of(path, lines)
    references = [line[0] for line in test_set.references_by_line]
    judge = Judge(test_set.references, choose_tokenizer(tokenizer or "auto", test_set.languages, references))
    if comet is not None and test_set.sources is None:
        raise UsageError("COMET needs the text that was translated too: give it with --source.")
    return FinalEvaluation(
        test_set,
        lines,
        judge.score(lines),
        judge.score_sentences(lines),
        overlap_note="Whether test sentences are in the training data is not known: no model was given.",
        comet=None if comet is None else comet.score(test_set.sources or [], lines, references),
    )


def translate_set(translator: "LineTranslator", test_set: EvaluationSet) -> list[str]:
    """Translates the sources of a test set, with a progress bar."""
    sources = test_set.sources or []
    num_done = 0
    with progress_bars("sentences") as show:

        def count(num_more: int) -> None:
            nonlocal num_done
            num_done += num_more
            show("translating", num_done, len(sources))

        translations = translator.translate(sources, count)
    translator.finish_notices()
    return translations


def _save_score(result: FinalEvaluation) -> None:
    """Appends the score to scores.jsonl of the run, for its report; ignores a folder that cannot be written."""
    model = result.model
    if model is None or model.run is None:
        return
    figures, judged_on = result.figures(), result.test_set.name
    if not model.is_one_checkpoint:  # a report takes the scores of a step for those of its checkpoint
        figures, judged_on = figures | {"step": None}, f"{judged_on}, by {model.description}"
    record = {"time": time.time(), "judged_on": judged_on} | figures
    with suppress(OSError), model.run.scores.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
