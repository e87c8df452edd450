"""Lines of text in, lines of text out: tokenize, batch by length, search, detokenize."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dragoman.corpus.tokenizer import EOS_ID, PAD_ID, Tokenizer
from dragoman.model.transformer import Transformer
from dragoman.translation.beam_search import Hypothesis, SearchSettings, beam_search

WORD_START = "▁"


@dataclass(frozen=True)
class Translation:
    """A translated line."""

    text: str
    score: float
    """Log-probability divided by the length penalty; the mean over its parts if a line was cut; 0 if it is blank."""


@dataclass(frozen=True)
class _Line:
    """One line's ids, in parts that each fit the model."""

    index: int
    parts: list[list[int]]

    @property
    def num_tokens(self) -> int:
        """Of the longest part, EOS included."""
        return max(len(part) for part in self.parts) + 1


class Translator:
    """Translates lines with one model; the same lines give the same translations."""

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        device: torch.device,
        settings: SearchSettings,
        batch_tokens: int = 1_500,
        max_source_tokens: int = 256,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Takes a model that is on `device`; `say` receives a sentence for each line too long for the model.

        `batch_tokens` bounds the padded source pieces searched at once, and `max_source_tokens` is the longest source
        (EOS included) the model was trained on.
        """
        self._model = model
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer
        self._device = device
        self._settings = settings
        self._batch_tokens = batch_tokens
        self._max_source_tokens = max_source_tokens
        self._say = say

    def translate(self, lines: Sequence[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """The translations in the order of the lines; `progress` hears how many more lines are done."""
        return [translation.text for translation in self.translate_with_scores(lines, progress)]

    def translate_with_scores(
        self, lines: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> list[Translation]:
        """Like `translate`, each with the score of its search."""
        return [translation for _, translation in sorted(self._translate_share(lines, 0, 1, progress))]

    def translate_share(
        self, lines: Sequence[str], rank: int, size: int, progress: Callable[[int], None] | None = None
    ) -> list[tuple[int, str]]:
        """The translations that fall to one of `size` ranks, each with the index of its line.

        Batches are formed over all lines, so what is computed does not depend on the number of ranks.
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
        with _evaluating(self._model):
            for batch in form_batches(filled, self._batch_tokens)[rank::size]:
                translations += self._translate_batch(batch)
                _report(progress, len(batch))
        return translations
