"""Two workers of one thread against one worker of two threads, same global batch: `python worker_scaling.py`.

Real runs of `dragoman train` (preset `small`, Multi30k, two virtual workers), in turns. The ratio of neighbouring runs
shows the cost of exchanging gradients between processes; exit code 1 if its median is too low.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder

GLOBAL_BATCH_TOKENS = 4_096
NUM_VIRTUAL_WORKERS = 2
NUM_WARMUP_STEPS = 5
REQUIRED_RATIO = 0.9


@dataclass(frozen=True)
class Layout:
    """A division of two cores into workers and threads."""

    num_workers: int
    threads_per_worker: int

    def __str__(self) -> str:
        return f"{self.num_workers} x {self.threads_per_worker}"


TWO_WORKERS = Layout(num_workers=2, threads_per_worker=1)
ONE_WORKER = Layout(num_workers=1, threads_per_worker=2)


def write_config(path: Path, prepared: Path, num_steps: int) -> None:
    """Writes settings of a run that does little but train; the evaluation at its end is short and not timed."""
    settings = build_settings(
        {
            "data": {"prepared": str(prepared)},
            "model": {"preset": "small"},
            "training": {
                "global_batch_tokens": GLOBAL_BATCH_TOKENS,
                "virtual_workers": NUM_VIRTUAL_WORKERS,
                "max_steps": NUM_WARMUP_STEPS + num_steps,
                "log_every": NUM_WARMUP_STEPS,
            },
            "evaluation": {"max_sentences": 1, "beam_size": 1},
        }
    )
    write_text(path, dump_settings(settings))


def train(config: Path, run: RunFolder, layout: Layout) -> None:
    """Makes one run through the command line."""
    command = ["train", str(config), "--workers", str(layout.num_workers), "--run-dir", str(run.path)]
    finished = subprocess.run(
        [sys.executable, "-m", "dragoman", *command],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": str(layout.threads_per_worker)},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise UserError(f"`dragoman {' '.join(command)}` failed: {finished.stderr.strip() or finished.stdout.strip()}")


def read_speed(metrics: Path) -> float:
    """Target tokens per second of all steps after the first record, which is the warm-up."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seconds = num_target_tokens = 0.0
    for before, record in pairwise(each for each in records if each["kind"] == "train"):
        num_steps = record["step"] - before["step"]
        seconds += num_steps * record["seconds_per_step"]
        num_target_tokens += num_steps * record["target_tokens_per_step"]
    return num_target_tokens / seconds


def measure(folder: Path, num_rounds: int, num_steps: int) -> list[dict[Layout, float]]:
    """Target tokens per second of both layouts, round by round."""
    config = folder / "scaling.toml"
    write_config(config, prepare_multi30k(folder).folder, num_steps)
    rounds: list[dict[Layout, float]] = []
    for number in range(1, num_rounds + 1):
        speeds = {}
        for layout in (TWO_WORKERS, ONE_WORKER):
            run = RunFolder(folder / f"round-{number}-workers-{layout.num_workers}")
            train(config, run, layout)
            speeds[layout] = read_speed(run.metrics)
        rounds.append(speeds)
        print(
            f"round {number}: {TWO_WORKERS} {speeds[TWO_WORKERS]:,.0f}, {ONE_WORKER} {speeds[ONE_WORKER]:,.0f} "
            f"target tokens/s, ratio {ratio(speeds):.2f}",
            flush=True,
        )
    return rounds


def ratio(speeds: dict[Layout, float]) -> float:
    """Speed of two workers divided by that of one."""
    return speeds[TWO_WORKERS] / speeds[ONE_WORKER]


def describe(rounds: list[dict[Layout, float]]) -> dict[str, Any]:
    """Returns the content of the result file."""
    layouts = {
        f"workers_{layout.num_workers}": asdict(layout)
        | {"target_tokens_per_second": summarise([speeds[layout] for speeds in rounds])}
        for layout in (TWO_WORKERS, ONE_WORKER)
    }
    return {
        "workload": "preset small, Multi30k en-de, 8,000 joint pieces, fp32, `dragoman train` on this machine",
        "global_batch_tokens": GLOBAL_BATCH_TOKENS,
        "virtual_workers": NUM_VIRTUAL_WORKERS,
        "ratio": summarise([ratio(speeds) for speeds in rounds]) | {"required": REQUIRED_RATIO},
        **layouts,
        "rounds": [
            {f"workers_{layout.num_workers}": speed for layout, speed in speeds.items()} | {"ratio": ratio(speeds)}
            for speeds in rounds
        ],
    }


def main() -> int:
    """Measures, writes and prints the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=5, help="runs of each layout (default: 5)")
    parser.add_argument("--steps", type=positive_count, default=25, help="timed steps per run (default: 25)")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        figures = describe(measure(Path(folder), options.rounds, options.steps))
    path = save_result("worker_scaling", machine, figures | {"steps_per_run": options.steps})
    result = figures["ratio"]
    print(f"ratio {result['median']:.2f} median, {result['min']:.2f} to {result['max']:.2f}; required {REQUIRED_RATIO}")
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if result["median"] >= REQUIRED_RATIO else 1


if __name__ == "__main__":
    end_with(main)
