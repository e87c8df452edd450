"""Translates text with the model of a run folder: its config, tokenizers and weights are all that is needed."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch

from dragoman.corpus.batching import pad_sentences
from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.lines import TextFile
from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.device import choose_device
from dragoman.model.shape import resolve_shape
from dragoman.model.teacher_forcing import evaluating
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_weights
from dragoman.run.checkpoints import MODEL_FILE, find_checkpoint
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UsageError
from dragoman.run.folder import checkpoint_step, open_run
from dragoman.translation.beam_search import Hypothesis, SearchSettings, beam_search

_WORD_START = "▁"


@dataclass(frozen=True)
class Translation:
    """A translated line."""

    text: str
    score: float
    """Log-probability divided by the length penalty; the mean over its segments if a line was cut; 0 if it is blank."""


@dataclass(frozen=True)
class _Line:
    """The ids of one line, in segments that each fit the model."""

    index: int
    segments: list[list[int]]

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest segment, EOS included."""
        return max(len(segment) for segment in self.segments) + 1


class Translator:
    """Translates lines with one model; the same lines give the same translations."""

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: SearchSettings,
        batch_tokens: int = 1_500,
        max_source_tokens: int = 256,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Uses the model's device; `say` receives a message for each line too long for the model.

        `batch_tokens` limits the padded source subwords searched at once, and `max_source_tokens` is the longest source
        (EOS included) the model was trained on.
        """
        if max_source_tokens < 2:
            raise UsageError(f"max_source_tokens must be 2 or more (EOS takes one), not {max_source_tokens}.")
        self._model = model
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer
        self._settings = settings
        self._batch_tokens = batch_tokens
        self._max_source_tokens = max_source_tokens
        self._say = say

    def translate(self, lines: Sequence[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """Returns the translations in the order of the lines; calls `progress` with the number of new lines done."""
        return [translation.text for translation in self.translate_with_scores(lines, progress)]

    def translate_with_scores(
        self, lines: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> list[Translation]:
        """Like `translate`, each translation with its score."""
        translations = dict(self._translate_share(lines, 0, 1, progress))
        return [translations[index] for index in range(len(lines))]

    def translate_share(
        self, lines: Sequence[str], rank: int, size: int, progress: Callable[[int], None] | None = None
    ) -> list[tuple[int, str]]:
        """Returns the translations of one of `size` ranks, each with the index of its line.

        Batches are formed over all lines, so the result does not depend on the number of ranks.
        """
        return [(index, translation.text) for index, translation in self._translate_share(lines, rank, size, progress)]

    def _translate_share(
        self, lines: Sequence[str], rank: int, size: int, progress: Callable[[int], None] | None
    ) -> list[tuple[int, Translation]]:
        filled, blank = self._read(lines)
        translations: list[tuple[int, Translation]] = []
        if rank == 0:
            translations += [(index, Translation("", 0.0)) for index in blank]
            _report(progress, len(blank))
        with evaluating(self._model):
            for batch in _form_batches(filled, self._batch_tokens)[rank::size]:
                translations += self._translate_batch(batch)
                _report(progress, len(batch))
        return translations

    def _read(self, lines: Sequence[str]) -> tuple[list[_Line], list[int]]:
        """Returns the lines with something to translate, and the indices of the blank ones."""
        max_ids = self._max_source_tokens - 1  # EOS takes one place
        filled: list[_Line] = []
        blank: list[int] = []
        for index, ids in enumerate(self._source_tokenizer.encode_lines([line.strip() for line in lines])):
            if ids:
                is_word_start = [subword.startswith(_WORD_START) for subword in self._source_tokenizer.subwords(ids)]
                filled.append(_Line(index, cut_at_words(ids, is_word_start, max_ids)))
            else:
                blank.append(index)
        return filled, blank

    def _translate_batch(self, batch: list[_Line]) -> list[tuple[int, Translation]]:
        for line in batch:
            self._warn_if_cut(line)
        best = iter(self._search([segment for line in batch for segment in line.segments]))
        return [(line.index, self._join([next(best) for _ in line.segments])) for line in batch]

    def _warn_if_cut(self, line: _Line) -> None:
        if self._say is not None and len(line.segments) > 1:
            self._say(
                f"Line {line.index + 1} has {sum(map(len, line.segments)):,} subwords, more than the "
                f"{self._max_source_tokens - 1:,} the model was trained on; "
                f"it was translated in {len(line.segments)} segments."
            )

    def _search(self, segments: list[list[int]]) -> list[Hypothesis]:
        """Returns the best hypothesis of each segment; segments of one very long line may need several searches."""
        longest = max(map(len, segments)) + 1
        num_at_once = max(1, self._batch_tokens // longest)
        best: list[Hypothesis] = []
        for begin in range(0, len(segments), num_at_once):
            source_BS, lengths_B = map(torch.from_numpy, pad_sentences(segments[begin : begin + num_at_once]))
            source_BS = source_BS.to(self._model.target_embedding.device)
            found = beam_search(self._model, source_BS, lengths_B, self._settings, self._target_tokenizer.num_subwords)
            best += [hypotheses[0] for hypotheses in found]
        return best

    def _join(self, hypotheses: list[Hypothesis]) -> Translation:
        texts = self._target_tokenizer.decode_lines([hypothesis.tokens for hypothesis in hypotheses])
        score = sum(hypothesis.score for hypothesis in hypotheses) / len(hypotheses)
        return Translation(" ".join(text.strip() for text in texts if text.strip()), score)


def _form_batches(lines: Sequence[_Line], batch_tokens: int) -> list[list[_Line]]:
    """Groups lines of similar length, longest first: too little memory shows at once, and ranks end together."""
    batches: list[list[_Line]] = []
    num_segments, longest = 0, 0
    for line in sorted(lines, key=lambda line: (-line.num_tokens, line.index)):
        num_segments += len(line.segments)
        if not batches or num_segments * longest > batch_tokens:
            batches.append([])
            num_segments, longest = len(line.segments), line.num_tokens
        batches[-1].append(line)
    return batches


def cut_at_words(ids: list[int], is_word_start: list[bool], max_ids: int) -> list[list[int]]:
    """Cuts ids into segments of similar size, at most `max_ids` each; cuts inside a word only if it is longer."""
    segments: list[list[int]] = []
    begin = 0
    while len(ids) - begin > max_ids:
        num_left = -(-(len(ids) - begin) // max_ids)
        wanted = begin + -(-(len(ids) - begin) // num_left)
        word_starts = [index for index in range(begin + 1, begin + max_ids + 1) if is_word_start[index]]
        end = min(word_starts, key=lambda index: abs(index - wanted), default=begin + max_ids)
        segments.append(ids[begin:end])
        begin = end
    return [*segments, ids[begin:]]


def _report(progress: Callable[[int], None] | None, num_lines: int) -> None:
    if progress is not None and num_lines:
        progress(num_lines)


_LINES_PER_BLOCK = 2_000
"""Enough for batches of similar length, few enough to see output soon."""
_STANDARD_INPUT = Path("/dev/stdin")


def translate_stream(translator: Translator, path: Path, output: TextIO, say: Callable[[str], None]) -> None:
    """Writes one line for each line of the file (`-` is standard input), in order; at a terminal, after each line."""
    is_standard_input = path == Path("-")
    text = TextFile(_STANDARD_INPUT if is_standard_input else path)
    lines = (normalise(line) for line in text)
    block_size = 1 if is_standard_input and sys.stdin.isatty() else _LINES_PER_BLOCK
    for block in _blocks(lines, block_size):
        for translation in translator.translate(block):
            output.write(translation + "\n")
        output.flush()
    for notice in text.notices():
        say(notice)


def _blocks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while block := list(islice(lines, size)):
        yield block


@dataclass(frozen=True)
class LoadedRun:
    """A trained translator with the settings and the checkpoint it was loaded from."""

    translator: Translator
    settings: Settings
    checkpoint: Path

    @property
    def step(self) -> int:
        """The step at which the weights were saved."""
        return checkpoint_step(self.checkpoint)


def load_run(
    path: Path,
    which: str = "best",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    say: Callable[[str], None] | None = None,
) -> LoadedRun:
    """Loads a run's best, latest or numbered checkpoint for translation; searches as in its config unless given."""
    run = open_run(path)
    settings = load_settings(run.config)
    checkpoint = find_checkpoint(run, which)
    is_joint = tokenizer_path(run.tokenizers, "source", is_joint=True).exists()
    source, target = (Tokenizer.load(tokenizer_path(run.tokenizers, side, is_joint)) for side in ("source", "target"))
    model = Transformer(resolve_shape(settings.model, source.vocab_size, target.vocab_size, is_joint))
    load_weights(model, checkpoint / MODEL_FILE)
    search = SearchSettings(
        beam_size=settings.evaluation.beam_size if beam_size is None else beam_size,
        length_penalty=settings.evaluation.length_penalty if length_penalty is None else length_penalty,
    )
    translator = Translator(
        model.to(choose_device()), source, target, search, max_source_tokens=settings.data.max_tokens, say=say
    )
    return LoadedRun(translator, settings, checkpoint)
