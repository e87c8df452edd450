"""Target tokens per second of our training step against a plain torch.nn.Transformer loop: `python training_speed.py`.

Both train preset `small` on the same Multi30k batches, each in its own process, in turns, so that noise of the machine
hits both; the result is the ratio of neighbouring turns. Exit code 1 if the median ratio is too low.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.model.shape import resolve_shape, training_flops_per_target_token
from dragoman.run.config import ModelSettings
from dragoman.run.errors import UserError

CONTESTANT = Path(__file__).with_name("training_contestant.py")
NUM_THREADS = 2
NUM_WARMUP_STEPS = 3
NUM_MATMULS = 5
REQUIRED_RATIO = 1.3
FLOP_FORMULA = (
    "FLOP per target token = 3 · 2 · (target weights + source weights · source tokens / target tokens); "
    "3 = forward + two products of backward, 2 = multiply and add; "
    "target weights = layers · (6 D² + 2 D F) + V D, source weights = layers · (4 D² + 2 D F) + layers · 2 D²; "
    "padding, attention's products of positions, norms and the optimizer are not counted"
)


class Contestant:
    """A process that makes steps on request."""

    def __init__(self, name: str, prepared: Path) -> None:
        # OpenMP reads the number of threads from the environment before torch can set it.
        environment = os.environ | {"OMP_NUM_THREADS": str(NUM_THREADS)}
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, str(CONTESTANT), name, str(prepared), str(NUM_THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=environment,
        )

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def turn(self, num_steps: int) -> dict[str, float]:
        """Makes it train for a number of steps and waits for its figures."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{num_steps}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise UserError(f"The contestant {self._name!r} ended early; its error is above.")
        figures: dict[str, float] = json.loads(answer)
        return figures


@dataclass(frozen=True)
class Round:
    """One turn of every contestant."""

    ours: dict[str, float]
    reference: dict[str, float]
    peak_gflop_per_second: float

    def __post_init__(self) -> None:
        assert self.ours["target_tokens"] == self.reference["target_tokens"], (
            "contestants must train on the same batches"
        )

    def tokens_per_second(self, name: str) -> float:
        """Target tokens per second of one contestant."""
        figures = self.ours if name == "ours" else self.reference
        return figures["target_tokens"] / figures["seconds"]

    @property
    def ratio(self) -> float:
        """Our speed divided by the reference's."""
        return self.reference["seconds"] / self.ours["seconds"]


def measure(prepared: Path, num_rounds: int, num_steps: int) -> list[Round]:
    """Warms all contestants up, then lets them take turns; another one begins each round."""
    rounds = []
    with ExitStack() as stack:
        ours, reference, matmul = (
            stack.enter_context(Contestant(name, prepared)) for name in ("ours", "reference", "matmul")
        )
        for contestant in (ours, reference, matmul):
            contestant.turn(NUM_WARMUP_STEPS)
        for number in range(1, num_rounds + 1):
            order = [ours, reference] if number % 2 else [reference, ours]
            figures = {contestant: contestant.turn(num_steps) for contestant in order}
            peak = matmul.turn(NUM_MATMULS)["gflop_per_second"]
            rounds.append(Round(figures[ours], figures[reference], peak))
            _print_round(number, rounds[-1])
    return rounds


def describe(rounds: list[Round], corpus: PreparedCorpus) -> dict[str, Any]:
    """Returns the content of the result file."""
    shape = resolve_shape(ModelSettings(), corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    num_target_tokens = sum(each.ours["target_tokens"] for each in rounds)
    flop = training_flops_per_target_token(
        shape, sum(each.ours["source_tokens"] for each in rounds) / num_target_tokens
    )
    return {
        "workload": "preset small, Multi30k en-de, 8,000 joint pieces, fp32, dropout 0.1, label smoothing 0.1, Adam",
        "threads": NUM_THREADS,
        "mflop_per_target_token": flop / 1e6,
        "flop_formula": FLOP_FORMULA,
        "ratio": summarise([each.ratio for each in rounds]) | {"required": REQUIRED_RATIO},
        "matmul_peak_gflop_per_second": summarise([each.peak_gflop_per_second for each in rounds]),
        "ours": _describe_contestant(rounds, "ours", flop),
        "reference": _describe_contestant(rounds, "reference", flop),
        "rounds": [_describe_round(each) for each in rounds],
    }


def _describe_contestant(rounds: list[Round], name: str, flop: float) -> dict[str, Any]:
    speeds = [each.tokens_per_second(name) for each in rounds]
    shares = [speed * flop / 1e9 / each.peak_gflop_per_second for speed, each in zip(speeds, rounds, strict=True)]
    return {"target_tokens_per_second": summarise(speeds), "share_of_matmul_peak": summarise(shares)}


def _describe_round(each: Round) -> dict[str, Any]:
    return {
        "ratio": each.ratio,
        "matmul_peak_gflop_per_second": each.peak_gflop_per_second,
        "ours": each.ours | {"target_tokens_per_second": each.tokens_per_second("ours")},
        "reference": each.reference | {"target_tokens_per_second": each.tokens_per_second("reference")},
    }


def _print_round(number: int, each: Round) -> None:
    print(
        f"round {number}: ours {each.tokens_per_second('ours'):,.0f}, reference "
        f"{each.tokens_per_second('reference'):,.0f} target tokens/s, ratio {each.ratio:.2f}, "
        f"matmul {each.peak_gflop_per_second:.0f} GFLOP/s, "
        f"loss {each.ours['loss']:.2f} and {each.reference['loss']:.2f}",
        flush=True,
    )


def _print_summary(figures: dict[str, Any]) -> None:
    for name in ("ours", "reference"):
        speed, share = figures[name]["target_tokens_per_second"], figures[name]["share_of_matmul_peak"]
        print(f"{name:<10}{speed['median']:>7,.0f} target tokens/s, {share['median']:.0%} of the matmul peak (medians)")
    ratio = figures["ratio"]
    print(
        f"ratio     {ratio['median']:>7.2f} median, {ratio['min']:.2f} to {ratio['max']:.2f}; "
        f"required {ratio['required']}; {figures['mflop_per_target_token']:.1f} MFLOP per target token"
    )


def main() -> int:
    """Measures, writes and prints the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=7, help="turns of each contestant (default: 7)")
    parser.add_argument("--steps", type=positive_count, default=6, help="training steps per turn (default: 6)")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        corpus = prepare_multi30k(Path(folder))
        figures = describe(measure(corpus.folder, options.rounds, options.steps), corpus)
    path = save_result("training_speed", machine, figures | {"steps_per_round": options.steps})
    _print_summary(figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if figures["ratio"]["median"] >= REQUIRED_RATIO else 1


if __name__ == "__main__":
    end_with(main)
