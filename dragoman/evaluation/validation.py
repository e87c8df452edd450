"""The dev set as a run translated it last, kept sentence by sentence so that two runs can be compared pair by pair."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dragoman.cluster.heartbeat import beat
from dragoman.cluster.world import World
from dragoman.corpus.batching import Indices, MicroBatch, fixed_batches, pad_pairs
from dragoman.corpus.prepared_corpus import PreparedCorpus, SplitName
from dragoman.corpus.tokenizer import EOS_ID
from dragoman.evaluation.scores import bleu_counts, score_translations, teacher_forced_bleu
from dragoman.model.loss import LossSums
from dragoman.model.teacher_forcing import evaluating, teacher_forced_loss, teacher_forced_predictions
from dragoman.model.transformer import Transformer
from dragoman.run.config import Settings
from dragoman.run.files import write_aside
from dragoman.run.folder import RunFolder
from dragoman.translation.beam_search import SearchSettings
from dragoman.translation.translator import Translator

BATCH_TOKENS = 4096
NUM_SAMPLES = 3
MAX_TRAIN_SAMPLE = 1_000
"""Training sentences judged besides the dev set, at most; never more than the dev set has."""


@dataclass(frozen=True)
class Evaluation:
    """How good the model is on the dev set."""

    loss: float
    """Smoothed as in training, without dropout."""
    negative_log_likelihood: float
    bleu: float
    """sacreBLEU of beam-search translations against plain text, 0 to 100."""
    signature: str
    chrf: float
    teacher_forced_bleu: float
    """What the seeds' system called its BLEU: pieces, fed with the reference, 0 to 1. Not the BLEU of translations."""
    train_sample_loss: float
    """As `loss`, but of training sentences, always the same: how far below the dev set's it falls is overfitting."""
    seconds: float
    sources: Sequence[str]
    references: Sequence[str]
    translations: Sequence[str]

    def figures(self) -> dict[str, Any]:
        """As they stand in metrics.jsonl: the first few translations show how the model comes to speak."""
        figures = {name: value for name, value in vars(self).items() if name not in _TEXTS}
        rows = zip(self.sources, self.references, self.translations, strict=True)
        samples = [dict(zip(("source", "reference", "translation"), row, strict=True)) for row in rows]
        return figures | {"samples": samples[:NUM_SAMPLES]}


_TEXTS = ("sources", "references", "translations")


class _InterruptedError(Exception):
    """Somebody asked the run to stop while this rank was judging."""


@dataclass
class _Share:
    """What one rank computed of an evaluation."""

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
    """Collective: the same figures on every rank, whatever the number of ranks; None where one was asked to stop."""
    begin = time.perf_counter()
    num_sentences = settings.evaluation.max_sentences
    sources, references = (lines[:num_sentences] for lines in corpus.text("dev"))
    share = _Share()

    def check(doing: str) -> None:
        beat(doing)
        if should_stop():
            raise _InterruptedError

    is_interrupted = False
    try:
        with evaluating(model):
            forcing = _TeacherForcing(model, corpus, settings, world, check)
            forcing.judge_dev(share)
            forcing.judge_train_sample(share)
            share.translations = _translator(model, corpus, settings).translate_share(
                sources, world.rank, world.size, lambda _num: check("translating the dev set")
            )
    except _InterruptedError:
        is_interrupted = True
    # Ranks may notice a signal at different batches: they agree here, before the first collective of the figures.
    if any(world.largest_numbers([float(is_interrupted)])):
        return None
    smoothed, plain, forced_bleu = _sum_up(share, corpus, world)
    train_sum, num_train_tokens = world.sum_numbers([share.train_smoothed_sum, float(share.num_train_tokens)])
    translations = world.gather_texts(share.translations)
    score = score_translations(translations, references)
    return Evaluation(
        loss=smoothed,
        negative_log_likelihood=plain,
        bleu=score.bleu,
        signature=score.signature,
        chrf=score.chrf,
        teacher_forced_bleu=forced_bleu,
        train_sample_loss=train_sum / max(1.0, num_train_tokens),
        seconds=time.perf_counter() - begin,
        sources=sources,
        references=references,
        translations=translations,
    )


