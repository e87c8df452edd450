"""Disturbs a run on two hosts for a long time, and checks what is left: `python soak.py --minutes 30`, as root.

Two hosts of the rig and a launcher share no folder. Every 20 to 40 seconds something happens: a worker, the program of
a host, its ssh sessions or the launcher is killed, a link is cut, a worker is stopped, a disk is full, a clock is set,
a host is switched off. Exit code 1 if the run fails, does not go on, or its history on the launcher's machine is not
whole; with --kills-only also if its weights are not those of an undisturbed run.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil
from faults import prepare_small_corpus
from multi30k import REPOSITORY
from results import describe_machine, end_with, save_result, summarise
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dragoman.run.config import ClusterSettings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json

sys.path.append(str(REPOSITORY / "tests"))  # where the rig is
from host_runs import (
    ONE_EACH,
    ONE_THREAD,
    copy_to_private_folders,
    hosts_options,
    processes_on,
    program_on,
    train_here,
    worker_on,
    write_config,
)
from program import WORKER_MODULE, Training, latest_step, learned_bytes, read_records, run_dragoman, wait_until
from rig import Host, Rig, rig_problem
from rig.clocks import clock_problem
from timeline import Timeline

SETTINGS = (
    "training.global_batch_tokens=3000",  # steps of about 0.1 s
    "training.max_steps=1000000",
    "checkpoints.save_every=20",
    "evaluation.evaluate_every=500",
    f"cluster.host_timeout={ClusterSettings().host_timeout}",  # the default, not that of the tests
    "cluster.hang_timeout=12",
)
BETWEEN_SECONDS = (20.0, 40.0)
"""From one fault to the next."""
LASTING_SECONDS = (3.0, 12.0)
"""How long a fault lasts that does not end by itself."""
CLOCK_STEP_SECONDS = 30.0
RECOVERY_SECONDS = 180.0
"""After this time without a step, the soak has failed."""
DISK_SIZE = "200m"


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong on a host."""

    begin: Callable[[Host], None]
    end: Callable[[Host], None] | None = None
    """Makes it good again; None where there is nothing to make good."""


KILLS: dict[str, Fault] = {
    "worker killed": Fault(lambda host: worker_on(host).kill()),
    "host program killed": Fault(lambda host: program_on(host).kill()),
    "ssh sessions killed": Fault(Host.kill_ssh_sessions),
}
OTHERS: dict[str, Fault] = {
    "worker stopped": Fault(lambda host: worker_on(host).suspend()),
    "link down": Fault(Host.link_down, Host.link_up),
    "disk full": Fault(Host.fill_disk, Host.free_disk),
    "clock set": Fault(
        lambda host: host.step_clock(CLOCK_STEP_SECONDS), lambda host: host.step_clock(-CLOCK_STEP_SECONDS)
    ),
    "host switched off": Fault(Host.power_off, Host.power_on),
}
LAUNCHER_KILLED = "launcher killed"


@dataclass(frozen=True)
class Disturbance:
    """A fault that was made, and what it cost."""

    fault: str
    host: str
    at_seconds: float
    """Since the first step."""
    seconds_without_step: float
    """The longest pause until the next fault."""
    steps_repeated: int
    num_restarts: int
    causes: tuple[str, ...]
    """Of these restarts, as the run recorded them."""


