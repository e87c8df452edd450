"""What faults cost a run: 25 kills of workers at random moments, and checkpoints written beside the steps.

`python faults.py`. Real runs of `dragoman train` with two workers on this machine. Exit code 1 where the run that was
killed does not end bit-identical with one that was not, or where a restart takes too long.
"""

import argparse
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
STEPS_PER_KILL = 15
STEP_SECONDS = 0.5
"""A worker that trains is killed within this time of the step that was drawn: in the step, while it judges or saves."""
START_SECONDS = 4.0
"""One that is starting, within this: that takes a while."""
MAX_RESTART_SECONDS = 15.0
WAIT_SECONDS = 120.0
SAVE_EVERY = 10
NUM_SAVES = 4

Record = dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """When to kill whom, drawn beforehand."""

    step: int
    """Not before the run has come so far; where it is farther already, its workers are killed as they start."""
    fraction: float
    """Of the time there is to wait then."""
    rank: int


@dataclass(frozen=True)
class Kill:
    """One that happened."""

    time: float
    rank: int
    step: int
    """The farthest one made by then."""
    was_starting: bool


def draw_moments(num_kills: int, num_steps: int, seed: int) -> list[Moment]:
    """Random steps, not the last ones: there must be a run left to kill."""
    randomness = random.Random(seed)
    steps = sorted(randomness.choices(range(num_steps - STEPS_PER_KILL), k=num_kills))
    return [Moment(step, randomness.random(), randomness.randrange(NUM_WORKERS)) for step in steps]


# A run from outside


def write_config(path: Path, sections: dict[str, dict[str, Any]]) -> Path:
    """The settings that differ from the defaults, checked."""
    write_text(path, dump_settings(build_settings(sections)))
    return path


