"""Compares settings of training at equal computing time: which reach a lower dev loss and a higher BLEU?

    python benchmarks/recipe_ablation.py                                    all variants, preset small on Multi30k
    python benchmarks/recipe_ablation.py --variants constant chosen --seeds 3
    python benchmarks/recipe_ablation.py --corpus tatoeba --pairs 5000 --tokens 2000000
    python benchmarks/recipe_ablation.py --set model.width=64 --step-tokens 600    a small model in place of a large one

Time is counted in tokens, so that a busy machine changes no result: a step costs its own padded tokens and, beside
them, the time of `step_tokens` more, which is measured first. Each run trains until its budget is used up, where its
schedule ends. Evaluations are not counted. Finished runs are kept in results/recipe_ablation/: the command goes on
where it stopped.
"""

import argparse
import gzip
import json
import lzma
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from multi30k import REPOSITORY
from results import RESULTS_FOLDER, describe_machine, end_with, positive_count, save_result

from dragoman.cluster.world import World
from dragoman.corpus.batching import fixed_batches, pad_pairs
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.evaluation.validation import evaluate_on_dev
from dragoman.model.teacher_forcing import evaluating, teacher_forced_loss
from dragoman.run.config import Settings, apply_overrides, build_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.schedule import build_schedule
from dragoman.training.choose_settings import CorpusSize, Machine, choose_settings
from dragoman.training.learner import Learner, build_learner, build_stream, read_micro_batches, set_learning_rate
from dragoman.training.precision import resolve_precision
from dragoman.training.worker import keep_freed_memory

DATA_FOLDER = REPOSITORY.parent / "shared" / "data"
FOLDER = RESULTS_FOLDER / "recipe_ablation"
MACHINE = Machine(num_cores=2, num_gpus=0)
MARKS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the budget after which the dev loss is computed; BLEU after the last."""
DEV_SENTENCES = 400
_TIMED_SIZES = (1_024, 8_192)
_TIMING_ROUNDS = 5


@dataclass(frozen=True)
class Variant:
    """Changes to the chosen settings."""

    settings: tuple[str, ...] = ()
    vocab_size: int | None = None
    rate_factor: float = 1.0


CONSTANT = ("training.initial_batch_tokens=0",)
VARIANTS = {
    "chosen": Variant(),
    "constant": Variant(CONSTANT),
    "constant 2,048": Variant((*CONSTANT, "training.global_batch_tokens=2048")),
    "constant 1,024": Variant((*CONSTANT, "training.global_batch_tokens=1024")),
    "half the rate": Variant(rate_factor=0.5),
    "twice the rate": Variant(rate_factor=2.0),
    "rate falls linearly": Variant(("training.schedule=polynomial",)),
    "rate as inverse square root": Variant(("training.schedule=inverse_polynomial", "training.decay_power=0.5")),
    "fp32": Variant(("training.precision=fp32",)),
    "beta2 0.997": Variant(("training.beta2=0.997",)),
    "no label smoothing": Variant(("training.label_smoothing=0.0",)),
    "dropout 0.1": Variant(("model.dropout=0.1",)),
    "dropout 0.3": Variant(("model.dropout=0.3",)),
    "moving average": Variant(("checkpoints.ema_decay=0.998",)),
    "4,000 subwords": Variant(vocab_size=4_000),
    "preset tiny": Variant(("model.preset=tiny",)),
}


def prepare(corpus: str, num_pairs: int | None, vocab_size: int | None) -> PreparedCorpus:
    """Prepares the first pairs of a corpus, or opens them where they are prepared."""
    folder = FOLDER / f"{corpus}-{num_pairs or 'all'}-{vocab_size or 'default'}"
    if not (folder / "prepared").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sides = [_cut(corpus, language, num_pairs, folder) for language in ("en", "de")]
        dev = "val" if corpus == "multi30k" else "dev"
        held_out = ([DATA_FOLDER / corpus / f"{dev}.en.gz"], [DATA_FOLDER / corpus / f"{dev}.de.gz"])
        tokenizer = TokenizerSettings(vocab_size=vocab_size)
        settings = PrepareSettings.of_files([sides[0]], [sides[1]], dev=held_out, tokenizer=tokenizer)
        prepare_corpus(settings, folder / "prepared", say=lambda _: None)
    return PreparedCorpus.open(folder / "prepared")


def _cut(corpus: str, language: str, num_pairs: int | None, folder: Path) -> Path:
    ending, opener = ("xz", lzma) if corpus == "europarl" else ("gz", gzip)
    with opener.open(DATA_FOLDER / corpus / f"train.{language}.{ending}", "rt", encoding="utf-8") as file:
        text = "".join(islice(file, num_pairs))
    write_text(folder / f"train.{language}", text)
    return folder / f"train.{language}"


@dataclass(frozen=True)
class Budget:
    """What every run may cost, in padded tokens."""

    tokens: int
    step_tokens: float
    """Cost of a step beside its tokens."""
    padding: float
    """Padded tokens of both sides per token of the batch's budget."""

    def steps_of(self, settings: Settings) -> int:
        """Returns the number of steps that the budget is expected to allow; growth and schedule follow from it."""
        low, high = 1, 10**7
        while low < high:
            middle = (low + high + 1) // 2
            full_steps = settings.training.batch_growth.full_steps(0, middle)
            cost = full_steps * settings.training.global_batch_tokens * self.padding + middle * self.step_tokens
            low, high = (middle, high) if cost <= self.tokens else (low, middle - 1)
        return low


