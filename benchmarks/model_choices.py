"""What each architecture choice costs a training step, and how fast deep encoders translate: `python model_choices.py`.

Speed does not depend on what a model has learned, so weights and sentences are random, with the lengths of Multi30k.
All variants take turns in one process with one thread, timed by the processor time they use.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from multi30k import REPOSITORY
from numpy.typing import NDArray
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import World
from dragoman.corpus.batching import pad_pairs, pad_sentences
from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS
from dragoman.model.shape import ModelShape, count_parameters, load_preset
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.training.learner import Learner, LossScale, build_optimizer, set_learning_rate
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.beam_search import beam_search

VOCAB_SIZE = 8_000
NUM_TRAINED = 128
NUM_TRANSLATED = 64
LENGTHS = (8, 24)
# Random weights never end a sentence, so that outputs are as long as sources.
SEARCH = SearchSettings(beam_size=5, max_length_factor=1.0, max_length_extra=1)
CHOICES: dict[str, dict[str, Any]] = {
    "small": {},
    'norm = "post"': {"norm": "post"},
    'activation = "gelu"': {"activation": "gelu"},
    'activation = "swish"': {"activation": "swish"},
    'activation = "swiglu"': {"activation": "swiglu"},
    'activation = "swiglu", feed_forward = 680': {"activation": "swiglu", "feed_forward": 680},
    'embeddings = "untied"': {"embeddings": "untied"},
    'positions = "marian"': {"positions": "marian"},
    "attention_bias = true": {"attention_bias": True},
    "output_bias = true": {"output_bias": True},
    "small-deep-encoder": {"encoder_layers": 6, "decoder_layers": 1},
}
PRESETS = (("small", "small-deep-encoder"), ("transformer-base", "deep-encoder"))

Turn = Callable[[], object]


def with_vocabulary(shape: ModelShape, **choices: Any) -> ModelShape:
    """Returns the shape with the vocabulary of the benchmark."""
    return replace(shape, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, **choices)


def random_sentences(number: int, seed: int) -> list[NDArray[np.int64]]:
    """Returns sentences of random subwords."""
    random = np.random.default_rng(seed)
    return [random.integers(NUM_SPECIAL_IDS, VOCAB_SIZE, random.integers(*LENGTHS)) for _ in range(number)]


def training_turn(shape: ModelShape) -> Turn:
    """Builds a learner and returns a function that makes one update, always with the same sentences."""
    settings = TrainingSettings()
    torch.manual_seed(1)
    model = Transformer(shape)
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, 1e-4)
    learner = Learner(model, optimizer, GradientSum(model.parameters(), World()), LossScale.start("fp32"), settings)
    batch = pad_pairs(random_sentences(NUM_TRAINED, 2), random_sentences(NUM_TRAINED, 3))
    num_tokens = int((batch.target_output != 0).sum())
    return lambda: learner.learn(0, {0: batch}, num_tokens)


def translating_turn(shape: ModelShape) -> Turn:
    """Builds a model and returns a function that translates a batch of sentences."""
    torch.manual_seed(1)
    model = Transformer(shape).eval()
    sentences = sorted(random_sentences(NUM_TRANSLATED, 4), key=len)
    source, lengths = map(torch.from_numpy, pad_sentences(sentences))

    def translate() -> None:
        found = beam_search(model, source, lengths, SEARCH, VOCAB_SIZE)
        assert all(len(best[0].tokens) >= len(sentence) for best, sentence in zip(found, sentences, strict=True))

    return translate


def take_turns(turns: dict[str, Turn], num_rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of processor time of each round, after one that warms up; the order changes every round."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for round_number in range(num_rounds + 1):
        for name, turn in list(turns.items())[:: 1 if round_number % 2 else -1]:
            begin = time.process_time()
            turn()
            if round_number:
                seconds[name].append(time.process_time() - begin)
    return seconds


def compare(seconds: dict[str, list[float]], baseline: str) -> dict[str, Any]:
    """Divides each time by the baseline's of the same round."""
    return {
        name: summarise([mine / its for mine, its in zip(values, seconds[baseline], strict=True)])
        | {"seconds": values, "baseline": baseline}
        for name, values in seconds.items()
    }


def measure(num_rounds: int) -> dict[str, Any]:
    """Measures training steps, then translating."""
    shapes = {name: with_vocabulary(load_preset("small"), **choice) for name, choice in CHOICES.items()}
    training = compare(
        take_turns({name: training_turn(shape) for name, shape in shapes.items()}, num_rounds), next(iter(shapes))
    )
    translating = {}
    for baseline, deep in PRESETS:
        turns = {name: translating_turn(with_vocabulary(load_preset(name))) for name in (baseline, deep)}
        translating |= compare(take_turns(turns, num_rounds), baseline)
    parameters = {name: count_parameters(shape) for name, shape in shapes.items()}
    return {"training": training, "translating": translating, "parameters": parameters, "vocab_size": VOCAB_SIZE}


def _print_summary(figures: dict[str, Any]) -> None:
    for kind in ("training", "translating"):
        for name, ratio in figures[kind].items():
            limits = f"{ratio['min']:.2f} to {ratio['max']:.2f}"
            print(f"{kind:<12}{name:<44}{ratio['median']:>6.2f} ({limits}) of the time of {ratio['baseline']}")


def main() -> int:
    """Measures, writes and prints the result; there is no bound, so the exit code is 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=9, help="turns of each variant (default: 9)")
    options = parser.parse_args()
    machine = describe_machine()
    torch.set_num_threads(1)
    figures = measure(options.rounds)
    path = save_result("model_choices", machine, figures)
    _print_summary(figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    end_with(main)
