"""Searches with CTranslate2, which is faster than PyTorch on a CPU; needs no torch.

CTranslate2 ends its search by another rule and divides by another length penalty than our own search. It is therefore
asked for all hypotheses that it finished, which are ranked here, so that scores mean the same with every backend.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from dragoman.run.errors import UserError
from dragoman.run.processes import num_physical_cores
from dragoman.translation.ctranslate2_required import RequiredWriter
from dragoman.translation.possible_outputs import has_forbidden, max_length, require_possible
from dragoman.translation.search import Batch, Found, Hypothesis, SearchSettings, SourceSegment

_PATIENCE = 1.5
"""CTranslate2 ends a search at this many finished hypotheses, times the beam size; ours goes on while a better one is
possible. With 1.0, 2 of 500 dev sentences of the demo's model came out differently with beam 4; with 1.5, none."""
_MAX_USUAL_PENALTY = 2.0
_PATIENCE_TO_THE_END = 1_000.0
"""A large length penalty favours outputs that are found late: up to the length limit, which takes several times as
long."""
_ALMOST_NO_PENALTY = 1e-9
"""A length penalty of 0 would end CTranslate2's search at its first finished hypothesis."""
_QUEUED_PER_WORKER = 2
_SEED_STRIDE = 1_000_003


def vocabulary_entries(tokenizer: Tokenizer) -> list[str]:
    """Returns a different string for each id: its subword, or a name for ids that only pad the vocabulary."""
    entries = tokenizer.subwords(range(tokenizer.vocab_size))
    known = set(entries[: tokenizer.num_subwords])
    for index in range(tokenizer.num_subwords, len(entries)):
        while entries[index] in known:
            entries[index] += "_"
    return entries


@dataclass(frozen=True)
class _Finished:
    """A hypothesis as CTranslate2 returns it, EOS included."""

    ids: list[int]
    log_probability: float
    aligned: list[int] | None

    @property
    def has_end(self) -> bool:
        """Whether it ended by itself; otherwise the length limit ended it."""
        return bool(self.ids) and self.ids[-1] == EOS_ID


@dataclass(frozen=True)
class _Constraints:
    """What a search must not generate, besides the sequences that the settings forbid everywhere."""

    max_length: int
    suppressed: tuple[tuple[int, ...], ...] = ()


