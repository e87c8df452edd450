"""Measures the cost of faults: 25 kills of workers at random moments, and checkpoints written during training.

`python faults.py`. Real runs of `dragoman train` with two workers on this machine. Exit code 1 if the run that was
killed is not bit-identical with an undisturbed one, or if a restart takes too long.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.builtin import write_builtin_corpus
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_text
from dragoman.run.folder import RunFolder

WORKER_MODULE = "dragoman.training.worker"
NUM_WORKERS = 2
STEPS_PER_KILL = 60
STEP_SECONDS = 0.5
"""A training worker is killed within this time after a random step: in a step, an evaluation or a save."""
START_SECONDS = 4.0
"""A starting worker is killed within this time after its start."""
MAX_RESTART_SECONDS = 15.0
WAIT_SECONDS = 120.0
SAVE_EVERY = 10
NUM_SAVES = 4

Record = dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """When to kill which rank, drawn at random beforehand."""

    step: int
    """The step to wait for; if the run is past it, its workers are killed while they start."""
    fraction: float
    """Fraction of the waiting time after that."""
    rank: int


@dataclass(frozen=True)
class Kill:
    """A kill that was made."""

    time: float
    rank: int
    step: int
    """The last step made before it."""
    was_starting: bool


def draw_moments(num_kills: int, num_steps: int, seed: int) -> list[Moment]:
    """Draws random steps, not the last ones: the run must not end before all kills."""
    randomness = random.Random(seed)
    steps = sorted(randomness.choices(range(num_steps - STEPS_PER_KILL), k=num_kills))
    return [Moment(step, randomness.random(), randomness.randrange(NUM_WORKERS)) for step in steps]


# Runs


def write_config(path: Path, sections: dict[str, dict[str, Any]]) -> Path:
    """Writes a config with these settings; the others have their defaults."""
    write_text(path, dump_settings(build_settings(sections)))
    return path


@contextmanager
def training(config: Path, run: RunFolder) -> Iterator[psutil.Popen]:
    """Starts `dragoman train` with its output in a file; ends what is left of it with the block."""
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--run-dir", str(run.path)]
    printed = run.path.with_suffix(".txt")
    with printed.open("w") as output:
        launcher = psutil.Popen(
            [*command, "--workers", str(NUM_WORKERS)],
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield launcher
    finally:
        # Its host program ends with it, and the workers with that.
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()


def train_to_end(config: Path, run: RunFolder) -> None:
    """Trains without faults."""
    with training(config, run) as launcher:
        require_good_end(launcher, run)


def require_good_end(launcher: psutil.Popen, run: RunFolder) -> None:
    """Waits for the end; raises the last line of a run that failed."""
    if launcher.wait() != 0:
        lines = run.path.with_suffix(".txt").read_text(encoding="utf-8").strip().splitlines()
        raise UserError(f"The run failed: {lines[-1] if lines else 'it printed nothing'}")


def read_records(run: RunFolder, kind: str) -> list[Record]:
    """Returns the complete records of one kind that the run has written so far."""
    with suppress(FileNotFoundError):
        lines = run.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        records = (json.loads(line) for line in lines if line.endswith("\n"))
        return [record for record in records if record["kind"] == kind]
    return []


def processes_of(launcher: psutil.Popen, module: str) -> list[psutil.Process]:
    """Returns the processes below the launcher that run this module."""
    found = []
    for process in launcher.children(recursive=True):
        with suppress(psutil.Error):
            if module in process.cmdline():
                found.append(process)
    return found


def workers_of(launcher: psutil.Popen) -> dict[int, psutil.Process]:
    """Returns the current workers by rank."""
    found = {}
    for process in processes_of(launcher, WORKER_MODULE):
        with suppress(psutil.Error, KeyError):
            found[int(process.environ()["RANK"])] = process
    return found


# Kills


def kill_workers(launcher: psutil.Popen, run: RunFolder, moments: list[Moment]) -> list[Kill]:
    """Kills a worker at each of the moments, each time in a new attempt."""
    kills: list[Kill] = []
    gone: set[int] = set()
    for moment in moments:
        was_starting = farthest_step(run) >= moment.step
        workers = wait_for_workers(launcher, run, moment, gone)
        time.sleep(moment.fraction * (START_SECONDS if was_starting else STEP_SECONDS))
        kills.append(Kill(time.time(), moment.rank, farthest_step(run), was_starting))
        with suppress(psutil.NoSuchProcess):
            workers[moment.rank].kill()
        gone |= {worker.pid for worker in workers.values()}
        doing = "starting again" if was_starting else "training"
        print(f"kill {len(kills)}: rank {moment.rank}, {doing}, farthest step {kills[-1].step}", flush=True)
    return kills


def wait_for_workers(
    launcher: psutil.Popen, run: RunFolder, moment: Moment, gone: set[int]
) -> dict[int, psutil.Process]:
    """Waits for the step; returns all workers of an attempt without a kill."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and launcher.poll() is None:
        workers = {rank: worker for rank, worker in workers_of(launcher).items() if worker.pid not in gone}
        if len(workers) == NUM_WORKERS and farthest_step(run) >= moment.step:
            return workers
        time.sleep(0.02)
    raise UserError(f"The run came to step {farthest_step(run)} only, or ended, before it could be killed again.")


