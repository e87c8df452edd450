"""Measures the seconds from a fault to the next step of a run on two hosts: `python recovery.py`, as root.

Two hosts of the rig and a launcher share no folder. Killed are a worker, the program that holds the workers of a host,
the ssh session to a host, and the host itself, which then returns. Beside it: a killed worker under torchrun, which
restarts the same training. Exit code 1 if any recovery takes too long.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from faults import prepare_small_corpus
from multi30k import REPOSITORY
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.run.config import ClusterSettings
from dragoman.run.errors import UserError

sys.path.append(str(REPOSITORY / "tests"))  # where the rig is
from host_runs import (
    ONE_EACH,
    ONE_THREAD,
    copy_to_private_folders,
    processes_on,
    program_on,
    training_on_hosts,
    wait_until_no_processes,
    worker_on,
    write_config,
)
from program import environment_of, farthest_step, read_records, wait_until
from rig import Host, Rig, rig_problem
from timeline import Timeline, WatchedProcess

REQUIRED_SECONDS = 10.0
STEPS_BEFORE = 30
WAIT_SECONDS = 180.0
SETTINGS = (
    "training.global_batch_tokens=3000",  # steps of about 0.1 s
    "training.max_steps=1000000",
    "checkpoints.save_every=10",
    "evaluation.evaluate_every=1000000",
    f"cluster.host_timeout={ClusterSettings().host_timeout}",  # the default, not that of the tests
)
FAULTS: dict[str, Callable[[Host], None]] = {
    "worker killed": lambda host: worker_on(host).kill(),
    "host program killed": lambda host: program_on(host).kill(),
    "ssh session killed": Host.kill_ssh_sessions,
    "host switched off": Host.power_off,
}
RETURN = "host switched on"


@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault to the first step after it, in consecutive phases."""

    ending: float
    """Until all workers of before are gone: the fault is noticed, the others are ended."""
    starting: float
    """Until a worker is started: waiting for lost hosts, checks, connections, the host program imports the agent."""
    joining: float
    """Until all workers have reported: they import torch and find each other."""
    restoring: float
    """Until training continues: model, optimizer, weights."""
    first_step: float

    @property
    def seconds(self) -> float:
        return self.ending + self.starting + self.joining + self.restoring + self.first_step


def measure_recovery(timeline: Timeline, begin: float, num_workers: int) -> Recovery:
    """Waits until this many workers, started after a moment, have made a step."""

    def back() -> list[WatchedProcess]:
        """The workers of the latest attempt, if all of them have made a step."""
        workers = timeline.workers_since(begin)[-num_workers:]
        return workers if len(workers) == num_workers and all(worker.first_step for worker in workers) else []

    wait_until(back, f"a step of {num_workers} workers", WAIT_SECONDS)
    workers = back()
    started = min(worker.started for worker in workers)
    ends = [worker.ended for worker in timeline.workers if worker.ended and begin < worker.ended <= started]
    joined = max(worker.joined or started for worker in workers)
    restored = max(worker.steps[0][0] for worker in workers)
    first_step = max(worker.first_step or restored for worker in workers)
    moments = [begin, max(ends, default=begin), started, joined, restored, first_step]
    return Recovery(*(after - before for before, after in pairwise(moments)))


def measure_fault(rig: Rig, config: Path, run: Path, fault: str) -> dict[str, Recovery]:
    """Trains, makes a fault on the second host, and measures until the next step; then the return of the host."""
    host = rig["h2"]
    with training_on_hosts(rig, ONE_EACH, run, config) as training, Timeline(rig) as timeline:
        try:
            wait_until(lambda: len(made_steps(timeline)) > STEPS_BEFORE, "the first steps", WAIT_SECONDS)
            begin = time.monotonic()
            FAULTS[fault](host)
            is_off = host.server is None
            found = {fault: measure_recovery(timeline, begin, num_workers=1 if is_off else 2)}
            if is_off:
                begin = time.monotonic()
                host.power_on()
                found[RETURN] = measure_recovery(timeline, begin, num_workers=2)
        except AssertionError as error:
            raise UserError(
                f"No recovery after this fault: {fault} ({error}). The run says: {training.errors}"
            ) from None
        finally:
            if host.server is None:
                host.power_on()
    wait_until_no_processes(rig)
    return found


def made_steps(timeline: Timeline) -> list[float]:
    return [moment for worker in timeline.workers if worker.rank == 0 for moment, _ in worker.steps]


# Reference


