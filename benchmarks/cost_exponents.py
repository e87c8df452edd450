"""How processor time and memory of a training step grow with sizes: `python cost_exponents.py`.

A step of preset `small` is measured for several vocabularies, sentence lengths, depths and numbers of workers, in
turns; a straight line through the logarithms gives an exponent: 1 where twice the size costs twice as much.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cost_case import Case
from multi30k import REPOSITORY
from results import describe_machine, end_with, positive_count, save_result
from scipy import stats

from dragoman.run.errors import UserError

WORKER = Path(__file__).with_name("cost_contestant.py")
SIZES: dict[str, tuple[int, ...]] = {
    "vocabulary": (4_000, 8_000, 16_000, 32_000, 64_000),
    "length": (8, 16, 32, 64, 128),
    "depth": (1, 2, 3, 6, 12),
    "workers": (1, 2, 4),
}
MEANINGS = {
    "vocabulary": "subwords, joint",
    "length": "tokens of a sentence, with the same number of sentences in a step",
    "depth": "layers of the encoder and of the decoder",
    "workers": "workers of one thread that share the same global batch; sums over all of them",
}
NUM_WARMUP_STEPS = 1


@dataclass(frozen=True)
class Fit:
    """An exponent with its interval."""

    exponent: float
    low: float
    high: float


def fit_exponent(sizes: list[float], costs: list[float], level: float = 0.9) -> Fit:
    """Fits cost = constant · size^exponent to the logarithms."""
    line = stats.linregress(np.log(sizes), np.log(costs))
    width = float(stats.t.ppf((1 + level) / 2, len(sizes) - 2) * line.stderr)
    return Fit(float(line.slope), float(line.slope) - width, float(line.slope) + width)


class Workers:
    """The processes of one case."""

    def __init__(self, case: Case, store: Path) -> None:
        variables = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(WORKER), case.to_json(), str(rank), str(store)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
                env=variables,
            )
            for rank in range(case.workers)
        ]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def turn(self, num_steps: int) -> dict[str, float]:
        """Makes steps; returns the processor seconds of one and the most bytes so far, summed over all workers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{num_steps}\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self._processes if process.stdout is not None]
        if not all(answers):
            raise UserError("A worker ended early; its error is above.")
        figures = [json.loads(answer) for answer in answers]
        return {name: sum(each[name] for each in figures) for name in ("seconds", "bytes")}


def measure(name: str, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """Measures steps of every size, in turns, and fits exponents to medians."""
    sizes = SIZES[name]
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    most_bytes: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder, ExitStack() as stack:
        cases = {size: replace(Case(), **{name: size}) for size in sizes}
        workers = {
            size: stack.enter_context(Workers(case, Path(folder) / f"store.{size}")) for size, case in cases.items()
        }
        for each in workers.values():
            each.turn(NUM_WARMUP_STEPS)
        for number in range(num_rounds):
            for size in sizes[:: -1 if number % 2 else 1]:
                figures = workers[size].turn(num_steps)
                seconds[size].append(figures["seconds"])
                most_bytes[size] = figures["bytes"]
    medians = [median(seconds[size]) for size in sizes]
    points = [float(size) for size in sizes]
    return {
        "meaning": MEANINGS[name],
        "sizes": sizes,
        "seconds": medians,
        "bytes": [most_bytes[size] for size in sizes],
        "rounds": list(seconds.values()),
        "time_exponent": vars(fit_exponent(points, medians)),
        "memory_exponent": vars(fit_exponent(points, [most_bytes[size] for size in sizes])),
    }


def _print_axis(name: str, found: dict[str, Any]) -> None:
    print(f"{name}: {found['meaning']}")
    for size, seconds, most_bytes in zip(found["sizes"], found["seconds"], found["bytes"], strict=True):
        print(f"  {size:>7,}  {seconds:7.3f} s of processor time a step, {most_bytes / 1e6:7.0f} MB")
    for kind in ("time", "memory"):
        fit = found[f"{kind}_exponent"]
        print(f"  {kind} grows with exponent {fit['exponent']:.2f} (90 %: {fit['low']:.2f} to {fit['high']:.2f})")


def main() -> int:
    """Measures, writes and prints the result; there is no bound, so the exit code is 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive_count, default=5, help="turns of each size (default: 5)")
    parser.add_argument("--steps", type=positive_count, default=2, help="steps of a turn (default: 2)")
    parser.add_argument("--only", choices=SIZES, nargs="+", default=list(SIZES), help="default: all")
    options = parser.parse_args()
    machine = describe_machine()
    found = {}
    for name in options.only:
        found[name] = measure(name, options.rounds, options.steps)
        _print_axis(name, found[name])
    path = save_result("cost_exponents", machine, {"workload": Case().to_json(), "exponents": found})
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    end_with(main)
