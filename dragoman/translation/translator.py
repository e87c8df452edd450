"""Translates text with the model of a run folder: its config, tokenizers and weights are all that is needed."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman.corpus.batching import pad_sentences
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
from dragoman.run.folder import RunFolder, checkpoint_step, open_run
from dragoman.run.processes import available_memory, num_physical_cores
from dragoman.run.records import EvaluationRecord, parse_records, records_of
from dragoman.run.units import SCORE_PATTERNS
from dragoman.translation.beam_search import Hypothesis, SearchSettings, beam_search
from dragoman.translation.notices import Say, SourceNotices, UnknownCharacters
from dragoman.translation.workers import compute_in_processes

_WORD_START = "▁"
_BATCH_TOKENS = 1_500
_MAX_BATCH_HYPOTHESES = 24_000
"""Padded source subwords times beam size of a batch: a wide beam gets small batches instead of all memory."""
_PROCESS_BYTES = 100 * 2**20
_FEW_SUBWORDS = 8
"""Length of short sentences, of which a batch holds most."""


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
    """Translates lines with one model; the same lines give the same translations, by any number of processes."""

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: SearchSettings,
        batch_tokens: int = _BATCH_TOKENS,
        max_source_tokens: int = 256,
        say: Say | None = None,
        num_workers: int = 1,
    ) -> None:
        """Uses the model's device; `say` receives notices about lines that the model was not trained for.

        `batch_tokens` limits the padded source subwords searched at once, and `max_source_tokens` is the longest source
        (EOS included) the model was trained on. With several workers, processes forked from this one share the batches.
        """
        if max_source_tokens < 2:
            raise UsageError(f"max_source_tokens must be 2 or more (EOS takes one), not {max_source_tokens}.")
        self._model = model
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer
        self._settings = settings
        self._batch_tokens = min(batch_tokens, max(1, _MAX_BATCH_HYPOTHESES // settings.beam_size))
        self._max_source_tokens = max_source_tokens
        self._notices = None if say is None else SourceNotices(say, source_tokenizer, max_source_tokens - 1)
        self._num_workers = num_workers

    def translate(
        self, lines: Sequence[str], progress: Callable[[int], None] | None = None, first_number: int = 1
    ) -> list[str]:
        """Returns the translations in the order of the lines; calls `progress` with the number of new lines done.

        In notices, the first of the lines has the number `first_number`.
        """
        return [translation.text for translation in self.translate_with_scores(lines, progress, first_number)]

    def translate_with_scores(
        self, lines: Sequence[str], progress: Callable[[int], None] | None = None, first_number: int = 1
    ) -> list[Translation]:
        """Like `translate`, each translation with its score."""
        translations = dict(self._translate_share(lines, 0, 1, progress, first_number))
        return [translations[index] for index in range(len(lines))]

    def finish_notices(self) -> None:
        """Says how often something was noticed about the lines since the last call."""
        if self._notices is not None:
            self._notices.finish()

    def describe_unwritable(self, references: Sequence[str]) -> str | None:
        """Says which characters of reference translations the model cannot write; None if it can write all."""
        unknown = UnknownCharacters(self._target_tokenizer)
        for number, (line, ids) in enumerate(
            zip(references, self._target_tokenizer.encode_lines(references), strict=True), 1
        ):
            unknown.add(number, line, ids)
        return unknown.describe(
            "the references", "No translation can contain such a character, which lowers the scores."
        )

    def translate_share(
        self, lines: Sequence[str], rank: int, size: int, progress: Callable[[int], None] | None = None
    ) -> list[tuple[int, str]]:
        """Returns the translations of one of `size` ranks, each with the index of its line.

        Batches are formed over all lines, so the result does not depend on the number of ranks.
        """
        return [(index, translation.text) for index, translation in self._translate_share(lines, rank, size, progress)]

    def _translate_share(
        self,
        lines: Sequence[str],
        rank: int,
        size: int,
        progress: Callable[[int], None] | None,
        first_number: int = 1,
    ) -> list[tuple[int, Translation]]:
        filled, blank = self._read(lines, first_number)
        translations: list[tuple[int, Translation]] = []
        if rank == 0:
            translations += [(index, Translation("", 0.0)) for index in blank]
            _report(progress, len(blank))
        batches = _form_batches(filled, self._batch_tokens)[rank::size]
        with evaluating(self._model), closing(self._translate_batches(batches)) as results:
            for translated in results:
                translations += translated
                _report(progress, len(translated))
        return translations

    def _read(self, lines: Sequence[str], first_number: int) -> tuple[list[_Line], list[int]]:
        """Returns the lines with something to translate, and the indices of the blank ones."""
        max_ids = self._max_source_tokens - 1  # EOS takes one place
        filled: list[_Line] = []
        blank: list[int] = []
        for index, ids in enumerate(self._source_tokenizer.encode_lines([line.strip() for line in lines])):
            if not ids:
                blank.append(index)
                continue
            is_word_start = [subword.startswith(_WORD_START) for subword in self._source_tokenizer.subwords(ids)]
            filled.append(_Line(index, cut_at_words(ids, is_word_start, max_ids)))
            if self._notices is not None:
                self._notices.add(first_number + index, lines[index], ids, len(filled[-1].segments))
        return filled, blank

    def _translate_batches(self, batches: list[list[_Line]]) -> Generator[list[tuple[int, Translation]]]:
        """Yields the translations of each batch as it is done, each with the index of its line."""
        if self._num_workers == 1 or len(batches) < 2:
            yield from map(self._translate_batch, batches)
            return
        with closing(compute_in_processes(self._translate_for_sending, batches, self._num_workers)) as results:
            for _, rows in results:
                yield [(index, Translation(text, score)) for index, text, score in rows]

    def _translate_for_sending(self, batch: list[_Line]) -> list[tuple[int, str, float]]:
        return [(index, translation.text, translation.score) for index, translation in self._translate_batch(batch)]

    def _translate_batch(self, batch: list[_Line]) -> list[tuple[int, Translation]]:
        best = iter(self._search([segment for line in batch for segment in line.segments]))
        return [(line.index, self._join([next(best) for _ in line.segments])) for line in batch]

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

    def describe_checkpoint(self, which: str) -> str:
        """Says which checkpoint it is and how it scored on the dev set, if that was recorded."""
        name = f" ({which})" if which in ("best", "latest") else ""
        return f"Translating with the checkpoint of step {self.step:,}{name}: {self._describe_score()}."

    def _describe_score(self) -> str:
        """Gives the figure that the best checkpoint of this run is chosen by."""
        evaluation, metric = self._find_evaluation(), self.settings.best_by
        figure = None if evaluation is None else getattr(evaluation, metric)
        if evaluation is None or figure is None:
            return "not evaluated on the dev set"
        score = SCORE_PATTERNS[metric].format(figure)
        if metric == "loss":
            return score
        is_signed = metric == "bleu" and evaluation.signature  # the signature is that of BLEU
        return f"{score} on the dev set" + (f" ({evaluation.signature})" if is_signed else "")

    def _find_evaluation(self) -> EvaluationRecord | None:
        run = RunFolder(self.checkpoint.parent.parent)
        try:
            lines = run.metrics.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return None
        # Most lines are about steps; parsing all of them would take seconds.
        records = records_of(parse_records(line for line in lines if '"evaluation"' in line), EvaluationRecord)
        return next((record for record in reversed(records) if record.step == self.step), None)


def load_run(
    path: Path,
    which: str = "best",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    say: Say | None = None,
    num_workers: int | None = None,
) -> LoadedRun:
    """Loads a run's best, latest or numbered checkpoint for translation; searches as in its config unless given.

    On a CPU, this process computes with one thread from now on, and large inputs are shared by several processes.
    """
    device = choose_device()
    if device.type == "cpu":
        torch.set_num_threads(1)
    elif num_workers not in (None, 1):
        raise UsageError("--workers must be 1 on a GPU: one process uses all of it.")
    run = open_run(path)
    settings = load_settings(run.config)
    search = SearchSettings(
        beam_size=settings.evaluation.beam_size if beam_size is None else beam_size,
        length_penalty=settings.evaluation.length_penalty if length_penalty is None else length_penalty,
    )
    checkpoint = find_checkpoint(run, which, settings.best_by, warn=say or (lambda _: None))
    is_joint = tokenizer_path(run.tokenizers, "source", is_joint=True).exists()
    source, target = (Tokenizer.load(tokenizer_path(run.tokenizers, side, is_joint)) for side in ("source", "target"))
    model = Transformer(resolve_shape(settings.model, source.vocab_size, target.vocab_size, is_joint))
    load_weights(model, checkpoint / MODEL_FILE)
    translator = Translator(
        model.to(device),
        source,
        target,
        search,
        max_source_tokens=settings.data.max_tokens,
        say=say,
        num_workers=_choose_num_workers(model, search) if num_workers is None else num_workers,
    )
    return LoadedRun(translator, settings, checkpoint)


def _choose_num_workers(model: Transformer, search: SearchSettings) -> int:
    """Returns one process per physical core, if the memory suffices; one on a GPU, and where forking is not safe."""
    if model.target_embedding.device.type != "cpu" or sys.platform != "linux":
        return 1
    return max(1, min(num_physical_cores(), available_memory() // _working_bytes(model, search)))


def _working_bytes(model: Transformer, search: SearchSettings) -> int:
    """Estimates the memory of one process besides the weights, which all share: keys and values, and scores."""
    shape, num_hypotheses = model.shape, min(_BATCH_TOKENS * search.beam_size, _MAX_BATCH_HYPOTHESES)
    num_cached = 2 * shape.decoder_layers * shape.width * num_hypotheses
    num_scores = shape.target_vocab_size * num_hypotheses // _FEW_SUBWORDS
    # Twice: reordering hypotheses copies their keys and values, and so does choosing among scores.
    return _PROCESS_BYTES + 2 * 4 * (num_cached + num_scores)
