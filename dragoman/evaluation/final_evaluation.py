"""Evaluates a finished run on a test set: translations by beam search, scored against plain-text references."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.lines import TextFile
from dragoman.corpus.prepared_corpus import MANIFEST_NAME, PreparedCorpus
from dragoman.evaluation.scores import Score, choose_tokenizer, require_tokenizer, score_translations
from dragoman.run.checkpoints import is_trained_on
from dragoman.run.config import ScoreTokenizer
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import read_json, write_text
from dragoman.run.folder import RunFolder
from dragoman.run.progress import progress_bars
from dragoman.translation.translator import LoadedRun


@dataclass(frozen=True)
class FinalEvaluation:
    """Scores and translations of one checkpoint on one test set."""

    score: Score
    num_sentences: int
    seconds: float
    checkpoint: Path
    step: int
    sources: list[str]
    translations: list[str]
    references: list[str]

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return vars(self.score) | {
            "sentences": self.num_sentences,
            "seconds": self.seconds,
            "sentences_per_second": self.num_sentences / self.seconds,
            "checkpoint": str(self.checkpoint),
            "step": self.step,
        }

    def summary(self) -> str:
        """Returns the scores as text."""
        return (
            f"BLEU {self.score.bleu:.2f}  {self.score.signature}\n"
            f"chrF {self.score.chrf:.2f}  {self.score.chrf_signature}\n"
            f"{self.num_sentences:,} sentences in {self.seconds:.1f} s, checkpoint of step {self.step:,}"
        )


def evaluate_run(
    run: LoadedRun,
    source: Path | None,
    reference: Path | None,
    say: Callable[[str], None],
    output: Path | None = None,
    tokenizer: ScoreTokenizer | None = None,
) -> FinalEvaluation:
    """Scores a run on two files, or on the prepared test set if none are given; BLEU by the run's tokenizer or this."""
    tokenizer = tokenizer or run.settings.evaluation.tokenizer
    require_tokenizer(tokenizer)  # before translating, which takes long
    if (source is None) != (reference is None):
        raise UsageError("Give --source and --reference together, or neither of them.")
    if source is None or reference is None:
        sources, references = _open_prepared(run, say).text("test")
    else:
        sources, references = read_text(source, say), read_text(reference, say)
        if len(sources) != len(references):
            raise UserError(
                f"{source} has {len(sources):,} lines but {reference} has {len(references):,}: "
                "line N of one must belong to line N of the other."
            )
    if message := run.translator.describe_unwritable(references):
        say(message)
    begin = time.perf_counter()
    translations = _translate(run, sources)
    seconds = time.perf_counter() - begin
    run.translator.finish_notices()
    if output is not None:
        write_text(output, "".join(f"{line}\n" for line in translations))
    tokenizer = choose_tokenizer(tokenizer, _languages(_folder_of(run.checkpoint)), references)
    score = score_translations(translations, references, tokenizer)
    result = FinalEvaluation(score, len(sources), seconds, run.checkpoint, run.step, sources, translations, references)
    _save_score(result, "the prepared test set" if source is None else str(source))
    return result


def _open_prepared(run: LoadedRun, say: Callable[[str], None]) -> PreparedCorpus:
    """Opens the corpus that the run was trained on; says so if it was prepared again since."""
    prepared = run.settings.data.prepared
    if not (prepared / MANIFEST_NAME).is_file():
        raise UserError(
            f"The prepared data of {_folder_of(run.checkpoint).path} is not in {prepared}, so there is no test set: "
            "give text and its translation with --source and --reference."
        )
    corpus = PreparedCorpus.open(prepared)
    if not is_trained_on(run.checkpoint, corpus.fingerprint):
        say(
            f"{prepared} was prepared again since the run was trained: its test set may have sentences of the training."
        )
    return corpus


def _folder_of(checkpoint: Path) -> RunFolder:
    return RunFolder(checkpoint.parent.parent)


def _languages(run: RunFolder) -> str | None:
    """Returns source and target language of the run's corpus, e.g. "en-ja"; None where they are not known."""
    try:
        languages = read_json(run.corpus_facts)["settings"]["languages"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return languages if isinstance(languages, str) else None


def _save_score(result: FinalEvaluation, test_set: str) -> None:
    """Appends the score to scores.jsonl of the run, for its report; ignores a folder that cannot be written."""
    run = _folder_of(result.checkpoint)
    record = {"time": time.time(), "judged_on": test_set} | result.figures()
    with suppress(OSError), run.scores.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _translate(run: LoadedRun, sources: list[str]) -> list[str]:
    num_done = 0
    with progress_bars("sentences") as show:

        def count(num_more: int) -> None:
            nonlocal num_done
            num_done += num_more
            show("translating", num_done, len(sources))

        return run.translator.translate(sources, count)


def read_text(path: Path, say: Callable[[str], None]) -> list[str]:
    """Reads the lines of a file and reports what is unusual about it."""
    file = TextFile(path)
    lines = [normalise(line) for line in file]
    for notice in file.notices():
        say(notice)
    return lines