def build_variant(
    corpus: PreparedCorpus, variant: Variant, budget: Budget, overrides: list[str], seed: int
) -> Settings:
    """Returns the settings chosen for the corpus and the budget, with the changes of a variant."""
    asked = [*overrides, *variant.settings, f"training.seed={seed}"]
    fixed = ["monitoring.attribution=false", "evaluation.beam_size=1", f"evaluation.max_sentences={DEV_SENTENCES}"]
    num_steps = 1_000
    # The growth depends on the number of steps, and the number of steps that fit on the growth.
    for _ in range(8):
        tables = apply_overrides({}, [*asked, f"training.max_steps={num_steps}"])
        chosen, _ = choose_settings(CorpusSize.of(corpus), MACHINE, corpus.folder, tables)
        settings = build_settings(chosen, fixed)
        num_steps = budget.steps_of(settings)
    rate = variant.rate_factor * settings.training.learning_rate
    return resolve_precision(build_settings(chosen, [*fixed, f"training.learning_rate={rate}"]), World())


def train(corpus: PreparedCorpus, settings: Settings, budget: Budget) -> Iterator[dict[str, Any]]:
    """Trains until the budget is used up; yields the dev loss after some shares of it, and BLEU at the end."""
    learner = build_learner(settings, corpus, World())
    schedule = build_schedule(settings.training, learner.model.shape.width)
    stream = build_stream(settings, corpus, Mixture.build(corpus.train_corpora, settings.data))
    spent, marks, begin = 0.0, list(MARKS[:-1]), time.process_time()
    for step in range(settings.training.max_steps):
        plan = stream.next_step()
        set_learning_rate(learner.optimizer, schedule(step))
        _learn(learner, step, stream, plan)
        spent += plan.num_padded_tokens + budget.step_tokens
        is_last = step + 1 == settings.training.max_steps
        if is_last or (marks and spent >= marks[0] * budget.tokens):
            share = MARKS[-1] if is_last else marks.pop(0)
            found = {"share": share, "step": step + 1, "tokens": spent, "cpu_seconds": time.process_time() - begin}
            yield found | _judge(learner, corpus, settings, is_last)


def _learn(learner: Learner, step: int, stream: Any, plan: Any) -> None:
    batches = read_micro_batches(stream, plan, range(learner.settings.virtual_workers))
    if not learner.learn(step, batches, plan.num_target_tokens).is_finite:
        raise UserError(f"The gradient of step {step} is not finite.")


def _judge(learner: Learner, corpus: PreparedCorpus, settings: Settings, is_last: bool) -> dict[str, float]:
    """Judges the trained weights, and at the end the moving average instead where there is one."""
    figures = {"dev_loss": _dev_loss(learner, corpus)}
    if not is_last:
        return figures
    if learner.average is not None:
        with learner.average.used_by(learner.model):
            return {"dev_loss": _dev_loss(learner, corpus), "bleu": _bleu(learner, corpus, settings)}
    return figures | {"bleu": _bleu(learner, corpus, settings)}


def _bleu(learner: Learner, corpus: PreparedCorpus, settings: Settings) -> float:
    evaluation = evaluate_on_dev(learner.model, corpus, settings, World())
    assert evaluation is not None  # nothing interrupts it
    return float(evaluation.bleu)


@torch.no_grad()
def _dev_loss(learner: Learner, corpus: PreparedCorpus) -> float:
    """Negative log-likelihood per character of the target text: comparable between vocabularies."""
    pairs, total = corpus.split("dev"), 0.0
    with evaluating(learner.model):
        for chosen in fixed_batches(pairs, 4_096):
            batch = pad_pairs([pairs.source(i) for i in chosen], [pairs.target(i) for i in chosen])
            total += float(teacher_forced_loss(learner.model, batch, "fp32", 0.0, 1.0).plain)
    return total / float(sum(len(line) + 1 for line in corpus.text("dev")[1]))


