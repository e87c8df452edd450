"""Searches with models in PyTorch: on a GPU in this process, on a CPU in processes that share the weights."""

import math
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial

import torch

from dragoman.corpus.batching import pad_sentences
from dragoman.model.teacher_forcing import evaluating
from dragoman.model.transformer import Transformer
from dragoman.run.processes import available_memory, num_physical_cores
from dragoman.translation.search import Batch, Found, Hypothesis, SearchSettings
from dragoman.translation.torch_search.attention_alignment import align
from dragoman.translation.torch_search.beam_search import beam_search
from dragoman.translation.torch_search.constraints import Constraints, is_constrained
from dragoman.translation.torch_search.ensemble import Ensemble
from dragoman.translation.torch_search.required_beam import RequiredBeam, widen
from dragoman.translation.torch_search.sampling import sample
from dragoman.translation.torch_search.workers import compute_in_processes
from dragoman.translation.translator import BATCH_TOKENS, MAX_BATCH_HYPOTHESES

_PROCESS_BYTES = 100 * 2**20
_FEW_SUBWORDS = 8
"""Length of short sentences, of which a batch holds most."""


class TorchBackend:
    """One model or an ensemble; the same batches give the same result, by any number of processes."""

    def __init__(self, model: Transformer | Ensemble, num_subwords: int, num_workers: int = 1) -> None:
        """Uses the model's device; ids from `num_subwords` on are never generated.

        With several workers, processes forked from this one share the batches.
        """
        self._model = model
        self._num_subwords = num_subwords
        self._num_workers = num_workers

    def search_batches(self, batches: Sequence[Batch], settings: SearchSettings) -> Generator[tuple[int, Found]]:
        """Yields the index of each batch and what was found for it, in the order they are done."""
        with evaluating(self._model):
            if self._num_workers == 1 or len(batches) < 2:
                yield from ((index, self._search(batch, settings)) for index, batch in enumerate(batches))
                return
            search = partial(self._search_for_sending, settings=settings)
            with closing(compute_in_processes(search, batches, self._num_workers)) as results:
                for index, found in results:
                    yield index, [[Hypothesis(**each) for each in hypotheses] for hypotheses in found]

    def _search_for_sending(self, batch: Batch, settings: SearchSettings) -> list[list[dict[str, object]]]:
        return [[asdict(each) for each in hypotheses] for hypotheses in self._search(batch, settings)]

    def _search(self, batch: Batch, settings: SearchSettings) -> Found:
        """Searches for a batch; segments with required words have wider beams, so they are searched apart."""
        widths = [widen(segment, settings) if segment.required else 0 for segment in batch]
        found: Found = [[] for _ in batch]
        for width in sorted(set(widths)):
            chosen = [index for index, each in enumerate(widths) if each == width]
            its_settings = replace(settings, beam_size=width) if width else settings
            results = self._search_alike([batch[index] for index in chosen], its_settings)
            for index, hypotheses in zip(chosen, results, strict=True):
                found[index] = hypotheses
        return found

    def _search_alike(self, batch: Batch, settings: SearchSettings) -> Found:
        """Searches for segments of which all or none require words."""
        model, device = self._model, self._model.target_embedding.device
        source_BS, lengths_B = map(torch.from_numpy, pad_sentences([segment.ids for segment in batch]))
        source_BS = source_BS.to(device)
        if settings.sampling is not None:
            found = sample(model, source_BS, lengths_B, batch, settings, self._num_subwords)
        else:
            required = RequiredBeam(batch, settings) if batch[0].required else None
            is_plain = required is None and not is_constrained(batch, settings)
            constraints = None if is_plain else Constraints(batch, settings, device)
            found = beam_search(model, source_BS, lengths_B, settings, self._num_subwords, constraints, required)
            found = [
                each or [Hypothesis(list(segment.prefix), -math.inf, -math.inf)]
                for segment, each in zip(batch, found, strict=True)
            ]
        return align(model, source_BS, lengths_B, found) if settings.with_alignment else found


def choose_num_workers(model: Transformer | Ensemble, search: SearchSettings) -> int:
    """Returns one process per physical core, if the memory suffices; one on a GPU, and where forking is not safe."""
    if model.target_embedding.device.type != "cpu" or sys.platform != "linux":
        return 1
    return max(1, min(num_physical_cores(), available_memory() // _working_bytes(model, search)))


def _working_bytes(model: Transformer | Ensemble, search: SearchSettings) -> int:
    """Estimates the memory of one process besides the weights, which all share: keys and values, and scores."""
    shape, num_hypotheses = model.shape, min(BATCH_TOKENS * search.num_rows, MAX_BATCH_HYPOTHESES)
    num_models = len(model.models) if isinstance(model, Ensemble) else 1
    num_cached = num_models * 2 * shape.decoder_layers * shape.width * num_hypotheses
    num_scores = num_models * shape.target_vocab_size * num_hypotheses // _FEW_SUBWORDS
    # Twice: reordering hypotheses copies their keys and values, and so does choosing among scores.
    return _PROCESS_BYTES + 2 * 4 * (num_cached + num_scores)
