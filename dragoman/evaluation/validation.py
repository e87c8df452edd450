"""Validation during training: losses and translations of the dev set, computed by all ranks together."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch

from dragoman.cluster.heartbeat import beat
from dragoman.cluster.world import World
from dragoman.corpus.batching import Indices, MicroBatch, fixed_batches, pad_pairs
from dragoman.corpus.prepared_corpus import PreparedCorpus, SplitName
from dragoman.corpus.tokenizer import EOS_ID
from dragoman.evaluation.scores import Score, bleu_counts, choose_tokenizer, score_translations, teacher_forced_bleu
from dragoman.model.loss import LossSums
from dragoman.model.teacher_forcing import evaluating, teacher_forced_loss, teacher_forced_predictions
from dragoman.model.transformer import Transformer
from dragoman.run.config import ScoreTokenizer, Settings
from dragoman.run.errors import describe_fault
from dragoman.run.files import write_then_rename
from dragoman.run.folder import RunFolder
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.torch_backend import TorchBackend
from dragoman.translation.translator import LineTranslator

_Result = TypeVar("_Result")
_BATCH_TOKENS = 4096
NUM_SAMPLES = 3
_MAX_TRAIN_SAMPLE = 1_000
"""Largest number of training sentences that are evaluated too; never more than the dev set has."""


@dataclass(frozen=True)
class Evaluation:
    """Losses, scores and translations of the model on the dev set."""

    loss: float
    """Smoothed as in training, without dropout."""
    negative_log_likelihood: float
    bleu: float
    """sacreBLEU of beam-search translations against plain text, 0 to 100."""
    signature: str
    tokenizer: ScoreTokenizer
    """How sacreBLEU cut text into words."""
    chrf: float
    teacher_forced_bleu: float
    """OpenSeq2Seq's "Eval BLUE score": subwords predicted given the reference, 0 to 1. Not the BLEU of translations."""
    train_sample_loss: float
    """Like `loss`, but of a fixed sample of training sentences: the gap between the two measures overfitting."""
    seconds: float
    sources: Sequence[str]
    references: Sequence[str]
    translations: Sequence[str]

    def figures(self) -> dict[str, Any]:
        """Returns the values for metrics.jsonl, with the first few translations as samples."""
        figures = {name: value for name, value in vars(self).items() if name not in _TEXTS}
        rows = zip(self.sources, self.references, self.translations, strict=True)
        samples = [dict(zip(("source", "reference", "translation"), row, strict=True)) for row in rows]
        return figures | {"samples": samples[:NUM_SAMPLES]}


_TEXTS = ("sources", "references", "translations")


class EvaluationFailedError(Exception):
    """A rank could not do its share of an evaluation; raised on all ranks with the same message."""


class _InterruptedError(Exception):
    """A request to stop the run came while this rank was evaluating."""


@dataclass
class _Share:
    """One rank's share of an evaluation."""

    smoothed_sum: float = 0.0
    plain_sum: float = 0.0
    train_smoothed_sum: float = 0.0
    num_train_tokens: int = 0
    predictions: list[tuple[int, str]] = field(default_factory=list)
    translations: list[tuple[int, str]] = field(default_factory=list)


