"""Tests predictions and verdicts against real runs: `python prediction.py`, as root.

Two hosts with real links of a given rate (the rig of the tests): `dragoman check` predicts, `dragoman train` measures.
Then what `check` promises for a faster port, and the same run when the links have that rate. Then runs that are slowed
down on purpose, and the verdict on each. Exit code 1 if a bound is not met.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from constructed_causes import CASES, Judged, describe_judged, run_case
from link_speed import prepare_builtin
from multi30k import REPOSITORY, prepare_multi30k
from results import RESULTS_FOLDER, describe_machine, end_with, positive_count, save_result

from dragoman.diagnosis.verdict import verdict_of_run
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.records import TrainRecord, records_of
from dragoman.run.summary import read_records

sys.path.append(str(REPOSITORY / "tests"))  # where the rig is
from host_runs import ONE_THREAD
from link_measurement import measure_links, set_rates
from program import dragoman_command
from rig import Rig, rig_problem

RATES = ("10mbit", "30mbit", "100mbit", "300mbit", "1gbit", None)
HOST_LISTS = ("h1:1,h2:1", "h1:2,h2:2")
MODELS = {
    "0.3 M parameters": {"preset": "small", "width": 64, "feed_forward": 256, "encoder_layers": 2, "decoder_layers": 2},
    "1.4 M parameters": {
        "preset": "small",
        "width": 128,
        "feed_forward": 512,
        "encoder_layers": 3,
        "decoder_layers": 3,
    },
}
SLOW_PORTS = ("10mbit", "20mbit", "100mbit")
PORTS = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit"}
"""Rates of the rig by the names of ports in advice."""
SLOW_STEPS, PORT_STEPS = 5, 20
"""Steps measured over slow ports, which take seconds each, and over faster ones."""
LOG_EVERY = 4
"""Steps in a record: logging every step would slow down the fastest runs."""
LONGEST_SECONDS = 15.0
"""Time for the measured steps of a case; a few steps are made in any case."""
FEWEST_STEPS, MOST_STEPS = 8, 32
MEDIAN_BOUND, WORST_BOUND, COVERAGE_BOUND, VERDICT_BOUND = 0.10, 0.20, 0.80, 0.95
PORT_BOUND = 0.20
"""Farthest that a step over a faster port may lie outside the promised interval, relative to its bound."""
CLEAR_SHARE = 0.5
"""The network is certainly the cause if an unlimited link saves at least this share of the measured step."""


@dataclass(frozen=True)
class Compared:
    """One case: the prediction and the measurement."""

    model: str
    hosts: str
    rate: str | None
    predicted: float
    low: float
    high: float
    measured: float
    num_steps: int
    check_seconds: float
    bottleneck: str
    verdict: str
    verdict_share: float
    wall_error: float | None
    """Relative difference between the sum of the parts and the wall time."""

    @property
    def error(self) -> float:
        """Relative error; positive if a step was predicted too slow."""
        return self.predicted / self.measured - 1

    @property
    def is_covered(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Promise:
    """What `check` promised for a faster port, and what it brought."""

    hosts: str
    rate: str
    port: str
    predicted_now: float
    now: float
    """Predicted and measured seconds per step over the slow port: far apart if other programs came or went."""
    low: float
    high: float
    measured: float
    """Measured seconds per step over the faster port, in the same run."""

    @property
    def outside(self) -> float:
        """How far the measurement lies outside the interval, relative to the nearer bound; 0 inside."""
        return max(0.0, self.low / self.measured - 1, self.measured / self.high - 1)


def compare_ports(folder: Path) -> Iterator[Promise]:
    """Compares what `check` promises over each slow port with one run whose links get faster."""
    [*_, model] = MODELS
    config = write_config(folder / "ports.toml", prepare_builtin(folder / "ports"), model, log_every=1)
    rates = dict.fromkeys(SLOW_PORTS, SLOW_STEPS) | dict.fromkeys(PORTS.values(), PORT_STEPS)
    with Rig(folder=folder / "rig-of-ports", hosts=2) as rig:
        for number, hosts in enumerate(HOST_LISTS):
            checked = {}
            for rate in SLOW_PORTS:
                set_rates(rig, rate)
                options = [str(config), "--hosts", hosts, "--ssh-config", str(rig.ssh_config)]
                checked[rate] = json.loads(call("check", *options, "--json", codes=(0, 1)))
            set_rates(rig, None)
            run = measure_links(rig, hosts, config, folder / f"ports-{number}", rates)
            for rate, found in checked.items():
                now = found["seconds_per_step"]["predicted"], run.window(rate).seconds_per_step
                for port, interval in promised_ports(found["advice"]).items():
                    yield Promise(hosts, rate, port, *now, *interval, run.window(port).seconds_per_step)


def promised_ports(advice: list[str]) -> dict[str, tuple[float, float]]:
    """Returns the promised seconds per step by rate, for the ports that the rig can have."""
    found = {}
    for message in advice:
        match = re.match(r"A port of (\S+ \S+) \(.*\): ([\d.]+)(?: to ([\d.]+))? s instead of ", message)
        if match and match[1] in PORTS:
            found[PORTS[match[1]]] = (float(match[2]), float(match[3] or match[2]))
    return found


def compare_all(folder: Path, rates: list[str | None], rounds: int) -> Iterator[Compared]:
    """Compares every model, host list and rate."""
    prepared = prepare_builtin(folder)
    with Rig(folder=folder / "rig", hosts=2) as rig:
        for number in range(rounds):
            for model in MODELS:
                config = write_config(folder / f"{number}-{len(model)}.toml", prepared, model)
                for hosts in HOST_LISTS:
                    for rate in rates:
                        set_rates(rig, rate)
                        yield compare(rig, config, model, hosts, rate, folder / "run")


def write_config(path: Path, prepared: Path, model: str, log_every: int = LOG_EVERY) -> Path:
    """Writes the config of a run with this model that makes no measurements of its own before the first step."""
    values = {
        "data": {"prepared": str(prepared)},
        "model": MODELS[model],
        "training": {"global_batch_tokens": 2_000, "virtual_workers": 4, "log_every": log_every, "warmup_steps": 100},
        "evaluation": {"max_sentences": 4},
        "checkpoints": {"save_every": 10**6},
        "cluster": {"check": "never"},
    }
    path.write_text(dump_settings(build_settings(values)), encoding="utf-8")
    return path


def compare(rig: Rig, config: Path, model: str, hosts: str, rate: str | None, run: Path) -> Compared:
    """Predicts, trains and compares one case."""
    options = [str(config), "--hosts", hosts, "--ssh-config", str(rig.ssh_config)]
    checked = json.loads(call("check", *options, "--json", codes=(0, 1)))
    expected = checked["seconds_per_step"]
    num_steps = (
        max(FEWEST_STEPS, min(MOST_STEPS, int(LONGEST_SECONDS / expected["predicted"]))) // LOG_EVERY * LOG_EVERY
    )
    shutil.rmtree(run, ignore_errors=True)
    steps = f"training.max_steps={num_steps + LOG_EVERY}"
    call("train", *options, "--run-dir", str(run), "--set", steps)
    records = records_of(read_records(RunFolder(run)), TrainRecord)[1:]  # without the warm-up
    verdict = verdict_of_run(RunFolder(run))
    return Compared(
        model,
        hosts,
        rate,
        expected["predicted"],
        expected["low"],
        expected["high"],
        fmean(each.seconds_per_step or 0.0 for each in records),
        num_steps,
        checked["measured"]["seconds"],
        checked["bottleneck"],
        verdict.bottleneck,
        verdict.share,
        wall_error(records),
    )


def wall_error(records: list[TrainRecord]) -> float | None:
    """Compares the parts of all steps with the time between the first and the last record."""
    attributed = LOG_EVERY * sum(sum((each.attribution or {}).values()) for each in records[1:])
    wall_seconds = (records[-1].time or 0.0) - (records[0].time or 0.0)
    return attributed / wall_seconds - 1 if attributed else None


def call(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """Runs dragoman with one thread per worker, because the hosts share the cores of this machine."""
    done = subprocess.run(
        dragoman_command(*arguments),
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode not in codes:
        raise UserError(f"dragoman {arguments[0]} failed: {done.stderr[-500:]}")
    return done.stdout


def link_verdicts(compared: list[Compared]) -> list[dict[str, Any]]:
    """Returns the verdicts on runs that are clearly network-bound: at least twice as slow as on an unlimited link."""
    free = {(each.model, each.hosts): each.measured for each in compared if each.rate is None}
    found = []
    for each in compared:
        unlimited = free.get((each.model, each.hosts))
        if unlimited is None or unlimited > (1 - CLEAR_SHARE) * each.measured:
            continue
        found.append(
            {
                "case": f"{each.rate} link, {each.hosts}, {each.model}",
                "true": "network",
                "is_right": each.verdict == "network",
                "verdict": {"bottleneck": each.verdict, "share": each.verdict_share},
            }
        )
    return found


def judge_causes(folder: Path) -> Iterator[Judged]:
    """Runs every constructed cause."""
    prepared = prepare_multi30k(folder / "multi30k").folder
    for number, case in enumerate(CASES):
        yield run_case(case, prepared, folder / f"case-{number}")


def describe(compared: list[Compared], promises: list[Promise], verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns all figures of the result file."""
    errors = [abs(each.error) for each in compared]
    return {
        "workload": "`dragoman check`, then `dragoman train`, on 2 hosts of this machine with limited links",
        "cases": [asdict(each) | {"error": each.error, "is_covered": each.is_covered} for each in compared],
        "error": {
            "median": median(errors) if errors else None,
            "worst": max(errors, default=None),
            "required_median": MEDIAN_BOUND,
            "required_worst": WORST_BOUND,
        },
        "coverage": {
            "share": fmean(each.is_covered for each in compared) if compared else None,
            "required": COVERAGE_BOUND,
        },
        "ports": [asdict(each) | {"outside": each.outside} for each in promises],
        "outside_of_promise": {
            "worst": max((each.outside for each in promises), default=None),
            "required": PORT_BOUND,
        },
        "attribution_error_worst": max(
            (abs(each.wall_error) for each in compared if each.wall_error is not None), default=None
        ),
        "verdicts": verdicts,
        "right_verdicts": {
            "share": fmean(each["is_right"] for each in verdicts) if verdicts else None,
            "required": VERDICT_BOUND,
        },
    }