def measure_torchrun(rig: Rig, config: Path, run: Path) -> float:
    """Trains under torchrun, kills a worker, and returns the seconds to the next step.

    The hosts share the run folder here, and no checkpoint is saved after the first, so that the step after the restart
    is known by its number.
    """
    torchrun, dragoman = (Path(sys.executable).with_name(name) for name in ("torchrun", "dragoman"))
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"{rig['h1'].address}:29400", "--no-python"]
    train = ["train", config, "--run-dir", run, "--continue", "--set", "checkpoints.save_every=1000000"]
    command = [torchrun, *options, dragoman, *train]
    interface = {"GLOO_SOCKET_IFNAME": rig["h1"].interface}
    with run.with_suffix(".txt").open("w") as output:
        agents = [
            host.popen(command, env=os.environ | ONE_THREAD | interface, stdout=output, stderr=output)
            for host in rig.hosts
        ]
    try:
        wait_until(lambda: farthest_step(run) > STEPS_BEFORE, "steps under torchrun", WAIT_SECONDS)
        (worker,) = [each for each in processes_on(rig["h2"], str(dragoman)) if "RANK" in environment_of(each)]
        step, begin = farthest_step(run), time.time()
        worker.kill()

        def after() -> list[float]:
            records = read_records(run, "train")
            return [record["time"] for record in records if record["time"] > begin and record["step"] < step]

        wait_until(after, "a step after torchrun's restart", WAIT_SECONDS)
        return after()[0] - begin
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
        for host in rig.hosts:
            for pid in host.processes():
                os.kill(pid, 9)


# Command


def measure(
    folder: Path, num_rounds: int, faults: list[str], overrides: list[str]
) -> tuple[dict[str, Any], list[float]]:
    """Returns the recoveries of each fault, and the seconds under torchrun."""
    prepared = prepare_small_corpus(folder)
    found: dict[str, list[Recovery]] = {}
    reference = []
    with Rig(folder=folder / "rig", hosts=2) as rig:
        private = copy_to_private_folders(rig, prepared)
        config = write_config(folder / "config.toml", private, *SETTINGS, *overrides)
        for number in range(num_rounds):
            for fault in faults:
                run = rig.private / f"run-{number}-{fault.replace(' ', '-')}"
                for name, recovery in measure_fault(rig, config, run, fault).items():
                    found.setdefault(name, []).append(recovery)
                    print(f"{name}: {recovery.seconds:.1f} s", flush=True)
            if "worker killed" in faults:
                reference.append(measure_torchrun(rig, config, folder / f"torchrun-{number}"))
                print(f"worker killed under torchrun: {reference[-1]:.1f} s", flush=True)
    return found, reference


def describe(found: dict[str, list[Recovery]], reference: list[float]) -> dict[str, Any]:
    """Returns all numbers of the result file."""
    return {
        "workload": "preset tiny, steps of 0.1 s, 2 hosts of the rig with 1 worker each, no shared folder",
        "required_seconds": REQUIRED_SECONDS,
        "seconds": {fault: summarise([each.seconds for each in rounds]) for fault, rounds in found.items()},
        "phases": {
            fault: {phase: summarise([asdict(each)[phase] for each in rounds]) for phase in asdict(rounds[0])}
            for fault, rounds in found.items()
        },
        "reference": {"worker killed under torchrun --max-restarts": summarise(reference)} if reference else {},
        "rounds": {fault: [asdict(each) for each in rounds] for fault, rounds in found.items()},
    }


def say(figures: dict[str, Any]) -> None:
    """Prints a table of medians."""
    phases = list(next(iter(figures["phases"].values())))
    print(f"{'seconds to the next step':28}{'median':>8}{'worst':>8}" + "".join(f"{phase:>12}" for phase in phases))
    for fault, seconds in figures["seconds"].items():
        parts = "".join(f"{figures['phases'][fault][phase]['median']:12.1f}" for phase in phases)
        print(f"{fault:28}{seconds['median']:8.1f}{seconds['max']:8.1f}{parts}")
    for name, seconds in figures["reference"].items():
        print(f"reference: {name} {seconds['median']:.1f} s median, {seconds['max']:.1f} s worst")


def main() -> int:
    """Measures, saves and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=3, help="rounds of all faults (default: 3)")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this fault; may be repeated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    options = parser.parse_args()
    if problem := rig_problem():
        raise UserError(problem)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        found, reference = measure(Path(folder), options.rounds, options.fault or list(FAULTS), options.set)
    figures = describe(found, reference)
    say(figures)
    path = save_result("recovery", machine, figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if all(seconds["max"] <= REQUIRED_SECONDS for seconds in figures["seconds"].values()) else 1


if __name__ == "__main__":
    end_with(main)
