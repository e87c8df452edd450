"""Measures the steps of each strategy over links of the rig, and compares them with what `dragoman check` predicts."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from compared_strategies import (
    AUTO,
    EVERY_STEP,
    INTERVAL,
    STRATEGIES,
    base_sections,
    name_of,
    prepared_corpus,
    settings_of,
)
from multi30k import REPOSITORY
from prediction import call

from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.run.records import TrainRecord, records_of
from dragoman.run.summary import read_records

sys.path.append(str(REPOSITORY / "tests"))  # where the rig is
from host_runs import ONE_EACH, training_on_hosts, wait_until_no_processes
from link_measurement import StepEnds, set_rates
from rig import Rig, rig_problem

CHECK_SECONDS = 25
START_SECONDS = 240.0
POLL_SECONDS = 0.005
MANY_STEPS = 100_000
"""More steps than are measured: the run is ended from outside."""


@dataclass(frozen=True)
class Limits:
    """How long to measure a strategy."""

    log_every: int
    """Steps in a record; a whole interval where replicas average their weights."""
    num_settling: int
    """Records that are skipped: memory is allocated, TCP adapts, the first exchange begins."""
    fewest: int
    most: int
    """Records to measure."""
    seconds: float
    """Time after which the fewest records are enough."""


EACH_STEP = Limits(log_every=1, num_settling=2, fewest=4, most=30, seconds=22)
WHOLE_INTERVALS = Limits(log_every=INTERVAL, num_settling=1, fewest=2, most=4, seconds=22)


@contextmanager
def two_hosts(folder: Path) -> Iterator[Rig]:
    """Builds a rig of two hosts, inside a new folder."""
    if problem := rig_problem():
        raise UserError(problem)
    with Rig(folder=folder / "rig", hosts=2) as rig:
        yield rig


def write_speed_config(path: Path) -> Path:
    """Writes the config of a run that only learns: constant rate, so that replicas are apart from the first step."""
    base = base_sections(prepared_corpus("multi30k"))
    own = {
        "training": base["training"]
        | {"max_steps": MANY_STEPS, "schedule": "fixed", "learning_rate": 1e-4, "warmup_steps": 0},
        "evaluation": {"evaluate_every": MANY_STEPS, "max_sentences": 4, "beam_size": 1},
        "checkpoints": {"save_every": MANY_STEPS},
        "synchronisation": STRATEGIES["local"],
    }
    path.write_text(dump_settings(build_settings(base | own)), encoding="utf-8")
    return path


def check_link(rig: Rig, config: Path, rate: str | None) -> dict[str, Any]:
    """Returns what `dragoman check` predicts on a link, and what auto would choose."""
    set_rates(rig, rate)
    options = [str(config), "--hosts", ONE_EACH, "--ssh-config", str(rig.ssh_config), "--seconds", str(CHECK_SECONDS)]
    found = json.loads(call("check", *options, "--json", codes=(0, 1)))
    wait_until_no_processes(rig)
    keys = ("seconds_per_step", "parts", "bottleneck", "strategies", "chosen", "problems")
    return {key: found.get(key) for key in keys}


def measure_cell(rig: Rig, config: Path, strategy: str, rate: str | None, folder: Path) -> dict[str, Any]:
    """Trains with a strategy over a link for some steps; returns their figures."""
    limits = WHOLE_INTERVALS if strategy in ("local", AUTO) else EACH_STEP
    run = RunFolder(folder / "run")
    shutil.rmtree(run.path, ignore_errors=True)
    values = {f"synchronisation.{key}": value for key, value in settings_of(strategy).items()}
    values |= {"training.log_every": limits.log_every, "cluster.check": "machines" if strategy == AUTO else "never"}
    changes = [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    set_rates(rig, rate)
    began = time.monotonic()
    with training_on_hosts(rig, ONE_EACH, run.path, config, *changes) as training:
        bytes_by_host = follow(rig, StepEnds(training), training, limits)
        record_list = [each for each in records_of(read_records(run), TrainRecord) if each.step in bytes_by_host]
    wait_until_no_processes(rig)
    # The first record ends the settling; what follows is measured.
    figures = describe_records(record_list[1:], bytes_by_host)
    state = read_json(run.checkpoint(0) / "state.json")
    return figures | {
        "strategy": strategy,
        "link": name_of(rate),
        "synchronisation": state.get("synchronisation"),
        "cell_seconds": time.monotonic() - began,
    }


def follow(rig: Rig, steps: StepEnds, training: Any, limits: Limits) -> dict[int, dict[str, int]]:
    """Waits until enough was measured; returns the bytes that each host had sent at the end of each record."""
    found: dict[int, dict[str, int]] = {}
    first = limits.num_settling * limits.log_every
    began = time.monotonic()
    while not is_enough(len(found) - 1, time.monotonic() - began if found else 0.0, limits):
        if training.is_over or (not found and time.monotonic() - began > START_SECONDS):
            raise UserError(f"The run made no steps: {training.errors[-500:]}")
        step = steps.last_step()
        if step >= first and step not in found:
            began = began if found else time.monotonic()
            found[step] = {host.name: host.bytes_sent() for host in rig.hosts}
        time.sleep(POLL_SECONDS)
    return found


def is_enough(num_measured: int, seconds: float, limits: Limits) -> bool:
    """Whether the records measured so far give a stable median."""
    return num_measured >= limits.most or (num_measured >= limits.fewest and seconds >= limits.seconds)


def describe_records(records: list[TrainRecord], bytes_by_host: dict[int, dict[str, int]]) -> dict[str, Any]:
    """Returns the figures of the measured steps."""
    first, last = min(bytes_by_host), max(bytes_by_host)
    sent = {name: bytes_by_host[last][name] - bytes_by_host[first][name] for name in bytes_by_host[first]}
    seconds = [each.seconds_per_step or 0.0 for each in records]
    parts = [each.attribution or {} for each in records]
    return {
        "seconds_per_step": median(seconds),
        "target_tokens_per_second": median(each.target_tokens_per_second or 0.0 for each in records),
        "bytes_per_host_and_step": max(sent.values()) / (last - first),
        "steps": last - first,
        "seconds_of_each_record": seconds,
        "parts": {name: median(each.get(name, 0.0) for each in parts) for name in parts[0]},
    }


def predicted_seconds(check: dict[str, Any] | None, cell: dict[str, Any]) -> float | None:
    """Returns the prediction of `check` for the strategy of a cell, or for what auto chose there."""
    if not check:
        return None
    used = cell.get("synchronisation") or {"strategy": cell["strategy"]}
    for each in check.get("strategies") or []:
        if all(each["plan"][key] == used.get(key, each["plan"][key]) for key in ("strategy", "interval", "overlap")):
            return float(each["seconds"])
    return float(check["seconds_per_step"]["predicted"]) if used["strategy"] == EVERY_STEP else None