def is_met(figures: dict[str, Any]) -> bool:
    """Whether all bounds of the measured figures are met."""
    error, coverage, right = figures["error"], figures["coverage"], figures["right_verdicts"]
    return (
        (figures["outside_of_promise"]["worst"] or 0) <= PORT_BOUND
        and (error["median"] or 0) <= MEDIAN_BOUND
        and (error["worst"] or 0) <= WORST_BOUND
        and (coverage["share"] is None or coverage["share"] >= COVERAGE_BOUND)
        and (right["share"] is None or right["share"] >= VERDICT_BOUND)
    )


def draw(compared: list[Compared], path: Path) -> None:
    """Draws predicted over measured step times, with intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 6))
    for (model, hosts), marker in zip(
        sorted({(each.model, each.hosts) for each in compared}), ("o", "s", "^", "D"), strict=False
    ):
        group = [each for each in compared if (each.model, each.hosts) == (model, hosts)]
        predicted = [each.predicted for each in group]
        spread = [[each.predicted - each.low for each in group], [each.high - each.predicted for each in group]]
        axes.errorbar(
            [each.measured for each in group], predicted, yerr=spread, fmt=marker, capsize=3, label=f"{model}, {hosts}"
        )
    ends = [min(each.low for each in compared), max(each.high for each in compared)]
    axes.plot(ends, ends, color="black", linewidth=0.8, label="predicted = measured")
    axes.set(xscale="log", yscale="log", xlabel="measured, seconds per step", ylabel="predicted, seconds per step")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def print_compared(each: Compared) -> None:
    """Prints a line per case."""
    print(
        f"{each.model}, {each.hosts}, {each.rate or 'unlimited'}: predicted {each.predicted:.3f} s "
        f"({each.low:.3f} to {each.high:.3f}), measured {each.measured:.3f} s over {each.num_steps} steps: "
        f"{each.error:+.1%}{'' if each.is_covered else ', outside'}; verdict {each.verdict} {each.verdict_share:.0%}",
        flush=True,
    )


def print_promise(each: Promise) -> None:
    """Prints a line per slow port and faster port."""
    outside = f"outside by {each.outside:.0%}" if each.outside else "inside"
    print(
        f"{each.hosts}, {each.rate} to {each.port}: promised {each.low:.3f} to {each.high:.3f} s, measured "
        f"{each.measured:.3f} s instead of {each.now:.3f} s (predicted {each.predicted_now:.3f} s): {outside}",
        flush=True,
    )


def main() -> int:
    """Measures, writes and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=1, help="how often to measure each link (default: 1)")
    parser.add_argument("--only", choices=("links", "ports", "causes"), help="run one part of the benchmark")
    parser.add_argument("--rates", help="e.g. 100mbit,none (default: all)")
    options = parser.parse_args()
    if problem := rig_problem():
        raise UserError(problem)
    rates = [None if rate == "none" else rate for rate in options.rates.split(",")] if options.rates else list(RATES)
    machine = describe_machine()
    compared: list[Compared] = []
    promises: list[Promise] = []
    judged: list[Judged] = []
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        if options.only in (None, "links"):
            for each in compare_all(Path(folder), rates, options.rounds):
                print_compared(each)
                compared.append(each)
        if options.only in (None, "ports"):
            for promise in compare_ports(Path(folder)):
                print_promise(promise)
                promises.append(promise)
        if options.only in (None, "causes"):
            for case in judge_causes(Path(folder)):
                verdict = case.verdict
                mark = "" if case.is_right else f" (true: {case.case.bottleneck})"
                print(f"{case.case.name}: {verdict.bottleneck} {verdict.share:.0%}{mark}", flush=True)
                judged.append(case)
    figures = describe(compared, promises, link_verdicts(compared) + [describe_judged(case) for case in judged])
    path = save_result("prediction", machine, figures)
    if compared:
        draw(compared, RESULTS_FOLDER / "prediction.svg")
    print(f"error {figures['error']}, coverage {figures['coverage']}, right verdicts {figures['right_verdicts']}")
    print(f"Written to {path.relative_to(REPOSITORY)}")
    return 0 if is_met(figures) else 1


if __name__ == "__main__":
    end_with(main)