class CTranslate2Backend:
    """A model in CTranslate2's format; its worker threads share the batches."""

    def __init__(
        self,
        folder: Path,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_positions: int,
        num_workers: int | None = None,
        quantization: str | None = None,
    ) -> None:
        """Loads the model of a folder; `max_positions` limits the length of outputs.

        `quantization` is the number type of its weights, if not float32. Workers have one thread each, and there is one
        per physical core unless a number is given.
        """
        self._folder = folder
        self._source_entries = vocabulary_entries(source_tokenizer)
        self._target_entries = vocabulary_entries(target_tokenizer)
        self._target_ids = {entry: index for index, entry in enumerate(self._target_entries)}
        padding = range(target_tokenizer.num_subwords, len(self._target_entries))
        self._unwanted = {PAD_ID, BOS_ID, UNK_ID, *padding}
        self._max_positions = max_positions
        self._is_on_gpu = _has_gpu()
        # CPUs compute in float32 with such weights; CTranslate2 would print a warning about that.
        self._compute_type = "float32" if quantization == "float16" and not self._is_on_gpu else "default"
        self._num_workers = 1 if self._is_on_gpu else num_workers or num_physical_cores()
        self._model = self._load(self._num_workers)

    def search_batches(self, batches: Sequence[Batch], settings: SearchSettings) -> Generator[tuple[int, Found]]:
        """Yields the index of each batch and what was found for it, in the order of the batches."""
        for segment in (each for batch in batches for each in batch):
            require_possible(segment, settings)
        if settings.sampling is not None:
            yield from self._sample_batches(batches, settings)
            return

        def submit(index: int) -> Callable[[], Found]:
            constraints = _Constraints(self._max_length(batches[index], settings))
            pending = self._translate(self._model, batches[index], settings, constraints)
            return lambda: self._add_required(batches[index], self._rank(batches[index], pending, settings), settings)

        yield from _in_order(len(batches), _QUEUED_PER_WORKER * self._num_workers, submit)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the log-probability of each target subword, EOS last; ids come without EOS."""
        results = self._model.score_batch(
            self._to_source(sources), self._to_target(targets), max_input_length=0, asynchronous=False
        )
        return [list(result.log_probs) for result in results]

    def _load(self, num_threads: int) -> Any:
        import ctranslate2

        device = "cuda" if self._is_on_gpu else "cpu"
        try:
            return ctranslate2.Translator(
                str(self._folder),
                device,
                compute_type=self._compute_type,
                inter_threads=num_threads,
                intra_threads=1,
            )
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise UserError(f"{self._folder} holds no model that CTranslate2 can load: {error}") from None

    def _max_length(self, batch: Batch, settings: SearchSettings) -> int:
        """Returns the largest length that an output of the batch may have, EOS included."""
        return max(self._own_limit(segment, settings) for segment in batch)

    def _own_limit(self, segment: SourceSegment, settings: SearchSettings) -> int:
        return min(max_length(segment, settings), self._max_positions)

    def _translate(self, model: Any, batch: Batch, settings: SearchSettings, constraints: _Constraints) -> list[Any]:
        """Starts a search; the results come later."""
        prefixes = self._to_target(segment.prefix for segment in batch)
        suppressed = [*settings.forbidden, *constraints.suppressed]
        pending: list[Any] = model.translate_batch(
            self._to_source(segment.ids for segment in batch),
            prefixes if any(prefixes) else None,
            asynchronous=True,
            suppress_sequences=self._to_target(suppressed) or None,
            max_input_length=0,
            max_decoding_length=constraints.max_length,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
            return_attention=settings.with_alignment,
            **search_options(settings),
        )
        return pending

    def _rank(self, batch: Batch, pending: list[Any], settings: SearchSettings) -> Found:
        """Waits for a batch; searches again for segments with an output that our own search would not make."""
        finished = [self._read(each.result(), settings) for each in pending]
        again: dict[int, list[int]] = {}
        for index, (segment, hypotheses) in enumerate(zip(batch, finished, strict=True)):
            limit = self._own_limit(segment, settings)
            fitting = [each for each in hypotheses if len(each.ids) <= limit]
            if not fitting or any(self._is_unwanted(each.ids, settings) for each in hypotheses):
                again.setdefault(limit, []).append(index)
            finished[index] = fitting
        for limit, indices in again.items():
            redone = self._search_again([batch[index] for index in indices], settings, limit)
            for index, hypotheses in zip(indices, redone, strict=True):
                finished[index] = hypotheses
        if settings.forbidden or settings.forbidden_starts or any(segment.prefix for segment in batch):
            finished = [self._rescore(*each) for each in zip(batch, finished, strict=True)]
        return [_best(hypotheses, settings) for hypotheses in finished]

    def _add_required(self, batch: Batch, found: Found, settings: SearchSettings) -> Found:
        """Writes required words into translations that lack them."""

        def search(segments: list[SourceSegment]) -> Found:
            limit = max((self._own_limit(each, settings) for each in segments), default=1)
            return self._rank(segments, self._translate(self._model, segments, settings, _Constraints(limit)), settings)

        def begins_word(subword: int) -> bool:
            return self._target_entries[subword].startswith("▁")

        return [
            RequiredWriter(segment, settings, self._own_limit(segment, settings), begins_word, search).write(hypotheses)
            if segment.required
            else hypotheses
            for segment, hypotheses in zip(batch, found, strict=True)
        ]

    def _search_again(self, batch: Batch, settings: SearchSettings, limit: int) -> list[list[_Finished]]:
        """Searches with the exact length limit and without unwanted subwords; slower, and seldom needed.

        CTranslate2 cannot forbid a sequence at the start of words only: here it is forbidden everywhere.
        """
        suppressed = *self._suppressed_ids(), *settings.forbidden_starts
        pending = self._translate(self._model, batch, settings, _Constraints(limit, suppressed))
        finished = [self._read(each.result(), settings) for each in pending]
        return [self._rescore(*each) for each in zip(batch, finished, strict=True)]

    def _is_unwanted(self, ids: Sequence[int], settings: SearchSettings) -> bool:
        return not self._unwanted.isdisjoint(ids) or (bool(settings.forbidden_starts) and has_forbidden(ids, settings))

    def _suppressed_ids(self) -> tuple[tuple[int, ...], ...]:
        return tuple((each,) for each in sorted(self._unwanted))

    def _read(self, result: Any, settings: SearchSettings) -> list[_Finished]:
        finished = []
        for index, (entries, score) in enumerate(zip(result.hypotheses, result.scores, strict=True)):
            ids = [self._target_ids[entry] for entry in entries]
            log_probability = score * len(ids) ** _length_penalty(settings) if ids else score
            aligned = None
            if settings.with_alignment:
                aligned = [max(range(len(row)), key=row.__getitem__) for row in result.attention[index]]
            finished.append(_Finished(ids, log_probability, aligned))
        return finished

    def _rescore(self, segment: SourceSegment, hypotheses: list[_Finished]) -> list[_Finished]:
        """Computes log-probabilities without constraints: CTranslate2's count a forced subword as certain."""
        texts = [each.ids[:-1] if each.has_end else each.ids for each in hypotheses]
        scores = self.score([segment.ids] * len(texts), texts)
        lengths = [len(each.ids) for each in hypotheses]
        sums = [sum(each[:length]) for each, length in zip(scores, lengths, strict=True)]
        return [replace(each, log_probability=total) for each, total in zip(hypotheses, sums, strict=True)]

    def _sample_batches(self, batches: Sequence[Batch], settings: SearchSettings) -> Generator[tuple[int, Found]]:
        """Draws with one model per worker, each with its own random numbers, so that a repetition gives the same.

        CTranslate2 has one seed for the whole process, which a thread reads when it first draws.
        """
        num_models = min(self._num_workers, len(batches))
        models = [self._seeded_model(worker, batches, settings) for worker in range(num_models)]

        def submit(index: int) -> Callable[[], Found]:
            batch, model = batches[index], models[index % num_models]
            constraints = _Constraints(self._max_length(batch, settings), self._suppressed_ids())
            pending = self._translate(model, batch, settings, constraints)
            return lambda: [self._read_samples(model, *each, settings) for each in zip(batch, pending, strict=True)]

        yield from _in_order(len(batches), _QUEUED_PER_WORKER * num_models, submit)

    def _seeded_model(self, worker: int, batches: Sequence[Batch], settings: SearchSettings) -> Any:
        import ctranslate2

        assert settings.sampling is not None
        first_number = batches[0][0].number
        model = self._load(1)
        ctranslate2.set_random_seed((settings.sampling.seed * _SEED_STRIDE + first_number + worker) % 2**32)
        self._translate(model, batches[0][:1], settings, _Constraints(max_length=1))[0].result()
        return model

    def _read_samples(
        self, model: Any, segment: SourceSegment, pending: Any, settings: SearchSettings
    ) -> list[Hypothesis]:
        limit = self._own_limit(segment, settings)
        drawn = self._read(pending.result(), settings)
        if settings.forbidden_starts and any(has_forbidden(each.ids, settings) for each in drawn):
            constraints = _Constraints(limit, (*self._suppressed_ids(), *settings.forbidden_starts))
            drawn = self._read(self._translate(model, [segment], settings, constraints)[0].result(), settings)
        drawn = [replace(each, ids=each.ids[:limit]) for each in drawn]
        # With top_k = 1 nothing is left to chance, and CTranslate2 returns one hypothesis.
        drawn += drawn[:1] * (settings.num_best - len(drawn))
        return sorted(
            (_to_hypothesis(each, settings) for each in self._rescore(segment, drawn)), key=lambda each: -each.score
        )

    def _to_source(self, rows: Iterable[Sequence[int]]) -> list[list[str]]:
        return [[self._source_entries[each] for each in row] for row in rows]

    def _to_target(self, rows: Iterable[Sequence[int]]) -> list[list[str]]:
        return [[self._target_entries[each] for each in row] for row in rows]