def measure_step_tokens(corpus: PreparedCorpus, settings: Settings) -> float:
    """Measures how many padded tokens take as long as a step takes beside its tokens, by turns of two sizes."""
    learner = build_learner(settings, corpus, World())
    set_learning_rate(learner.optimizer, 1e-5)
    rows: dict[int, list[tuple[float, float]]] = {size: [] for size in _TIMED_SIZES}
    for _ in range(_TIMING_ROUNDS):
        for size, timed in rows.items():
            changed = build_settings(
                {"data": {"prepared": str(corpus.folder)}}, [f"training.global_batch_tokens={size}"]
            )
            stream = build_stream(changed, corpus, Mixture.build(corpus.train_corpora, changed.data))
            plans = [stream.next_step() for _ in range(_TIMED_SIZES[-1] // size)]
            begin = time.process_time()
            for plan in plans:
                _learn(learner, 0, stream, plan)
            seconds = (time.process_time() - begin) / len(plans)
            timed.append((seconds, float(np.mean([plan.num_padded_tokens for plan in plans]))))
    (small, few), (large, many) = (
        [statistics.median(column) for column in zip(*each, strict=True)] for each in rows.values()
    )
    seconds_per_token = (large - small) / (many - few)
    return float(max(0.0, small / seconds_per_token - few))


def _measure_padding(corpus: PreparedCorpus) -> float:
    settings = build_settings({"data": {"prepared": str(corpus.folder)}}, ["training.global_batch_tokens=2048"])
    stream = build_stream(settings, corpus, Mixture.build(corpus.train_corpora, settings.data))
    return float(np.mean([stream.next_step().num_padded_tokens for _ in range(100)])) / 2_048


def _read_runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _print_table(runs: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'variant':<30} {'runs':>4}  dev loss per character after these shares of the time             BLEU")
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run["curve"] for run in runs if run["variant"] == name]
        losses = [
            f"{share:.0%} {statistics.mean(_at(curve, share, 'dev_loss') for curve in own):.4f}" for share in MARKS
        ]
        bleu = statistics.mean(_at(curve, 1.0, "bleu") for curve in own)
        print(f"{name:<30} {len(own):>4}  {'  '.join(losses)}  {bleu:.2f}")


def _at(curve: list[dict[str, float]], share: float, figure: str) -> float:
    return next((row[figure] for row in curve if row["share"] == share), float("nan"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", choices=("multi30k", "tatoeba", "europarl"), default="multi30k")
    parser.add_argument("--pairs", type=positive_count, help="train on the first pairs only")
    parser.add_argument("--tokens", type=positive_count, default=6_000_000, help="budget of a run (default: 6,000,000)")
    parser.add_argument("--step-tokens", type=float, help="cost of a step beside its tokens (default: measured)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=positive_count, default=1, help="runs of each variant")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="a setting of all variants")
    parser.add_argument("--vocab-size", type=positive_count, help="subwords (default: those chosen for the corpus)")
    asked = parser.parse_args()
    if not DATA_FOLDER.is_dir():
        raise UserError(f"There are no corpora for this benchmark in {DATA_FOLDER}.")
    machine = describe_machine()
    torch.set_num_threads(1)
    keep_freed_memory()
    corpus = prepare(asked.corpus, asked.pairs, asked.vocab_size)
    plain = Budget(asked.tokens, asked.step_tokens or 0.0, _measure_padding(corpus))
    step_tokens = asked.step_tokens
    if step_tokens is None:
        step_tokens = measure_step_tokens(corpus, build_variant(corpus, Variant(), plain, asked.overrides, 1))
        print(f"A step costs as much as {step_tokens:,.0f} tokens beside its own.", flush=True)
    budget = Budget(asked.tokens, step_tokens, plain.padding)
    path = FOLDER / "runs.jsonl"
    names = ("corpus", "pairs", "vocab_size", "tokens", "overrides")
    task = {name: vars(asked)[name] for name in names}
    for seed in range(1, asked.seeds + 1):
        for name in asked.variants:
            run = task | {"variant": name, "seed": seed}
            if any(run.items() <= done.items() for done in _read_runs(path)):
                continue
            own = prepare(asked.corpus, asked.pairs, VARIANTS[name].vocab_size or asked.vocab_size)
            settings = build_variant(own, VARIANTS[name], budget, asked.overrides, seed)
            curve = list(train(own, settings, budget))
            run |= {"step_tokens": step_tokens, "training": settings.training.model_dump(mode="json"), "curve": curve}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
            _print_table([run])
    runs = [done for done in _read_runs(path) if task.items() <= done.items()]
    _print_table(runs)
    print(save_result("recipe_ablation", machine, {"task": task, "step_tokens": step_tokens, "runs": runs}))
    return 0


if __name__ == "__main__":
    end_with(main)
