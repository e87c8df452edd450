"""Compares ways of synchronising over slow links, in speed and in quality: `python slow_network.py`, as root.

    python benchmarks/slow_network.py                       everything; hours, most of them for quality
    python benchmarks/slow_network.py --part speed          two hosts of the rig, five links, seven strategies
    python benchmarks/slow_network.py --part quality        BLEU at equal tokens, one process for each run
    python benchmarks/slow_network.py --part kills          kills at random moments while replicas learn apart
    python benchmarks/slow_network.py --part paper          what `dragoman plan` says of two clusters
    python benchmarks/slow_network.py --part summary        tables and plot of what was measured so far

What results/slow_network.json already has is not measured again, unless --fresh is given. Exit code 1 if a bound is not
met.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bleu_by_bandwidth import draw, find_misses, markdown, summarise_all
from compared_strategies import CACHE_FOLDER, RATES, STRATEGIES, name_of
from faults import measure_kills, say_kills
from field_runs import TARGET_TOKENS_PER_SENTENCE
from multi30k import REPOSITORY
from prediction import call
from results import RESULTS_FOLDER, describe_machine, end_with, positive_count, save_result
from synchronisation_quality import (
    CORPORA,
    NOT_CHOSEN,
    QualityRun,
    as_settings,
    folder_of,
    list_runs,
    settings_auto_takes,
    train_all,
    write_whole_run_config,
)
from synchronisation_speed import (
    check_link,
    measure_cell,
    predicted_seconds,
    two_hosts,
    write_speed_config,
)

from dragoman.run.files import read_json, write_text

NAME = "slow_network"
PARTS = ("speed", "quality", "kills", "paper", "summary")
PLOT = REPOSITORY / "docs" / "slow-networks.svg"
REPLICAS_APART = {
    "strategy": "local",
    "replicas": 2,
    "interval": 6,
    "max_interval": 12,
    "together_steps": 10,
    "fragments": 6,
    "overlap": True,
    "wire": "int8",
}
"""Exchanges that take from one checkpoint to the next, so that kills and saves hit them on their way."""
INTERNET = """[links.internet]
about = "sites joined over the internet"
latency_seconds = 0.06
bytes_per_second = 6.25e6
goodput = { low = 0.7, typical = 0.9, high = 0.97 }
source = "50 Mbit/s and 60 ms, as stated in the question; goodput: estimate"
"""
TOKENS_PER_GPU = round(256 * TARGET_TOKENS_PER_SENTENCE)
JOBS = {
    "openseq2seq_2x2_v100_100mbit": (
        *("--software", "openseq2seq", "--device", "V100-PCIE", "--nodes", "2", "--devices-per-node", "2"),
        *("--batch-per-device", str(TOKENS_PER_GPU), "--link", "100mbit", "--steps", "50000"),
    ),
    "eight_sites_50mbit_60ms": (
        *("--device", "V100-PCIE", "--nodes", "8", "--devices-per-node", "1"),
        *("--batch-per-device", str(TOKENS_PER_GPU), "--link", "internet", "--steps", "50000"),
    ),
}
"""Options of `dragoman plan` by name; both train transformer-base."""


class Kept:
    """The result file, written after every measurement; two calls for different parts may run at the same time."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self._machine = machine
        self._changed: set[str] = set()
        self.results = self._read()

    def _read(self) -> dict[str, Any]:
        path = RESULTS_FOLDER / f"{NAME}.json"
        found = read_json(path) if path.exists() else {}
        return {part: found[part] for part in PARTS if part in found}

    def part(self, name: str) -> dict[str, Any]:
        """Returns the figures of a part, to be added to."""
        self._changed.add(name)
        figures: dict[str, Any] = self.results.setdefault(name, {})
        figures["machine"] = self._machine
        return figures

    def save(self) -> Path:
        """Writes the file; parts that this call does not measure stay as they are there."""
        own = {part: self.results[part] for part in self._changed}
        self.results = self._read() | own
        return save_result(NAME, self._machine, self.results)


def measure_speed(kept: Kept, options: argparse.Namespace, folder: Path) -> None:
    """Measures every strategy over every link, slow links first."""
    rates = [rate for rate in RATES if not options.rates or name_of(rate) in options.rates.split(",")]
    strategies = [each for each in STRATEGIES if not options.strategies or each in options.strategies]
    figures = kept.part("speed")
    checks, cells = figures.setdefault("checks", {}), figures.setdefault("cells", {})
    if options.fresh:
        for rate in rates:
            checks.pop(name_of(rate), None)
            for each in strategies:
                cells.pop(f"{name_of(rate)}/{each}", None)
    missing = [(rate, each) for rate in rates for each in strategies if f"{name_of(rate)}/{each}" not in cells]
    if not missing and all(name_of(rate) in checks for rate in rates):
        return
    config = write_speed_config(folder / "speed.toml")
    whole = write_whole_run_config(folder / "whole.toml", options.steps)
    with two_hosts(folder) as rig:
        for rate in rates:
            link = name_of(rate)
            if link not in checks:
                checks[link] = check_link(rig, whole, rate)
                kept.save()
            for strategy in [each for other, each in missing if other == rate]:
                cell = measure_cell(rig, config, strategy, rate, folder)
                cells[f"{link}/{strategy}"] = cell
                kept.save()
                say_cell(cell, predicted_seconds(checks[link], cell))