def _translator(model: Transformer, corpus: PreparedCorpus, settings: Settings) -> Translator:
    return Translator(
        model,
        corpus.source_tokenizer,
        corpus.target_tokenizer,
        SearchSettings(settings.evaluation.beam_size, settings.evaluation.length_penalty),
        max_source_tokens=settings.data.max_tokens,
    )


@dataclass(frozen=True)
class _TeacherForcing:
    """A model fed with references, a rank's part of them."""

    model: Transformer
    corpus: PreparedCorpus
    settings: Settings
    world: World
    check: Callable[[str], None]
    """Called before every batch with what is done."""

    @torch.no_grad()
    def judge_dev(self, share: _Share) -> None:
        """Losses and predictions of the dev set."""
        precision = self.settings.training.precision
        for part, batch, sums in self._batches("dev"):
            share.smoothed_sum += float(sums.smoothed)
            share.plain_sum += float(sums.plain)
            for index, ids in zip(part, teacher_forced_predictions(self.model, batch, precision), strict=True):
                share.predictions.append((int(index), " ".join(map(str, ids))))

    @torch.no_grad()
    def judge_train_sample(self, share: _Share) -> None:
        """Losses of a sample of the training text, measured as the dev set's are."""
        pairs = self.corpus.split("train")
        num_judged = min(pairs.num_pairs, self.corpus.split("dev").num_pairs, MAX_TRAIN_SAMPLE)
        # Evenly over the whole split, which is shuffled: the same ones at every evaluation of every run on this corpus.
        chosen = np.arange(num_judged) * (pairs.num_pairs // max(1, num_judged))
        longest = np.maximum(pairs.source_lengths[chosen], pairs.target_lengths[chosen])
        chosen = chosen[longest < self.settings.data.max_tokens]  # longer ones are not trained on
        for part, _, sums in self._batches("train", chosen):
            share.train_smoothed_sum += float(sums.smoothed)
            share.num_train_tokens += int((pairs.target_lengths[part].astype(np.int64) + 1).sum())

    def _batches(
        self, split: SplitName, chosen: Indices | None = None
    ) -> Iterator[tuple[Indices, MicroBatch, LossSums]]:
        pairs, training = self.corpus.split(split), self.settings.training
        for part in fixed_batches(pairs, BATCH_TOKENS, chosen)[self.world.rank :: self.world.size]:
            self.check(f"judging the {split} set")
            batch = pad_pairs([pairs.source(i) for i in part], [pairs.target(i) for i in part])
            yield part, batch, teacher_forced_loss(self.model, batch, training.precision, training.label_smoothing)


def _sum_up(share: _Share, corpus: PreparedCorpus, world: World) -> tuple[float, float, float]:
    """Collective: smoothed loss, plain loss, and the seeds' kind of BLEU."""
    pairs = corpus.split("dev")
    smoothed, plain = world.sum_numbers([share.smoothed_sum, share.plain_sum])
    num_tokens = int(pairs.target_lengths.sum()) + pairs.num_pairs
    references = [" ".join(map(str, [*pairs.target(i), EOS_ID])) for i in range(pairs.num_pairs)]
    forced_bleu = teacher_forced_bleu(world.gather_texts(share.predictions), references)
    return smoothed / num_tokens, plain / num_tokens, forced_bleu


def save_translations(run: RunFolder, step: int, judged: Evaluation) -> None:
    """Writes translations.jsonl: a line about the evaluation, then one for each sentence."""
    counts = bleu_counts(judged.translations, judged.references)
    rows = zip(judged.sources, judged.references, judged.translations, counts, strict=True)
    names = ("source", "reference", "translation", "bleu_counts")
    lines: list[dict[str, object]] = [{"step": step, "bleu": judged.bleu, "signature": judged.signature}]
    lines += [dict(zip(names, row, strict=True)) for row in rows]
    # On a full disk a run goes on without: it is the figures in metrics.jsonl that it needs.
    with suppress(OSError), write_aside(run.translations, "w", is_durable=False) as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