@contextmanager
def training(config: Path, run: RunFolder) -> Iterator[psutil.Popen]:
    """`dragoman train` as a user starts it, its words into a file; whatever is left of it ends with the block."""
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--run-dir", str(run.path)]
    printed = run.path.with_suffix(".txt")
    with printed.open("w") as words:
        launcher = psutil.Popen(
            [*command, "--workers", str(NUM_WORKERS)],
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=words,
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
    """An undisturbed run."""
    with training(config, run) as launcher:
        require_good_end(launcher, run)


def require_good_end(launcher: psutil.Popen, run: RunFolder) -> None:
    """Waits, and complains with the last words of a run that failed."""
    if launcher.wait() != 0:
        words = run.path.with_suffix(".txt").read_text(encoding="utf-8").strip().splitlines()
        raise UserError(f"The run failed: {words[-1] if words else 'it said nothing'}")


def read_records(run: RunFolder, kind: str) -> list[Record]:
    """What the run has written so far, of one kind; the last line may still be on its way."""
    with suppress(FileNotFoundError):
        lines = run.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        records = (json.loads(line) for line in lines if line.endswith("\n"))
        return [record for record in records if record["kind"] == kind]
    return []


def processes_of(launcher: psutil.Popen, module: str) -> list[psutil.Process]:
    """Those that the launcher or one of its processes has started to run this module."""
    found = []
    for process in launcher.children(recursive=True):
        with suppress(psutil.Error):
            if module in process.cmdline():
                found.append(process)
    return found


def workers_of(launcher: psutil.Popen) -> dict[int, psutil.Process]:
    """The workers that there are now, by rank."""
    found = {}
    for process in processes_of(launcher, WORKER_MODULE):
        with suppress(psutil.Error, KeyError):
            found[int(process.environ()["RANK"])] = process
    return found


# Kills


def kill_workers(launcher: psutil.Popen, run: RunFolder, moments: list[Moment]) -> list[Kill]:
    """Kills at the moments drawn, each time workers of another attempt."""
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
    """All workers of an attempt that has not been disturbed, once the run has come far enough."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and launcher.poll() is None:
        workers = {rank: worker for rank, worker in workers_of(launcher).items() if worker.pid not in gone}
        if len(workers) == NUM_WORKERS and farthest_step(run) >= moment.step:
            return workers
        time.sleep(0.02)
    raise UserError(f"The run came to step {farthest_step(run)} only, or ended, before it could be killed again.")


def farthest_step(run: RunFolder) -> int:
    """The last step of all attempts."""
    return max((record["step"] for record in read_records(run, "train")), default=0)


def recovery_seconds(run: RunFolder, kills: list[Kill]) -> tuple[list[float], list[float]]:
    """From each kill to the next step made, and to the next one not made before; where no other kill came between."""
    steps, restarts = read_records(run, "train"), read_records(run, "restart")
    to_any, to_new = [], []
    for kill, following in zip(kills, [*kills[1:], None], strict=True):
        end = following.time if following else float("inf")
        # The other rank may still finish the step it was in: what counts comes after the restart.
        begin = next((record["time"] for record in restarts if kill.time < record["time"]), end)
        made = [record for record in steps if begin < record["time"] < end]
        new = [record for record in made if record["step"] > kill.step]
        to_any += [record["time"] - kill.time for record in made[:1]]
        to_new += [record["time"] - kill.time for record in new[:1]]
    return to_any, to_new


def measure_kills(folder: Path, num_kills: int, seed: int) -> dict[str, Any]:
    """The same run twice, one of them killed again and again: what that cost, and whether it shows in the end."""
    num_steps = num_kills * STEPS_PER_KILL
    config = write_config(folder / "kills.toml", settings_for_kills(prepare_small_corpus(folder), num_steps))
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
        "each_kill": [asdict(kill) for kill in kills],
    }


def is_same_end(run: RunFolder, other: RunFolder, num_steps: int) -> bool:
    """The same weights and moments, byte by byte, and the same loss at every step."""
    names = ("model.safetensors", "optimizer.safetensors")
    files = [[(each.checkpoint(num_steps) / name).read_bytes() for name in names] for each in (run, other)]
    losses = [{record["step"]: record["loss"] for record in read_records(each, "train")} for each in (run, other)]
    return files[0] == files[1] and losses[0] == losses[1]


def settings_for_kills(prepared: Path, num_steps: int) -> dict[str, dict[str, Any]]:
    """Steps of a few hundredths of a second, judged and saved often, so kills meet all of that."""
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
    """1,000 pairs of the corpus inside the package, and enough to judge by that it takes a moment."""
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
    """Preset `small` on Multi30k with a checkpoint every few steps: how long steps wait for that."""
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
    """Target tokens per second of steps during which a checkpoint was written, and of all others."""
    steps = {record["step"]: record for record in read_records(run, "train")}
    writing = [(steps[save["step"]]["time"], save["seconds"]) for save in saves]
    beside, alone = [], []
    for step in steps.values():
        begin = step["time"] - step["seconds_per_step"]
        is_beside = any(begin < start + seconds and start < step["time"] for start, seconds in writing)
        (beside if is_beside else alone).append(step["target_tokens_per_second"])
    return beside, alone


# The whole


def say_kills(figures: dict[str, Any]) -> None:
    """One line per figure."""
    restart, lost = figures["restart_seconds"], figures["lost_seconds"]
    print(f"kills {figures['kills']}, {figures['kills_while_starting']} of them of workers that were starting")
    print(f"restarts {figures['restarts']}")
    print(f"to the next step {restart['median']:.1f} s median, {restart['max']:.1f} s worst")
    print(f"lost per kill {lost['median']:.1f} s median, {lost['max']:.1f} s worst, steps made again included")
    print(f"steps repeated {figures['steps_repeated']}, {figures['steps_repeated'] / figures['kills']:.1f} per kill")
    print(f"bit-identical with an undisturbed run: {'yes' if figures['is_bit_identical'] else 'NO'}")


def say_saving(figures: dict[str, Any]) -> None:
    """One line per figure."""
    print(f"checkpoint {figures['checkpoint_bytes'] / 1e6:.0f} MB, every {figures['save_every']} steps")
    copied, written = figures["snapshot_seconds"]["median"], figures["writing_seconds"]["median"]
    print(f"copied in {copied:.3f} s, written in {written:.2f} s")
    print(f"steps waited {figures['share_of_training_waited']:.2%} of the training time for copies")
    speed = figures["target_tokens_per_second_while_writing"] / figures["target_tokens_per_second_otherwise"]
    print(f"while a checkpoint was written, steps reached {speed:.0%} of their speed")


def main() -> int:
    """Measures, writes, says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=positive_count, default=25, help="workers killed in one run (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="of their moments (default: 1)")
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
