"""From a request to its answer: checks it, cuts its texts into lines, and puts the translations together."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from dragoman.corpus.cleaning.language import language_name
from dragoman.serving.batching import BatchKind, BestLists, PendingLines, QueueIsFullError, TranslationQueue
from dragoman.serving.cut_html import cut_html
from dragoman.serving.cut_text import CutText, cut_text
from dragoman.serving.long_lines import join_pieces, split_line
from dragoman.serving.request_body import RefusedRequestError
from dragoman.serving.schema import TranslateRequest
from dragoman.serving.served_models import DetectedLanguage, ServedModel, ServedModels
from dragoman.serving.settings import ServeSettings
from dragoman.translation.translator import Translation

AUTO = "auto"


@dataclass(frozen=True)
class TranslationJob:
    """The texts of a request, ready to be translated."""

    kind: BatchKind
    texts: list[CutText]
    lines: list[list[str]]
    """All lines to translate, each in pieces."""
    is_list: bool
    """Whether the answer holds lists: the request did."""
    num_alternatives: int
    is_html: bool
    detected: DetectedLanguage | None

    def submit(self, queue: TranslationQueue) -> PendingLines:
        """Adds all lines to the queue; a full queue refuses the request."""
        try:
            return queue.submit(self.kind, [piece for pieces in self.lines for piece in pieces])
        except QueueIsFullError as error:
            raise RefusedRequestError(429, f"Slowdown: {error}", {"Retry-After": str(error.retry_seconds)}) from None

    def answer(self, found: BestLists) -> dict[str, Any]:
        """Returns the answer to the request."""
        pieces = iter(found)
        lines = (join_pieces(line, list(islice(pieces, len(line)))) for line in self.lines)
        by_text = [list(islice(lines, len(text.lines))) for text in self.texts]
        best = [_fill(text, found, 0) for text, found in zip(self.texts, by_text, strict=True)]
        answer: dict[str, Any] = {"translatedText": self._shape(best)}
        if self.detected is not None:
            answer["detectedLanguage"] = self._shape([asdict(self.detected)] * len(best))
        if self.num_alternatives:
            answer["alternatives"] = self._shape(list(map(self._alternatives, self.texts, by_text)))
        if self.kind.with_alignment and not self.is_html:
            answer["alignment"] = self._shape(list(map(_alignment, self.texts, by_text)))
        return answer

    def _shape(self, values: list[Any]) -> Any:
        return values if self.is_list else values[0]

    def _alternatives(self, text: CutText, found: BestLists) -> list[str]:
        """Returns the other translations of a text, each once; of HTML none, as LibreTranslate."""
        if self.is_html:
            return []
        others = [_fill(text, found, rank) for rank in range(self.num_alternatives + 1)]
        return list(dict.fromkeys(others))[1:]


def plan_job(wanted: TranslateRequest, models: ServedModels, settings: ServeSettings) -> TranslationJob:
    """Checks a request and prepares its texts."""
    texts = wanted.q if isinstance(wanted.q, list) else [wanted.q]
    num_alternatives = wanted.alternatives or 0
    check_sizes(texts, settings, num_alternatives)
    target = _known_code(wanted.target, models)
    detected = None
    if wanted.source == AUTO:
        detected = models.source_for(target, "\n".join(texts))
    source = detected.language if detected else _known_code(wanted.source, models)
    model = _find_model(source, target, models)
    is_html = wanted.format == "html"
    num_best = 1 if is_html else num_alternatives + 1
    cut = [cut_html(text) if is_html else cut_text(text) for text in texts]
    needs_alignment = any(text.needs_alignment for text in cut) if is_html else bool(wanted.alignment)
    kind = BatchKind(model, num_best, needs_alignment)
    lines = [split_line(line) for text in cut for line in text.lines]
    return TranslationJob(kind, cut, lines, isinstance(wanted.q, list), num_alternatives, is_html, detected)


def check_sizes(texts: Sequence[str], settings: ServeSettings, num_alternatives: int = 0) -> None:
    """Refuses a request that asks for too much."""
    limits = (
        ("texts", len(texts), settings.max_texts),
        ("characters", sum(map(len, texts)), settings.max_characters),
        ("alternatives", num_alternatives, settings.max_alternatives),
    )
    for name, size, limit in limits:
        if size > limit:
            raise RefusedRequestError(400, f"Invalid request: {size:,} {name} exceed the limit of {limit:,}")


def _known_code(code: str, models: ServedModels) -> str:
    known = models.known_code(code)
    if known is None:
        raise RefusedRequestError(400, f"{code[:40]} is not supported")
    return known


def _find_model(source: str, target: str, models: ServedModels) -> ServedModel:
    model = models.find(source, target)
    if model is None:
        raise RefusedRequestError(
            400,
            f"{language_name(target)} ({target}) is not available as a target language from "
            f"{language_name(source)} ({source})",
        )
    return model


def _fill(text: CutText, found: BestLists, rank: int) -> str:
    """Puts the translations of one rank together; a line with fewer gives its last."""
    return text.fill([_of_rank(translations, rank) for translations in found])


def _of_rank(translations: list[Translation], rank: int) -> Translation:
    return translations[min(rank, len(translations) - 1)]


def _alignment(text: CutText, found: BestLists) -> list[list[list[int]]]:
    """Returns the pairs of words of each line of a text."""
    pairs: list[list[list[int]]] = [[] for _ in range(text.num_lines)]
    for number, translations in zip(text.line_numbers, found, strict=True):
        pairs[number] = [list(pair) for pair in translations[0].alignment or ()]
    return pairs