def farthest_step(run: RunFolder) -> int:
    """Returns the last step of all attempts."""
    return max((record["step"] for record in read_records(run, "train")), default=0)


def recovery_seconds(run: RunFolder, kills: list[Kill]) -> tuple[list[float], list[float]]:
    """Returns the seconds from each kill to the next step, and to the next new step, unless another kill came first."""
    steps, restarts = read_records(run, "train"), read_records(run, "restart")
    to_any, to_new = [], []
    for kill, following in zip(kills, [*kills[1:], None], strict=True):
        end = following.time if following else float("inf")
        # The other rank may still finish its step: only steps after the restart count.
        begin = next((record["time"] for record in restarts if kill.time < record["time"]), end)
        made = [record for record in steps if begin < record["time"] < end]
        new = [record for record in made if record["step"] > kill.step]
        to_any += [record["time"] - kill.time for record in made[:1]]
        to_new += [record["time"] - kill.time for record in new[:1]]
    return to_any, to_new


def measure_kills(
    folder: Path, num_kills: int, seed: int, synchronisation: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Trains the same run twice, once with kills; returns their cost and whether both ends are the same."""
    num_steps = num_kills * STEPS_PER_KILL
    settings = settings_for_kills(prepare_small_corpus(folder), num_steps)
    config = write_config(folder / "kills.toml", settings | {"synchronisation": synchronisation or {}})
    calm, killed = RunFolder(folder / "calm"), RunFolder(folder / "killed")
    train_to_end(config, calm)
    with training(config, killed) as launcher:
        kills = kill_workers(launcher, killed, draw_moments(num_kills, num_steps, seed))
        require_good_end(launcher, killed)
    to_any, to_new = recovery_seconds(killed, kills)
    num_made = len(read_records(killed, "train"))
    return {
        "seed": seed,
        "kills": num_kills,
        "kills_while_starting": sum(kill.was_starting for kill in kills),
        "restarts": read_json(killed.status)["num_restarts"],
        "restart_seconds": summarise(to_any) | {"required_max": MAX_RESTART_SECONDS},
        "lost_seconds": summarise(to_new),
        "steps": num_steps,
        "steps_repeated": num_made - num_steps,
        "is_bit_identical": is_same_end(calm, killed, num_steps),
        "sha256": {each.path.name: hash_end(each, num_steps) for each in (calm, killed)},
        "each_kill": [asdict(kill) for kill in kills],
    }


def is_same_end(run: RunFolder, other: RunFolder, num_steps: int) -> bool:
    """Whether both have the same weights and moments, byte by byte, and the same loss at every step."""
    losses = [{record["step"]: record["loss"] for record in read_records(each, "train")} for each in (run, other)]
    return hash_end(run, num_steps) == hash_end(other, num_steps) and losses[0] == losses[1]


def hash_end(run: RunFolder, num_steps: int) -> dict[str, str]:
    """Returns the hashes of weights, moments and (where there are any) replicas of the last checkpoint, by name."""
    files = sorted(run.checkpoint(num_steps).glob("*.safetensors"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def settings_for_kills(prepared: Path, num_steps: int) -> dict[str, dict[str, Any]]:
    """Returns settings with short steps, frequent evaluations and saves, so that kills hit all of them."""
    return {
        "data": {"prepared": str(prepared)},
        "model": {"preset": "tiny", "width": 32, "feed_forward": 64},
        "training": {
            "global_batch_tokens": 800,
            "virtual_workers": 4,
            "max_steps": num_steps,
            "learning_rate": 3e-3,
            "schedule": "fixed",
            "log_every": 1,
        },
        "evaluation": {"evaluate_every": 20, "beam_size": 4},
        "checkpoints": {"save_every": 5, "keep_last": 2},
    }


def prepare_small_corpus(folder: Path) -> Path:
    """Prepares 1,000 pairs of the built-in corpus, with a dev set that takes a moment to evaluate."""
    corpus = write_builtin_corpus(folder / "corpus", num_train=1_000, num_dev=100, num_test=20)
    settings = PrepareSettings.of_files(
        [corpus.train.source],
        [corpus.train.target],
        dev=([corpus.dev.source], [corpus.dev.target]),
        tokenizer=TokenizerSettings(vocab_size=500),
    )
    return prepare_corpus(settings, folder / "prepared-small", say=lambda _: None).folder


# Saving


def measure_saving(folder: Path) -> dict[str, Any]:
    """Trains preset `small` on Multi30k; returns how long steps wait for checkpoints."""
    num_steps = SAVE_EVERY * (NUM_SAVES + 1)
    config = write_config(folder / "saving.toml", settings_for_saving(prepare_multi30k(folder).folder, num_steps))
    run = RunFolder(folder / "saving")
    train_to_end(config, run)
    saves = [record for record in read_records(run, "checkpoint") if 0 < record["step"] < num_steps]
    seconds = read_records(run, "train")[-1]["training_seconds"]
    beside, alone = speeds_beside_writing(run, saves)
    return {
        "save_every": SAVE_EVERY,
        "checkpoint_bytes": saves[-1]["bytes"],
        "snapshot_seconds": summarise([record["snapshot_seconds"] for record in saves]),
        "writing_seconds": summarise([record["seconds"] for record in saves]),
        "training_seconds": seconds,
        "share_of_training_waited": sum(record["snapshot_seconds"] for record in saves) / seconds,
        "share_of_training_if_steps_waited_for_the_disk": sum(record["seconds"] for record in saves) / seconds,
        "target_tokens_per_second_while_writing": median(beside),
        "target_tokens_per_second_otherwise": median(alone),
    }


def settings_for_saving(prepared: Path, num_steps: int) -> dict[str, dict[str, Any]]:
    return {
        "data": {"prepared": str(prepared)},
        "model": {"preset": "small"},
        "training": {"global_batch_tokens": 4_096, "virtual_workers": 2, "max_steps": num_steps, "log_every": 1},
        "evaluation": {"max_sentences": 1, "beam_size": 1},
        "checkpoints": {"save_every": SAVE_EVERY},
    }


def speeds_beside_writing(run: RunFolder, saves: list[Record]) -> tuple[list[float], list[float]]:
    """Returns target tokens per second of steps during which a checkpoint was written, and of the others."""
    steps = {record["step"]: record for record in read_records(run, "train")}
    writing = [(steps[save["step"]]["time"], save["seconds"]) for save in saves]
    beside, alone = [], []
    for step in steps.values():
        begin = step["time"] - step["seconds_per_step"]
        is_beside = any(begin < start + seconds and start < step["time"] for start, seconds in writing)
        (beside if is_beside else alone).append(step["target_tokens_per_second"])
    return beside, alone


# Command


def say_kills(figures: dict[str, Any]) -> None:
    """Prints one line per number."""
    restart, lost = figures["restart_seconds"], figures["lost_seconds"]
    print(f"kills {figures['kills']}, {figures['kills_while_starting']} of them of workers that were starting")
    print(f"restarts {figures['restarts']}")
    print(f"to the next step {restart['median']:.1f} s median, {restart['max']:.1f} s worst")
    print(f"lost per kill {lost['median']:.1f} s median, {lost['max']:.1f} s worst, steps made again included")
    print(f"steps repeated {figures['steps_repeated']}, {figures['steps_repeated'] / figures['kills']:.1f} per kill")
    print(f"bit-identical with an undisturbed run: {'yes' if figures['is_bit_identical'] else 'NO'}")


def say_saving(figures: dict[str, Any]) -> None:
    """Prints one line per number."""
    print(f"checkpoint {figures['checkpoint_bytes'] / 1e6:.0f} MB, every {figures['save_every']} steps")
    copied, written = figures["snapshot_seconds"]["median"], figures["writing_seconds"]["median"]
    print(f"copied in {copied:.3f} s, written in {written:.2f} s")
    print(f"steps waited {figures['share_of_training_waited']:.2%} of the training time for copies")
    speed = figures["target_tokens_per_second_while_writing"] / figures["target_tokens_per_second_otherwise"]
    print(f"while a checkpoint was written, steps reached {speed:.0%} of their speed")


def main() -> int:
    """Measures, saves and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=positive_count, default=25, help="workers killed in one run (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the kills (default: 1)")
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        kills = measure_kills(Path(folder), options.kills, options.seed)
        say_kills(kills)
        saving = measure_saving(Path(folder))
        say_saving(saving)
    path = save_result("faults", machine, {"killing": kills, "saving": saving})
    print(f"Written to {path.relative_to(REPOSITORY)}")
    is_quick = kills["restart_seconds"]["max"] <= MAX_RESTART_SECONDS
    return 0 if kills["is_bit_identical"] and is_quick else 1


if __name__ == "__main__":
    end_with(main)
