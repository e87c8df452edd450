"""Target tokens per second of our training step against other trainers: `python training_speed.py`.

All train the same size of model on the same text with batches of the same size, each in its own process, in turns, so
that noise of the machine hits all; the result is the ratio of neighbouring turns. Exit code 1 if a bound is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bleu_contestants import PEERS, Job
from bleu_texts import prepare_texts
from multi30k import REPOSITORY, prepare_multi30k
from peer_environments import PEERS_FOLDER, peer_python
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.model.shape import resolve_shape, training_flops_per_target_token
from dragoman.run.config import ModelSettings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text

CONTESTANT = Path(__file__).with_name("training_contestant.py")
NUM_WARMUP_STEPS = 3
NUM_MATMULS = 5
OURS, REFERENCE, MATMUL = "ours", "reference", "matmul"
OTHERS = (REFERENCE, *PEERS)
REQUIRED_RATIOS = {(REFERENCE, 2): 1.3, ("eole", 2): 2.0, ("eole", 1): 1.6}
"""Our speed divided by another's, by its name and the number of threads."""
REQUIRED_SHARE = 0.6
"""Share of the machine's matmul peak."""
_ERROR_LENGTH = 2_000
FLOP_FORMULA = (
    "FLOP per target token = 3 · 2 · (target weights + source weights · source tokens / target tokens); "
    "3 = forward + two products of backward, 2 = multiply and add; "
    "target weights = layers · (6 D² + 2 D F) + V D, source weights = layers · (4 D² + 2 D F) + layers · 2 D²; "
    "padding, attention's products of positions, norms and the optimizer are not counted"
)
Figures = dict[str, float]