class Soak:
    """A run on hosts that share no folder, and everything that happens to it."""

    def __init__(self, rig: Rig, config: Path, seed: int, is_kills_only: bool) -> None:
        self.run = rig.private / "run"
        self.disturbances: list[Disturbance] = []
        self.endings: list[str] = []
        """Messages of launchers that ended without being asked."""
        self._rig = rig
        self._config = config
        self._randomness = random.Random(seed)
        self._faults = KILLS if is_kills_only else KILLS | OTHERS
        # Another number of workers would add the same gradients in another order.
        self._options = ["--min-hosts", 2] if is_kills_only else []
        self._deck: list[str] = []
        self._launchers: list[Training] = []
        self._num_restarts_before = self._num_unfinished_restarts = 0

    def __enter__(self) -> Self:
        options = [self._config, *hosts_options(self._rig, ONE_EACH), *self._options]
        self._launchers.append(Training(self.run, *options, environment=ONE_THREAD))
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in self._launchers:
            launcher.__exit__()

    def disturb(self, timeline: Timeline, seconds: float, max_faults: int | None = None) -> None:
        """Makes one fault after another until the time is over; notes the cost of each."""
        begin = self._wait_for_step(timeline)
        while time.monotonic() < begin + seconds and len(self.disturbances) != max_faults:
            name, host = self._draw_fault()
            num_restarts, num_causes = self.num_restarts, len(self.restart_causes())
            moment = time.monotonic()
            next_moment = moment + self._randomness.uniform(*BETWEEN_SECONDS)
            try:
                self._make_fault(name, host)
            except (psutil.NoSuchProcess, ValueError):  # the process to kill has just ended
                continue
            time.sleep(max(0.0, next_moment - time.monotonic()))
            end = self._wait_for_step(timeline)
            self.disturbances.append(
                Disturbance(
                    name,
                    "" if name == LAUNCHER_KILLED else host.name,
                    moment - begin,
                    timeline.longest_pause(moment, end),
                    timeline.steps_repeated(moment, end),
                    self.num_restarts - num_restarts,
                    self.restart_causes()[num_causes:],
                )
            )
            print(describe_disturbance(self.disturbances[-1]), flush=True)

    def end(self) -> int:
        """Stops the run as a person would; returns its last step, which may have been made before."""
        run_dragoman("stop", self.run)
        self._launchers[-1].end()
        return int(read_records(self.run, "train")[-1]["step"])

    def _draw_fault(self) -> tuple[str, Host]:
        """Draws a fault, each kind once before any comes again, and a host that has a worker."""
        if not self._deck:
            self._deck = self._randomness.sample([*self._faults, LAUNCHER_KILLED], len(self._faults) + 1)
        name = self._deck.pop()
        hosts = self._randomness.sample(self._rig.hosts, len(self._rig.hosts))
        wait_until(lambda: any(processes_on(host, WORKER_MODULE) for host in hosts), "a worker", RECOVERY_SECONDS)
        return name, next(host for host in hosts if processes_on(host, WORKER_MODULE))

    def _make_fault(self, name: str, host: Host) -> None:
        """Makes a fault and, after some seconds, ends it."""
        if name == LAUNCHER_KILLED:
            self._launchers[-1].kill()
            self._resume()
            return
        fault = self._faults[name]
        fault.begin(host)
        if fault.end is not None:
            time.sleep(self._randomness.uniform(*LASTING_SECONDS))
            fault.end(host)

    def _resume(self) -> None:
        """Continues the run with the shortest command that a person would type."""
        status = self._status()
        self._num_restarts_before += status.get("num_restarts", 0)
        self._num_unfinished_restarts += status.get("state") in ("restarting", "waiting")
        self._launchers.append(Training(self.run, "--resume", environment=ONE_THREAD))

    def _wait_for_step(self, timeline: Timeline) -> float:
        """Waits for a new step and returns when it was made; resumes a run that has ended by itself meanwhile."""
        begin = time.monotonic()
        while (step := timeline.next_step(begin)) is None:
            if self._launchers[-1].is_over:
                self.endings.append(self._launchers[-1].errors.strip().splitlines()[-1])
                print(f"The run ended by itself: {self.endings[-1]}", flush=True)
                self._resume()
            if time.monotonic() > begin + RECOVERY_SECONDS:
                said = "\n".join(self._launchers[-1].errors.splitlines()[-5:])
                raise UserError(f"No step in {RECOVERY_SECONDS:.0f} s. The run says: {said}")
            time.sleep(0.1)
        return step

    def _status(self) -> dict[str, Any]:
        path = self.run / "status.json"
        return read_json(path) if path.exists() else {}

    @property
    def num_restarts(self) -> int:
        """Restarts by all launchers so far."""
        return self._num_restarts_before + int(self._status().get("num_restarts", 0))

    @property
    def min_restarts_recorded(self) -> int:
        """Restarts that must be in the history: not those that a launcher had only begun when it was killed."""
        return self.num_restarts - self._num_unfinished_restarts

    def restart_causes(self) -> tuple[str, ...]:
        """Returns the causes in the history on this machine; a resume by a person has none."""
        if not (self.run / "metrics.jsonl").exists():
            return ()
        return tuple(record["cause"] for record in read_records(self.run, "restart") if record.get("cause"))


# Checks


def history_problems(soak: Soak, num_steps: int) -> Iterator[str]:
    """Returns what is missing or wrong in the history on the launcher's machine."""
    steps = [record["step"] for record in read_records(soak.run, "train")]
    yield from step_problems("metrics.jsonl", steps, num_steps)
    yield from step_problems("TensorBoard", tensorboard_steps(soak.run), num_steps)
    causes = soak.restart_causes()
    if not soak.min_restarts_recorded <= len(causes) <= soak.num_restarts:
        yield f"metrics.jsonl has {len(causes)} restarts with a cause, but {soak.num_restarts} were made."
    log = (soak.run / "log.txt").read_text(encoding="utf-8")
    for cause in set(causes):
        if log.count(cause) < causes.count(cause):
            yield f"log.txt lacks a restart: {cause}"


