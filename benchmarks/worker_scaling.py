"""One worker per core against one worker with a thread per core, same global batch: `python worker_scaling.py`.

Real runs of `dragoman train` (preset `small`, Multi30k, two virtual workers), in turns, with and without another busy
program. Exit code 1 if one worker per core, the default, is slower than the fastest other layout allows.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    is_spinning: bool = False
    """Whether threads keep their core busy for a while when they wait, as OpenMP does where nobody says otherwise."""

    def __str__(self) -> str:
        return f"{self.num_workers} x {self.threads_per_worker}{' spinning' if self.is_spinning else ''}"

    def environment(self) -> dict[str, str]:
        """Returns the variables for a run."""
        own = {"GOMP_SPINCOUNT": SPINS_BY_DEFAULT} if self.is_spinning else {"OMP_WAIT_POLICY": "passive"}
        others = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
        return others | own | {"OMP_NUM_THREADS": str(self.threads_per_worker)}


SPINS_BY_DEFAULT = "300000"
"""How often a waiting thread looks before it sleeps, in GNU's OpenMP library, which torch uses."""
BUSY_PROGRAM = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with this benchmark, even if that is killed."""
DEFAULT = Layout(num_workers=2, threads_per_worker=1)
OTHERS = (
    Layout(num_workers=1, threads_per_worker=2),
    Layout(num_workers=1, threads_per_worker=2, is_spinning=True),
)
LAYOUTS = (DEFAULT, *OTHERS)
Speeds = dict[Layout, float]
"""Target tokens per second."""


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
    command = ["train", str(config), "--no-check", "--workers", str(layout.num_workers), "--run-dir", str(run.path)]
    finished = subprocess.run(
        [sys.executable, "-m", "dragoman", *command],
        cwd=REPOSITORY,
        env=layout.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise UserError(f"`dragoman {' '.join(command)}` failed: {finished.stderr.strip() or finished.stdout.strip()}")


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keeps this many other processes computing."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_speed(metrics: Path) -> float:
    """Target tokens per second of all steps after the first record, which is the warm-up."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seconds = num_target_tokens = 0.0
    for before, record in pairwise(each for each in records if each["kind"] == "train"):
        num_steps = record["step"] - before["step"]
        seconds += num_steps * record["seconds_per_step"]
        num_target_tokens += num_steps * record["target_tokens_per_step"]
    return num_target_tokens / seconds


def measure(folder: Path, num_rounds: int, num_steps: int, busy: Sequence[int]) -> dict[int, list[Speeds]]:
    """Returns the speeds of all layouts, round by round, for each number of busy processes."""
    config = folder / "scaling.toml"
    write_config(config, prepare_multi30k(folder).folder, num_steps)
    rounds: dict[int, list[Speeds]] = {num_busy: [] for num_busy in busy}
    for number in range(num_rounds):
        for num_busy in busy:
            with busy_processes(num_busy):
                speeds = {layout: _run_once(config, folder / "run", layout) for layout in LAYOUTS}
            rounds[num_busy].append(speeds)
            shown = ", ".join(f"{layout} {speed:,.0f}" for layout, speed in speeds.items())
            print(
                f"round {number + 1}, {num_busy} busy: {shown} target tokens/s, ratio {ratio(speeds):.2f}", flush=True
            )
    return rounds


def _run_once(config: Path, folder: Path, layout: Layout) -> float:
    train(config, RunFolder(folder), layout)
    speed = read_speed(RunFolder(folder).metrics)
    shutil.rmtree(folder)
    return speed


def ratio(speeds: Speeds) -> float:
    """Speed of the default divided by that of the fastest other layout in the same round."""
    return speeds[DEFAULT] / max(speeds[layout] for layout in OTHERS)


def describe(rounds: dict[int, list[Speeds]]) -> dict[str, Any]:
    """Returns the content of the result file."""
    return {
        "workload": "preset small, Multi30k en-de, 8,000 joint subwords, fp32, `dragoman train` on this machine",
        "global_batch_tokens": GLOBAL_BATCH_TOKENS,
        "virtual_workers": NUM_VIRTUAL_WORKERS,
        "required_ratio": REQUIRED_RATIO,
        "by_busy_processes": {str(num_busy): _describe_speeds(speeds) for num_busy, speeds in rounds.items()},
    }


def _describe_speeds(rounds: list[Speeds]) -> dict[str, Any]:
    return {
        "ratio": summarise([ratio(speeds) for speeds in rounds]),
        "layouts": [
            asdict(layout) | {"target_tokens_per_second": summarise([speeds[layout] for speeds in rounds])}
            for layout in LAYOUTS
        ],
        "rounds": [{str(layout): speed for layout, speed in speeds.items()} for speeds in rounds],
    }


def main() -> int:
    """Measures, writes and prints the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=3, help="runs of each layout (default: 3)")
    parser.add_argument("--steps", type=positive_count, default=15, help="timed steps per run (default: 15)")
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0, 1], metavar="N", help="other busy processes (default: 0, then 1)"
    )
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        figures = describe(measure(Path(folder), options.rounds, options.steps, options.busy))
    path = save_result("worker_scaling", machine, figures | {"steps_per_run": options.steps})
    ratios = {number: result["ratio"] for number, result in figures["by_busy_processes"].items()}
    for num_busy, found in ratios.items():
        print(
            f"{num_busy} busy: {DEFAULT} is {found['median']:.2f} times as fast as the fastest other layout "
            f"({found['min']:.2f} to {found['max']:.2f}); required {REQUIRED_RATIO}"
        )
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if all(found["median"] >= REQUIRED_RATIO for found in ratios.values()) else 1


if __name__ == "__main__":
    end_with(main)