class Contestant:
    """A process that makes steps on request."""

    def __init__(self, name: str, command: Sequence[str], num_threads: int) -> None:
        # OpenMP reads the number of threads from the environment before torch can set it.
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process; peers write long logs
        self._process = subprocess.Popen(
            [*command, str(num_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=REPOSITORY,
            env=environment,
        )

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def turn(self, num_steps: int) -> Figures:
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
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace")[-_ERROR_LENGTH:]
            raise UserError(f"The contestant {self._name!r} ended early:\n{last}")
        figures: Figures = json.loads(answer)
        return figures


@dataclass(frozen=True)
class Round:
    """One turn of every contestant."""

    figures: dict[str, Figures]
    peak_gflop_per_second: float

    def __post_init__(self) -> None:
        numbers = {self.figures[name]["target_tokens"] for name in (OURS, REFERENCE) if name in self.figures}
        assert len(numbers) == 1, "ours and the reference must train on the same batches"

    def tokens_per_second(self, name: str) -> float:
        """Target tokens per second of one contestant."""
        return self.figures[name]["target_tokens"] / self.figures[name]["seconds"]

    def ratio(self, name: str) -> float:
        """Our speed divided by that of another contestant."""
        return self.tokens_per_second(OURS) / self.tokens_per_second(name)


def write_commands(
    folder: Path, prepared: Path, others: Sequence[str], precision: str, num_steps: int
) -> dict[str, list[str]]:
    """Writes what contestants need and returns their commands, by name; the number of threads comes after them."""
    commands = {
        name: [sys.executable, str(CONTESTANT), name, str(prepared), precision]
        for name in (OURS, MATMUL, *({REFERENCE} & set(others)))
    }
    peers = [name for name in others if name in PEERS]
    if peers:
        texts = prepare_texts("multi30k", folder / "texts")
    for name in peers:
        # Each peer forms its own batches of the same text and size.
        job = Job(folder / name, num_steps=num_steps, save_every=num_steps, seed=1)
        job.folder.mkdir()
        config = job.folder / "config.yaml"
        recipe = PEERS[name]().recipe | {"precision": precision}
        write_text(config, json.dumps(PEERS[name](recipe=recipe).settings(texts, job)))
        commands[name] = [str(peer_python(name)), str(PEERS_FOLDER / f"{name}_turns.py"), str(config)]
    return commands


def measure(commands: dict[str, list[str]], num_threads: int, num_rounds: int, num_steps: int) -> list[Round]:
    """Warms all contestants up, then lets them take turns; another one begins each round."""
    rounds = []
    with ExitStack() as stack:
        contestants = {
            name: stack.enter_context(Contestant(name, command, num_threads)) for name, command in commands.items()
        }
        for contestant in contestants.values():
            contestant.turn(NUM_WARMUP_STEPS)
        matmul = contestants.pop(MATMUL)
        order = list(contestants)
        for number in range(1, num_rounds + 1):
            figures = {name: contestants[name].turn(num_steps) for name in order}
            order.append(order.pop(0))
            rounds.append(Round(figures, matmul.turn(NUM_MATMULS)["gflop_per_second"]))
            _print_round(number, num_threads, rounds[-1])
    return rounds


def describe(rounds: list[Round], num_threads: int, corpus: PreparedCorpus) -> dict[str, Any]:
    """Returns what was found with one number of threads."""
    shape = resolve_shape(ModelSettings(), corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    own = [each.figures[OURS] for each in rounds]
    flop = training_flops_per_target_token(
        shape, sum(each["source_tokens"] for each in own) / sum(each["target_tokens"] for each in own)
    )
    names = list(rounds[0].figures)
    return {
        "threads": num_threads,
        "mflop_per_target_token": flop / 1e6,
        "matmul_peak_gflop_per_second": summarise([each.peak_gflop_per_second for each in rounds]),
        "ratios": {
            name: summarise([each.ratio(name) for each in rounds])
            | {"required": REQUIRED_RATIOS.get((name, num_threads))}
            for name in names
            if name != OURS
        },
        "contestants": {name: _describe_contestant(rounds, name, flop) for name in names},
        "rounds": [
            {"matmul_peak_gflop_per_second": each.peak_gflop_per_second, "contestants": each.figures} for each in rounds
        ],
    }


def _describe_contestant(rounds: list[Round], name: str, flop: float) -> dict[str, Any]:
    speeds = [each.tokens_per_second(name) for each in rounds]
    shares = [speed * flop / 1e9 / each.peak_gflop_per_second for speed, each in zip(speeds, rounds, strict=True)]
    return {"target_tokens_per_second": summarise(speeds), "share_of_matmul_peak": summarise(shares)}


def find_misses(figures: dict[str, Any]) -> list[str]:
    """Returns the bounds that are not met with one number of threads."""
    misses = [
        f"{figures['threads']} threads: {ratio['median']:.2f} times {name}, required {ratio['required']}"
        for name, ratio in figures["ratios"].items()
        if ratio["required"] is not None and ratio["median"] < ratio["required"]
    ]
    share = figures["contestants"][OURS]["share_of_matmul_peak"]["median"]
    if share < REQUIRED_SHARE:
        misses.append(f"{figures['threads']} threads: {share:.0%} of the matmul peak, required {REQUIRED_SHARE:.0%}")
    return misses


def _print_round(number: int, num_threads: int, each: Round) -> None:
    shown = ", ".join(f"{name} {each.tokens_per_second(name):,.0f}" for name in each.figures)
    ratios = ", ".join(f"{each.ratio(name):.2f} times {name}" for name in each.figures if name != OURS)
    print(
        f"{num_threads} threads, round {number}: {shown} target tokens/s; ours is {ratios or 'alone'}; "
        f"matmul {each.peak_gflop_per_second:.0f} GFLOP/s",
        flush=True,
    )


def _print_summary(figures: dict[str, Any]) -> None:
    for name, found in figures["contestants"].items():
        speed, share = found["target_tokens_per_second"], found["share_of_matmul_peak"]
        line = f"{figures['threads']} threads, {name:<12}{speed['median']:>7,.0f} target tokens/s, "
        line += f"{share['median']:.0%} of the matmul peak (medians)"
        if ratio := figures["ratios"].get(name):
            required = "" if ratio["required"] is None else f", required {ratio['required']}"
            line += f"; ours / {name} {ratio['median']:.2f}, {ratio['min']:.2f} to {ratio['max']:.2f}{required}"
        elif name == OURS:
            line += f", required {REQUIRED_SHARE:.0%}"
        print(line)


def main() -> int:
    """Measures, writes and prints the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive_count, default=7, help="turns of each contestant (default: 7)")
    parser.add_argument("--steps", type=positive_count, default=6, help="training steps per turn (default: 6)")
    parser.add_argument(
        "--contestants", choices=OTHERS, nargs="+", default=[REFERENCE, "eole"], help="default: reference eole"
    )
    parser.add_argument(
        "--threads", type=int, choices=(1, 2), nargs="+", default=[2, 1], help="of each contestant (default: 2, then 1)"
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="of matrix products, the peak's too (default: fp32)",
    )
    options = parser.parse_args()
    if options.precision != "fp32" and REFERENCE in options.contestants:
        raise UserError(f"The {REFERENCE} loop computes in fp32 only: name other --contestants.")
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as name:
        folder = Path(name)
        corpus = prepare_multi30k(folder)
        more_steps_than_made = 2 * (NUM_WARMUP_STEPS + options.rounds * options.steps)
        commands = write_commands(folder, corpus.folder, options.contestants, options.precision, more_steps_than_made)
        found = [
            describe(measure(commands, num_threads, options.rounds, options.steps), num_threads, corpus)
            for num_threads in options.threads
        ]
    workload = "preset small, Multi30k en-de, 8,000 joint pieces, dropout 0.1, label smoothing 0.1, Adam"
    figures = {
        "workload": workload,
        "precision": options.precision,
        "flop_formula": FLOP_FORMULA,
        "steps_per_round": options.steps,
    }
    # The bounds were set for fp32.
    misses = [miss for each in found for miss in find_misses(each)] if options.precision == "fp32" else []
    by_threads = {str(each["threads"]): each for each in found}
    name = "training_speed" if options.precision == "fp32" else f"training_speed_{options.precision}"
    path = save_result(name, machine, figures | {"by_threads": by_threads, "misses": misses})
    for each in found:
        _print_summary(each)
    for miss in misses:
        print(f"missed: {miss}")
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 1 if misses else 0


if __name__ == "__main__":
    end_with(main)
