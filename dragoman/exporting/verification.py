"""Compares translations of an export with those of the model it was made from."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.lines import TextFile
from dragoman.corpus.prepared_corpus import MANIFEST_NAME, PreparedCorpus
from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS
from dragoman.evaluation.scores import Score, choose_tokenizer, score_translations
from dragoman.exporting.source import ExportSource
from dragoman.model.transformer import Transformer
from dragoman.run.errors import UsageError, UserError
from dragoman.run.progress import Show, progress_bars
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.torch_backend import TorchBackend, choose_num_workers
from dragoman.translation.translator import LineTranslator

MAX_COMPARED = 500
"""Sentences translated by greedy search, where both must agree subword by subword."""
MAX_SCORED = 1_000
"""Sentences translated by beam search, for BLEU."""
_NUM_MADE_LINES, _WORDS_PER_MADE_LINE = 100, 12

Say = Callable[[str], None]
Progress = Callable[[int], None]
Translate = Callable[[list[str], int, Progress], list[str]]
"""(lines, beam size, progress) -> translations"""


@dataclass(frozen=True)
class VerificationText:
    """Lines to translate with both models."""

    name: str
    """As in "the dev set"."""
    sources: list[str]
    references: list[str] | None
    """None where only outputs can be compared."""


@dataclass(frozen=True)
class Limits:
    """How far an export may differ from its model."""

    max_different: float = 0.01
    """Share of the sentences that may come out differently with greedy search; not for quantised weights."""
    max_bleu_drop: float = 0.5


@dataclass(frozen=True)
class Verification:
    """What was measured; None where it was not."""

    judged_on: str
    num_compared: int | None
    num_different: int | None
    num_scored: int | None
    beam_size: int
    original: Score | None
    exported: Score | None
    seconds: float

    def require(self, limits: Limits) -> None:
        """Refuses an export that translates too differently."""
        if self.num_compared and self.num_different is not None:
            share = self.num_different / self.num_compared
            if share > limits.max_different:
                raise UserError(
                    f"The export was refused: it translates {self.num_different:,} of {self.num_compared:,} sentences "
                    f"of {self.judged_on} ({share:.1%}) differently than the run does with greedy search, and at most "
                    f"{limits.max_different:.1%} may differ (--max-different). Nothing was kept."
                )
        if self.original and self.exported and (drop := self.original.bleu - self.exported.bleu) > limits.max_bleu_drop:
            raise UserError(
                f"The export was refused: its BLEU on {self.judged_on} is {self.exported.bleu:.2f}, {drop:.2f} below "
                f"the run's {self.original.bleu:.2f}, and it may fall by {limits.max_bleu_drop:g} "
                "(--max-bleu-drop). Nothing was kept."
            )

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return {
            "judged_on": self.judged_on,
            "compared_sentences": self.num_compared,
            "different_sentences": self.num_different,
            "scored_sentences": self.num_scored,
            "beam_size": self.beam_size,
            "original_bleu": self.original and self.original.bleu,
            "bleu": self.exported and self.exported.bleu,
            "signature": self.exported and self.exported.signature,
            "seconds": self.seconds,
        }

    def summary(self) -> str:
        """Says in a sentence or two what was compared."""
        parts = []
        if self.num_compared is not None:
            parts.append(
                f"{self.num_different:,} of {self.num_compared:,} sentences of {self.judged_on} come out differently "
                "with greedy search."
            )
        if self.original and self.exported:
            parts.append(
                f"BLEU on {self.judged_on} ({self.num_scored:,} sentences, beam {self.beam_size}): "
                f"{self.exported.bleu:.2f}, the run {self.original.bleu:.2f}  {self.exported.signature}"
            )
        return "\n".join(parts)


def find_text(source: ExportSource, files: tuple[Path | None, Path | None], say: Say) -> VerificationText:
    """Returns the given text and reference, or the dev set, or what the run kept of it."""
    source_file, reference_file = files
    if source_file is not None:
        return _read_files(source_file, reference_file)
    if reference_file is not None:
        raise UsageError("--verify-reference needs --verify-source, the text it is a translation of.")
    prepared = source.settings.data.prepared
    if (prepared / MANIFEST_NAME).is_file():
        return VerificationText("the dev set", *PreparedCorpus.open(prepared).text("dev"))
    if (kept := _read_kept_dev_set(source)) is not None:
        say(
            f"The prepared data of {source.run.path} is gone: the export is compared on the {len(kept.sources):,} dev "
            f"sentences in {source.run.translations.name} of the run."
        )
        return kept
    made = _make_text(source)
    say(
        f"{source.run.path} has no dev set: the export is compared on {len(made.sources):,} lines of words from the "
        "vocabulary. Give text in the source language with --verify-source for a better comparison."
    )
    return made


def _read_files(source_file: Path, reference_file: Path | None) -> VerificationText:
    sources = [normalise(line) for line in TextFile(source_file)]
    references = None if reference_file is None else [normalise(line) for line in TextFile(reference_file)]
    if references is not None and len(sources) != len(references):
        raise UserError(
            f"{source_file} has {len(sources):,} lines but {reference_file} has {len(references):,}: "
            "line N of one must belong to line N of the other."
        )
    if not any(map(str.strip, sources)):
        raise UserError(f"{source_file} has no text to compare translations of.")
    return VerificationText(str(source_file), sources, references)


def _read_kept_dev_set(source: ExportSource) -> VerificationText | None:
    """Reads the dev sentences that the last evaluation of the run translated; None where it kept none."""
    try:
        lines = source.run.translations.read_text(encoding="utf-8").splitlines()[1:]
        rows = [json.loads(line) for line in lines]
        pairs = [(str(row["source"]), str(row["reference"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pairs = []
    if not pairs:
        return None
    return VerificationText("the dev set", [pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _make_text(source: ExportSource) -> VerificationText:
    """Makes lines of words from the vocabulary, for a model that came without text."""
    tokenizer = source.source_tokenizer
    subwords = tokenizer.subwords(range(NUM_SPECIAL_IDS, tokenizer.num_subwords))
    words = [subword.removeprefix("▁") for subword in subwords if subword.removeprefix("▁")]
    lines = [" ".join(words[number::_NUM_MADE_LINES][:_WORDS_PER_MADE_LINE]) for number in range(_NUM_MADE_LINES)]
    return VerificationText("lines of words from the vocabulary", [line for line in lines if line], None)


def verify(
    source: ExportSource, text: VerificationText, translate: Translate, is_exact: bool, max_sentences: int | None = None
) -> Verification:
    """Translates with both models: greedily if the weights are exact, and with the run's beam if there are references.

    `max_sentences` shortens both comparisons.
    """
    begin = time.perf_counter()
    compared = text.sources[: max_sentences or MAX_COMPARED] if is_exact else []
    scored = text.sources[: max_sentences or MAX_SCORED] if text.references else []
    beam_size = source.settings.evaluation.beam_size
    with progress_bars("sentences") as show:
        originals = [_original(source, lines, beam, show) for lines, beam in ((compared, 1), (scored, beam_size))]
        exported = [_exported(translate, lines, beam, show) for lines, beam in ((compared, 1), (scored, beam_size))]
    num_different = sum(mine != its for mine, its in zip(originals[0], exported[0], strict=True))
    references = (text.references or [])[: len(scored)]
    return Verification(
        text.name,
        len(compared) if is_exact else None,
        num_different if is_exact else None,
        len(scored) or None,
        beam_size,
        _score(source, originals[1], references) if scored else None,
        _score(source, exported[1], references) if scored else None,
        time.perf_counter() - begin,
    )


def _original(source: ExportSource, lines: list[str], beam_size: int, show: Show) -> list[str]:
    if not lines:
        return []
    search = SearchSettings(beam_size, source.settings.evaluation.length_penalty)
    count = _counter(show, f"run, {_describe_search(beam_size)}", len(lines))
    return translate_with_torch(source.model, source, lines, search, count)


def translate_with_torch(
    model: Transformer, source: ExportSource, lines: list[str], search: SearchSettings, progress: Progress
) -> list[str]:
    """Translates with our own search, in one process per core."""
    tokenizers = source.source_tokenizer, source.target_tokenizer
    backend = TorchBackend(model, source.target_tokenizer.num_subwords, choose_num_workers(model, search))
    translator = LineTranslator(backend, *tokenizers, search, source.settings.data.max_tokens)
    with _one_thread():
        return translator.translate(lines, progress)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Lets each of the processes that translate compute with one thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _exported(translate: Translate, lines: list[str], beam_size: int, show: Show) -> list[str]:
    count = _counter(show, f"export, {_describe_search(beam_size)}", len(lines))
    return translate(lines, beam_size, count) if lines else []


def _describe_search(beam_size: int) -> str:
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def _counter(show: Show, stage: str, num_lines: int) -> Progress:
    num_done = 0

    def count(num_more: int) -> None:
        nonlocal num_done
        num_done += num_more
        show(stage, num_done, num_lines)

    return count


def _score(source: ExportSource, translations: list[str], references: list[str]) -> Score:
    languages = None if source.languages is None else "-".join(source.languages)
    tokenizer = choose_tokenizer(source.settings.evaluation.tokenizer, languages, references)
    return score_translations(translations, references, tokenizer)