def step_problems(source: str, steps: Sequence[int], num_steps: int) -> Iterator[str]:
    """Checks that a series has every step, and that they are in order where each counts as it was made last.

    A run that ends while it repeats steps has made some beyond its last one before.
    """
    last_places = {step: place for place, step in enumerate(steps) if step <= num_steps}
    if missing := sorted(set(range(1, num_steps + 1)) - set(steps)):
        yield f"{source} lacks {len(missing)} of {num_steps} steps, among them {missing[0]} and {missing[-1]}."
    if sorted(last_places, key=last_places.__getitem__) != sorted(last_places):
        yield f"The steps in {source} are not in order."


def tensorboard_steps(run: Path) -> list[int]:
    """Returns the steps of the training loss as TensorBoard shows them."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it reports every restart
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("train_loss")]


def weight_problems(soak: Soak, config: Path, folder: Path, num_steps: int) -> Iterator[str]:
    """Compares the last checkpoint with that of an undisturbed run of two workers."""
    calm = train_here(2, folder / "calm", config, "--set", f"training.max_steps={num_steps}")
    if latest_step(soak.run) != num_steps:
        yield f"The newest checkpoint on this machine is of step {latest_step(soak.run)}, not {num_steps}."
    elif learned_bytes(soak.run, num_steps) != learned_bytes(calm, num_steps):
        yield "The weights differ from those of an undisturbed run."


# Command


def run_soak(
    folder: Path, seconds: float, seed: int, is_kills_only: bool, max_faults: int | None = None
) -> dict[str, Any]:
    """Disturbs a run and checks it; returns all numbers of the result file."""
    with Rig(folder=folder / "rig", hosts=2, private_size=DISK_SIZE, steppable_clocks=not is_kills_only) as rig:
        prepared = copy_to_private_folders(rig, prepare_small_corpus(folder))
        config = write_config(folder / "config.toml", prepared, *SETTINGS)
        with Soak(rig, config, seed, is_kills_only) as soak, Timeline(rig) as timeline:
            soak.disturb(timeline, seconds, max_faults)
            num_steps = soak.end()
    problems = [*soak.endings, *history_problems(soak, num_steps)]
    if is_kills_only:
        problems += weight_problems(soak, config, folder, num_steps)
    return {
        "seed": seed,
        "is_kills_only": is_kills_only,
        "steps": num_steps,
        "steps_repeated": sum(each.steps_repeated for each in soak.disturbances),
        "restarts": soak.num_restarts,
        "problems": problems,
        "faults": [asdict(each) for each in soak.disturbances],
    }


def describe_disturbance(each: Disturbance) -> str:
    """Returns one line of the table."""
    figures = f"{each.seconds_without_step:6.1f} s{each.steps_repeated:5} steps{each.num_restarts:3} restarts"
    return f"{each.at_seconds:7.0f} s  {each.fault:22}{each.host:4}{figures}  {' '.join(each.causes)}"


def say(figures: dict[str, Any]) -> None:
    """Prints a table of all kinds of faults, and the problems."""
    print(f"{'fault':22}{'number':>8}{'longest pause, s: median':>26}{'worst':>8}{'steps repeated':>16}")
    for name in sorted({each["fault"] for each in figures["faults"]}):
        rows = [each for each in figures["faults"] if each["fault"] == name]
        pauses = summarise([each["seconds_without_step"] for each in rows])
        repeated = sum(each["steps_repeated"] for each in rows)
        print(f"{name:22}{len(rows):8}{pauses['median']:26.1f}{pauses['max']:8.1f}{repeated:16}")
    print(f"{figures['steps']} steps, {figures['restarts']} restarts, {figures['steps_repeated']} steps repeated")
    print("\n".join(f"PROBLEM: {problem}" for problem in figures["problems"]) or "The history is whole.")


def main() -> int:
    """Runs the soak, saves and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults are made (default: 30)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the faults (default: random)")
    parser.add_argument("--kills-only", action="store_true", help="only kills; then the weights must be the same bytes")
    parser.add_argument("--folder", type=Path, help="keep all files in this new folder, to look into them")
    options = parser.parse_args()
    if problem := rig_problem() or clock_problem():
        raise UserError(problem)
    machine = describe_machine()
    with ExitStack() as stack:
        if options.folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-benchmark-")))
        else:
            folder = options.folder.resolve()
            folder.mkdir(parents=True)
        print(f"Seed {options.seed}", flush=True)
        figures = run_soak(folder, options.minutes * 60, options.seed, options.kills_only)
    say(figures)
    path = save_result("soak", machine, figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    end_with(main)
