"""Several processes that translate against one with several threads: `python translation_processes.py`.

The same text is translated in turns by each layout, with and without another busy program. Exit code 1 if one process
per core, the default of `dragoman translate` and `evaluate`, is slower than the fastest other layout allows.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from decoding_speed import train_briefly
from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise
from worker_scaling import LAYOUTS, Layout, Speeds, busy_processes, ratio

from dragoman.run.errors import UserError
from dragoman.translation.loading import load_run

REQUIRED_RATIO = 0.9


def translate_once(run: Path, text: Path, num_sentences: int, num_workers: int) -> int:
    """Prints the sentences per second of this process and those it forks; loading is not counted."""
    translator = load_run(run, "latest", num_workers=num_workers).translator
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    lines = text.read_text(encoding="utf-8").splitlines()[:num_sentences]
    begin = time.perf_counter()
    translator.translate(lines)
    print(len(lines) / (time.perf_counter() - begin))
    return 0


def measure_speed(folder: Path, num_sentences: int, layout: Layout) -> float:
    """Translates in a process of its own, whose threads wait as the layout says."""
    run, text = folder / "run", folder / "prepared" / "test.source.txt"
    command = [sys.executable, __file__, "--translate", str(run), str(text)]
    options = ["--sentences", str(num_sentences), "--workers", str(layout.num_workers)]
    finished = subprocess.run(
        [*command, *options], env=layout.environment(), capture_output=True, text=True, check=False
    )
    if finished.returncode:
        raise UserError(f"Translating as {layout} failed: {finished.stderr.strip()}")
    return float(finished.stdout)


def measure(folder: Path, options: argparse.Namespace) -> dict[int, list[Speeds]]:
    """Returns the speeds of all layouts, round by round, for each number of busy processes."""
    train_briefly(folder, prepare_multi30k(folder), options.train_steps)
    rounds: dict[int, list[Speeds]] = {num_busy: [] for num_busy in options.busy}
    for number in range(options.rounds):
        for num_busy in options.busy:
            with busy_processes(num_busy):
                speeds = {layout: measure_speed(folder, options.sentences, layout) for layout in LAYOUTS}
            rounds[num_busy].append(speeds)
            shown = ", ".join(f"{layout} {speed:.1f}" for layout, speed in speeds.items())
            print(f"round {number + 1}, {num_busy} busy: {shown} sentences/s, ratio {ratio(speeds):.2f}", flush=True)
    return rounds


def describe(rounds: dict[int, list[Speeds]]) -> dict[str, Any]:
    """Returns the content of the result file."""
    return {
        "workload": "preset small trained briefly, Multi30k test_2016_flickr, fp32, beam 4, processes x threads",
        "required_ratio": REQUIRED_RATIO,
        "by_busy_processes": {str(num_busy): _describe_speeds(speeds) for num_busy, speeds in rounds.items()},
    }


def _describe_speeds(rounds: Sequence[Speeds]) -> dict[str, Any]:
    by_layout = {str(layout): summarise([speeds[layout] for speeds in rounds]) for layout in LAYOUTS}
    return {"ratio": summarise([ratio(speeds) for speeds in rounds]), "sentences_per_second": by_layout}


def main() -> int:
    """Measures and writes the result; the exit code says whether the default is fast enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=3, help="turns of each layout (default: 3)")
    parser.add_argument("--sentences", type=positive_count, default=1_000, help="to translate (default: 1000)")
    parser.add_argument("--train-steps", type=positive_count, default=150, help="before measuring (default: 150)")
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0, 1], metavar="N", help="other busy processes (default: 0, then 1)"
    )
    parser.add_argument("--translate", type=Path, nargs=2, metavar=("RUN", "TEXT"), help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=positive_count, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.translate:
        return translate_once(*options.translate, options.sentences, options.workers)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        figures = describe(measure(Path(folder), options))
    path = save_result("translation_processes", machine, figures | {"sentences": options.sentences})
    print(f"Written to {path.relative_to(REPOSITORY)}")
    results = figures["by_busy_processes"].values()
    return 0 if all(result["ratio"]["median"] >= REQUIRED_RATIO for result in results) else 1


if __name__ == "__main__":
    end_with(main)
