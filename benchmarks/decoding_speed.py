"""Sentences per second of our beam search against a plain one over torch.nn.Transformer: `python decoding_speed.py`.

Outputs of random weights would always reach the length limit, so `small` is first trained briefly on Multi30k, and both
searches use its weights. The plain search has no cache: each step decodes all hypotheses from the beginning.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from multi30k import REPOSITORY, prepare_multi30k
from reference_search import plain_beam_search
from reference_transformer import ReferenceTransformer, copy_weights
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.corpus.batching import pad_sentences
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.shards import ParallelIds
from dragoman.model.shape import resolve_shape
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_weights
from dragoman.run.checkpoints import MODEL_FILE
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.translation.beam_search import SearchSettings, beam_search

NUM_THREADS = 2
BATCH_SENTENCES = 64
SEARCH = SearchSettings(beam_size=4)

Search = Callable[[list[int]], list[list[int]]]


@dataclass(frozen=True)
class Turn:
    """Outputs and time of one search over some sentences."""

    num_sentences: int
    seconds: float
    outputs: dict[int, list[int]]

    @property
    def sentences_per_second(self) -> float:
        """Sentences per second."""
        return self.num_sentences / self.seconds


def train_briefly(folder: Path, corpus: PreparedCorpus, num_steps: int) -> Transformer:
    """Trains, through the command line, a model whose outputs have sensible lengths."""
    settings = build_settings(
        {
            "data": {"prepared": str(corpus.folder)},
            "model": {"preset": "small"},
            "training": {
                "global_batch_tokens": 2_048,
                "virtual_workers": 1,
                "max_steps": num_steps,
                "warmup_steps": max(1, num_steps // 2),
                "learning_rate": 2e-3,
                "schedule": "inverse_polynomial",
            },
            "evaluation": {"max_sentences": 1, "beam_size": 1},
        }
    )
    config, run = folder / "decoding.toml", RunFolder(folder / "run")
    write_text(config, dump_settings(settings))
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--workers", "1", "--run-dir", str(run.path)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise UserError(f"Training the model to decode with failed: {finished.stderr.strip()}")
    vocab_sizes = corpus.source_vocab_size, corpus.target_vocab_size
    model = Transformer(resolve_shape(settings.model, *vocab_sizes, corpus.is_joint))
    load_weights(model, run.checkpoint(num_steps) / MODEL_FILE)
    return model.eval()


def build_searches(model: Transformer, pairs: ParallelIds, num_subwords: int) -> tuple[Search, Search]:
    """Builds our search and the plain one with the same weights: each maps indices of sources to token ids."""
    reference = ReferenceTransformer(model.shape)
    copy_weights(model, reference)
    reference.eval()

    def padded(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        source, lengths = pad_sentences([pairs.source(index) for index in indices])
        return torch.from_numpy(source), torch.from_numpy(lengths)

    def ours(indices: list[int]) -> list[list[int]]:
        return [found[0].tokens for found in beam_search(model, *padded(indices), SEARCH, num_subwords)]

    def plain(indices: list[int]) -> list[list[int]]:
        return plain_beam_search(reference, *padded(indices), SEARCH, num_subwords)

    return ours, plain


def take_turn(search: Search, by_length: Sequence[int]) -> Turn:
    """Times a search over sentences sorted by length, batch after batch."""
    outputs: dict[int, list[int]] = {}
    begin = time.perf_counter()
    for first in range(0, len(by_length), BATCH_SENTENCES):
        indices = list(by_length[first : first + BATCH_SENTENCES])
        outputs |= dict(zip(indices, search(indices), strict=True))
    return Turn(len(by_length), time.perf_counter() - begin, outputs)


def choose_sentences(pairs: ParallelIds, num_sentences: int) -> list[int]:
    """Chooses sentences evenly over the test set, sorted by length; small choices resemble large ones."""
    num_sentences = min(num_sentences, pairs.num_pairs)
    spread = [number * pairs.num_pairs // num_sentences for number in range(num_sentences)]
    return sorted(spread, key=lambda index: len(pairs.source(index)))


def describe(ours: list[Turn], plain: list[Turn]) -> dict[str, Any]:
    """Returns the content of the result file."""
    common = plain[0].outputs
    num_same = sum(tokens == ours[0].outputs[index] for index, tokens in common.items())
    lengths = [len(tokens) for tokens in ours[0].outputs.values()]
    ratios = [mine.sentences_per_second / its.sentences_per_second for mine, its in zip(ours, plain, strict=True)]
    return {
        "workload": "preset small trained briefly, Multi30k test_2016_flickr, fp32, token ids in and out",
        "beam_size": SEARCH.beam_size,
        "length_penalty": SEARCH.length_penalty,
        "batch_sentences": BATCH_SENTENCES,
        "threads": NUM_THREADS,
        "mean_output_pieces": sum(lengths) / len(lengths),
        "share_of_same_outputs": num_same / len(common),
        "ratio": summarise(ratios),
        "ours": _describe_turns(ours),
        "reference": _describe_turns(plain),
    }


def _describe_turns(turns: list[Turn]) -> dict[str, Any]:
    speeds = [turn.sentences_per_second for turn in turns]
    return {"sentences": turns[0].num_sentences, "sentences_per_second": summarise(speeds), "rounds": speeds}


def _print_summary(figures: dict[str, Any]) -> None:
    for name in ("ours", "reference"):
        speed = figures[name]["sentences_per_second"]
        print(f"{name:<10}{speed['median']:>7.1f} sentences/s on {figures[name]['sentences']:,} sentences (median)")
    print(
        f"ratio     {figures['ratio']['median']:>7.1f} median; outputs have "
        f"{figures['mean_output_pieces']:.1f} pieces, {figures['share_of_same_outputs']:.0%} are the same in both"
    )


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Trains, then lets both searches take turns."""
    corpus = prepare_multi30k(folder)
    model = train_briefly(folder, corpus, options.train_steps)
    torch.set_num_threads(NUM_THREADS)
    pairs = corpus.split("test")
    ours, plain = build_searches(model, pairs, corpus.manifest.tokenizer.num_target_pieces)
    mine = choose_sentences(pairs, options.sentences)
    # Chosen among ours, so that outputs can be compared.
    its = mine[:: max(1, len(mine) // options.reference_sentences)]
    for search in (ours, plain):
        take_turn(search, its[:BATCH_SENTENCES])  # warm-up
    turns = [(take_turn(ours, mine), take_turn(plain, its)) for _ in range(options.rounds)]
    return describe([turn for turn, _ in turns], [turn for _, turn in turns])


def main() -> int:
    """Measures, writes and prints the result; there is no bound, so the exit code is 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=3, help="turns of each search (default: 3)")
    parser.add_argument("--sentences", type=positive_count, default=1_000, help="for our search (default: 1000)")
    parser.add_argument(
        "--reference-sentences", type=positive_count, default=200, help="for the plain search (default: 200)"
    )
    parser.add_argument("--train-steps", type=positive_count, default=150, help="before measuring (default: 150)")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        figures = measure(Path(folder), options)
    path = save_result("decoding_speed", machine, figures | {"train_steps": options.train_steps})
    _print_summary(figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    end_with(main)