def search_options(settings: SearchSettings) -> dict[str, Any]:
    """Returns the options of CTranslate2 that follow from ours."""
    if (sampling := settings.sampling) is not None:
        return {
            "beam_size": 1,
            "num_hypotheses": 1 if sampling.top_k == 1 else settings.num_best,
            "sampling_topk": sampling.top_k,
            "sampling_topp": sampling.top_p,
            "sampling_temperature": sampling.temperature,
            "length_penalty": _length_penalty(settings),
        }
    patience = _PATIENCE if settings.length_penalty <= _MAX_USUAL_PENALTY else _PATIENCE_TO_THE_END
    if settings.beam_size == 1:
        patience = 1.0
    return {
        "beam_size": settings.beam_size,
        "patience": patience,
        "num_hypotheses": round(settings.beam_size * patience),
        "length_penalty": _length_penalty(settings),
    }


def _length_penalty(settings: SearchSettings) -> float:
    return max(settings.length_penalty, _ALMOST_NO_PENALTY)


def _in_order(
    num_batches: int, num_queued: int, submit: Callable[[int], Callable[[], Found]]
) -> Generator[tuple[int, Found]]:
    """Keeps a bounded number of batches in CTranslate2's queue; yields results in the order of the batches."""
    indices = iter(range(num_batches))
    waiting = deque((index, submit(index)) for index in islice(indices, num_queued))
    while waiting:
        index, wait = waiting.popleft()
        found = wait()
        waiting.extend((each, submit(each)) for each in islice(indices, 1))
        yield index, found


def _best(hypotheses: list[_Finished], settings: SearchSettings) -> list[Hypothesis]:
    """Ranks hypotheses by our score; those that the length limit ended count only if no other ended."""
    ended = [each for each in hypotheses if each.has_end] or hypotheses
    ranked = sorted((_to_hypothesis(each, settings) for each in ended), key=lambda each: -each.score)
    return ranked[: settings.num_best]


def _to_hypothesis(finished: _Finished, settings: SearchSettings) -> Hypothesis:
    tokens = finished.ids[:-1] if finished.has_end else finished.ids
    aligned = None if finished.aligned is None else finished.aligned[: len(tokens)]
    score = finished.log_probability / settings.penalty(max(len(finished.ids), 1))
    return Hypothesis(tokens, score, finished.log_probability, aligned)


def _has_gpu() -> bool:
    import ctranslate2

    return int(ctranslate2.get_cuda_device_count()) > 0