def evaluate_on_dev(
    model: Transformer,
    corpus: PreparedCorpus,
    settings: Settings,
    world: World,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Collective: evaluates, with the same result for any number of ranks; None where a rank was asked to stop.

    Raises an EvaluationFailedError on all ranks if one cannot do its share: the others must not wait for it.
    """
    begin = time.perf_counter()
    sources, references = _on_all_ranks(world, lambda: _read_texts(corpus, settings))
    share = _on_all_ranks(world, lambda: _evaluate_share(model, corpus, settings, world, sources, should_stop))
    # Ranks may notice a signal at different batches: they agree here, before the first collective over the results.
    is_interrupted = any(world.largest_numbers([float(share is None)]))
    if share is None or is_interrupted:
        return None
    smoothed, plain = world.sum_numbers([share.smoothed_sum, share.plain_sum])
    train_sum, num_train_tokens = world.sum_numbers([share.train_smoothed_sum, float(share.num_train_tokens)])
    predictions = world.gather_texts(share.predictions)
    translations = world.gather_texts(share.translations)
    scores = _on_all_ranks(world, lambda: _score(corpus, settings, predictions, translations, references))
    return Evaluation(
        loss=smoothed / scores.num_tokens,
        negative_log_likelihood=plain / scores.num_tokens,
        bleu=scores.score.bleu,
        signature=scores.score.signature,
        tokenizer=scores.tokenizer,
        chrf=scores.score.chrf,
        teacher_forced_bleu=scores.teacher_forced_bleu,
        train_sample_loss=train_sum / max(1.0, num_train_tokens),
        seconds=time.perf_counter() - begin,
        sources=sources,
        references=references,
        translations=translations,
    )


def _on_all_ranks(world: World, work: Callable[[], _Result]) -> _Result:
    """Collective: does work that needs no other rank; raises on all ranks if it fails on one."""
    result: _Result | None = None
    fault: Exception | None = None
    try:
        result = work()
    except Exception as error:
        fault = error
    mine = None if fault is None else f"rank {world.rank}: {describe_fault(fault)}"
    if (message := world.first_error(mine)) is not None:
        raise EvaluationFailedError(message) from fault
    return cast("_Result", result)


def _read_texts(corpus: PreparedCorpus, settings: Settings) -> tuple[Sequence[str], Sequence[str]]:
    """Returns sources and references of the dev set, as many as are translated."""
    sources, references = corpus.text("dev")
    num_sentences = settings.evaluation.max_sentences
    return sources[:num_sentences], references[:num_sentences]


def _evaluate_share(
    model: Transformer,
    corpus: PreparedCorpus,
    settings: Settings,
    world: World,
    sources: Sequence[str],
    should_stop: Callable[[], bool],
) -> _Share | None:
    """Computes this rank's share; None where it was asked to stop."""

    def check(doing: str) -> None:
        beat(doing)
        if should_stop():
            raise _InterruptedError

    share = _Share()
    try:
        with evaluating(model):
            forcing = _TeacherForcing(model, corpus, settings, world, check)
            forcing.evaluate_dev(share)
            forcing.evaluate_train_sample(share)
            share.translations = _translator(model, corpus, settings).translate_share(
                sources, world.rank, world.size, lambda _num: check("translating the dev set")
            )
    except _InterruptedError:
        return None
    return share


def _translator(model: Transformer, corpus: PreparedCorpus, settings: Settings) -> LineTranslator:
    search = SearchSettings(settings.evaluation.beam_size, settings.evaluation.length_penalty)
    backend = TorchBackend(model, corpus.target_tokenizer.num_subwords)
    return LineTranslator(backend, corpus.source_tokenizer, corpus.target_tokenizer, search, settings.data.max_tokens)


@dataclass(frozen=True)
class _TeacherForcing:
    """Computes teacher-forced losses and predictions of a rank's share of the batches."""

    model: Transformer
    corpus: PreparedCorpus
    settings: Settings
    world: World
    check: Callable[[str], None]
    """Called before every batch with a description of the work."""

    @torch.no_grad()
    def evaluate_dev(self, share: _Share) -> None:
        """Adds losses and predictions of the dev set."""
        precision = self.settings.training.precision
        for indices, batch, sums in self._batches("dev"):
            share.smoothed_sum += float(sums.smoothed)
            share.plain_sum += float(sums.plain)
            for index, ids in zip(indices, teacher_forced_predictions(self.model, batch, precision), strict=True):
                share.predictions.append((int(index), " ".join(map(str, ids))))

    @torch.no_grad()
    def evaluate_train_sample(self, share: _Share) -> None:
        """Adds losses of a sample of the training text."""
        pairs = self.corpus.split("train")
        num_chosen = min(pairs.num_pairs, self.corpus.split("dev").num_pairs, _MAX_TRAIN_SAMPLE)
        # Evenly over the whole split, which is shuffled: the same ones at every evaluation of every run on this corpus.
        chosen = np.arange(num_chosen) * (pairs.num_pairs // max(1, num_chosen))
        longest = np.maximum(*pairs.lengths(chosen))
        chosen = chosen[longest < self.settings.data.max_tokens]  # longer ones are not trained on
        for _, batch, sums in self._batches("train", chosen):
            share.train_smoothed_sum += float(sums.smoothed)
            share.num_train_tokens += batch.num_target_tokens

    def _batches(
        self, split: SplitName, chosen: Indices | None = None
    ) -> Iterator[tuple[Indices, MicroBatch, LossSums]]:
        pairs, training = self.corpus.split(split), self.settings.training
        for indices in fixed_batches(pairs, _BATCH_TOKENS, chosen)[self.world.rank :: self.world.size]:
            self.check(f"evaluating the {split} set")
            batch = pad_pairs([pairs.source(i) for i in indices], [pairs.target(i) for i in indices])
            yield indices, batch, teacher_forced_loss(self.model, batch, training.precision, training.label_smoothing)


@dataclass(frozen=True)
class _Scores:
    """Scores of all translations and predictions of the dev set."""

    score: Score
    tokenizer: ScoreTokenizer
    teacher_forced_bleu: float
    num_tokens: int
    """Target tokens of the dev set, which its loss is divided by."""


def _score(
    corpus: PreparedCorpus,
    settings: Settings,
    predictions: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
) -> _Scores:
    """Scores what all ranks have gathered."""
    pairs = corpus.split("dev")
    tokenizer = choose_tokenizer(settings.evaluation.tokenizer, corpus.manifest.settings.get("languages"), references)
    targets = [" ".join(map(str, [*pairs.target(i), EOS_ID])) for i in range(pairs.num_pairs)]
    return _Scores(
        score_translations(translations, references, tokenizer),
        tokenizer,
        teacher_forced_bleu(predictions, targets),
        corpus.manifest.splits["dev"].target.num_tokens + pairs.num_pairs,
    )


def save_translations(run: RunFolder, step: int, evaluation: Evaluation) -> None:
    """Writes translations.jsonl: a line about the evaluation, then one for each sentence, to compare two runs by."""
    counts = bleu_counts(evaluation.translations, evaluation.references, evaluation.tokenizer)
    rows = zip(evaluation.sources, evaluation.references, evaluation.translations, counts, strict=True)
    names = ("source", "reference", "translation", "bleu_counts")
    lines: list[dict[str, object]] = [{"step": step, "bleu": evaluation.bleu, "signature": evaluation.signature}]
    lines += [dict(zip(names, row, strict=True)) for row in rows]
    # A full disk or an odd character must not end a run: it only needs the values in metrics.jsonl.
    with suppress(OSError, UnicodeError), write_then_rename(run.translations, "w", is_durable=False) as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
