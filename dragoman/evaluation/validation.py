"""Judging a model on the dev set during training, the work shared over the ranks."""

import time
from dataclasses import dataclass
from typing import Any

import torch

from dragoman.cluster.world import World
from dragoman.corpus.batching import fixed_batches, pad_pairs
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.corpus.tokenizer import EOS_ID
from dragoman.evaluation.scores import score_translations, teacher_forced_bleu
from dragoman.evaluation.teacher_forcing import teacher_forced_loss, teacher_forced_predictions
from dragoman.model.mode import evaluating
from dragoman.model.transformer import Transformer
from dragoman.run.config import Settings
from dragoman.translation.beam_search import SearchSettings
from dragoman.translation.translator import Translator

BATCH_TOKENS = 4096


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
    seconds: float

    def figures(self) -> dict[str, Any]:
        """As they stand in metrics.jsonl."""
        return dict(vars(self))


def evaluate_on_dev(model: Transformer, corpus: PreparedCorpus, settings: Settings, world: World) -> Evaluation:
    """Collective: the same figures on every rank, whatever the number of ranks."""
    begin = time.perf_counter()
    num_sentences = settings.evaluation.max_sentences
    sources, references = (lines[:num_sentences] for lines in corpus.text("dev"))
    translator = Translator(
        model,
        corpus.source_tokenizer,
        corpus.target_tokenizer,
        SearchSettings(settings.evaluation.beam_size, settings.evaluation.length_penalty),
        max_source_tokens=settings.data.max_tokens,
    )
    with evaluating(model):
        smoothed, plain, forced_bleu = _teacher_forced_figures(model, corpus, settings, world)
        translations = world.gather_texts(translator.translate_share(sources, world.rank, world.size))
    score = score_translations(translations, references)
    seconds = time.perf_counter() - begin
    return Evaluation(smoothed, plain, score.bleu, score.signature, score.chrf, forced_bleu, seconds)


@torch.no_grad()
def _teacher_forced_figures(
    model: Transformer, corpus: PreparedCorpus, settings: Settings, world: World
) -> tuple[float, float, float]:
    """Collective: smoothed loss, plain loss, and the seeds' kind of BLEU."""
    pairs, precision = corpus.split("dev"), settings.training.precision
    smoothed = plain = 0.0
    predictions: list[tuple[int, str]] = []
    for part in fixed_batches(pairs, BATCH_TOKENS)[world.rank :: world.size]:
        batch = pad_pairs([pairs.source(i) for i in part], [pairs.target(i) for i in part])
        sums = teacher_forced_loss(model, batch, precision, settings.training.label_smoothing)
        smoothed += float(sums.smoothed)
        plain += float(sums.plain)
        for index, ids in zip(part, teacher_forced_predictions(model, batch, precision), strict=True):
            predictions.append((int(index), " ".join(map(str, ids))))
    smoothed, plain = world.sum_numbers([smoothed, plain])
    num_tokens = int(pairs.target_lengths.sum()) + pairs.num_pairs
    references = [" ".join(map(str, [*pairs.target(i), EOS_ID])) for i in range(pairs.num_pairs)]
    forced_bleu = teacher_forced_bleu(world.gather_texts(predictions), references)
    return smoothed / num_tokens, plain / num_tokens, forced_bleu