def say_cell(cell: dict[str, Any], predicted: float | None) -> None:
    """Prints a line per cell."""
    expected = f", predicted {predicted:.3f} s" if predicted is not None else ""
    print(
        f"{cell['link']}, {cell['strategy']}: {cell['seconds_per_step']:.3f} s per step{expected}; "
        f"{cell['target_tokens_per_second']:,.0f} target tokens/s, {cell['bytes_per_host_and_step'] / 1e6:.2f} MB per "
        f"host and step; {cell['steps']} steps, {cell['cell_seconds']:.0f} s in all",
        flush=True,
    )


def measure_quality(kept: Kept, options: argparse.Namespace) -> None:
    """Trains the runs that are missing, or whose settings were others."""
    done = kept.part("quality").setdefault("runs", {})
    checks = kept.results.get("speed", {}).get("checks", {})
    auto = as_settings(options.auto_settings) if options.auto_settings else settings_auto_takes(checks)
    runs = list_runs(options.steps, options.seeds, auto, options.strategies, options.corpora)
    for each in runs if options.fresh else []:
        done.pop(each.name, None)
        shutil.rmtree(folder_of(each), ignore_errors=True)
    missing = [each for each in runs if done.get(each.name, {}).get("settings") != each.synchronisation]
    print(f"{len(missing)} of {len(runs)} runs to train; auto takes {auto}", flush=True)

    def keep(run: QualityRun, figures: dict[str, Any]) -> None:
        done[run.name] = figures
        kept.save()
        last = figures["evaluations"][-1]
        print(f"{run.name}: BLEU {last['bleu']:.2f}, loss {last['loss']:.4f} after {last['step']} steps", flush=True)

    train_all(missing, options.at_once, keep)


def plan_on_paper(kept: Kept, folder: Path) -> None:
    """Asks `dragoman plan` for the clusters that nobody has here."""
    hardware = folder / "internet.toml"
    write_text(hardware, INTERNET)
    for name, arguments in JOBS.items():
        found = json.loads(call("plan", *arguments, "--hardware", str(hardware), "--json"))
        keys = ("seconds_per_step", "bytes_per_node_per_step", "hours", "strategies", "chosen", "advice")
        kept.part("paper")[name] = {"options": arguments} | {key: found.get(key) for key in keys}
        print(f"{name}: {found['seconds_per_step']['predicted']:.1f} s per step with exact sums", flush=True)
        for each in found.get("strategies") or []:
            print(f"  {json.dumps(each)}")
    kept.save()


def summarise(kept: Kept, target_bleu: float | None) -> list[str]:
    """Joins what was measured so far; writes the plot, prints the tables and returns the bounds that are not met."""
    kept.part("summary").update(summarise_all(kept.results, target_bleu))
    for name, lines in markdown(kept.results).items():
        if len(lines) > 2:
            print(f"\n<!-- {name} -->", *lines, sep="\n")
    if kept.results["summary"]["seconds_to_bleu"]:
        draw(kept.results["summary"], PLOT)
        print(f"\nDrawn: {PLOT.relative_to(REPOSITORY)}")
    misses = find_misses(kept.results)
    kept.results["summary"]["misses"] = misses
    return misses


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; may be repeated (default: all)")
    parser.add_argument("--fresh", action="store_true", help="measure again what this call selects")
    parser.add_argument("--rates", help="speed: e.g. 10mbit,unlimited (default: all)")
    parser.add_argument("--strategies", help="speed, quality: e.g. every_step,local (default: all)")
    parser.add_argument("--steps", type=positive_count, default=1_200, help="quality: steps of a run (default: 1200)")
    parser.add_argument("--seeds", type=positive_count, default=3, help="quality: seeds of the main two (default: 3)")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=CORPORA, help="quality: default: both")
    parser.add_argument("--at-once", type=positive_count, default=2, help="quality: runs at a time (default: 2)")
    parser.add_argument("--auto-settings", help="quality: what auto takes, e.g. 'strategy=\"local\" interval=8'")
    parser.add_argument("--kills", type=positive_count, default=10, help="kills: workers killed (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="kills: random seed (default: 1)")
    parser.add_argument("--target-bleu", type=float, help="summary: default 0.95 of what every_step reaches")
    options = parser.parse_args()
    options.strategies = options.strategies.split(",") if options.strategies else None
    for name in options.strategies or []:
        if name not in (*STRATEGIES, *NOT_CHOSEN):
            parser.error(f"{name} is not one of {', '.join((*STRATEGIES, *NOT_CHOSEN))}")
    return options


def main() -> int:
    """Measures what is missing, writes and prints; returns the exit code."""
    options = parse_options()
    parts = options.part or list(PARTS)
    kept = Kept(describe_machine())
    CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        if "speed" in parts:
            measure_speed(kept, options, Path(folder))
        if "kills" in parts and (options.fresh or "kills" not in kept.results):
            kept.part("kills").update(measure_kills(Path(folder), options.kills, options.seed, REPLICAS_APART))
            say_kills(kept.results["kills"])
        if "paper" in parts:
            plan_on_paper(kept, Path(folder))
    if "quality" in parts:
        measure_quality(kept, options)
    misses = summarise(kept, options.target_bleu)
    print(f"Written to {kept.save().relative_to(REPOSITORY)}")
    for miss in misses:
        print(f"Not met: {miss}.")
    return 1 if misses else 0


if __name__ == "__main__":
    end_with(main)
