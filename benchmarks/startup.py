"""Measures the time from `dragoman train` to the first step of two workers on this machine: `python startup.py`.

Exit code 1 if the median of the rounds is too long.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from faults import (
    NUM_WORKERS,
    WORKER_MODULE,
    prepare_small_corpus,
    processes_of,
    read_records,
    require_good_end,
    settings_for_kills,
    training,
    write_config,
)
from multi30k import REPOSITORY
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

REQUIRED_SECONDS = 5.0
WAIT_SECONDS = 120.0
HOST_MODULE = "dragoman.launch.host_program"
IMPORTED = {
    "launcher": "dragoman.launch.launcher",
    "host program": "dragoman.launch.agent",
    "worker": "dragoman.training.worker",
}
"""The module that imports nearly everything a process needs."""
NUM_PACKAGES_SHOWN = 4


@dataclass(frozen=True)
class Start:
    """Seconds of one start, in consecutive phases."""

    launching: float
    """Until the host program is started: command line, settings, checks."""
    starting_workers: float
    """Until the workers are started: the host program imports the agent, which starts them."""
    joining: float
    """Until the first checkpoint is on disk: workers import torch, find each other, build the model."""
    first_step: float

    @property
    def seconds(self) -> float:
        return self.launching + self.starting_workers + self.joining + self.first_step


def measure_start(config: Path, run: RunFolder) -> Start:
    """Starts the run and watches from outside when its processes appear."""
    begin = time.time()
    with training(config, run) as launcher:
        host_seen = wait_for_processes(launcher, HOST_MODULE, 1)
        workers_seen = wait_for_processes(launcher, WORKER_MODULE, NUM_WORKERS)
        require_good_end(launcher, run)
    first_records = [read_records(run, kind)[0]["time"] for kind in ("checkpoint", "train")]
    return Start(*(after - before for before, after in pairwise([begin, host_seen, workers_seen, *first_records])))


def wait_for_processes(launcher: psutil.Popen, module: str, num_processes: int) -> float:
    """Returns when this many processes of a module were seen; their own start times may be a second off."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and launcher.poll() is None:
        if len(processes_of(launcher, module)) >= num_processes:
            return time.time()
        time.sleep(0.01)
    raise UserError(f"No {module} was started in {WAIT_SECONDS:.0f} s.")


def measure_imports(module: str) -> Counter[str]:
    """Returns the import seconds of each package, as Python reports them."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"], capture_output=True, text=True, check=True
    )
    seconds: Counter[str] = Counter()
    for line in done.stderr.splitlines():
        own, _, name = line.removeprefix("import time:").split("|")
        if own.strip().isdecimal():  # all but the heading
            seconds[name.strip().partition(".")[0]] += int(own) / 1e6
    return seconds


def describe(starts: list[Start], imports: dict[str, Counter[str]]) -> dict[str, Any]:
    """Returns all numbers of the result file."""
    parts = {name: summarise([asdict(start)[name] for start in starts]) for name in asdict(starts[0])}
    return {
        "workload": "preset tiny, built-in corpus, `dragoman train --workers 2` on this machine",
        "seconds": summarise([start.seconds for start in starts]) | {"required": REQUIRED_SECONDS},
        "parts": parts,
        "imports": {
            process: {"seconds": seconds.total(), "packages": dict(seconds.most_common(10))}
            for process, seconds in imports.items()
        },
        "rounds": [asdict(start) for start in starts],
    }


def say(figures: dict[str, Any]) -> None:
    """Prints one line per number."""
    total = figures["seconds"]
    print(
        f"to the first step {total['median']:.2f} s median, {total['max']:.2f} s worst; required {REQUIRED_SECONDS} s"
    )
    for name, part in figures["parts"].items():
        print(f"  {name.replace('_', ' ')} {part['median']:.2f} s")
    for process, imported in figures["imports"].items():
        packages = list(imported["packages"].items())[:NUM_PACKAGES_SHOWN]
        most = ", ".join(f"{package} {seconds:.2f}" for package, seconds in packages)
        print(f"imports of the {process} {imported['seconds']:.2f} s: {most}")


def main() -> int:
    """Measures, saves and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=5, help="starts (default: 5)")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as name:
        folder = Path(name)
        config = write_config(folder / "start.toml", settings_for_kills(prepare_small_corpus(folder), num_steps=1))
        starts = [measure_start(config, RunFolder(folder / f"start-{number}")) for number in range(options.rounds)]
    figures = describe(starts, {process: measure_imports(module) for process, module in IMPORTED.items()})
    say(figures)
    path = save_result("startup", machine, figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if figures["seconds"]["median"] <= REQUIRED_SECONDS else 1


if __name__ == "__main__":
    end_with(main)
